//! Two users of one compute node, one of them hostile: that user's program changes the memory that it shares with the
//! agent, between the agent's steps. The other user's region contains a known value, which may not be returned to the
//! hostile program, and the other user's operations continue.
//!
//! Runs as root, which starts copies of this program as both users.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_client::client::{self, Client};
use cxloe_client::mapping::Owner;
use cxloe_client::memory::{SharedMemory, receive_with_descriptor};
use cxloe_client::message::{self, AgentCall, AgentRequest, JoinRequest, ShownFiles, VERSION};
use cxloe_client::ring::{ClientEnd, ENTRIES, Lines, Operation, PORT_BYTES, Submission};
use cxloe_cn_core::mapped::MappingKind;
use cxloe_lab::{LabPrivilege, Process};
use cxloe_member::process_files::ProcessFiles;
use cxloe_member::socket::{Descriptors, Socket, SocketPath};
use cxloe_member::wire::{JoinReply, MESSAGE_MAX, WELCOME, WELCOME_BYTES};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::tenants::{ALICE, BOB, lent, request, rig, user_command};
use cxloe_system::copies::ROLE;
use cxloe_system::pair::*;
use cxloe_system::{Test, tests};

/// Duration of the attack, long enough for changes to fall between any two steps of the agent.
const ATTACK: Duration = Duration::from_secs(60);
/// Value of every byte of bob's region.
const CANARY: u8 = 0xB0;
const BYTES: u64 = 4 << 20;
/// Number of 64-bit words of a ring entry.
const ENTRY: usize = 16;
/// Number of words of a port's memory before the first entry of the ring.
const SUBMISSIONS: usize = 512;
/// Phase bit in the first word of an entry: toggles with each lap of the ring.
const PHASE: u64 = 1 << 31;

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    match standing {
        LabPrivilege::Root => tests![
            rings_that_change_between_steps_reach_nobody,
            a_userfaultfd_that_is_set_to_block_stops_nobody,
            descriptors_that_are_slow_to_close_delay_nobody,
        ],
        _ => Vec::new(),
    }
}

/// Command that runs a copy of this program as a user; `part` selects one of the programs of [`play`].
fn part(rig: &Pair, uid: u32, part: &str, more: &[String]) -> Outcome<Command> {
    let mut command = user_command(uid, &lent(rig)?.join("tenant"));
    command.env(ROLE, "hostile").arg(part).arg(rig.socket()).args(more);
    Ok(command)
}

pub fn rings_that_change_between_steps_reach_nobody() -> Outcome {
    let rig = rig()?;
    let pid = rig.pid("agent")?;
    let [own, other] = ["alice", "bob"].map(|region| rig.attached(region, "active").map(|found| found.hpa));
    let (own, other) = (own?.to_string(), other?.to_string());
    let seconds = ATTACK.as_secs().to_string();
    let logs = ["bob", "alice"].map(|name| rig.path(&format!("{name}.log")));
    let mut watch = part(&rig, BOB, "watch", &[other.clone(), seconds.clone()])?;
    Process::log_to(&mut watch, &logs[0])?;
    let mut watch = rig.lab.spawn("cn", watch)?;
    eventually("the canary is in place", || saying(&logs[0], "watching"))?;
    let mut attack = part(&rig, ALICE, "attack", &[own, other, seconds])?;
    Process::log_to(&mut attack, &logs[1])?;
    let mut attack = rig.lab.spawn("cn", attack)?;
    for (process, log) in [(&mut attack, &logs[1]), (&mut watch, &logs[0])] {
        let ended = process.wait(ATTACK + LIMIT)?;
        ensure(ended.success(), format!("{}: {}", log.display(), fs::read_to_string(log)?))?;
    }
    ensure(rig.pid("agent")? == pid, "it is the same agent")?;
    client::node(&rig.socket())?;
    Ok(())
}

