//! Change from one session to the next while operations continue: how long each operation waits, in virtual
//! time, for each frame of the handshake that may be lost.

mod session_common;

use std::sync::Arc;
use std::time::Duration;

use cxloe_wire::frame::Command;
use cxloe_wire::session::{KeyPair, NodeKey, RequesterConfig, ResponderConfig, Timing};
use session_common::*;

/// Number of sessions replaced in each run.
const REPLACEMENTS: u64 = 20;

/// Makes both ends with keys that are replaced every 20 ms, and a measured round trip of 100 us.
fn open() -> Pair {
    let [cn, mn] = [1, 2].map(|byte| Arc::new(NodeKey::from_bytes([byte; 32])));
    let keys = KeyPair { own: Arc::clone(&cn), peer: mn.public(), epoch_ns: 1_700_000_000_000_000_000 };
    let timing = Timing { rekey_every: 20 * MS, ..Timing::default() };
    let config = RequesterConfig { keys: Some(keys), timing, ..requester_config() };
    let mut p = Pair::with(config, ResponderConfig { node_key: Some(mn), ..responder_config() });
    p.memory.key = Some(cn.public());
    p.connect();
    p.measure();
    p
}

/// Reads one line after another until [`REPLACEMENTS`] sessions were replaced, on a network that loses every second
/// frame of the kind `lost`. Returns the longest duration of a read, and the number of reads.
fn longest_read(p: &mut Pair, lost: Option<Command>) -> (Duration, u64) {
    let (mut longest, mut reads, mut turn) = (Duration::ZERO, 0, 0_u32);
    let before = p.requester.counters().sessions;
    while p.requester.counters().sessions < before + REPLACEMENTS {
        let since = p.now;
        let mut made = false;
        while p.done.0.len() as u64 == reads {
            made = made || p.requester.read(0, 0, reads, p.now, &mut p.up).is_ok();
            let mut passes = |frame: &Vec<u8>| {
                let hit = lost == Some(code(frame));
                turn += u32::from(hit);
                !hit || turn.is_multiple_of(2)
            };
            p.poll();
            let up: Vec<_> = p.take_up().into_iter().filter(&mut passes).collect();
            let down: Vec<_> = p.take_down().into_iter().filter(&mut passes).collect();
            p.pass(50 * US);
            p.deliver_up(&up);
            p.deliver_down(&down);
            p.compute();
        }
        assert_eq!(p.done.0.last(), Some(&Done::Read(reads, vec![0])));
        longest = longest.max(p.now - since);
        reads += 1;
    }
    (longest, reads)
}

#[test]
fn no_operation_waits_a_millisecond_for_a_replacement() {
    for lost in
        [None, Some(Command::Hello), Some(Command::HelloAck), Some(Command::Start), Some(Command::StartAck)]
    {
        let mut p = open();
        let (longest, _) = longest_read(&mut p, lost);
        assert!(longest <= MS, "{longest:?} with every other {lost:?} lost");
    }
}

#[test]
fn what_was_answered_before_a_replacement_is_not_asked_again() {
    let mut p = open();
    let (_, reads) = longest_read(&mut p, None);
    assert_eq!(p.memory.log.len() as u64, reads, "each once");
}
