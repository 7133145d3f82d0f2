//! Memory whose page faults an agent serves: a region mapped through the agent.

#![expect(unsafe_code, reason = "mapped memory is accessed as a slice of atomics")]

use std::sync::atomic::AtomicU64;

use cxloe_client::mapping::Mapping;

use super::cells::{Backing, Direct};
use super::{AccessPath, Memory, whole_lines};
use crate::fault::Agent;
use crate::{MeasureError, MeasuredRegion};

/// Lower bound of the limit of resident bytes, as for inline mappings; a request for a lower limit is raised to this
/// value.
const LEAST: u64 = 64 << 10;

impl Backing for Mapping {
    const OVER: AccessPath = AccessPath::Mapped;

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, outlives the slice, and holds plain words. Other processes may change
        // the words at any time, which is permitted for atomics.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.len() / size_of::<u64>()) }
    }

    fn set_resident(&mut self, bytes: u64) -> Result<u64, MeasureError> {
        self.set_limit(bytes.max(LEAST))?;
        Ok(self.paging()?.limit)
    }

    fn flush(&mut self) -> Result<(), MeasureError> {
        Ok(Mapping::flush(self)?)
    }
}

/// Runs `body` over a mapping of at most `bytes` bytes of the agent's region, while the port of `target` is
/// idle.
pub(crate) fn over_mapping<R>(
    agent: &Agent,
    target: &MeasuredRegion,
    bytes: u64,
    body: impl FnOnce(&mut dyn Memory) -> Result<R, MeasureError>,
) -> Result<R, MeasureError> {
    let _turn = agent.turn(target);
    let mapping = agent.open(true)?;
    let lines = whole_lines(bytes.min(mapping.len() as u64));
    let mut memory = Direct::new(mapping, lines, target.interrupt.clone());
    let result = body(&mut memory)?;
    memory.flush()?;
    Ok(result)
}