pub fn a_userfaultfd_that_is_set_to_block_stops_nobody() -> Outcome {
    let rig = rig()?;
    let mut port = rig.connect()?;
    let bob = rig.attached("bob", "active")?.hpa;
    eventually("a session is open", || port.read(bob).ok())?;
    let log = rig.path("alice.log");
    let mut blocks = part(&rig, ALICE, "block", &["alice".into()])?;
    Process::log_to(&mut blocks, &log)?;
    let mut blocks = rig.lab.spawn("cn", blocks)?;
    eventually("its userfaultfd blocks", || saying(&log, "blocks"))?;
    for _ in 0..10 {
        client::counters(&rig.socket())?;
    }
    port.read(bob)?;
    let ended = blocks.wait(LIMIT)?;
    ensure(ended.success(), fs::read_to_string(&log)?)?;
    client::counters(&rig.socket())?;
    Ok(())
}

/// Alice passes sockets that take ten minutes to close, at every point where the agent receives or closes a
/// descriptor.
pub fn descriptors_that_are_slow_to_close_delay_nobody() -> Outcome {
    let rig = rig()?;
    let mut port = rig.connect()?;
    let bob = rig.attached("bob", "active")?.hpa;
    eventually("a session is open", || port.read(bob).ok())?;
    let log = rig.path("alice.log");
    let mut slow = part(&rig, ALICE, "slow", &["alice".into()])?;
    Process::log_to(&mut slow, &log)?;
    let _slow = rig.lab.spawn("cn", slow)?;
    for place in SLOW_PLACES {
        eventually(place, || saying(&log, place).or_else(|| saying(&log, "failed")))?;
        ensure(saying(&log, "failed").is_none(), fs::read_to_string(&log)?)?;
        // Each of these calls has a time limit, and fails if a thread of the agent is blocked.
        port.read(bob)?;
        client::counters(&rig.socket())?;
        client::regions(&rig.socket())?;
        drop(rig.connect()?);
    }
    Ok(())
}

/// Role: a user's program, selected by the first argument; the second is the agent's socket.
pub fn play() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, part, socket, rest @ ..] = &arguments[..] else { return ExitCode::from(2) };
    let (socket, rest) = (Path::new(socket), rest.iter().map(String::as_str).collect::<Vec<_>>());
    let done = match (part.as_str(), &rest[..]) {
        ("attack", [own, other, seconds]) => attack(socket, own, other, seconds),
        ("watch", [hpa, seconds]) => watch(socket, hpa, seconds),
        ("block", [region]) => block(socket, region),
        ("slow", [region]) => slow(socket, region).inspect_err(|error| {
            println!("failed: {}", error.message().unwrap_or_default());
        }),
        _ => Err(format!("no part {part} with {rest:?}").into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", error.message().unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}

/// Bob's program: fills its region with the canary, and checks and flushes it.
fn watch(socket: &Path, hpa: &str, seconds: &str) -> Outcome {
    let (hpa, until) = (hpa.parse::<u64>()?, Instant::now() + Duration::from_secs(seconds.parse()?));
    let mut port = Client::connect(socket)?;
    let canary = vec![CANARY; BYTES as usize];
    eventually("the canary is written", || port.write_bytes(hpa, &canary).ok())?;
    println!("watching");
    let (mut rounds, mut found) = (0_u64, vec![0; BYTES as usize]);
    while Instant::now() < until {
        let line = hpa + rounds * 64 % BYTES;
        port.write(line, &[CANARY; 64])?;
        port.flush()?;
        ensure(port.read(line)? == [CANARY; 64], "a line has changed")?;
        if rounds.is_multiple_of(16) {
            port.read_bytes(hpa, &mut found)?;
            let wrong = found.iter().position(|byte| *byte != CANARY);
            ensure(wrong.is_none(), format!("byte {wrong:?} of the region has changed"))?;
        }
        rounds += 1;
    }
    // If a flush waited for another client's flush, there would be few rounds.
    ensure(rounds > 100, format!("only {rounds} rounds of write, flush and read"))
}

struct Attack {
    until: Instant,
    own: u64,
    other: u64,
    done: AtomicU64,
    caught: AtomicBool,
}

/// Opens a port without the client library; returns the port's socket, its memory, and a second mapping of that memory.
fn raw_port(socket: &Path) -> Outcome<(UnixStream, ClientEnd, SharedMemory)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(LIMIT))?;
    message::write(&mut stream, &AgentRequest { version: VERSION, ask: AgentCall::Port })?;
    let (_, memory) = receive_with_descriptor(&stream, &mut [0; 512])?;
    let memory = memory.ok_or("no memory came")?;
    let again = SharedMemory::open(memory.try_clone()?, PORT_BYTES)?;
    let end = ClientEnd::new(SharedMemory::open(memory, PORT_BYTES)?).ok_or("no ring")?;
    Ok((stream, end, again))
}

