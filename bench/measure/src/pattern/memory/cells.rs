//! Memory accessed by loads and stores, whatever supplies its pages.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use cxloe_cn_core::cache::Line;
use cxloe_wire::frame::LINE_SIZE;

use super::{AccessPath, LINE_BYTES, Memory};
use crate::MeasureError;
use crate::pattern::Share;
use crate::pattern::flow::{Flow, FlowAction};
use cxloe_lab::Interrupt;

/// Size of a page in bytes: the unit in which memory is resident or absent.
const PAGE_BYTES: u64 = cxloe_cn_core::pager::PAGE_BYTES as u64;
const LINE_WORDS: usize = LINE_SIZE / size_of::<u64>();
/// Number of accesses between two checks for Ctrl-C.
const LOOK_EVERY: u32 = 1024;

/// Source of the pages of directly accessed memory.
pub(super) trait Backing {
    /// Name of this way of access in results.
    const OVER: AccessPath;

    /// Returns the words of the whole memory, in order of addresses.
    fn words(&self) -> &[AtomicU64];

    /// Limits the resident bytes; returns the limit in effect, which may be higher.
    fn set_resident(&mut self, bytes: u64) -> Result<u64, MeasureError>;

    /// Waits until all modified pages have been written back.
    fn flush(&mut self) -> Result<(), MeasureError>;
}

/// A working set accessed by loads and stores, the first `lines` lines of `backing`.
pub(super) struct Direct<B> {
    pub backing: B,
    lines: u64,
    interrupt: Option<Interrupt>,
}

impl<B: Backing> Direct<B> {
    /// Makes a working set of the first `lines` lines of `backing`; `lines` must be a power of two.
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
    fn over(&self) -> AccessPath {
        B::OVER
    }

    fn lines(&self) -> u64 {
        self.lines
    }

    fn set_resident(&mut self, share: Share) -> Result<u64, MeasureError> {
        // Memory becomes resident in whole pages, so the limit is rounded down to whole pages.
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

    /// Makes each update by a load and a store, without an atomic operation, because only this thread writes.
    fn update(&mut self, updates: &[(u64, u64)]) -> Result<(), MeasureError> {
        let words = self.backing.words();
        for &(word, value) in updates {
            let cell = &words[word as usize];
            cell.store(cell.load(Ordering::Relaxed) ^ value, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Serves one access after the other, since the thread blocks on each page fault.
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
                FlowAction::Read(access) => {
                    let content = self.read(access.line)?;
                    flow.read_done(&access, now(), &content);
                }
                FlowAction::Write(access) => {
                    self.write(access.line, &access.content())?;
                    flow.write_done(&access, now());
                }
                FlowAction::NotYet => std::hint::spin_loop(),
                FlowAction::End => return Ok(()),
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
