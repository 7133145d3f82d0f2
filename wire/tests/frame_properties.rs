//! Properties of the frame layer over arbitrary input: a frame written must be read back equal, and no bytes
//! may make a parser panic.

use cxloe_wire::frame::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// Message that owns its lines, so that it can be generated.
#[derive(Clone, Debug)]
struct Owned {
    message: Message<'static>,
    lines: Vec<u8>,
    line: [u8; 64],
    others: Vec<[u8; ADDRESS_LEN]>,
}

impl Owned {
    fn message(&self) -> Message<'_> {
        match self.message {
            Message::WriteReq { .. } => Message::WriteReq { data: &self.line },
            Message::ReadResp { .. } => Message::ReadResp { data: &self.line },
            Message::BurstWriteReq { mask, .. } => Message::BurstWriteReq { mask, data: &self.lines },
            Message::BurstReadResp { lines, .. } => Message::BurstReadResp { lines, data: &self.lines },
            Message::MultiReadReq { .. } => Message::MultiReadReq { others: &self.others },
            Message::MultiWriteReq { .. } => {
                Message::MultiWriteReq { others: &self.others, data: self.lines.as_chunks().0 }
            }
            Message::MultiReadResp { .. } => Message::MultiReadResp { data: self.lines.as_chunks().0 },
            other => other,
        }
    }
}

fn hello() -> impl Strategy<Value = Hello> {
    any::<(u16, u32, u64, u64, u8, u16, u8, (u8, [u8; 6]))>().prop_map(
        |(version, features, nonce, instance, streams, max_frame, integrity, (shard, owner))| Hello {
            version,
            features,
            nonce,
            instance,
            streams,
            max_frame,
            integrity: integrity.into(),
            shard,
            owner: Mac(owner),
        },
    )
}

fn hello_ack() -> impl Strategy<Value = HelloAck> {
    any::<([u64; 4], [u16; 4], u32, [u8; 3])>().prop_map(
        |(
            [hello_nonce, session, nonce, incarnation],
            [version_min, version_max, window, max_frame],
            features,
            codes,
        )| HelloAck {
            hello_nonce,
            version_min,
            version_max,
            features,
            session,
            nonce,
            window,
            streams: codes[0],
            max_frame,
            incarnation,
            integrity: codes[1].into(),
            status: codes[2].into(),
        },
    )
}

/// Generates any message, with an address at which it is well formed.
fn message() -> impl Strategy<Value = (Owned, u64)> {
    const LINE: &[u8; 64] = &[0; 64];
    let fixed = prop_oneof![
        Just(Message::ReadReq),
        Just(Message::WriteReq { data: LINE }),
        Just(Message::Ping),
        Just(Message::Bye),
        Just(Message::Start),
        Just(Message::ReadResp { data: LINE }),
        Just(Message::WriteResp),
        Just(Message::Pong),
        Just(Message::ByeAck),
        Just(Message::StartAck),
        any::<(u16, u16)>().prop_map(|(reply_len, reply_count)| Message::Echo { reply_len, reply_count }),
        any::<u16>().prop_map(|index| Message::EchoReply { index }),
        any::<u16>().prop_map(|last_in_order| Message::SackNak { last_in_order }),
        any::<(u16, u16, u8, u8)>().prop_map(|(last_in_order, acked_seq, stream, tag)| {
            Message::SackNakAck { last_in_order, acked_seq, acked_axi: Axi { stream, tag } }
        }),
        any::<(u8, [u16; 8])>()
            .prop_map(|(enabled, quanta)| Message::Congestion(PfcVector { enabled, quanta })),
        any::<u8>().prop_map(|code| Message::Fault { status: code.into() }),
        hello().prop_map(Message::Hello),
        hello_ack().prop_map(Message::HelloAck),
    ];
    let fixed = (fixed, 0u64..1 << 42).prop_map(|(message, line)| (message, 0, line));
    // First line of the burst within its page, and the number of lines from the first to the last.
    let span =
        || (0u64..64, 0u64..1 << 36).prop_flat_map(|(first, page)| (1..=64 - first, Just(page << 6 | first)));
    let burst_read = span().prop_map(|(lines, line)| (Message::BurstReadReq { lines: lines as u8 }, 0, line));
    let burst_response = span().prop_map(|(lines, line)| {
        (Message::BurstReadResp { lines: lines as u8, data: &[] }, lines as usize, line)
    });
    let burst_write = (span(), any::<u64>()).prop_map(|((lines, line), bits)| {
        let mask = (bits | 1 << (lines - 1)) & (u64::MAX >> (64 - lines));
        (Message::BurstWriteReq { mask, data: &[] }, mask.count_ones() as usize, line)
    });
    let multi = prop_oneof![
        Just(Message::MultiReadReq { others: &[] }),
        Just(Message::MultiWriteReq { others: &[], data: &[] }),
        Just(Message::MultiReadResp { data: &[] }),
    ];
    let multi = (multi, MULTI_LINES_MIN..=MULTI_LINES_MAX, 0u64..1 << 42);
    let acknowledged = (MULTI_LINES_MIN..=MULTI_LINES_MAX, 0u64..1 << 42)
        .prop_map(|(lines, line)| (Message::MultiWriteResp { lines: lines as u8 }, 0, line));
    prop_oneof![4 => fixed, 1 => burst_read, 1 => burst_response, 1 => burst_write, 3 => multi, 1 => acknowledged]
        .prop_flat_map(|(message, lines, line)| {
            let others = vec(any::<[u8; ADDRESS_LEN]>(), lines.saturating_sub(1));
            let data = (vec(any::<u8>(), lines * 64), any::<[u8; 64]>(), others);
            data.prop_map(move |(lines, single, others)| {
                (Owned { message, lines, line: single, others }, line * 64)
            })
        })
}

