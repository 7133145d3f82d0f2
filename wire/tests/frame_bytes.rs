//! Every frame of the protocol as literal bytes. They are decoded, compared field by field, and encoded
//! again. These bytes define the format: if a test fails here, two versions of this program cannot
//! communicate.

use cxloe_wire::frame::*;

/// Decodes hexadecimal text; blanks are ignored.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    assert!(digits.len().is_multiple_of(2));
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Content of the line in all examples: bytes 0 to 63.
const LINE: [u8; 64] = {
    let mut line = [0; 64];
    let mut i = 0;
    while i < 64 {
        line[i] = i as u8;
        i += 1;
    }
    line
};

const LINE_HEX: &str = "000102030405060708090a0b0c0d0e0f 101112131415161718191a1b1c1d1e1f \
                        202122232425262728292a2b2c2d2e2f 303132333435363738393a3b3c3d3e3f";

/// Makes a frame to the memory node: stream 5, tag 6, sequence number 0x1234, the second line of a page.
fn to_mn(command: &str, payload: &str) -> Vec<u8> {
    hex(&format!("020000000002 020000000001 88b5 {command} 1234 0506 0a0b0c0d0040 {payload}"))
}

/// Makes a frame to the CN with the same stream, tag, number and address.
fn to_cn(command: &str, payload: &str) -> Vec<u8> {
    hex(&format!("020000000001 020000000002 88b5 {command} 1234 0506 0a0b0c0d0040 {payload}"))
}

fn check(bytes: &[u8], expected: Message<'_>) {
    let (cn, mn) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let (dst, src) = if bytes[14] < 0x80 { (mn, cn) } else { (cn, mn) };
    let header = Header {
        dst,
        src,
        ethertype: 0x88B5,
        command: bytes[14],
        seq: 0x1234,
        axi: Axi { stream: 5, tag: 6 },
        addr: 0x0a0b_0c0d_0040,
    };
    assert_eq!(body_len(bytes), Ok(bytes.len()));
    assert_eq!(Message::parse(bytes), Ok((header, expected)));
    assert_eq!(expected.command() as u8, bytes[14]);
    assert_eq!(expected.body_len(), bytes.len());

    // The command must come from the message, and no byte beyond the frame may be written.
    let mut out = vec![0xee; bytes.len() + 3];
    expected.emit(&Header { command: 0, ..header }, &mut out);
    assert_eq!(out[..bytes.len()], *bytes);
    assert_eq!(out[bytes.len()..], [0xee; 3]);

    // A trailer and padding must be ignored.
    assert_eq!(Message::parse(&out).unwrap().1, expected);

    let view = FrameView::new_checked(&out).unwrap();
    assert_eq!(view.header(), header);
    assert_eq!((view.dst(), view.src(), view.ethertype()), (dst, src, 0x88B5));
    assert_eq!((view.seq(), view.axi(), view.addr()), (header.seq, header.axi, header.addr));
    assert_eq!(view.command(), Some(expected.command()));
    assert_eq!(view.direction(), expected.command().direction());
    assert_eq!(view.space(), expected.command().space(5));
    assert_eq!(view.payload(), &bytes[25..]);
    assert_eq!(view.body_len(), bytes.len());

    // With one byte less, the frame must be refused.
    for short in 0..bytes.len() {
        let error = body_len(&bytes[..short]).unwrap_err();
        assert!(matches!(error, FrameError::Truncated { have, need } if have == short && need > short));
        assert_eq!(Message::parse(&bytes[..short]), Err(error));
        assert_eq!(FrameView::new_checked(&bytes[..short]).unwrap_err(), error);
    }
}

#[test]
fn the_write_request_has_89_bytes_before_its_trailer() {
    let bytes = to_mn("02", LINE_HEX);
    assert_eq!(bytes.len(), 89);
    check(&bytes, Message::WriteReq { data: &LINE });
}

