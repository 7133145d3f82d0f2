//! AES-128-GCM for short frames by instructions of x86-64: a header alone, or a header with one or two lines.
//!
//! Each read is sealed twice and opened twice, and for so few bytes most of the time of a library call is
//! overhead, not arithmetic. Here a frame takes one straight run of instructions. The place and the readable
//! part are always three blocks, the key stream of all blocks is computed side by side, each block is
//! multiplied by its own power of the hash key, and one reduction ends the sum. No branch and no table
//! look-up depends on secret data. Long frames are left to `ring`, which is faster at those.
//!
//! The hash is computed as POLYVAL, which is GHASH with the bytes of each block reversed (RFC 8452, appendix
//! A).

#![expect(unsafe_code, reason = "instructions for AES are used only after a check of the processor")]

use core::arch::x86_64::*;

use zeroize::Zeroize;

use super::super::HEADER_LEN;
use super::{FramePlace, PLACE_LEN};

// The first check executes CPUID; later checks are an atomic load.
cpufeatures::new!(instructions, "aes", "avx", "pclmulqdq");

const BLOCK: usize = 16;
/// Number of blocks of authenticated, readable data: the frame's place in its session, and its readable part.
const CLEAR_BLOCKS: usize = 3;
/// Maximum number of encrypted blocks in a short frame: two lines.
const SECRET_BLOCKS_MAX: usize = 8;
const LINE_BLOCKS: usize = 4;
/// Number of powers of the hash key: one for each block, and one for the block of lengths.
const POWERS: usize = CLEAR_BLOCKS + SECRET_BLOCKS_MAX + 1;
/// Number of bytes of the readable part in the first two blocks, which begin with the frame's place.
const CLEAR_BEFORE_LAST: usize = 2 * BLOCK - PLACE_LEN;

/// Minimum and maximum length in bytes of the readable part of any frame.
const CLEAR_MIN: usize = HEADER_LEN;
const CLEAR_MAX: usize = super::CLEAR_MAX;

const _: () = assert!(CLEAR_MIN > CLEAR_BEFORE_LAST && CLEAR_MAX <= CLEAR_BEFORE_LAST + BLOCK);

/// Expanded key. A value exists only if the processor has the instructions.
pub(super) struct Short {
    rounds: [__m128i; 11],
    /// Powers of the hash key, beginning with the first power.
    powers: [__m128i; POWERS],
}

impl Short {
    /// Expands `key`. Returns `None` if the processor lacks one of the instructions.
    pub fn new(key: &[u8; BLOCK]) -> Option<Self> {
        // SAFETY: the processor has the extensions the function is compiled for.
        instructions::get().then(|| unsafe { Self::expand(key) })
    }

    /// Whether frames with parts of these lengths are short frames.
    #[inline(always)]
    pub fn takes(clear: &[u8], secret: &[u8]) -> bool {
        (CLEAR_MIN..=CLEAR_MAX).contains(&clear.len()) && secret.len() <= SECRET_BLOCKS_MAX * BLOCK
    }

    #[inline]
    pub fn seal(&self, place: FramePlace<'_>, secret: &mut [u8]) -> [u8; BLOCK] {
        // SAFETY: a value of this type exists only if the processor has the instructions.
        unsafe { self.seal_by_length(place, secret) }
    }

    /// Decrypts `secret` of a [short](Self::takes) frame if `tag` is right, and returns whether it is.
    /// Otherwise `secret` remains encrypted.
    #[inline]
    pub fn open(&self, place: FramePlace<'_>, secret: &mut [u8], tag: &[u8; BLOCK]) -> bool {
        // SAFETY: a value of this type exists only if the processor has the instructions.
        unsafe { self.open_by_length(place, secret, tag) }
    }

    #[target_feature(enable = "aes,avx,pclmulqdq")]
    fn seal_by_length(&self, place: FramePlace<'_>, secret: &mut [u8]) -> [u8; BLOCK] {
        if secret.is_empty() {
            return self.seal_whole::<0, 1>(place, &mut []);
        }
        match <&mut [u8; LINE_BLOCKS * BLOCK]>::try_from(&mut *secret) {
            Ok(line) => self.seal_whole::<LINE_BLOCKS, { LINE_BLOCKS + 1 }>(place, as_blocks(line)),
            Err(_) => self.seal_any(place, secret),
        }
    }

