//! Properties of a memory node's end for any frames from CNs, in any order and at any times.
//!
//! The input is a list of steps. Some steps send raw bytes. Most build a frame with a correct checksum but arbitrary
//! content: command, stream, number, address and payload come from the input, under the seal of a session that was
//! really agreed on, because a fuzzer cannot guess a valid checksum. After each step these properties are checked:
//!
//! * every memory access is for whole lines of one page, by a CN with a session;
//! * requests of a stream are executed in order, each once (R2); requests whose address encodes their session, stream
//!   and number are counted in the memory;
//! * requests that wait for a transmit slot are executed once there is one;
//! * every frame sent is a frame of the protocol, to the right CN, under a seal of that CN;
//! * sessions and buffers stay within their limits.

use std::collections::HashMap;
use std::time::Duration;

use cxloe_wire::Transmit;
use cxloe_wire::frame::*;
use cxloe_wire::session::{Memory, Responder, ResponderConfig, infer};
use cxloe_wire::time::Time;

const MN: Mac = Mac([2, 0, 0, 0, 0, 0xff]);
const KEY: &[u8] = b"a key of sixteen bytes at least";
const MAX_FRAME: usize = 1514;
const SESSIONS_MAX: usize = 3;
const EARLY_BUFFERS: usize = 4;
const EARLY_BUFFERS_TOTAL: usize = 5;
/// Number of CNs. The last one has no memory on the memory node; the last but one is refused sessions.
const CNS: u8 = 6;
/// Flag in an address: the address encodes the session, the stream and the number of its request.
const NAMED: u64 = 1 << 47;

fn mac(cn: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, cn])
}

/// Reads an input field by field; bytes beyond its end are 0.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn u8(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.u8(), self.u8()])
    }

    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// Transmit ring whose number of slots is set by the input.
#[derive(Default)]
struct Ring {
    frames: Vec<Vec<u8>>,
    slot: Vec<u8>,
    room: usize,
}

impl Transmit for Ring {
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.frames.len() >= self.room || len > MAX_FRAME {
            return None;
        }
        // Filled with a marker: a frame that does not overwrite its whole slot would send earlier content.
        self.slot = vec![0xee; len];
        Some(&mut self.slot)
    }

    fn commit(&mut self) {
        if !self.slot.is_empty() {
            self.frames.push(std::mem::take(&mut self.slot));
        }
    }
}

/// Memory of the node under test. If the address of a request encodes its session, stream and number, records the
/// number as that of the last request executed in the stream.
#[derive(Default)]
struct Pages {
    executed: HashMap<(u64, u64), u64>,
    refuse: bool,
}

impl Memory for Pages {
    fn read(&mut self, cn: u64, addr: u64, out: &mut [u8]) -> Result<(), FaultStatus> {
        check_span(addr, out.len() / LINE_SIZE);
        assert_eq!(out.len() % LINE_SIZE, 0);
        assert!(self.admits(cn));
        out.fill(7);
        if self.refuse { Err(FaultStatus::Nxm) } else { Ok(()) }
    }

    fn write(&mut self, cn: u64, addr: u64, mask: u64, data: &[u8]) -> Result<(), FaultStatus> {
        assert_ne!(mask, 0);
        assert_eq!(data.len(), mask.count_ones() as usize * LINE_SIZE);
        check_span(addr, 64 - mask.leading_zeros() as usize);
        assert!(self.admits(cn));
        if addr & NAMED != 0 {
            let (stream, seq) = (addr >> 28, addr >> 12 & 0xffff);
            let last = self.executed.insert((cn, stream), seq);
            assert!(last.is_none_or(|last| last < seq), "request {seq} of {stream:#x} after {last:?}");
        }
        if self.refuse { Err(FaultStatus::Denied) } else { Ok(()) }
    }

    fn admits(&mut self, cn: u64) -> bool {
        cn != mac(CNS - 2).to_u64()
    }

    fn has_memory(&mut self, cn: u64) -> bool {
        cn != mac(CNS - 1).to_u64()
    }
}

fn check_span(addr: u64, lines: usize) {
    assert_eq!(addr % LINE_SIZE as u64, 0);
    assert!((1..=BURST_LINES_MAX).contains(&lines));
    assert!(burst_fits_page(addr, lines - 1), "{lines} lines from {addr:#x}");
}

/// Session that a CN has agreed on, with the CN's part of the state.
struct Agreed {
    session: u64,
    seal: Seal,
    /// Number of the session, counted over all CNs.
    name: u64,
    control: u64,
    next: [u64; 4],
}