prop_compose! {
    fn header()(
        dst: [u8; 6], src: [u8; 6], ethertype: u16, command: u8, seq: u16, stream: u8, tag: u8,
        addr in 0u64..1 << 48,
    ) -> Header {
        Header { dst: Mac(dst), src: Mac(src), ethertype, command, seq, axi: Axi { stream, tag }, addr }
    }
}

proptest! {
    #[test]
    fn macs_read_what_they_write(bytes: [u8; 6], value: u64) {
        let mac = Mac(bytes);
        prop_assert_eq!(mac.to_string().parse::<Mac>(), Ok(mac));
        prop_assert_eq!(mac.to_string().replace(':', "-").parse::<Mac>(), Ok(mac));
        prop_assert_eq!(Mac::from_u64(mac.to_u64()), mac);
        prop_assert_eq!(Mac::from_u64(value).to_u64(), value & 0xffff_ffff_ffff);
    }

    #[test]
    fn any_text_is_a_mac_or_an_error(text: String) {
        if let Ok(mac) = text.parse::<Mac>() {
            prop_assert_eq!(mac.to_string(), text.replace('-', ":").to_lowercase());
        }
    }

    #[test]
    fn headers_read_what_they_write(header in header(), upper: u16) {
        let mut bytes = [0; HEADER_LEN];
        Header { addr: header.addr | u64::from(upper) << 48, ..header }.emit(&mut bytes);
        prop_assert_eq!(Header::parse(&bytes), Some(header));
    }

    #[test]
    fn messages_read_what_they_write(
        (owned, addr) in message(),
        header in header(),
        after in vec(any::<u8>(), 0..40),
    ) {
        let message = owned.message();
        let header = Header { addr, ..header };
        let mut frame = vec![0xa5; message.body_len() + after.len()];
        frame[message.body_len()..].copy_from_slice(&after);
        message.emit(&header, &mut frame);
        prop_assert_eq!(&frame[message.body_len()..], &after[..]);
        prop_assert_eq!(body_len(&frame), Ok(message.body_len()));
        let read = Message::parse(&frame);
        prop_assert_eq!(read, Ok((Header { command: message.command() as u8, ..header }, message)));
    }

    #[test]
    fn any_bytes_are_a_frame_or_an_error(
        mut bytes in vec(any::<u8>(), 0..400),
        command in proptest::sample::select(Command::ALL.to_vec()),
        force in any::<bool>(),
    ) {
        // Half of the inputs get a valid command, which random bytes rarely have.
        if let Some(code) = bytes.get_mut(14).filter(|_| force) {
            *code = command as u8;
        }
        let end = body_len(&bytes);
        let parsed = Message::parse(&bytes);
        match end {
            Ok(end) => {
                prop_assert!((HEADER_LEN..=bytes.len()).contains(&end));
                let view = FrameView::new_checked(&bytes).unwrap();
                prop_assert_eq!(Some(view.header()), Header::parse(&bytes));
                prop_assert_eq!(view.body_len(), end);
            }
            Err(error) => {
                prop_assert!(!error.is_malformed());
                prop_assert_eq!(parsed, Err(error));
                prop_assert!(FrameView::new_checked(&bytes).is_err());
            }
        }
        match parsed {
            Ok((header, message)) => {
                prop_assert_eq!(end, Ok(message.body_len()));
                prop_assert_eq!(Some(message.command()), Command::from_u8(header.command));
            }
            Err(error) => prop_assert_eq!(error.is_malformed(), end.is_ok()),
        }
    }

    #[test]
    fn handshakes_read_what_they_write(hello in hello(), ack in hello_ack()) {
        prop_assert_eq!(Hello::parse(&hello.to_bytes()), hello);
        prop_assert_eq!(HelloAck::parse(&ack.to_bytes()), ack);
    }

    #[test]
    fn pfc_frames_read_what_they_write(source: [u8; 6], enabled: u8, quanta: [u16; 8]) {
        let vector = PfcVector { enabled, quanta };
        prop_assert_eq!(PfcVector::parse_frame(&vector.frame(Mac(source))), Some((Mac(source), vector)));
        for class in 0..=255 {
            let meant = class < 8 && enabled >> class & 1 == 1;
            prop_assert_eq!(vector.pause(class), meant.then(|| quanta[usize::from(class)]));
        }
    }

    #[test]
    fn any_bytes_are_a_pfc_frame_or_not(mut bytes in vec(any::<u8>(), 0..80), real in any::<bool>()) {
        if real && bytes.len() >= 16 {
            bytes[..16].copy_from_slice(&PfcVector::default().frame(Mac::default())[..16]);
        }
        let parsed = PfcVector::parse_frame(&bytes);
        prop_assert!(!real || parsed.is_some() == (bytes.len() >= 34));
    }

    #[test]
    fn tags_come_off_as_they_went_on(frame in vec(any::<u8>(), 12..100), pcp in 0u8..8) {
        let mut buf = [vec![0xee; vlan::TAG_LEN], frame.clone()].concat();
        vlan::insert(&mut buf, pcp);
        prop_assert_eq!(&buf[12..16], &[0x81, 0x00, pcp << 5, 0]);
        prop_assert_eq!(vlan::strip(&mut buf), &frame[..]);
    }

    #[test]
    fn any_bytes_can_be_stripped(mut frame in vec(any::<u8>(), 0..100)) {
        let tagged = frame.len() >= 16 && frame[12..14] == [0x81, 0x00];
        let expected = if tagged { [&frame[..12], &frame[16..]].concat() } else { frame.clone() };
        prop_assert_eq!(vlan::strip(&mut frame), &expected[..]);
    }

    #[test]
    fn bursts_stay_in_their_page(addr: u64, last in 0usize..200) {
        let first = addr / 64;
        let same = first.checked_add(last as u64).is_some_and(|line| line / 64 == first / 64);
        prop_assert_eq!(burst_fits_page(addr, last), same);
    }

    #[test]
    fn the_largest_frame_of_many_fits_and_the_next_does_not(
        max_frame in 0usize..10_000,
        trailer in prop_oneof![Just(4usize), Just(16)],
    ) {
        for (lines, overhead, each) in [
            (multi_read_lines_max(max_frame, trailer), 26 + trailer, 64),
            // The header has the first address, so the payload has one address less than the frame has lines.
            (multi_write_lines_max(max_frame, trailer), 20 + trailer, 70),
        ] {
            prop_assert!(lines == 0 || (MULTI_LINES_MIN..=MULTI_LINES_MAX).contains(&lines));
            prop_assert!(lines == 0 || overhead + lines * each <= max_frame);
            let next = (lines + 1).max(MULTI_LINES_MIN);
            prop_assert!(lines == MULTI_LINES_MAX || overhead + next * each > max_frame);
        }
    }

    #[test]
    fn the_largest_burst_fits_and_the_next_does_not(max_frame in 0usize..10_000, trailer in prop_oneof![Just(4usize), Just(16)]) {
        for (lines, overhead) in [
            (burst_read_lines_max(max_frame, trailer), 26 + trailer),
            (burst_write_lines_max(max_frame, trailer), 33 + trailer),
        ] {
            prop_assert!(lines <= BURST_LINES_MAX);
            prop_assert!(lines == 0 || overhead + lines * 64 <= max_frame);
            prop_assert!(lines == BURST_LINES_MAX || overhead + (lines + 1) * 64 > max_frame);
        }
    }
}
