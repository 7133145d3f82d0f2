//! A first touch of fresh memory brings nothing over the wire: there is nothing to bring.

use super::run::{MIB, PAGE, Sizes, nothing_is_left, rig, start, text};
use cxloe_client::client;
use cxloe_lab::program;
use cxloe_system::pair::{Outcome, ensure};

/// MiB that the program touches, each page once.
const TOUCHED: u64 = 32;
/// Pages that are filled with zeros along with one that is touched, at most.
const FILLED_ALONG: u64 = 64;
/// Pages that are not the program's: its allocator's, and what the dynamic linker has.
const OTHERS: u64 = 64;

/// With room for all of it, not one line is fetched, nor a frame sent for it; with room for a quarter, pages leave and none
/// comes back but a few of the program's own.
pub fn first_touches_fetch_nothing() -> Outcome {
    let rig = rig()?;
    let bench = program("cxloe-bench")?;
    let bytes = (TOUCHED * MIB).to_string();
    let command = [text(&bench), "work", "touch", "--bytes", &bytes];
    let reads = || {
        client::counters(&rig.socket())
            .map(|counters| counters.engine.read_misses + counters.engine.burst_reads)
    };

    let before = reads()?;
    let ended = start(&rig, Sizes(64, 64), &[], &command)?.wait()?.well()?;
    let count = &ended.view.as_ref().ok_or("no figures")?.counters;
    let filled = count.zero_fills * (1 + FILLED_ALONG);
    ensure(filled >= TOUCHED * MIB / PAGE, format!("not all was remote: {count:#?}"))?;
    ensure(count.fetched == 0 && count.prefetched == 0, format!("something was fetched: {count:#?}"))?;
    ensure(reads()? == before, format!("{} reads crossed the wire", reads()? - before))?;

    let ended = start(&rig, Sizes(64, TOUCHED / 4), &[], &command)?.wait()?.well()?;
    let count = &ended.view.as_ref().ok_or("no figures")?.counters;
    ensure(count.evicted >= TOUCHED * MIB / PAGE / 2, format!("nothing left: {count:#?}"))?;
    let fetched = count.fetched + count.prefetched;
    ensure(fetched <= OTHERS, format!("fresh memory was fetched: {count:#?}"))?;
    nothing_is_left(&rig)
}
