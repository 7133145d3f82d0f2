//! Hostile frames: a memory node and a compute node at work, and a neighbour that sends them everything it should not.
//!
//! A real `mn-server` with a static map serves a compute node whose every read is checked against what it wrote.
//! Meanwhile raw sockets on the same cable send cut-off, oversized, random, damaged and replayed frames, floods of
//! handshakes from invented stations, forged ends of sessions and pauses, first to the memory node, then to the compute
//! node. What must hold: no wrong byte, no failed operation, bounded memory, and an orderly end.

mod common;

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use common::node::{MemoryNode, link_on, port};
use common::raw::Raw;
use common::{LIMIT, Outcome, ensure, eventually, ip, pair};
use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::EngineError;
use cxloe_lab::{Lab, Standing};
use cxloe_link::{Backend, LinkConfig};
use cxloe_port::port::{Port, PortError};
use cxloe_wire::frame::{
    Axi, Command, Direction, ETHERTYPE_DEFAULT, FaultStatus, Header, Hello, HelloAck, HelloStatus, Integrity,
    Mac, Message, PROTOCOL_VERSION, PfcVector, Seal, Space,
};
use cxloe_wire::session::OpError;
use libtest_mimic::{Failed, Trial};

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// The second station on the CN's cable, with memory of its own.
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 3]);
/// A station that has no memory.
const NOBODY: Mac = Mac([2, 0, 0, 0, 0, 4]);
const HPA: u64 = 1 << 32;
const REGION: u64 = 8 << 20;
/// What a process may grow by while it is flooded, in KiB: sessions it may hold, and the allocator's slack.
const GROWTH_KIB: u64 = 16 << 10;
/// Frames of each kind of attack.
const FLOOD: u64 = 12_000;

fn main() -> ExitCode {
    common::run(tests, &[], &["mn-server"])
}

fn tests(standing: Standing) -> Vec<Trial> {
    let mut tests = vec![
        Trial::test("packet::memory_node_withstands", || memory_node_withstands(Backend::Packet)),
        Trial::test("packet::compute_node_withstands", || compute_node_withstands(Backend::Packet)),
        Trial::test("pnet::memory_node_withstands", || memory_node_withstands(Backend::Pnet)),
        Trial::test("packet::echoes_stop_nobody", || echoes_stop_nobody(Backend::Packet)),
        Trial::test("invented_stations_take_no_session_from_others", invented_stations_take_no_session),
        Trial::test("memory_of_others_is_out_of_reach", memory_of_others_is_out_of_reach),
        Trial::test("wrong_addresses_are_named", wrong_addresses_are_named),
    ];
    if standing == Standing::Root {
        tests.push(Trial::test("xdp::echoes_stop_nobody", || echoes_stop_nobody(Backend::Xdp)));
        tests.push(Trial::test("xdp::memory_node_withstands", || memory_node_withstands(Backend::Xdp)));
        tests.push(Trial::test("xdp::compute_node_withstands", || compute_node_withstands(Backend::Xdp)));
    }
    tests
}

fn lab() -> Result<Lab, Failed> {
    Ok(pair().mac("cn0", &CN.to_string()).mac("mn0", &MN.to_string()).build()?)
}

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 16) as usize % end
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// A compute node at work on a thread of its own: writes, reads, bursts, all checked.
struct Work {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    /// Why it has ended, if it has on its own.
    failure: Arc<Mutex<Option<String>>>,
    thread: JoinHandle<Result<(), String>>,
}

