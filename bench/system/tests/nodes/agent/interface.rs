//! The interface is removed under running nodes, and returns: deleted and recreated, taken down, with another MTU or
//! another address. Sessions and the pool survive, and all data is correct afterwards.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use cxloe_client::client::{self, Client};

use cxloe_system::pair::*;

/// MAC address that no station has.
const OTHER: &str = "02:00:00:00:00:77";
const ENDS: [(&str, &str); 2] = [("cn0", CN), ("mn0", MN)];

/// A thread that writes and checks lines, round after round. An operation may fail while the link is down for longer
/// than the session time-out; it is then repeated.
struct Work {
    agent: PathBuf,
    stop: AtomicBool,
    rounds: AtomicU64,
}

impl Work {
    fn run(&self, hpa: u64) -> Result<(), String> {
        let mut port = Client::connect(&self.agent).map_err(|e| e.to_string())?;
        for seed in 0.. {
            let lines = written_lines(hpa, seed);
            let mut round = || -> Result<(), client::ClientError> {
                port.write_batch(&lines)?;
                port.flush()
            };
            eventually("a round of writes succeeds", || round().ok()).map_err(text)?;
            let hpas: Vec<u64> = lines.iter().map(|(hpa, _)| *hpa).collect();
            let mut read = vec![[0; 64]; hpas.len()];
            eventually("a round of reads succeeds", || port.read_batch(&hpas, &mut read).ok())
                .map_err(text)?;
            if lines.iter().zip(&read).any(|((_, written), read)| written != read) {
                return Err(format!("round {seed} holds other bytes than were written"));
            }
            self.rounds.fetch_add(1, Ordering::Relaxed);
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(())
    }

    /// Waits until the thread has completed some more rounds.
    fn goes_on(&self, after: &str) -> Outcome {
        let before = self.rounds.load(Ordering::Relaxed);
        eventually(&format!("work goes on after: {after}"), || {
            (self.rounds.load(Ordering::Relaxed) >= before + 3).then_some(())
        })
    }
}

fn text(error: libtest_mimic::Failed) -> String {
    error.message().unwrap_or_default().to_owned()
}

/// Waits until the agent has reopened its link more than `before` times; returns the new number.
fn reopened(rig: &Pair, before: u64) -> Outcome<u64> {
    eventually("the agent opens its link again", || {
        let counters = client::counters(&rig.socket()).ok()?;
        (counters.link_down.is_none() && counters.link_reopened > before).then_some(counters.link_reopened)
    })
}

pub fn comes_back(link: &'static str, wait: &'static str) -> Outcome {
    let mut rig = Pair::bare()?;
    rig.link = link;
    rig.start_all("anon", &["--cache-size", "0", "--wait", wait])?;
    let hpa = rig.attached("scratch", "active")?.hpa;
    // Lines at this address are written at the beginning and read at the end: the pool has to keep their content.
    let kept = hpa + REGION / 2;
    let mut port = rig.connect()?;
    eventually("a session is open", || port.read(hpa).ok())?;
    port.write_batch(&written_lines(kept, 99))?;
    port.flush()?;

    let work = Work { agent: rig.socket(), stop: AtomicBool::new(false), rounds: AtomicU64::new(0) };
    let outcome = thread::scope(|scope| -> Outcome {
        let running = scope.spawn(|| work.run(hpa));
        let outcome = changes(&rig, &work);
        work.stop.store(true, Ordering::Relaxed);
        let worked = running.join().map_err(|_| "the program panicked")?;
        outcome?;
        worked.map_err(Into::into)
    });
    if outcome.is_err() {
        eprintln!("{}\n{}", rig.logs("mn"), rig.logs("agent"));
    }
    outcome?;
    verify(&mut port, kept, 99)?;
    for daemon in ["mn", "agent"] {
        let output_text = rig.logs(daemon);
        ensure(
            !output_text.contains("panicked") && !output_text.contains("content was lost"),
            output_text.clone(),
        )?;
        ensure(output_text.contains("the link is open again"), output_text)?;
    }
    rig.stop("agent")?;
    rig.stop("mn")
}

fn changes(rig: &Pair, work: &Work) -> Outcome {
    work.goes_on("the start")?;
    let mut count = 0;
    for (pause, what) in [(0, "deleted and made again at once"), (300, "deleted, and made again later")] {
        rig.lab.delete_link("mn0")?;
        thread::sleep(Duration::from_millis(pause));
        rig.lab.make_link_again(ENDS)?;
        count = reopened(rig, count)?;
        work.goes_on(what)?;
    }
    for (interface, _) in ENDS {
        rig.lab.link_down(interface)?;
        // The interface stays down for 200 ms, less than the session time-out.
        thread::sleep(Duration::from_millis(200));
        rig.lab.link_up(interface)?;
        work.goes_on(&format!("{interface} down and up"))?;
    }
    for mtu in ["1400", "3000", "1500"] {
        for (interface, _) in ENDS {
            rig.lab.set_link(interface, &["mtu", mtu])?;
        }
        work.goes_on(&format!("MTU {mtu}"))?;
    }
    // A node is identified by its MAC address. If the interface has another address, the node waits until the interface
    // has the old one again, and reports that to the manager.
    rig.lab.set_link("mn0", &["address", OTHER])?;
    rig.attached("scratch", "degraded")?;
    let advice = format!("ip link set mn0 address {MN}");
    eventually("the node says what to do", || rig.logs("mn").contains(&advice))?;
    rig.lab.set_link("mn0", &["address", MN])?;
    rig.attached("scratch", "active")?;
    work.goes_on("another address and the old one again")?;
    // Nodes continue to use their interface after it was renamed. Two renames are made while the interface is up, and
    // one while it is down, as older kernels require.
    for (before, after) in [("mn0", "renamed"), ("renamed", "mn0")] {
        rig.lab.rename_link("mn0", before, after)?;
        work.goes_on(&format!("{before} renamed to {after}"))?;
    }
    rig.lab.link_down("mn0")?;
    eventually("the node has let go", || {
        let closed = rig.logs("mn").matches("interface `mn0` is down").count();
        (closed >= 2).then_some(())
    })?;
    rig.lab.rename_link("mn0", "mn0", "other")?;
    rig.lab.up_link("mn0", "other")?;
    work.goes_on("renamed while it was down")?;
    Ok(())
}

/// Nodes that are ended while their interface is missing exit as usual.
pub fn ends_well_without() -> Outcome {
    let rig = Pair::with_region("anon", &["--cache-size", "0"])?;
    let (port, _) = rig.written(5)?;
    drop(port);
    rig.lab.delete_link("mn0")?;
    eventually("the agent knows", || client::counters(&rig.socket()).ok()?.link_down.map(drop))?;
    rig.stop("agent")?;
    rig.stop("mn")
}
