//! Sessions between nodes' keys: admission, refusals, and attacks by a stranger on the network segment.

mod session_common;

use std::sync::Arc;
use std::time::Duration;

use cxloe_wire::frame::keyed::{ACK_FRAME_LEN, CALL_AT, COOKIE_FRAME_LEN, HELLO_FRAME_LEN, MAC1_AT, MAC2_AT};
use cxloe_wire::frame::{Command, Direction, HelloStatus, LINE_SIZE, Mac, PublicKey, Seal, Space};
use cxloe_wire::machine::StateMachine;
use cxloe_wire::session::{
    KeyPair, NodeKey, OpError, Rejected, RequesterConfig, ResponderConfig, ResponderEvent, SessionEvent,
    Timing,
};
use session_common::*;

fn cn_key() -> Arc<NodeKey> {
    Arc::new(NodeKey::from_bytes([1; 32]))
}

fn mn_key() -> Arc<NodeKey> {
    Arc::new(NodeKey::from_bytes([2; 32]))
}

fn pair_of(own: &Arc<NodeKey>, peer: PublicKey) -> KeyPair {
    KeyPair { own: Arc::clone(own), peer, epoch_ns: 1_700_000_000_000_000_000 }
}

fn keyed_cn() -> RequesterConfig {
    RequesterConfig { keys: Some(pair_of(&cn_key(), mn_key().public())), ..requester_config() }
}

fn keyed_mn() -> ResponderConfig {
    ResponderConfig { node_key: Some(mn_key()), ..responder_config() }
}

/// Makes both ends with keys; the CN's key is registered at the memory node.
fn keyed() -> Pair {
    let mut p = Pair::with(keyed_cn(), keyed_mn());
    p.memory.key = Some(cn_key().public());
    p
}

/// Returns the Hello that the CN sends first.
fn hello_of(p: &mut Pair) -> Vec<u8> {
    p.requester.connect(p.now);
    p.compute();
    p.poll();
    let hello = p.take_up().pop().expect("a Hello");
    assert_eq!((code(&hello), hello.len()), (Command::Hello, HELLO_FRAME_LEN));
    hello
}

fn sent_by_mn(p: &mut Pair) -> usize {
    p.compute();
    p.take_down().len()
}

#[test]
fn a_session_between_keys_is_sealed_and_carries_data() {
    let mut p = keyed();
    p.connect();
    assert_eq!(p.requester.status().integrity, "sealed");
    assert_eq!(p.responder.statuses(p.now)[0].integrity, "sealed");
    p.write(0, 0x40, 7, 1);
    p.read(0, 0x40, 2);
    let frame = p.up.frames[0].clone();
    assert!(!frame.windows(8).any(|bytes| bytes == [7; 8]), "the line is encrypted");
    p.run(MS);
    assert_eq!(p.done.0, [Done::Written(1), Done::Read(2, vec![7])]);
    p.assert_at_rest();
}

#[test]
fn a_sealed_page_takes_one_frame_at_an_mtu_of_9000() {
    let max_frame = 9000 + 14;
    let mut p =
        Pair::with(RequesterConfig { max_frame, ..keyed_cn() }, ResponderConfig { max_frame, ..keyed_mn() });
    p.memory.key = Some(cn_key().public());
    p.requester.connect(p.now);
    p.run(3_000 * MS);
    assert!(p.requester.is_open());
    let page: Vec<u8> = (0..64_u8).flat_map(|line| [line; LINE_SIZE]).collect();
    p.up.frames.clear();
    p.requester.burst_write(0, 0, u64::MAX, &page, 1, p.now, &mut p.up).expect("a page in one burst");
    p.compute();
    assert_eq!(p.up.frames.len(), 1, "the frames of a page that is written");
    p.carry_up();
    p.carry_down();
    p.requester.burst_read(0, 0, 64, 2, p.now, &mut p.up).expect("a page in one burst");
    p.run(MS);
    assert_eq!(p.done.0, [Done::Written(1), Done::Read(2, (0..64).collect())]);
    p.assert_at_rest();
}

#[test]
fn without_keys_a_session_says_that_it_is_insecure() {
    let p = Pair::open();
    assert_eq!(p.requester.status().integrity, "insecure");
    assert_eq!(p.responder.statuses(p.now)[0].integrity, "insecure");
}

