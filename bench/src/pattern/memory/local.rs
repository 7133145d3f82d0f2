//! Memory of this machine.

use std::sync::atomic::AtomicU64;

use super::cells::{Backing, Direct};
use super::{LINE_BYTES, Memory, Over, whole_lines};
use crate::measure::MeasureError;
use cxloe_lab::Interrupt;

struct Heap(Vec<AtomicU64>);

impl Backing for Heap {
    const OVER: Over = Over::Local;

    fn words(&self) -> &[AtomicU64] {
        &self.0
    }

    /// All of it is here, always.
    fn set_resident(&mut self, _bytes: u64) -> Result<u64, MeasureError> {
        Ok(size_of_val(self.0.as_slice()) as u64)
    }

    fn flush(&mut self) -> Result<(), MeasureError> {
        Ok(())
    }
}

/// A working set of at most `bytes` bytes in memory of this machine.
pub fn local(bytes: u64, interrupt: Option<Interrupt>) -> impl Memory {
    let lines = whole_lines(bytes);
    let words = (0..lines * LINE_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
    Direct::new(Heap(words), lines, interrupt)
}
