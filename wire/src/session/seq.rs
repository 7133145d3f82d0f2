//! Sequence numbers: 64 bits wide; frames have the low 16 (R11).

/// First number of each stream's requests, and of the control frames of each direction.
pub const FIRST: u64 = 1;

/// Returns the full number nearest to `near` whose low 16 bits are `low`. `near` is always within 512 of the numbers
/// that the peer may send, so the result is unambiguous: ambiguity begins at a distance of 32,768. A wrong result fails
/// the integrity trailer.
#[inline]
pub fn infer(near: u64, low: u16) -> u64 {
    let distance = low.wrapping_sub(near as u16) as i16;
    match near.checked_add_signed(i64::from(distance)) {
        Some(full) => full,
        // The nearest number would be negative, so the number can only be above `near`.
        None => near.wrapping_add(u64::from(low.wrapping_sub(near as u16))),
    }
}

#[cfg(test)]
mod tests {
    use super::infer;
    use proptest::prelude::*;

    #[test]
    fn wraps_both_ways() {
        assert_eq!(infer(0x1_FFFF, 0x0000), 0x2_0000);
        assert_eq!(infer(0x2_0000, 0xFFFF), 0x1_FFFF);
        assert_eq!(infer(5, 3), 3);
        assert_eq!(infer(1, 0), 0);
        assert_eq!(infer(0, 0xFFFF), 0xFFFF);
        assert_eq!(infer(u64::MAX, 3), 3, "no overflow at the very end");
    }

    proptest! {
        #[test]
        fn finds_every_number_within_half_a_turn(near in 0_u64..u64::MAX - 40_000, ahead in -32_768_i64..32_768) {
            if let Some(full) = near.checked_add_signed(ahead) {
                prop_assert_eq!(infer(near, full as u16), full);
            }
        }
    }
}
