//! Integrity trailer: known frames, computed by independent programs, and frames that must be refused: with
//! any bit changed, or of another session, direction, number space or cycle of the 16-bit number.

use cxloe_wire::frame::*;
use proptest::collection::vec;
use proptest::prelude::*;

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 2]);
const SESSION: u64 = 0x1122_3344_5566_7788;
const KEY: &[u8] = b"a pre-shared key of 32 bytes    ";

fn hello() -> Hello {
    Hello {
        version: 1,
        features: 0,
        nonce: 0x0102_0304_0506_0708,
        instance: 0xa0a1_a2a3_a4a5_a6a7,
        streams: 4,
        max_frame: 1514,
        integrity: Integrity::Aead,
        shard: 0,
        owner: Mac::default(),
    }
}

fn hello_ack() -> HelloAck {
    HelloAck {
        hello_nonce: 0x0102_0304_0506_0708,
        version_min: 1,
        version_max: 1,
        features: 0,
        session: SESSION,
        nonce: 0x1112_1314_1516_1718,
        window: 256,
        streams: 4,
        max_frame: 1514,
        incarnation: 0xb0b1_b2b3_b4b5_b6b7,
        integrity: Integrity::Aead,
        status: HelloStatus::Ok,
    }
}

fn aead() -> Seal {
    Seal::Aead(Aead::derive(KEY, CN, MN, &hello(), &hello_ack()).unwrap())
}

fn gcm() -> Seal {
    Seal::Gcm(Gcm::derive(&[7; 96], CN, MN, &hello(), &hello_ack()))
}

fn seals() -> [Seal; 3] {
    [Seal::Plain { session: SESSION }, aead(), gcm()]
}

