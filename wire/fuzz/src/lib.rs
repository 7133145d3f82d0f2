//! Properties that must hold for any bytes, with one function for each parser and one for a whole end of a
//! session. The fuzz targets run them on the inputs of libFuzzer; `wire/tests/frame_corpus.rs` runs them on
//! the inputs stored under `corpus/`, so that an ordinary test run repeats all findings.

mod keyed;
mod responder;

pub use keyed::keyed;
pub use responder::responder;

use cxloe_wire::frame::*;

/// Decoding of a frame. A frame of unknown length must be dropped, every other frame decoded or reported as
/// malformed, and a decoded message must survive encoding and decoding.
pub fn message(data: &[u8]) {
    let end = body_len(data);
    match Message::parse(data) {
        Ok((header, message)) => {
            let end = end.expect("what was parsed was delimited");
            assert_eq!(message.body_len(), end);
            assert_eq!(message.command() as u8, header.command);
            let mut again = vec![0xee; end];
            message.emit(&header, &mut again);
            assert_eq!(Message::parse(&again), Ok((header, message)));
            // These messages are left out: they have reserved bytes, which encoding writes as zeros.
            if !matches!(message, Message::Hello(_) | Message::HelloAck(_) | Message::Congestion(_)) {
                assert_eq!(again, data[..end]);
            }
        }
        Err(error) => {
            assert_eq!(error.is_malformed(), end.is_ok());
            assert!(!error.is_malformed() || Header::parse(data).is_some());
            assert!(!error.to_string().is_empty());
        }
    }
}

/// Checked view: it must agree with the decoded header and must not read beyond the frame.
pub fn view(data: &[u8]) {
    let Ok(view) = FrameView::new_checked(data) else {
        assert!(body_len(data).is_err_and(|error| !error.is_malformed()));
        return;
    };
    let header = Header::parse(data).expect("a checked frame has a header");
    assert_eq!(view.header(), header);
    assert_eq!((view.dst(), view.src(), view.ethertype()), (header.dst, header.src, header.ethertype));
    assert_eq!((view.code(), view.seq(), view.axi()), (header.command, header.seq, header.axi));
    assert_eq!(view.addr(), header.addr);
    assert_eq!(view.command(), Command::from_u8(header.command));
    assert_eq!(view.direction() == Direction::ToCn, header.command >= 0x80);
    assert_eq!(view.payload(), &data[HEADER_LEN..view.body_len()]);
    assert!(clear_len(view.code()) <= view.body_len());
    let mut bytes = [0; HEADER_LEN];
    header.emit(&mut bytes);
    assert_eq!(bytes, data[..HEADER_LEN]);
    if let Some(Space::Stream(stream)) = view.space() {
        assert_eq!(stream, header.axi.stream);
    }
}

/// Hello and HelloAck: decoding followed by encoding must keep every field.
pub fn handshake(data: &[u8]) {
    if let Some(bytes) = data.first_chunk() {
        let hello = Hello::parse(bytes);
        assert_eq!(hello.to_bytes()[..26], bytes[..26]);
        assert_eq!(Hello::parse(&hello.to_bytes()), hello);
    }
    if let Some(bytes) = data.first_chunk() {
        let ack = HelloAck::parse(bytes);
        assert_eq!(ack.to_bytes()[..47], bytes[..47]);
        assert_eq!(HelloAck::parse(&ack.to_bytes()), ack);
    }
}

/// Whole 802.1Qbb frame: if it is decoded, encoding must give the same frame again.
pub fn pfc(data: &[u8]) {
    if let Some((source, vector)) = PfcVector::parse_frame(data) {
        let frame = vector.frame(source);
        assert_eq!(frame[..16], data[..16]);
        assert_eq!(frame[17..34], data[17..34]);
        assert_eq!(PfcVector::parse_frame(&frame), Some((source, vector)));
        for class in 0..=255 {
            assert_eq!(vector.pause(class).is_some(), class < 8 && vector.enabled >> class & 1 == 1);
        }
    }
}

/// 802.1Q tag: removal must leave an untagged frame, and insertion followed by removal the same frame.
pub fn vlan(data: &[u8]) {
    let mut frame = data.to_vec();
    let tagged = data.len() >= 16 && data[12..14] == [0x81, 0x00];
    let stripped = vlan::strip(&mut frame);
    assert_eq!(stripped.len(), data.len() - if tagged { vlan::TAG_LEN } else { 0 });
    if data.len() >= 12 {
        let mut buf = [&[0; vlan::TAG_LEN], data].concat();
        vlan::insert(&mut buf, data[0]);
        assert_eq!(vlan::strip(&mut buf), data);
    }
}

/// Integrity trailer. The first 16 bytes choose the seal; the rest is a frame, which is opened as received,
/// then sealed, then damaged in one byte. The damaged frame must not open.
pub fn trailer(data: &[u8]) {
    let Some(([choice, stream, at_high, at_low, change, _, _, _, seq @ ..], frame)) =
        data.split_first_chunk::<16>()
    else {
        return;
    };
    let seq = u64::from_be_bytes(*seq);
    let seal = &match (choice & 1, change & 0x80) {
        (0, _) => Seal::Plain { session: seq.rotate_left(32) },
        (_, 0) => sealed().0,
        _ => sealed().1,
    };
    let direction = if choice & 2 == 0 { Direction::ToMn } else { Direction::ToCn };
    let space = if choice & 4 == 0 { Space::Stream(*stream) } else { Space::Control };

    let mut arrived = frame.to_vec();
    if let Ok(end) = body_len(frame) {
        let _passes = seal.open(direction, space, &mut arrived, end, seq);
        assert!(
            !seal.open(direction, space, &mut arrived, frame.len(), seq),
            "there is no room for a trailer"
        );
    }

    let Some(&code) = frame.get(14) else { return };
    if frame.len() < clear_len(code) {
        return;
    }
    let mut bytes = vec![0xee; frame_len(frame.len(), seal.len())];
    bytes[..frame.len()].copy_from_slice(frame);
    seal.seal(direction, space, &mut bytes, frame.len(), seq);
    if *change != 0 {
        let mut damaged = bytes.clone();
        let at = usize::from(u16::from_be_bytes([*at_high, *at_low])) % (frame.len() + seal.len());
        damaged[at] ^= change;
        assert!(!seal.open(direction, space, &mut damaged, frame.len(), seq));
    }
    assert!(seal.open(direction, space, &mut bytes, frame.len(), seq));
    assert_eq!(bytes[..frame.len()], *frame);
    assert!(bytes[frame.len() + seal.len()..].iter().all(|byte| *byte == 0));
}

/// Returns a seal with a pre-shared key, and one from a handshake between nodes' keys.
fn sealed() -> (Seal, Seal) {
    let (hello, ack) = (Hello::parse(&[1; Hello::LEN]), HelloAck::parse(&[2; HelloAck::LEN]));
    let mac = Mac([2, 0, 0, 0, 0, 1]);
    let aead = Aead::derive(&[3; 32], mac, Mac::BROADCAST, &hello, &ack);
    let gcm = Gcm::derive(&[3; 96], mac, Mac::BROADCAST, &hello, &ack);
    (Seal::Aead(aead.expect("the key is long enough")), Seal::Gcm(gcm))
}
