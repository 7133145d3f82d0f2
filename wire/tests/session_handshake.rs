//! Opening, replacing, losing, refusing and ending sessions, on two ends without a network.

mod session_common;

use cxloe_wire::frame::{Command, Command::*, FaultStatus, HelloStatus, LINE_SIZE, Mac, Message};
use cxloe_wire::session::{
    OpError, Rejected, Requester, RequesterConfig, Responder, ResponderConfig, ResponderEvent, SessionEvent,
};
use session_common::*;

const KEY: &[u8] = b"a key of sixteen bytes at least";

fn refused(status: HelloStatus) -> SessionEvent {
    SessionEvent::Refused { status, version_min: 1, version_max: 1 }
}

fn codes(frames: &[Vec<u8>]) -> Vec<Command> {
    frames.iter().map(|f| code(f)).collect()
}

/// Carries one frame up and its answer down, `times` times; a handshake is two.
fn exchange(p: &mut Pair, times: usize) {
    for _ in 0..times {
        p.poll();
        p.carry_up();
        p.carry_down();
    }
}

/// The MN as a new process.
fn restart(p: &mut Pair, incarnation: u64, change: impl FnOnce(&mut ResponderConfig)) {
    let mut config = ResponderConfig { incarnation, seed: 99, ..responder_config() };
    change(&mut config);
    p.responder = Responder::new(config);
}

#[test]
fn four_frames_open_a_session() {
    let mut p = Pair::new();
    assert_eq!(p.requester.read(0, 0, 0, p.now, &mut p.up), Err(Rejected::NotConnected));
    p.requester.connect(p.now);
    p.poll();
    let hello = p.take_up();
    assert_eq!(codes(&hello), [Hello]);
    p.deliver_up(&hello);
    assert_eq!((p.responder.sessions(), codes(&p.down.frames)), (0, vec![HelloAck]));
    p.carry_down();
    p.poll();
    assert_eq!(codes(&p.up.frames), [Start]);
    assert!(!p.requester.is_open(), "nothing may be sent before StartAck");
    p.carry_up();
    assert_eq!((p.responder.sessions(), codes(&p.down.frames)), (1, vec![StartAck]));
    p.carry_down();
    assert!(p.requester.is_open());
    assert_eq!(p.events(), [SessionEvent::Opened { incarnation: 1000, resumed: false }]);
    assert_eq!(p.mn_events(), [ResponderEvent::Started { cn: CN, replaced: false }]);
    assert_eq!((p.requester.streams(), p.requester.burst_read_lines_max()), (2, 23));
}

#[test]
fn every_frame_of_the_handshake_may_be_lost_once_or_doubled() {
    for lost in [Hello, HelloAck, Start, StartAck] {
        let mut p = Pair::new();
        p.requester.connect(p.now);
        let mut first = true;
        let mut pass = |f: &Vec<u8>| code(f) != lost || !std::mem::take(&mut first);
        let mut loses = |f: &Vec<u8>| pass(f);
        match lost {
            Hello | Start => p.run_with(60 * MS, &mut loses, |_| true),
            _ => p.run_with(60 * MS, |_| true, &mut loses),
        }
        assert!(p.requester.is_open(), "{lost:?} lost");
        p.write(0, 0, 1, 1);
        p.run(MS);
        assert_eq!(p.done.0, [Done::Written(1)]);
        assert_eq!(p.responder.totals().sessions, 1, "{lost:?} lost: still one session");
    }
    let mut p = Pair::new();
    p.requester.connect(p.now);
    for _ in 0..2 {
        p.poll();
        let frames = p.take_up();
        p.deliver_up(frames.iter().chain(&frames));
        let frames = p.take_down();
        p.deliver_down(frames.iter().chain(&frames));
    }
    assert!(p.requester.is_open());
    assert_eq!((p.responder.totals().sessions, p.requester.counters().sessions), (1, 1));
}

/// Makes the requester suspect its session and offer a new one, while the frames it has sent wait.
fn suspect(p: &mut Pair) -> Vec<Vec<u8>> {
    let mut held = Vec::new();
    p.run_with(
        1_200 * MS,
        |f| {
            held.push(f.clone());
            false
        },
        |_| true,
    );
    assert_eq!(p.events(), [SessionEvent::Suspect]);
    held
}

