//! Reasons why a memory node refuses a request.

/// Reason of a refused request, as a Fault frame has it. Codes without a name are kept as received.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum FaultStatus {
    /// 1: nothing is mapped at this CMem address ("non-existent memory").
    Nxm,
    /// 2: the memory mapped at this address does not permit this access to this CN.
    Denied,
    /// 3: the memory at this address is known to have lost its content.
    Poisoned,
    /// 4: the memory node lacks a resource that the request needs.
    NoResources,
    /// 5: the request makes no sense: unknown command, unaligned address or impossible count (R9).
    Malformed,
    /// A code that this version does not define.
    Unknown(u8),
}

impl From<u8> for FaultStatus {
    #[inline]
    fn from(code: u8) -> Self {
        match code {
            1 => Self::Nxm,
            2 => Self::Denied,
            3 => Self::Poisoned,
            4 => Self::NoResources,
            5 => Self::Malformed,
            other => Self::Unknown(other),
        }
    }
}

impl From<FaultStatus> for u8 {
    #[inline]
    fn from(status: FaultStatus) -> Self {
        match status {
            FaultStatus::Nxm => 1,
            FaultStatus::Denied => 2,
            FaultStatus::Poisoned => 3,
            FaultStatus::NoResources => 4,
            FaultStatus::Malformed => 5,
            FaultStatus::Unknown(other) => other,
        }
    }
}

impl core::fmt::Display for FaultStatus {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Nxm => f.write_str("nothing is mapped there"),
            Self::Denied => f.write_str("access denied"),
            Self::Poisoned => f.write_str("the memory there has lost its content"),
            Self::NoResources => f.write_str("the memory node is out of resources"),
            Self::Malformed => f.write_str("the memory node could not make sense of the request"),
            Self::Unknown(code) => write!(f, "fault {code}"),
        }
    }
}
