//! Cost of a second copy: reads, writes and page faults of a mirrored region and of a plain one, by turns.

use cxloe_fabric::model::Protection;

use super::lines::{CheckedLines, LINE, LineAccess};
use super::{Goal, SurvivalError, SurvivalRun, touches, us};

/// Turns of each round; the order of the two regions changes from turn to turn.
const TURNS: u32 = 4;
/// The regions, with the memory nodes that they are on.
const REGIONS: [(&str, Protection, &[&str]); 2] =
    [("plain", Protection::None, &["mn0"]), ("mirrored", Protection::Mirror, &["mn0", "mn1"])];

pub fn measure(run: &mut SurvivalRun<'_>) -> Result<(), SurvivalError> {
    let (options, interrupt) = (run.options, run.interrupt);
    let mut both = Vec::new();
    for (region, protect, on) in REGIONS {
        let hpa = run.fabric.create(region, options.bytes, protect, on, interrupt)?;
        let mut lines = CheckedLines::new(run.fabric.socket(0), hpa, 0..options.bytes / LINE);
        lines.fill(interrupt)?;
        both.push(lines);
    }
    let maps = run.can_map(REGIONS[0].0, options.bytes);
    for round in 1..=options.rounds {
        run.say_round(round);
        for turn in 0..TURNS {
            lines_of_both(run, &mut both, turn)?;
            if maps {
                faults_of_both(run, &mut both, turn)?;
            }
        }
    }
    for (lines, (region, ..)) in both.iter_mut().zip(REGIONS) {
        lines.settle(interrupt)?;
        lines.verify(interrupt)?;
        run.fabric.destroy(region, interrupt)?;
    }
    run.count(&mut both);
    Ok(())
}

/// Indices of the two regions in the order of a turn.
fn order(turn: u32) -> [usize; 2] {
    if turn.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

fn lines_of_both(
    run: &mut SurvivalRun<'_>,
    both: &mut [CheckedLines],
    turn: u32,
) -> Result<(), SurvivalError> {
    for (access, name, goal) in
        [(LineAccess::Read, "read64", Goal::AtMost(1.03)), (LineAccess::Write, "write64", Goal::AtMost(1.6))]
    {
        let mut times = [0.0; 2];
        for which in order(turn) {
            // After a mapping has ended, lines are refused for a moment.
            both[which].settle(run.interrupt)?;
            times[which] = both[which].at_random(access, run.options.operations, run.interrupt)?.p50;
        }
        compare(run, name, times, Some(goal));
    }
    Ok(())
}

fn faults_of_both(
    run: &mut SurvivalRun<'_>,
    both: &mut [CheckedLines],
    turn: u32,
) -> Result<(), SurvivalError> {
    let mut times = [0.0; 2];
    for which in order(turn) {
        run.interrupt.check()?;
        let bytes = both[which].bytes();
        let mapping = touches::open(&run.fabric.socket(0), REGIONS[which].0, bytes)?;
        let pages = run.options.touched_pages(bytes);
        times[which] = touches::touch_last_pages(&mapping, pages, &mut both[which])?.p50;
    }
    compare(run, "fault4k", times, None);
    Ok(())
}

/// Notes the times of both regions in nanoseconds, and their quotient.
fn compare(run: &mut SurvivalRun<'_>, name: &str, [plain, mirrored]: [f64; 2], goal: Option<Goal>) {
    run.note(&format!("{name}, plain"), "us", us(plain), None);
    run.note(&format!("{name}, mirrored"), "us", us(mirrored), None);
    run.note_ratio(&format!("{name}, mirrored / plain"), mirrored, plain, goal);
}
