//! Errors of the engine's operations, with a remedy in the message where there is one.

use cxloe_wire::frame::Mac;
use cxloe_wire::session::OpError;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    #[error("busy: poll and try again")]
    Busy,
    #[error("no region holds HPA {0:#x}; `cn-agent list` shows what is attached")]
    Unmapped(u64),
    /// No decoder has this address, and the policy of the region around it is to answer with poison.
    #[error(
        "HPA {0:#x} reads as poison: no decoder of the region around it claims it; `cn-agent list` shows how large the region is"
    )]
    Poisoned(u64),
    #[error(
        "the manager withdraws the region at HPA {0:#x}: it is disabled, or being unbound or moved away; \
         `cn-agent list` shows it, `gmm enable-region` lets this node have a disabled one again"
    )]
    Draining(u64),
    #[error(
        "the manager has suspended this compute node, so that nothing is attached (HPA {0:#x}); wait until its declared \
         regions exist, or resume it with `gmm release`"
    )]
    InReset(u64),
    #[error(
        "the region at HPA {0:#x} is mapped into programs at present, and is not read or written line by line meanwhile; \
         `cn-agent paging` shows by whom"
    )]
    Mapped(u64),
    #[error("the region at HPA {0:#x} is sealed: it can be read, and never written again")]
    Sealed(u64),
    #[error("HPA {0:#x} is not a multiple of 64")]
    Unaligned(u64),
    /// A burst that is empty, is too long for one frame, crosses the end of a page of CMem, has data of a length that
    /// does not match its lines, or was made for a former interleave set.
    #[error(
        "a burst at HPA {0:#x} does not fit one frame, or crosses the end of its 4 KiB page; take another segment"
    )]
    BadBurst(u64),
    #[error("no session with memory node {0} is open; check that mn-server runs there and the link is up")]
    NotConnected(Mac),
    /// The memory node has lost the region's data; the region's data on other memory nodes still exists.
    #[error(
        "memory node {0} was restarted without its content: what the region had there is lost; `gmm reset-region NAME` \
         gives the region back, with zeros there"
    )]
    DataLost(Mac),
    #[error(
        "the CXL device that serves HPA {0:#x} is gone, or not what it was; `cn-agent list` says which it is, \
         `cn-agent cxl list` what is there"
    )]
    DeviceGone(u64),
    #[error("memory node {mac}: {error}")]
    Failed { mac: Mac, error: OpError },
}