#[test]
fn the_papers_other_frames() {
    check(&to_mn("01", ""), Message::ReadReq);
    check(&to_cn("81", LINE_HEX), Message::ReadResp { data: &LINE });
    check(&to_cn("82", ""), Message::WriteResp);
    check(&to_cn("83", "1230"), Message::SackNak { last_in_order: 0x1230 });
    check(
        &to_cn("84", "1230 122f 0708"),
        Message::SackNakAck {
            last_in_order: 0x1230,
            acked_seq: 0x122f,
            acked_axi: Axi { stream: 7, tag: 8 },
        },
    );
    check(
        &to_cn("85", "0088 0000 0000 0000 1234 0000 0000 0000 ffff"),
        Message::Congestion(PfcVector { enabled: 0x88, quanta: [0, 0, 0, 0x1234, 0, 0, 0, 0xffff] }),
    );
}

#[test]
fn bursts() {
    check(&to_mn("03", "17"), Message::BurstReadReq { lines: 23 });
    let two = [LINE, LINE].concat();
    let two_hex = format!("{LINE_HEX} {LINE_HEX}");
    check(
        &to_mn("04", &format!("0000000000000005 {two_hex}")),
        Message::BurstWriteReq { mask: 0b101, data: &two },
    );
    check(&to_cn("86", &format!("02 {two_hex}")), Message::BurstReadResp { lines: 2, data: &two });
}

#[test]
fn many_lines_of_any_addresses() {
    let others = [[0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x40], [0, 0, 0, 0, 0x10, 0]];
    assert_eq!(others.map(|bytes| address_of(&bytes)), [0x0a0b_0c0d_0e40, 0x1000]);
    assert_eq!(others.map(|bytes| address_bytes(address_of(&bytes))), others);
    check(&to_mn("05", "03 0a0b0c0d0e40 000000001000"), Message::MultiReadReq { others: &others });
    let three = [LINE, [0xff; 64], LINE];
    let three_hex = format!("{LINE_HEX} {} {LINE_HEX}", "ff".repeat(64));
    check(
        &to_mn("06", &format!("03 0a0b0c0d0e40 000000001000 {three_hex}")),
        Message::MultiWriteReq { others: &others, data: &three },
    );
    check(&to_cn("88", &format!("03 {three_hex}")), Message::MultiReadResp { data: &three });
    check(&to_cn("89", "03"), Message::MultiWriteResp { lines: 3 });
}

#[test]
fn faults() {
    for (code, status) in [
        ("00", FaultStatus::Unknown(0)),
        ("01", FaultStatus::Nxm),
        ("02", FaultStatus::Denied),
        ("03", FaultStatus::Poisoned),
        ("04", FaultStatus::NoResources),
        ("05", FaultStatus::Malformed),
        ("06", FaultStatus::Unknown(6)),
        ("ff", FaultStatus::Unknown(255)),
    ] {
        check(&to_cn("87", code), Message::Fault { status });
    }
}

#[test]
fn handshake() {
    let bytes = to_mn(
        "10",
        "0001 01 04 80000001 0102030405060708 a0a1a2a3a4a5a6a7 05ea 03 020000000055 00000000000000",
    );
    assert_eq!(bytes.len(), 25 + 40);
    check(
        &bytes,
        Message::Hello(Hello {
            version: 1,
            features: 0x8000_0001,
            nonce: 0x0102_0304_0506_0708,
            instance: 0xa0a1_a2a3_a4a5_a6a7,
            streams: 4,
            max_frame: 1514,
            integrity: Integrity::Aead,
            shard: 3,
            owner: Mac([2, 0, 0, 0, 0, 0x55]),
        }),
    );
    let bytes = to_cn(
        "90",
        "0001 0002 06 00 0100 0102030405060708 1122334455667788 1112131415161718 b0b1b2b3b4b5b6b7 \
         80000001 05ea 04 0000000000000000000000000000000000",
    );
    assert_eq!(bytes.len(), 25 + 64);
    check(
        &bytes,
        Message::HelloAck(HelloAck {
            hello_nonce: 0x0102_0304_0506_0708,
            version_min: 1,
            version_max: 2,
            features: 0x8000_0001,
            session: 0x1122_3344_5566_7788,
            nonce: 0x1112_1314_1516_1718,
            window: 256,
            streams: 4,
            max_frame: 1514,
            incarnation: 0xb0b1_b2b3_b4b5_b6b7,
            integrity: Integrity::Plain,
            status: HelloStatus::Draining,
        }),
    );
}

