//! Decisions of the idle policy, one row for each case.

use super::*;

const ADAPTIVE: WaitStyle = WaitStyle::Adaptive { spin: WaitStyle::SPIN_DEFAULT };
const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);
/// Time at which the tests' rounds end: every spin is over, and housekeeping is due unless the test postpones it.
const NOW: Time = Time(1_000_000_000);

/// Result of a round that found nothing to do.
const REST: Seen = Seen { work: 0, in_flight: false, backpressured: false, maps: false, woke_client: false };
const WORK: Seen = Seen { work: 3, ..REST };
const WAITS: Seen = Seen { in_flight: true, ..REST };
const FULL: Seen = Seen { backpressured: true, ..REST };
const MAPS: Seen = Seen { maps: true, ..REST };
const MAPS_WAITS: Seen = Seen { maps: true, ..WAITS };

/// Makes a policy with no housekeeping due.
fn policy(style: WaitStyle, contended: bool, yielded: bool) -> IdlePolicy {
    IdlePolicy { contended, yielded, housekeeping_at: NOW + 100 * MS, ..IdlePolicy::new(style) }
}

fn pending(after: Duration) -> Pending {
    Pending { deadline: NOW + after, computing: false, unsent: false }
}

/// Tests after how many idle rounds (`n`) the thread reads the clock. Columns: style, contended CPU, client on this
/// CPU, result of each round, `n`.
#[test]
fn spins_until_it_looks_around() {
    use WaitStyle::{Busy, Sleep};
    let rows: &[(WaitStyle, bool, bool, Seen, u32)] = &[
        (Busy, false, false, REST, SPINS),
        (ADAPTIVE, false, false, REST, SPINS),
        (Sleep, false, false, REST, 1),
        // While an answer is due, the thread polls for longer than a round trip.
        (ADAPTIVE, false, false, WAITS, SPINS_UNDER_WAY),
        (ADAPTIVE, false, false, FULL, SPINS_UNDER_WAY),
        (Sleep, false, false, WAITS, 1),
        // The next event comes from a client that cannot run beside the thread, so the thread does not spin.
        (ADAPTIVE, false, true, REST, 1),
        (ADAPTIVE, false, true, WAITS, SPINS_UNDER_WAY),
        // The next event comes from a program that maps memory and cannot run beside the thread.
        (ADAPTIVE, true, false, MAPS, 1),
        (ADAPTIVE, false, false, MAPS, SPINS),
        (ADAPTIVE, true, false, REST, SPINS),
        (ADAPTIVE, true, false, MAPS_WAITS, SPINS_UNDER_WAY),
    ];
    for (style, contended, client, seen, first) in rows {
        let mut policy = policy(*style, *contended, false);
        let count = (1..).find(|_| !policy.spins(*seen, *client));
        assert_eq!(count, Some(*first), "{style:?}, contended {contended}, client {client}, {seen:?}");
        assert!(!policy.spins(WORK, *client), "work is followed by a look at the clock");
        assert_eq!(policy.empty, 0);
    }
}

/// Tests whether the thread yields, and whether it gives way (sleeps instead of spinning). Columns: style, contended
/// CPU, yielded before, client on this CPU, result of the round, expected decisions.
#[test]
fn yields_to_those_it_serves() {
    use WaitStyle::{Busy, Sleep};
    let woke = Seen { woke_client: true, ..WORK };
    let maps_work = Seen { work: 1, ..MAPS };
    type Row = (WaitStyle, bool, bool, bool, Seen, (bool, bool));
    let rows: &[Row] = &[
        (ADAPTIVE, false, false, false, REST, (false, false)),
        (ADAPTIVE, false, false, true, REST, (true, false)),
        (Busy, false, false, true, REST, (true, false)),
        // The answer may depend on another thread on this CPU.
        (ADAPTIVE, false, false, false, WAITS, (true, false)),
        (ADAPTIVE, false, false, false, FULL, (true, false)),
        (Busy, false, false, false, WAITS, (false, false)),
        (Sleep, false, false, false, WAITS, (false, false)),
        // A client that got completions can run only after a yield.
        (ADAPTIVE, false, false, true, woke, (true, false)),
        (ADAPTIVE, false, false, false, woke, (false, false)),
        (ADAPTIVE, false, false, true, WORK, (false, false)),
        (ADAPTIVE, false, false, true, Seen { in_flight: true, ..woke }, (false, false)),
        // Programs map memory, so one of them may need this CPU.
        (ADAPTIVE, false, false, false, MAPS, (true, false)),
        (ADAPTIVE, false, true, false, MAPS, (true, false)),
        (ADAPTIVE, true, false, false, MAPS, (true, false)),
        (ADAPTIVE, false, false, false, maps_work, (false, false)),
        (ADAPTIVE, true, false, false, maps_work, (true, false)),
        (ADAPTIVE, true, true, false, maps_work, (true, false)),
        // The thread has yielded, other threads ran, and nothing arrived, so the thread sleeps and leaves the CPU to
        // them.
        (ADAPTIVE, true, true, false, MAPS, (false, true)),
        (Busy, true, true, false, MAPS, (false, true)),
        (ADAPTIVE, true, true, false, MAPS_WAITS, (true, false)),
    ];
    for (style, contended, yielded, client, seen, expected) in rows {
        let mut policy = policy(*style, *contended, *yielded);
        policy.spins(*seen, *client);
        let found = (policy.yields(*client), policy.gives_way);
        let what = format!("{style:?}, contended {contended}, yielded {yielded}, client {client}, {seen:?}");
        assert_eq!(found, *expected, "{what}");
        assert_eq!(policy.yielded, expected.0, "{what}");
    }
}

