//! Nodes whose link is DPDK: its driver `net_memif` carries frames through memory that both processes share, and
//! `net_af_packet` through a virtual cable.

#![expect(unsafe_code, reason = "mapped memory is read through a raw pointer")]

use std::process::Command;

use cxloe_client::client;
use cxloe_client::mapping::{MapOptions, Mapping};
use cxloe_lab::program;
use cxloe_system::memif;
use cxloe_system::pair::*;

/// Value of the option `-i` for a node with this MAC address on `net_memif`.
fn device(rig: &Pair, role: &str, mac: &str, more: &str) -> String {
    memif::device(&rig.path("memif.sock"), role, mac) + more
}

/// Starts a memory node on `net_memif`, with further arguments of the device and further options.
fn start_mn(rig: &Pair, more: &str, options: &[&str]) -> Outcome {
    rig.start_mn_with("file", &[&["-i", &device(rig, "server", MN, more)], options].concat())
}

/// Starts an agent at the other end of the memory.
fn start_agent(rig: &Pair, more: &str, options: &[&str]) -> Outcome {
    rig.start_agent(&[&["-i", &device(rig, "client", CN, more), "--cache-size", "0"], options].concat())
}

/// Starts the daemons on `net_memif`, with further arguments of the device and further options of the nodes.
fn started(more: &str, mn: &[&str], agent: &[&str]) -> Outcome<Pair> {
    let mut rig = Pair::bare()?;
    rig.link = "auto";
    rig.start_gmm()?;
    start_mn(&rig, more, mn)?;
    start_agent(&rig, more, agent)?;
    Ok(rig)
}

pub fn lines_and_pages_without_the_kernel() -> Outcome {
    for mtu in ["", ",mtu=9000"] {
        let rig = started(mtu, &[], &[])?;
        rig.create_region("scratch")?;
        let (mut port, hpa) = rig.written(61)?;
        verify(&mut port, hpa, 61)?;
        let all: Vec<u8> = (0..REGION as usize).map(|at| (at / 64) as u8 ^ (at / 4096) as u8).collect();
        port.write_bytes(hpa, &all)?;
        let mut back = vec![0; all.len()];
        port.read_bytes(hpa, &mut back)?;
        ensure(back == all, "other bytes than were written")?;
        let counters = client::counters(&rig.socket())?;
        ensure(
            counters.backend == "dpdk" && counters.link_detail.contains("net_memif"),
            counters.link_detail,
        )?;
        ensure(
            counters.link.rx_frames > 1000 && counters.link.rx_foreign == 0,
            format!("{:?}", counters.link),
        )?;
        // A sixteenth of the region may be resident, so each page fault evicts another page.
        let options = MapOptions { limit: 256 << 10, ..MapOptions::default() };
        let mapping = Mapping::open(&rig.socket(), "scratch", options)?;
        for at in (0..REGION as usize).step_by(4096) {
            // SAFETY: the byte lies in the mapping, and nothing else refers to it.
            let found = unsafe { mapping.as_ptr().add(at).read_volatile() };
            ensure(found == all[at], format!("byte {at} of the mapping"))?;
        }
    }
    Ok(())
}

/// Each of two workers has a queue of its own at both ends, which serves the worker's region.
pub fn a_queue_for_each_worker() -> Outcome {
    let rig = started("", &["--workers", "2"], &["--workers", "2"])?;
    let mut hpas = Vec::new();
    for (worker, name) in ["one", "two"].into_iter().enumerate() {
        rig.create_region(name)?;
        let region = rig.attached(name, "active")?;
        ensure(region.worker == worker, format!("region {name} has worker {}", region.worker))?;
        hpas.push(region.hpa);
    }
    let mut port = rig.connect()?;
    for hpa in &hpas {
        eventually("a session is open", || port.read(*hpa).ok())?;
        port.write_batch(&written_lines(*hpa, 63))?;
    }
    port.flush()?;
    hpas.iter().try_for_each(|hpa| verify(&mut port, *hpa, 63))?;
    for of in client::counters_by_worker(&rig.socket())?.workers {
        let place = format!("queue {} of 2", of.worker);
        ensure(of.counters.link_detail.contains(&place), of.counters.link_detail)?;
        // A frame in another worker's queue would be foreign.
        let link = of.counters.link;
        ensure(link.rx_frames > 100 && link.rx_foreign == 0, format!("worker {}: {link:?}", of.worker))?;
    }
    Ok(())
}

/// One worker of the agent has both queues, and sleeps until a frame arrives in either.
pub fn two_queues_of_one_worker() -> Outcome {
    let rig = started("", &["--workers", "2"], &["--queues", "2", "--wait", "sleep"])?;
    rig.create_region("scratch")?;
    let (mut port, hpa) = rig.written(64)?;
    verify(&mut port, hpa, 64)?;
    let sessions = client::sessions(&rig.socket())?;
    let used = sessions.iter().filter(|session| session.status.counters.answered > 0).count();
    ensure(used == 2, format!("{used} of two queues were used"))
}

