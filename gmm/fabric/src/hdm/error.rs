//! The rules of decoders, each with a name of its own, so that whoever broke one learns which and what to do.

use super::{Granularity, GranularityError, Ways, WaysError};

/// A rule of HDM decoders that was about to be broken. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecoderError {
    /// Sizes cannot be multiples of nothing.
    #[error(
        "decoders need a unit that base and size are multiples of, and 0 bytes is none; use the extent size"
    )]
    ZeroUnit,
    /// The component has fewer decoders.
    #[error("there is no decoder {index}; this component has {count}, numbered from 0")]
    NoSuchDecoder {
        /// The number asked for.
        index: usize,
        /// Decoders of the component.
        count: usize,
    },
    /// A committed decoder does not take another program.
    #[error("decoder {index} is committed and cannot be programmed; uncommit it first")]
    Committed {
        /// The decoder.
        index: usize,
    },
    /// A locked decoder stays as it is.
    #[error("decoder {index} is locked until its component is reset; use another one")]
    Locked {
        /// The decoder.
        index: usize,
    },
    /// Nothing was programmed that could be committed or locked.
    #[error("decoder {index} holds no program; program it first")]
    NotProgrammed {
        /// The decoder.
        index: usize,
    },
    /// Only a committed decoder can be taken back.
    #[error("decoder {index} is not committed, so there is nothing to take back")]
    NotCommitted {
        /// The decoder.
        index: usize,
    },
    /// Decoders are committed in the order of their numbers.
    #[error("decoder {index} cannot be committed before decoder {lower}; commit decoder {lower} first")]
    LowerNotCommitted {
        /// The decoder.
        index: usize,
        /// The one below it.
        lower: usize,
    },
    /// Decoders are taken back in the reverse order.
    #[error(
        "decoder {index} cannot be uncommitted while decoder {higher} is committed; uncommit decoder {higher} first"
    )]
    HigherCommitted {
        /// The decoder.
        index: usize,
        /// The one above it.
        higher: usize,
    },
    /// A range of nothing.
    #[error("decoder {index} has size 0; give it at least one unit per way")]
    Empty {
        /// The decoder.
        index: usize,
    },
    /// The base lies between units.
    #[error("base {base:#x} of decoder {index} is not a multiple of {unit} bytes; round it to one")]
    BaseUnaligned {
        /// The decoder.
        index: usize,
        /// Its base.
        base: u64,
        /// Bytes of a unit.
        unit: u64,
    },
    /// The size is not whole units.
    #[error("size {size:#x} of decoder {index} is not a multiple of {unit} bytes; round it to one")]
    SizeUnaligned {
        /// The decoder.
        index: usize,
        /// Its size in bytes.
        size: u64,
        /// Bytes of a unit.
        unit: u64,
    },
    /// The range passes the end of the address space.
    #[error(
        "decoder {index} from {base:#x} with {size:#x} bytes passes the end of 64-bit addresses; lower base or size"
    )]
    Wraps {
        /// The decoder.
        index: usize,
        /// Its base.
        base: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// The range begins before that of the decoder below ends.
    #[error(
        "decoder {index} begins at {base:#x}, before decoder {lower} ends at {lower_last:#x}; ranges ascend with the numbers, so raise its base"
    )]
    BelowPrevious {
        /// The decoder.
        index: usize,
        /// Its base.
        base: u64,
        /// The one below it.
        lower: usize,
        /// The last HPA of that one.
        lower_last: u64,
    },
    /// Three, six and twelve ways need a multiple of three units.
    #[error(
        "decoder {index} spreads {units} units of {unit} bytes over {ways} ways, which takes a multiple of 3 units; change the size or the ways"
    )]
    NotThirds {
        /// The decoder.
        index: usize,
        /// Its size in units.
        units: u64,
        /// Bytes of a unit.
        unit: u64,
        /// Its ways.
        ways: Ways,
    },
    /// The units cannot be shared out evenly.
    #[error(
        "decoder {index} spreads {units} units of {unit} bytes over {ways} ways, and each must get as many whole units; change the size or the ways"
    )]
    NotShares {
        /// The decoder.
        index: usize,
        /// Its size in units.
        units: u64,
        /// Bytes of a unit.
        unit: u64,
        /// Its ways.
        ways: Ways,
    },
    /// The last turn would be cut short, which happens with units smaller than the granularity only.
    #[error(
        "size {size:#x} of decoder {index} is not a multiple of {ways} ways x {granularity} bytes; change the size or take a finer granularity"
    )]
    NotChunks {
        /// The decoder.
        index: usize,
        /// Its size in bytes.
        size: u64,
        /// Its ways.
        ways: Ways,
        /// Its granularity.
        granularity: Granularity,
    },
    /// Targets and ways differ in number.
    #[error("decoder {index} has {ways} ways and {targets} targets; name one target per way")]
    TargetCount {
        /// The decoder.
        index: usize,
        /// Its ways.
        ways: Ways,
        /// How many targets it was given.
        targets: usize,
    },
    /// Two positions of one decoder lead to the same target.
    #[error("positions {first} and {second} of decoder {index} have the same target; give each its own")]
    TargetRepeated {
        /// The decoder.
        index: usize,
        /// The first position with it.
        first: usize,
        /// The second one.
        second: usize,
    },
    /// The skipped DPA is not whole units.
    #[error("decoder {index} skips {skip:#x} bytes of DPA, not a multiple of {unit} bytes; round it to one")]
    SkipUnaligned {
        /// The decoder.
        index: usize,
        /// The bytes it skips.
        skip: u64,
        /// Bytes of a unit.
        unit: u64,
    },
    /// The decoder's share ends behind the last address a device can have.
    #[error("the DPA of decoder {index} passes the end of 64-bit addresses; lower its skip or size")]
    DpaWraps {
        /// The decoder.
        index: usize,
    },
    /// A register names ways there are not.
    #[error(transparent)]
    Ways(#[from] WaysError),
    /// A register names a granularity there is not.
    #[error(transparent)]
    Granularity(#[from] GranularityError),
}