/// State of a CN: the Hello that it sent last, and the sessions that the memory node has offered to it.
#[derive(Default)]
struct Cn {
    hello: Option<Hello>,
    agreed: Vec<Agreed>,
}

struct World {
    responder: Responder,
    memory: Pages,
    ring: Ring,
    now: Time,
    sealed: bool,
    cns: Vec<Cn>,
    offers: u64,
    /// Last frame sent to the memory node, so that it can be repeated.
    last: Vec<u8>,
}

/// Runs the steps of an input and checks the properties after each.
pub fn responder(data: &[u8]) {
    let mut input = Input(data);
    let sealed = input.u8() & 1 == 1;
    let config = ResponderConfig {
        sessions_max: SESSIONS_MAX,
        guests_max: 1,
        streams_max: 4,
        early_buffers: EARLY_BUFFERS,
        early_buffers_total: EARLY_BUFFERS_TOTAL,
        key: sealed.then(|| KEY.into()),
        ..ResponderConfig::new(MN, MAX_FRAME, 1, 2)
    };
    let mut world = World {
        responder: Responder::new(config),
        memory: Pages::default(),
        ring: Ring { room: 64, ..Ring::default() },
        now: Time(1),
        sealed,
        cns: (0..CNS).map(|_| Cn::default()).collect(),
        offers: 0,
        last: Vec::new(),
    };
    while !input.0.is_empty() {
        world.step(&mut input);
        world.check();
    }
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        let (step, cn) = (input.u8(), input.u8() % CNS);
        match step % 12 {
            0 => self.hello(cn, input),
            1 => self.start(cn, input.u8()),
            2 | 3 => self.write(cn, input),
            4 | 5 => self.anything(cn, input),
            6 => self.control(cn, input),
            7 => {
                let len = usize::from(input.u16()) % (MAX_FRAME + 1);
                let frame = input.bytes(len).to_vec();
                self.deliver(frame);
            }
            8 => {
                // Sends the last frame again, perhaps damaged.
                let (at, change) = (usize::from(input.u16()), input.u8());
                let mut frame = self.last.clone();
                if let Some(byte) = frame.get_mut(at) {
                    *byte ^= change;
                }
                self.deliver(frame);
            }
            9 => {
                self.now = self.now + Duration::from_millis(input.u16().into());
                self.poll();
            }
            10 => {
                self.ring.room = usize::from(input.u8() % 8);
                self.memory.refuse = input.u8() & 1 == 1;
            }
            _ => self.command(input),
        }
        if step & 0x80 == 0 || (step & 0x40 == 0 && self.responder.is_stalled()) {
            self.poll();
        }
    }

    /// Ends a batch. Requests that wait for a transmit slot must be executed until no slot is left.
    fn poll(&mut self) {
        let before = self.ring.frames.len();
        self.responder.poll(self.now, &mut self.memory, &mut self.ring);
        let is_full = self.ring.frames.len() >= self.ring.room;
        assert!(is_full || !self.responder.is_stalled(), "{before} frames before, room for more");
    }

    fn command(&mut self, input: &mut Input<'_>) {
        let ring = &mut self.ring;
        match input.u8() % 6 {
            0 => self.responder.set_max_frame(usize::from(input.u16()).min(MAX_FRAME)),
            1 => drop(self.responder.dismiss_outgrown(ring)),
            2 => drop(self.responder.congested(&PfcVector::parse(&[1; PfcVector::LEN]), Time::ZERO, ring)),
            3 => self.responder.drain(ring),
            _ => self.ring.room = 64,
        }
    }

    fn hello(&mut self, cn: u8, input: &mut Input<'_>) {
        let release = input.u8();
        let hello = Hello {
            version: if release < 200 { PROTOCOL_VERSION } else { input.u16() },
            features: if release < 150 { FEATURES } else { 0 },
            nonce: input.u8().into(),
            instance: (input.u8() % 3).into(),
            streams: input.u8() % 8,
            max_frame: if input.u8() < 128 { MAX_FRAME as u16 } else { input.u16() },
            integrity: if self.sealed { Integrity::Aead } else { Integrity::Plain },
            shard: input.u8() % 4 / 3 * 5,
            owner: mac(input.u8() % 4),
        };
        self.cns[usize::from(cn)].hello = Some(hello);
        let frame = frame(cn, 0, 0, 0, Some(&Message::Hello(hello)), 0, &[], &Seal::OUTSIDE, Space::Control);
        self.deliver(frame);
    }

    /// Sends a Start for a session that the memory node has offered: in its last offer, or in an earlier one.
    fn start(&mut self, cn: u8, back: u8) {
        let Some(agreed) = self.agreed(cn, back) else { return };
        agreed.control += 1;
        let frame =
            frame(cn, agreed.control, 0, 0, Some(&Message::Start), 0, &[], &agreed.seal, Space::Control);
        self.deliver(frame);
    }

    fn agreed(&mut self, cn: u8, back: u8) -> Option<&mut Agreed> {
        self.cns[usize::from(cn)].agreed.iter_mut().rev().nth(usize::from(back % 3))
    }

    /// Sends a write, or many, with an address that encodes session, stream and number; a repetition has the
    /// same address.
    fn write(&mut self, cn: u8, input: &mut Input<'_>) {
        let (stream, ahead) = (input.u8(), input.u8());
        if stream >= 128 {
            return self.write_many(cn, stream % 4, ahead, 2 + u64::from(input.u8()) % 24);
        }
        let stream = stream % 4;
        let Some(agreed) = self.agreed(cn, 0) else { return };
        let next = &mut agreed.next[usize::from(stream)];
        // Usually the next number, sometimes an earlier or later one.
        let seq = match ahead {
            0..128 => {
                *next += 1;
                *next
            }
            _ => (*next + 200).saturating_sub(ahead.into()).max(1),
        };
        if seq > 0xffff {
            return;
        }
        let addr = NAMED | (agreed.name % 0x1000) << 34 | u64::from(stream) << 28 | seq << 12;
        let frame = frame(
            cn,
            seq,
            stream,
            addr,
            Some(&Message::WriteReq { data: &[seq as u8; LINE_SIZE] }),
            0,
            &[],
            &agreed.seal,
            Space::Stream(stream),
        );
        self.deliver(frame);
    }

    /// Sends many writes in one frame, with addresses that encode session, stream and numbers; usually the
    /// next numbers.
    fn write_many(&mut self, cn: u8, stream: u8, ahead: u8, lines: u64) {
        let Some(agreed) = self.agreed(cn, 0) else { return };
        let next = &mut agreed.next[usize::from(stream)];
        let first = match ahead {
            0..128 => *next + 1,
            _ => (*next + 200).saturating_sub(ahead.into()).max(1),
        };
        if first + lines > 0xffff {
            return;
        }
        if ahead < 128 {
            *next += lines;
        }
        let name = NAMED | (agreed.name % 0x1000) << 34 | u64::from(stream) << 28;
        let others: Vec<_> = (first + 1..first + lines).map(|seq| address_bytes(name | seq << 12)).collect();
        let data: Vec<_> = (first..first + lines).map(|seq| [seq as u8; LINE_SIZE]).collect();
        let frame = frame(
            cn,
            first,
            stream,
            name | first << 12,
            Some(&Message::MultiWriteReq { others: &others, data: &data }),
            0,
            &[],
            &agreed.seal,
            Space::Stream(stream),
        );
        self.deliver(frame);
    }

    /// Sends any command with any payload under a genuine seal.
    fn anything(&mut self, cn: u8, input: &mut Input<'_>) {
        let (code, stream, ahead) = (input.u8(), input.u8() % 5, input.u16());
        let addr = u64::from(input.u16()) << 3;
        let len = usize::from(input.u8()) * 8;
        let payload = input.bytes(len);
        let Some(agreed) = self.agreed(cn, 0) else { return };
        let next = agreed.next.get(usize::from(stream)).copied().unwrap_or(0);
        let seq = (next + u64::from(ahead)).saturating_sub(0x100);
        let frame = frame(cn, seq, stream, addr, None, code, payload, &agreed.seal, Space::Stream(stream));
        self.deliver(frame);
    }

    fn control(&mut self, cn: u8, input: &mut Input<'_>) {
        let (which, back, ahead) = (input.u8(), input.u8(), input.u8());
        let message = match which % 6 {
            0 => Message::Ping,
            1 => Message::Pong,
            2 => Message::Bye,
            3 => Message::ByeAck,
            4 => Message::StartAck,
            _ => Message::Echo { reply_len: 60, reply_count: 9 },
        };
        let Some(agreed) = self.agreed(cn, back) else { return };
        agreed.control += u64::from(ahead % 4);
        let frame = frame(cn, agreed.control, 0, 0, Some(&message), 0, &[], &agreed.seal, Space::Control);
        self.deliver(frame);
    }

    fn deliver(&mut self, frame: Vec<u8>) {
        self.last.clone_from(&frame);
        let mut frame = frame;
        self.responder.handle(&mut frame, self.now, &mut self.memory, &mut self.ring);
    }

    /// Checks the properties that must always hold, and removes the frames sent.
    fn check(&mut self) {
        let statuses = self.responder.statuses(self.now);
        assert_eq!(statuses.len(), self.responder.sessions());
        assert!(statuses.len() <= SESSIONS_MAX);
        assert!(!self.responder.has_session(mac(CNS - 2)), "it is not admitted");
        assert!(statuses.iter().all(|session| session.buffered <= EARLY_BUFFERS));
        assert!(statuses.iter().map(|session| session.buffered).sum::<usize>() <= EARLY_BUFFERS_TOTAL);
        for event in std::iter::from_fn(|| self.responder.poll_event()) {
            assert!(!format!("{event:?}").is_empty());
        }
        for mut frame in std::mem::take(&mut self.ring.frames) {
            self.check_sent(&mut frame);
        }
    }

    fn check_sent(&mut self, frame: &mut [u8]) {
        let mut view = FrameView::new_checked(&mut *frame).expect("what is sent is delimited");
        let command = view.command().expect("what is sent is of the protocol");
        assert_eq!(view.src(), MN);
        let cn = (0..CNS).find(|cn| mac(*cn) == view.dst()).expect("it is for a CN");
        if command == Command::HelloAck {
            assert!(view.open(&Seal::OUTSIDE, Direction::ToCn, Space::Control, 0));
            let Ok(Message::HelloAck(ack)) = view.message() else { panic!("a HelloAck") };
            self.offered(cn, &ack);
            return;
        }
        let (space, low) = (view.space().expect("a frame of a session"), view.seq());
        let opens = self.cns[usize::from(cn)].agreed.iter().any(|agreed| {
            let near = match space {
                Space::Stream(stream) => agreed.next.get(usize::from(stream)).copied().unwrap_or(0),
                Space::Control => 0,
            };
            let mut copy = frame.to_vec();
            let mut copy = FrameView::new_checked(&mut copy[..]).expect("as before");
            copy.open(&agreed.seal, Direction::ToCn, space, infer(near, low)) && copy.message().is_ok()
        });
        assert!(opens, "no session of this CN opens {command:?} {low}");
    }

    fn offered(&mut self, cn: u8, ack: &HelloAck) {
        let known = &mut self.cns[usize::from(cn)];
        let Some(hello) = known.hello.filter(|_| ack.status == HelloStatus::Ok) else { return };
        assert!(ack.streams <= hello.streams.min(4) && ack.max_frame <= hello.max_frame);
        if ack.hello_nonce != hello.nonce || known.agreed.iter().any(|agreed| agreed.session == ack.session) {
            return;
        }
        let seal = if self.sealed {
            let aead = Aead::derive(KEY, mac(cn), MN, &hello, ack).expect("the key is long enough");
            Seal::Aead(aead)
        } else {
            Seal::Plain { session: ack.session }
        };
        self.offers += 1;
        known.agreed.push(Agreed { session: ack.session, seal, name: self.offers, control: 0, next: [0; 4] });
    }
}

