//! Errors of received bytes. Two kinds, because they have different consequences: bytes that cannot be delimited have
//! no trailer to check and are dropped; a frame that is delimited but malformed may well come from the peer and, once
//! its trailer has passed, takes its place in the stream (R9).

/// Error of a received frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Fewer bytes arrived than the command (and its count or mask) calls for.
    #[error("dropped a frame of {have} bytes: its command and counts call for at least {need}")]
    Truncated {
        /// Bytes received.
        have: usize,
        /// Bytes required as far as the header shows.
        need: usize,
    },
    /// The command is none of the protocol's and not in the range whose length is defined for that case.
    #[error(
        "dropped a frame with the unknown command {code:#04x}: its length is unknown; does the sender use another protocol version?"
    )]
    Undelimited {
        /// Command code received.
        code: u8,
    },
    /// A request code without meaning.
    #[error("unknown request {code:#04x}; does the sender use another protocol version?")]
    UnknownRequest {
        /// Command code received.
        code: u8,
    },
    /// A request for an address that is not that of a line.
    #[error("request for CMem address {addr:#x}: not a multiple of 64")]
    Unaligned {
        /// CMem byte address received.
        addr: u64,
    },
    /// A burst of no lines, or of more than a page has.
    #[error("burst of {lines} lines: 1 to 64 are possible")]
    LineCount {
        /// Number of lines received.
        lines: u8,
    },
    /// A frame of many lines that has one, none, or more than a page has.
    #[error("frame of {lines} lines of any addresses: 2 to 64 are possible")]
    MultiCount {
        /// Number of lines received.
        lines: u8,
    },
    /// A burst write with an empty mask.
    #[error("burst write with an empty mask: name at least one line")]
    EmptyMask,
    /// A burst whose last line lies in another page than its first.
    #[error("burst from CMem address {addr:#x} over {lines} lines leaves its 4 KiB page: split it there")]
    LeavesPage {
        /// CMem byte address of the first line.
        addr: u64,
        /// Lines from the first to the last, both included.
        lines: u8,
    },
}

impl FrameError {
    /// Whether the end of the frame's data is known, so that its trailer can be verified. If the trailer passes, the
    /// frame consumes its sequence number and is answered with [`FaultStatus::Malformed`](super::FaultStatus) (R9).
    #[inline]
    pub const fn is_malformed(&self) -> bool {
        !matches!(self, Self::Truncated { .. } | Self::Undelimited { .. })
    }
}
