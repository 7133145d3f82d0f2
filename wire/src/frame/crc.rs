//! CRC-32C (Castagnoli) for the plain trailer, over the pseudo-header and then the frame.
//!
//! The checksum is computed for every frame, up to four times in a round trip, so optimization pays where the processor
//! allows it. x86-64 has an instruction that takes 8 bytes in a step, with a latency of three cycles and a throughput
//! of one per cycle. Therefore long inputs are read as three lanes side by side, and the remainders of the lanes are
//! combined by two carry-less multiplications. Short frames need no set-up. On other processors the `crc32c` crate
//! computes the checksum, with the instructions of these processors.

// The first check executes CPUID; later checks are an atomic load.
#[cfg(target_arch = "x86_64")]
cpufeatures::new!(instructions, "sse4.2", "pclmulqdq");

/// Returns the CRC-32C of the pseudo-header (`session` and `seq` big-endian, then `place`) followed by
/// `body`.
#[inline]
pub(super) fn checksum(session: u64, seq: u64, place: [u8; 4], body: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "the instructions are used only after a check of the processor")]
    if instructions::get() {
        // SAFETY: the processor has both extensions the function is compiled for.
        return unsafe { x86::checksum(session, seq, place, body) };
    }
    portable(session, seq, place, body)
}

/// [`checksum`] by the `crc32c` crate, for processors without the x86-64 instructions.
fn portable(session: u64, seq: u64, place: [u8; 4], body: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&session.to_be_bytes());
    let crc = crc32c::crc32c_append(crc, &seq.to_be_bytes());
    let crc = crc32c::crc32c_append(crc, &place);
    crc32c::crc32c_append(crc, body)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::*;

    /// Maximum number of 8-byte words in each of the three lanes: 3 x 8 x 176 bytes hold the longest frame of
    /// a session. A longer input takes several rounds.
    const LANE_WORDS_MAX: usize = 176;
    /// Minimum number of words in a lane: below it, combining three lanes costs more than it saves.
    const LANE_WORDS_MIN: usize = 4;

    /// CRC-32C polynomial, with the highest power in the least significant bit.
    const POLYNOMIAL: u32 = 0x82F6_3B78;

    /// `SHIFT[n]` is x^(64 n - 33) modulo the polynomial: the factor that moves a remainder past n words. Of the 33
    /// subtracted, 32 cancel the x^32 by which the instruction itself multiplies, and 1 corrects the product of two
    /// bit-reversed factors, which comes out one place too low.
    static SHIFT: [u32; 2 * LANE_WORDS_MAX + 1] = {
        let mut table = [0; 2 * LANE_WORDS_MAX + 1];
        let mut power = 1 << 31;
        let mut exponent = 0;
        let mut words = 1;
        while words < table.len() {
            while exponent < 64 * words - 33 {
                power = power >> 1 ^ if power & 1 == 1 { POLYNOMIAL } else { 0 };
                exponent += 1;
            }
            table[words] = power;
            words += 1;
        }
        table
    };

    #[inline]
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    pub fn checksum(session: u64, seq: u64, place: [u8; 4], body: &[u8]) -> u32 {
        // The instruction takes its bytes from the low end, while a big-endian number begins with the high
        // end.
        let crc = _mm_crc32_u64(u64::from(u32::MAX), session.swap_bytes());
        let crc = _mm_crc32_u64(crc, seq.swap_bytes());
        let crc = _mm_crc32_u32(crc as u32, u32::from_le_bytes(place));
        !append(crc, body)
    }

    /// Continues the remainder `crc` over `bytes`.
    #[inline]
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    fn append(mut crc: u32, mut bytes: &[u8]) -> u32 {
        loop {
            let lane = (bytes.len() / 24).min(LANE_WORDS_MAX);
            if lane < LANE_WORDS_MIN {
                return chain(crc, bytes);
            }
            let (block, rest) = bytes.split_at(24 * lane);
            crc = lanes(crc, block.as_chunks().0);
            bytes = rest;
        }
    }

    /// Continues `crc` over three lanes of equal length, side by side.
    #[inline]
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    fn lanes(crc: u32, words: &[[u8; 8]]) -> u32 {
        let len = words.len() / 3;
        let (first, rest) = words.split_at(len);
        let (second, third) = rest.split_at(len);
        let (mut a, mut b, mut c) = (u64::from(crc), 0, 0);
        // Indexed, because the compiler would build an iterator over three slices in memory, with calls.
        let Some(last) = len.checked_sub(1) else { return crc };
        let (first, second, third) = (&first[..len], &second[..len], &third[..len]);
        for at in 0..last {
            a = _mm_crc32_u64(a, u64::from_le_bytes(first[at]));
            b = _mm_crc32_u64(b, u64::from_le_bytes(second[at]));
            c = _mm_crc32_u64(c, u64::from_le_bytes(third[at]));
        }
        a = _mm_crc32_u64(a, u64::from_le_bytes(first[last]));
        b = _mm_crc32_u64(b, u64::from_le_bytes(second[last]));
        let moved = multiply(a as u32, SHIFT[2 * len]) ^ multiply(b as u32, SHIFT[len]);
        _mm_crc32_u64(c, u64::from_le_bytes(third[last]) ^ moved) as u32
    }

    /// Continues `crc` over `bytes`, one instruction after the other.
    #[inline]
    #[target_feature(enable = "sse4.2")]
    fn chain(crc: u32, bytes: &[u8]) -> u32 {
        let (words, mut rest) = bytes.as_chunks();
        let crc =
            words.iter().fold(u64::from(crc), |crc, word| _mm_crc32_u64(crc, u64::from_le_bytes(*word)));
        let mut crc = crc as u32;
        if let Some((word, tail)) = rest.split_first_chunk() {
            crc = _mm_crc32_u32(crc, u32::from_le_bytes(*word));
            rest = tail;
        }
        rest.iter().fold(crc, |crc, byte| _mm_crc32_u8(crc, *byte))
    }

    /// Carry-less product of `a` and `b`.
    #[inline]
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    fn multiply(a: u32, b: u32) -> u64 {
        let product = _mm_clmulepi64_si128::<0>(_mm_cvtsi32_si128(a as i32), _mm_cvtsi32_si128(b as i32));
        _mm_cvtsi128_si64(product) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// CRC-32C bit by bit, straight from its definition, as a reference.
    fn definition(bytes: impl Iterator<Item = u8>) -> u32 {
        !bytes.fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 })
        })
    }

    #[test]
    fn the_definition_gives_the_check_value() {
        // The check value of CRC-32C, and a vector of RFC 3720, appendix B.4.
        assert_eq!(definition(b"123456789".iter().copied()), 0xE306_9283);
        assert_eq!(definition([0; 32].into_iter()), 0x8A91_36AA);
    }

    fn expected(session: u64, seq: u64, place: [u8; 4], body: &[u8]) -> u32 {
        let pseudo = [&session.to_be_bytes()[..], &seq.to_be_bytes(), &place].concat();
        definition(pseudo.into_iter().chain(body.iter().copied()))
    }

    #[test]
    fn every_length_up_to_the_longest_frame_and_beyond() {
        let bytes: Vec<u8> = (0..9100u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let (session, seq, place) = (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, [1, 2, 3, 4]);
        for len in (0..600).chain((600..9100).step_by(61)).chain([4151, 9100]) {
            let body = &bytes[..len];
            let expected = expected(session, seq, place, body);
            assert_eq!(checksum(session, seq, place, body), expected, "{len} bytes");
            assert_eq!(portable(session, seq, place, body), expected, "{len} bytes, portable");
        }
    }

    proptest! {
        #[test]
        fn all_ways_agree(
            session: u64,
            seq: u64,
            place: [u8; 4],
            bytes in proptest::collection::vec(any::<u8>(), 0..2000),
            from in 0usize..16,
        ) {
            let body = &bytes[from.min(bytes.len())..];
            let expected = expected(session, seq, place, body);
            prop_assert_eq!(checksum(session, seq, place, body), expected);
            prop_assert_eq!(portable(session, seq, place, body), expected);
        }
    }
}
