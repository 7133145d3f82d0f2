//! Faults served inline: the region is mapped over the port's own link, and the faulting thread fetches the
//! page itself.

use std::hint::black_box;
use std::time::{Duration, Instant};

use cxloe_port::inline::{InlineOptions, InlinePort};
use cxloe_wire::frame::PAGE_LINES;

use super::fault_words::{PAGE_BYTES, Words, marks};
use super::floor_fault::PageOrder;
use super::glance::{Glance, in_batches};
use super::{MeasureError, MeasuredRegion};
use crate::report::Samples;

/// Number of lines written in one call of the port.
const CALL_LINES: usize = 4096;

impl MeasuredRegion {
    /// Writes the page's mark to the first line of each page; a wrong page is detected by its mark.
    pub(super) fn mark(&mut self) -> Result<(), MeasureError> {
        let lines: Vec<_> = marks(self.hpa, self.bytes as usize / PAGE_BYTES).collect();
        for some in lines.chunks(CALL_LINES) {
            self.port.write_batch(some)?;
        }
        Ok(())
    }

    /// Maps the first `bytes` of the region, runs `body` with the mapping, and unmaps it. Also returns the
    /// bytes sent over the link from mapping to unmapping, write-backs included, and the time of the final
    /// flush.
    pub(super) fn inline<R>(
        self,
        bytes: u64,
        options: InlineOptions,
        body: impl FnOnce(Words<'_>) -> Result<R, MeasureError>,
    ) -> Result<(MeasuredRegion, R, SentTraffic), MeasureError> {
        let mut port = self.port;
        let before = port.link().counters().tx_bytes;
        let port = InlinePort::new(port)?;
        let region = port.map(self.hpa, bytes, options)?;
        let result = body(Words(&region))?;
        let start = Instant::now();
        region.flush()?;
        let took = start.elapsed();
        region.close()?;
        let mut port = port.into_port()?;
        let bytes = port.link().counters().tx_bytes - before;
        Ok((MeasuredRegion { port, ..self }, result, SentTraffic { bytes, took }))
    }

    /// Makes one trial of the latency `fault4k_inline`: `count` first touches of pages in an unpredictable
    /// order.
    pub(super) fn inline_faults(
        self,
        count: u64,
        seed: usize,
        samples: &mut Samples,
    ) -> Result<MeasuredRegion, MeasureError> {
        let bytes = self.whole_region();
        let options = InlineOptions { local: bytes, ..InlineOptions::default() };
        let glance = self.glance();
        let (target, (), _) =
            self.inline(bytes, options, |words| touch(words, count, seed, &glance, samples))?;
        Ok(target)
    }

    /// Writes `value` to `lines` lines of each of `pages` pages; returns the bytes that this sent, and the
    /// time of the flush.
    pub(super) fn inline_write_back(
        self,
        pages: usize,
        lines: usize,
        value: u64,
    ) -> Result<(MeasuredRegion, SentTraffic), MeasureError> {
        debug_assert!(lines <= PAGE_LINES);
        let bytes = self.whole_region();
        let options = InlineOptions { local: bytes, prefetch: false, ..InlineOptions::default() };
        let (target, (), sent) = self.inline(bytes, options, |words| {
            for page in 0..pages.min(words.pages()) {
                words.write(page, lines, value);
            }
            Ok(())
        })?;
        Ok((target, sent))
    }

    /// Returns the size in bytes of the largest part of the region whose number of pages is a power of two.
    pub(super) fn whole_region(&self) -> u64 {
        let pages = self.bytes / PAGE_BYTES as u64;
        (1 << pages.ilog2()) * PAGE_BYTES as u64
    }
}

/// Traffic of a mapping from its beginning to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentTraffic {
    /// Number of bytes in all frames sent while the mapping existed.
    pub bytes: u64,
    /// Time of the final flush.
    pub took: Duration,
}

/// Number of untimed touches before a trial, which warm caches and the serving thread.
const WARM: usize = 64;
/// Number of untimed touches before each batch, which wake a serving process after a pause.
const AWAKE: usize = 4;

/// Touches `count` pages in batches, times each touch, and checks that the page has its own mark.
pub(super) fn touch(
    words: Words<'_>,
    count: u64,
    seed: usize,
    glance: &Glance,
    samples: &mut Samples,
) -> Result<(), MeasureError> {
    let mut order = PageOrder::new(words.pages(), seed);
    for _ in 0..WARM.min(words.pages() / 4) {
        black_box(words.touch(order.draw()));
    }
    in_batches(glance, count.min(words.pages() as u64 / 2), samples, |some, samples| {
        // The serving process was paused before this batch, so its first faults are slow and stay untimed.
        for _ in 0..AWAKE {
            black_box(words.touch(order.draw()));
        }
        for _ in 0..some {
            let page = order.draw();
            let start = Instant::now();
            let word = black_box(words.touch(page));
            let took = start.elapsed();
            words.check(page, word)?;
            samples.record_ns(took.as_nanos() as u64);
        }
        Ok(())
    })
}