#[test]
fn a_slow_yield_marks_the_cpu_as_contended_for_a_while() {
    let mut policy = policy(ADAPTIVE, false, false);
    let rows = [
        (NOW, 2 * US, false),
        (NOW, 3 * US, true),
        // A short yield follows soon after a long one: the kernel may return at once although other threads need the
        // CPU, so the CPU still counts as contended.
        (NOW + MS, US, true),
        (NOW + MS, 2 * US, true),
        (NOW + MS + 2 * US, US, false),
    ];
    for (left, took, contended) in rows {
        policy.yielded(left, left + took);
        assert_eq!(policy.contended, contended, "{left}, {took:?}");
    }
}

/// Tests the decision after the spin. Columns: style, whether the thread gives way, result of the round, time until the
/// deadline, whether a handshake is being computed, whether frames are unsent, expected decision.
#[test]
fn sleeps_no_longer_than_something_is_due() {
    use WaitStyle::{Busy, Sleep};
    let most = Rest::Sleep(Waiter::SLEEP_MAX);
    let soon = Rest::Sleep(UNREPORTED_SLEEP_MAX);
    let (long, zero) = (Duration::from_secs(9), Duration::ZERO);
    type Row = (WaitStyle, bool, Seen, Duration, bool, bool, Rest);
    let rows: &[Row] = &[
        (ADAPTIVE, false, REST, long, false, false, most),
        (Sleep, false, REST, long, false, false, most),
        (Busy, false, REST, long, false, false, Rest::Round),
        (Busy, true, MAPS, long, false, false, most),
        (ADAPTIVE, false, REST, 7 * MS, false, false, Rest::Sleep(7 * MS)),
        (ADAPTIVE, false, WAITS, 7 * MS, false, false, Rest::Sleep(7 * MS)),
        (Busy, true, MAPS, 7 * MS, false, false, Rest::Sleep(7 * MS)),
        // A timer is due, so there is work.
        (ADAPTIVE, false, REST, zero, false, false, Rest::Round),
        (Sleep, false, REST, zero, false, false, Rest::Round),
        (Busy, true, MAPS, zero, false, false, Rest::Round),
        // No descriptor reports the end of these waits, so the sleep is short.
        (ADAPTIVE, false, FULL, long, false, false, soon),
        (ADAPTIVE, false, REST, long, true, false, soon),
        (ADAPTIVE, false, REST, long, false, true, soon),
        (Busy, true, MAPS, long, false, true, soon),
        (ADAPTIVE, false, FULL, 50 * US, true, true, Rest::Sleep(50 * US)),
        // A round with work is followed by another round.
        (Sleep, false, WORK, long, false, false, Rest::Round),
        (ADAPTIVE, false, WORK, long, false, false, Rest::Round),
    ];
    for (style, gives_way, seen, due, computing, unsent, expected) in rows {
        let mut policy = policy(*style, false, false);
        policy.spins(*seen, false);
        policy.yields(false);
        policy.gives_way = *gives_way;
        let pending = Pending { computing: *computing, unsent: *unsent, ..pending(*due) };
        let found = policy.rest(NOW, || pending);
        assert_eq!(found, *expected, "{style:?}, gives way {gives_way}, {seen:?}, {pending:?}");
    }
}

/// After housekeeping there must be a round before any sleep, as housekeeping may have begun operations.
#[test]
fn a_round_follows_housekeeping_before_any_sleep() {
    for style in [WaitStyle::Sleep, ADAPTIVE] {
        let mut policy = IdlePolicy::new(style);
        let ask = |policy: &mut IdlePolicy, now| policy.rest(now, || pending(Duration::from_secs(9)));
        policy.spins(REST, false);
        assert_eq!(ask(&mut policy, NOW), Rest::Housekeeping);
        assert_eq!(ask(&mut policy, NOW), Rest::Round, "{style:?}");
        // A spin must not delay the round after housekeeping.
        assert!(!policy.spins(REST, false));
        assert_eq!(ask(&mut policy, NOW + US), Rest::Sleep(Waiter::SLEEP_MAX), "{style:?}");
        // Work before housekeeping still counts after it: an adaptive thread goes on spinning.
        policy.keep_house_soon();
        policy.spins(WORK, false);
        assert_eq!(ask(&mut policy, NOW + 2 * US), Rest::Housekeeping);
        assert!(!policy.spins(REST, false));
        assert_eq!(ask(&mut policy, NOW + 3 * US), Rest::Round);
        assert_eq!(ask(&mut policy, NOW + 4 * US) == Rest::Round, style == ADAPTIVE);
    }
}

#[test]
fn housekeeping_is_due_at_its_interval_and_after_an_absence() {
    let mut policy = IdlePolicy::new(WaitStyle::Busy);
    let mut at = |after: Duration| {
        policy.spins(REST, false);
        policy.rest(NOW + after, || pending(Duration::from_secs(9))) == Rest::Housekeeping
    };
    let rows = [
        (Duration::ZERO, true),
        (100 * US, false),
        (600 * US, false),
        (1101 * US, true),
        // The duration of housekeeping does not count as absence.
        (2 * MS, false),
        (2400 * US, false),
    ];
    for (after, expected) in rows {
        assert_eq!(at(after), expected, "{after:?}");
    }
    let mut late = (25..70).map(|tenth| (tenth, at(100 * tenth * US)));
    assert_eq!(late.find(|(_, due)| *due), Some((62, true)), "5 ms after the last, at 1.1 ms");
}