/// Makes a frame with space for `seal`'s trailer, padded if short. Returns the length of its body too.
fn frame(message: Message<'_>, seq: u64, stream: u8, tag: u8, addr: u64, seal: &Seal) -> (Vec<u8>, usize) {
    let (dst, src) = if message.command() as u8 & 0x80 != 0 { (CN, MN) } else { (MN, CN) };
    let header = Header {
        dst,
        src,
        ethertype: ETHERTYPE_DEFAULT,
        command: 0,
        seq: seq as u16,
        axi: Axi { stream, tag },
        addr,
    };
    // Marker bytes, which would show up in the padding if earlier content of the buffer were sent.
    let mut bytes = vec![0xee; frame_len(message.body_len(), seal.len())];
    message.emit(&header, &mut bytes);
    (bytes, message.body_len())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn line() -> [u8; 64] {
    std::array::from_fn(|i| i as u8)
}

#[test]
fn known_plain_frames() {
    let seal = Seal::Plain { session: SESSION };
    let line = line();
    let (mut write, len) = frame(Message::WriteReq { data: &line }, 0x1_0002, 1, 5, 0x1040, &seal);
    seal.seal(Direction::ToMn, Space::Stream(1), &mut write, len, 0x1_0002);
    assert_eq!(hex(&write[..25]), "02000000000202000000000188b50200020105000000001040");
    assert_eq!((write.len(), hex(&write[89..])), (93, "5d0f1bd7".to_owned()));

    let (mut ack, len) = frame(Message::WriteResp, 0x1_0002, 1, 5, 0x1040, &seal);
    seal.seal(Direction::ToCn, Space::Stream(1), &mut ack, len, 0x1_0002);
    assert_eq!(ack.len(), 60);
    assert_eq!(hex(&ack[25..]), "350238f7".to_owned() + &"00".repeat(31));

    let (mut first, len) = frame(Message::Hello(hello()), 0, 0, 0, 0, &Seal::OUTSIDE);
    Seal::OUTSIDE.seal(Direction::ToMn, Space::Control, &mut first, len, 0);
    assert_eq!((first.len(), hex(&first[65..])), (69, "f233dd38".to_owned()));
}

#[test]
fn known_sealed_frames() {
    let seal = aead();
    let line = line();
    let (mut write, len) = frame(Message::WriteReq { data: &line }, 0x1_0002, 1, 5, 0x1040, &seal);
    seal.seal(Direction::ToMn, Space::Stream(1), &mut write, len, 0x1_0002);
    assert_eq!(write.len(), 105);
    assert_eq!(hex(&write[..25]), "02000000000202000000000188b50200020105000000001040");
    assert_eq!(
        hex(&write[25..]),
        "a52dba4b759eba1700d654fa7d3bc0c9f741e31006d24969f4f1a13807ce0936\
         ecca542470bee930a3d7dad780e1355041747463853ece79e8b3bd24db861d59\
         d3579f485b6e9f2ce77adba87c74762e"
    );

    let (mut burst, len) = frame(Message::BurstReadResp { lines: 1, data: &line }, 7, 0, 9, 0x2000, &seal);
    seal.seal(Direction::ToCn, Space::Stream(0), &mut burst, len, 7);
    assert_eq!(
        hex(&burst[25..]),
        "01464c5447c8f17de45338664c04d8e76a4a0de727da833c1fb679205ce996bd\
         628fbc51f96feb9597c953e05620cfab27a98f9f2b746d5501454db26f933e06\
         87cdcd7ff0305b3e2d8285678c7ed7852e"
    );

    let (mut start, len) = frame(Message::Start, 1, 0, 0, 0, &seal);
    seal.seal(Direction::ToMn, Space::Control, &mut start, len, 1);
    assert_eq!(hex(&start[25..]), "cc3e2201fb034f3455421dc4b4851914".to_owned() + &"00".repeat(19));
}

#[test]
fn padding_is_zeroed_and_room_beyond_the_trailer_too() {
    for seal in seals() {
        let mut bytes = vec![0xee; 200];
        Message::ReadReq.emit(&Header::parse(&[0; 25]).unwrap(), &mut bytes);
        seal.seal(Direction::ToMn, Space::Stream(0), &mut bytes, 25, 1);
        assert!(bytes[25 + seal.len()..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn no_changed_bit_passes() {
    let line = line();
    for seal in seals() {
        for message in [
            Message::ReadReq,
            Message::WriteReq { data: &line },
            Message::BurstReadReq { lines: 3 },
            Message::BurstWriteReq { mask: 2, data: &line },
            Message::BurstReadResp { lines: 1, data: &line },
            Message::Fault { status: FaultStatus::Nxm },
        ] {
            let direction = message.command().direction();
            let (mut bytes, len) = frame(message, 77, 2, 3, 0x4000, &seal);
            seal.seal(direction, Space::Stream(2), &mut bytes, len, 77);
            let mut good = bytes.clone();
            assert!(seal.open(direction, Space::Stream(2), &mut good, len, 77));
            assert_eq!(Message::parse(&good).unwrap().1, message);
            for bit in 0..(len + seal.len()) * 8 {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    !seal.open(direction, Space::Stream(2), &mut bad, len, 77),
                    "bit {bit} of {message:?}"
                );
                // The changed bit may change the length that the header states; with that length the frame
                // must not pass either.
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                if let Ok(len) = body_len(&bad) {
                    assert!(
                        !seal.open(direction, Space::Stream(2), &mut bad, len, 77),
                        "bit {bit} of {message:?}"
                    );
                }
            }
            // Padding is not authenticated, so a change of it must not matter.
            if let Some(padding) = bytes.get_mut(len + seal.len()..) {
                padding.fill(0xff);
                assert!(seal.open(direction, Space::Stream(2), &mut bytes, len, 77));
            }
        }
    }
}

#[test]
fn no_other_place_in_the_session_passes() {
    use Direction::{ToCn, ToMn};
    let line = line();
    for seal in seals() {
        let (mut bytes, len) = frame(Message::WriteReq { data: &line }, 0x2_0005, 0, 3, 0x4000, &seal);
        seal.seal(ToMn, Space::Stream(0), &mut bytes, len, 0x2_0005);
        let opens = |direction, space, seq| seal.open(direction, space, &mut bytes.clone(), len, seq);
        assert!(opens(ToMn, Space::Stream(0), 0x2_0005));
        assert!(!opens(ToCn, Space::Stream(0), 0x2_0005));
        assert!(!opens(ToMn, Space::Stream(1), 0x2_0005));
        assert!(!opens(ToMn, Space::Control, 0x2_0005));
        // A number with equal low 16 bits, one period of the counter away, must not pass (R11).
        assert!(!opens(ToMn, Space::Stream(0), 0x1_0005));
        assert!(!opens(ToMn, Space::Stream(0), 0x3_0005));
        for bit in 0..64 {
            assert!(!opens(ToMn, Space::Stream(0), 0x2_0005 ^ 1 << bit));
        }
    }
}

#[test]
fn no_other_session_passes() {
    let derive = |key: &[u8], cn, mn, hello: &Hello, ack: &HelloAck| {
        Seal::Aead(Aead::derive(key, cn, mn, hello, ack).unwrap())
    };
    let (hello, ack) = (hello(), hello_ack());
    let others = [
        derive(b"another pre-shared key of enough", CN, MN, &hello, &ack),
        derive(KEY, MN, CN, &hello, &ack),
        derive(KEY, CN, MN, &Hello { nonce: 1, ..hello }, &ack),
        derive(KEY, CN, MN, &Hello { instance: 1, ..hello }, &ack),
        derive(KEY, CN, MN, &Hello { max_frame: 1, ..hello }, &ack),
        derive(KEY, CN, MN, &hello, &HelloAck { nonce: 1, ..ack }),
        derive(KEY, CN, MN, &hello, &HelloAck { session: 1, ..ack }),
        derive(KEY, CN, MN, &hello, &HelloAck { incarnation: 1, ..ack }),
        derive(KEY, CN, MN, &hello, &HelloAck { window: 1, ..ack }),
    ];
    let (mut bytes, len) = frame(Message::Start, 1, 0, 0, 0, &aead());
    aead().seal(Direction::ToMn, Space::Control, &mut bytes, len, 1);
    for (i, other) in others.iter().enumerate() {
        assert!(!other.open(Direction::ToMn, Space::Control, &mut bytes.clone(), len, 1), "session {i}");
    }

    let mine = Seal::Plain { session: SESSION };
    let (mut bytes, len) = frame(Message::Start, 1, 0, 0, 0, &mine);
    mine.seal(Direction::ToMn, Space::Control, &mut bytes, len, 1);
    assert!(mine.open(Direction::ToMn, Space::Control, &mut bytes, len, 1));
    assert!(!Seal::OUTSIDE.open(Direction::ToMn, Space::Control, &mut bytes, len, 1));
    for bit in 0..64 {
        let other = Seal::Plain { session: SESSION ^ 1 << bit };
        assert!(!other.open(Direction::ToMn, Space::Control, &mut bytes, len, 1));
    }
}

#[test]
fn one_number_may_be_answered_twice_with_different_bytes() {
    // One request is answered with a SackNak, then with the line, then with other content of the line. The nonce
    // repeats, and each frame must open.
    let seal = aead();
    let (line, other) = (line(), [0x5a; 64]);
    let mut sealed = Vec::new();
    for message in [
        Message::SackNak { last_in_order: 6 },
        Message::ReadResp { data: &line },
        Message::ReadResp { data: &other },
    ] {
        let (mut bytes, len) = frame(message, 9, 0, 0, 0, &seal);
        seal.seal(Direction::ToCn, Space::Stream(0), &mut bytes, len, 9);
        sealed.push(bytes.clone());
        assert!(seal.open(Direction::ToCn, Space::Stream(0), &mut bytes, len, 9));
        assert_eq!(Message::parse(&bytes).unwrap().1, message);
    }
    // In a cipher mode that does not permit repeated nonces, both key streams would be equal and cancel out here.
    let difference: Vec<u8> = sealed[1][25..89].iter().zip(&sealed[2][25..89]).map(|(a, b)| a ^ b).collect();
    let plain: Vec<u8> = line.iter().zip(other).map(|(a, b)| a ^ b).collect();
    assert_ne!(difference, plain);
}

#[test]
fn payload_is_hidden_and_keys_are_not_shown() {
    let seal = aead();
    let (mut bytes, len) = frame(Message::WriteReq { data: &[0x41; 64] }, 9, 0, 0, 0, &seal);
    seal.seal(Direction::ToMn, Space::Stream(0), &mut bytes, len, 9);
    assert!(!bytes.windows(4).any(|window| window == [0x41; 4]));
    assert_eq!(format!("{seal:?}"), "Aead(Aead { .. })");
}

#[test]
fn short_keys_are_refused() {
    for have in 0..16 {
        let result = Aead::derive(&KEY[..have], CN, MN, &hello(), &hello_ack());
        assert_eq!(result.unwrap_err(), AeadError { have });
    }
    assert!(Aead::derive(&KEY[..16], CN, MN, &hello(), &hello_ack()).is_ok());
}

fn seal_of(integrity: u8, session: u64) -> Seal {
    match integrity {
        0 => Seal::Plain { session },
        1 => aead(),
        _ => gcm(),
    }
}

/// A frame sealed several times gets different bytes, each under a new number of the counter. Each copy must
/// open, but only at the frame's own place in the session.
#[test]
fn no_number_of_a_counter_is_used_twice() {
    let seal = gcm();
    let line = line();
    let sealed: Vec<Vec<u8>> = (0..3u8)
        .map(|count| {
            let (mut bytes, len) = frame(Message::ReadResp { data: &line }, 9, 0, 0, 64, &seal);
            seal.seal(Direction::ToCn, Space::Stream(0), &mut bytes, len, 9);
            assert_eq!(bytes[len + 16..len + 22], [0, 0, 0, 0, 0, count]);
            assert_ne!(bytes[HEADER_LEN..len], line);
            bytes
        })
        .collect();
    assert!(sealed[0] != sealed[1] && sealed[0][..HEADER_LEN + 64] != sealed[2][..HEADER_LEN + 64]);
    for bytes in sealed {
        let len = HEADER_LEN + 64;
        let opens = |direction, space, seq| seal.open(direction, space, &mut bytes.clone(), len, seq);
        assert!(!opens(Direction::ToMn, Space::Stream(0), 9));
        assert!(!opens(Direction::ToCn, Space::Control, 9));
        assert!(!opens(Direction::ToCn, Space::Stream(1), 9));
        assert!(!opens(Direction::ToCn, Space::Stream(0), 9 + 65_536));
        assert!(opens(Direction::ToCn, Space::Stream(0), 9));
    }
}

fn space_of(code: u16) -> Space {
    if code < 256 { Space::Stream(code as u8) } else { Space::Control }
}

proptest! {
    #[test]
    fn any_bytes_can_be_opened(
        integrity in 0u8..3,
        session: u64,
        mut bytes in vec(any::<u8>(), 0..300),
        len in 0usize..400,
        to_cn: bool,
        space in 0u16..257,
        seq: u64,
    ) {
        let direction = if to_cn { Direction::ToCn } else { Direction::ToMn };
        let seal = seal_of(integrity, session);
        let passes = seal.open(direction, space_of(space), &mut bytes, len, seq);
        prop_assert!(!passes || len + seal.len() <= bytes.len());
        if integrity > 0 {
            prop_assert!(!passes);
        }
    }

    #[test]
    fn what_is_sealed_opens_and_is_what_it_was(
        integrity in 0u8..3,
        session: u64,
        body in vec(any::<u8>(), 33..1600),
        to_cn: bool,
        space in 0u16..257,
        seq: u64,
        at: prop::sample::Index,
        change in 1u8..=255,
    ) {
        let direction = if to_cn { Direction::ToCn } else { Direction::ToMn };
        let seal = seal_of(integrity, session);
        let mut bytes = vec![0xee; frame_len(body.len(), seal.len())];
        bytes[..body.len()].copy_from_slice(&body);
        seal.seal(direction, space_of(space), &mut bytes, body.len(), seq);

        let mut damaged = bytes.clone();
        damaged[at.index(body.len() + seal.len())] ^= change;
        prop_assert!(!seal.open(direction, space_of(space), &mut damaged, body.len(), seq));

        prop_assert!(seal.open(direction, space_of(space), &mut bytes, body.len(), seq));
        prop_assert_eq!(&bytes[..body.len()], &body[..]);
    }
}