    #[target_feature(enable = "aes,avx,pclmulqdq")]
    fn open_by_length(&self, place: FramePlace<'_>, secret: &mut [u8], tag: &[u8; BLOCK]) -> bool {
        if secret.is_empty() {
            return self.open_whole::<0, 1>(place, &mut [], tag);
        }
        match <&mut [u8; LINE_BLOCKS * BLOCK]>::try_from(&mut *secret) {
            Ok(line) => self.open_whole::<LINE_BLOCKS, { LINE_BLOCKS + 1 }>(place, as_blocks(line), tag),
            Err(_) => self.open_any(place, secret, tag),
        }
    }

    /// Seals `BLOCKS` whole blocks; `STREAMS` must be `BLOCKS + 1`, since the tag takes one block of key
    /// stream.
    #[inline]
    #[target_feature(enable = "aes,avx,pclmulqdq")]
    fn seal_whole<const BLOCKS: usize, const STREAMS: usize>(
        &self,
        place: FramePlace<'_>,
        secret: &mut [[u8; BLOCK]; BLOCKS],
    ) -> [u8; BLOCK] {
        let stream = self.stream::<STREAMS>(nonce(place));
        let mut sum = self.sum_of_clear(place, BLOCKS, BLOCKS * BLOCK);
        for (i, block) in secret.iter_mut().enumerate() {
            let sealed = _mm_xor_si128(load(block), stream[i + 1]);
            store(block, sealed);
            sum.add(reversed(sealed), self.powers[BLOCKS - i]);
        }
        tag_of(sum, stream[0])
    }

    /// Opens `BLOCKS` whole blocks; `STREAMS` must be `BLOCKS + 1`, since the tag takes one block of key
    /// stream.
    #[inline]
    #[target_feature(enable = "aes,avx,pclmulqdq")]
    fn open_whole<const BLOCKS: usize, const STREAMS: usize>(
        &self,
        place: FramePlace<'_>,
        secret: &mut [[u8; BLOCK]; BLOCKS],
        tag: &[u8; BLOCK],
    ) -> bool {
        let stream = self.stream::<STREAMS>(nonce(place));
        let mut sum = self.sum_of_clear(place, BLOCKS, BLOCKS * BLOCK);
        for (i, block) in secret.iter().enumerate() {
            sum.add(reversed(load(block)), self.powers[BLOCKS - i]);
        }
        // Checked before anything is decrypted, so that a forged frame leaves no plain text behind.
        if !equal(&tag_of(sum, stream[0]), tag) {
            return false;
        }
        for (block, stream) in secret.iter_mut().zip(&stream[1..]) {
            store(block, _mm_xor_si128(load(block), *stream));
        }
        true
    }

    /// Seals `secret` if its last block is not full.
    #[target_feature(enable = "aes,avx,pclmulqdq")]
    fn seal_any(&self, place: FramePlace<'_>, secret: &mut [u8]) -> [u8; BLOCK] {
        let (len, blocks) = (secret.len(), secret.len().div_ceil(BLOCK));
        let stream = self.stream::<{ SECRET_BLOCKS_MAX + 1 }>(nonce(place));
        let mut sum = self.sum_of_clear(place, blocks, len);
        for (i, part) in secret.chunks_mut(BLOCK).enumerate() {
            let mut block = [0; BLOCK];
            block[..part.len()].copy_from_slice(part);
            let sealed = _mm_xor_si128(load(&block), stream[i + 1]);
            store(&mut block, sealed);
            block[part.len()..].fill(0);
            part.copy_from_slice(&block[..part.len()]);
            sum.add(reversed(load(&block)), self.powers[blocks - i]);
        }
        tag_of(sum, stream[0])
    }

