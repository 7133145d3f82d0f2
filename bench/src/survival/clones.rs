//! Snapshots and clones of a region: the time until each can be used, and what the first access to a page costs that is
//! not copied yet.
//!
//! ```text
//!   source:  before --order--> first write of each page --copied--> after
//!   clone:                     first touch of each page --copied--> again
//! ```
//!
//! Memory nodes copy from the first page on. So the last pages are accessed, and these times count only if more pages
//! than those are left to copy afterwards.

use std::time::{Duration, Instant};

use cxloe_fabric::model::{ByteSize, Protection};
use cxloe_measure::report::Latency;

use super::lines::{CheckedLines, LINE, LineAccess, PAGE, beside};
use super::{SurvivalError, SurvivalRun, ms, rate, touches, us};
use crate::eventually::pause;

const SOURCE: &str = "source";
const COPY: &str = "copy";
/// The memory node of the source, and so of its clones.
const NODE: &str = "mn0";
/// Duration of the load after the source is attached again, so that an operation that waits is done.
const AFTER: Duration = Duration::from_millis(200);

pub fn measure(run: &mut SurvivalRun<'_>) -> Result<(), SurvivalError> {
    let options = run.options;
    options.clone_bytes.iter().try_for_each(|bytes| of_size(run, *bytes))
}

/// Measures snapshots and clones of a region of `bytes` bytes.
fn of_size(run: &mut SurvivalRun<'_>, bytes: u64) -> Result<(), SurvivalError> {
    let interrupt = run.interrupt;
    let hpa = run.fabric.create(SOURCE, bytes, Protection::None, &[NODE], interrupt)?;
    let mut source = CheckedLines::new(run.fabric.socket(0), hpa, 0..bytes / LINE);
    source.fill(interrupt)?;
    let maps = run.can_map(SOURCE, bytes);
    source.settle(interrupt)?;
    for round in 1..=run.options.rounds {
        run.say(&format!("{}, round {round} of {}", ByteSize(bytes), run.options.rounds));
        snapshot(run, &mut source)?;
        writes(run, &mut source)?;
        if maps {
            faults(run, &mut source)?;
        }
        source.verify(interrupt)?;
    }
    run.count(std::slice::from_mut(&mut source));
    run.fabric.destroy(SOURCE, interrupt)
}

/// Name of a figure of the region that is cloned.
fn named(source: &CheckedLines, name: &str) -> String {
    format!("{}: {name}", ByteSize(source.bytes()))
}

/// Makes a snapshot while the source is written.
fn snapshot(run: &mut SurvivalRun<'_>, source: &mut CheckedLines) -> Result<(), SurvivalError> {
    let (fabric, interrupt) = (&run.fabric, run.interrupt);
    let mut copy = source.twin(fabric.socket(0), 0);
    let loads = &mut [(&mut *source, LineAccess::Write)];
    let ((answered, attached), times) = beside(loads, interrupt, || {
        let began = Instant::now();
        let answered = fabric.make_clone(SOURCE, COPY, true, interrupt)?;
        let attached = fabric.attached(0, &[COPY], interrupt)?.duration_since(began);
        fabric.attached(0, &[SOURCE], interrupt)?;
        pause(AFTER, interrupt)?;
        Ok((answered, attached))
    })?;
    copy.move_to(fabric.readable(0, COPY, interrupt)?);
    copy.permit_until(source);
    copy.verify(interrupt)?;
    fabric.destroy(COPY, interrupt)?;
    let refused = run.count_repeated(source);
    run.count(std::slice::from_mut(&mut copy));
    run.note(&named(source, "snapshot made"), "ms", ms(answered), None);
    run.note(&named(source, "snapshot attached"), "ms", ms(attached), None);
    run.note(&named(source, "longest write beside it"), "ms", times[0].max / 1e6, None);
    run.note(&named(source, "writes refused and repeated"), "count", refused as f64, None);
    Ok(())
}

