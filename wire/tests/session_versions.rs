//! Nodes of two releases beside each other, as in a rolling upgrade and back: one speaks versions 1 and 2 of the protocol,
//! the other version 1 alone. (Version 1 is the only one so far; what is tested is how both ends agree on one.)

mod session_common;

use std::ops::RangeInclusive;

use cxloe_wire::frame::{Direction, HelloStatus, LINE_SIZE, Message, Seal, Space};
use cxloe_wire::session::{Responder, ResponderConfig, ResponderEvent, SessionEvent};
use session_common::*;

/// What a release before an upgrade speaks, and the one after it.
const BEFORE: RangeInclusive<u16> = 1..=1;
const AFTER: RangeInclusive<u16> = 1..=2;

fn pair(cn: RangeInclusive<u16>, mn: RangeInclusive<u16>) -> Pair {
    let mut p = Pair::new();
    p.requester.set_versions(cn);
    p.responder.set_versions(mn);
    p
}

/// The versions of the Hellos among the frames that the CN sends until it has a session, at most for `time`.
fn asked(p: &mut Pair, time: std::time::Duration) -> Vec<u16> {
    let (end, mut versions) = (p.now + time, Vec::new());
    while p.now < end && !p.requester.is_open() {
        p.poll();
        let frames = p.take_up();
        for frame in &frames {
            if let Ok((_, Message::Hello(hello))) = Message::parse(frame) {
                versions.push(hello.version);
            }
        }
        p.deliver_up(&frames);
        p.carry_down();
        p.pass(MS);
    }
    versions
}

/// The memory node as another release, with the memory it had.
fn replace(p: &mut Pair, versions: RangeInclusive<u16>) {
    p.responder = Responder::new(ResponderConfig { seed: 99.into(), ..responder_config() });
    p.responder.set_versions(versions);
}

#[test]
fn the_newest_version_in_common_is_spoken() {
    for (cn, mn, expected) in [
        (AFTER, AFTER, vec![2]),
        (BEFORE, BEFORE, vec![1]),
        (BEFORE, AFTER, vec![1]),
        (AFTER, BEFORE, vec![2, 1]),
        (2..=5, 3..=4, vec![5, 4]),
    ] {
        let mut p = pair(cn.clone(), mn.clone());
        p.requester.connect(p.now);
        assert_eq!(asked(&mut p, 100 * MS), expected, "{cn:?} and {mn:?}");
        assert!(p.requester.is_open());
        assert_eq!(p.events(), [SessionEvent::Opened { incarnation: 1000, resumed: false }]);
    }
}

/// The memory nodes first, then the compute nodes, and back: what is under way is done once, and nobody is refused.
#[test]
fn an_upgrade_and_back_loses_nothing() {
    let mut p = pair(BEFORE, BEFORE);
    p.connect();
    for (token, versions) in (100..).zip([AFTER, BEFORE, AFTER]) {
        p.write(0, token * LINE_SIZE as u64, token as u8, token);
        // It was sent, and the memory node went away with it.
        p.take_up();
        replace(&mut p, versions);
        p.run(10_000 * MS);
        assert!(p.requester.is_open());
        assert_eq!(p.done.0, [Done::Written(token)], "once");
        assert_eq!(p.memory.log.len(), 1, "{:?}", p.memory.log);
        p.done.0.clear();
        p.memory.log.clear();
        let events = p.events();
        assert!(events.iter().all(|e| !matches!(e, SessionEvent::Refused { .. })), "{events:?}");
    }
}

#[test]
fn nothing_in_common_is_said_once_and_may_change() {
    let mut p = pair(2..=2, BEFORE);
    p.requester.connect(p.now);
    let versions = asked(&mut p, 5_000 * MS);
    assert!(versions.len() > 2 && versions.iter().all(|v| *v == 2), "{versions:?}");
    let status = HelloStatus::VersionMismatch;
    assert_eq!(p.events(), [SessionEvent::Refused { status, version_min: 1, version_max: 1 }]);
    assert!(p.mn_events().contains(&ResponderEvent::VersionMismatch { cn: CN, version: 2 }));
    replace(&mut p, AFTER);
    asked(&mut p, 5_000 * MS);
    assert!(p.requester.is_open(), "it asks again by itself");
}

/// The refusal comes from somebody else, or from a memory node that is upgraded just then: the older version is not kept.
#[test]
fn an_older_version_than_need_be_is_not_taken() {
    let mut p = pair(AFTER, AFTER);
    p.requester.connect(p.now);
    p.poll();
    let hello = p.take_up();
    p.responder.set_versions(BEFORE);
    p.deliver_up(&hello);
    p.responder.set_versions(AFTER);
    p.carry_down();
    // Until the memory node has forgotten the older offer, which it keeps for a moment.
    let versions = asked(&mut p, 1_000 * MS);
    assert_eq!((versions[0], versions[1..].iter().all(|v| *v == 2)), (1, true), "{versions:?}");
    assert!(p.requester.is_open() && versions.len() > 1);
}

/// Frames as a release writes that knows nothing of later versions: what tells versions apart has the same place in all.
#[test]
fn hellos_of_any_version_are_understood() {
    for version in [0, 2, 3, u16::MAX] {
        let mut p = pair(BEFORE, BEFORE);
        p.requester.connect(p.now);
        p.poll();
        let mut frame = p.take_up().remove(0);
        frame[25..27].copy_from_slice(&version.to_be_bytes());
        // What was reserved may mean something by then.
        frame[51..65].fill(0xaa);
        Seal::OUTSIDE.seal(Direction::ToMn, Space::Control, &mut frame, 65, 0);
        p.deliver_up([&frame]);
        let ack = p.offer.expect("an answer");
        assert_eq!((ack.status, ack.version_min, ack.version_max), (HelloStatus::VersionMismatch, 1, 1));
    }
}