#[test]
fn the_old_session_goes_on_until_start() {
    let mut p = Pair::open();
    p.write(0, 0, 1, 1);
    let held = suspect(&mut p);
    let hello = held.iter().rev().find(|f| code(f) == Hello).expect("a Hello").clone();
    p.deliver_up([&hello]);
    assert_eq!(codes(&p.take_down()), [HelloAck]);
    // The Hello alone has ended nothing.
    p.write(0, 64, 2, 2);
    let frames: Vec<_> = held.into_iter().filter(|f| code(f) == WriteReq).chain(p.take_up()).collect();
    p.deliver_up(&frames);
    p.carry_down();
    assert_eq!(p.done.0, [Done::Written(1), Done::Written(2)]);
    // It has answered after all, so it is kept.
    assert_eq!(p.requester.status().state, "open");
    p.run(100 * MS);
    assert_eq!(p.responder.totals().sessions, 1);
}

#[test]
fn queued_writes_of_an_old_session_are_never_executed_after_start() {
    let mut p = Pair::open();
    p.write(0, 0, 1, 1);
    let held = suspect(&mut p);
    let queued: Vec<_> = held.into_iter().filter(|f| code(f) == WriteReq).collect();
    assert!(queued.len() > 1);
    p.run(1_000 * MS);
    assert_eq!(p.done.0, [Done::Written(1)], "repeated in the new session");
    assert_eq!(p.events(), [SessionEvent::Opened { incarnation: 1000, resumed: true }]);
    p.write(0, 0, 2, 2);
    p.run(MS);
    p.deliver_up(&queued);
    assert_eq!(p.memory.lines[&0], [2; LINE_SIZE]);
    assert_eq!(p.responder.totals().dropped_trailer, queued.len() as u64);
}

#[test]
fn delayed_and_replayed_handshakes_change_nothing() {
    let mut p = Pair::new();
    p.requester.connect(p.now);
    let mut seen = Vec::new();
    for _ in 0..2 {
        p.poll();
        seen.extend(p.up.frames.clone());
        p.carry_up();
        seen.extend(p.down.frames.clone());
        p.carry_down();
    }
    assert!(p.requester.is_open());
    p.pass(200 * MS);
    for _ in 0..3 {
        p.deliver_up(seen.iter().filter(|f| f[14] & 0x80 == 0));
        p.deliver_down(seen.iter().filter(|f| f[14] & 0x80 != 0));
        p.carry_down();
        p.take_up();
    }
    assert_eq!((p.responder.totals().sessions, p.requester.counters().sessions), (1, 1));
    p.write(0, 0, 1, 1);
    p.run(MS);
    assert_eq!(p.done.0, [Done::Written(1)]);
    // A replay between HelloAck and Start does not take the offer away.
    let old_hello = &seen[0];
    let mut q = Pair::with(
        RequesterConfig { seed: 123, ..requester_config() },
        ResponderConfig { seed: 456, ..responder_config() },
    );
    q.requester.connect(q.now);
    q.poll();
    q.carry_up();
    q.deliver_up([old_hello]);
    q.carry_down();
    q.deliver_down(seen.iter().filter(|f| f[14] & 0x80 != 0));
    exchange(&mut q, 1);
    assert!(q.requester.is_open());
}

#[test]
fn other_versions_are_refused_and_both_are_named() {
    let mut p = Pair::new();
    p.requester.connect(p.now);
    p.poll();
    let frame = p.take_up().remove(0);
    // The Hello of a CN that speaks version 7.
    let Ok((header, Message::Hello(mut hello))) = Message::parse(&frame) else { panic!("a Hello") };
    hello.version = 7;
    let mut frame = vec![0; 69];
    let message = Message::Hello(hello);
    message.emit(&header, &mut frame);
    let (seal, body) = (cxloe_wire::frame::Seal::OUTSIDE, message.body_len());
    let control = cxloe_wire::frame::Space::Control;
    seal.seal(cxloe_wire::frame::Direction::ToMn, control, &mut frame, body, 0);
    p.deliver_up([&frame]);
    let ack = p.offer.expect("an answer");
    assert_eq!((ack.status, ack.version_min, ack.version_max), (HelloStatus::VersionMismatch, 1, 1));
    assert_eq!(p.mn_events(), [ResponderEvent::VersionMismatch { cn: CN, version: 7 }]);
    p.carry_down();
    let status = HelloStatus::VersionMismatch;
    assert_eq!(p.events(), [SessionEvent::Refused { status, version_min: 1, version_max: 1 }]);
    assert!(!p.requester.is_open());
}

