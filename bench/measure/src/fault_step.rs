//! Page faults as one step of a larger run. Pages are written through the port or the agent line by line,
//! touched through a mapping, checked to the last byte, changed, and checked again after their write-back.

use std::hint::black_box;
use std::sync::atomic::Ordering;
use std::time::Instant;

use cxloe_client::client::{Client, regions};
use cxloe_port::inline::InlineOptions;
use cxloe_wire::frame::{LINE_SIZE, PAGE_LINES};

use super::fault::Agent;
use super::fault_words::{PAGE_BYTES, PAGE_WORDS, Words, mark};
use super::floor_fault::PageOrder;
use super::{MeasureError, MeasuredRegion};
use crate::report::Samples;

/// Maximum number of pages that are touched; a power of two, as [`PageOrder`] requires.
const PAGES: usize = 1024;
/// Number of lines written in one call of the port or the agent.
const CALL_LINES: usize = 1024;
/// Index, within a page, of the word that is changed: the last one, so that the first line stays clean.
const CHANGED: usize = PAGE_WORDS - 1;

/// Returns the initial value of a word of a page; no two words of the region are equal.
fn first(page: usize, word: usize) -> u64 {
    mark(page * PAGE_WORDS + word)
}

/// Returns the lines, with their HPAs, that give each page of a region beginning at `hpa` its initial
/// content.
fn lines(hpa: u64, pages: usize) -> Vec<(u64, [u8; LINE_SIZE])> {
    let line = |at: usize| {
        let mut line = [0; LINE_SIZE];
        for (word, bytes) in line.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let word = at % PAGE_LINES * (LINE_SIZE / 8) + word;
            *bytes = first(at / PAGE_LINES, word).to_ne_bytes();
        }
        (hpa + (at * LINE_SIZE) as u64, line)
    };
    (0..pages * PAGE_LINES).map(line).collect()
}

/// Checks a word of a page; with `changed`, the word with index [`CHANGED`] must have its changed value.
fn check(page: usize, word: usize, found: u64, changed: bool) -> Result<(), MeasureError> {
    let first = first(page, word);
    let expected = if changed && word == CHANGED { !first } else { first };
    if found == expected { Ok(()) } else { Err(MeasureError::WrongPage { page, found }) }
}

fn check_pages(words: Words<'_>, pages: usize, changed: bool) -> Result<(), MeasureError> {
    for (at, word) in words.0.iter().take(pages * PAGE_WORDS).enumerate() {
        check(at / PAGE_WORDS, at % PAGE_WORDS, word.load(Ordering::Relaxed), changed)?;
    }
    Ok(())
}

/// Touches every page once, in an unpredictable order, and times each touch. Then checks all bytes and
/// changes one word of each page.
fn touch_all(words: Words<'_>, pages: usize, samples: &mut Samples) -> Result<(), MeasureError> {
    let mut order = PageOrder::new(pages, 1);
    for _ in 0..pages {
        let page = order.draw();
        let start = Instant::now();
        black_box(words.touch(page));
        samples.record_ns(start.elapsed().as_nanos() as u64);
    }
    samples.end_trial(None);
    check_pages(words, pages, false)?;
    for page in 0..pages {
        words.0[page * PAGE_WORDS + CHANGED].store(!first(page, CHANGED), Ordering::Relaxed);
    }
    Ok(())
}

/// Times `fault4k_inline`: faults that the faulting thread serves itself, over the port's own link.
///
/// # Errors
/// Returns any [`MeasureError`], also for a wrong byte.
pub fn in_place(mut target: MeasuredRegion) -> Result<(MeasuredRegion, Samples), MeasureError> {
    let mut samples = Samples::new("fault4k_inline");
    let pages = PAGES.min((target.whole_region() / PAGE_BYTES as u64) as usize);
    for some in lines(target.hpa, pages).chunks(CALL_LINES) {
        target.port.write_batch(some)?;
    }
    let bytes = (pages * PAGE_BYTES) as u64;
    let options = InlineOptions { local: bytes, ..InlineOptions::default() };
    let (mut target, (), _) = target.inline(bytes, options, |words| touch_all(words, pages, &mut samples))?;
    // The mapping has ended, so these reads show what its write-back has stored at the memory node.
    let mut back = vec![0; pages * PAGE_BYTES];
    target.port.read_bytes(target.hpa, &mut back)?;
    for (at, word) in back.as_chunks::<8>().0.iter().enumerate() {
        check(at / PAGE_WORDS, at % PAGE_WORDS, u64::from_ne_bytes(*word), true)?;
    }
    Ok((target, samples))
}

/// Times `fault4k`: faults of a region mapped through an agent that runs all the time, one sample for each page.
///
/// # Errors
/// Returns any [`MeasureError`], also for a wrong byte.
pub fn through_agent(agent: &Agent) -> Result<Samples, MeasureError> {
    let mut samples = Samples::new("fault4k");
    let attached = regions(&agent.socket)?.into_iter().find(|r| r.region.as_str() == agent.region);
    let attached = attached.ok_or_else(|| MeasureError::NotAttached(agent.region.clone()))?;
    let pages = PAGES.min(1 << (attached.size / PAGE_BYTES as u64).ilog2());
    let mut client = Client::connect(&agent.socket)?;
    for some in lines(attached.hpa, pages).chunks(CALL_LINES) {
        client.write_batch(some)?;
    }
    client.flush()?;
    drop(client);
    agent.mapped_now(1, true, |words| touch_all(words, pages, &mut samples))?;
    // A new mapping has no pages, so each is fetched from the memory node with what was written back.
    agent.mapped_now(1, true, |words| check_pages(words, pages, true))?;
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn pages_are_touched_changed_and_looked_at_to_the_last_byte() {
        let written = lines(1 << 30, PAGES);
        assert_eq!(written.len(), PAGES * PAGE_LINES);
        let words: Vec<AtomicU64> = written
            .iter()
            .flat_map(|(_, line)| line.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word).into()))
            .collect();
        let mut samples = Samples::new("fault4k");
        check_pages(Words(&words), PAGES, false).unwrap();
        touch_all(Words(&words), PAGES, &mut samples).unwrap();
        assert_eq!(samples.summary().unwrap().count, PAGES as u64);
        check_pages(Words(&words), PAGES, true).unwrap();
        assert!(check_pages(Words(&words), PAGES, false).is_err());
        words[PAGE_WORDS + 77].fetch_xor(1, Ordering::Relaxed);
        let wrong = check_pages(Words(&words), PAGES, true);
        assert!(matches!(wrong, Err(MeasureError::WrongPage { page: 1, .. })), "{wrong:?}");
    }
}
