//! Identity of an operation among the engine's users. The engine stores it with the operation and returns it to the
//! sink. Each user handles only identities of its own variant, so a number chosen by one user (a client's tag is
//! untrusted) can never name another user's operation.

/// User of the engine that made an operation, and number of the request at that user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestId {
    /// Read or write of one line by a client of the agent.
    ClientLine {
        /// Index of the client's slot in the agent.
        slot: u16,
        /// Generation of the slot: it differs from those of earlier clients in the slot.
        generation: u16,
        /// Tag chosen by the client: any value.
        tag: u32,
    },
    /// A burst of a client's longer operation: its index among the bursts of all clients.
    ClientBurst(u16),
    PageBurst {
        /// Number of the set of transfers: it differs from those of earlier sets on the same engine.
        transfers: u32,
        /// Index of the burst within the set.
        burst: u16,
    },
    /// A request made by a call of a line port.
    PortRequest {
        /// Number of the call: it differs from those of earlier calls.
        call: u32,
        /// Index of the request within the call.
        request: u32,
    },
    /// A request of a caller that numbers its requests and is the engine's only user.
    Number(u32),
}

impl RequestId {
    #[inline]
    pub fn is_paging(self) -> bool {
        matches!(self, RequestId::PageBurst { .. })
    }

    #[inline]
    pub fn number(self) -> Option<u32> {
        if let RequestId::Number(number) = self { Some(number) } else { None }
    }
}