/// Makes a sealed frame from a message, or from a code and a payload.
#[allow(clippy::too_many_arguments, reason = "the parts of a frame")]
fn frame(
    cn: u8,
    seq: u64,
    stream: u8,
    addr: u64,
    message: Option<&Message<'_>>,
    code: u8,
    payload: &[u8],
    seal: &Seal,
    space: Space,
) -> Vec<u8> {
    let header = Header {
        dst: MN,
        src: mac(cn),
        ethertype: ETHERTYPE_DEFAULT,
        command: code,
        seq: seq as u16,
        axi: Axi { stream, tag: seq as u8 },
        addr,
    };
    let body = message.map_or(HEADER_LEN + payload.len(), Message::body_len).max(clear_len(code));
    let mut bytes = vec![0; frame_len(body, seal.len())];
    match message {
        Some(message) => message.emit(&header, &mut bytes),
        None => {
            header.emit(&mut bytes);
            bytes[HEADER_LEN..HEADER_LEN + payload.len()].copy_from_slice(payload);
        }
    }
    // Offset at which the responder will expect the trailer, if the command determines it.
    let body = body_len(&bytes).map_or(body, |end| end.min(bytes.len() - seal.len()));
    seal.seal(Direction::ToMn, space, &mut bytes, body, seq);
    bytes
}