impl Work {
    fn start(mut port: Port) -> Work {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let failure = Arc::new(Mutex::new(None));
        let (stopped, done, failed) = (Arc::clone(&stop), Arc::clone(&rounds), Arc::clone(&failure));
        let thread = std::thread::spawn(move || {
            let mut numbers = Numbers(7);
            let mut lines = vec![[0_u8; 64]; (REGION / 64) as usize];
            while !stopped.load(Ordering::Relaxed) {
                if let Err(e) = round(&mut port, &mut numbers, &mut lines) {
                    let why = e.message().unwrap_or("no reason").to_owned();
                    *failed.lock().map_err(|e| e.to_string())? = Some(why.clone());
                    return Err(why);
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
            // What was written last is there, all of it.
            let mut all = vec![0; REGION as usize];
            port.read_bytes(HPA, &mut all).map_err(|e| e.to_string())?;
            if all != lines.as_flattened() {
                return Err("the region holds other bytes than were written".into());
            }
            port.close().map_err(|e| e.to_string())
        });
        Work { stop, rounds, failure, thread }
    }

    /// Waits for more rounds, or the failure that prevents them.
    fn goes_on(&self, during: &str) -> Outcome {
        let before = self.rounds.load(Ordering::Relaxed);
        let enough = || self.rounds.load(Ordering::Relaxed) >= before + 3;
        eventually(&format!("the compute node works during: {during}"), || {
            enough() || self.thread.is_finished()
        })?;
        let failure = self.failure.lock().map_err(|e| e.to_string())?.clone();
        ensure(enough(), format!("the compute node has stopped during: {during}: {failure:?}"))
    }

    fn end(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        Ok(self.thread.join().map_err(|_| "the compute node's thread panicked")??)
    }
}

/// Some of every operation at random places; `lines` is what the region should hold.
fn round(port: &mut Port, numbers: &mut Numbers, lines: &mut [[u8; 64]]) -> Result<(), Failed> {
    let hpa = |line: usize| HPA + line as u64 * 64;
    for _ in 0..8 {
        let line = numbers.below(lines.len());
        lines[line].fill(numbers.next() as u8);
        port.write(hpa(line), &lines[line])?;
        let other = numbers.below(lines.len());
        for line in [line, other] {
            ensure(port.read(hpa(line))? == lines[line], format!("line {line} holds other bytes"))?;
        }
    }
    let first = numbers.below(lines.len() - 256);
    let part = &mut lines[first..first + 256];
    part.as_flattened_mut().copy_from_slice(&numbers.bytes(256 * 64));
    port.write_bytes(hpa(first), part.as_flattened())?;
    let mut back = vec![0; 256 * 64];
    port.read_bytes(hpa(first), &mut back)?;
    ensure(back == part.as_flattened(), format!("burst from line {first} on holds other bytes"))
}

/// A frame outside any session, with a trailer that is right.
fn outside(from: Mac, to: Mac, direction: Direction, message: &Message<'_>) -> Vec<u8> {
    let header = Header {
        dst: to,
        src: from,
        ethertype: ETHERTYPE_DEFAULT,
        command: 0,
        seq: 0,
        axi: Axi { stream: 0, tag: 0 },
        addr: 0,
    };
    let body = message.body_len();
    let mut frame = vec![0; (body + Seal::PLAIN_LEN).max(60)];
    message.emit(&header, &mut frame);
    Seal::OUTSIDE.seal(direction, Space::Control, &mut frame, body, 0);
    frame
}

fn hello(from: Mac, instance: u64, nonce: u64) -> Vec<u8> {
    let hello = Hello {
        version: PROTOCOL_VERSION,
        features: 0,
        nonce,
        instance,
        streams: 16,
        max_frame: 1514,
        integrity: Integrity::Plain,
    };
    outside(from, MN, Direction::ToMn, &Message::Hello(hello))
}

/// One kind of attack: the frame that is sent as number `n`.
type Attack<'a> = (&'static str, Box<dyn FnMut(u64) -> Vec<u8> + 'a>);

/// Attacks that make sense at both ends, on frames to `to` that claim to come from `from`.
fn attacks<'a>(to: Mac, from: Mac, good: &'a [Vec<u8>]) -> Vec<Attack<'a>> {
    let start = move |frame: &mut Vec<u8>| {
        frame[..6].copy_from_slice(&to.0);
        frame[6..12].copy_from_slice(&from.0);
        frame[12..14].copy_from_slice(&ETHERTYPE_DEFAULT.to_be_bytes());
    };
    let [mut a, mut b, mut c, mut d, mut e, mut f] = [1, 2, 3, 4, 5, 6].map(Numbers);
    let command = |n: u64| Command::ALL[n as usize % Command::ALL.len()] as u8;
    vec![
        (
            "cut-off frames",
            Box::new(move |_| {
                let whole = &good[a.below(good.len())];
                whole[..14 + a.below(whole.len() - 14)].to_vec()
            }),
        ),
        (
            "oversized frames",
            Box::new(move |n| {
                let mut frame = good[b.below(good.len())].clone();
                frame.resize(1514 - b.below(200), n as u8);
                frame[14] = command(n);
                frame
            }),
        ),
        (
            "random bytes",
            Box::new(move |n| {
                let len = 14 + c.below(1500);
                let mut frame = c.bytes(len);
                start(&mut frame);
                if let (Some(code), true) = (frame.get_mut(14), n % 2 == 0) {
                    *code = command(n / 2);
                }
                frame
            }),
        ),
        (
            "damaged copies of good frames",
            Box::new(move |_| {
                let mut frame = good[d.below(good.len())].clone();
                // Not in the addresses or the padding: where it matters.
                let end = cxloe_wire::frame::body_len(&frame).unwrap_or(frame.len()) + Seal::PLAIN_LEN;
                let bit = 14 * 8 + d.below((end.min(frame.len()) - 14) * 8);
                frame[bit / 8] ^= 1 << (bit % 8);
                frame
            }),
        ),
        ("replays of good frames", Box::new(move |_| good[e.below(good.len())].clone())),
        (
            "good frames of another station",
            Box::new(move |n| {
                let mut frame = good[f.below(good.len())].clone();
                frame[6..12].copy_from_slice(&Mac([2, 0xF0, 0, 0, (n >> 8) as u8, n as u8]).0);
                frame
            }),
        ),
        (
            "pauses",
            Box::new(move |n| {
                let mut frame = PfcVector { enabled: 0xFF, quanta: [0xFFFF; 8] }.frame(from).to_vec();
                if n % 2 == 0 {
                    frame[..6].copy_from_slice(&to.0);
                }
                frame
            }),
        ),
    ]
}

