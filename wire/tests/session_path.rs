//! Paths that lose frames which both ends' links carry, as behind a switch with a smaller MTU. The requester
//! must detect such a path before a request is lost, and use long frames again once the path carries them.

mod session_common;

use std::time::Duration;

use cxloe_wire::frame::Command::Start;
use cxloe_wire::session::{RequesterConfig, ResponderConfig, SessionEvent};
use session_common::*;

/// Length of the longest frame of both links.
const LONG: usize = 4_151;

fn pair() -> Pair {
    let cn = RequesterConfig { max_frame: LONG, ..requester_config() };
    Pair::with(cn, ResponderConfig::new(MN, LONG, 1000, 6))
}

/// Lets `time` pass on a path that carries frames of at most `up` and `down` bytes.
fn run_narrow(p: &mut Pair, time: Duration, up: usize, down: usize) {
    p.run_with(time, |f| f.len() <= up, |f| f.len() <= down);
}

/// If the path is narrow in one direction, the session must still get frames that pass in both directions, and requests
/// must be answered.
#[test]
fn frames_fit_the_path_and_not_only_the_links() {
    for (up, down) in [(1_514, LONG), (LONG, 1_514), (1_600, 1_514)] {
        let mut p = pair();
        p.requester.connect(p.now);
        run_narrow(&mut p, 2_000 * MS, up, down);
        let opened = SessionEvent::Opened { incarnation: 1000, resumed: false };
        assert_eq!(
            p.events(),
            [opened, SessionEvent::PathNarrow { lost: LONG, used: 1_514 }],
            "{up}, {down}"
        );
        let status = p.requester.status();
        assert_eq!((status.max_frame, status.path_loses), (1_514, Some(LONG)));
        p.write(0, 0, 7, 1);
        run_narrow(&mut p, 100 * MS, up, down);
        assert_eq!(p.done.0, [Done::Written(1)]);
    }
}

/// The requester must try shorter and shorter frames.
#[test]
fn a_path_may_be_narrower_than_ethernet() {
    let mut p = pair();
    p.requester.connect(p.now);
    run_narrow(&mut p, 3_000 * MS, 1_464, 1_464);
    assert!(p.events().contains(&SessionEvent::PathNarrow { lost: LONG, used: 1_294 }));
}

/// A path that carries all frames must cost nothing: the session opens at once, with the longest frames of the links.
#[test]
fn a_wide_path_is_not_suspected() {
    let mut p = pair();
    p.connect();
    let status = p.requester.status();
    assert_eq!((status.max_frame, status.path_loses, p.events()), (LONG, None, vec![]));
}

/// Once the path carries long frames, a session with long frames must replace the narrow one, while requests
/// are answered.
#[test]
fn a_path_that_was_widened_is_used() {
    let mut p = pair();
    p.requester.connect(p.now);
    run_narrow(&mut p, 2_000 * MS, 1_514, 1_514);
    run_narrow(&mut p, Duration::from_secs(60), 1_514, 1_514);
    assert_eq!(p.requester.status().path_loses, Some(LONG));
    assert_eq!(p.responder.totals().sessions, 1, "Pings that are lost change nothing");
    p.events();
    for token in 0..110 {
        p.write(0, 64 * token, 1, token);
        p.run(100 * MS);
    }
    assert_eq!(p.done.0.len(), 110);
    let status = p.requester.status();
    assert_eq!((status.max_frame, status.path_loses), (LONG, None));
    assert_eq!(
        p.events(),
        [SessionEvent::PathWide, SessionEvent::Opened { incarnation: 1000, resumed: false }]
    );
}

/// A memory node that stops between its HelloAck and the StartAck must not make the path count as narrow.
#[test]
fn a_node_that_stops_is_not_taken_for_a_narrow_path() {
    let mut p = pair();
    p.requester.connect(p.now);
    // The network first loses every Start, then every frame to the memory node, and finally nothing.
    let mut starts = 0;
    p.run_with(
        Duration::from_secs(5),
        |f| {
            starts += usize::from(code(f) == Start);
            starts == 0 || (code(f) != Start && starts < 6)
        },
        |_| true,
    );
    p.run(Duration::from_secs(3));
    assert!(p.requester.is_open());
    assert_eq!(p.requester.status().path_loses, None);
}

/// When the link's frame length changes, the limit found on the old path must be dropped.
#[test]
fn a_change_of_the_link_forgets_the_path() {
    let mut p = pair();
    p.requester.connect(p.now);
    run_narrow(&mut p, 2_000 * MS, 1_514, 1_514);
    assert_eq!(p.requester.status().path_loses, Some(LONG));
    p.requester.set_max_frame(4_000, p.now);
    p.run(200 * MS);
    assert_eq!((p.requester.status().max_frame, p.requester.status().path_loses), (4_000, None));
}