/// Alice's program: submits operations on her region, and continuously overwrites their entries with bob's addresses,
/// other operations and other numbers of lines. Fails if a result is the canary.
fn attack(socket: &Path, own: &str, other: &str, seconds: &str) -> Outcome {
    let attack = Arc::new(Attack {
        until: Instant::now() + Duration::from_secs(seconds.parse()?),
        own: own.parse()?,
        other: other.parse()?,
        done: AtomicU64::new(0),
        caught: AtomicBool::new(false),
    });
    let mut rng = SmallRng::seed_from_u64(7);
    while Instant::now() < attack.until && !attack.caught.load(Relaxed) {
        // The agent closes a port whose ring is corrupted; the attack then opens the next port.
        let (stream, end, memory) = raw_port(socket)?;
        let ends = Arc::new(AtomicBool::new(false));
        let overwriter = thread::spawn({
            let (attack, ends, rng) =
                (Arc::clone(&attack), Arc::clone(&ends), SmallRng::seed_from_u64(rng.random()));
            move || overwrite(&memory, &attack, &ends, rng)
        });
        let outcome = submit(stream, end, &attack, &mut rng);
        ends.store(true, Relaxed);
        overwriter.join().map_err(|_| "the thread that overwrites has panicked")?;
        outcome?;
    }
    let done = attack.done.load(Relaxed);
    println!("{done} operations");
    ensure(!attack.caught.load(Relaxed), "another user's line was read")?;
    ensure(done > 1000, format!("only {done} operations were carried out"))
}

/// Overwrites entries with other operations and addresses, until `ends` is set.
fn overwrite(memory: &SharedMemory, attack: &Attack, ends: &AtomicBool, mut rng: SmallRng) {
    while !ends.load(Relaxed) {
        let at = SUBMISSIONS + rng.random_range(0..ENTRIES) * ENTRY;
        let lines = rng.random_range(1..=BYTES / 64);
        memory.store(at + 1, attack.other + rng.random_range(0..BYTES / 64) * 64, Release);
        memory.store(at + 2, lines, Release);
        memory.store(at + 8, rng.random(), Release);
        if rng.random_ratio(1, 2) {
            let [before] = memory.untrusted(at).copy_out();
            memory.store(at, before & !(PHASE - 1) | rng.random_range(0..9), Release);
        }
        if rng.random_ratio(1, 64) {
            thread::sleep(Duration::from_micros(rng.random_range(0..200)));
        }
    }
}

/// Submits operations on alice's region until time is up or the agent has closed the port.
fn submit(stream: UnixStream, mut end: ClientEnd, attack: &Attack, rng: &mut SmallRng) -> Outcome {
    stream.set_nonblocking(true)?;
    let (mut under_way, mut line, mut area) = (0, [0; 64], vec![0; 1 << 16]);
    while Instant::now() < attack.until && !attack.caught.load(Relaxed) {
        if under_way < 32 {
            let count = rng.random_range(1..=(BYTES / 64) as u32);
            let at = attack.own + rng.random_range(0..=BYTES / 64 - u64::from(count)) * 64;
            let lines = Lines { at: 0, count };
            let (operation, hpa) = match rng.random_range(0..8) {
                0 | 1 => (Operation::ReadBytes(lines), at),
                2 => (Operation::WriteBytes(lines), at),
                3 => (Operation::Zero(count), at),
                4 => (Operation::Patch(rng.random()), at),
                5 => (Operation::Flush, 0),
                6 => (Operation::Read, at),
                _ => (Operation::Write, at),
            };
            end.submit(Submission { tag: under_way, operation, hpa }, Some(&[0xA1; 64]));
            under_way += 1;
        }
        if end.wake_wanted() {
            let _ = std::io::Write::write(&mut &stream, &[1]);
        }
        while end.take(&mut line).is_some() {
            under_way = under_way.saturating_sub(1);
            let done = attack.done.fetch_add(1, Relaxed);
            if line == [CANARY; 64] {
                attack.caught.store(true, Relaxed);
            }
            if done.is_multiple_of(64) {
                let (memory, base) = end.data();
                memory.take(base + rng.random_range(0..(BYTES as usize - area.len()) / 64) * 64, &mut area);
                if area.windows(64).step_by(64).any(|line| line == [CANARY; 64]) {
                    attack.caught.store(true, Relaxed);
                }
            }
        }
        // End of stream: the agent has closed the port.
        if matches!(std::io::Read::read(&mut &stream, &mut [0; 64]), Ok(0)) {
            return Ok(());
        }
    }
    Ok(())
}

