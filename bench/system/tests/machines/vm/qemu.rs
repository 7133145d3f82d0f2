//! `cn-agent vm` with QEMU: machines boot from, fill and check memory that is in a memory node for the most part.

use std::path::PathBuf;
use std::process::Command;

use cxloe_client::client;
use cxloe_cn_core::pager::PagerCounters;
use cxloe_lab::program;

use cxloe_system::guest::{ended, guest};
use cxloe_system::pair::*;

/// A fabric with more memory than the usual one.
fn fabric(bytes: &str) -> Outcome<Pair> {
    let rig = Pair::bare()?;
    rig.start_gmm()?;
    let manager = rig.manager_url();
    let mut command = Command::new(program("mn-server")?);
    command.args(["--name", "mn0", "-i", "mn0", "--link", "packet", "--manager", &manager, "--pool", "anon"]);
    command.args(["--insecure", "--pool-size", bytes, "--data-dir"]).arg(rig.dir.path());
    rig.start("mn", "mn", command)?;
    rig.says("mn", "registered with the manager")?;
    rig.start_agent(&[])?;
    Ok(rig)
}

/// What stands before QEMU's name.
fn emulator(rig: &Pair, size: &str, local: &str) -> Outcome<String> {
    let agent: PathBuf = program("cn-agent")?;
    let (agent, socket) = (agent.display(), rig.socket());
    Ok(format!(
        "{agent} vm --socket {} --size {size} --local {local} --lost-wait 5s -- qemu-system-x86_64",
        socket.display()
    ))
}

/// The machine is over, its region too, and of its memory this much went and came.
fn aftermath(rig: &Pair) -> Outcome<PagerCounters> {
    eventually("nothing is mapped any more", || {
        client::paging(&rig.socket(), None).ok()?.is_empty().then_some(())
    })?;
    eventually("the region is gone", || client::regions(&rig.socket()).ok()?.is_empty().then_some(()))?;
    Ok(client::counters(&rig.socket())?.paging)
}

/// The whole memory: the kernel itself, its page cache and what programs fill. A quarter of it may be here at a time.
pub fn all_memory_is_remote() -> Outcome {
    let rig = fabric("256M")?;
    let far = "-object memory-backend-file,id=ram,share=on,prealloc=off,mem-path=@memory@,size=@size@";
    let emulator = emulator(&rig, "192M", "48M")?;
    let options = [
        "--emulator",
        &emulator,
        "--machine",
        "q35,memory-backend=ram",
        "--memory",
        "192",
        "--qemu",
        far,
        "--timeout",
        "200",
    ];
    let command = "head -c 32M /dev/urandom >/run/a; cp /run/a /run/b; cmp /run/a /run/b && echo same; \
                   awk '/MemTotal/ { print ($2 < 192 * 1024) }' /proc/meminfo; exit 3";
    let said = ended(guest(&options, command)?, 3)?;
    ensure(said == "same\n1\n", said)?;
    let counters = aftermath(&rig)?;
    let pages = 48 << 8;
    let paged = counters.evicted > pages && came_back(&counters) > pages / 4 && counters.lost == 0;
    ensure(paged, format!("{counters:?}"))
}

/// A node without processors: a file in it is four times as large as what may be here.
pub fn second_node_is_remote() -> Outcome {
    let rig = fabric("160M")?;
    let nodes = "-object memory-backend-ram,id=near,size=160M -numa node,nodeid=0,cpus=0-1,memdev=near \
                 -object memory-backend-file,id=far,share=on,prealloc=off,mem-path=@memory@,size=@size@ \
                 -numa node,nodeid=1,memdev=far";
    let emulator = emulator(&rig, "128M", "6M")?;
    let options = ["--emulator", &emulator, "--memory", "288", "--qemu", nodes, "--timeout", "200"];
    let command = "set -e; echo cpus:$(cat /sys/devices/system/node/node1/cpulist); \
                   mount -t tmpfs -o mpol=bind:1,size=32M far /mnt; \
                   first=$(head -c 24M /dev/urandom | tee /mnt/a | sha256sum); \
                   awk '/MemUsed/ { print ($4 > 24 * 1024) }' /sys/devices/system/node/node1/meminfo; \
                   [ \"$first\" = \"$(sha256sum </mnt/a)\" ] && echo same";
    let said = ended(guest(&options, command)?, 0)?;
    ensure(said == "cpus:\n1\nsame\n", said)?;
    let counters = aftermath(&rig)?;
    let (working_set, local) = (24 << 8, 6 << 8);
    let paged = counters.evicted > working_set - local && came_back(&counters) > working_set / 2;
    ensure(paged && counters.lost == 0, format!("{counters:?}"))
}

pub fn wrong_commands_are_told() -> Outcome {
    let rig = fabric("32M")?;
    let none = rig.cli(&["vm", "--size", "4M", "--local", "1M", "--", "qemu-system-x86_64", "-m", "4"])?;
    failed_with(&none, 2, &["@memory@", "memory-backend-file"])?;
    let missing = rig.cli(&["vm", "--size", "4M", "--local", "1M", "--", "/no/such/qemu", "@memory@"])?;
    failed_with(&missing, 1, &["/no/such/qemu"])?;
    let region = rig.cli(&["vm", "--region", "other", "--local", "1M", "--", "true", "@memory@"])?;
    failed_with(&region, 4, &["other"])?;
    let passed = rig.cli(&[
        "vm",
        "--size",
        "4M",
        "--local",
        "1M",
        "--",
        "sh",
        "-c",
        "exit $(( @size@ / 1000000 ))",
        "@memory@",
    ])?;
    failed_with(&passed, 4, &[])?;
    aftermath(&rig).map(drop)
}

/// Pages that were fetched because the guest touched them: all of them had left before, as the region was new. (Those that
/// came back soon after they had left are fewer: a long scan outruns the memory of what has left.)
fn came_back(counters: &PagerCounters) -> u64 {
    counters.fetched + counters.prefetch_hits
}