/// Makes a clone, and writes to pages of the source before it, before they are copied, and afterwards.
fn writes(run: &mut SurvivalRun<'_>, source: &mut CheckedLines) -> Result<(), SurvivalError> {
    let (fabric, interrupt) = (&run.fabric, run.interrupt);
    let pages = run.options.touched_pages(source.bytes());
    let before = source.write_last_pages(pages, interrupt)?;
    let plain = source.pass(interrupt)?;
    let mut copy = source.twin(fabric.socket(0), 0);
    let ordered = Instant::now();
    let answered = fabric.make_clone(SOURCE, COPY, false, interrupt)?;
    let attached = fabric.attached(0, &[SOURCE, COPY], interrupt)?.duration_since(ordered);
    source.settle(interrupt)?;
    let first = source.write_last_pages(pages, interrupt)?;
    let met = meets_absent(fabric.left_to_copy(NODE)?, pages);
    let during = source.pass(interrupt)?;
    let copied = fabric.copied(NODE, interrupt)?.duration_since(ordered);
    let after = source.write_last_pages(pages, interrupt)?;
    let again = source.pass(interrupt)?;
    copy.move_to(fabric.readable(0, COPY, interrupt)?);
    copy.verify(interrupt)?;
    fabric.destroy(COPY, interrupt)?;
    run.count(std::slice::from_mut(&mut copy));
    run.note(&named(source, "clone made"), "ms", ms(answered), None);
    run.note(&named(source, "clone attached"), "ms", ms(attached), None);
    run.note(&named(source, "clone copied"), "ms", ms(copied), None);
    run.note(&named(source, "clone copied, rate"), "MB/s", rate(source.bytes(), copied), None);
    note_first(run, source, "write64", [&before, &first, &after], met);
    run.note(&named(source, "a write to every page, before"), "ms", ms(plain), None);
    run.note(&named(source, "a write to every page, with a clone"), "ms", ms(during), None);
    run.note(&named(source, "a write to every page, after"), "ms", ms(again), None);
    let (above, below) = (during.as_secs_f64(), plain.as_secs_f64());
    run.note_ratio(&named(source, "a write to every page, with / before"), above, below, None);
    Ok(())
}

/// Touches pages of the mapped source, then those of a mapped clone before they are copied, and afterwards.
fn faults(run: &mut SurvivalRun<'_>, source: &mut CheckedLines) -> Result<(), SurvivalError> {
    let (fabric, interrupt) = (&run.fabric, run.interrupt);
    let (socket, bytes) = (fabric.socket(0), source.bytes());
    let pages = run.options.touched_pages(bytes);
    let touch = |region: &str, lines: &mut CheckedLines| -> Result<(Latency, u64), SurvivalError> {
        let mapping = touches::open(&socket, region, bytes)?;
        let times = touches::touch_last_pages(&mapping, pages, lines)?;
        Ok((times, fabric.left_to_copy(NODE)?))
    };
    let (before, _) = touch(SOURCE, source)?;
    source.settle(interrupt)?;
    let mut copy = source.twin(socket.clone(), 0);
    fabric.make_clone(SOURCE, COPY, false, interrupt)?;
    fabric.attached(0, &[COPY], interrupt)?;
    let (first, left) = touch(COPY, &mut copy)?;
    fabric.copied(NODE, interrupt)?;
    let (after, _) = touch(COPY, &mut copy)?;
    fabric.attached(0, &[SOURCE], interrupt)?;
    source.settle(interrupt)?;
    fabric.destroy(COPY, interrupt)?;
    run.count(std::slice::from_mut(&mut copy));
    note_first(run, source, "fault4k", [&before, &first, &after], meets_absent(left, pages));
    Ok(())
}

/// True if none of the last `pages` pages was copied before it was accessed, if `left` bytes are still to be copied after
/// all of them were accessed.
fn meets_absent(left: u64, pages: usize) -> bool {
    left >= (pages * PAGE) as u64
}

/// Notes the times of accesses before, to pages that were not copied yet, and after.
fn note_first(
    run: &mut SurvivalRun<'_>,
    source: &CheckedLines,
    name: &str,
    [before, first, after]: [&Latency; 3],
    met: bool,
) {
    run.note(&named(source, &format!("{name}, before")), "us", us(before.p50), None);
    if met {
        run.note(&named(source, &format!("{name}, first")), "us", us(first.p50), None);
        let ratio = named(source, &format!("{name}, first / before"));
        run.note_ratio(&ratio, first.p50, before.p50, None);
    } else {
        run.say(&format!(
            "{name}: the pages were copied before all of them were accessed, so the time is left out"
        ));
    }
    run.note(&named(source, &format!("{name}, after")), "us", us(after.p50), None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_accesses_count_while_other_pages_are_left() {
        let touched = 1024 * PAGE as u64;
        assert!(meets_absent(touched, 1024) && meets_absent(u64::MAX, 1024));
        assert!(!meets_absent(touched - 1, 1024) && !meets_absent(0, 1));
    }

    #[test]
    fn figures_are_named_by_size() {
        let lines = CheckedLines::new("/nowhere".into(), 0, 0..(64 << 20) / LINE);
        assert_eq!(named(&lines, "clone made"), "64MiB: clone made");
    }
}