#[test]
fn a_second_agent_is_refused_while_the_first_one_lives() {
    let mut p = Pair::open();
    p.mn_events();
    let mut second = Requester::new(RequesterConfig { instance: 78, seed: 44, ..requester_config() });
    let mut up = Sent::default();
    second.connect(p.now);
    let end = p.now + 3_000 * MS;
    while p.now < end {
        second.poll(p.now, &mut up, &mut Log::default());
        p.deliver_up(&std::mem::take(&mut up.frames));
        let frames = p.take_down();
        // Both have the same address, so both see everything.
        for frame in &frames {
            second.handle(&mut frame.clone(), p.now, &mut up, &mut Log::default());
        }
        p.deliver_down(&frames);
        p.poll();
        p.carry_up();
        p.carry_down();
        p.pass(10 * MS);
    }
    assert_eq!(second.poll_event(), Some(refused(HelloStatus::InstanceConflict)));
    assert_eq!(second.poll_event(), None, "told once");
    let events = p.mn_events();
    assert!(!events.is_empty() && events.iter().all(|e| *e == ResponderEvent::Conflict(CN)), "{events:?}");
    assert!(p.requester.is_open());
    p.write(0, 0, 1, 1);
    p.run(MS);
    assert_eq!(p.done.0, [Done::Written(1)]);
}

#[test]
fn a_new_agent_takes_over_from_one_that_is_gone() {
    let mut p = Pair::open();
    p.mn_events();
    p.pass(100 * MS);
    p.requester = Requester::new(RequesterConfig { instance: 78, seed: 44, ..requester_config() });
    p.requester.connect(p.now);
    p.run(300 * MS);
    assert!(!p.requester.is_open(), "the old one is given time to show itself");
    p.run(1_000 * MS);
    assert!(p.requester.is_open());
    assert_eq!(p.mn_events(), [ResponderEvent::Started { cn: CN, replaced: true }]);
    assert_eq!(p.responder.sessions(), 1);
}

#[test]
fn close_ends_in_order_also_when_both_do() {
    let mut p = Pair::open();
    p.write(0, 0, 5, 1);
    p.requester.close(p.now, &mut p.done);
    assert_eq!(p.done.0, [Done::Failed(1, OpError::Closed, vec![5])]);
    assert_eq!(p.requester.read(0, 0, 0, p.now, &mut p.up), Err(Rejected::NotConnected));
    p.run(100 * MS);
    assert_eq!((p.events(), p.responder.sessions()), (vec![SessionEvent::Closed], 0));
    assert_eq!(p.requester.status().state, "closed");
    p.requester.connect(p.now);
    p.run(100 * MS);
    assert!(p.requester.is_open(), "and can be opened again");
    // Nobody answers the Bye.
    p.events();
    p.requester.close(p.now, &mut p.done);
    p.run_with(200 * MS, |_| false, |_| true);
    assert_eq!(p.events(), [SessionEvent::Closed]);
    // Both say Bye at once.
    let mut p = Pair::open();
    p.requester.close(p.now, &mut p.done);
    p.responder.drain(&mut p.down);
    p.run(100 * MS);
    assert_eq!((p.events(), p.responder.sessions()), (vec![SessionEvent::Closed], 0));
    p.run(2_000 * MS);
    assert_eq!((p.events(), p.up.frames.len()), (vec![], 0), "closed is closed");
}

#[test]
fn draining_says_bye_and_takes_nobody_new() {
    let mut p = Pair::open();
    p.responder.drain(&mut p.down);
    p.run(300 * MS);
    assert_eq!(p.events(), [SessionEvent::PeerLeft, refused(HelloStatus::Draining)]);
    assert_eq!((p.responder.sessions(), p.mn_events().last()), (0, Some(&ResponderEvent::Ended(CN))));
    // What is asked meanwhile waits for the node to come back.
    p.write(0, 0, 3, 1);
    p.run(1_000 * MS);
    restart(&mut p, 1000, |_| {});
    p.run(2_000 * MS);
    assert_eq!(p.done.0, [Done::Written(1)]);
    assert_eq!(p.events(), [SessionEvent::Opened { incarnation: 1000, resumed: true }]);
}