    /// Opens `secret` if its last block is not full.
    #[target_feature(enable = "aes,avx,pclmulqdq")]
    fn open_any(&self, place: FramePlace<'_>, secret: &mut [u8], tag: &[u8; BLOCK]) -> bool {
        let (len, blocks) = (secret.len(), secret.len().div_ceil(BLOCK));
        let stream = self.stream::<{ SECRET_BLOCKS_MAX + 1 }>(nonce(place));
        let mut sum = self.sum_of_clear(place, blocks, len);
        for (i, part) in secret.chunks(BLOCK).enumerate() {
            let mut block = [0; BLOCK];
            block[..part.len()].copy_from_slice(part);
            sum.add(reversed(load(&block)), self.powers[blocks - i]);
        }
        if !equal(&tag_of(sum, stream[0]), tag) {
            return false;
        }
        for (part, stream) in secret.chunks_mut(BLOCK).zip(&stream[1..]) {
            let mut block = [0; BLOCK];
            store(&mut block, *stream);
            part.iter_mut().zip(block).for_each(|(byte, key)| *byte ^= key);
        }
        true
    }

    #[target_feature(enable = "aes,avx,pclmulqdq")]
    fn expand(key: &[u8; BLOCK]) -> Self {
        let mut rounds = [load(key); 11];
        // The round constants of AES (FIPS 197, section 5.2).
        rounds[1] = next_round::<0x01>(rounds[0]);
        rounds[2] = next_round::<0x02>(rounds[1]);
        rounds[3] = next_round::<0x04>(rounds[2]);
        rounds[4] = next_round::<0x08>(rounds[3]);
        rounds[5] = next_round::<0x10>(rounds[4]);
        rounds[6] = next_round::<0x20>(rounds[5]);
        rounds[7] = next_round::<0x40>(rounds[6]);
        rounds[8] = next_round::<0x80>(rounds[7]);
        rounds[9] = next_round::<0x1b>(rounds[8]);
        rounds[10] = next_round::<0x36>(rounds[9]);
        let mut short = Self { rounds, powers: [_mm_setzero_si128(); POWERS] };
        // The hash key of GHASH is an encrypted block of zeros; the hash key of POLYVAL is that key times x.
        let mut bytes = [0; BLOCK];
        store(&mut bytes, short.encrypt([_mm_setzero_si128()])[0]);
        let key = u128::from_be_bytes(bytes);
        let carry = 0u128.wrapping_sub(key >> 127) & POLYNOMIAL;
        bytes.zeroize();
        let key = number(key << 1 ^ carry);
        let mut power = key;
        for each in &mut short.powers {
            *each = power;
            let mut sum = Sum::new();
            sum.add(power, key);
            power = sum.reduced();
        }
        short
    }

    #[inline]
    #[target_feature(enable = "aes,avx,pclmulqdq")]
    fn encrypt<const N: usize>(&self, mut blocks: [__m128i; N]) -> [__m128i; N] {
        let [first, between @ .., last] = &self.rounds;
        blocks.iter_mut().for_each(|block| *block = _mm_xor_si128(*block, *first));
        for round in between {
            for block in &mut blocks {
                *block = _mm_aesenc_si128(*block, *round);
            }
        }
        for block in &mut blocks {
            *block = _mm_aesenclast_si128(*block, *last);
        }
        blocks
    }

    /// Computes the key stream of the frame with this nonce: the first block masks the tag, the others
    /// encrypt.
    #[inline]
    #[target_feature(enable = "aes,avx,pclmulqdq")]
    fn stream<const N: usize>(&self, nonce: u128) -> [__m128i; N] {
        let mut blocks = [_mm_setzero_si128(); N];
        for (number_of, block) in (1u32..).zip(&mut blocks) {
            *block = number((nonce | u128::from(number_of)).swap_bytes());
        }
        self.encrypt(blocks)
    }

