//! How losses are repaired: one by one, as the protocol has it, or by going back to the first.
//!
//! Go-Back-N is what a simple reliable transport does. It is here to be compared with, in simulation: both ends have to
//! be told by a method call, and nothing in the protocol or in a configuration leads to it. Under it
//!
//! * the memory node drops every request that comes early, and sends one NAK (a SackNak) for each gap;
//! * the compute node drops every answer that comes early;
//! * either makes the compute node send everything from the gap on again, in order; so does a silence, when the
//!   selective scheme would probe, and each time-out.

/// A way to repair losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retransmission {
    /// Only what was lost is sent again (R4-R8).
    #[default]
    Selective,
    /// Everything from the first loss on is sent again. For comparison only.
    GoBackN,
}
