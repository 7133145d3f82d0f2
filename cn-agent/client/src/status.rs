//! Encoding of a completion's status as numbers in shared memory, by which a client of the port gets the same errors as
//! a program with an engine of its own.

use cxloe_wire::frame::Mac;
use cxloe_wire::session::OpError;

use cxloe_cn_core::engine::EngineError;

/// Result of an operation, without the line of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The operation is done; the line of a read is in the completion.
    Done,
    /// The operation failed in the agent's engine.
    Failed(EngineError),
    /// The submission named an operation that does not exist.
    BadOperation,
    /// A code that this release does not define, from a newer agent.
    Unknown(u32),
}

const DONE: u32 = 0;
const BAD_OPERATION: u32 = 1;
const BUSY: u32 = 16;
const UNMAPPED: u32 = 17;
const UNALIGNED: u32 = 18;
const BAD_BURST: u32 = 19;
const NOT_CONNECTED: u32 = 20;
const DATA_LOST: u32 = 21;
const POISONED: u32 = 22;
const DRAINING: u32 = 23;
const IN_RESET: u32 = 24;
const DEVICE_GONE: u32 = 25;
const MAPPED: u32 = 26;
const SEALED: u32 = 27;
const SESSION_DEAD: u32 = 32;
const CONTENT_LOST: u32 = 33;
const FRAME_TOO_LARGE: u32 = 34;
const CLOSED: u32 = 35;
/// First code for the fault codes of memory nodes.
const FAULT: u32 = 256;

impl Status {
    /// Encodes the status as a code and a detail (an address or a MAC address).
    #[inline]
    pub fn encode(self) -> (u32, u64) {
        let error = match self {
            Status::Done => return (DONE, 0),
            Status::BadOperation => return (BAD_OPERATION, 0),
            Status::Unknown(code) => return (code, 0),
            Status::Failed(error) => error,
        };
        match error {
            EngineError::Busy => (BUSY, 0),
            EngineError::Unmapped(hpa) => (UNMAPPED, hpa),
            EngineError::Poisoned(hpa) => (POISONED, hpa),
            EngineError::Draining(hpa) => (DRAINING, hpa),
            EngineError::InReset(hpa) => (IN_RESET, hpa),
            EngineError::DeviceGone(hpa) => (DEVICE_GONE, hpa),
            EngineError::Mapped(hpa) => (MAPPED, hpa),
            EngineError::Sealed(hpa) => (SEALED, hpa),
            EngineError::Unaligned(hpa) => (UNALIGNED, hpa),
            EngineError::BadBurst(hpa) => (BAD_BURST, hpa),
            EngineError::NotConnected(mac) => (NOT_CONNECTED, mac.to_u64()),
            EngineError::DataLost(mac) => (DATA_LOST, mac.to_u64()),
            EngineError::Failed { mac, error } => {
                let code = match error {
                    OpError::Fault(status) => FAULT + u32::from(u8::from(status)),
                    OpError::SessionDead => SESSION_DEAD,
                    OpError::DataLost => CONTENT_LOST,
                    OpError::FrameTooLarge => FRAME_TOO_LARGE,
                    OpError::Closed => CLOSED,
                };
                (code, mac.to_u64())
            }
        }
    }

    /// Decodes a code and its detail. An undefined code gives [`Status::Unknown`].
    #[inline]
    pub fn decode(code: u32, detail: u64) -> Status {
        let mac = Mac::from_u64(detail & 0xFFFF_FFFF_FFFF);
        let failed = |error| Status::Failed(EngineError::Failed { mac, error });
        match code {
            DONE => Status::Done,
            BAD_OPERATION => Status::BadOperation,
            BUSY => Status::Failed(EngineError::Busy),
            UNMAPPED => Status::Failed(EngineError::Unmapped(detail)),
            POISONED => Status::Failed(EngineError::Poisoned(detail)),
            DRAINING => Status::Failed(EngineError::Draining(detail)),
            IN_RESET => Status::Failed(EngineError::InReset(detail)),
            DEVICE_GONE => Status::Failed(EngineError::DeviceGone(detail)),
            MAPPED => Status::Failed(EngineError::Mapped(detail)),
            SEALED => Status::Failed(EngineError::Sealed(detail)),
            UNALIGNED => Status::Failed(EngineError::Unaligned(detail)),
            BAD_BURST => Status::Failed(EngineError::BadBurst(detail)),
            NOT_CONNECTED => Status::Failed(EngineError::NotConnected(mac)),
            DATA_LOST => Status::Failed(EngineError::DataLost(mac)),
            SESSION_DEAD => failed(OpError::SessionDead),
            CONTENT_LOST => failed(OpError::DataLost),
            FRAME_TOO_LARGE => failed(OpError::FrameTooLarge),
            CLOSED => failed(OpError::Closed),
            FAULT..=0x1FF => failed(OpError::Fault(((code - FAULT) as u8).into())),
            code => Status::Unknown(code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_error_comes_back_as_it_was() {
        let mac = Mac([2, 0, 0, 0, 0, 7]);
        let of_node = |error| Status::Failed(EngineError::Failed { mac, error });
        let mut all = vec![Status::Done, Status::BadOperation];
        all.extend((0..=255_u8).map(|code| of_node(OpError::Fault(code.into()))));
        all.extend(
            [OpError::SessionDead, OpError::DataLost, OpError::FrameTooLarge, OpError::Closed].map(of_node),
        );
        all.extend(
            [
                EngineError::Busy,
                EngineError::Unmapped(u64::MAX),
                EngineError::Poisoned(1 << 40),
                EngineError::Draining(1 << 41),
                EngineError::InReset(1 << 42),
                EngineError::DeviceGone(1 << 43),
                EngineError::Mapped(1 << 44),
                EngineError::Sealed(1 << 45),
                EngineError::Unaligned(3),
                EngineError::BadBurst(64),
                EngineError::NotConnected(mac),
                EngineError::DataLost(mac),
            ]
            .map(Status::Failed),
        );
        for status in all {
            let (code, detail) = status.encode();
            assert_eq!(Status::decode(code, detail), status);
        }
    }

    proptest! {
        #[test]
        fn any_number_means_something(code: u32, detail: u64) {
            let status = Status::decode(code, detail);
            prop_assert_eq!(status.encode().0, code);
        }
    }
}