    /// Starts the hash of a frame: adds the place, the readable part and the lengths, for `blocks` encrypted
    /// blocks that hold `len` bytes.
    #[inline]
    #[target_feature(enable = "aes,avx,pclmulqdq")]
    fn sum_of_clear(&self, place: FramePlace<'_>, blocks: usize, len: usize) -> Sum {
        let FramePlace { place, seq, clear, .. } = place;
        let (first, rest) = clear.split_first_chunk::<{ BLOCK - PLACE_LEN }>().expect("a header");
        let second = rest.first_chunk().expect("a header");
        let last = clear.last_chunk().expect("a header");
        let first = u128::from(u32::from_be_bytes(place)) << 96
            | u128::from(seq) << 32
            | u128::from(u32::from_be_bytes(*first));
        let aligned: &[u8; BLOCK] =
            LAST_PART[clear.len() - CLEAR_BEFORE_LAST..].first_chunk().expect("a header");
        let bits = |bytes: usize| 8 * bytes as u128;
        let mut sum = Sum::new();
        sum.add(number(first), self.powers[blocks + 3]);
        sum.add(reversed(load(second)), self.powers[blocks + 2]);
        sum.add(_mm_shuffle_epi8(load(last), load(aligned)), self.powers[blocks + 1]);
        sum.add(number(bits(PLACE_LEN + clear.len()) << 64 | bits(len)), self.powers[0]);
        sum
    }
}

impl Drop for Short {
    fn drop(&mut self) {
        self.rounds.zeroize();
        self.powers.zeroize();
    }
}

/// x^128 modulo the polynomial of POLYVAL: x^127 + x^126 + x^121 + 1.
const POLYNOMIAL: u128 = 0xc200_0000_0000_0000_0000_0000_0000_0001;

/// Shuffle masks. The 16 bytes from offset n move the last n of 16 readable bytes, reversed, to the top and
/// zero the rest.
static LAST_PART: [u8; 2 * BLOCK] = {
    let mut table = [0x80; 2 * BLOCK];
    let mut at = BLOCK;
    while at < table.len() {
        table[at] = (2 * BLOCK - 1 - at) as u8;
        at += 1;
    }
    table
};

/// Returns the first 12 bytes of a frame's counter blocks; the last four bytes, the block number, are 0.
#[inline(always)]
fn nonce(place: FramePlace<'_>) -> u128 {
    u128::from(u32::from_be_bytes(place.place)) << 96 | u128::from(place.counter) << 32
}

/// Sum of carry-less products before the reduction, as low, middle and high part.
struct Sum {
    low: __m128i,
    middle: __m128i,
    high: __m128i,
}

impl Sum {
    #[inline]
    #[target_feature(enable = "avx")]
    fn new() -> Self {
        let zero = _mm_setzero_si128();
        Self { low: zero, middle: zero, high: zero }
    }

    #[inline]
    #[target_feature(enable = "avx,pclmulqdq")]
    fn add(&mut self, a: __m128i, b: __m128i) {
        let crossed = _mm_xor_si128(_mm_clmulepi64_si128::<0x01>(a, b), _mm_clmulepi64_si128::<0x10>(a, b));
        self.low = _mm_xor_si128(self.low, _mm_clmulepi64_si128::<0x00>(a, b));
        self.middle = _mm_xor_si128(self.middle, crossed);
        self.high = _mm_xor_si128(self.high, _mm_clmulepi64_si128::<0x11>(a, b));
    }

    /// Reduces the sum by Montgomery reduction: returns its quotient by x^128, modulo the polynomial.
    #[inline]
    #[target_feature(enable = "avx,pclmulqdq")]
    fn reduced(self) -> __m128i {
        let low = _mm_xor_si128(self.low, _mm_slli_si128::<8>(self.middle));
        let high = _mm_xor_si128(self.high, _mm_srli_si128::<8>(self.middle));
        let factor = _mm_set1_epi64x((POLYNOMIAL >> 64) as i64);
        let first = _mm_clmulepi64_si128::<0x00>(low, factor);
        let folded = _mm_xor_si128(low, _mm_shuffle_epi32::<0b0100_1110>(first));
        let second = _mm_clmulepi64_si128::<0x11>(folded, factor);
        _mm_xor_si128(high, _mm_xor_si128(folded, second))
    }
}

