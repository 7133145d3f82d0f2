//! First touches of pages of a mapped region, one after the other, each of which fetches its page from a memory node.
//! Every page is compared as a whole.

#![expect(unsafe_code, reason = "a touch of a page is a volatile read")]

use std::hint::black_box;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cxloe_client::mapping::{MapError, MapOptions, Mapping};
use cxloe_measure::floor_fault::PageOrder;
use cxloe_measure::report::{Latency, Samples};

use super::SurvivalError;
use super::lines::{CheckedLines, PAGE};

/// Maximum wait until an earlier mapping has been written back.
const WRITE_BACK_MAX: Duration = Duration::from_secs(10);
/// Pause before the next attempt to map a region.
const RETRY: Duration = Duration::from_millis(5);

/// Maps a region with all its pages absent, and room for all of them; waits for the end of an earlier mapping.
///
/// # Errors
/// That of mapping.
pub fn open(socket: &Path, region: &str, bytes: u64) -> Result<Mapping, MapError> {
    let options = MapOptions { limit: bytes, prefetch: false, ..MapOptions::default() };
    let until = Instant::now() + WRITE_BACK_MAX;
    loop {
        match Mapping::open(socket, region, options) {
            Err(MapError::Agent(_)) if Instant::now() < until => {}
            // While an earlier mapping is written back its pages may be resident, and touches would fetch nothing.
            Ok(mapping) if Instant::now() < until && mapping.paging()?.resident > 0 => drop(mapping),
            other => return other,
        }
        thread::sleep(RETRY);
    }
}

/// Touches the last `pages` pages of a mapping, a power of two, once each and in an unpredictable order, and compares
/// them with `lines`, those of the whole region.
///
/// # Errors
/// A page was wrong.
pub fn touch_last_pages(
    mapping: &Mapping,
    pages: usize,
    lines: &mut CheckedLines,
) -> Result<Latency, SurvivalError> {
    let mut samples = Samples::new("touches");
    let mut order = PageOrder::new(pages, 1);
    let first = mapping.len() / PAGE - pages;
    let mut content = [0; PAGE];
    for _ in 0..pages {
        let page = first + order.draw();
        let at = mapping.as_ptr().wrapping_add(page * PAGE);
        let began = Instant::now();
        // SAFETY: the page lies in the mapping, and nothing writes to it.
        black_box(unsafe { at.read_volatile() });
        samples.record_ns(began.elapsed().as_nanos() as u64);
        // SAFETY: as above, for all bytes of the page.
        unsafe { content.as_mut_ptr().copy_from_nonoverlapping(at, PAGE) };
        lines.check_page(page, &content)?;
    }
    samples.summary().ok_or_else(|| "no page was touched".into())
}
