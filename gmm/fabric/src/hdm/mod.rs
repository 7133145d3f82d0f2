//! HDM decoders: the arithmetic that interleaves a range of host physical addresses (HPA) over several memory nodes,
//! and the rules for programming it, as in the HDM decoder capability of CXL 2.0 and later (CXL 3.1, 8.2.4.20).
//!
//! ```text
//!   HPA --Decoder::decode--> (position in the interleave set, DPA within the decoder's own range)
//!   HPA <--Decoder::encode-- (position, DPA)
//!
//!   DecoderSet: program --> commit (in order) --> decode, encode
//!                  ^             |
//!                  +- uncommit --+  (in reverse order; never after a lock)
//! ```
//!
//! * [`Ways`], [`Granularity`]: the two parameters of an interleave set, with the register's encodings of them
//! * [`Decoder`]: one range and its arithmetic
//! * [`Control`]: a decoder's control register
//! * [`DecoderSet`]: the decoders of one component, and their permitted transitions
//! * [`DecoderError`]: the rules, one variant each
//!
//! The module does no I/O and does not depend on the rest of the manager.

mod control;
mod decoder;
mod error;
mod granularity;
mod set;
#[cfg(test)]
mod tests;
mod ways;

pub use control::{Control, TargetType};
pub use decoder::Decoder;
pub use error::DecoderError;
pub use granularity::{Granularity, GranularityError};
pub use set::{DecoderSet, Hit, Program, SlotState};
pub use ways::{Ways, WaysError};

/// Alignment of a decoder's base and size in CXL: 256 MiB.
pub const UNIT_CXL: u64 = 256 << 20;
