//! Related frames of a capture, found with the session code of `cxloe_wire`: [`Seal`] checks whether a frame is
//! genuine, and full sequence numbers (R11) relate answers to requests.

use std::collections::BTreeMap;
use std::time::Duration;

use cxloe_wire::frame::{
    Command, Direction, FEATURE_LONG_BURSTS, HEADER_LEN, Header, HelloStatus, Integrity, MULTI_LINES_MAX,
    MULTI_LINES_MIN, Mac, Message, Seal, Space, body_len, burst_read_lines_max, long_burst_parts,
};

use super::decoder;
use super::tshark::Row;

/// Fields that depend on earlier and later frames.
pub const FIELDS: [&str; 13] = [
    "cxloe.direction",
    "cxloe.session",
    "cxloe.seq.full",
    "cxloe.trailer.status",
    "cxloe.first_in",
    "cxloe.sack_of",
    "cxloe.acked_in",
    "cxloe.response_to",
    "cxloe.response_in",
    "cxloe.response_time",
    "cxloe.bad_trailer",
    "cxloe.sent_again",
    "cxloe.gap",
];

const BAD: u8 = 0;
const GOOD: u8 = 1;
const UNVERIFIED: u8 = 2;
/// Command of the frame with which a new session becomes valid.
const START: u8 = Command::Start as u8;

/// Time of a request's first transmission, and number of the frame that answers it.
struct Asked {
    number: usize,
    time: Duration,
    answered: Option<usize>,
}

#[derive(Default)]
struct Stream {
    highest: Option<u64>,
    requests: BTreeMap<u64, Asked>,
}

#[derive(Default)]
struct Session {
    id: Option<u64>,
    sealed: Option<bool>,
    /// Number of lines per answer, if burst reads may have several answers.
    burst: usize,
    streams: BTreeMap<u8, Stream>,
    control: [Option<u64>; 2],
    /// Start, Ping and Bye frames without an answer so far, by command and direction.
    asked: BTreeMap<(u8, u8), Asked>,
}

impl Session {
    fn stream(&mut self, number: u8) -> &mut Stream {
        let highest = self.id.map(|_| 0);
        self.streams.entry(number).or_insert_with(|| Stream { highest, requests: BTreeMap::new() })
    }
}

#[derive(Default)]
struct Peer {
    /// Valid sessions of the peer: the current one first, then the previous one.
    sessions: Vec<Session>,
    pending: Option<Session>,
    hellos: BTreeMap<u64, Asked>,
}

/// Follows the sessions of a capture, frame by frame.
#[derive(Default)]
pub struct Follower {
    peers: BTreeMap<(Mac, Mac), Peer>,
    /// Number of the frame that answers each request, recorded when that frame is reached.
    answered: BTreeMap<usize, usize>,
}

/// Expected fields of one frame that depend on the frames before it.
pub struct Followed {
    pub row: Row,
    pub sealed: bool,
    pub command: Option<Command>,
}

impl Followed {
    fn put(&mut self, name: &str, value: impl ToString) {
        self.row.insert(format!("cxloe.{name}"), value.to_string());
    }

    fn again(&mut self, first: usize) {
        self.put("first_in", first);
        self.put("sent_again", 1);
    }

    fn status(&mut self, status: u8) {
        self.put("trailer.status", status);
        if status == BAD {
            self.put("bad_trailer", 1);
        }
    }
}

