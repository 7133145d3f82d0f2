//! A region mapped over the port's own link, its faults served by the thread that makes them.

use std::hint::black_box;
use std::time::{Duration, Instant};

use cxloe_port::inline::{InlineOptions, InlineRegion};
use cxloe_wire::frame::PAGE_LINES;

use super::fault_words::{PAGE_BYTES, Words, marks};
use super::floor_fault::Order;
use super::glance::{Glance, in_batches};
use super::{MeasureError, Target};
use crate::report::Samples;

/// Lines written in one call.
const CALL_LINES: usize = 4096;

impl Target {
    /// Marks the first line of each page of the region.
    pub(super) fn mark(&mut self) -> Result<(), MeasureError> {
        let lines: Vec<_> = marks(self.hpa, self.bytes as usize / PAGE_BYTES).collect();
        for some in lines.chunks(CALL_LINES) {
            self.port.write_batch(some)?;
        }
        Ok(())
    }

    /// Maps the first `bytes` of the region, does `body` with it, and unmaps it. What comes back besides: the bytes that
    /// left over the link meanwhile, write-backs included, and how long the last of these took.
    pub(super) fn inline<R>(
        self,
        bytes: u64,
        options: InlineOptions,
        body: impl FnOnce(Words<'_>) -> Result<R, MeasureError>,
    ) -> Result<(Target, R, Sent), MeasureError> {
        let mut port = self.port;
        let before = port.link().counters().tx_bytes;
        let region = InlineRegion::map(port, self.hpa, bytes, options)?;
        let result = body(Words(&region))?;
        let start = Instant::now();
        region.flush()?;
        let took = start.elapsed();
        let mut port = region.close()?;
        let bytes = port.link().counters().tx_bytes - before;
        Ok((Target { port, ..self }, result, Sent { bytes, took }))
    }

    /// `fault4k_inline`: `count` pages touched for the first time, in an order that nobody foresees. One trial.
    pub(super) fn inline_faults(
        self,
        count: u64,
        seed: usize,
        samples: &mut Samples,
    ) -> Result<Target, MeasureError> {
        let bytes = self.whole_region();
        let options = InlineOptions { local: bytes, ..InlineOptions::default() };
        let glance = self.glance();
        let (target, (), _) =
            self.inline(bytes, options, |words| touch(words, count, seed, &glance, samples))?;
        Ok(target)
    }

    /// Pages of which `lines` lines each were written, written back: how many bytes left, and in what time.
    pub(super) fn inline_write_back(
        self,
        pages: usize,
        lines: usize,
        value: u64,
    ) -> Result<(Target, Sent), MeasureError> {
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

    /// The largest part of the region that has a power of two of pages.
    pub(super) fn whole_region(&self) -> u64 {
        let pages = self.bytes / PAGE_BYTES as u64;
        (1 << pages.ilog2()) * PAGE_BYTES as u64
    }
}

/// What a mapping has sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// Bytes of frames, over its whole life.
    pub bytes: u64,
    /// How long the last write-backs took.
    pub took: Duration,
}

/// Faults before those that count, and before those of each batch.
const WARM: usize = 64;
const AWAKE: usize = 4;

/// Touches `count` pages, in batches, and times each; every page has to be the right one.
pub(super) fn touch(
    words: Words<'_>,
    count: u64,
    seed: usize,
    glance: &Glance,
    samples: &mut Samples,
) -> Result<(), MeasureError> {
    let mut order = Order::new(words.pages(), seed);
    for _ in 0..WARM.min(words.pages() / 4) {
        black_box(words.touch(order.draw()));
    }
    in_batches(glance, count.min(words.pages() as u64 / 2), samples, |some, samples| {
        // Whoever serves has been paused.
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
