//! A sealed region that several compute nodes read: the rates of one reader, and of all at once, and the memory that the
//! region takes.

use std::panic::resume_unwind;
use std::thread;
use std::time::Instant;

use cxloe_fabric::model::Protection;

use super::lines::{CheckedLines, LINE};
use super::{Goal, SurvivalError, SurvivalRun, rate};

const REGION: &str = "sealed";
const NODE: &str = "mn0";

pub fn measure(run: &mut SurvivalRun<'_>) -> Result<(), SurvivalError> {
    let (bytes, interrupt) = (run.options.bytes, run.interrupt);
    let used = run.fabric.used_bytes(NODE)?;
    let hpa = run.fabric.create(REGION, bytes, Protection::None, &[NODE], interrupt)?;
    let mut owner = CheckedLines::new(run.fabric.socket(0), hpa, 0..bytes / LINE);
    owner.fill(interrupt)?;
    run.fabric.seal(REGION, interrupt)?;
    let mut readers = Vec::new();
    for reader in 1..=run.options.readers {
        let hpa = run.fabric.share(REGION, reader, interrupt)?;
        readers.push(owner.twin(run.fabric.socket(reader), hpa));
    }
    let taken = run.fabric.used_bytes(NODE)?.saturating_sub(used);
    run.note("copies in memory", "count", taken as f64 / bytes as f64, Some(Goal::AllAtMost(1.0)));
    for round in 1..=run.options.rounds {
        run.say_round(round);
        let one = read_at_once(run, &mut readers[..1])?;
        let all = read_at_once(run, &mut readers)?;
        run.note("read by one compute node", "MB/s", one, None);
        run.note("read by all compute nodes", "MB/s", all, None);
        run.note_ratio("read by all / by one", all, one, Some(Goal::AtLeast(1.0)));
    }
    run.count(&mut readers);
    run.fabric.destroy(REGION, interrupt)
}

/// Has all readers read and compare the whole region at the same time; returns their common rate in MB/s.
fn read_at_once(run: &SurvivalRun<'_>, readers: &mut [CheckedLines]) -> Result<f64, SurvivalError> {
    let interrupt = run.interrupt;
    let bytes: u64 = readers.iter().map(CheckedLines::bytes).sum();
    let began = Instant::now();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for reader in readers.iter_mut() {
            threads.push(scope.spawn(move || reader.verify(interrupt)));
        }
        threads.into_iter().try_for_each(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })?;
    Ok(rate(bytes, began.elapsed()))
}
