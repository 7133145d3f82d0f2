//! Two ends of a session, between which the test carries frames by hand.
//!
//! [`Pair`] has a requester, a responder with its memory, and the frames that each has sent and that are not
//! delivered yet. A test takes frames out, loses, repeats or forges some, delivers the others, and advances
//! the time.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::HashMap;
use std::time::Duration;

use cxloe_wire::Transmit;
use cxloe_wire::frame::{
    Axi, Command, Direction, ETHERTYPE_DEFAULT, FEATURE_JOINT_ACKS, FEATURES, FaultStatus, Header, HelloAck,
    HelloStatus, LINE_SIZE, Mac, Message, PublicKey, Seal, Space, frame_len,
};
use cxloe_wire::machine::StateMachine;
use cxloe_wire::session::{
    Completions, Identity, Memory, OpError, Requester, RequesterConfig, Responder, ResponderConfig,
    ResponderEvent, SessionEvent, Timing,
};
use cxloe_wire::time::Time;

pub const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const MN: Mac = Mac([2, 0, 0, 0, 0, 2]);
pub const MAX_FRAME: usize = 1514;
pub const US: Duration = Duration::from_micros(1);
pub const MS: Duration = Duration::from_millis(1);

/// Transmit ring whose frames stay until the test takes them.
#[derive(Default)]
pub struct Sent {
    pub frames: Vec<Vec<u8>>,
    slot: Vec<u8>,
    lent: bool,
    /// Number of free slots in the ring; `None` for no limit.
    pub room: Option<usize>,
    /// Maximum length of a frame for which a slot is lent; `None` for no limit.
    pub len_max: Option<usize>,
}

