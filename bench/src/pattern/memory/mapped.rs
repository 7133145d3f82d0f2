//! A region mapped through an agent, which serves this process's page faults.

use std::sync::atomic::AtomicU64;

use cxloe_client::mapping::Mapping;

use super::cells::{Backing, Direct};
use super::{Memory, Over, whole_lines};
use crate::measure::fault::Agent;
use crate::measure::{MeasureError, Target};

/// The least that may be resident, as of inline mappings.
const LEAST: u64 = 64 << 10;

impl Backing for Mapping {
    const OVER: Over = Over::Mapped;

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping begins at a page, lives as long as the slice, and holds plain words, which others change
        // meanwhile as they may change atomics.
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

/// Does `body` with at most `bytes` bytes of the agent's region, while the port of `target` rests.
pub fn over_mapping<R>(
    agent: &Agent,
    target: &Target,
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
