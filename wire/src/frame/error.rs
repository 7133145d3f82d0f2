//! Why bytes are not a frame of this protocol. Two kinds, because they have different consequences: what
//! cannot be delimited has no trailer to check and is dropped; what is delimited but malformed may well come
//! from the peer and, once its trailer has passed, takes its place in the stream (R9).

/// What is wrong with a received frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Fewer bytes arrived than the command (and its count or mask) calls for.
    #[error("dropped a frame of {have} bytes: its command and counts call for at least {need}")]
    Truncated {
        /// Bytes received.
        have: usize,
        /// Bytes called for so far.
        need: usize,
    },
    /// The command is none of the protocol's and not in the range whose length is defined for that case.
    #[error(
        "dropped a frame with the unknown command {code:#04x}: its length cannot be told; does the sender speak another version?"
    )]
    Undelimited {
        /// The code received.
        code: u8,
    },
    /// A request code without meaning.
    #[error("unknown request {code:#04x}; does the sender speak another version?")]
    UnknownRequest {
        /// The code received.
        code: u8,
    },
    /// A request for an address that is not that of a line.
    #[error("request for CMem address {addr:#x}: not a multiple of 64")]
    Unaligned {
        /// The address received.
        addr: u64,
    },
    /// A burst of no lines, or of more than a page has.
    #[error("burst of {lines} lines: 1 to 64 are possible")]
    LineCount {
        /// The count received.
        lines: u8,
    },
    /// A frame of many lines that has one, none, or more than a page has.
    #[error("frame of {lines} lines of any addresses: 2 to 64 are possible")]
    MultiCount {
        /// The count received.
        lines: u8,
    },
    /// A burst write that names no line.
    #[error("burst write with an empty mask: name at least one line")]
    EmptyMask,
    /// A burst whose last line lies in another page than its first.
    #[error("burst from CMem address {addr:#x} over {lines} lines leaves its 4 KiB page: split it there")]
    LeavesPage {
        /// Address of the first line.
        addr: u64,
        /// Lines from the first to the last, both included.
        lines: u8,
    },
}

impl FrameError {
    /// Whether the frame could be delimited, so that its trailer can be verified and, if it passes, the frame
    /// consumes its sequence number and is answered with [`FaultStatus::Malformed`](super::FaultStatus) (R9).
    #[inline]
    pub const fn is_malformed(&self) -> bool {
        !matches!(self, Self::Truncated { .. } | Self::Undelimited { .. })
    }
}