/// Computes the tag of a frame: the reduced sum, masked by the first block of the key stream.
#[inline]
#[target_feature(enable = "avx,pclmulqdq")]
fn tag_of(sum: Sum, mask: __m128i) -> [u8; BLOCK] {
    let mut tag = [0; BLOCK];
    store(&mut tag, _mm_xor_si128(reversed(sum.reduced()), mask));
    tag
}

/// Whether two tags are equal. The time does not depend on the position of a difference.
#[inline]
#[target_feature(enable = "avx")]
fn equal(a: &[u8; BLOCK], b: &[u8; BLOCK]) -> bool {
    let difference = _mm_xor_si128(load(a), load(b));
    _mm_testz_si128(difference, difference) == 1
}

/// Computes the next round key from `round` (FIPS 197, section 5.2).
#[inline]
#[target_feature(enable = "aes,avx")]
fn next_round<const CONSTANT: i32>(round: __m128i) -> __m128i {
    let assist = _mm_shuffle_epi32::<0xff>(_mm_aeskeygenassist_si128::<CONSTANT>(round));
    let round = _mm_xor_si128(round, _mm_slli_si128::<4>(round));
    let round = _mm_xor_si128(round, _mm_slli_si128::<8>(round));
    _mm_xor_si128(round, assist)
}

/// Reverses the bytes of a block: GHASH and POLYVAL have opposite orders.
#[inline]
#[target_feature(enable = "avx")]
fn reversed(block: __m128i) -> __m128i {
    _mm_shuffle_epi8(block, _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
}

/// Converts a number to a block, least significant byte first.
#[inline]
#[target_feature(enable = "avx")]
fn number(value: u128) -> __m128i {
    _mm_set_epi64x((value >> 64) as i64, value as i64)
}

#[inline]
#[target_feature(enable = "avx")]
fn load(block: &[u8; BLOCK]) -> __m128i {
    // SAFETY: `block` has 16 readable bytes; the instruction needs no alignment.
    unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx")]
fn store(block: &mut [u8; BLOCK], value: __m128i) {
    // SAFETY: `block` has 16 writable bytes; the instruction needs no alignment.
    unsafe { _mm_storeu_si128(block.as_mut_ptr().cast(), value) }
}

#[inline]
fn as_blocks(line: &mut [u8; LINE_BLOCKS * BLOCK]) -> &mut [[u8; BLOCK]; LINE_BLOCKS] {
    line.as_chunks_mut().0.try_into().expect("a line is so many blocks")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(number: u128) -> [u8; BLOCK] {
        number.to_be_bytes()
    }

    #[target_feature(enable = "aes,avx,pclmulqdq")]
    fn value(block: __m128i) -> u128 {
        let mut out = [0; BLOCK];
        store(&mut out, block);
        u128::from_be_bytes(out)
    }

    /// FIPS 197, appendix C.1; SP 800-38D's test cases 1 and 2 (McGrew and Viega, appendix B).
    #[test]
    fn vectors_of_the_standards() {
        #[target_feature(enable = "aes,avx,pclmulqdq")]
        fn vectors() {
            let key = Short::expand(&bytes(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f));
            let plain = load(&bytes(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff));
            assert_eq!(value(key.encrypt([plain])[0]), 0x69c4_e0d8_6a7b_0430_d8cd_b780_70b4_c55a);

            let zero = Short::expand(&[0; BLOCK]);
            let [mask, sealed] = zero.stream(0);
            assert_eq!(value(mask), 0x58e2_fcce_fa7e_3061_367f_1d57_a4e7_455a);
            assert_eq!(value(sealed), 0x0388_dace_60b6_a392_f328_c2b9_71b2_fe78);
            assert_eq!(u128::from_be_bytes(tag_of(Sum::new(), mask)), value(mask));
            let mut sum = Sum::new();
            sum.add(reversed(sealed), zero.powers[1]);
            sum.add(number(128), zero.powers[0]);
            assert_eq!(u128::from_be_bytes(tag_of(sum, mask)), 0xab6e_47d4_2cec_13bd_f53a_67b2_1257_bddf);
        }
        if instructions::get() {
            // SAFETY: the processor has the instructions.
            unsafe { vectors() }
        }
    }
}
