//! Admission of sessions: limits that must hold against invented CNs (R10).

mod session_common;

use cxloe_wire::frame::{Command::*, HelloStatus, Mac};
use cxloe_wire::session::{Requester, RequesterConfig, ResponderConfig, ResponderEvent};
use session_common::*;

#[test]
fn who_may_have_a_session_and_how_many() {
    let mut p = Pair::new();
    p.memory.closed = true;
    p.requester.connect(p.now);
    p.run(100 * MS);
    assert_eq!(p.events(), [refused(HelloStatus::NotAllowed)]);

    let mut p = Pair::with(requester_config(), ResponderConfig { sessions_max: 1, ..responder_config() });
    p.connect();
    let mut config = requester_config();
    config.identity.own = Mac([2, 0, 0, 0, 0, 9]);
    let first = std::mem::replace(&mut p.requester, Requester::new(config));
    p.requester.connect(p.now);
    p.run(100 * MS);
    assert_eq!(p.events(), [refused(HelloStatus::NoResources)]);
    // The slot of the first session becomes free once that session has been silent for long enough.
    drop(first);
    p.run(20_000 * MS);
    assert!(p.requester.is_open());
    assert!(p.mn_events().contains(&ResponderEvent::Expired(CN)));
}

/// Makes an invented CN and runs its handshake. Returns the CN, and the Start that it sends after the HelloAck.
fn invented(p: &mut Pair, number: u32) -> (Requester, Vec<Vec<u8>>) {
    let [a, b, c, d] = number.to_be_bytes();
    let mut config = requester_config();
    config.identity.own = Mac([6, 1, a, b, c, d]);
    config.seed = (u64::from(number) + 7).into();
    let mut stranger = Requester::new(config);
    let mut up = Sent::default();
    stranger.connect(p.now);
    stranger.poll(p.now, &mut up, &mut Log::default());
    p.deliver_up(&up.frames);
    for mut frame in p.take_down() {
        stranger.handle(&mut frame, p.now, &mut up, &mut Log::default());
    }
    up.frames.clear();
    stranger.poll(p.now, &mut up, &mut Log::default());
    (stranger, up.frames)
}

#[test]
fn r10_invented_cns_hold_few_sessions_and_none_that_a_cn_with_memory_needs() {
    let config = ResponderConfig { sessions_max: 4, guests_max: 3, ..responder_config() };
    let mut p = Pair::with(requester_config(), config);
    p.memory.strangers = true;
    for number in 0..300 {
        let (_, start) = invented(&mut p, number);
        p.deliver_up(&start);
        p.take_down();
    }
    assert_eq!(p.responder.sessions(), 3);
    p.connect();
    assert!(p.responder.has_session(CN) && p.responder.sessions() == 4);

    // Even if guests may have all sessions, a CN with memory must displace one of them.
    let config = ResponderConfig { sessions_max: 4, guests_max: 9, ..responder_config() };
    let mut p = Pair::with(requester_config(), config);
    p.memory.strangers = true;
    for number in 0..9 {
        let (_, start) = invented(&mut p, number);
        p.deliver_up(&start);
        p.take_down();
        p.pass(MS);
    }
    assert_eq!(p.responder.sessions(), 4);
    p.connect();
    assert!(p.responder.has_session(CN) && p.responder.sessions() == 4);
    let first = Mac([6, 1, 0, 0, 0, 0]);
    assert!(!p.responder.has_session(first) && p.mn_events().contains(&ResponderEvent::Ended(first)));
    // All four CNs have memory here, so none of their sessions may be displaced: a further CN must be refused.
    let mut p = Pair::with(requester_config(), ResponderConfig { sessions_max: 4, ..responder_config() });
    for number in 0..4 {
        let (_, start) = invented(&mut p, number);
        p.deliver_up(&start);
        p.take_down();
    }
    p.requester.connect(p.now);
    p.run(100 * MS);
    assert_eq!(p.events(), [refused(HelloStatus::NoResources)]);
}

#[test]
fn r10_an_offer_outlasts_those_to_others_and_a_few_in_its_own_name() {
    let mut p = Pair::new();
    p.memory.strangers = true;
    p.requester.connect(p.now);
    exchange(&mut p, 1);
    p.poll();
    let start = p.take_up();
    assert_eq!(codes(&start), [Start]);
    for number in 0..3_000 {
        invented(&mut p, number);
    }
    // Another station sends Hellos in this CN's name repeatedly. The station gets answers, but must not be
    // able to start a session with them.
    for seed in 0..10 {
        let mut other = Requester::new(RequesterConfig { seed: (900 + seed).into(), ..requester_config() });
        let mut up = Sent::default();
        other.connect(p.now);
        other.poll(p.now, &mut up, &mut Log::default());
        p.deliver_up(&up.frames);
        assert_eq!(codes(&p.take_down()), [HelloAck]);
    }
    p.deliver_up(&start);
    p.carry_down();
    assert!(p.requester.is_open());
}

#[test]
fn r10_a_flood_of_hellos_takes_bounded_room_and_disturbs_nobody() {
    let mut p = Pair::open();
    let mut config = requester_config();
    for i in 0..5_000_u32 {
        let [a, b, c, d] = i.to_be_bytes();
        config.identity.own = Mac([6, 1, a, b, c, d]);
        config.seed = u64::from(i).into();
        let mut flood = Requester::new(config.clone());
        let mut up = Sent::default();
        flood.connect(p.now);
        flood.poll(p.now, &mut up, &mut Log::default());
        p.deliver_up(&up.frames);
        assert_eq!(codes(&p.take_down()), [HelloAck]);
    }
    assert_eq!(p.responder.sessions(), 1);
    // Hellos with other versions cause events as well, and their number must be limited too.
    p.write(0, 0, 1, 1);
    p.run(MS);
    assert_eq!(p.done.0, [Done::Written(1)]);
    // Frames that are not for this node, or that come from a group address, must be dropped.
    let dropped = p.responder.totals().dropped_foreign;
    let mut q = Pair::new();
    q.requester.connect(q.now);
    q.poll();
    let hello = q.take_up().remove(0);
    for (at, byte) in [(5, 0x77), (6, 0x03)] {
        let mut frame = hello.clone();
        frame[at] = byte;
        p.deliver_up([&frame]);
    }
    assert_eq!(p.take_down().len(), 0);
    assert_eq!(p.responder.totals().dropped_foreign, dropped + 2);
}