/// What only a memory node is sent.
fn attacks_on_memory_node() -> Vec<Attack<'static>> {
    let mut numbers = Numbers(11);
    let mut forged = Numbers(12);
    vec![
        (
            "Hellos of invented stations",
            Box::new(move |n| {
                let invented = Mac([2, 0xF1, 0, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
                hello(invented, numbers.next(), numbers.next())
            }),
        ),
        ("Hellos in the compute node's name", Box::new(|n| hello(CN, 0xBAD, n))),
        (
            "Start, Bye and requests with a guessed session",
            Box::new(move |n| {
                let messages = [Message::Start, Message::Bye, Message::Ping, Message::ReadReq];
                let message = messages[n as usize % messages.len()];
                in_guessed_session(CN, MN, Direction::ToMn, &message, n as u16, forged.next())
            }),
        ),
    ]
}

fn in_guessed_session(
    from: Mac,
    to: Mac,
    direction: Direction,
    message: &Message<'_>,
    seq: u16,
    session: u64,
) -> Vec<u8> {
    let mut frame = outside(from, to, direction, message);
    frame[15..17].copy_from_slice(&seq.to_be_bytes());
    let space = message.command().space(0).unwrap_or(Space::Control);
    Seal::Plain { session }.seal(direction, space, &mut frame, message.body_len(), seq.into());
    frame
}

/// What only a compute node is sent.
fn attacks_on_compute_node() -> Vec<Attack<'static>> {
    let mut forged = Numbers(13);
    let line = &[0xEE; 64];
    vec![
        (
            "HelloAcks nobody asked for",
            Box::new(|n| {
                let ack = HelloAck {
                    hello_nonce: n,
                    version_min: PROTOCOL_VERSION,
                    version_max: PROTOCOL_VERSION,
                    features: 0,
                    session: n | 1,
                    nonce: n,
                    window: 256,
                    streams: 4,
                    max_frame: 1514,
                    incarnation: 0xBAD,
                    integrity: Integrity::Plain,
                    status: if n % 2 == 0 { HelloStatus::Ok } else { HelloStatus::NotAllowed },
                };
                outside(MN, CN, Direction::ToCn, &Message::HelloAck(ack))
            }),
        ),
        (
            "answers with a guessed session",
            Box::new(move |n| {
                let messages = [
                    Message::ReadResp { data: line },
                    Message::WriteResp,
                    Message::Fault { status: FaultStatus::Poisoned },
                    Message::Bye,
                    Message::SackNak { last_in_order: n as u16 },
                    Message::StartAck,
                ];
                let message = messages[n as usize % messages.len()];
                in_guessed_session(MN, CN, Direction::ToCn, &message, n as u16, forged.next())
            }),
        ),
    ]
}

