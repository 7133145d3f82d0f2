//! A hostile client of the agent, which overwrites the memory that it shares with the agent between any two
//! of the agent's steps. The agent's own code serves this client and an honest client of another user, over a
//! simulated network.

#[allow(dead_code, reason = "tests of the crates use the rest")]
#[path = "../../../cn-agent/rings/tests/agent/mod.rs"]
mod agent;
#[allow(dead_code, reason = "tests of the crates use the rest")]
#[path = "../../../cn-agent/tests/looped/mod.rs"]
mod looped;

use std::cell::RefCell;
use std::sync::atomic::Ordering::Release;

use agent::{Agent, Ends};
use cxloe_client::memory::SharedMemory;
use cxloe_client::ring::{ENTRIES, Lines, Operation, PORT_BYTES, Submission};
use cxloe_client::status::Status;

const ALICE: u32 = 4711;
const BOB: u32 = 4712;
/// Content of each line of the honest client's region, which the hostile client must never read.
const SECRET: [u8; 64] = [0xB0; 64];
/// Number of 64-bit words in an entry of the ring.
const ENTRY: usize = 16;
/// Number of 64-bit words before the first entry of the submission ring.
const SUBMISSIONS: usize = 512;
/// Phase bit in the first word of an entry, which toggles with each lap of the ring.
const PHASE: u64 = 1 << 31;
/// Number of bytes of the fuzzer's input that determine one step.
const STEP: usize = 8;
const STEPS_MAX: usize = 64;

/// The agent, with the rings of the honest client, Bob. One rig serves all inputs of a thread, because it is costly to
/// make.
struct Rig {
    agent: Agent,
    bob: Ends,
}

thread_local! {
    static RIG: RefCell<Rig> = RefCell::new(Rig::new());
}

impl Rig {
    fn new() -> Rig {
        let mut agent = Agent::with_two_regions();
        for (region, uid) in [(0, ALICE), (1, BOB)] {
            let hpa = agent.regions[region].start;
            agent.clients.set_owner(hpa, Some((agent.bytes as u64, uid)));
        }
        let (mut bob, _) = agent.connect_as(Some(BOB));
        bob.put(0, &SECRET.repeat(agent.bytes / 64));
        let hpa = agent.regions[1].start;
        let all = Operation::WriteBytes(Lines { at: 0, count: (agent.bytes / 64) as u32 });
        assert_eq!(agent.run(&mut bob, all, hpa, None), Status::Done);
        Rig { agent, bob }
    }

    /// Checks that the honest client's operations end, and that the lines `named` of its region are unchanged: these
    /// are the lines that the hostile client's requests have addressed.
    fn check(&mut self, named: &[u64]) {
        let Rig { agent, bob } = self;
        let hpa = agent.regions[1].start;
        assert_eq!(agent.run(bob, Operation::Write, hpa, Some(&SECRET)), Status::Done);
        assert_eq!(agent.run(bob, Operation::Flush, 0, None), Status::Done);
        for line in named {
            let one = Operation::ReadBytes(Lines { at: 0, count: 1 });
            assert_eq!(agent.run(bob, one, hpa + line * 64, None), Status::Done);
            assert_eq!(bob.get(0, 64), SECRET, "another user's line {line} has changed");
        }
    }
}

/// Returns the operation that `kind` selects, on `count` lines; every value of `kind` selects an operation.
fn operation(kind: u8, count: u32) -> Operation {
    let lines = Lines { at: 0, count };
    match kind % 7 {
        0 => Operation::Read,
        1 => Operation::Write,
        2 => Operation::Flush,
        3 => Operation::ReadBytes(lines),
        4 => Operation::WriteBytes(lines),
        5 => Operation::Zero(count),
        _ => Operation::Patch(u64::from(count) << 32 | 1),
    }
}

/// Overwrites a submitted entry of the ring, which the agent may be reading, with operation code `code`, on `lines`
/// lines at `hpa`.
fn overwrite(memory: &SharedMemory, entry: usize, code: u64, hpa: u64, lines: u64) {
    let at = SUBMISSIONS + entry * ENTRY;
    let [before] = memory.untrusted(at).copy_out();
    // The phase bit stays, so that the agent takes the entry for a valid one.
    memory.store(at + 1, hpa, Release);
    memory.store(at + 2, lines, Release);
    memory.store(at + 8, u64::from_ne_bytes([0xA1; 8]), Release);
    memory.store(at, before & !(PHASE - 1) | code, Release);
}

/// Runs steps of the hostile client and of the agent, each determined by eight bytes of `data`. Checks that
/// no line of the honest client is returned or changed, and that the honest client's operations end.
pub fn hostile_client(data: &[u8]) {
    RIG.with_borrow_mut(|rig| {
        let (mut alice, memory) = rig.agent.connect_as(Some(ALICE));
        let regions = [rig.agent.regions[0].start, rig.agent.regions[1].start];
        let (mut under_way, mut submitted, mut named) = (0, 0, Vec::new());
        for step in data.chunks_exact(STEP).take(STEPS_MAX) {
            let [kind, entry, code, region, a, b, c, d] = *step else { continue };
            let line = u64::from(u16::from_le_bytes([a, b])) % (rig.agent.bytes / 64) as u64;
            let count = u32::from(u16::from_le_bytes([c, d])) % 4096 + 1;
            match kind % 4 {
                0 if under_way < ENTRIES => {
                    let submission =
                        Submission { tag: 1, operation: operation(code, count), hpa: regions[0] + line * 64 };
                    alice.ring.submit(submission, Some(&[0xA1; 64]));
                    (under_way, submitted) = (under_way + 1, submitted + 1);
                }
                1 => {
                    // The entry is one of the last that the hostile client has submitted, so that the agent
                    // may be reading it.
                    let entry = (submitted + ENTRIES - 1 - usize::from(entry % 4)) % ENTRIES;
                    let hpa = regions[usize::from(region % 2)] + line * 64;
                    overwrite(&memory, entry, u64::from(code % 9), hpa, u64::from(count));
                    named.push(line);
                }
                2 => {
                    let place = usize::from(u16::from_le_bytes([entry, code])) % (PORT_BYTES / 8);
                    memory.store(place, u64::from_le_bytes([a, b, c, d, region, 0, 0, 0]), Release);
                }
                _ => (0..entry % 4).for_each(|_| rig.agent.round(&[])),
            }
            let mut line = [0; 64];
            while alice.ring.take(&mut line).is_some() {
                under_way = under_way.saturating_sub(1);
                assert_ne!(line, SECRET, "another user's line was read");
            }
        }
        (0..8).for_each(|_| rig.agent.round(&[]));
        let area = alice.get(0, rig.agent.bytes);
        assert!(area.chunks_exact(64).all(|line| line != SECRET), "another user's lines were read");
        rig.check(&named);
        drop(alice);
        rig.agent.clients.drain_wakeups(|_| true);
    });
}
