//! A region mapped over the port's own link, its faults served by the thread that has them.

use std::sync::atomic::AtomicU64;

use cxloe_port::inline::{InlineOptions, InlineRegion};

use super::cells::{Backing, Direct};
use super::{LINE_BYTES, Memory, Over, whole_lines};
use crate::measure::{MeasureError, Target};

/// The least that may be resident.
const LEAST: u64 = 64 << 10;

struct Inline {
    /// `None` only while it is mapped anew.
    region: Option<InlineRegion>,
    hpa: u64,
    bytes: u64,
}

impl Inline {
    fn region(&self) -> &InlineRegion {
        self.region.as_ref().expect("it is unmapped only to be mapped anew")
    }
}

impl Backing for Inline {
    const OVER: Over = Over::Inline;

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        self.region()
    }

    /// Maps it anew: the limit of an inline mapping never changes.
    fn set_resident(&mut self, bytes: u64) -> Result<u64, MeasureError> {
        let local = bytes.max(LEAST);
        if let Some(region) = self.region.take() {
            let port = region.close()?;
            let options = InlineOptions { local, ..InlineOptions::default() };
            self.region = Some(InlineRegion::map(port, self.hpa, self.bytes, options)?);
        }
        Ok(local.min(self.bytes))
    }

    fn flush(&mut self) -> Result<(), MeasureError> {
        Ok(self.region().flush()?)
    }
}

/// Does `body` with at most `bytes` bytes of the target's region, and gives the target back.
pub fn over_inline<R>(
    target: Target,
    bytes: u64,
    body: impl FnOnce(&mut dyn Memory) -> Result<R, MeasureError>,
) -> Result<(Target, R), MeasureError> {
    let lines = whole_lines(bytes.min(target.bytes));
    let (hpa, bytes) = (target.hpa, (lines * LINE_BYTES).max(4096));
    let options = InlineOptions { local: bytes, ..InlineOptions::default() };
    let region = InlineRegion::map(target.port, hpa, bytes, options)?;
    let backing = Inline { region: Some(region), hpa, bytes };
    let mut memory = Direct::new(backing, lines, target.interrupt.clone());
    let result = body(&mut memory)?;
    let region = memory.backing.region.take().expect("it is unmapped only to be mapped anew");
    let port = region.close()?;
    Ok((Target { port, ..target }, result))
}