/// Configurations appear in logged errors, so their debug output must not show keys.
#[test]
fn no_key_is_shown() {
    let key = b"not for the log file"[..].into();
    let cn = RequesterConfig { key: Some(key), ..keyed_cn() };
    let mn = ResponderConfig { key: cn.key.clone(), ..keyed_mn() };
    let shown = format!("{cn:?} {mn:?} {:?}", Pair::with(cn.clone(), mn.clone()).requester.status());
    assert!(shown.contains("PreSharedKey") && shown.contains("NodeKey"), "{shown}");
    // The output is searched for the secrets as text and as numbers. All bytes of a node's key are equal in this test.
    for secret in ["not for", "110, 111, 116", "1, 1, 1, 1", "2, 2, 2, 2", "01010101", "02020202"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn who_has_another_key_gets_no_session() {
    // The CN's key is not the one registered for its address.
    let other = Arc::new(NodeKey::from_bytes([9; 32]));
    let keys = Some(pair_of(&other, mn_key().public()));
    let mut p = Pair::with(RequesterConfig { keys, ..requester_config() }, keyed_mn());
    p.memory.key = Some(cn_key().public());
    p.requester.connect(p.now);
    p.run(100 * MS);
    assert!(!p.requester.is_open());
    let refused = SessionEvent::Refused { status: HelloStatus::NotAllowed, version_min: 1, version_max: 2 };
    assert_eq!(p.events(), [refused]);
    assert_eq!(p.mn_events()[0], ResponderEvent::KeyRefused { cn: CN, shown: Some(other.public()) });
    // No key is registered for the address.
    let mut p = keyed();
    p.memory.key = None;
    p.requester.connect(p.now);
    p.run(100 * MS);
    assert!(!p.requester.is_open());
    // The CN has a wrong key for the memory node, so its Hello must get no answer.
    let keys = Some(pair_of(&cn_key(), other.public()));
    let mut p = Pair::with(RequesterConfig { keys, ..requester_config() }, keyed_mn());
    p.memory.key = Some(cn_key().public());
    p.requester.connect(p.now);
    p.run(100 * MS);
    assert!(!p.requester.is_open() && p.events().is_empty() && !p.responder.has_handshakes());
    assert!(p.responder.totals().dropped_mac >= 2);
}

#[test]
fn no_session_downgrades_to_no_keys() {
    // The CN proves no key, though one is registered for its address.
    let mut p = Pair::with(requester_config(), keyed_mn());
    p.memory.key = Some(cn_key().public());
    p.requester.connect(p.now);
    p.run(100 * MS);
    assert!(!p.requester.is_open());
    let refused = SessionEvent::Refused { status: HelloStatus::KeyNeeded, version_min: 1, version_max: 2 };
    assert_eq!(p.events(), [refused]);
    // The memory node has no key: the CN must report that, and must not fall back to version 1.
    let mut p = Pair::with(keyed_cn(), responder_config());
    p.requester.connect(p.now);
    p.run_with(5_000 * MS, |hello| hello[26] == 2, |_| true);
    assert!(!p.requester.is_open());
    let refused =
        SessionEvent::Refused { status: HelloStatus::VersionMismatch, version_min: 1, version_max: 1 };
    assert_eq!(p.events(), [refused]);
    // A CN without a registered key must get a session without keys from a memory node that has a key.
    let mut p = Pair::with(requester_config(), keyed_mn());
    p.connect();
}

#[test]
fn a_hello_that_was_changed_or_is_repeated_leads_to_nothing() {
    for at in (0..MAC2_AT).step_by(7) {
        let mut p = keyed();
        let mut hello = hello_of(&mut p);
        hello[at] ^= 0x10;
        p.deliver_up(&[hello]);
        assert_eq!(sent_by_mn(&mut p), 0, "byte {at}");
    }
    // The Hello has a valid mac1, which any station with the node's public key can make.
    let mut p = keyed();
    p.connect();
    let mut q = keyed();
    let hello = hello_of(&mut q);
    q.deliver_up([&hello]);
    assert_eq!(sent_by_mn(&mut q), 1);
    q.deliver_up([&hello]);
    assert_eq!(sent_by_mn(&mut q), 1, "the same Hello, while it is offered a session, gets the same answer");
    q.pass(Duration::from_secs(6));
    q.responder.poll(q.now, &mut q.memory, &mut q.down);
    q.deliver_up([&hello]);
    assert_eq!((sent_by_mn(&mut q), q.responder.totals().dropped_handshake), (0, 1), "later it is a replay");
}

#[test]
fn an_answer_that_was_changed_is_not_taken_and_the_genuine_one_is() {
    let mut p = keyed();
    let hello = hello_of(&mut p);
    p.deliver_up([&hello]);
    p.compute();
    let ack = p.take_down().pop().unwrap();
    assert_eq!(ack.len(), ACK_FRAME_LEN);
    for at in (14..ACK_FRAME_LEN).step_by(5) {
        let mut changed = ack.clone();
        changed[at] ^= 1;
        p.deliver_down(&[changed]);
        p.compute();
        p.poll();
        assert!(p.take_up().iter().all(|frame| code(frame) == Command::Hello), "byte {at}");
    }
    p.deliver_down(&[ack]);
    p.compute();
    p.poll();
    assert_eq!(codes(&p.take_up()), [Command::Start]);
}

#[test]
fn keys_that_become_known_seal_the_session_there_is() {
    let mut p = Pair::with(requester_config(), keyed_mn());
    p.connect();
    p.memory.key = Some(cn_key().public());
    p.requester.set_keys(Some(pair_of(&cn_key(), mn_key().public())), p.now);
    p.write(0, 0, 5, 1);
    p.run(10 * MS);
    assert_eq!(
        (p.requester.status().integrity.as_str(), p.done.0.as_slice()),
        ("sealed", &[Done::Written(1)][..])
    );
    assert_eq!(p.responder.statuses(p.now)[0].integrity, "sealed");
}

#[test]
fn a_session_gets_new_keys_in_time_and_loses_nothing_by_it() {
    let timing = Timing { rekey_every: 20 * MS, ..Timing::default() };
    let mut p = Pair::with(RequesterConfig { timing, ..keyed_cn() }, keyed_mn());
    p.memory.key = Some(cn_key().public());
    p.connect();
    for token in 0..200 {
        if p.requester.write(0, 64 * (token % 8), &[token as u8; 64], token, p.now, &mut p.up).is_err() {
            p.run(200 * US);
            p.write(0, 64 * (token % 8), token as u8, token);
        }
        p.run(MS);
    }
    assert!(p.requester.counters().sessions >= 8, "{:?}", p.requester.counters());
    assert_eq!(p.done.0, (0..200).map(Done::Written).collect::<Vec<_>>());
    assert_eq!(p.memory.log.len(), 200, "each once");
    p.assert_at_rest();
}

#[test]
fn a_session_ends_when_its_key_is_revoked() {
    let mut p = keyed();
    p.connect();
    p.mn_events();
    p.memory.key = None;
    p.responder.end_revoked(&mut p.memory, &mut p.down);
    assert_eq!((p.responder.sessions(), p.mn_events()), (0, vec![ResponderEvent::Revoked(CN)]));
    p.run(100 * MS);
    assert_eq!((p.responder.sessions(), p.requester.counters().sessions), (0, 1));
}

/// A CN without memory must get another refusal than a CN whose key was withdrawn. When it gets memory again, it must
/// get a session at once, whatever refusals it received before.
#[test]
fn a_cn_without_memory_has_a_session_as_soon_as_it_has_memory_again() {
    for pause in [2, 8].map(Duration::from_secs) {
        let mut p = keyed();
        p.connect();
        p.memory.key = Some(PublicKey::NOBODY);
        p.responder.end_revoked(&mut p.memory, &mut p.down);
        p.run(pause);
        let events = p.events();
        let refused =
            SessionEvent::Refused { status: HelloStatus::NotAllowed, version_min: 1, version_max: 2 };
        assert!(events.contains(&refused) && !events.contains(&SessionEvent::Dead), "{events:?}");
        assert!(!p.requester.is_expected());
        let sessions = p.requester.counters().sessions;
        // The CN is given memory a moment before the memory node gets the mapping.
        p.requester.expect(p.now);
        p.run(5 * MS);
        assert!(p.requester.is_expected(), "operations wait");
        assert_eq!((p.requester.counters().sessions, p.events()), (sessions, vec![]), "nothing to report");
        p.memory.key = Some(cn_key().public());
        p.requester.expect(p.now);
        p.run(5 * MS);
        assert_eq!((p.requester.counters().sessions, p.requester.is_expected()), (sessions + 1, false));
    }
    // Without an answer, operations must wait no longer than for a silent memory node.
    let mut p = keyed();
    p.connect();
    p.memory.key = Some(PublicKey::NOBODY);
    p.responder.end_revoked(&mut p.memory, &mut p.down);
    p.run(10 * MS);
    p.requester.expect(p.now);
    assert!(p.requester.is_expected());
    p.now = p.now + Timing::default().dead_after;
    p.poll();
    assert!(!p.requester.is_expected());
}

/// A CN's requests must fail at once when its key is withdrawn, instead of waiting as for a silent memory node.
#[test]
fn a_cn_is_notified_of_its_withdrawn_key() {
    let dead = [Done::Failed(1, OpError::SessionDead, vec![])];
    let withdrawn =
        SessionEvent::Refused { status: HelloStatus::KeyWithdrawn, version_min: 1, version_max: 2 };
    // There are two cases: the Byes arrive, or they are lost and the CN sends a Hello because its session is suspect.
    for (lost, within) in [(false, 10 * MS), (true, Timing::default().suspect_after + 50 * MS)] {
        let mut p = keyed();
        p.connect();
        p.events();
        (p.memory.key, p.memory.key_withdrawn) = (Some(PublicKey::NOBODY), true);
        p.responder.end_revoked(&mut p.memory, &mut p.down);
        assert_eq!(p.down.frames.len(), 2, "nobody remembers the session who could say it again");
        if lost {
            p.take_down();
        }
        p.read(0, 0x40, 1);
        p.run(within);
        assert_eq!(p.done.0, dead, "{lost}");
        let events = p.events();
        assert!(events.contains(&withdrawn) && events.contains(&SessionEvent::Dead), "{events:?}");
        // The CN sends Hellos at the long interval, and must get a session when its key is registered again.
        (p.memory.key, p.memory.key_withdrawn) = (Some(cn_key().public()), false);
        p.run(Timing::default().hello_max + 50 * MS);
        assert!(p.requester.is_open());
    }
    // A memory node that has no key for this CN yet, for example after its start, may get it later, so
    // requests under way must wait. Forged refusals of any length must have no effect.
    let mut p = keyed();
    p.connect();
    p.memory.key = None;
    p.responder.end_revoked(&mut p.memory, &mut p.down);
    p.read(0, 0x40, 1);
    p.carry_down();
    p.compute();
    p.poll();
    let hello: Vec<_> = p.take_up().into_iter().filter(|frame| code(frame) == Command::Hello).collect();
    p.deliver_up(&hello);
    p.compute();
    let genuine = p.take_down();
    assert_eq!(
        (codes(&genuine), genuine[0].len(), genuine[0][29]),
        (vec![Command::HelloAck], ACK_FRAME_LEN, 3)
    );
    let forged = |len: usize| {
        let mut frame = genuine[0][..len].to_vec();
        frame[29] = HelloStatus::KeyWithdrawn.into();
        Seal::OUTSIDE.seal(Direction::ToCn, Space::Control, &mut frame, 89, 0);
        frame
    };
    p.deliver_down([&forged(ACK_FRAME_LEN), &forged(93)]);
    p.compute();
    p.poll();
    assert!(p.done.0.is_empty() && !p.events().contains(&SessionEvent::Dead));
    p.deliver_down(&genuine);
    p.compute();
    p.run(20 * MS);
    let refused = SessionEvent::Refused { status: HelloStatus::NotAllowed, version_min: 1, version_max: 2 };
    assert!(p.done.0.is_empty() && p.events().contains(&refused));
}

/// The key is withdrawn between the offer and the Start: no session may start, not even for a moment.
#[test]
fn an_offer_is_void_when_its_key_is_revoked() {
    let mut p = keyed();
    let hello = hello_of(&mut p);
    p.deliver_up([&hello]);
    p.compute();
    p.carry_down();
    p.compute();
    p.poll();
    let start = p.take_up();
    assert_eq!(codes(&start), [Command::Start]);
    p.memory.key = None;
    p.deliver_up(&start);
    assert_eq!((p.responder.sessions(), p.responder.totals().dropped_handshake), (0, 1));
    // For comparison, the session must start if the key stays registered.
    let mut p = keyed();
    p.connect();
}

/// A node that joins again has another key and perhaps another clock. The time stamps that it sent under its former key
/// must not lock the node out.
#[test]
fn another_key_has_another_clock() {
    let mut p = keyed();
    p.connect();
    let other = Arc::new(NodeKey::from_bytes([5; 32]));
    let keys = KeyPair { epoch_ns: 1_500_000_000_000_000_000, ..pair_of(&other, mn_key().public()) };
    let config = RequesterConfig { keys: Some(keys), seed: 1_234.into(), ..requester_config() };
    p.requester = cxloe_wire::session::Requester::new(config);
    p.memory.key = Some(other.public());
    p.responder.end_revoked(&mut p.memory, &mut p.down);
    p.take_down();
    p.connect();
    assert_eq!((p.responder.sessions(), p.responder.totals().dropped_handshake), (1, 0));
}

/// Hellos forged for one address, and Hellos from addresses without a key, must not use up the handshakes
/// that other nodes need.
#[test]
fn one_address_and_strangers_have_few_handshakes() {
    let made = |from: Mac, seed: u64| {
        let mut config = RequesterConfig { seed: (1_000 + seed).into(), ..keyed_cn() };
        config.identity.own = from;
        hello_of(&mut Pair::with(config, keyed_mn()))
    };
    let mut p = keyed();
    let flood: Vec<_> = (0..100).map(|seed| made(CN, seed)).collect();
    p.deliver_up(&flood);
    assert_eq!(std::iter::from_fn(|| p.responder.poll_handshake()).count(), 4);
    assert_eq!((p.take_down().len(), p.responder.totals().cookies), (64, 64));
    // The CN receives the cookie; the forgers do not.
    p.pass(MS);
    p.connect();
    let mut p = keyed();
    p.memory.key = None;
    let flood: Vec<_> = (0..100).map(|seed| made(Mac([2, 0, 0, 0, 1, seed as u8]), seed)).collect();
    p.deliver_up(&flood);
    assert_eq!(std::iter::from_fn(|| p.responder.poll_handshake()).count(), 16);
    assert_eq!((p.take_down().len(), p.responder.totals().dropped_full), (0, 84));
    p.memory.key = Some(cn_key().public());
    p.connect();
}

/// A station that receives the frames of an address can get cookies for it, but must not have more than eight
/// handshakes in progress under that address.
#[test]
fn one_address_has_eight_handshakes_with_cookies() {
    let caller =
        |seed: u64| Pair::with(RequesterConfig { seed: (1_000 + seed).into(), ..keyed_cn() }, keyed_mn());
    let mut callers: Vec<_> = (0..40).map(caller).collect();
    let mut p = keyed();
    let hellos: Vec<_> = callers.iter_mut().map(hello_of).collect();
    p.deliver_up(&hellos);
    let cookies = p.take_down();
    assert_eq!((cookies.len(), cookies[0].len()), (36, COOKIE_FRAME_LEN));
    p.pass(MS);
    for (caller, cookie) in callers[4..].iter_mut().zip(&cookies) {
        caller.deliver_down([cookie]);
        caller.poll();
        let hello = caller.take_up().pop().expect("a Hello with a cookie");
        assert_ne!(hello[MAC2_AT..], [0; HELLO_FRAME_LEN - MAC2_AT]);
        p.deliver_up([&hello]);
    }
    assert_eq!(std::iter::from_fn(|| p.responder.poll_handshake()).count(), 8);
    assert_eq!(p.responder.totals().dropped_full, 32);
}

#[test]
fn a_hello_that_comes_twice_is_computed_once() {
    let mut p = keyed();
    let hello = hello_of(&mut p);
    p.deliver_up([&hello, &hello]);
    p.deliver_up([&hello]);
    assert_eq!(std::iter::from_fn(|| p.responder.poll_handshake()).count(), 1);
}

/// Hellos forged for one address must cost the memory node only a few computations a second, whatever their
/// number.
#[test]
fn a_flood_in_its_name_is_computed_now_and_then_only() {
    let other = Arc::new(NodeKey::from_bytes([9; 32]));
    let mut p = keyed();
    for seed in 0..600 {
        let keys = Some(pair_of(&other, mn_key().public()));
        let config = RequesterConfig { keys, seed: (1_000 + seed).into(), ..requester_config() };
        let hello = hello_of(&mut Pair::with(config, keyed_mn()));
        p.deliver_up([&hello]);
        p.compute();
        p.pass(MS);
    }
    let begun = 600 - p.responder.totals().cookies;
    assert!((64..=64 + 600 / 20 + 1).contains(&begun), "{begun}");
    p.take_down();
    p.connect();
}

/// In a flood of Hellos in its name, a CN receives cookies for Hellos of other stations and so retries more often. It
/// must get its session soon, although the memory node answers only a few of the Hellos.
#[test]
fn a_node_gets_through_a_flood_in_its_name() {
    let other = Arc::new(NodeKey::from_bytes([9; 32]));
    let flood: Vec<_> = (0..128)
        .map(|seed| {
            let keys = Some(pair_of(&other, mn_key().public()));
            let config = RequesterConfig { keys, seed: (5_000 + seed).into(), ..requester_config() };
            hello_of(&mut Pair::with(config, keyed_mn()))
        })
        .collect();
    let mut p = keyed();
    p.deliver_up(&flood);
    p.requester.connect(p.now);
    let begun = p.now;
    for step in 0..50_000_usize {
        if p.requester.is_open() {
            break;
        }
        p.poll();
        let up = p.take_up();
        // A hundred Hellos in each millisecond, with the CN's own at different places among them.
        for place in 0..11 {
            match place == step * 7 % 11 {
                true => p.deliver_up(&up),
                false => p.deliver_up([&flood[(step * 10 + place) % flood.len()]]),
            }
        }
        p.compute();
        let down = p.take_down();
        p.deliver_down(&down);
        p.compute();
        p.pass(100 * US);
    }
    assert!(p.requester.is_open(), "{:?}", p.requester.counters());
    assert!(p.responder.totals().dropped_full > 100, "{:?}", p.responder.totals());
    assert!(p.now - begun < Duration::from_millis(300), "{:?} of its own time", p.now - begun);
}

/// Jobs that are never computed must be removed with their handshakes.
#[test]
fn handshakes_that_nobody_computes_do_not_pile_up() {
    let mut p = keyed();
    let mut made = 0;
    for round in 0..5_u64 {
        for seed in 0..8 {
            let mut config = RequesterConfig { seed: (100 * round + seed).into(), ..keyed_cn() };
            config.identity.own = Mac([2, 0, 0, 0, 2, seed as u8]);
            let hello = hello_of(&mut Pair::with(config, keyed_mn()));
            p.deliver_up([&hello]);
            made += 1;
        }
        p.pass(Duration::from_secs(6));
        p.responder.poll(p.now, &mut p.memory, &mut p.down);
    }
    assert_eq!((made, p.responder.poll_handshake().is_none()), (40, true));
}

#[test]
fn above_64_handshakes_a_cookie_is_required() {
    let mut p = keyed();
    // A station with the node's public key sends Hellos from other addresses: 64 handshakes begin, and none
    // is computed.
    let flood: Vec<_> = (0..200)
        .map(|seed: u64| {
            let mut config = RequesterConfig { seed: (1_000 + seed).into(), ..keyed_cn() };
            config.identity.own = Mac([2, 0, 0, 0, 1, seed as u8]);
            hello_of(&mut Pair::with(config, keyed_mn()))
        })
        .collect();
    p.deliver_up(&flood);
    assert_eq!(std::iter::from_fn(|| p.responder.poll_handshake()).count(), 64);
    let cookies = p.take_down();
    assert_eq!((cookies.len(), cookies[0].len()), (64, COOKIE_FRAME_LEN));
    assert_eq!((p.responder.totals().cookies, p.responder.totals().dropped_full), (64, 72));
    p.pass(MS);
    // A CN that receives frames at its address must still get a session.
    p.connect();
    assert_eq!(p.responder.totals().cookies, 65);
    // Handshakes whose jobs were lost must be removed after their time limit.
    p.run(Duration::from_secs(6));
    assert!(!p.responder.has_handshakes());
}

#[test]
fn a_flood_without_mac1_is_free_and_blocks_no_session() {
    let mut p = keyed();
    let mut hello = hello_of(&mut p);
    hello[MAC1_AT] ^= 1;
    let flood: Vec<_> = (0..10_000_u32)
        .map(|n| {
            let mut hello = hello.clone();
            hello[CALL_AT..CALL_AT + 4].copy_from_slice(&n.to_be_bytes());
            hello
        })
        .collect();
    p.deliver_up(&flood);
    assert_eq!(p.responder.totals().dropped_mac, 10_000);
    assert!(!p.responder.has_handshakes() && p.take_down().is_empty());
    p.run(50 * MS);
    assert!(p.requester.is_open());
}

/// Forged answers must not crowd out the genuine one, whatever their number and order, and no second Hello
/// may be needed.
#[test]
fn forged_answers_do_not_keep_the_genuine_one_out() {
    for (before, after) in [(1, 0), (5, 5), (0, 12), (200, 0)] {
        let mut p = keyed();
        let hello = hello_of(&mut p);
        p.deliver_up([&hello]);
        p.compute();
        let genuine = p.take_down().pop().expect("an answer");
        assert_eq!(genuine.len(), ACK_FRAME_LEN);
        // Only bytes behind the checksum are changed. So the checksum, which needs no key, stays valid.
        let forged = |number: usize| {
            let mut forged = genuine.clone();
            forged[ACK_FRAME_LEN - 1 - number % 40] ^= 1 + (number / 40) as u8;
            forged
        };
        let mut all: Vec<Vec<u8>> = (0..before).map(forged).collect();
        all.push(genuine.clone());
        // The genuine answer is sent a second time, which must make no difference.
        all.extend((before..before + after).map(forged).chain([genuine.clone()]));
        p.deliver_down(&all);
        for _ in 0..all.len() {
            p.compute();
        }
        p.poll();
        let start = p.take_up();
        assert_eq!(codes(&start), [Command::Start], "{before} before, {after} after");
        p.deliver_up(&start);
        let ack = p.take_down();
        p.deliver_down(&ack);
        assert!(p.requester.is_open());
    }
}

/// A barred memory node (one whose key was withdrawn) must get no frame but a Bye: its session ends, unanswered
/// requests fail as after silence, and no Hello is sent, with or without keys, until the node is no longer barred.
#[test]
fn who_is_barred_is_not_spoken_with() {
    let mut p = keyed();
    p.connect();
    p.read(0, 0x40, 1);
    p.take_up();
    p.requester.bar(true, p.now);
    assert!(p.requester.deadline().is_due(p.now), "at once");
    // The key is withdrawn.
    p.requester.set_keys(None, p.now);
    p.poll();
    assert!(!p.requester.is_open());
    assert_eq!(p.done.0, [Done::Failed(1, OpError::SessionDead, vec![])]);
    assert_eq!(p.events(), [SessionEvent::Barred]);
    let refused = p.requester.read(0, 0x40, 2, p.now, &mut p.up);
    assert_eq!(refused, Err(Rejected::NotConnected));
    // The memory node must get the Bye, under the session's keys, and nothing else.
    let mut sent = p.take_up();
    for _ in 0..200 {
        p.pass(100 * MS);
        p.requester.connect(p.now);
        p.poll();
        sent.extend(p.take_up());
    }
    assert!(sent.len() <= 3 && codes(&sent).iter().all(|code| *code == Command::Bye), "{:?}", codes(&sent));

    p.requester.bar(false, p.now);
    p.requester.set_keys(keyed_cn().keys, p.now);
    p.run(100 * MS);
    assert!(p.requester.is_open());
    assert_eq!(p.requester.status().integrity, "sealed");
}
