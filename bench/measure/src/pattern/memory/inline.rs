//! Memory whose page faults are served by the faulting thread: the region is mapped over the port's own link.

use std::sync::atomic::AtomicU64;

use cxloe_port::inline::{InlineOptions, InlinePort, InlineRegion};

use super::cells::{Backing, Direct};
use super::{AccessPath, LINE_BYTES, Memory, whole_lines};
use crate::{MeasureError, MeasuredRegion};

/// Lower bound of the limit of resident bytes; a request for a lower limit is raised to this value.
const LEAST: u64 = 64 << 10;

struct Inline {
    port: InlinePort,
    /// Mapped region; `None` only while the limit of resident bytes is being changed.
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
    const OVER: AccessPath = AccessPath::Inline;

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        self.region()
    }

    /// Unmaps the region and maps it again, since the limit of an inline mapping is fixed.
    fn set_resident(&mut self, bytes: u64) -> Result<u64, MeasureError> {
        let local = bytes.max(LEAST);
        if let Some(region) = self.region.take() {
            region.close()?;
            let options = InlineOptions { local, ..InlineOptions::default() };
            self.region = Some(self.port.map(self.hpa, self.bytes, options)?);
        }
        Ok(local.min(self.bytes))
    }

    fn flush(&mut self) -> Result<(), MeasureError> {
        Ok(self.region().flush()?)
    }
}

/// Runs `body` over an inline mapping of at most `bytes` bytes of the target's region, and returns the
/// target.
pub(crate) fn over_inline<R>(
    target: MeasuredRegion,
    bytes: u64,
    body: impl FnOnce(&mut dyn Memory) -> Result<R, MeasureError>,
) -> Result<(MeasuredRegion, R), MeasureError> {
    let lines = whole_lines(bytes.min(target.bytes));
    let (hpa, bytes) = (target.hpa, (lines * LINE_BYTES).max(4096));
    let options = InlineOptions { local: bytes, ..InlineOptions::default() };
    let port = InlinePort::new(target.port)?;
    let region = port.map(hpa, bytes, options)?;
    let backing = Inline { port, region: Some(region), hpa, bytes };
    let mut memory = Direct::new(backing, lines, target.interrupt.clone());
    let result = body(&mut memory)?;
    let Inline { port, region, .. } = memory.backing;
    region.expect("it is unmapped only to be mapped anew").close()?;
    let port = port.into_port()?;
    Ok((MeasuredRegion { port, ..target }, result))
}
