//! Compares the implementations for short frames and for any length with each other, with a third one, and
//! with values that another program computed.

use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes128Gcm, Nonce};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Seals a frame by a third implementation, that of RustCrypto.
fn third(key: [u8; KEY_LEN], place: FramePlace<'_>, secret: &mut [u8]) -> [u8; Gcm::TAG_LEN] {
    let nonce: [u8; 12] = *place.nonce().as_ref();
    let (aad, len) = place.authenticated();
    let tag =
        Aes128Gcm::new(&key.into()).encrypt_inout_detached(&Nonce::from(nonce), &aad[..len], secret.into());
    tag.unwrap().into()
}

/// The expected values come from Python's `cryptography`: key 00 01 .. 0f, readable part 80 81 .., encrypted
/// bytes multiples of 7.
#[test]
fn known_frames() {
    let key = Key::new(core::array::from_fn(|i| i as u8));
    let clear: Vec<u8> = (0x80..0x80 + CLEAR_MAX as u8).collect();
    let known: [(usize, usize, u128, u128); 5] = [
        (25, 0, 0, 0xb952_b6a0_ba41_d9cd_3502_65e6_0811_d342),
        (25, 64, 0x0c65_8da0_cb32_5558_7787_e249_58f8_20b9, 0x1298_e4fe_2845_6ff0_a8e4_7de8_5db4_f50f),
        (26, 2, 0, 0xc8f3_2865_5be7_b602_0d9b_7ff6_4e21_2027),
        (33, 128, 0x0c65_8da0_cb32_5558_7787_e249_58f8_20b9, 0xce25_2301_d444_82dc_f09a_d6b2_df21_ac26),
        (26, 1500, 0x0c65_8da0_cb32_5558_7787_e249_58f8_20b9, 0x1a40_4727_1e73_3f07_7bdb_2d54_f5f6_c000),
    ];
    for (clear_len, len, begins, tag) in known {
        let place = FramePlace {
            place: [0, 1, 2, 3],
            counter: 0x0102_0304_0506,
            seq: 0x1122_3344_5566_7788,
            clear: &clear[..clear_len],
        };
        let plain: Vec<u8> = (0..len).map(|i| (7 * i) as u8).collect();
        let (mut by_one, mut by_other) = (plain.clone(), plain);
        assert_eq!(u128::from_be_bytes(key.seal(place, &mut by_one)), tag, "{clear_len}, {len}");
        assert_eq!(u128::from_be_bytes(key.seal_any(place, &mut by_other)), tag, "{clear_len}, {len}");
        assert_eq!(by_one, by_other);
        if let Some(first) = by_one.first_chunk() {
            assert_eq!(u128::from_be_bytes(*first), begins);
        }
    }
}

/// A frame with a wrong tag, or opened at a wrong place in the session, must be refused, and its bytes must not be
/// decrypted.
#[test]
fn nothing_is_decrypted_under_a_wrong_tag() {
    let key = Key::new([9; KEY_LEN]);
    let clear = [5; CLEAR_MAX];
    for len in [0, 1, 16, 63, 64, 65, 128] {
        let place = FramePlace { place: [1, 0, 0, 0], counter: 7, seq: 9, clear: &clear[..25] };
        let plain = vec![0x41; len];
        let mut sealed = plain.clone();
        let tag = key.seal(place, &mut sealed);
        let opens = |place: FramePlace<'_>, tag: &[u8; 16]| {
            let mut bytes = sealed.clone();
            let opens = key.open(place, &mut bytes, tag);
            assert!(opens || len == 0 || bytes != plain, "{len}");
            opens
        };
        assert!(opens(place, &tag));
        for bit in 0..128 {
            let mut forged = tag;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(!opens(place, &forged), "{len}, {bit}");
        }
        for other in [
            FramePlace { counter: 8, ..place },
            FramePlace { seq: 10, ..place },
            FramePlace { seq: 9 + (1 << 63), ..place },
            FramePlace { place: [0, 0, 0, 0], ..place },
            FramePlace { clear: &clear[..26], ..place },
        ] {
            assert!(!opens(other, &tag), "{len}");
        }
    }
}

/// Frames must open in any order, even if counters jump (as after lost frames), but only under the key of their
/// session.
#[test]
fn any_order_opens() {
    for session in 0..3 {
        let key = Key::new([session; KEY_LEN]);
        let former = Key::new([session.wrapping_sub(1); KEY_LEN]);
        let clear = [7; 25];
        let place = |counter| FramePlace { place: [2, 0, 1, 0], counter, seq: counter, clear: &clear };
        let mut frames: Vec<_> = [0, 1, 5, 6, 1 << 20, COUNTER_END - 1]
            .map(|counter| {
                let mut line = [counter as u8; 64];
                let tag = key.seal(place(counter), &mut line);
                (counter, line, tag)
            })
            .to_vec();
        frames.reverse();
        frames.extend(frames.clone());
        for (counter, mut line, tag) in frames {
            assert!(!former.open(place(counter), &mut line.clone(), &tag));
            assert!(!key.open(place(counter + 1), &mut line.clone(), &tag));
            assert!(key.open(place(counter), &mut line, &tag));
            assert_eq!(line, [counter as u8; 64]);
        }
    }
}

#[test]
fn nothing_leaves_after_the_last_number() {
    let hello = Hello::parse(&[1; Hello::LEN]);
    let ack = HelloAck::parse(&[2; HelloAck::LEN]);
    let gcm = Gcm::derive(&[3; 96], Mac([2; 6]), Mac([4; 6]), &hello, &ack);
    gcm.sealed.set(COUNTER_END - 1);
    for opens in [true, false, false] {
        let mut body = [0x41; 25 + 64];
        body[field::COMMAND] = super::super::Command::ReadResp as u8;
        let mut trailer = [0xff; Gcm::TRAILER_LEN];
        gcm.seal(Direction::ToCn, Space::Stream(0), &mut body, 5, &mut trailer);
        assert!(body[25..] != [0x41; 64]);
        assert_eq!(gcm.open(Direction::ToCn, Space::Stream(0), &mut body, 25, 5, &trailer), opens);
        assert_eq!(gcm.sealed.get(), COUNTER_END);
    }
}

proptest! {
    #[test]
    fn three_ways_give_the_same_bytes(
        key: [u8; KEY_LEN],
        place: [u8; 4],
        counter in 0..COUNTER_END,
        seq: u64,
        clear in vec(any::<u8>(), 25..=CLEAR_MAX),
        plain in prop_oneof![vec(any::<u8>(), 0..200), vec(any::<u8>(), 64..=64), vec(any::<u8>(), 0..=0)],
    ) {
        let at = FramePlace { place, counter, seq, clear: &clear };
        let keys = Key::new(key);
        let mut sealed = [plain.clone(), plain.clone(), plain.clone()];
        let [short, any, other] = &mut sealed;
        let tag = keys.seal(at, short);
        prop_assert_eq!(tag, keys.seal_any(at, any));
        prop_assert_eq!(tag, third(key, at, other));
        prop_assert_eq!(&sealed[0], &sealed[1]);
        prop_assert_eq!(&sealed[0], &sealed[2]);
        let [short, any, _] = &mut sealed;
        prop_assert!(keys.open(at, short, &tag) && keys.open_any(at, any, &tag));
        prop_assert_eq!(&sealed[0], &plain);
        prop_assert_eq!(&sealed[1], &plain);
    }
}