#[test]
fn after_a_restart_with_its_memory_everything_unanswered_goes_again_in_order() {
    let mut p = Pair::open();
    p.measure();
    for i in 0..20 {
        p.write(0, 0, i as u8, i);
    }
    p.read(0, 0, 20);
    // Some were executed before, and some of the answers are there already, out of order.
    let frames = p.take_up();
    p.deliver_up(&frames[..10]);
    let answers = p.take_down();
    p.deliver_down(&answers[..3]);
    p.deliver_down(&answers[5..7]);
    p.memory.log.clear();
    restart(&mut p, 1000, |_| {});
    p.run(3_000 * MS);
    let log: Vec<_> = (3..20).map(|i| Executed::Write(0, i)).chain([Executed::Read(0)]).collect();
    assert_eq!(p.memory.log, log);
    let done: Vec<_> = (0..20).map(Done::Written).chain([Done::Read(20, vec![19])]).collect();
    assert_eq!(p.done.0, done);
    assert_eq!(
        p.events(),
        [SessionEvent::Suspect, SessionEvent::Opened { incarnation: 1000, resumed: true }]
    );
    p.assert_at_rest();
}

#[test]
fn after_a_restart_without_its_memory_the_loss_is_reported() {
    let mut p = Pair::open();
    p.write(0, 0, 1, 1);
    p.run(MS);
    p.done.0.clear();
    restart(&mut p, 1001, |_| {});
    p.memory.lines.clear();
    p.read(0, 0, 2);
    p.write(0, 64, 7, 3);
    p.memory.log.clear();
    p.run(3_000 * MS);
    let lost = OpError::DataLost;
    assert_eq!(p.done.0, [Done::Failed(2, lost, vec![]), Done::Failed(3, lost, vec![7])]);
    assert_eq!(p.memory.log, [], "none is repeated");
    let opened = SessionEvent::Opened { incarnation: 1001, resumed: false };
    assert_eq!(
        p.events(),
        [SessionEvent::Suspect, SessionEvent::DataLost { before: 1000, now: 1001 }, opened]
    );
    // Also when the session had died in between.
    p.run_with(7_000 * MS, |_| false, |_| true);
    restart(&mut p, 1002, |_| {});
    p.run(2_000 * MS);
    assert!(p.events().contains(&SessionEvent::DataLost { before: 1001, now: 1002 }));
}

#[test]
fn smaller_frames_after_a_restart_fail_only_what_does_not_fit() {
    let mut p = Pair::open();
    p.read(0, 0, 1);
    p.requester.burst_write(0, 0, 0xFFF, &[3; 12 * LINE_SIZE], 2, p.now, &mut p.up).unwrap();
    p.requester.burst_read(0, 0, 20, 3, p.now, &mut p.up).unwrap();
    p.requester.burst_read(0, 0, 2, 4, p.now, &mut p.up).unwrap();
    p.write(0, 64, 9, 5);
    p.take_up();
    restart(&mut p, 1000, |c| c.max_frame = 290);
    p.run(3_000 * MS);
    let large = OpError::FrameTooLarge;
    assert_eq!(
        p.done.0,
        [
            Done::Failed(2, large, vec![3; 12]),
            Done::Failed(3, large, vec![]),
            Done::Read(1, vec![0]),
            Done::Read(4, vec![0, 0]),
            Done::Written(5)
        ]
    );
    assert_eq!((p.requester.burst_read_lines_max(), p.requester.burst_write_lines_max()), (4, 3));
    p.assert_at_rest();
    // And back again: larger frames and more streams than the last session had.
    p.requester.read(0, 0, 6, p.now, &mut p.up).unwrap();
    p.take_up();
    restart(&mut p, 1000, |_| {});
    p.run(3_000 * MS);
    assert_eq!((p.requester.burst_read_lines_max(), p.done.0.last()), (23, Some(&Done::Read(6, vec![0]))));
}

