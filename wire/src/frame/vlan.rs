//! The 802.1Q tag. A frame has a tag only so that PFC can pause the frame's traffic class without the other classes.
//! Switches and kernels may remove the tag on the way, so no code above the links handles the tag, and no trailer
//! covers it.
//!
//! The tag is between the source MAC and the EtherType. So both functions move the two addresses by four bytes and
//! leave the much longer rest of the frame in place.

/// Length in bytes of the tag: TPID and tag control information.
pub const TAG_LEN: usize = 4;
/// Tag protocol identifier of a customer tag (IEEE 802.1Q).
pub(crate) const TPID: u16 = 0x8100;

/// Length in bytes of both addresses, which precede the tag.
const MACS: usize = 12;

/// Removes the tag, if `frame` has one, and returns the untagged frame.
#[inline]
pub fn strip(frame: &mut [u8]) -> &mut [u8] {
    if frame.len() < MACS + TAG_LEN || frame[MACS..MACS + 2] != TPID.to_be_bytes() {
        return frame;
    }
    frame.copy_within(..MACS, TAG_LEN);
    &mut frame[TAG_LEN..]
}

/// Inserts a tag with VLAN id 0 (priority only) and priority code point `pcp` (0 to 7; upper bits are ignored). Before
/// the call, `buf[TAG_LEN..]` is the untagged frame; afterwards all of `buf` is the tagged frame.
///
/// # Panics
/// If `buf` is too short for the two addresses and a tag.
#[inline]
pub fn insert(buf: &mut [u8], pcp: u8) {
    buf.copy_within(TAG_LEN..TAG_LEN + MACS, 0);
    buf[MACS..MACS + 2].copy_from_slice(&TPID.to_be_bytes());
    buf[MACS + 2] = pcp << 5;
    buf[MACS + 3] = 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rustfmt::skip]
    const TAGGED: [u8; 20] = [
        2, 0, 0, 0, 0, 1,
        2, 0, 0, 0, 0, 2,
        0x81, 0x00, 0x60, 0x00,
        0x88, 0xB5,
        0x01, 0x12,
    ];
    #[rustfmt::skip]
    const UNTAGGED: [u8; 16] = [
        2, 0, 0, 0, 0, 1,
        2, 0, 0, 0, 0, 2,
        0x88, 0xB5,
        0x01, 0x12,
    ];

    #[test]
    fn off() {
        assert_eq!(strip(&mut TAGGED.clone()), UNTAGGED);
        assert_eq!(strip(&mut UNTAGGED.clone()), UNTAGGED);
    }

    #[test]
    fn on() {
        let mut buf = [0xee; 20];
        buf[4..].copy_from_slice(&UNTAGGED);
        insert(&mut buf, 3);
        assert_eq!(buf, TAGGED);
    }

    #[test]
    fn too_short_for_a_tag() {
        for len in 0..16 {
            let mut frame = TAGGED[..len].to_vec();
            assert_eq!(strip(&mut frame), &TAGGED[..len]);
        }
        assert_eq!(strip(&mut TAGGED[..16].to_vec()), &TAGGED[..12]);
    }
}