/// Good frames as they pass the cable at `tap` while the compute node works.
fn capture(tap: &Raw, work: &Work) -> Result<Vec<Vec<u8>>, Failed> {
    let mut good = VecDeque::new();
    tap.drain()?;
    eventually("good frames pass by", || {
        for _ in 0..50 {
            if let Ok(Some(seen)) = tap.receive(Duration::from_millis(20))
                && seen.bytes.len() >= 60
                && seen.bytes[12..14] == ETHERTYPE_DEFAULT.to_be_bytes()
            {
                good.push_back(seen.bytes);
            }
        }
        good.len() >= 400 || work.thread.is_finished()
    })?;
    ensure(good.len() >= 400, "the compute node has stopped")?;
    Ok(good.into())
}

/// Sends each attack from `from`, with the compute node at work all the time.
fn attack(from: &Raw, attacks: Vec<Attack<'_>>, work: &Work) -> Outcome {
    for (what, mut make) in attacks {
        for number in 0..FLOOD {
            let frame = make(number);
            from.send(&frame).map_err(|e| format!("{what}: sending {} bytes: {e}", frame.len()))?;
        }
        work.goes_on(what)?;
    }
    Ok(())
}

fn memory_node_withstands(backend: Backend) -> Outcome {
    let lab = lab()?;
    let folder = tempfile::tempdir()?;
    let node = MemoryNode::start(&lab, "mn0", backend, &[(CN, REGION)], folder.path())?;
    let config = LinkConfig { backend, busy_poll: false, ..LinkConfig::new("cn0") };
    // The capture needs frames that pass by the memory node's socket, as those to pnet and packet rings do.
    let neighbour = lab.enter("cn", || Raw::open("cn0"))??;
    let tap = lab.enter("mn", || Raw::open("mn0"))??;
    let link = link_on(&lab, &config)?;
    let mut port = port(link, MN, HPA, REGION, CacheConfig::OFF)?;
    port.connect(LIMIT)?;
    let work = Work::start(port);
    work.goes_on("nothing yet")?;
    let good = match backend {
        Backend::Xdp => (0..400).map(|n| hello(CN, n, n)).collect(),
        _ => capture(&tap, &work)?,
    };
    drop(tap);
    let before = node.resident_kib()?;
    let mut all = attacks(MN, CN, &good);
    all.extend(attacks_on_memory_node());
    attack(&neighbour, all, &work)?;
    let after = node.resident_kib()?;
    ensure(after <= before + GROWTH_KIB, format!("mn-server grew from {before} to {after} KiB"))?;
    // Longer than the rings have room for, until the node has made new ones for the MTU of now.
    if backend != Backend::Xdp {
        for (namespace, interface) in [("cn", "cn0"), ("mn", "mn0")] {
            ip(&lab, namespace, &["link", "set", "dev", interface, "mtu", "9000"])?;
        }
        let mut long = good[0].clone();
        long.resize(9014, 0xA5);
        attack(&neighbour, vec![("frames longer than a slot", Box::new(move |_| long.clone()))], &work)?;
    }
    work.end()?;
    let said = node.said();
    ensure(!said.contains("panicked") && !said.contains("ERROR"), said)?;
    // The flood has not used up what a new station needs.
    let again = link_on(&lab, &config)?;
    let mut again = common::node::port(again, MN, HPA, REGION, CacheConfig::OFF)?;
    again.connect(LIMIT)?;
    again.read(HPA)?;
    again.close()?;
    let status = node.end()?;
    ensure(status.code() == Some(0), format!("mn-server ended with {status}"))
}