#[test]
fn another_number_of_streams_after_a_restart() {
    let mut p = Pair::open();
    p.read(1, 0, 1);
    p.take_up();
    for (streams, answer) in
        [(1, Done::Failed(1, OpError::FrameTooLarge, vec![])), (16, Done::Read(2, vec![0]))]
    {
        restart(&mut p, 1000, |c| c.streams_max = streams);
        p.run(7_500 * MS);
        assert!(p.requester.is_open());
        assert_eq!(p.requester.streams(), usize::from(streams.min(2)));
        p.read(1, 0, 2);
        p.run(MS);
        assert!(p.done.0.contains(&answer), "{:?}", p.done.0);
    }
    p.assert_at_rest();
}

#[test]
fn sealed_sessions_and_keys_that_do_not_match() {
    let keyed = |cn: Option<&[u8]>, mn: Option<&[u8]>| {
        let mut p = Pair::with(
            RequesterConfig { key: cn.map(Into::into), ..requester_config() },
            ResponderConfig { key: mn.map(Into::into), ..responder_config() },
        );
        p.requester.connect(p.now);
        p.run(3_000 * MS);
        p
    };
    let mut p = keyed(Some(KEY), Some(KEY));
    assert!(p.requester.is_open());
    assert_eq!((p.requester.burst_read_lines_max(), p.requester.burst_write_lines_max()), (23, 22));
    p.write(0, 0, 0x5A, 1);
    assert!(!p.up.frames.iter().any(|f| f.windows(8).any(|w| w == [0x5A; 8])), "nothing readable");
    p.read(0, 0, 2);
    p.read(0, TestMemory::END, 3);
    p.run(MS);
    let fault = OpError::Fault(FaultStatus::Nxm);
    assert_eq!(p.done.0, [Done::Written(1), Done::Read(2, vec![0x5A]), Done::Failed(3, fault, vec![])]);

    let other: &[u8] = b"another key of sixteen bytes";
    let too_short: &[u8] = b"short";
    let cases = [
        (Some(KEY), None),
        (None, Some(KEY)),
        (Some(KEY), Some(other)),
        (Some(too_short), Some(KEY)),
        (Some(KEY), Some(too_short)),
    ];
    for (cn, mn) in cases {
        let mut p = keyed(cn, mn);
        assert!(!p.requester.is_open());
        assert_eq!(p.events(), [refused(HelloStatus::Integrity)], "{cn:?} {mn:?}");
        assert_eq!(p.responder.sessions(), 0);
    }
}

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
    // The first one's place becomes free when it has been silent for long enough.
    drop(first);
    p.run(20_000 * MS);
    assert!(p.requester.is_open());
    assert!(p.mn_events().contains(&ResponderEvent::Expired(CN)));
}

