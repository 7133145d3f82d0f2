//! The trace: what the network tells about each frame.

use std::fmt;

use super::super::impairment::Loss;
use cxloe_wire::frame::Mac;
use cxloe_wire::time::Time;

/// One frame and what has just become of it. Prints as one line.
#[derive(Clone, Copy, Debug)]
pub struct Trace<'a> {
    /// The virtual time.
    pub at: Time,
    /// The port it comes from.
    pub from: Mac,
    /// Where it goes: a port, or the frame's destination if that is none.
    pub to: Mac,
    /// Its bytes, damaged if they were.
    pub frame: &'a [u8],
    /// What became of it.
    pub outcome: FrameOutcome,
}

/// A step on a frame's way. A frame that arrives is told of twice: when it sets out and when it lies in the
/// FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameOutcome {
    /// On its way.
    Sent {
        /// When it reaches the other port, or that port's ingress rate.
        arrival: Time,
        /// With inverted bits.
        damaged: bool,
    },
    /// A second copy of it is on its way too.
    Duplicated,
    /// A copy of a frame sent long ago is on its way now ([`Path::late`](super::Path::late)).
    Late {
        /// When it reaches the other port, or that port's ingress rate.
        arrival: Time,
    },
    /// Held back, so that others overtake it.
    Delayed,
    /// Lost by a fault.
    Lost(Loss),
    /// Lost in a partition.
    Cut,
    /// Nobody has its destination address, or its port is closed.
    NoPort,
    /// Lost because the queue before the receiving port's ingress was too long.
    QueueFull,
    /// Lost because the receive FIFO was full.
    FifoFull,
    /// Lost because the network holds as many frames as it may.
    NetworkFull,
    /// Too short to have a destination.
    Runt,
    /// In the receiver's FIFO.
    Delivered,
}

impl fmt::Display for Trace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} -> {} {} B ", self.at, self.from, self.to, self.frame.len())?;
        // The command's place in a frame of this project.
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
