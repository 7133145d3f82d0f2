//! Nodes of two releases together, as during a rolling upgrade and back: one supports versions 1 and 2 of the
//! protocol, the other only version 1. The tests are about the agreement on a version: no keys are used, so
//! version 2 has the rules of version 1 here.

mod session_common;

use std::ops::RangeInclusive;

use cxloe_wire::frame::{Direction, HelloStatus, LINE_SIZE, Message, Seal, Space};
use cxloe_wire::session::{Responder, ResponderConfig, ResponderEvent, SessionEvent};
use session_common::*;

/// Versions of a release before an upgrade, and of the release after it.
const BEFORE: RangeInclusive<u16> = 1..=1;
const AFTER: RangeInclusive<u16> = 1..=2;

fn pair(cn: RangeInclusive<u16>, mn: RangeInclusive<u16>) -> Pair {
    let mut p = Pair::new();
    p.requester.set_versions(cn);
    p.responder.set_versions(mn);
    p
}

/// Returns the versions of the Hellos that the CN sends until it has a session, for `time` at most.
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

/// Replaces the memory node by another release with the same memory.
fn replace(p: &mut Pair, versions: RangeInclusive<u16>) {
    p.responder = Responder::new(ResponderConfig { seed: 99.into(), ..responder_config() });
    p.responder.set_versions(versions);
}

#[test]
fn the_newest_common_version_is_used() {
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

/// The memory node is upgraded, downgraded and upgraded again, while the CN keeps the old version. Requests under way
/// must be executed once, and no session refused.
#[test]
fn an_upgrade_and_back_loses_nothing() {
    let mut p = pair(BEFORE, BEFORE);
    p.connect();
    for (token, versions) in (100..).zip([AFTER, BEFORE, AFTER]) {
        p.write(0, token * LINE_SIZE as u64, token as u8, token);
        // The request was sent and lost together with the memory node.
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
fn no_common_version_is_reported_once_and_may_change() {
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

/// If a refusal of the version was forged, or the memory node is being upgraded, the older version must not
/// be kept.
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
    // The Hello for version 1 is answered by a node that also supports version 2, so the CN asks for 2 again.
    let versions = asked(&mut p, 1_000 * MS);
    assert_eq!((versions[0], versions[1..].iter().all(|v| *v == 2)), (1, true), "{versions:?}");
    assert!(p.requester.is_open() && versions.len() > 1);
}

/// Frames of a later release must be decoded, as the version fields have the same place in all versions.
#[test]
fn hellos_of_any_version_are_understood() {
    for version in [0, 2, 3, u16::MAX] {
        let mut p = pair(BEFORE, BEFORE);
        p.requester.connect(p.now);
        p.poll();
        let mut frame = p.take_up().remove(0);
        frame[25..27].copy_from_slice(&version.to_be_bytes());
        // Reserved fields may have a meaning in a later version.
        frame[51..65].fill(0xaa);
        Seal::OUTSIDE.seal(Direction::ToMn, Space::Control, &mut frame, 65, 0);
        p.deliver_up([&frame]);
        let ack = p.offer.expect("an answer");
        assert_eq!((ack.status, ack.version_min, ack.version_max), (HelloStatus::VersionMismatch, 1, 1));
    }
}