/// The frames of an invented CN: its Hello, and the Start that follows its HelloAck.
fn invented(p: &mut Pair, number: u32) -> (Requester, Vec<Vec<u8>>) {
    let [a, b, c, d] = number.to_be_bytes();
    let mut config = requester_config();
    config.identity.own = Mac([6, 1, a, b, c, d]);
    config.seed = u64::from(number) + 7;
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

    // Where guests may have all sessions, one gives its up.
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
    // Once they have memory they are guests no more, and nobody takes their places.
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
    // Somebody else says Hello in this CN's name, again and again, and is answered; but cannot start what he is offered.
    for seed in 0..10 {
        let mut other = Requester::new(RequesterConfig { seed: 900 + seed, ..requester_config() });
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

/// The MTU shrinks at one end or the other: what is unanswered goes over to a session of shorter frames.
#[test]
fn a_link_of_another_length_is_followed() {
    for at_mn in [false, true] {
        let mut p = Pair::open();
        let lines = p.requester.burst_read_lines_max();
        p.write(0, 0, 1, 1);
        if at_mn {
            p.responder.set_max_frame(400);
            assert_eq!(p.responder.dismiss_outgrown(&mut p.down), 1);
        } else {
            p.requester.set_max_frame(400, p.now);
        }
        p.run(200 * MS);
        assert!(p.requester.is_open());
        assert!(p.requester.burst_read_lines_max() < lines, "at_mn {at_mn}");
        assert_eq!(p.done.0, [Done::Written(1)]);
        assert_eq!(p.responder.dismiss_outgrown(&mut p.down), 0);
        assert_eq!((p.responder.sessions(), p.responder.totals().sessions), (1, 2));
        if !at_mn {
            // And back; but never beyond what its buffers were made for.
            p.requester.set_max_frame(9_000, p.now);
            p.run(200 * MS);
            assert_eq!(p.requester.burst_read_lines_max(), lines);
        }
    }
}

#[test]
fn r10_a_flood_of_hellos_takes_bounded_room_and_disturbs_nobody() {
    let mut p = Pair::open();
    let mut config = requester_config();
    for i in 0..5_000_u32 {
        let [a, b, c, d] = i.to_be_bytes();
        config.identity.own = Mac([6, 1, a, b, c, d]);
        config.seed = u64::from(i);
        let mut flood = Requester::new(config.clone());
        let mut up = Sent::default();
        flood.connect(p.now);
        flood.poll(p.now, &mut up, &mut Log::default());
        p.deliver_up(&up.frames);
        assert_eq!(codes(&p.take_down()), [HelloAck]);
    }
    assert_eq!(p.responder.sessions(), 1);
    // With other versions they are events as well, and those are bounded too.
    p.write(0, 0, 1, 1);
    p.run(MS);
    assert_eq!(p.done.0, [Done::Written(1)]);
    // Not for this node, or from a group address.
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

#[test]
fn control_frames_repeated_or_of_another_session_are_ignored() {
    let mut p = Pair::open();
    p.pass(1_500 * MS);
    p.poll();
    let ping = p.take_up();
    assert_eq!(codes(&ping), [Ping]);
    p.deliver_up(&ping);
    let pong = p.take_down();
    assert_eq!(codes(&pong), [Pong]);
    p.deliver_up(&ping);
    assert_eq!(p.take_down().len(), 0, "a number is good once");
    p.deliver_down(&pong);
    p.deliver_down(&pong);
    assert_eq!(p.requester.counters().duplicates, 1);
    // A Bye of another session does not end this one.
    let mut q = Pair::with(requester_config(), ResponderConfig { seed: 1_234, ..responder_config() });
    q.connect();
    exchange(&mut q, 1);
    for _ in 0..3 {
        q.pass(1_500 * MS);
        exchange(&mut q, 1);
    }
    q.requester.close(q.now, &mut q.done);
    q.poll();
    let bye = q.take_up();
    assert_eq!(codes(&bye), [Bye]);
    p.deliver_up(&bye);
    assert_eq!((p.responder.sessions(), p.take_down().len()), (1, 0));
    q.deliver_up(&bye);
    assert_eq!((q.responder.sessions(), codes(&q.take_down())), (0, vec![ByeAck]));
}

#[test]
fn an_offer_can_be_started_for_a_while_only() {
    // Long after, and when the node has begun to drain.
    for drains in [false, true] {
        let mut p = Pair::new();
        p.requester.connect(p.now);
        exchange(&mut p, 1);
        p.poll();
        let start = p.take_up();
        assert_eq!(codes(&start), [Start]);
        if drains {
            p.responder.drain(&mut p.down);
        } else {
            p.pass(6_000 * MS);
            p.responder.poll(p.now);
        }
        p.deliver_up(&start);
        assert_eq!((p.responder.sessions(), p.take_down().len()), (0, 0));
    }
}

/// A Start that nobody answers is given up; until there is a new session the old one goes on.
#[test]
fn a_start_without_answer_is_given_up() {
    let mut p = Pair::open();
    p.write(0, 0, 1, 1);
    suspect(&mut p);
    let mut sent = Vec::new();
    let mut up = |f: &Vec<u8>| {
        sent.push(code(f));
        code(f) != Start
    };
    p.run_with(900 * MS, &mut up, |_| true);
    let first = sent.iter().position(|c| *c == Start).expect("a Start");
    assert!(sent.len() - first > 3 && sent[first..].iter().all(|c| *c == Start), "nothing else: {sent:?}");
    assert!(!p.requester.is_open());
    p.run_with(1_500 * MS, |f| code(f) != Start, |_| true);
    assert_eq!(p.done.0, [Done::Written(1)], "in the old session, in between");
    assert_eq!(p.responder.totals().sessions, 1);
    p.write(0, 64, 2, 2);
    p.run(1_000 * MS);
    assert_eq!(p.done.0.len(), 2);
}