impl Transmit for Sent {
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.room == Some(0) || self.len_max.is_some_and(|max| len > max) {
            return None;
        }
        // Earlier content of a slot must not matter.
        self.slot.clear();
        self.slot.resize(len, 0xEE);
        self.lent = true;
        Some(&mut self.slot)
    }

    fn commit(&mut self) {
        if std::mem::take(&mut self.lent) {
            self.frames.push(self.slot.clone());
            self.room = self.room.map(|room| room - 1);
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Executed {
    Read(u64),
    Write(u64, u8),
}

/// Memory that records each access. Lines from [`TestMemory::END`] on do not exist.
#[derive(Default)]
pub struct TestMemory {
    pub lines: HashMap<u64, [u8; LINE_SIZE]>,
    pub log: Vec<Executed>,
    pub closed: bool,
    /// True if [`CN`] is the only CN with memory.
    pub strangers: bool,
    /// Current instance of [`CN`], if shards need one; with `None` any instance counts as current.
    pub instance: Option<u64>,
    /// True while other workers may still execute requests of the former instance.
    pub busy: bool,
    /// Key of [`CN`]; `None` if it has no key.
    pub key: Option<PublicKey>,
    /// True if [`CN`] has no key because the key was withdrawn.
    pub key_withdrawn: bool,
    /// CNs whose memory was accessed.
    pub cns: std::collections::BTreeSet<u64>,
}

impl TestMemory {
    pub const END: u64 = 1 << 30;
}

impl Memory for TestMemory {
    fn read(&mut self, cn: u64, addr: u64, out: &mut [u8]) -> Result<(), FaultStatus> {
        self.cns.insert(cn);
        if addr >= Self::END {
            return Err(FaultStatus::Nxm);
        }
        self.log.push(Executed::Read(addr));
        for (i, line) in out.chunks_exact_mut(LINE_SIZE).enumerate() {
            line.copy_from_slice(self.lines.get(&(addr + 64 * i as u64)).unwrap_or(&[0; LINE_SIZE]));
        }
        Ok(())
    }

    fn write(&mut self, _cn: u64, addr: u64, mask: u64, data: &[u8]) -> Result<(), FaultStatus> {
        if addr >= Self::END {
            return Err(FaultStatus::Nxm);
        }
        let places = (0..64).filter(|i| mask & 1 << i != 0);
        for (i, line) in places.zip(data.chunks_exact(LINE_SIZE)) {
            self.log.push(Executed::Write(addr + 64 * i, line[0]));
            self.lines.insert(addr + 64 * i, line.try_into().unwrap());
        }
        Ok(())
    }

    fn admits(&mut self, _cn: u64) -> bool {
        !self.closed
    }

    fn has_memory(&mut self, cn: u64) -> bool {
        !self.strangers || cn == CN.to_u64()
    }

    fn is_key_withdrawn(&mut self, _: u64) -> bool {
        self.key_withdrawn
    }

    fn key(&mut self, cn: u64) -> Option<PublicKey> {
        match Mac::from_u64(cn) {
            CN => self.key,
            // Some CNs with addresses next to that of [`CN`] have a key if [`CN`] has one.
            Mac([2, 0, 0, 0, 1, _]) => self.key.map(|_| PublicKey([7; 32])),
            _ => None,
        }
    }

    fn take_over(&mut self, _cn: u64, instance: u64) -> bool {
        self.instance = Some(instance);
        !self.busy
    }

    fn is_current(&mut self, _cn: u64, instance: u64) -> bool {
        self.instance.is_none_or(|current| current == instance)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// Token, and the first byte of each line.
    Read(u64, Vec<u8>),
    Written(u64),
    /// Token, error, and the first byte of each line of a failed write.
    Failed(u64, OpError, Vec<u8>),
}

#[derive(Default)]
pub struct Log(pub Vec<Done>);

fn firsts(data: &[u8]) -> Vec<u8> {
    data.chunks_exact(LINE_SIZE).map(|line| line[0]).collect()
}

impl Completions for Log {
    fn read(&mut self, token: u64, data: &[u8]) {
        self.0.push(Done::Read(token, firsts(data)));
    }

    fn written(&mut self, token: u64) {
        self.0.push(Done::Written(token));
    }

    fn failed(&mut self, token: u64, error: OpError, data: &[u8]) {
        self.0.push(Done::Failed(token, error, firsts(data)));
    }
}

pub struct Pair {
    pub requester: Requester,
    pub responder: Responder,
    pub memory: TestMemory,
    pub now: Time,
    /// Frames that the CN has sent and that are not delivered yet.
    pub up: Sent,
    /// Frames that the MN has sent and that are not delivered yet.
    pub down: Sent,
    pub done: Log,
    /// Last offer that the MN made.
    pub offer: Option<HelloAck>,
}

pub fn requester_config() -> RequesterConfig {
    RequesterConfig {
        identity: Identity { own: CN, peer: MN, ethertype: ETHERTYPE_DEFAULT },
        max_frame: MAX_FRAME,
        streams: 2,
        instance: 77,
        key: None,
        keys: None,
        timing: Timing::default(),
        seed: 5.into(),
    }
}

pub fn responder_config() -> ResponderConfig {
    ResponderConfig::new(MN, MAX_FRAME, 1000, 6)
}

impl Pair {
    /// Makes both ends with default configurations, not connected. Writes are acknowledged one by one, as in
    /// the paper.
    pub fn new() -> Pair {
        let mut pair = Pair::with(requester_config(), responder_config());
        pair.responder.set_features(FEATURES & !FEATURE_JOINT_ACKS);
        pair
    }

    pub fn with(cn: RequesterConfig, mn: ResponderConfig) -> Pair {
        Pair {
            requester: Requester::new(cn),
            responder: Responder::new(mn),
            memory: TestMemory::default(),
            now: Time(1_000),
            up: Sent::default(),
            down: Sent::default(),
            done: Log::default(),
            offer: None,
        }
    }

    /// Makes both ends with an open session, no request under way, and a measured round trip of 100 us.
    pub fn open() -> Pair {
        let mut pair = Pair::new();
        pair.connect();
        pair
    }

    /// Opens the session and measures round trips of 100 us on stream 0.
    pub fn connect(&mut self) {
        self.requester.connect(self.now);
        self.run(10 * MS);
        assert!(self.requester.is_open(), "{:?}", self.requester.status());
        assert!(matches!(self.event(), Some(SessionEvent::Opened { .. })));
    }

    /// Makes round trips of 100 us on stream 0 for the estimate: eight reads, numbers 1 to 8.
    pub fn measure(&mut self) {
        for token in 0..8 {
            self.read(0, 0, 9_000 + token);
            self.carry_up();
            self.pass(100 * US);
            self.carry_down();
        }
        self.done.0.clear();
        self.memory.log.clear();
        assert!((90_000..=110_000).contains(&self.requester.status().rtt_ns));
    }

    pub fn event(&mut self) -> Option<SessionEvent> {
        self.requester.poll_event()
    }

    pub fn events(&mut self) -> Vec<SessionEvent> {
        std::iter::from_fn(|| self.requester.poll_event()).collect()
    }

    pub fn mn_events(&mut self) -> Vec<ResponderEvent> {
        std::iter::from_fn(|| self.responder.poll_event()).collect()
    }

    pub fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    pub fn read(&mut self, stream: u8, addr: u64, token: u64) {
        self.requester.read(stream, addr, token, self.now, &mut self.up).expect("room");
    }

    /// Writes a line in which every byte is `value`.
    pub fn write(&mut self, stream: u8, addr: u64, value: u8, token: u64) {
        let data = [value; LINE_SIZE];
        self.requester.write(stream, addr, &data, token, self.now, &mut self.up).expect("room");
    }

    /// Runs the Diffie-Hellman jobs of both ends.
    pub fn compute(&mut self) {
        while let Some(job) = self.requester.poll_handshake() {
            self.requester.handshake_done(job.run(), self.now);
        }
        while let Some(job) = self.responder.poll_handshake() {
            self.responder.handshake_done(job.run(), self.now, &mut self.memory, &mut self.down);
        }
    }

    /// Polls the requester if its deadline has come.
    pub fn poll(&mut self) {
        if self.requester.deadline().is_due(self.now) {
            self.requester.poll(self.now, &mut self.up, &mut self.done);
        }
    }

    /// Removes and returns the frames that the CN has sent.
    pub fn take_up(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.up.frames)
    }

    pub fn take_down(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.down.frames)
    }

    /// Delivers frames to the MN as one receive batch.
    pub fn deliver_up<'a>(&mut self, frames: impl IntoIterator<Item = &'a Vec<u8>>) {
        for frame in frames {
            let mut frame = frame.clone();
            self.responder.handle(&mut frame, self.now, &mut self.memory, &mut self.down);
        }
        self.responder.poll(self.now, &mut self.memory, &mut self.down);
        let mut offers = self.down.frames.iter().filter_map(|frame| match Message::parse(frame) {
            Ok((_, Message::HelloAck(ack))) => Some(ack),
            _ => None,
        });
        self.offer = offers.next_back().or(self.offer);
    }

    pub fn deliver_down<'a>(&mut self, frames: impl IntoIterator<Item = &'a Vec<u8>>) {
        for frame in frames {
            let mut frame = frame.clone();
            self.requester.handle(&mut frame, self.now, &mut self.up, &mut self.done);
        }
    }

    /// Delivers all frames that the CN has sent, as one batch.
    pub fn carry_up(&mut self) {
        let frames = self.take_up();
        self.deliver_up(&frames);
    }

    pub fn carry_down(&mut self) {
        let frames = self.take_down();
        self.deliver_down(&frames);
    }

    /// Lets `time` pass on a network that loses nothing and takes 50 us each way.
    pub fn run(&mut self, time: Duration) {
        self.run_with(time, |_| true, |_| true);
    }

    /// Lets `time` pass. `up` decides which frames to the MN pass, `down` which frames to the CN.
    pub fn run_with(
        &mut self,
        time: Duration,
        mut up: impl FnMut(&Vec<u8>) -> bool,
        mut down: impl FnMut(&Vec<u8>) -> bool,
    ) {
        let end = self.now + time;
        while self.now < end {
            self.poll();
            let there: Vec<_> = self.take_up().into_iter().filter(|f| up(f)).collect();
            let back: Vec<_> = self.take_down().into_iter().filter(|f| down(f)).collect();
            self.pass(50 * US);
            self.deliver_up(&there);
            self.deliver_down(&back);
            self.compute();
            if self.up.frames.is_empty() && self.down.frames.is_empty() && self.now < end {
                self.now = self.requester.deadline().at.max(self.now).min(end);
            }
            self.responder.poll(self.now, &mut self.memory, &mut self.down);
        }
    }

    /// Makes a genuine frame of the session, as the CN would send it, with any content.
    pub fn forge(&self, command: u8, seq: u64, stream: u8, addr: u64, payload: &[u8]) -> Vec<u8> {
        let session = self.offer.expect("a session").session;
        let body = 25 + payload.len();
        let mut frame = vec![0; frame_len(body, 4)];
        let axi = Axi { stream, tag: seq as u8 };
        let header =
            Header { dst: MN, src: CN, ethertype: ETHERTYPE_DEFAULT, command, seq: seq as u16, axi, addr };
        header.emit(&mut frame);
        frame[25..body].copy_from_slice(payload);
        let seal = Seal::Plain { session };
        seal.seal(Direction::ToMn, Space::Stream(stream), &mut frame, body, seq);
        frame
    }

    /// Asserts that neither end has a request, an answer or a buffer in use.
    pub fn assert_at_rest(&self) {
        let status = self.requester.status();
        assert_eq!((status.unanswered, status.buffered), (0, 0));
        for session in self.responder.statuses(self.now) {
            assert_eq!((session.waiting, session.buffered), (0, 0));
        }
    }
}

