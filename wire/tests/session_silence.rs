//! R8: silence at a CN: the probe, time-outs, and the end of a session. Frames are carried by hand, so that
//! each test determines which are lost and how much time passes.

mod session_common;

use cxloe_wire::frame::{Command::*, LINE_SIZE};
use cxloe_wire::machine::StateMachine;
use cxloe_wire::session::{OpError, Rejected, SessionEvent};
use session_common::*;

/// Lets time pass until the CN sends frames. Returns these frames.
fn next_sent(p: &mut Pair) -> Vec<Vec<u8>> {
    for _ in 0..100 {
        p.poll();
        let sent = p.take_up();
        if !sent.is_empty() {
            return sent;
        }
        p.now = p.requester.deadline().at.max(p.now);
    }
    panic!("nothing is sent any more");
}

/// The last frames of a batch are lost, and no later frame reveals the loss, so the probe must.
#[test]
fn r8_a_probe_brings_back_the_tail_without_a_time_out() {
    for (lost_there, lost_back) in [(8..10, 0..0), (0..0, 7..10), (3..10, 2..3), (9..10, 0..9)] {
        let mut p = Pair::open();
        p.measure();
        (0..10).for_each(|i| p.write(0, i * 64, 1, i));
        let began = p.now;
        let sent = p.take_up();
        let arrive = sent.iter().zip(0..).filter(|(_, i)| !lost_there.contains(i));
        p.deliver_up(arrive.map(|(frame, _)| frame));
        p.pass(100 * US);
        let answers = p.take_down();
        let arrive = answers.iter().zip(0..).filter(|(_, i)| !lost_back.contains(i));
        p.deliver_down(arrive.map(|(frame, _)| frame));
        p.run(900 * US);
        assert_eq!(p.done.0.len(), 10, "lost {lost_there:?} there and {lost_back:?} back");
        let c = p.requester.counters();
        assert_eq!((c.timeouts, c.probes), (0, 1), "lost {lost_there:?} there and {lost_back:?} back");
        assert!(p.now - began <= 1_100 * US);
        p.assert_at_rest();
    }
}

#[test]
fn r8_a_probe_is_one_frame_and_comes_once_per_progress() {
    let mut p = Pair::open();
    p.measure();
    (0..10).for_each(|i| p.read(0, i * 64, i));
    let sent = p.take_up();
    p.pass(199 * US);
    p.poll();
    assert_eq!(p.take_up().len(), 0, "not before two round trips");
    p.pass(50 * US);
    p.poll();
    assert_eq!(numbers(&p.take_up()), [18], "the newest, of which nothing is known");
    p.pass(700 * US);
    p.poll();
    assert_eq!(p.take_up().len(), 0, "the next thing is the time-out");
    p.deliver_up(&sent[..1]);
    p.carry_down();
    assert_eq!(numbers(&next_sent(&mut p)), [18], "progress allows another");
    // While requests are sent, their answers show losses, so no probe is needed.
    p.deliver_up(&sent[1..2]);
    p.carry_down();
    for token in 0..4 {
        p.pass(100 * US);
        p.read(0, 0, 100 + token);
        p.take_up();
        p.poll();
        assert_eq!(p.take_up().len(), 0);
    }
    assert_eq!((p.requester.counters().probes, p.requester.counters().timeouts), (2, 0));
}

/// The newest request was answered, but its answer waits for the oldest request, whose repetition was lost too. The
/// probe must repeat the oldest.
#[test]
fn r8_a_probe_is_of_the_oldest_when_the_newest_is_known() {
    let mut p = Pair::open();
    p.measure();
    (0..3).for_each(|i| p.read(0, i * 64, i));
    p.carry_up();
    let answers = p.take_down();
    p.pass(100 * US);
    p.deliver_down(&answers[1..]);
    p.poll();
    assert_eq!(numbers(&p.take_up()), [9], "R6");
    p.pass(150 * US);
    p.poll();
    assert_eq!(p.take_up().len(), 0, "its answer may be on its way");
    p.pass(100 * US);
    p.poll();
    assert_eq!(numbers(&p.take_up()), [9]);
    assert_eq!((p.requester.counters().probes, p.requester.counters().timeouts), (1, 0));
}

