//! A client that changes its memory between the agent's steps neither reaches another user's region nor
//! delays another client. The engine and the memory nodes' services are real, the network is simulated, and
//! the clients run in the thread of the test.

#[allow(dead_code, reason = "the tests of the line port use the rest")]
#[path = "../../tests/looped/mod.rs"]
mod looped;

#[allow(dead_code, reason = "the tests of long operations use the rest")]
mod agent;

use std::sync::atomic::Ordering::Release;

use agent::{Agent, Ends, ROUNDS};
use cxloe_client::memory::SharedMemory;
use cxloe_client::ring::{Lines, Operation, Submission};
use cxloe_client::status::Status;
use cxloe_cn_core::engine::EngineError;

const ALICE: u32 = 4711;
const BOB: u32 = 4712;
/// Content of every line of bob's region.
const SECRET: [u8; 64] = [0xB0; 64];
/// Number of 64-bit words of a ring entry. The submission ring's first entry begins at word `SUBMISSIONS`.
const ENTRY: usize = 16;
const SUBMISSIONS: usize = 512;
/// First word of a ring entry: the operation's code, and in bit 31 the phase, which is 1 during the first pass through
/// the ring.
const READ: u64 = 1 | 1 << 31;
const WRITE: u64 = 2 | 1 << 31;

/// An agent, alice's client with its memory, and bob's client, whose region holds [`SECRET`] in every line.
fn rig() -> (Agent, Ends, SharedMemory, Ends) {
    let mut agent = Agent::with_two_regions();
    agent.clients.set_owner(agent.regions[0].start, Some((agent.bytes as u64, ALICE)));
    agent.clients.set_owner(agent.regions[1].start, Some((agent.bytes as u64, BOB)));
    let (alice, memory) = agent.connect_as(Some(ALICE));
    let (mut bob, _) = agent.connect_as(Some(BOB));
    bob.put(0, &SECRET.repeat(agent.bytes / 64));
    let all = Lines { at: 0, count: (agent.bytes / 64) as u32 };
    let hpa = agent.regions[1].start;
    assert_eq!(agent.run(&mut bob, Operation::WriteBytes(all), hpa, None), Status::Done);
    (agent, alice, memory, bob)
}

/// Overwrites the entry of a submission in the client's memory.
fn overwrite(memory: &SharedMemory, entry: usize, first_word: u64, hpa: u64) {
    let at = SUBMISSIONS + entry * ENTRY;
    memory.store(at + 1, hpa, Release);
    for word in 0..8 {
        memory.store(at + 8 + word, u64::from_ne_bytes([0xA1; 8]), Release);
    }
    memory.store(at, first_word, Release);
}

fn is_intact(agent: &mut Agent, bob: &mut Ends) {
    let all = Lines { at: 0, count: (agent.bytes / 64) as u32 };
    let hpa = agent.regions[1].start;
    assert_eq!(agent.run(bob, Operation::ReadBytes(all), hpa, None), Status::Done);
    assert!(bob.get(0, agent.bytes) == SECRET.repeat(agent.bytes / 64), "bob's region has changed");
}

/// Tests that a long operation reaches only its own region, although its ring entry is overwritten after each
/// round with an operation on another user's line.
#[test]
fn an_entry_that_changes_under_way_reaches_no_other_user() {
    for (first_word, long) in [
        (READ, Operation::ReadBytes(Lines { at: 0, count: 4096 })),
        (WRITE, Operation::WriteBytes(Lines { at: 0, count: 4096 })),
        (READ, Operation::Zero(4096)),
    ] {
        let (mut agent, mut alice, memory, mut bob) = rig();
        assert_eq!(agent.bytes / 64, 4096, "more than one round's segments");
        let (own, hers) = (agent.regions[0].start, agent.regions[1].start);
        alice.ring.submit(Submission { tag: 9, operation: long, hpa: own }, None);
        let mut line = [0; 64];
        let mut done = None;
        for _ in 0..ROUNDS {
            agent.round(&[]);
            overwrite(&memory, 0, first_word, hers + 64);
            done = alice.ring.take(&mut line);
            if done.is_some() {
                break;
            }
        }
        assert_eq!(done.map(|done| (done.tag, done.status)), Some((9, Status::Done)), "{long:?}");
        assert_ne!(line, SECRET, "another user's line was read");
        (0..100).for_each(|_| agent.round(&[]));
        assert_eq!(alice.ring.take(&mut line), None, "what it overwrote was no submission");
        is_intact(&mut agent, &mut bob);
    }
}

/// Tests that a flush ends, whatever its client writes over the flush's ring entry or publishes as the head of its
/// ring.
#[test]
fn a_flush_under_way_depends_on_no_client() {
    let (mut agent, mut alice, memory, mut bob) = rig();
    let own = agent.regions[0].start;
    let flush = Submission { tag: 1, operation: Operation::Flush, hpa: 0 };
    for lap in 0..4 {
        // With dirty lines, the flush takes more than one round.
        for line in 0..8 {
            let written = agent.run(&mut alice, Operation::Write, own + line * 64, Some(&[lap as u8; 64]));
            assert_eq!(written, Status::Done);
        }
        alice.ring.submit(flush, None);
        agent.round(&[]);
        assert_eq!(alice.ring.take(&mut [0; 64]), None, "it is under way");
        overwrite(&memory, 9 * lap + 8, READ, own);
        assert_eq!(agent.run(&mut bob, Operation::Flush, 0, None), Status::Done, "bob's flush waits");
        let done = (0..ROUNDS).find_map(|_| {
            agent.round(&[]);
            alice.ring.take(&mut [0; 64])
        });
        assert_eq!(done.map(|done| done.status), Some(Status::Done));
    }
}

/// Tests that, when a region gets another owner during an operation, the rest of the operation does not touch the
/// region.
#[test]
fn an_operation_stops_where_a_region_changes_hands() {
    let (mut agent, mut alice, _, mut bob) = rig();
    let hpa = agent.regions[0].start;
    let all = Operation::Zero((agent.bytes / 64) as u32);
    alice.ring.submit(Submission { tag: 2, operation: all, hpa }, None);
    agent.round(&[]);
    agent.clients.set_owner(hpa, Some((agent.bytes as u64, BOB)));
    let done = agent.completion(&mut alice);
    assert!(
        matches!(done.status, Status::Failed(EngineError::Unmapped(at)) if at > hpa),
        "the rest is refused: {done:?}"
    );
    assert_eq!(agent.run(&mut bob, Operation::Patch(1), hpa, Some(&[5; 64])), Status::Done);
    assert_eq!(
        agent.run(&mut alice, Operation::Patch(1), hpa, Some(&[6; 64])),
        Status::Failed(EngineError::Unmapped(hpa))
    );
}
