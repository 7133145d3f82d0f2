//! First accesses to fresh memory cause no frame.

use super::run::{MIB, PAGE, Sizes, nothing_is_left, rig, start, text};
use cxloe_client::client;
use cxloe_lab::program;
use cxloe_system::pair::{Outcome, ensure};

/// MiB that the program accesses, each page once.
const TOUCHED: u64 = 32;
/// Largest number of pages that are filled with zeros together with an accessed page.
const FILLED_ALONG: u64 = 64;
/// Maximum number of pages fetched again that belong to the allocator and the dynamic linker, not to the
/// program's data.
const OTHERS: u64 = 64;

/// With room for all pages, no line is fetched and no frame sent; with room for a quarter of them, pages are evicted,
/// and hardly any are fetched again.
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