/// An Echo that asks for as many long frames as it can.
fn greedy_echo(from: Mac) -> Vec<u8> {
    let header = Header {
        dst: MN,
        src: from,
        ethertype: ETHERTYPE_DEFAULT,
        command: Command::Echo as u8,
        seq: 0,
        axi: Axi { stream: 0, tag: 0 },
        addr: 0,
    };
    let mut frame = vec![0; 60];
    header.emit(&mut frame);
    frame[25..27].copy_from_slice(&1400_u16.to_be_bytes());
    frame[27..29].copy_from_slice(&u16::MAX.to_be_bytes());
    frame
}

/// Replies to Echo frames of this station that pass by at `tap`.
fn echo_replies(tap: &Raw, to: Mac) -> Result<usize, Failed> {
    let mut replies = 0;
    while let Some(seen) = tap.receive(Duration::from_millis(100))? {
        let reply = seen.bytes.len() > 14 && seen.bytes[14] == Command::EchoReply as u8;
        replies += usize::from(reply && seen.bytes[..6] == to.0);
        // Bounded: the compute node's frames pass here as well, without an end.
        if replies > 64 {
            break;
        }
    }
    Ok(replies)
}

/// A memory node that answers echoes for measuring, and a stranger who sends 300 of them a second, and more.
fn echoes_stop_nobody(backend: Backend) -> Outcome {
    let lab = lab()?;
    let folder = tempfile::tempdir()?;
    let named = OTHER.to_string();
    let more = ["--echo", "--echo-for", &named];
    let node = MemoryNode::start_with(&lab, "mn0", backend, &[(CN, REGION)], folder.path(), &more)?;
    let neighbour = lab.enter("cn", || Raw::open("cn0"))??;
    let asks = |from: Mac, count: u32| -> Result<usize, Failed> {
        let tap = lab.enter("cn", || Raw::open("cn0"))??;
        for _ in 0..count {
            neighbour.send(&greedy_echo(from))?;
        }
        echo_replies(&tap, from)
    };
    ensure(asks(NOBODY, 100)? == 0, "a station without a session was answered")?;
    ensure(asks(CN, 1)? == 0, "a station without a session was answered, though it has memory")?;
    let answers = asks(OTHER, 1)?;
    ensure((1..=64).contains(&answers), format!("{answers} frames for one, to the station named"))?;

    let config = LinkConfig { backend, busy_poll: false, ..LinkConfig::new("cn0") };
    let mut port = port(link_on(&lab, &config)?, MN, HPA, REGION, CacheConfig::OFF)?;
    port.connect(LIMIT)?;
    let work = Work::start(port);
    work.goes_on("nothing yet")?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for from in [NOBODY, OTHER, CN] {
                    neighbour.send(&greedy_echo(from))?;
                }
                std::thread::sleep(Duration::from_millis(3));
            }
            Ok::<_, std::io::Error>(())
        });
        let outcome = (0..5).try_for_each(|_| {
            std::thread::sleep(Duration::from_millis(1500));
            work.goes_on("a flood of echoes")
        });
        stop.store(true, Ordering::Relaxed);
        flood.join().map_err(|_| "the neighbour panicked")??;
        outcome
    })?;
    work.end()?;
    ensure(node.end()?.code() == Some(0), "mn-server did not end in order")
}

/// Stations that do not exist say Hello and Start, as many as the memory node has sessions and more: who has memory
/// gets a session all the same.
fn invented_stations_take_no_session() -> Outcome {
    let lab = lab()?;
    let folder = tempfile::tempdir()?;
    let node = MemoryNode::start(&lab, "mn0", Backend::Packet, &[(CN, REGION)], folder.path())?;
    let neighbour = lab.enter("cn", || Raw::open("cn0"))??;
    let mut started = 0;
    for n in 0..400_u64 {
        let invented = Mac([2, 0xF2, 0, 0, (n >> 8) as u8, n as u8]);
        neighbour.send(&hello(invented, n, n))?;
        let mut ack = None;
        eventually("the Hello is answered", || {
            let Ok(Some(mut seen)) = neighbour.receive(Duration::from_millis(100)) else { return false };
            if seen.bytes.len() >= 60
                && seen.bytes[..6] == invented.0
                && let Ok((_, Message::HelloAck(found))) = Message::parse(&seen.bytes)
            {
                ack = Some(found);
            }
            seen.bytes.clear();
            ack.is_some()
        })?;
        let ack = ack.ok_or("no answer")?;
        if ack.status == HelloStatus::Ok {
            started += 1;
            neighbour.send(&in_guessed_session(
                invented,
                MN,
                Direction::ToMn,
                &Message::Start,
                1,
                ack.session,
            ))?;
        }
    }
    ensure((1..=64).contains(&started), format!("{started} invented stations have a session"))?;
    let link = link_on(&lab, &LinkConfig { backend: Backend::Packet, ..LinkConfig::new("cn0") })?;
    let mut port = port(link, MN, HPA, REGION, CacheConfig::OFF)?;
    port.connect(LIMIT)?;
    port.write(HPA, &[7; 64])?;
    ensure(port.read(HPA)? == [7; 64], "other bytes than were written")?;
    port.close()?;
    ensure(node.end()?.code() == Some(0), "mn-server did not end in order")
}

