//! Hints of a program about its pages: the pages are evicted and fetched accordingly, and keep their content. No other
//! program uses the region, so the agent's counters are those of this program.

#![expect(unsafe_code, reason = "mapped memory is accessed through raw pointers")]

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use cxloe_client::mapping::{Hint, MapError, Mapping};
use cxloe_client::message::PagingView;
use cxloe_cn_core::pager::PAGE_BYTES;

/// Time limit on the wait for an expected effect.
const MOST: Duration = Duration::from_secs(60);
/// Time after which a hint is repeated, because the agent may have dropped it.
const EVENT_TIMEOUT: Duration = Duration::from_secs(2);
const LINE_WORDS: usize = 8;
const PAGE_WORDS: usize = PAGE_BYTES / 8;

/// A mapping of a region that no other program uses.
struct Pages<'a> {
    mapping: &'a Mapping,
}

impl Pages<'_> {
    fn word(&self, page: usize, word: usize) -> *mut u64 {
        assert!(page * PAGE_BYTES < self.mapping.len() && word < PAGE_WORDS);
        // SAFETY: the word is in the mapping.
        unsafe { self.mapping.as_ptr().cast::<u64>().add(page * PAGE_WORDS + word) }
    }

    /// Writes a word of each line of these pages, with another value in each `round`.
    fn write(&self, pages: Range<usize>, round: u64) {
        for page in pages {
            for word in (0..PAGE_WORDS).step_by(LINE_WORDS) {
                // SAFETY: the mapping has no other user.
                unsafe { self.word(page, word).write_volatile(content(page, word, round)) };
            }
        }
    }

    fn check(&self, pages: Range<usize>, expected: impl Fn(usize, usize) -> u64) -> Result<(), String> {
        for page in pages {
            for word in (0..PAGE_WORDS).step_by(LINE_WORDS) {
                // SAFETY: the mapping has no other user.
                let found = unsafe { self.word(page, word).read_volatile() };
                if found != expected(page, word) {
                    return Err(format!("word {word} of page {page} is {found:#x}"));
                }
            }
        }
        Ok(())
    }

    fn view(&self) -> Result<PagingView, String> {
        self.mapping.paging().map_err(|error| error.to_string())
    }

    fn hint(&self, pages: Range<usize>, hint: Hint) -> Result<(), String> {
        let bytes = pages.start * PAGE_BYTES..pages.end * PAGE_BYTES;
        self.mapping.hint(bytes, hint).map_err(|error| error.to_string())
    }

    /// Gives the agent the hint about these pages, and waits until exactly `here` pages of the region are resident.
    fn until(&self, pages: Range<usize>, hint: Hint, here: usize) -> Result<PagingView, String> {
        let begun = Instant::now();
        let mut given: Option<Instant> = None;
        loop {
            if given.is_none_or(|at| at.elapsed() > EVENT_TIMEOUT) {
                self.hint(pages.clone(), hint)?;
                given = Some(Instant::now());
            }
            let view = self.view()?;
            if view.resident == (here * PAGE_BYTES) as u64 {
                return Ok(view);
            }
            if begun.elapsed() > MOST {
                return Err(format!("{hint:?} of {pages:?}: {} bytes are here", view.resident));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn content(page: usize, word: usize, round: u64) -> u64 {
    (page as u64) << 32 | (word as u64) << 8 | round
}

/// Runs all hints in a region of 2048 pages, of which 1024 may be resident, with 64 of these kept free.
pub fn run(mapping: &Mapping) -> Result<(), String> {
    let pages = Pages { mapping };
    // Pages hinted as unneeded are evicted, changed or not, and keep their content.
    pages.write(0..512, 1);
    let before = pages.view()?.counters;
    let out = pages.until(0..512, Hint::PageOut, 0)?.counters;
    if out.evicted < before.evicted + 512 || out.written_back < before.written_back + 512 {
        return Err(format!("{out:?} after {before:?}"));
    }
    // Pages hinted as needed are fetched ahead, except up to 64 that were evicted last and are still in
    // buffers.
    let ahead = pages.until(0..512, Hint::WillRead, 512)?.counters;
    pages.check(0..512, |page, word| content(page, word, 1))?;
    let after = pages.view()?.counters;
    if ahead.prefetched < out.prefetched + 512 - 64
        || (after.fetched, after.faults) != (out.fetched, out.faults)
    {
        return Err(format!("somebody waited for what was announced: {after:?} after {out:?}"));
    }
    // Pages hinted as cold are evicted first when room is short. The agent has processed this hint when the effect of
    // the next hint can be observed.
    pages.write(512..900, 2);
    pages.hint(0..512, Hint::Cold)?;
    pages.until(899..900, Hint::PageOut, 899)?;
    pages.write(900..1300, 3);
    let before = pages.view()?.counters;
    pages.check(512..899, |page, word| content(page, word, 2))?;
    let after = pages.view()?.counters;
    if before.evicted == out.evicted || after.fetched != before.fetched {
        return Err(format!("pages left that are not cold: {after:?} after {before:?}"));
    }
    pages.check(0..512, |page, word| content(page, word, 1))?;
    pages.check(899..900, |page, word| content(page, word, 2))?;
    // Discarded pages are zeros; pages hinted for writing are resident.
    mapping.discard(0..512 * PAGE_BYTES).map_err(|error| error.to_string())?;
    pages.check(0..512, |_, _| 0)?;
    if pages.view()?.counters.discarded < 512 {
        return Err("nothing was discarded".into());
    }
    pages.until(0..1300, Hint::PageOut, 0)?;
    pages.until(200..700, Hint::WillWrite, 500)?;
    pages.check(200..512, |_, _| 0)?;
    pages.check(512..700, |page, word| content(page, word, 2))?;
    pages.write(200..700, 4);
    pages.until(0..1300, Hint::PageOut, 0)?;
    pages.check(200..700, |page, word| content(page, word, 4))?;
    match mapping.hint(0..mapping.len() + 1, Hint::Cold) {
        Err(MapError::Range(_)) => Ok(()),
        other => Err(format!("advice beyond the mapping: {other:?}")),
    }
}