#[test]
fn handshake_codes() {
    for (code, status) in [
        (0, HelloStatus::Ok),
        (1, HelloStatus::VersionMismatch),
        (2, HelloStatus::InstanceConflict),
        (3, HelloStatus::NotAllowed),
        (4, HelloStatus::NoResources),
        (5, HelloStatus::Integrity),
        (6, HelloStatus::Draining),
        (7, HelloStatus::Shard),
        (8, HelloStatus::KeyNeeded),
        (9, HelloStatus::Cookie),
        (10, HelloStatus::KeyWithdrawn),
        (11, HelloStatus::Unknown(11)),
        (255, HelloStatus::Unknown(255)),
    ] {
        assert_eq!((HelloStatus::from(code), u8::from(status)), (status, code));
    }
    for (code, integrity) in [
        (0, Integrity::Plain),
        (1, Integrity::Aead),
        (2, Integrity::Gcm),
        (3, Integrity::Unknown(3)),
        (255, Integrity::Unknown(255)),
    ] {
        assert_eq!((Integrity::from(code), u8::from(integrity)), (integrity, code));
    }
}

#[test]
fn reserved_bytes_are_ignored() {
    let plain = to_mn(
        "10",
        &format!("0001 00 01 00000000 {} 05ea 02 020000000001 {}", "00".repeat(16), "00".repeat(7)),
    );
    let filled = to_mn(
        "10",
        &format!("0001 00 01 00000000 {} 05ea 02 020000000001 {}", "00".repeat(16), "ff".repeat(7)),
    );
    assert_eq!(Message::parse(&filled), Message::parse(&plain));
    let plain = to_cn("90", &"00".repeat(64));
    let filled = to_cn("90", &("00".repeat(47) + &"ff".repeat(17)));
    assert_eq!(Message::parse(&filled), Message::parse(&plain));
}

#[test]
fn control_and_measuring() {
    check(&to_mn("11", ""), Message::Ping);
    check(&to_mn("12", ""), Message::Bye);
    check(&to_mn("13", ""), Message::Start);
    check(&to_cn("91", ""), Message::Pong);
    check(&to_cn("92", ""), Message::ByeAck);
    check(&to_cn("93", ""), Message::StartAck);
    check(&to_mn("70", "05dc 0003"), Message::Echo { reply_len: 1500, reply_count: 3 });
    check(&to_cn("f0", "0002"), Message::EchoReply { index: 2 });
}

/// Checks that a frame has a known end, so that its trailer can be verified, but is malformed (R9).
fn check_malformed(bytes: &[u8], expected: FrameError) {
    assert_eq!(body_len(bytes), Ok(bytes.len()));
    assert_eq!(Message::parse(bytes), Err(expected));
    assert!(expected.is_malformed());
    assert_eq!(Header::parse(bytes).unwrap().seq, 0x1234);
}

#[test]
fn r9_unaligned_requests() {
    for (command, payload) in [
        ("01", String::new()),
        ("02", LINE_HEX.into()),
        ("03", "01".into()),
        ("04", format!("0000000000000001 {LINE_HEX}")),
    ] {
        for low in [0x41, 0x60, 0x7f] {
            let mut bytes = to_mn(command, &payload);
            bytes[24] = low;
            check_malformed(&bytes, FrameError::Unaligned { addr: 0x0a0b_0c0d_0000 | u64::from(low) });
        }
    }
    // A Fault repeats the address of its request, which need not be a line's.
    let mut bytes = to_cn("87", "05");
    bytes[24] = 0x41;
    assert!(Message::parse(&bytes).is_ok());
}