impl Follower {
    /// Processes frame `number`; returns `None` if the frame does not belong to the protocol.
    pub fn follow(&mut self, number: usize, time: Duration, frame: &[u8]) -> Option<Followed> {
        if frame.get(12..14) != Some(&[0x88, 0xb5]) {
            return None;
        }
        let code = frame.get(14).copied().unwrap_or_default();
        let command = Command::from_u8(code);
        let mut out = Followed { row: Row::new(), sealed: false, command };
        let (Some(header), Ok(end)) = (Header::parse(frame), body_len(frame)) else { return Some(out) };
        if matches!(command, Some(Command::Echo | Command::EchoReply)) {
            out.put("direction", code >> 7);
            return Some(out);
        }
        let (ends, direction) = self.ends(&header);
        out.put("direction", direction as u8);
        let peer = self.peers.entry(ends).or_default();
        if matches!(command, Some(Command::Hello | Command::HelloAck)) {
            let mut copy = frame.to_vec();
            let good = Seal::OUTSIDE.open(direction, Space::Control, &mut copy, end, 0);
            out.status(if good { GOOD } else { BAD });
            if good {
                handshake(peer, number, time, frame, &mut out, &mut self.answered);
            }
            return Some(out);
        }

        let control = command.is_some_and(|c| c.space(0) == Some(Space::Control));
        let space = if control { Space::Control } else { Space::Stream(header.axi.stream) };
        // The capture began during a session: the session's id is unknown, so its frames cannot be verified.
        if peer.sessions.is_empty() && !(code == START && peer.pending.is_some()) {
            peer.sessions.push(Session::default());
        }
        let pending = peer.pending.as_mut().filter(|_| code == START);
        let starts = pending.is_some();
        let mut found = None;
        for (index, session) in pending.into_iter().chain(peer.sessions.iter_mut()).enumerate() {
            let near = match space {
                Space::Control => session.control[direction as usize],
                Space::Stream(stream) => session.stream(stream).highest,
            };
            let full = infer(near, header.seq);
            let sealed = session.sealed.unwrap_or_else(|| decoder::may_be_sealed(frame));
            let whole = frame.len() >= end + if sealed { 16 } else { Seal::PLAIN_LEN };
            let status = match session.id {
                _ if !whole => BAD,
                Some(session) if !sealed => {
                    let mut copy = frame.to_vec();
                    u8::from(Seal::Plain { session }.open(direction, space, &mut copy, end, full))
                }
                _ => UNVERIFIED,
            };
            if found.is_none() || status != BAD {
                found = Some((index, full, sealed, status));
            }
            if status != BAD {
                break;
            }
        }
        let (index, full, sealed, status) = found?;
        out.sealed = sealed;
        out.status(status);
        let is_sack = matches!(command, Some(Command::SackNak | Command::SackNakAck));
        if is_sack && !sealed {
            out.put("gap", 1);
        }
        if status == BAD {
            return Some(out);
        }
        if starts && index == 0 {
            let session = peer.pending.take()?;
            peer.sessions.insert(0, session);
            peer.sessions.truncate(2);
        }
        let session = &mut peer.sessions[if starts { index.saturating_sub(1) } else { index }];
        out.put("seq.full", full);
        if let Some(id) = session.id {
            out.put("session", format!("{id:#018x}"));
        }
        if control {
            let heard = &mut session.control[direction as usize];
            *heard = Some(heard.unwrap_or(0).max(full));
            if let 0x11..=0x13 = code {
                session.asked.insert((code, direction as u8), Asked { number, time, answered: None });
            } else if let 0x91..=0x93 = code
                && let Some(asked) = session.asked.remove(&(code & 0x7f, 1 - direction as u8))
            {
                out.put("response_to", asked.number);
                out.put("response_time", seconds(time - asked.time));
                self.answered.insert(asked.number, number);
            }
            return Some(out);
        }
        // The fields of a frame with many requests are those of its first request.
        let others = full + 1..full + numbers(command, frame, session.burst);
        let stream = session.stream(header.axi.stream);
        if code < 0x80 {
            if let Some(known) = stream.requests.get(&full) {
                out.again(known.number);
            }
            for full in (full..full + 1).chain(others) {
                stream.requests.entry(full).or_insert(Asked { number, time, answered: None });
                stream.highest = stream.highest.max(Some(full));
            }
        } else if is_sack {
            if let Some(early) = stream.requests.get(&full) {
                out.put("sack_of", early.number);
            }
            if let Ok((_, Message::SackNakAck { acked_seq, acked_axi, .. })) = Message::parse(frame)
                && !sealed
            {
                let stream = session.stream(acked_axi.stream);
                let acked = infer(stream.highest, acked_seq);
                if let Some(write) = stream.requests.get_mut(&acked) {
                    out.put("acked_in", write.number);
                    if write.answered.is_none() {
                        write.answered = Some(number);
                        out.put("response_time", seconds(time - write.time));
                        self.answered.insert(write.number, number);
                    }
                }
            }
        } else {
            if let Some(asked) = stream.requests.get_mut(&full) {
                out.put("response_to", asked.number);
                match asked.answered {
                    Some(before) => out.again(before),
                    None => {
                        asked.answered = Some(number);
                        out.put("response_time", seconds(time - asked.time));
                        self.answered.insert(asked.number, number);
                    }
                }
            }
            for full in others {
                if let Some(asked) = stream.requests.get_mut(&full).filter(|asked| asked.answered.is_none()) {
                    asked.answered = Some(number);
                    self.answered.insert(asked.number, number);
                }
            }
        }
        Some(out)
    }