/// A thread that did not run for some time finds all requests overdue at once. It must probe before it sends
/// them again.
#[test]
fn r8_a_late_poll_probes_before_it_times_out() {
    let mut p = Pair::open();
    p.measure();
    (0..10).for_each(|i| p.read(0, i * 64, i));
    let sent = p.take_up();
    p.pass(5 * MS);
    p.poll();
    assert_eq!(numbers(&p.take_up()), [18]);
    p.poll();
    p.pass(100 * US);
    p.poll();
    assert_eq!(p.take_up().len(), 0, "the probe has a round trip at least");
    p.deliver_up(&sent);
    p.carry_down();
    assert_eq!((p.done.0.len(), p.requester.counters().timeouts), (10, 0));
}

/// The memory node's thread did not run until after the time-out. No frame was lost, so no request but those that the
/// time-out repeated may be sent again.
#[test]
fn r8_a_pause_is_no_loss() {
    let mut p = Pair::open();
    p.measure();
    (0..20).for_each(|i| p.write(0, i * 64, 1, i));
    let sent = p.take_up();
    let again: Vec<_> = (0..3).flat_map(|_| next_sent(&mut p)).collect();
    assert_eq!(numbers(&again), [28, 9, 28, 9, 28], "a probe and two time-outs");
    p.deliver_up(&sent);
    p.deliver_up(&again);
    p.pass(50 * US);
    for answer in p.take_down() {
        p.deliver_down([&answer]);
        p.poll();
    }
    assert_eq!(p.done.0.len(), 20);
    let repeated = p.take_up();
    assert!(repeated.len() <= 2, "{:?}", list(&repeated));
    p.assert_at_rest();
}

#[test]
fn r8_oldest_and_newest_doubled_bounded_and_reset() {
    let mut p = Pair::open();
    p.measure();
    (0..10).for_each(|i| p.write(0, i * 64, 1, i));
    let lost = p.take_up();
    let began = p.now;
    assert_eq!(numbers(&next_sent(&mut p)), [18], "the probe");
    let mut waits = Vec::new();
    let mut last = began;
    while waits.len() < 12 {
        p.now = p.requester.deadline().at;
        p.poll();
        let sent: Vec<_> = p.take_up().into_iter().filter(|f| code(f) == WriteReq).collect();
        if !sent.is_empty() {
            assert_eq!(numbers(&sent), [9, 18]);
            waits.push((p.now - last).as_micros() as u64);
            last = p.now;
        }
    }
    assert!((1_000..1_100).contains(&waits[0]), "{waits:?}");
    for pair in waits.windows(2) {
        let doubled = (2 * pair[0]).min(500_000);
        assert!(pair[1].abs_diff(doubled) <= 10, "{waits:?}");
    }
    assert_eq!(waits[11], 500_000, "bounded");
    // After progress the time-out must be short again, and the other requests sent as answers arrive.
    p.deliver_up(&lost[..1]);
    p.pass(100 * US);
    p.carry_down();
    p.poll();
    let sent: Vec<_> = p.take_up().into_iter().filter(|f| code(f) == WriteReq).collect();
    assert_eq!(numbers(&sent), [10, 11]);
    assert!(p.requester.status().timeout_ns < 2_000_000);
    p.deliver_up(&sent);
    p.pass(100 * US);
    p.carry_down();
    p.poll();
    assert_eq!(numbers(&p.take_up()), [12, 13, 14, 15]);
}

#[test]
fn r8_no_sample_from_a_request_sent_twice_nor_from_one_that_waited_for_others() {
    let mut p = Pair::open();
    p.measure();
    (0..3).for_each(|i| p.read(0, i * 64, i));
    let frames = p.take_up();
    p.deliver_up(&frames[1..]);
    p.carry_down();
    let before = p.requester.status();
    p.pass(800 * US);
    p.poll();
    p.carry_up();
    p.carry_down();
    assert_eq!(p.done.0.len(), 3);
    assert_eq!(p.requester.status().rtt_ns, before.rtt_ns);
}

/// The delay of a request that waited in a silence must not count as a sample of the round trip, unless such
/// delays persist.
#[test]
fn r8_no_sample_from_requests_sent_before_a_probe_unless_it_repeats() {
    let mut p = Pair::open();
    p.measure();
    let before = p.requester.status().rtt_ns;
    (0..12).for_each(|i| p.read(0, i * 64, i));
    let frames = p.take_up();
    p.pass(250 * US);
    p.poll();
    assert_eq!((p.requester.counters().probes, p.take_up().len()), (1, 1));
    p.pass(250 * US);
    p.deliver_up(&frames[..8]);
    p.carry_down();
    assert_eq!((p.done.0.len(), p.requester.status().rtt_ns), (8, before));
    p.deliver_up(&frames[8..10]);
    p.carry_down();
    assert!(p.requester.status().rtt_ns > before, "the way has become slow");
}

