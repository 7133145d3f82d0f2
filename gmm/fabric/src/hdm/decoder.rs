//! One decoder: a range of HPA and its interleaving. Chunks of one granularity go to the positions of the interleave
//! set in turn; the chunks of one position are contiguous in the DPA of its target.
//!
//! ```text
//!   HPA - base:   | chunk number                | byte in chunk |
//!                 | DPA chunk      | position   |               |    position = chunk % ways, DPA chunk = chunk / ways
//! ```
//!
//! With a power of two of ways, both are bit fields of the address. With three times a power of two, one division by
//! the constant 3 is needed, which a compiler turns into a multiplication.

use serde::{Deserialize, Serialize};

use super::{DecoderError, Granularity, Ways};

/// One HDM decoder's range and interleave. DPAs are offsets in the decoder's own share of a target; a device adds its
/// decoder's DPA base ([`DecoderSet::dpa_base`](super::DecoderSet::dpa_base)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decoder {
    /// First HPA of the range.
    pub base: u64,
    /// Size of the range in bytes. If it is not a multiple of ways x granularity, the shares of the last positions have
    /// gaps; [`check`](Self::check) refuses such sizes.
    pub size: u64,
    /// Number of targets that the range is interleaved over.
    pub ways: Ways,
    /// Size of a chunk: consecutive bytes that go to one target.
    pub granularity: Granularity,
}

impl Decoder {
    /// Position in the interleave set and DPA of the byte at `hpa`; none outside the range.
    #[inline]
    pub fn decode(&self, hpa: u64) -> Option<(u32, u64)> {
        let offset = hpa.wrapping_sub(self.base);
        (offset < self.size).then(|| self.decode_offset(offset))
    }

    /// Position and DPA of the byte `offset` bytes above the base. An offset beyond the range's end continues the
    /// sequence.
    #[inline]
    pub fn decode_offset(&self, offset: u64) -> (u32, u64) {
        let g = self.granularity.shift();
        let shift = self.ways.shift();
        let low = offset & ((1 << g) - 1);
        let chunk = offset >> g;
        let in_turn = chunk & ((1 << shift) - 1);
        let turn = chunk >> shift;
        if self.ways.is_threefold() {
            let dpa_chunk = turn / 3;
            let position = ((turn - dpa_chunk * 3) << shift) | in_turn;
            (position as u32, (dpa_chunk << g) | low)
        } else {
            (in_turn as u32, (turn << g) | low)
        }
    }

    /// The HPA of byte `dpa` of the target at `position`; none if there is no such position or its share is smaller.
    #[inline]
    pub fn encode(&self, position: u32, dpa: u64) -> Option<u64> {
        let ways = self.ways.count();
        if position >= ways || dpa >= self.size / u64::from(ways) {
            return None;
        }
        Some(self.base.wrapping_add(self.encode_offset(position, dpa)))
    }

    /// Offset from the base of byte `dpa` of the target at `position`, both of which must exist.
    #[inline]
    pub fn encode_offset(&self, position: u32, dpa: u64) -> u64 {
        let g = self.granularity.shift();
        let low = dpa & ((1 << g) - 1);
        let chunk = (dpa >> g) * u64::from(self.ways.count()) + u64::from(position);
        (chunk << g) | low
    }

    /// Bytes that each target contributes: size / ways.
    #[inline]
    pub fn share(&self) -> u64 {
        self.size / u64::from(self.ways.count())
    }

    /// Checks that range and interleave fit together, in multiples of `unit` bytes ([`UNIT_CXL`](super::UNIT_CXL), or a
    /// fabric's extent size). `index` is the decoder's number, for the message.
    ///
    /// # Errors
    /// The first rule violated: [`DecoderError::ZeroUnit`], [`Empty`](DecoderError::Empty),
    /// [`BaseUnaligned`](DecoderError::BaseUnaligned), [`SizeUnaligned`](DecoderError::SizeUnaligned),
    /// [`Wraps`](DecoderError::Wraps), [`NotThirds`](DecoderError::NotThirds), [`NotShares`](DecoderError::NotShares),
    /// [`NotChunks`](DecoderError::NotChunks).
    pub fn check(&self, index: usize, unit: u64) -> Result<(), DecoderError> {
        let Decoder { base, size, ways, granularity } = *self;
        if unit == 0 {
            return Err(DecoderError::ZeroUnit);
        }
        if size == 0 {
            return Err(DecoderError::Empty { index });
        }
        if !base.is_multiple_of(unit) {
            return Err(DecoderError::BaseUnaligned { index, base, unit });
        }
        if !size.is_multiple_of(unit) {
            return Err(DecoderError::SizeUnaligned { index, size, unit });
        }
        // Checked for the last byte, not for the end of the range: a range may end at 2^64.
        if base.checked_add(size - 1).is_none() {
            return Err(DecoderError::Wraps { index, base, size });
        }
        let units = size / unit;
        if ways.is_threefold() && !units.is_multiple_of(3) {
            return Err(DecoderError::NotThirds { index, units, unit, ways });
        }
        if !units.is_multiple_of(u64::from(ways.count())) {
            return Err(DecoderError::NotShares { index, units, unit, ways });
        }
        if !size.is_multiple_of(u64::from(ways.count() * granularity.bytes())) {
            return Err(DecoderError::NotChunks { index, size, ways, granularity });
        }
        Ok(())
    }
}
