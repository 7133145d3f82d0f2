//! New copies of a region while it is used: a second one for protection, and one elsewhere for a memory node that is
//! drained. Each is made under load and without.

use std::time::Duration;

use cxloe_fabric::model::Protection;

use super::lines::{CheckedLines, LineAccess, beside};
use super::{Goal, SurvivalError, SurvivalRun, rate, us};
use crate::eventually::pause;

const REGION: &str = "copied";
/// Duration of the load without a copy being made, beside which the load is compared.
const BASELINE: Duration = Duration::from_millis(500);

/// Creates and writes a region with one copy; returns its lower half, which is read, its upper half, which is written,
/// and the rate of the bursts by which it was written, in MB/s.
fn single(run: &mut SurvivalRun<'_>) -> Result<([CheckedLines; 2], f64), SurvivalError> {
    let (bytes, interrupt) = (run.options.bytes, run.interrupt);
    let hpa = run.fabric.create(REGION, bytes, Protection::None, &["mn0"], interrupt)?;
    let mut halves = CheckedLines::halves(run.fabric.socket(0), hpa, bytes);
    let mut took = Duration::ZERO;
    for half in &mut halves {
        took += half.fill(interrupt)?;
    }
    let burst = rate(bytes, took);
    run.note("bursts written", "MB/s", burst, None);
    Ok((halves, burst))
}

/// Adds a second copy, and removes one again.
pub fn fill(run: &mut SurvivalRun<'_>) -> Result<(), SurvivalError> {
    let (bytes, interrupt) = (run.options.bytes, run.interrupt);
    let (mut halves, burst) = single(run)?;
    for round in 1..=run.options.rounds {
        run.say_round(round);
        let [reader, writer] = &mut halves;
        let fabric = &run.fabric;
        let loads = &mut [(&mut *reader, LineAccess::Read), (&mut *writer, LineAccess::Write)];
        let ((), before) = beside(loads, interrupt, || pause(BASELINE, interrupt))?;
        let (loaded, during) =
            beside(loads, interrupt, || fabric.protect(REGION, Protection::Mirror, interrupt))?;
        fabric.protect(REGION, Protection::None, interrupt)?;
        let alone = fabric.protect(REGION, Protection::Mirror, interrupt)?;
        for half in &mut halves {
            half.verify(interrupt)?;
        }
        run.fabric.protect(REGION, Protection::None, interrupt)?;
        note_rates(run, bytes, [loaded, alone], burst, Some(Goal::AtLeast(0.7)));
        for (name, before, during) in
            [("read", before[0].p99, during[0].p99), ("write", before[1].p99, during[1].p99)]
        {
            run.note(&format!("{name} p99 before"), "us", us(before), None);
            run.note(&format!("{name} p99 during it"), "us", us(during), None);
            let goal = Some(Goal::AtMost(2.0));
            run.note_ratio(&format!("{name} p99 during it / before"), during, before, goal);
        }
        run.count(&mut halves);
    }
    run.fabric.destroy(REGION, interrupt)
}

/// Drains the memory node that the region is on, so that the region moves to another one.
pub fn drain(run: &mut SurvivalRun<'_>) -> Result<(), SurvivalError> {
    let (bytes, interrupt) = (run.options.bytes, run.interrupt);
    let (mut halves, burst) = single(run)?;
    for round in 1..=run.options.rounds {
        run.say_round(round);
        let [reader, writer] = &mut halves;
        let fabric = &run.fabric;
        let loads = &mut [(&mut *reader, LineAccess::Read), (&mut *writer, LineAccess::Write)];
        let home = fabric.home(REGION)?;
        let (loaded, times) = beside(loads, interrupt, || fabric.drain(&home, REGION, interrupt))?;
        let alone = fabric.drain(&fabric.home(REGION)?, REGION, interrupt)?;
        for half in &mut halves {
            half.verify(interrupt)?;
        }
        note_rates(run, bytes, [loaded, alone], burst, None);
        run.note("longest read", "ms", times[0].max / 1e6, None);
        run.note("longest write", "ms", times[1].max / 1e6, None);
        run.count(&mut halves);
    }
    run.fabric.destroy(REGION, interrupt)
}

/// Notes the rates of a copy under load and without, and their quotients to the rate of bursts.
fn note_rates(run: &mut SurvivalRun<'_>, bytes: u64, times: [Duration; 2], burst: f64, goal: Option<Goal>) {
    for (name, took) in ["under load", "without load"].into_iter().zip(times) {
        let rate = rate(bytes, took);
        run.note(&format!("copied {name}"), "MB/s", rate, None);
        run.note_ratio(&format!("copied {name} / bursts"), rate, burst, goal);
    }
}