fn compute_node_withstands(backend: Backend) -> Outcome {
    let lab = lab()?;
    let folder = tempfile::tempdir()?;
    let node = MemoryNode::start(&lab, "mn0", Backend::Packet, &[(CN, REGION)], folder.path())?;
    let neighbour = lab.enter("mn", || Raw::open("mn0"))??;
    let tap = lab.enter("cn", || Raw::open("cn0"))??;
    let link = link_on(&lab, &LinkConfig { backend, busy_poll: false, ..LinkConfig::new("cn0") })?;
    let mut port = port(link, MN, HPA, REGION, CacheConfig::default())?;
    port.connect(LIMIT)?;
    let work = Work::start(port);
    work.goes_on("nothing yet")?;
    let good = match backend {
        Backend::Xdp => (0..400_u16)
            .map(|n| {
                let message = Message::ReadResp { data: &[n as u8; 64] };
                in_guessed_session(MN, CN, Direction::ToCn, &message, n, n.into())
            })
            .collect(),
        _ => capture(&tap, &work)?,
    };
    drop(tap);
    let mut all = attacks(CN, MN, &good);
    all.extend(attacks_on_compute_node());
    attack(&neighbour, all, &work)?;
    work.end()?;
    let status = node.end()?;
    ensure(status.code() == Some(0), format!("mn-server ended with {status}"))
}

/// The error of an operation that must fail.
fn error<T>(result: Result<T, PortError>) -> Result<EngineError, Failed> {
    match result {
        Err(PortError::Engine(e)) => Ok(e),
        Err(e) => Err(e.to_string().into()),
        Ok(_) => Err("it succeeded".into()),
    }
}

fn refused(result: Result<impl Sized, PortError>, status: FaultStatus) -> Outcome {
    let error = error(result)?;
    let right = matches!(&error, EngineError::Failed { mac: MN, error: OpError::Fault(s) } if *s == status);
    ensure(right, format!("{error:?} instead of {status:?}"))
}

