//! Rules of decoders, one variant each, so that a caller can see which rule it violated and how to comply.

use super::{Granularity, GranularityError, Ways, WaysError};

/// A violated rule of HDM decoders; nothing has changed. `index` is the number of the decoder, from 0, and
/// `unit` the size of a unit in bytes; `base` and `size` are those of the decoder's range, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecoderError {
    #[error(
        "decoders need a unit that base and size are multiples of, and 0 bytes is none; use the extent size"
    )]
    ZeroUnit,
    #[error("there is no decoder {index}; this component has {count}, numbered from 0")]
    NoSuchDecoder { index: usize, count: usize },
    #[error("decoder {index} is committed and cannot be programmed; uncommit it first")]
    Committed { index: usize },
    #[error("decoder {index} is locked until its component is reset; use another one")]
    Locked { index: usize },
    #[error("decoder {index} holds no program; program it first")]
    NotProgrammed { index: usize },
    #[error("decoder {index} is not committed, so there is nothing to take back")]
    NotCommitted { index: usize },
    /// Decoders are committed in the order of their numbers.
    #[error("decoder {index} cannot be committed before decoder {lower}; commit decoder {lower} first")]
    LowerNotCommitted { index: usize, lower: usize },
    /// Decoders are uncommitted in the reverse order.
    #[error(
        "decoder {index} cannot be uncommitted while decoder {higher} is committed; uncommit decoder {higher} first"
    )]
    HigherCommitted { index: usize, higher: usize },
    #[error("decoder {index} has size 0; give it at least one unit per way")]
    Empty { index: usize },
    #[error("base {base:#x} of decoder {index} is not a multiple of {unit} bytes; round it to one")]
    BaseUnaligned { index: usize, base: u64, unit: u64 },
    #[error("size {size:#x} of decoder {index} is not a multiple of {unit} bytes; round it to one")]
    SizeUnaligned { index: usize, size: u64, unit: u64 },
    #[error(
        "decoder {index} from {base:#x} with {size:#x} bytes passes the end of 64-bit addresses; lower base or size"
    )]
    Wraps { index: usize, base: u64, size: u64 },
    #[error(
        "decoder {index} begins at {base:#x}, before decoder {lower} ends at {lower_last:#x}; ranges ascend with the numbers, so raise its base"
    )]
    BelowPrevious {
        index: usize,
        base: u64,
        lower: usize,
        /// Last HPA of the decoder below.
        lower_last: u64,
    },
    /// Three, six and twelve ways need a multiple of three units.
    #[error(
        "decoder {index} spreads {units} units of {unit} bytes over {ways} ways, which takes a multiple of 3 units; change the size or the ways"
    )]
    NotThirds {
        index: usize,
        /// Size of the decoder's range, in units.
        units: u64,
        unit: u64,
        ways: Ways,
    },
    #[error(
        "decoder {index} spreads {units} units of {unit} bytes over {ways} ways, and each must get as many whole units; change the size or the ways"
    )]
    NotShares {
        index: usize,
        /// Size of the decoder's range, in units.
        units: u64,
        unit: u64,
        ways: Ways,
    },
    /// The size is not a multiple of ways x granularity, so the last round over the targets would be
    /// incomplete. This happens only with units smaller than the granularity.
    #[error(
        "size {size:#x} of decoder {index} is not a multiple of {ways} ways x {granularity} bytes; change the size or take a finer granularity"
    )]
    NotChunks { index: usize, size: u64, ways: Ways, granularity: Granularity },
    #[error("decoder {index} has {ways} ways and {targets} targets; name one target per way")]
    TargetCount { index: usize, ways: Ways, targets: usize },
    #[error("positions {first} and {second} of decoder {index} have the same target; give each its own")]
    TargetRepeated {
        index: usize,
        /// First position of the repeated target.
        first: usize,
        /// Second position of the repeated target.
        second: usize,
    },
    #[error("decoder {index} skips {skip:#x} bytes of DPA, not a multiple of {unit} bytes; round it to one")]
    SkipUnaligned {
        index: usize,
        /// Bytes of DPA skipped before the decoder's share.
        skip: u64,
        unit: u64,
    },
    #[error("the DPA of decoder {index} passes the end of 64-bit addresses; lower its skip or size")]
    DpaWraps { index: usize },
    /// A register contains reserved ways.
    #[error(transparent)]
    Ways(#[from] WaysError),
    /// A register contains a reserved granularity.
    #[error(transparent)]
    Granularity(#[from] GranularityError),
}