/// Places where descriptors reach the agent, in the order in which [`slow`] tries them.
const SLOW_PLACES: [&str; 7] = [
    "beside a request",
    "within a request",
    "as a userfaultfd",
    "on a member's connection",
    "behind what ends a member's connection",
    "on a port",
    "in a queue that nobody reads",
];

/// Returns a socket that takes ten minutes to close, because its peer reads nothing. Returns the listener as
/// well, which keeps the peer open until the caller drops it.
fn slow_socket() -> Outcome<(TcpStream, TcpListener)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    let linger = libc::linger { l_onoff: 1, l_linger: 600 };
    nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::Linger, &linger)?;
    stream.set_nonblocking(true)?;
    let bytes = [0; 1 << 16];
    while std::io::Write::write(&mut stream, &bytes).is_ok() {}
    Ok((stream, listener))
}

/// Alice's program: passes slow sockets in each of [`SLOW_PLACES`], and keeps none of them open.
fn slow(socket: &Path, region: &str) -> Outcome {
    let path = SocketPath::new(socket.as_os_str().as_encoded_bytes()).ok_or("too long a path")?;
    let connect = || Socket::connect(&path, LIMIT);
    let encoded = |ask| message::encode(&AgentRequest { version: VERSION, ask });
    let mut kept = Vec::new();
    let mut sockets = |count: usize| -> Outcome<Vec<TcpStream>> {
        let made: Vec<_> = (0..count).map(|_| slow_socket()).collect::<Outcome<_>>()?;
        let (streams, listeners): (Vec<_>, Vec<_>) = made.into_iter().unzip();
        kept.extend(listeners);
        Ok(streams)
    };
    let send = |connection: &Socket, bytes: &[u8], streams: Vec<TcpStream>| {
        let descriptors: Vec<_> = streams.iter().map(AsFd::as_fd).collect();
        let sent = connection.send(bytes, &descriptors);
        // If the agent has already closed its copy of a socket, closing this last copy takes ten minutes, so another
        // thread closes it.
        thread::spawn(move || drop(streams));
        sent
    };
    let mut answer = [0; 4];

    let beside = connect()?;
    send(&beside, &encoded(AgentCall::Regions), sockets(4)?)?;
    beside.receive_exact(&mut answer, &mut Descriptors::new())?;
    println!("{}", SLOW_PLACES[0]);

    let (within, request) = (connect()?, encoded(AgentCall::Regions));
    within.send(&request[..6], &[])?;
    send(&within, &request[6..], sockets(4)?)?;
    within.receive_exact(&mut answer, &mut Descriptors::new())?;
    println!("{}", SLOW_PLACES[1]);

    let owner = Owner::map(socket, super::tenants::request(region, MappingKind::Private))?;
    let map = || memmap2::MmapOptions::new().len(1 << 20).map_anon();
    let (memory, more) = (map()?, map()?);
    let join = |memory: &memmap2::MmapMut, files| {
        encoded(AgentCall::Join(JoinRequest {
            space: owner.space(),
            address: memory.as_ptr() as u64,
            bytes: 1 << 20,
            offset: 0,
            pid: std::process::id(),
            view: None,
            proof: None,
            resume: false,
            files,
        }))
    };
    let mut head = [0; WELCOME_BYTES];
    let refused = connect()?;
    send(&refused, &join(&memory, ShownFiles::All), sockets(3)?)?;
    refused.receive_exact(&mut head, &mut Descriptors::new())?;
    ensure(JoinReply::decode(&head).is_some_and(|reply| reply.status != WELCOME), "it is refused")?;
    println!("{}", SLOW_PLACES[2]);

    let files = ProcessFiles::own()?;
    let mut member = |memory: &memmap2::MmapMut| -> Outcome<(Socket, OwnedFd)> {
        let member = connect()?;
        let uffd: OwnedFd = cxloe_paging::uffd::Uffd::create_user_only()?.into();
        let own = files.memory().ok_or("no file of its memory")?;
        member.send(&join(memory, ShownFiles::All), &[uffd.as_fd(), own, files.table()])?;
        member.receive_exact(&mut head, &mut Descriptors::new())?;
        ensure(JoinReply::decode(&head).is_some_and(|reply| reply.status == WELCOME), "it may join")?;
        Ok((member, uffd))
    };
    let (first, _uffd) = member(&memory)?;
    send(&first, &[0xFF], sockets(4)?)?;
    println!("{}", SLOW_PLACES[3]);

    // The agent reads no more at a time than the bytes that are no message, and the sockets stay in the queue. If it
    // has hung up before they are sent, nothing is tried here.
    let (second, _uffd) = member(&more)?;
    let slow = sockets(4)?;
    second.send(&[0xFF; 2 * MESSAGE_MAX], &[])?;
    let _ = send(&second, &[0], slow);
    println!("{}", SLOW_PLACES[4]);

    let port = connect()?;
    port.send(&encoded(AgentCall::Port), &[])?;
    port.receive_exact(&mut answer, &mut Descriptors::new())?;
    send(&port, &[1], sockets(4)?)?;
    println!("{}", SLOW_PLACES[5]);

    for _ in 0..8 {
        let unread = connect()?;
        send(&unread, &[0], sockets(2)?)?;
    }
    println!("{}", SLOW_PLACES[6]);
    // The peers of the passed sockets stay open until the test ends this process.
    loop {
        thread::park();
    }
}

