//! Local memory of this process, with which the other ways of access are compared.

use std::sync::atomic::AtomicU64;

use super::cells::{Backing, Direct};
use super::{AccessPath, LINE_BYTES, Memory, whole_lines};
use crate::MeasureError;
use cxloe_lab::Interrupt;

struct Heap(Vec<AtomicU64>);

impl Backing for Heap {
    const OVER: AccessPath = AccessPath::Local;

    fn words(&self) -> &[AtomicU64] {
        &self.0
    }

    /// Has no effect: all local memory is resident.
    fn set_resident(&mut self, _bytes: u64) -> Result<u64, MeasureError> {
        Ok(size_of_val(self.0.as_slice()) as u64)
    }

    fn flush(&mut self) -> Result<(), MeasureError> {
        Ok(())
    }
}

/// Allocates a working set of at most `bytes` bytes.
pub fn local(bytes: u64, interrupt: Option<Interrupt>) -> impl Memory {
    let lines = whole_lines(bytes);
    let words = (0..lines * LINE_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
    Direct::new(Heap(words), lines, interrupt)
}