pub fn code(frame: &[u8]) -> Command {
    Command::from_u8(frame[14]).expect("a known command")
}

pub fn seq(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[15], frame[16]])
}

/// Returns command and number of each frame.
pub fn list(frames: &[Vec<u8>]) -> Vec<(Command, u16)> {
    frames.iter().map(|f| (code(f), seq(f))).collect()
}

pub fn numbers(frames: &[Vec<u8>]) -> Vec<u16> {
    frames.iter().map(|f| seq(f)).collect()
}

pub fn refused(status: HelloStatus) -> SessionEvent {
    SessionEvent::Refused { status, version_min: 1, version_max: 1 }
}

pub fn codes(frames: &[Vec<u8>]) -> Vec<Command> {
    frames.iter().map(|f| code(f)).collect()
}

/// Delivers one frame to the MN and its answer to the CN, `times` times; a handshake takes two.
pub fn exchange(p: &mut Pair, times: usize) {
    for _ in 0..times {
        p.poll();
        p.compute();
        p.poll();
        p.carry_up();
        p.compute();
        p.carry_down();
        p.compute();
    }
}

/// Replaces the MN by a new process.
pub fn restart(p: &mut Pair, incarnation: u64, change: impl FnOnce(&mut ResponderConfig)) {
    let mut config = ResponderConfig { incarnation, seed: 99.into(), ..responder_config() };
    change(&mut config);
    p.responder = Responder::new(config);
}
