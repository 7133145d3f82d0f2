//! Trace of a simulated network: what happens to each frame.

use std::fmt;

use crate::impairment::Loss;
use cxloe_wire::frame::Mac;
use cxloe_wire::time::Time;

/// Event of a frame. `Display` writes it as one line.
#[derive(Clone, Copy, Debug)]
pub struct Trace<'a> {
    /// Virtual time of the event.
    pub at: Time,
    /// Address of the sending port.
    pub from: Mac,
    /// Address of the receiving port, or the frame's destination if no port has it.
    pub to: Mac,
    /// Bytes of the frame as it is now, damage included.
    pub frame: &'a [u8],
    /// Event that this trace records.
    pub outcome: FrameOutcome,
}

/// Kind of event of a frame. A frame that arrives has two events: one when it is sent, one when it is in the
/// FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameOutcome {
    /// The frame has left its sender and will arrive.
    Sent {
        /// Time of arrival at the receiving port, or at that port's ingress wire.
        arrival: Time,
        /// True if the path has inverted bits of the frame.
        damaged: bool,
    },
    /// A second copy of the frame is on its way too.
    Duplicated,
    /// A copy of a frame sent long ago is on its way now ([`Path::late`](super::Path::late)).
    Late {
        /// Time of arrival at the receiving port, or at that port's ingress wire.
        arrival: Time,
    },
    /// The frame is held back, so that others overtake it.
    Delayed,
    /// The frame is lost by a fault of the path.
    Lost(Loss),
    /// The frame is lost, because its path is cut.
    Cut,
    /// The frame is lost: no port has its destination address, or that port is closed.
    NoPort,
    /// The frame is lost: the queue before the receiving port's ingress was too long.
    QueueFull,
    /// The frame is lost: the receive FIFO was full.
    FifoFull,
    /// The frame is lost: the network holds its maximum number of frames.
    NetworkFull,
    /// The frame is dropped: it is too short to have a destination.
    Runt,
    /// The frame has arrived in the receiver's FIFO.
    Delivered,
}

impl fmt::Display for Trace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} -> {} {} B ", self.at, self.from, self.to, self.frame.len())?;
        // Byte 14 is the command code of a frame of this protocol.
        if let Some(command) = self.frame.get(14) {
            write!(f, "cmd {command:#04x} ")?;
        }
        match self.outcome {
            FrameOutcome::Sent { arrival, damaged } => {
                write!(f, "sent, arrives {arrival}{}", if damaged { ", damaged" } else { "" })
            }
            FrameOutcome::Late { arrival } => write!(f, "again, long after, arrives {arrival}"),
            FrameOutcome::Duplicated => f.write_str("duplicated"),
            FrameOutcome::Delayed => f.write_str("held back"),
            FrameOutcome::Lost(Loss::Single) => f.write_str("lost"),
            FrameOutcome::Lost(Loss::Burst) => f.write_str("lost in a burst"),
            FrameOutcome::Cut => f.write_str("lost: path cut"),
            FrameOutcome::NoPort => f.write_str("lost: no such port"),
            FrameOutcome::QueueFull => f.write_str("lost: ingress queue full"),
            FrameOutcome::FifoFull => f.write_str("lost: FIFO full"),
            FrameOutcome::NetworkFull => f.write_str("lost: network full"),
            FrameOutcome::Runt => f.write_str("lost: too short"),
            FrameOutcome::Delivered => f.write_str("delivered"),
        }
    }
}