/// Alice's program: joins a region with a userfaultfd, and repeatedly sets the userfaultfd to blocking mode.
fn block(socket: &Path, region: &str) -> Outcome {
    let owner = Owner::map(socket, request(region, MappingKind::Private))?;
    let memory = memmap2::MmapOptions::new().len(1 << 20).map_anon()?;
    let uffd: OwnedFd = cxloe_paging::uffd::Uffd::create_user_only()?.into();
    let path = SocketPath::new(socket.as_os_str().as_encoded_bytes()).ok_or("too long a path")?;
    let connection = Socket::connect(&path, LIMIT)?;
    let (address, pid) = (memory.as_ptr() as u64, std::process::id());
    let join = JoinRequest {
        space: owner.space(),
        address,
        bytes: 1 << 20,
        offset: 0,
        pid,
        view: None,
        proof: None,
        resume: false,
        files: ShownFiles::All,
    };
    let bytes = message::encode(&AgentRequest { version: VERSION, ask: AgentCall::Join(join) });
    let files = ProcessFiles::own()?;
    let memory = files.memory().ok_or("no file of its memory")?;
    connection.send(&bytes, &[uffd.as_fd(), memory, files.table()])?;
    let mut head = [0; WELCOME_BYTES];
    connection.receive_exact(&mut head, &mut Descriptors::new())?;
    let welcome = JoinReply::decode(&head).ok_or("no welcome")?;
    ensure(welcome.status == WELCOME, "it may not join")?;
    let until = Instant::now() + Duration::from_secs(3);
    let mut output_text = false;
    while Instant::now() < until {
        fcntl(&uffd, FcntlArg::F_SETFL(OFlag::empty()))?;
        if !std::mem::replace(&mut output_text, true) {
            println!("blocks");
        }
    }
    Ok(())
}
