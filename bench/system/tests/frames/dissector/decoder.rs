//! Fields that the dissector has to show for one frame, in tshark's format, computed with the decoder of `cxloe_wire`.

use cxloe_wire::frame::{
    ADDRESS_LEN, FrameError, HEADER_LEN, Header, Hello, HelloAck, LINE_SIZE, Message, PfcVector, Seal,
    address_of, body_len, clear_len,
};

use super::tshark::Row;

/// Fields that depend on the bytes of one frame alone.
pub const FIELDS: [&str; 48] = [
    "cxloe.command",
    "cxloe.seq",
    "cxloe.stream",
    "cxloe.tag",
    "cxloe.address",
    "cxloe.line",
    "cxloe.lines",
    "cxloe.other_address",
    "cxloe.mask",
    "cxloe.fault.status",
    "cxloe.sack.last_in_order",
    "cxloe.sack.acked_seq",
    "cxloe.sack.acked_stream",
    "cxloe.sack.acked_tag",
    "cxloe.congestion.classes",
    "cxloe.congestion.quanta",
    "cxloe.hello.version",
    "cxloe.hello.integrity",
    "cxloe.hello.streams",
    "cxloe.hello.features",
    "cxloe.hello.nonce",
    "cxloe.hello.instance",
    "cxloe.hello.max_frame",
    "cxloe.hello.shard",
    "cxloe.hello.owner",
    "cxloe.hello.reserved",
    "cxloe.hello_ack.version_min",
    "cxloe.hello_ack.version_max",
    "cxloe.hello_ack.status",
    "cxloe.hello_ack.integrity",
    "cxloe.hello_ack.window",
    "cxloe.hello_ack.hello_nonce",
    "cxloe.hello_ack.session",
    "cxloe.hello_ack.nonce",
    "cxloe.hello_ack.incarnation",
    "cxloe.hello_ack.features",
    "cxloe.hello_ack.max_frame",
    "cxloe.hello_ack.streams",
    "cxloe.hello_ack.reserved",
    "cxloe.echo.reply_len",
    "cxloe.echo.reply_count",
    "cxloe.echo.index",
    "cxloe.sealed",
    "cxloe.trailer.crc",
    "cxloe.trailer.tag",
    "cxloe.trailer.counter",
    "cxloe.padding",
    "cxloe.unknown",
];

/// Expert messages for a malformed frame, one for each case of [`FrameError`].
pub const MALFORMED: [&str; 8] = [
    "cxloe.truncated",
    "cxloe.undelimited",
    "cxloe.unknown_request",
    "cxloe.unaligned",
    "cxloe.line_count",
    "cxloe.multi_count",
    "cxloe.empty_mask",
    "cxloe.leaves_page",
];

/// Bytes of a sealed frame's tag.
const TAG_LEN: usize = 16;
/// Bytes of the counter behind the tag.
const COUNTER_LEN: usize = 6;

/// True if a frame can belong to a sealed session: it has room for a tag beyond checksum and padding.
pub fn may_be_sealed(frame: &[u8]) -> bool {
    let Some(rest) = body_len(frame).ok().map(|end| &frame[end..]) else { return false };
    rest.len() >= TAG_LEN && rest[Seal::PLAIN_LEN..].iter().any(|byte| *byte != 0)
}

/// Adds the expected fields of `frame`, which has no 802.1Q tag, to `row`.
pub fn describe(row: &mut Row, frame: &[u8], sealed: bool) {
    let mut put = |name: &str, value: String| {
        row.insert(format!("cxloe.{name}"), value);
    };
    let parsed = Message::parse(frame);
    if let Err(error) = &parsed {
        put(name_of(error), "1".into());
    }
    let Some(header) = Header::parse(frame) else { return };
    put("command", format!("{:#04x}", header.command));
    put("seq", header.seq.to_string());
    put("stream", header.axi.stream.to_string());
    put("tag", header.axi.tag.to_string());
    put("address", format!("{:#018x}", header.addr));
    let Ok(end) = body_len(frame) else {
        if frame.len() > HEADER_LEN {
            put("unknown", hex(&frame[HEADER_LEN..]));
        }
        return;
    };
    let payload = &frame[HEADER_LEN..end];
    let is_echo = matches!(header.command, 0x70 | 0xf0);
    let rest = &frame[end..];
    let trailer = match (is_echo, sealed) {
        (true, _) => 0,
        (_, true) => TAG_LEN,
        _ => Seal::PLAIN_LEN,
    };
    let (trailer, padding) = rest.split_at(trailer.min(rest.len()));
    match trailer.len() {
        0 => {}
        Seal::PLAIN_LEN if !sealed => put("trailer.crc", format!("0x{}", hex(trailer))),
        TAG_LEN => put("trailer.tag", hex(trailer)),
        // The frame ends within the trailer.
        _ => put("unknown", hex(trailer)),
    }
    let padding = match trailer.len() {
        Seal::PLAIN_LEN if !sealed => padding.get(keyed_len(header.command, payload)..).unwrap_or(padding),
        // If all bytes behind the tag are zero, they are padding, and the frame has no counter.
        TAG_LEN if padding.len() >= COUNTER_LEN && padding.iter().any(|byte| *byte != 0) => {
            let (counter, padding) = padding.split_at(COUNTER_LEN);
            put(
                "trailer.counter",
                counter.iter().fold(0_u64, |all, byte| all << 8 | u64::from(*byte)).to_string(),
            );
            padding
        }
        _ => padding,
    };
    if !padding.is_empty() {
        put("padding", hex(padding));
    }

    let clear = if sealed { clear_len(header.command) - HEADER_LEN } else { payload.len() };
    if clear < payload.len() {
        put("sealed", hex(&payload[clear..]));
    }
    describe_clear(&mut put, header.command, &payload[..clear.min(payload.len())]);
}

