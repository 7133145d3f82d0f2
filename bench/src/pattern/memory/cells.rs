//! Memory that is loaded and stored directly, whoever makes its pages appear.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use cxloe_cn_core::cache::Line;
use cxloe_wire::frame::LINE_SIZE;

use super::{LINE_BYTES, Memory, Over};
use crate::measure::MeasureError;
use crate::pattern::Share;
use crate::pattern::flow::{Flow, Next};
use cxloe_lab::Interrupt;

/// What is resident is counted in pages.
const PAGE_BYTES: u64 = cxloe_cn_core::pager::PAGE_BYTES as u64;
const LINE_WORDS: usize = LINE_SIZE / size_of::<u64>();
/// Accesses between two looks at whether the user wants to end.
const LOOK_EVERY: u32 = 1024;

/// What directly accessed memory lies in.
pub(super) trait Backing {
    /// The way it is.
    const OVER: Over;

    /// All words of it.
    fn words(&self) -> &[AtomicU64];

    /// Lets so many bytes be here; returns how many really may.
    fn set_resident(&mut self, bytes: u64) -> Result<u64, MeasureError>;

    /// Waits until everything written is where it belongs.
    fn flush(&mut self) -> Result<(), MeasureError>;
}

/// A working set that is loaded and stored.
pub(super) struct Direct<B> {
    pub backing: B,
    lines: u64,
    interrupt: Option<Interrupt>,
}

impl<B: Backing> Direct<B> {
    /// The first `lines` lines of `backing`.
    pub fn new(backing: B, lines: u64, interrupt: Option<Interrupt>) -> Direct<B> {
        debug_assert!(lines.is_power_of_two() && lines as usize * LINE_WORDS <= backing.words().len());
        Direct { backing, lines, interrupt }
    }

    #[inline]
    fn words(&self, first: u64, lines: usize) -> &[AtomicU64] {
        &self.backing.words()[first as usize * LINE_WORDS..][..lines * LINE_WORDS]
    }

    #[inline]
    fn load(&self, first: u64, out: &mut [Line]) {
        let cells = self.words(first, out.len());
        for (word, cell) in out.as_flattened_mut().as_chunks_mut::<8>().0.iter_mut().zip(cells) {
            *word = cell.load(Ordering::Relaxed).to_le_bytes();
        }
    }

    #[inline]
    fn store(&self, first: u64, lines: &[Line]) {
        let cells = self.words(first, lines.len());
        for (word, cell) in lines.as_flattened().as_chunks::<8>().0.iter().zip(cells) {
            cell.store(u64::from_le_bytes(*word), Ordering::Relaxed);
        }
    }
}

impl<B: Backing> Memory for Direct<B> {
    fn over(&self) -> Over {
        B::OVER
    }

    fn lines(&self) -> u64 {
        self.lines
    }

    fn set_resident(&mut self, share: Share) -> Result<u64, MeasureError> {
        self.backing.set_resident(share.of(self.lines * LINE_BYTES) / PAGE_BYTES * PAGE_BYTES)
    }

    #[inline]
    fn read(&mut self, line: u64) -> Result<Line, MeasureError> {
        let mut content = [0; LINE_SIZE];
        self.load(line, std::slice::from_mut(&mut content));
        Ok(content)
    }

    #[inline]
    fn write(&mut self, line: u64, content: &Line) -> Result<(), MeasureError> {
        self.store(line, std::slice::from_ref(content));
        Ok(())
    }

    fn read_run(&mut self, first: u64, out: &mut [Line]) -> Result<(), MeasureError> {
        self.load(first, out);
        Ok(())
    }

    fn write_run(&mut self, first: u64, lines: &[Line]) -> Result<(), MeasureError> {
        self.store(first, lines);
        Ok(())
    }

    /// Only this thread writes, so a load and a store are an update.
    fn update(&mut self, updates: &[(u64, u64)]) -> Result<(), MeasureError> {
        let words = self.backing.words();
        for &(word, value) in updates {
            let cell = &words[word as usize];
            cell.store(cell.load(Ordering::Relaxed) ^ value, Ordering::Relaxed);
        }
        Ok(())
    }

    /// One access after the other: a thread waits for the page it touches.
    fn serve(&mut self, flow: &mut Flow<'_>, _depth: usize) -> Result<(), MeasureError> {
        let start = Instant::now();
        let now = || start.elapsed().as_nanos() as u64;
        let mut turns = 0_u32;
        loop {
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(LOOK_EVERY) {
                self.check()?;
            }
            match flow.next(now()) {
                Next::Read(access) => {
                    let content = self.read(access.line)?;
                    flow.read_done(&access, now(), &content);
                }
                Next::Write(access) => {
                    self.write(access.line, &access.content())?;
                    flow.write_done(&access, now());
                }
                Next::NotYet => std::hint::spin_loop(),
                Next::End => return Ok(()),
            }
        }
    }

    fn flush(&mut self) -> Result<(), MeasureError> {
        self.backing.flush()
    }

    fn check(&self) -> Result<(), MeasureError> {
        self.interrupt.as_ref().map_or(Ok(()), |i| Ok(i.check()?))
    }
}