/// `net_memif` would read one ring by two queues if both ends did not have as many.
pub fn another_number_of_queues_does_not_connect() -> Outcome {
    let rig = started("", &["--workers", "2"], &[])?;
    rig.says("agent", "no process is at the other end of the shared memory")
}

/// Either node is killed and started again; the other one goes on. The driver unmaps the memory even while the other end
/// receives, so that the nodes sleep, and almost never receive.
pub fn an_end_of_shared_memory_may_go_and_come_back() -> Outcome {
    const SLEEPS: &[&str] = &["--wait", "sleep"];
    cxloe_lab::expect_error("has not answered within the limit");
    let rig = started("", SLEEPS, SLEEPS)?;
    rig.create_region("scratch")?;
    let (mut port, hpa) = rig.written(65)?;
    rig.kill("mn")?;
    rig.says("agent", "no process is at the other end of the shared memory")?;
    failure(&mut port, hpa)?;
    start_mn(&rig, "", SLEEPS)?;
    recovered(&mut port, hpa)?;
    eventually("every line is served again", || verify(&mut port, hpa, 65).ok())?;
    drop(port);
    rig.kill("agent")?;
    start_agent(&rig, "", SLEEPS)?;
    let mut port = rig.connect()?;
    recovered(&mut port, hpa)?;
    verify(&mut port, hpa, 65)
}

/// Either node is killed and started again while the other receives all the time. The frames use a cable, because
/// `net_memif` unmaps the shared memory when one process ends, even while the other process reads it.
pub fn both_ends_may_end_and_come_back() -> Outcome {
    cxloe_lab::expect_error("has not answered within the limit");
    let mut rig = Pair::bare()?;
    rig.link = "auto";
    let start_mn = || rig.start_mn_with("file", &["-i", "dpdk:net_af_packet0,iface=mn0"]);
    let start_agent = || rig.start_agent(&["-i", "dpdk:net_af_packet0,iface=cn0", "--cache-size", "0"]);
    rig.start_gmm()?;
    start_mn()?;
    start_agent()?;
    rig.create_region("scratch")?;
    let (port, hpa) = rig.written(62)?;
    drop(port);
    rig.kill("agent")?;
    start_agent()?;
    let mut port = rig.connect()?;
    recovered(&mut port, hpa)?;
    verify(&mut port, hpa, 62)?;
    rig.kill("mn")?;
    failure(&mut port, hpa)?;
    start_mn()?;
    recovered(&mut port, hpa)?;
    eventually("every line is served again", || verify(&mut port, hpa, 62).ok())
}

/// Errors name a missing plug-in, a plug-in of another version, an unknown device, options that cannot be combined with
/// DPDK, and a device that passes no frames to the queues of several workers.
pub fn what_is_missing_is_named() -> Outcome {
    let mut rig = Pair::bare()?;
    rig.link = "auto";
    let other = rig.path("other.so");
    let source = rig.path("other.c");
    std::fs::write(&source, "unsigned cxloe_dpdk_version(void) { return 99; }\n")?;
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&other).arg(&source).output()?;
    succeeded(compiled)?;
    let run = |plugin: Option<&str>, interface: &str, more: &[&str]| -> Outcome<_> {
        let all = [&["-i", interface], more].concat();
        let mut agent = Command::new(program("cn-agent")?);
        agent.args(rig.agent_arguments("agent", &all));
        if let Some(plugin) = plugin {
            agent.env("CXLOE_DPDK", plugin);
        }
        Ok(rig.lab.enter("cn", || agent.output())??)
    };
    let memif = device(&rig, "client", CN, "");
    failed_with(&run(Some("/none/such.so"), &memif, &[])?, 2, &["/none/such.so", "make dpdk", "CXLOE_DPDK"])?;
    failed_with(&run(Some(text(&other)), &memif, &[])?, 2, &["version 99", "this program 4"])?;
    failed_with(&run(None, "dpdk:net_nothing0", &[])?, 2, &["no driver of DPDK takes `net_nothing0`"])?;
    failed_with(&run(None, "dpdk:", &[])?, 2, &["names no device"])?;
    failed_with(&run(None, &memif, &["--encap", "udp"])?, 2, &["leave --link and --encap out"])?;
    let one_queue = "it serves one queue: leave --workers and --queues at 1";
    for (device, why) in [
        ("dpdk:net_af_packet0,iface=cn0", one_queue),
        // The kernel spreads frames over sockets by a hash that knows no address of this protocol.
        ("dpdk:net_af_packet0,iface=cn0,qpairs=2", "driver `net_af_packet` takes no rules for addresses"),
    ] {
        failed_with(&run(None, device, &["--workers", "2"])?, 2, &[one_queue, why])?;
    }
    let third = "it has 2 queues, fewer than the 4";
    failed_with(&run(None, "dpdk:net_af_packet0,iface=cn0,qpairs=2", &["--queues", "4"])?, 2, &[third])
}