#[test]
fn r9_impossible_bursts() {
    check_malformed(&to_mn("03", "00"), FrameError::LineCount { lines: 0 });
    check_malformed(&to_mn("03", "41"), FrameError::LineCount { lines: 65 });
    check_malformed(&to_mn("03", "ff"), FrameError::LineCount { lines: 255 });
    check_malformed(&to_mn("04", "0000000000000000"), FrameError::EmptyMask);
    check_malformed(&to_cn("86", "00"), FrameError::LineCount { lines: 0 });
    let lines = LINE_HEX.repeat(65);
    check_malformed(&to_cn("86", &format!("41 {lines}")), FrameError::LineCount { lines: 65 });

    // The address is that of a page's second line, so 63 lines fit and 64 do not.
    let addr = 0x0a0b_0c0d_0040;
    assert!(Message::parse(&to_mn("03", "3f")).is_ok());
    check_malformed(&to_mn("03", "40"), FrameError::LeavesPage { addr, lines: 64 });
    assert!(Message::parse(&to_mn("04", &format!("4000000000000000 {LINE_HEX}"))).is_ok());
    check_malformed(
        &to_mn("04", &format!("8000000000000000 {LINE_HEX}")),
        FrameError::LeavesPage { addr, lines: 64 },
    );
}

#[test]
fn r9_impossible_counts_of_many() {
    for lines in [0, 1, 65, 255] {
        let addresses = "000000000040".repeat(usize::from(lines).saturating_sub(1));
        let data = LINE_HEX.repeat(lines.into());
        let error = FrameError::MultiCount { lines };
        check_malformed(&to_mn("05", &format!("{lines:02x} {addresses}")), error);
        check_malformed(&to_mn("06", &format!("{lines:02x} {addresses} {data}")), error);
        check_malformed(&to_cn("88", &format!("{lines:02x} {data}")), error);
        check_malformed(&to_cn("89", &format!("{lines:02x}")), error);
    }
    // Decoding must not check the addresses, not even the one in the header: each is checked later, with its own
    // request.
    let mut bytes = to_mn("05", "02 000000000041");
    bytes[24] = 0x41;
    assert!(Message::parse(&bytes).is_ok());
}

#[test]
fn r9_unknown_requests_have_no_payload() {
    for code in (0x00..=0x0f).chain(0x20..0x70).filter(|code| Command::from_u8(*code).is_none()) {
        check_malformed(&to_mn(&format!("{code:02x}"), ""), FrameError::UnknownRequest { code });
        let bytes = to_mn(&format!("{code:02x}"), "");
        let view = FrameView::new_checked(&bytes).unwrap();
        assert_eq!((view.command(), view.space()), (None, Some(Space::Stream(5))));
    }
}

#[test]
fn what_cannot_be_delimited() {
    for code in (0x14..=0x1f).chain(0x71..=0x80).chain(0x8a..=0x8f).chain(0x94..=0xef).chain(0xf1..=0xff) {
        let bytes = to_mn(&format!("{code:02x}"), LINE_HEX);
        let error = FrameError::Undelimited { code };
        assert_eq!(body_len(&bytes), Err(error));
        assert_eq!(Message::parse(&bytes), Err(error));
        assert!(!error.is_malformed());
    }
}

#[test]
fn the_readable_part_of_a_sealed_frame_holds_what_its_length_needs() {
    for code in 0..=255 {
        let expected = match code {
            0x03 | 0x86 | 0x05 | 0x06 | 0x88 | 0x89 => 26,
            0x04 => 33,
            _ => 25,
        };
        assert_eq!(clear_len(code), expected);
    }
}