fn memory_of_others_is_out_of_reach() -> Outcome {
    let lab = pair()
        .macvlan("cn0", "cn", "cn1")
        .macvlan("cn0", "cn", "cn2")
        .mac("cn0", &CN.to_string())
        .mac("mn0", &MN.to_string())
        .mac("cn1", &OTHER.to_string())
        .mac("cn2", &NOBODY.to_string())
        .build()?;
    let folder = tempfile::tempdir()?;
    // The other has twice as much, so that its addresses go on where this one's end.
    let map = [(CN, REGION), (OTHER, 2 * REGION)];
    let node = MemoryNode::start(&lab, "mn0", Backend::Packet, &map, folder.path())?;
    let reach = |interface: &str| -> Result<Port, Failed> {
        let link = link_on(&lab, &LinkConfig { backend: Backend::Packet, ..LinkConfig::new(interface) })?;
        let mut port = port(link, MN, HPA, 4 * REGION, CacheConfig::OFF)?;
        port.connect(LIMIT)?;
        Ok(port)
    };
    let (mut own, mut other) = (reach("cn0")?, reach("cn1")?);
    let secret = [0x5E; 64];
    let beyond = HPA + REGION;
    for hpa in [HPA, beyond, beyond + REGION - 64] {
        other.write(hpa, &secret)?;
    }
    own.write(HPA, &[1; 64])?;
    for hpa in [beyond, beyond + REGION - 64, beyond + REGION, HPA + 4 * REGION - 64] {
        refused(own.read(hpa), FaultStatus::Nxm)?;
        refused(own.write(hpa, &[2; 64]), FaultStatus::Nxm)?;
        refused(own.read_bytes(hpa, &mut [0; 64]), FaultStatus::Nxm)?;
        refused(own.write_bytes(hpa, &[2; 64]), FaultStatus::Nxm)?;
        other.idle()?;
    }
    // The same address means other memory to another.
    ensure(own.read(HPA)? == [1; 64], "own memory holds other bytes")?;
    for hpa in [HPA, beyond, beyond + REGION - 64] {
        ensure(other.read(hpa)? == secret, "the other's memory has changed")?;
    }
    refused(other.read(HPA + 2 * REGION), FaultStatus::Nxm)?;
    // Who has no memory here is told so.
    let mut nobody = reach("cn2")?;
    refused(nobody.read(HPA), FaultStatus::Denied)?;
    refused(nobody.write(beyond, &[3; 64]), FaultStatus::Denied)?;
    ensure(own.read(HPA)? == [1; 64], "own memory holds other bytes")?;
    for port in [own, other, nobody] {
        port.close()?;
    }
    ensure(node.end()?.code() == Some(0), "mn-server did not end in order")
}

fn wrong_addresses_are_named() -> Outcome {
    let lab = lab()?;
    let folder = tempfile::tempdir()?;
    let node = MemoryNode::start(&lab, "mn0", Backend::Packet, &[(CN, REGION)], folder.path())?;
    let reach = |cache| -> Result<Port, Failed> {
        let link = link_on(&lab, &LinkConfig { backend: Backend::Packet, ..LinkConfig::new("cn0") })?;
        let mut port = port(link, MN, HPA, REGION, cache)?;
        port.connect(LIMIT)?;
        Ok(port)
    };
    for cache in [CacheConfig::OFF, CacheConfig::default()] {
        let mut port = reach(cache)?;
        port.write(HPA, &[7; 64])?;
        let sent = port.link().counters().tx_frames;
        for hpa in [HPA + 1, HPA + 63, HPA - 1, u64::MAX] {
            let unaligned = EngineError::Unaligned(hpa);
            ensure(error(port.read(hpa))? == unaligned, format!("read {hpa:#x}"))?;
            ensure(error(port.write(hpa, &[0; 64]))? == unaligned, format!("write {hpa:#x}"))?;
            ensure(error(port.read_bytes(hpa, &mut [0; 64]))? == unaligned, format!("read_bytes {hpa:#x}"))?;
        }
        for hpa in [0, HPA - 64, HPA + REGION, u64::MAX - 63] {
            let unmapped = EngineError::Unmapped(hpa);
            ensure(error(port.read(hpa))? == unmapped, format!("read {hpa:#x}"))?;
            ensure(error(port.write(hpa, &[0; 64]))? == unmapped, format!("write {hpa:#x}"))?;
            ensure(error(port.write_bytes(hpa, &[0; 64]))? == unmapped, format!("write_bytes {hpa:#x}"))?;
            ensure(unmapped.to_string().contains("cn-agent list"), unmapped.to_string())?;
        }
        // Over the end: what is inside is read, the rest named.
        let over = error(port.read_bytes(HPA + REGION - 64, &mut [0; 192]))?;
        ensure(over == EngineError::Unmapped(HPA + REGION), format!("{over:?}"))?;
        match port.read_bytes(HPA, &mut [0; 65]) {
            Err(e @ PortError::PartialLine(65)) => {
                ensure(e.to_string().contains("whole lines"), e.to_string())?
            }
            other => return Err(format!("{other:?}").into()),
        }
        let pings = port.link().counters().tx_frames - sent;
        ensure(pings <= 8, format!("{pings} frames were sent for addresses that are wrong"))?;
        ensure(port.read(HPA)? == [7; 64], "the line has changed")?;
        port.close()?;
    }
    ensure(node.end()?.code() == Some(0), "mn-server did not end in order")
}
