//! The rules of decoders, one variant each, so that a caller learns which rule it violated and how to avoid that.

use super::{Granularity, GranularityError, Ways, WaysError};

/// A violated rule of HDM decoders. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecoderError {
    /// The unit is 0.
    #[error(
        "decoders need a unit that base and size are multiples of, and 0 bytes is none; use the extent size"
    )]
    ZeroUnit,
    /// The component has fewer decoders.
    #[error("there is no decoder {index}; this component has {count}, numbered from 0")]
    NoSuchDecoder {
        /// Number of the decoder in the request, from 0.
        index: usize,
        /// Number of decoders that the component has.
        count: usize,
    },
    /// A committed decoder cannot be programmed.
    #[error("decoder {index} is committed and cannot be programmed; uncommit it first")]
    Committed {
        /// Number of the decoder, from 0.
        index: usize,
    },
    /// A locked decoder cannot be changed.
    #[error("decoder {index} is locked until its component is reset; use another one")]
    Locked {
        /// Number of the decoder, from 0.
        index: usize,
    },
    /// The decoder has no program to commit or lock.
    #[error("decoder {index} holds no program; program it first")]
    NotProgrammed {
        /// Number of the decoder, from 0.
        index: usize,
    },
    /// Only a committed decoder can be uncommitted.
    #[error("decoder {index} is not committed, so there is nothing to take back")]
    NotCommitted {
        /// Number of the decoder, from 0.
        index: usize,
    },
    /// Decoders are committed in the order of their numbers.
    #[error("decoder {index} cannot be committed before decoder {lower}; commit decoder {lower} first")]
    LowerNotCommitted {
        /// Number of the decoder, from 0.
        index: usize,
        /// Number of the decoder below, which has to be committed first.
        lower: usize,
    },
    /// Decoders are uncommitted in the reverse order.
    #[error(
        "decoder {index} cannot be uncommitted while decoder {higher} is committed; uncommit decoder {higher} first"
    )]
    HigherCommitted {
        /// Number of the decoder, from 0.
        index: usize,
        /// Number of the decoder above, which has to be uncommitted first.
        higher: usize,
    },
    /// The range is empty.
    #[error("decoder {index} has size 0; give it at least one unit per way")]
    Empty {
        /// Number of the decoder, from 0.
        index: usize,
    },
    /// The base is not a multiple of the unit.
    #[error("base {base:#x} of decoder {index} is not a multiple of {unit} bytes; round it to one")]
    BaseUnaligned {
        /// Number of the decoder, from 0.
        index: usize,
        /// First HPA of the decoder's range.
        base: u64,
        /// Size of a unit, in bytes.
        unit: u64,
    },
    /// The size is not a multiple of the unit.
    #[error("size {size:#x} of decoder {index} is not a multiple of {unit} bytes; round it to one")]
    SizeUnaligned {
        /// Number of the decoder, from 0.
        index: usize,
        /// Size of the decoder's range, in bytes.
        size: u64,
        /// Size of a unit, in bytes.
        unit: u64,
    },
    /// The range passes the end of the address space.
    #[error(
        "decoder {index} from {base:#x} with {size:#x} bytes passes the end of 64-bit addresses; lower base or size"
    )]
    Wraps {
        /// Number of the decoder, from 0.
        index: usize,
        /// First HPA of the decoder's range.
        base: u64,
        /// Size of the decoder's range, in bytes.
        size: u64,
    },
    /// The range begins before that of the decoder below ends.
    #[error(
        "decoder {index} begins at {base:#x}, before decoder {lower} ends at {lower_last:#x}; ranges ascend with the numbers, so raise its base"
    )]
    BelowPrevious {
        /// Number of the decoder, from 0.
        index: usize,
        /// First HPA of the decoder's range.
        base: u64,
        /// Number of the decoder below.
        lower: usize,
        /// Last HPA of the decoder below.
        lower_last: u64,
    },
    /// Three, six and twelve ways need a multiple of three units.
    #[error(
        "decoder {index} spreads {units} units of {unit} bytes over {ways} ways, which takes a multiple of 3 units; change the size or the ways"
    )]
    NotThirds {
        /// Number of the decoder, from 0.
        index: usize,
        /// Size of the decoder's range, in units.
        units: u64,
        /// Size of a unit, in bytes.
        unit: u64,
        /// Interleave ways of the decoder's program.
        ways: Ways,
    },
    /// The units cannot be divided evenly.
    #[error(
        "decoder {index} spreads {units} units of {unit} bytes over {ways} ways, and each must get as many whole units; change the size or the ways"
    )]
    NotShares {
        /// Number of the decoder, from 0.
        index: usize,
        /// Size of the decoder's range, in units.
        units: u64,
        /// Size of a unit, in bytes.
        unit: u64,
        /// Interleave ways of the decoder's program.
        ways: Ways,
    },
    /// The last round would be incomplete, which happens only with units smaller than the granularity.
    #[error(
        "size {size:#x} of decoder {index} is not a multiple of {ways} ways x {granularity} bytes; change the size or take a finer granularity"
    )]
    NotChunks {
        /// Number of the decoder, from 0.
        index: usize,
        /// Size of the decoder's range, in bytes.
        size: u64,
        /// Interleave ways of the decoder's program.
        ways: Ways,
        /// Interleave granularity of the decoder's program, in bytes.
        granularity: Granularity,
    },
    /// The numbers of targets and ways differ.
    #[error("decoder {index} has {ways} ways and {targets} targets; name one target per way")]
    TargetCount {
        /// Number of the decoder, from 0.
        index: usize,
        /// Interleave ways of the decoder's program.
        ways: Ways,
        /// Number of targets given.
        targets: usize,
    },
    /// Two positions of one decoder have the same target.
    #[error("positions {first} and {second} of decoder {index} have the same target; give each its own")]
    TargetRepeated {
        /// Number of the decoder, from 0.
        index: usize,
        /// First position with this target.
        first: usize,
        /// Second position with this target.
        second: usize,
    },
    /// The skipped DPA is not a multiple of the unit.
    #[error("decoder {index} skips {skip:#x} bytes of DPA, not a multiple of {unit} bytes; round it to one")]
    SkipUnaligned {
        /// Number of the decoder, from 0.
        index: usize,
        /// DPA skipped before the decoder's share, in bytes.
        skip: u64,
        /// Size of a unit, in bytes.
        unit: u64,
    },
    /// The decoder's share ends beyond 64-bit device addresses.
    #[error("the DPA of decoder {index} passes the end of 64-bit addresses; lower its skip or size")]
    DpaWraps {
        /// Number of the decoder, from 0.
        index: usize,
    },
    /// A register contains reserved ways.
    #[error(transparent)]
    Ways(#[from] WaysError),
    /// A register contains a reserved granularity.
    #[error(transparent)]
    Granularity(#[from] GranularityError),
}
