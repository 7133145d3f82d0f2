//! What programs rarely do, by small C programs: each checks itself, and says `ok`.

use crate::rig::{Outcome, ensure};
use crate::run::{Ended, MIB, Sizes, compiled, nothing_is_left, rig, start, text};

/// Runs a C program with remote memory; it has to find everything right.
fn checked(name: &str, sizes: Sizes, arguments: &[&str]) -> Outcome<Ended> {
    let rig = rig()?;
    let program = compiled(&rig, name, &[])?;
    let command: Vec<&str> = [text(&program)].into_iter().chain(arguments.iter().copied()).collect();
    let ended = start(&rig, sizes, &[], &command)?.wait()?.well()?;
    ensure(ended.text().ends_with("ok\n"), format!("it said {:?}, {}", ended.text(), ended.err))?;
    nothing_is_left(&rig)?;
    Ok(ended)
}

/// Parent, child and grandchild write the same pages at the same time, under the tightest limit.
pub fn forks_keep_their_meaning() -> Outcome {
    let ended = checked("forks", Sizes(64, 1), &["3"])?.paged(8 * MIB)?;
    let forks = ended.view.map_or(0, |view| view.counters.forks);
    ensure(forks == 6, format!("{forks} forks"))
}

pub fn forks_beside_threads_that_allocate() -> Outcome {
    checked("forks", Sizes(64, 2), &["3", "2"])?.paged(4 * MIB).map(drop)
}

pub fn parts_of_mappings_are_changed() -> Outcome {
    checked("mappings", Sizes(96, 2), &[])?.paged(4 * MIB).map(drop)
}

pub fn the_kernel_reads_and_writes_the_heap() -> Outcome {
    checked("kernel", Sizes(64, 1), &[])?.paged(4 * MIB).map(drop)
}

/// By vfork, posix_spawn and system; what is started joins as well, or does without, and all of it comes to its end.
pub fn programs_start_programs() -> Outcome {
    checked("starts", Sizes(64, 1), &[])?.paged(3 * MIB).map(drop)
}

pub fn descriptors_may_all_be_closed() -> Outcome {
    checked("descriptors", Sizes(64, 1), &[])?.paged(3 * MIB).map(drop)
}