#[test]
fn r8_time_outs_of_several_streams_do_not_add_up() {
    let mut p = Pair::open();
    p.measure();
    p.read(0, 0, 1);
    p.read(1, 64, 2);
    p.take_up();
    for _ in 0..2 {
        p.pass(MS);
        p.poll();
    }
    assert_eq!(p.requester.counters().timeouts, 2);
    assert!(p.requester.status().timeout_ns <= 2_200_000, "doubled once, not twice");
}

#[test]
fn r8_a_silent_session_is_dead_and_everything_fails_by_name() {
    let mut p = Pair::open();
    p.write(0, 0, 9, 1);
    p.read(1, 0, 2);
    let start = p.now;
    p.run_with(4_900 * MS, |_| false, |_| false);
    assert_eq!(p.done.0, []);
    assert_eq!(p.events(), [SessionEvent::Suspect]);
    p.run_with(200 * MS, |_| false, |_| false);
    assert_eq!(
        p.done.0,
        [Done::Failed(1, OpError::SessionDead, vec![9]), Done::Failed(2, OpError::SessionDead, vec![])]
    );
    assert_eq!(p.events(), [SessionEvent::Dead]);
    assert!(!p.requester.is_open());
    assert_eq!(p.requester.read(0, 0, 3, p.now, &mut p.up), Err(Rejected::NotConnected));
    assert!(p.now - start < 6_000 * MS);
    p.run(2_000 * MS);
    assert!(p.requester.is_open(), "and it comes back by itself");
    p.assert_at_rest();
}

/// A CN is not polled for a long time, as on a paused host. The memory node's time limit for an answer must be extended
/// by that time.
#[test]
fn r8_a_pause_of_the_compute_node_is_no_silence_of_the_memory_node() {
    let mut p = Pair::open();
    p.read(0, 0, 1);
    p.run_with(1_000 * MS, |_| false, |_| false);
    p.pass(4_500 * MS);
    p.poll();
    assert_eq!(p.done.0, []);
    p.run(2_000 * MS);
    assert_eq!(p.done.0, [Done::Read(1, vec![0])]);
    assert!(!p.events().contains(&SessionEvent::Dead));
    p.assert_at_rest();

    // A silent memory node must count as dead after at most twice the limit, pauses included.
    let mut p = Pair::open();
    p.read(0, 0, 1);
    for _ in 0..3 {
        p.run_with(1_000 * MS, |_| false, |_| false);
        p.pass(2_000 * MS);
        p.poll();
        assert_eq!(p.done.0, []);
    }
    p.run_with(1_100 * MS, |_| false, |_| false);
    assert_eq!(p.done.0, [Done::Failed(1, OpError::SessionDead, vec![])]);

    // A pause before the request was made must not extend the limit.
    let mut p = Pair::open();
    p.pass(4_000 * MS);
    p.run(1_000 * MS);
    p.read(0, 0, 1);
    p.run_with(5_100 * MS, |_| false, |_| false);
    assert_eq!(p.done.0, [Done::Failed(1, OpError::SessionDead, vec![])]);
}

#[test]
fn r8_an_idle_session_notices_silence_by_pings() {
    let mut p = Pair::open();
    p.run(10_000 * MS);
    assert!(p.requester.is_open() && p.events().is_empty(), "answered pings keep it alive");
    p.run_with(7_000 * MS, |_| false, |_| false);
    assert_eq!(p.events(), [SessionEvent::Suspect, SessionEvent::Dead]);
}

/// A request whose large frames never pass must fail after the time limit, although requests in small frames are
/// answered.
#[test]
fn r8_a_request_that_never_gets_through_fails_though_others_pass() {
    let mut p = Pair::open();
    p.requester.burst_write(0, 0, 0xFF, &[1; 8 * LINE_SIZE], 1, p.now, &mut p.up).unwrap();
    for i in 0..60 {
        if p.requester.is_open() {
            p.read(0, 1 << 20, 100 + i);
            p.read(1, 64, 200 + i);
        }
        p.run_with(100 * MS, |f| f.len() < 500, |_| true);
    }
    assert!(p.done.0.contains(&Done::Failed(1, OpError::SessionDead, vec![1; 8])), "{:?}", p.events());
    assert!(p.done.0.contains(&Done::Read(200, vec![0])));
}
