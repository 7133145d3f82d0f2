//! Lower limits of the cost of a page: a fetch without a session, a local copy, and a read of a line in local
//! memory. Also the jitter of a thread that only reads the clock for the duration of a fault.

use cxloe_wire::random::Random;
use std::hint::black_box;
use std::time::{Duration, Instant};

use cxloe_link::echo::Echo;
use cxloe_wire::frame::{HEADER_LEN, LINE_SIZE, MIN_FRAME, PAGE_LINES, Seal, frame_len};

use super::{MeasureError, MeasuredRegion, clock_cost_ns};
use crate::report::Samples;

/// Size of the local memory for copies and reads, in bytes: several times a last-level cache.
const LOCAL_BYTES: usize = 256 << 20;
const PAGE_BYTES: usize = PAGE_LINES * LINE_SIZE;
/// Length of a period in which the thread only reads the clock: about the duration of a page fault.
const SPIN: Duration = Duration::from_micros(20);
/// Number of operations timed together, so that the cost of reading the clock is negligible.
const BATCH: u64 = 64;

/// Local memory to read lines and copy pages from, filled with random words.
pub struct Local {
    words: Vec<u64>,
    random: Random,
}

impl Local {
    /// Allocates the memory and writes all its pages, so that no later access faults.
    #[allow(clippy::new_without_default, reason = "it takes a quarter of a gigabyte and a second")]
    pub fn new() -> Local {
        let mut random = Random::new(77);
        let words = (0..LOCAL_BYTES / size_of::<u64>()).map(|_| random.bits()).collect();
        Local { words, random }
    }

    /// Makes one trial of the latency `memcpy4k`: copies of random pages to one destination, as a fetched
    /// page is copied to its send buffer.
    pub fn copies(&mut self, batches: u64, samples: &mut Samples) {
        const WORDS: usize = PAGE_BYTES / size_of::<u64>();
        let clock = clock_cost_ns();
        let mut frame = vec![0_u64; WORDS];
        let pages = (LOCAL_BYTES / PAGE_BYTES) as u64;
        for _ in 0..batches {
            let start = Instant::now();
            for _ in 0..BATCH {
                let at = self.random.below(pages) as usize * WORDS;
                frame.copy_from_slice(&self.words[at..at + WORDS]);
                // The compiler must not omit the copy.
                black_box(&mut frame);
            }
            samples.record_batch(start.elapsed().as_nanos() as f64 - clock, BATCH);
        }
    }

    /// Makes one trial of `spin20us`: periods of 20 us in which this thread only reads the clock. Time beyond 20 us is
    /// preemption by the machine. Page faults are preempted as well, so the gap between their median and their 99th
    /// percentile is at least that of these periods.
    pub fn spins(count: u64, samples: &mut Samples) {
        for _ in 0..count {
            let start = Instant::now();
            let took = std::iter::repeat_with(|| start.elapsed()).find(|took| *took >= SPIN);
            samples.record_ns(took.unwrap_or(SPIN).as_nanos() as u64);
        }
    }

    /// Makes one trial of the latency `dram64`: reads of whole random lines. Each address depends on the
    /// content of the previous line, so that the processor cannot overlap the reads.
    pub fn reads(&mut self, batches: u64, samples: &mut Samples) {
        const WORDS: usize = LINE_SIZE / size_of::<u64>();
        let clock = clock_cost_ns();
        let lines = (self.words.len() / WORDS) as u64;
        let mut draw = self.random.bits();
        for _ in 0..batches {
            let start = Instant::now();
            for _ in 0..BATCH {
                let at = ((u128::from(draw) * u128::from(lines)) >> 64) as usize * WORDS;
                let line =
                    self.words[at..at + WORDS].iter().fold(0, |sum: u64, word| sum.wrapping_add(*word));
                // The multiplication spreads the sum over all lines; its result depends on every word.
                draw = (line ^ draw.rotate_left(17)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            }
            samples.record_batch(start.elapsed().as_nanos() as f64 - clock, BATCH);
        }
        black_box(draw);
    }
}

/// Returns the frames of a page fetch without a session: one small frame out, and the page back in the
/// smallest number of frames that carry bursts of up to `lines_max` lines. All replies have equal length.
pub(crate) fn page_shape(lines_max: usize) -> Echo {
    let replies = PAGE_LINES.div_ceil(lines_max.max(1));
    let reply_len = frame_len(HEADER_LEN + 1 + PAGE_BYTES / replies, Seal::PLAIN_LEN);
    Echo { request_len: MIN_FRAME, reply_len, replies: replies as u16 }
}

impl MeasuredRegion {
    /// Makes one trial of the latency `fetch4k`: a page's frames without a session, with the payloads
    /// assembled to a page.
    pub fn fetch_trial(&mut self, count: u64, samples: &mut Samples) -> Result<(), MeasureError> {
        let shape = page_shape(self.port.engine().burst_read_lines_max(self.hpa));
        let mut page = vec![0; PAGE_BYTES];
        self.bare_trial(count, samples, |bare| {
            let took = bare.fetch(shape, &mut page);
            black_box(&mut page);
            took
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_takes_the_frames_that_its_bursts_take_and_no_more_bytes() {
        let at_1500 = page_shape(22);
        assert_eq!((at_1500.request_len, at_1500.replies), (60, 3));
        let payload = at_1500.reply_len - frame_len(HEADER_LEN + 1, Seal::PLAIN_LEN).min(at_1500.reply_len);
        assert!((1300..1450).contains(&at_1500.reply_len), "{}", at_1500.reply_len);
        assert!(3 * payload <= PAGE_BYTES, "the limit carries no more than the page");
        let at_9000 = page_shape(64);
        assert_eq!(at_9000.replies, 1);
        assert!(at_9000.reply_len > PAGE_BYTES);
        assert_eq!(page_shape(1).replies, 64);
    }

    #[test]
    fn local_memory_is_timed() {
        let mut local = Local { words: (0..1 << 16).collect(), random: Random::new(1) };
        // Timing copies would need a memory of the full size, but a small memory is enough for this chain of reads.
        let mut reads = Samples::fine("dram64");
        local.reads(3, &mut reads);
        reads.end_trial(None);
        assert_eq!(reads.summary().unwrap().count, 3);
        let mut spins = Samples::new("spin20us");
        Local::spins(2, &mut spins);
        spins.end_trial(None);
        let spins = spins.summary().unwrap();
        assert!(spins.count == 2 && spins.min >= 19_000.0, "{spins:?}");
    }
}