    /// CN and MN of a frame, and its direction. Ping, Bye and their answers occur in both directions.
    fn ends(&self, header: &Header) -> ((Mac, Mac), Direction) {
        let (from, to) = ((header.src, header.dst), (header.dst, header.src));
        let agreed = |ends| {
            let peer: Option<&Peer> = self.peers.get(&ends);
            peer.is_some_and(|p| p.sessions.first().is_some_and(|s| s.id.is_some()))
        };
        let mut to_mn = header.command < 0x80;
        if matches!(header.command & 0x7f, 0x11 | 0x12) {
            to_mn = agreed(from) || (to_mn && !agreed(to));
        }
        if to_mn { (from, Direction::ToMn) } else { (to, Direction::ToCn) }
    }

    /// Adds to each request in `rows` the number of the frame that answers it. tshark shows that number only
    /// when it reads the file in two passes.
    pub fn link(&self, rows: &mut [Row]) {
        for (asked, answer) in &self.answered {
            rows[asked - 1].insert("cxloe.response_in".into(), answer.to_string());
        }
    }
}

/// Number of sequence numbers that a frame uses: one, unless the frame carries many requests or is a valid burst read
/// with several answers of `burst` lines.
fn numbers(command: Option<Command>, frame: &[u8], burst: usize) -> u64 {
    use Command::{MultiReadReq, MultiReadResp, MultiWriteReq, MultiWriteResp};
    match command {
        Some(MultiReadReq | MultiWriteReq | MultiReadResp | MultiWriteResp) => {
            let count = usize::from(frame[HEADER_LEN]);
            if (MULTI_LINES_MIN..=MULTI_LINES_MAX).contains(&count) { count as u64 } else { 1 }
        }
        Some(Command::BurstReadReq) if burst > 0 => match Message::parse(frame) {
            Ok((header, Message::BurstReadReq { lines })) => {
                long_burst_parts(header.addr, lines, burst).count() as u64
            }
            _ => 1,
        },
        _ => 1,
    }
}

fn handshake(
    peer: &mut Peer,
    number: usize,
    time: Duration,
    frame: &[u8],
    out: &mut Followed,
    answered: &mut BTreeMap<usize, usize>,
) {
    match Message::parse(frame) {
        Ok((_, Message::Hello(hello))) => match peer.hellos.get(&hello.nonce) {
            Some(known) => out.again(known.number),
            None => drop(peer.hellos.insert(hello.nonce, Asked { number, time, answered: None })),
        },
        Ok((_, Message::HelloAck(ack))) => {
            if let Some(hello) = peer.hellos.get_mut(&ack.hello_nonce) {
                out.put("response_to", hello.number);
                out.put("response_time", seconds(time - hello.time));
                let first = *hello.answered.get_or_insert(number);
                answered.insert(hello.number, first);
            }
            let known = peer.pending.iter().chain(peer.sessions.first()).any(|s| s.id == Some(ack.session));
            if ack.status == HelloStatus::Ok && !known {
                let sealed = Some(ack.integrity == Integrity::Aead);
                let control = [Some(0); 2];
                let trailer = if sealed == Some(true) { 16 } else { Seal::PLAIN_LEN };
                let long = ack.features & FEATURE_LONG_BURSTS != 0;
                let burst = if long { burst_read_lines_max(ack.max_frame.into(), trailer) } else { 0 };
                peer.pending =
                    Some(Session { id: Some(ack.session), sealed, burst, control, ..Session::default() });
            }
        }
        _ => {}
    }
}

/// Number nearest to `near` whose low 16 bits are `low`.
fn infer(near: Option<u64>, low: u16) -> u64 {
    let Some(near) = near else { return u64::from(low) };
    let ahead = low.wrapping_sub(near as u16);
    near.checked_add_signed(i64::from(ahead.cast_signed())).unwrap_or(near + u64::from(ahead))
}

/// A time as tshark displays it.
fn seconds(time: Duration) -> String {
    format!("{}.{:09}", time.as_secs(), time.subsec_nanos())
}
