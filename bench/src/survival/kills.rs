//! A mirrored region whose memory node or whose agent is killed under load: the longest operations, and the time and the
//! bytes until both copies are the same again.

use std::time::{Duration, Instant};

use cxloe_fabric::model::{Protection, RegionState};

use super::fabric::{OFTEN, SELDOM};
use super::lines::{CheckedLines, LINE, LineAccess, beside};
use super::{Goal, SurvivalError, SurvivalRun, mib, ms};
use crate::eventually::pause;

const REGION: &str = "mirrored";
/// Memory nodes of the two copies.
const COPIES: [&str; 2] = ["mn0", "mn1"];
/// Region with one copy, by which the rate of bursts is measured.
const BURST_REGION: &str = "burst";
const BURST_BYTES_MAX: u64 = 64 << 20;
/// Duration of the load before a kill.
const BEFORE: Duration = Duration::from_millis(300);

/// Creates and writes the mirrored region; returns its lower half, which is read, and its upper half, which is written.
fn mirrored(run: &SurvivalRun<'_>) -> Result<[CheckedLines; 2], SurvivalError> {
    let (bytes, interrupt) = (run.options.bytes, run.interrupt);
    let hpa = run.fabric.create(REGION, bytes, Protection::Mirror, &COPIES, interrupt)?;
    let mut halves = CheckedLines::halves(run.fabric.socket(0), hpa, bytes);
    for half in &mut halves {
        half.fill(interrupt)?;
    }
    Ok(halves)
}

/// Rate at which bursts are written to one memory node, in bytes per second.
fn burst_rate(run: &SurvivalRun<'_>) -> Result<f64, SurvivalError> {
    let (bytes, interrupt) = (run.options.bytes.min(BURST_BYTES_MAX), run.interrupt);
    let hpa = run.fabric.create(BURST_REGION, bytes, Protection::None, &["mn2"], interrupt)?;
    let mut lines = CheckedLines::new(run.fabric.socket(0), hpa, 0..bytes / LINE);
    lines.fill(interrupt)?;
    let took = lines.fill(interrupt)?;
    run.fabric.destroy(BURST_REGION, interrupt)?;
    Ok(bytes as f64 / took.as_secs_f64().max(1e-9))
}

/// Kills the memory nodes of both copies in turn, each for a time.
pub fn memory_node(run: &mut SurvivalRun<'_>) -> Result<(), SurvivalError> {
    let (options, interrupt) = (run.options, run.interrupt);
    let burst = burst_rate(run)?;
    let mut halves = mirrored(run)?;
    for round in 1..=options.rounds {
        run.say_round(round);
        let victim = COPIES[round as usize % COPIES.len()];
        let [reader, writer] = &mut halves;
        let fabric = &mut run.fabric;
        let loads = &mut [(&mut *reader, LineAccess::Read), (&mut *writer, LineAccess::Write)];
        let (killed, times) = beside(loads, interrupt, || {
            pause(BEFORE, interrupt)?;
            let killed = Instant::now();
            fabric.kill(victim)?;
            fabric.wait_for(REGION, RegionState::Exposed, SELDOM, interrupt)?;
            pause(options.away.saturating_sub(killed.elapsed()), interrupt)?;
            Ok(killed)
        })?;
        let missed = writer.written_since(killed);
        run.note("longest read", "ms", times[0].max / 1e6, Some(Goal::AllAtMost(5.0)));
        run.note("read, p99.9", "ms", times[0].p999 / 1e6, None);
        run.note("longest write", "ms", times[1].max / 1e6, Some(Goal::AllAtMost(50.0)));
        // The other memory node alone has every write that was acknowledged.
        for half in &mut halves {
            half.verify(interrupt)?;
        }
        resync(run, victim, missed, burst)?;
        run.count(&mut halves);
    }
    run.fabric.destroy(REGION, interrupt)
}

/// Starts a killed memory node again, and waits until its copy has the `missed` bytes of pages that were written
/// meanwhile. `burst` is the rate of bursts in bytes per second.
fn resync(run: &mut SurvivalRun<'_>, victim: &str, missed: u64, burst: f64) -> Result<(), SurvivalError> {
    let interrupt = run.interrupt;
    let (sessions, sent) = (run.fabric.sessions()?, run.fabric.sent_bytes()?);
    run.fabric.start_daemon(victim)?;
    let opened = run.fabric.session_opened(sessions, interrupt)?;
    let ended = run.fabric.wait_for(REGION, RegionState::Active, OFTEN, interrupt)?;
    let (took, sent) = (ended.duration_since(opened), run.fabric.sent_bytes()?.saturating_sub(sent));
    run.note("pages written meanwhile", "MiB", mib(missed), None);
    run.note("resync", "ms", ms(took), None);
    let (missed, goal) = (missed as f64, Some(Goal::AtMost(1.2)));
    run.note_ratio("resync / transfer time of these pages", took.as_secs_f64() * burst, missed, goal);
    run.note_ratio("bytes sent for it / bytes of these pages", sent as f64, missed, goal);
    Ok(())
}

/// Kills the agent while it writes, and starts it again.
pub fn writer(run: &mut SurvivalRun<'_>) -> Result<(), SurvivalError> {
    let (options, interrupt) = (run.options, run.interrupt);
    let mut halves = mirrored(run)?;
    for round in 1..=options.rounds {
        run.say_round(round);
        let [reader, writer] = &mut halves;
        let fabric = &mut run.fabric;
        let loads = &mut [(&mut *reader, LineAccess::Read), (&mut *writer, LineAccess::Write)];
        let (before, _) = beside(loads, interrupt, || {
            pause(BEFORE, interrupt)?;
            let before = fabric.registration();
            fabric.kill("cn0")?;
            Ok(before)
        })?;
        fabric.start_daemon("cn0")?;
        // The manager declares one of the copies stale before it registers the next agent.
        let registered = fabric.registered_after(before, interrupt)?;
        let ended = fabric.wait_for(REGION, RegionState::Active, OFTEN, interrupt)?;
        let sent = fabric.sent_bytes()?;
        let took = ended.duration_since(registered);
        run.note("both copies the same again", "ms", ms(took), Some(Goal::AllAtMost(10.0)));
        run.note("bytes sent for it", "MiB", mib(sent), Some(Goal::AllAtMost(1.0)));
        run.fabric.readable(0, REGION, interrupt)?;
        for half in &mut halves {
            half.verify(interrupt)?;
            run.count_repeated(half);
        }
    }
    run.fabric.destroy(REGION, interrupt)
}