/// Number of bytes in a handshake frame that follow the checksum and are read only by peers with keys.
fn keyed_len(command: u8, payload: &[u8]) -> usize {
    match command {
        0x10 if payload.starts_with(&[0, 2]) => 108 + 16 + 16,
        0x90 if payload[4] == 9 => 12 + 16 + 16,
        0x90 => 48 + 16,
        _ => 0,
    }
}

/// Adds the fields of the payload of a frame whose length is known, even if its content is invalid.
fn describe_clear(put: &mut dyn FnMut(&str, String), command: u8, payload: &[u8]) {
    if payload.is_empty() {
        return;
    }
    let u16_at = |at: usize| u16::from_be_bytes([payload[at], payload[at + 1]]);
    let lines = |put: &mut dyn FnMut(&str, String), from: usize| {
        let lines: Vec<String> = payload[from..].chunks_exact(LINE_SIZE).map(hex).collect();
        if !lines.is_empty() {
            put("line", lines.join("|"));
        }
    };
    match command {
        0x02 | 0x81 => lines(put, 0),
        0x05 | 0x06 => {
            put("lines", payload[0].to_string());
            // In a sealed frame only the count is readable: the other addresses are encrypted, and not in `payload`.
            let others = usize::from(payload[0]).saturating_sub(1) * ADDRESS_LEN;
            let others = payload[1..].get(..others).unwrap_or_default();
            let shown: Vec<String> =
                others.as_chunks().0.iter().map(|bytes| format!("{:#018x}", address_of(bytes))).collect();
            if !shown.is_empty() {
                put("other_address", shown.join("|"));
            }
            lines(put, 1 + others.len());
        }
        0x03 | 0x86 | 0x88 | 0x89 => {
            put("lines", payload[0].to_string());
            lines(put, 1);
        }
        0x04 => {
            put("mask", format!("0x{}", hex(&payload[..8])));
            lines(put, 8);
        }
        0x10 => {
            let hello = Hello::parse(payload.first_chunk().expect("its length"));
            put("hello.version", hello.version.to_string());
            put("hello.integrity", u8::from(hello.integrity).to_string());
            put("hello.streams", hello.streams.to_string());
            put("hello.features", format!("{:#010x}", hello.features));
            put("hello.nonce", format!("{:#018x}", hello.nonce));
            put("hello.instance", format!("{:#018x}", hello.instance));
            put("hello.max_frame", hello.max_frame.to_string());
            put("hello.shard", hello.shard.to_string());
            put("hello.owner", hello.owner.to_string());
            put("hello.reserved", hex(&payload[33..]));
        }
        0x90 => {
            let ack = HelloAck::parse(payload.first_chunk().expect("its length"));
            put("hello_ack.version_min", ack.version_min.to_string());
            put("hello_ack.version_max", ack.version_max.to_string());
            put("hello_ack.status", u8::from(ack.status).to_string());
            put("hello_ack.integrity", u8::from(ack.integrity).to_string());
            put("hello_ack.window", ack.window.to_string());
            put("hello_ack.hello_nonce", format!("{:#018x}", ack.hello_nonce));
            put("hello_ack.session", format!("{:#018x}", ack.session));
            put("hello_ack.nonce", format!("{:#018x}", ack.nonce));
            put("hello_ack.incarnation", format!("{:#018x}", ack.incarnation));
            put("hello_ack.features", format!("{:#010x}", ack.features));
            put("hello_ack.max_frame", ack.max_frame.to_string());
            put("hello_ack.streams", ack.streams.to_string());
            put("hello_ack.reserved", hex(&payload[47..]));
        }
        0x83 | 0x84 => {
            put("sack.last_in_order", u16_at(0).to_string());
            if command == 0x84 {
                put("sack.acked_seq", u16_at(2).to_string());
                put("sack.acked_stream", payload[4].to_string());
                put("sack.acked_tag", payload[5].to_string());
            }
        }
        0x85 => {
            let vector = PfcVector::parse(payload.first_chunk().expect("its length"));
            put("congestion.classes", format!("{:#06x}", u16_at(0)));
            put("congestion.quanta", vector.quanta.map(|quanta| quanta.to_string()).join("|"));
        }
        0x87 => put("fault.status", payload[0].to_string()),
        0x70 => {
            put("echo.reply_len", u16_at(0).to_string());
            put("echo.reply_count", u16_at(2).to_string());
        }
        0xf0 => put("echo.index", u16_at(0).to_string()),
        _ => unreachable!("command {command:#x} has no payload"),
    }
}

fn name_of(error: &FrameError) -> &'static str {
    match error {
        FrameError::Truncated { .. } => "truncated",
        FrameError::Undelimited { .. } => "undelimited",
        FrameError::UnknownRequest { .. } => "unknown_request",
        FrameError::Unaligned { .. } => "unaligned",
        FrameError::LineCount { .. } => "line_count",
        FrameError::MultiCount { .. } => "multi_count",
        FrameError::EmptyMask => "empty_mask",
        FrameError::LeavesPage { .. } => "leaves_page",
    }
}

/// Bytes as tshark displays them.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
