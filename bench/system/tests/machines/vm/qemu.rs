//! `cn-agent vm` with QEMU: machines boot from, fill and check memory that is mostly on a memory node.

use std::path::PathBuf;
use std::process::Command;

use cxloe_client::client;
use cxloe_cn_core::pager::PagerCounters;
use cxloe_lab::program;

use cxloe_system::guest::{ended, guest};
use cxloe_system::pair::*;

/// Starts a fabric whose memory node has `bytes` of memory, and a compute node.
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

/// Shell command line of `cn-agent vm`, up to the name of QEMU.
fn emulator(rig: &Pair, size: &str, local: &str) -> Outcome<String> {
    let agent: PathBuf = program("cn-agent")?;
    let (agent, socket) = (agent.display(), rig.socket());
    Ok(format!(
        "{agent} vm --socket {} --size {size} --local {local} --lost-wait 5s -- qemu-system-x86_64",
        socket.display()
    ))
}

/// Checks that the machine has ended and that its region was destroyed; returns the agent's paging counters.
fn aftermath(rig: &Pair) -> Outcome<PagerCounters> {
    eventually("nothing is mapped any more", || {
        client::paging(&rig.socket(), None).ok()?.is_empty().then_some(())
    })?;
    eventually("the region is gone", || client::regions(&rig.socket()).ok()?.is_empty().then_some(()))?;
    Ok(client::counters(&rig.socket())?.paging)
}

/// A machine's whole memory is remote: kernel, page cache and programs. A quarter of the memory may be resident.
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
    let output_text = ended(guest(&options, command)?, 3)?;
    ensure(output_text == "same\n1\n", output_text)?;
    let counters = aftermath(&rig)?;
    // Number of pages of the resident limit; 1 MiB has 256.
    let pages = 48 << 8;
    let paged = counters.evicted > pages && came_back(&counters) > pages / 4 && counters.lost == 0;
    ensure(paged, format!("{counters:?}"))
}

/// A NUMA node without processors is remote: it holds a file four times as large as the resident limit.
pub fn second_node_is_remote() -> Outcome {
    let rig = fabric("160M")?;
    let nodes = "-object memory-backend-ram,id=near,size=160M -numa node,nodeid=0,cpus=0-1,memdev=near \
                 -object memory-backend-file,id=far,share=on,prealloc=off,mem-path=@memory@,size=@size@ \
                 -numa node,nodeid=1,memdev=far";
    let emulator = emulator(&rig, "128M", "6M")?;
    let options = ["--emulator", &emulator, "--memory", "288", "--qemu", nodes, "--timeout", "500"];
    let command = "set -e; echo cpus:$(cat /sys/devices/system/node/node1/cpulist); \
                   mount -t tmpfs -o mpol=bind:1,size=32M far /mnt; \
                   first=$(head -c 24M /dev/urandom | tee /mnt/a | sha256sum); \
                   awk '/MemUsed/ { print ($4 > 24 * 1024) }' /sys/devices/system/node/node1/meminfo; \
                   [ \"$first\" = \"$(sha256sum </mnt/a)\" ] && echo same";
    let output_text = ended(guest(&options, command)?, 0)?;
    ensure(output_text == "cpus:\n1\nsame\n", output_text)?;
    let counters = aftermath(&rig)?;
    let (working_set, local) = (24 << 8, 6 << 8);
    let paged = counters.evicted > working_set - local && came_back(&counters) > working_set / 2;
    ensure(paged && counters.lost == 0, format!("{counters:?}"))
}

/// Runs QEMU with a memory backend that has these options, until QEMU fails because of a nonexistent device; returns
/// the output.
fn up_to_a_wrong_device(rig: &Pair, backend: &str) -> Outcome<String> {
    let object = format!("memory-backend-file,id=ram,{backend}mem-path=@memory@,size=@size@");
    let monitor =
        ["qemu-system-x86_64", "-machine", "q35,memory-backend=ram", "-m", "32M", "-display", "none"];
    let sizes = ["vm", "--size", "32M", "--local", "8M", "--"];
    let words = [&sizes[..], &monitor, &["-object", &object, "-device", "no-such-device"]].concat();
    let ended = rig.cli(&words)?;
    let output_text = String::from_utf8_lossy(&ended.stderr).into_owned();
    ensure(ended.status.code() == Some(1), format!("{}: {output_text}", ended.status))?;
    Ok(output_text)
}

/// A QEMU that maps its memory privately, as it does by default, is refused.
pub fn private_memory_is_refused() -> Outcome {
    let rig = fabric("64M")?;
    for private in ["share=off,", ""] {
        let output_text = up_to_a_wrong_device(&rig, private)?;
        ensure(output_text.contains("private mapping") && output_text.contains("share=on"), output_text)?;
    }
    let output_text = up_to_a_wrong_device(&rig, "share=on,")?;
    ensure(output_text.contains("no-such-device") && !output_text.contains("cxloe"), output_text)
}

/// The resident limit holds even if QEMU touches all of its memory before the guest starts.
pub fn preallocated_memory_leaves_again() -> Outcome {
    let rig = fabric("64M")?;
    let output_text = up_to_a_wrong_device(&rig, "share=on,prealloc=on,")?;
    ensure(output_text.contains("no-such-device"), output_text)?;
    let counters = aftermath(&rig)?;
    let (all, local) = (32 << 8, 8 << 8);
    let left = counters.zero_fills + counters.held_hits > 0 && counters.evicted >= all - local;
    ensure(left && counters.written_back == 0, format!("{counters:?}"))
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
    failed_with(&passed, 4, &["nothing that ran used the region's memory"])?;
    aftermath(&rig).map(drop)
}

/// Number of pages fetched because the guest accessed them; each was evicted before, as the region was new. The count
/// of refaults soon after eviction is lower: a long scan exceeds the recorded history of evicted pages.
fn came_back(counters: &PagerCounters) -> u64 {
    counters.fetched + counters.prefetch_hits
}
