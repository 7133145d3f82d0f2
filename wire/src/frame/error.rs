//! Errors of received bytes. There are two kinds, with different consequences. The trailer of a frame of unknown length
//! cannot be found, so such a frame is dropped. A malformed frame of known length may well come from the peer; if its
//! trailer is right, the frame uses up its sequence number (R9).

/// Reason why a received frame is dropped, or answered with Fault 5.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Fewer bytes arrived than the command, with its count or mask, requires.
    #[error("dropped a frame of {have} bytes: its command and counts call for at least {need}")]
    Truncated {
        /// Number of bytes received.
        have: usize,
        /// Bytes required, as far as the part received shows.
        need: usize,
    },
    /// The command is unknown, and its code is outside the range in which unknown frames have a defined
    /// length.
    #[error(
        "dropped a frame with the unknown command {code:#04x}: its length is unknown; does the sender use another protocol version?"
    )]
    Undelimited {
        /// Command code received.
        code: u8,
    },
    /// The code is in the range of requests, but the protocol has no such request.
    #[error("unknown request {code:#04x}; does the sender use another protocol version?")]
    UnknownRequest {
        /// Command code received.
        code: u8,
    },
    /// The address of a request is not the address of a line.
    #[error("request for CMem address {addr:#x}: not a multiple of 64")]
    Unaligned {
        /// CMem byte address received.
        addr: u64,
    },
    /// The burst has no lines, or more than a page has.
    #[error("burst of {lines} lines: 1 to 64 are possible")]
    LineCount {
        /// Number of lines received.
        lines: u8,
    },
    /// The frame of many lines has fewer than two lines, or more than a page has.
    #[error("frame of {lines} lines of any addresses: 2 to 64 are possible")]
    MultiCount {
        /// Number of lines received.
        lines: u8,
    },
    /// The mask of the burst write is 0, so it names no line.
    #[error("burst write with an empty mask: name at least one line")]
    EmptyMask,
    /// The burst begins in one page and ends in another.
    #[error("burst from CMem address {addr:#x} over {lines} lines leaves its 4 KiB page: split it there")]
    LeavesPage {
        /// CMem byte address of the first line.
        addr: u64,
        /// Number of lines from the first to the last, both included.
        lines: u8,
    },
}

impl FrameError {
    /// Whether the end of the frame's data is known, so that the trailer can be verified. If the trailer is
    /// right, the frame uses up its sequence number and is answered with
    /// [`FaultStatus::Malformed`](super::FaultStatus) (R9).
    #[inline]
    pub const fn is_malformed(&self) -> bool {
        !matches!(self, Self::Truncated { .. } | Self::Undelimited { .. })
    }
}
