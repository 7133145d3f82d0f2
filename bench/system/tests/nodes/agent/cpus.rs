//! Clients and the agent on one CPU and on two, and the end of either while the other waits. Completed operations show
//! that client and agent alternate on a CPU; their speed is measured by the benchmark.

use std::process::{Command, Stdio};
use std::thread;

use cxloe_client::client::{self, ClientError};
use cxloe_lab::program;
use cxloe_system::pair::*;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// CPUs that this thread may use, at most two of them.
fn two_cpus() -> Outcome<Vec<usize>> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu) == Ok(true)).take(2).collect())
}

fn pin(cpu: usize) -> Outcome {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// Restores this thread's CPUs on drop, because daemons that are started later inherit them.
struct Unpin(CpuSet);

impl Unpin {
    fn later() -> Outcome<Unpin> {
        Ok(Unpin(sched_getaffinity(Pid::from_raw(0))?))
    }
}

impl Drop for Unpin {
    fn drop(&mut self) {
        let _ = sched_setaffinity(Pid::from_raw(0), &self.0);
    }
}

/// Clients work with every placement of agent and client on CPUs, with every wait style of the agent, and while the
/// client migrates between CPUs.
pub fn clients_work_on_the_agents_cpu_and_on_others() -> Outcome {
    let cpus = two_cpus()?;
    let rig = Pair::with_region("anon", &["--cache-size", "0"])?;
    rig.written(31)?;
    for (round, style) in ["adaptive", "busy", "sleep"].into_iter().enumerate() {
        for (own, home) in cpus.iter().enumerate() {
            rig.stop("agent")?;
            rig.start_agent(&["--cache-size", "0", "--wait", style, "--cpus", &home.to_string()])?;
            let seed = 40 + (round * 2 + own) as u64;
            let _unpin = Unpin::later()?;
            pin(*home)?;
            let (mut port, hpa) = rig.written(seed)?;
            for i in 0..300 {
                pin(cpus[i / 50 % cpus.len()])?;
                let at = hpa + i as u64 * 64;
                ensure(port.read(at)? == line(at, seed), format!("line {i}, {style} on CPU {home}"))?;
            }
            // The client submits many operations at once, and then reads a range of bytes.
            verify(&mut port, hpa, seed)?;
            let mut page = [0; 4096];
            port.read_bytes(hpa + 4096, &mut page)?;
            let expected: Vec<u8> = (0..64).flat_map(|i| line(hpa + 4096 + i * 64, seed)).collect();
            ensure(page[..] == expected, "a page is its lines")?;
        }
    }
    Ok(())
}

/// With more clients than CPUs, one of which computes on the agent's CPU without making requests, all clients make
/// progress.
pub fn a_crowded_agent_serves_all() -> Outcome {
    let rig = Pair::with_region("anon", &["--cache-size", "0"])?;
    let (_, hpa) = rig.written(32)?;
    let socket = rig.socket();
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| -> Outcome {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let ask = || -> Result<(), String> {
            let mut port = client::Client::connect(&socket).map_err(|e| e.to_string())?;
            for i in 0..200 {
                let at = hpa + i * 64;
                let found = port.read(at).map_err(|e| e.to_string())?;
                if found != line(at, 32) {
                    return Err(format!("line {i} is another"));
                }
            }
            Ok(())
        };
        let askers: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        let asked: Result<Vec<()>, String> =
            askers.into_iter().map(|asker| asker.join().expect("no panic")).collect();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        Ok(asked.map(drop)?)
    })
}

/// A read waits for a stopped memory node when the agent is killed: on the agent's CPU or another, the wait ends with
/// an error.
pub fn killed_agent_ends_a_wait_on_any_cpu() -> Outcome {
    cxloe_lab::expect_error("has not answered within the limit");
    let cpus = two_cpus()?;
    for (round, home) in cpus.iter().enumerate() {
        let rig = Pair::with_region("anon", &["--cache-size", "0", "--cpus", &home.to_string()])?;
        let (mut port, hpa) = rig.written(33)?;
        rig.pause("mn", true)?;
        let cpu = cpus[0];
        let waits = thread::spawn(move || -> Result<_, String> {
            pin(cpu).map_err(|e| e.message().unwrap_or_default().to_owned())?;
            loop {
                match port.read(hpa) {
                    // On a slow machine the session may end before the agent is killed.
                    Err(ClientError::Engine(_)) => {}
                    ended => return Ok(ended),
                }
            }
        });
        eventually("the read is under way", || {
            (client::counters(&rig.socket()).ok()?.in_flight > 0).then_some(())
        })?;
        rig.kill("agent")?;
        let ended = waits.join().expect("no panic")?;
        ensure(matches!(ended, Err(ClientError::AgentGone(_))), format!("round {round}: {ended:?}"))?;
        rig.pause("mn", false)?;
    }
    Ok(())
}

/// A client that is killed with many operations in flight leaves no operation behind at the agent, and other
/// clients' data stays unchanged.
pub fn killed_client_leaves_its_operations() -> Outcome {
    cxloe_lab::expect_error("has not answered within the limit");
    let rig = Pair::with_region("anon", &["--cache-size", "0"])?;
    let (mut good, hpa) = rig.written(34)?;
    for _ in 0..3 {
        rig.pause("mn", true)?;
        let mut reader = Command::new(program("cn-agent")?);
        reader
            .args(["read", &format!("{hpa:#x}"), "--lines", "60000", "--raw"])
            .env("CXLOE_AGENT", rig.socket());
        let mut reader = reader.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let begun = eventually("its operations are under way", || {
            let counters = client::counters(&rig.socket()).ok()?;
            (counters.in_flight > 0 && counters.clients == 2).then_some(())
        });
        reader.kill()?;
        reader.wait()?;
        begun?;
        eventually("its port is closed", || {
            (client::counters(&rig.socket()).ok()?.clients == 1).then_some(())
        })?;
        rig.pause("mn", false)?;
        recovered(&mut good, hpa)?;
        verify(&mut good, hpa, 34)?;
    }
    eventually("nothing is under way", || {
        (client::counters(&rig.socket()).ok()?.in_flight == 0).then_some(())
    })
}
