//! The controller, phase by phase: pauses and times in, rates out.

use super::*;
use crate::GBIT;

const US: Duration = Duration::from_micros(1);
const LINK: BitsPerSecond = 100 * GBIT;

/// Makes a controller and brings it into `phase` by signals and time alone. Returns the controller and the
/// time then.
fn in_phase(phase: Phase) -> (Controller, Duration) {
    let mut c = Controller::new(Config::for_link(LINK), Duration::ZERO);
    let mut now = 100 * US;
    match phase {
        Phase::Stable => {}
        Phase::PfcResponse => {
            c.on_pause(now);
        }
        Phase::FastRecovery => {
            c.on_pause(now);
            now += 50 * US;
            c.poll(now);
        }
        Phase::RecoveryPfcResponse => {
            c.on_pause(now);
            now += 55 * US;
            c.on_pause(now);
        }
        Phase::IncrementExploration => {
            c = Controller::starting_at(Config::for_link(LINK), 40 * GBIT, Duration::ZERO);
            now = 200 * US;
            c.poll(now);
        }
        Phase::IncrementGuessing => {
            c = Controller::starting_at(Config::for_link(LINK), 40 * GBIT, Duration::ZERO);
            now = 245 * US;
            c.on_pause(now);
        }
    }
    assert_eq!(c.phase(), phase, "the way into the phase");
    (c, now)
}

/// From each phase, a pause and an expired timer each lead to the next phase of the paper's figure.
#[test]
fn transition_table() {
    use Phase::*;
    for (from, on_pause, on_timer) in [
        (Stable, PfcResponse, IncrementExploration),
        (PfcResponse, PfcResponse, FastRecovery),
        (FastRecovery, RecoveryPfcResponse, FastRecovery),
        (RecoveryPfcResponse, RecoveryPfcResponse, FastRecovery),
        (IncrementExploration, IncrementGuessing, IncrementExploration),
        (IncrementGuessing, PfcResponse, Stable),
    ] {
        let (mut c, now) = in_phase(from);
        assert!(c.on_pause(now + 10 * US), "t2 is over in {from:?}");
        assert_eq!(c.phase(), on_pause, "pause in {from:?}");
        let (mut c, _) = in_phase(from);
        c.poll(c.deadline());
        assert_eq!(c.phase(), on_timer, "timer in {from:?}");
    }
}

#[test]
fn rates_of_each_transition() {
    let (mut c, now) = in_phase(Phase::Stable);
    c.on_pause(now);
    assert_eq!((c.target(), c.rate()), (100 * GBIT, 50 * GBIT), "a to b");
    c.on_pause(now + 20 * US);
    assert_eq!((c.target(), c.rate()), (100 * GBIT, 25 * GBIT), "b again halves");
    assert_eq!(c.deadline(), now + 70 * US, "b again restarts t1");
    c.poll(now + 70 * US);
    c.poll(now + 81 * US);
    assert_eq!(c.rate(), 62_500_000_000, "c: half the distance");
    c.on_pause(now + 85 * US);
    assert_eq!((c.target(), c.rate()), (54_687_500_000, 46_875_000_000), "c to d: 7/8 and 3/4");
    c.on_pause(now + 100 * US);
    assert_eq!(c.rate(), 35_156_250_000, "d again: 3/4");
}

#[test]
fn five_speed_ups_and_it_is_stable() {
    let (mut c, now) = in_phase(Phase::FastRecovery);
    c.poll(now + 44 * US);
    assert_eq!(c.phase(), Phase::FastRecovery);
    c.poll(now + 55 * US);
    assert_eq!(c.phase(), Phase::Stable);
    // Five speed-ups from 50 to 100 Gbit/s: 75, 87.5, 93.75, 96.875, 98.4375.
    assert_eq!(c.rate(), 98_437_500_000);
}

#[test]
fn exploring_undoes_only_what_it_did() {
    let (mut c, now) = in_phase(Phase::IncrementExploration);
    c.poll(now + 80 * US);
    assert_eq!(c.rate(), 42 * GBIT);
    c.on_pause(now + 81 * US);
    assert_eq!(c.rate(), 41 * GBIT);
    let (c, _) = in_phase(Phase::IncrementGuessing);
    assert_eq!(c.rate(), 40 * GBIT, "one increment, undone");
    let (mut c, now) = in_phase(Phase::IncrementExploration);
    c.on_pause(now + US);
    assert_eq!(c.rate(), 40 * GBIT, "no increment yet, nothing to undo");
}

#[test]
fn duplicates_change_nothing_in_any_phase() {
    for phase in Phase::ALL {
        let (mut c, now) = in_phase(phase);
        c.on_pause(now + 10 * US);
        let before = c.clone();
        assert!(!c.on_pause(now + 19 * US), "9 us after the last in {phase:?}");
        assert_eq!((c.phase(), c.rate(), c.deadline()), (before.phase(), before.rate(), before.deadline()));
    }
}

#[test]
fn rate_stays_between_floor_and_link() {
    let config = Config::for_link(LINK);
    let mut c = Controller::new(config, Duration::ZERO);
    for i in 1..100 {
        c.on_pause(i * 20 * US);
    }
    assert_eq!(c.rate(), config.floor);
    c.poll(Duration::from_secs(1));
    assert_eq!(c.rate(), LINK, "left alone, it finds the link's rate again");
}

/// A flood of bare pauses costs a node at most seven eighths of its rate for half of the time, and nothing
/// after the flood. Pauses that name their sender count as before.
#[test]
fn bare_pauses_are_bounded() {
    let config = Config::for_link(LINK);
    let flood = |bare: bool| {
        let mut c = Controller::new(config, Duration::ZERO);
        let (mut least, mut sum) = (LINK, 0);
        let pauses = 1_000_000 / 15;
        for i in 1..=pauses {
            let now = i * 15 * US;
            let _ = if bare { c.on_bare_pause(now) } else { c.on_pause(now) };
            least = least.min(c.rate());
            sum += c.rate() / u64::from(pauses);
        }
        c.poll(Duration::from_secs(2));
        assert_eq!(c.rate(), LINK, "left alone, it finds the link's rate again");
        (least, sum)
    };
    let (least, mean) = flood(true);
    assert_eq!(least, LINK / 8);
    assert!(mean > LINK / 3, "{mean}");
    assert_eq!(flood(false).0, config.floor);
}

/// Bare pauses neither raise nor lower a rate that named pauses have lowered below the floor of bare pauses.
#[test]
fn bare_pauses_change_nothing_below_their_floor() {
    let mut c = Controller::new(Config::for_link(LINK), Duration::ZERO);
    (1..6).for_each(|i| assert!(c.on_pause(i * 20 * US)));
    let before = c.rate();
    assert!(before < c.config.bare_floor);
    assert!(!c.on_bare_pause(120 * US));
    assert_eq!(c.rate(), before);
    assert!(c.on_pause(130 * US));
    assert_eq!(c.rate(), before / 2);
}

#[test]
fn the_pacer_is_idle_at_link_rate() {
    let mut c = Controller::new(Config::for_link(LINK), Duration::ZERO);
    assert_eq!(c.deadline(), 200 * US);
    c.poll(Duration::from_secs(3600));
    assert_eq!((c.phase(), c.rate(), c.deadline()), (Phase::IncrementExploration, LINK, Duration::MAX));
    c.on_pause(Duration::from_secs(3600));
    assert_eq!(
        (c.phase(), c.rate()),
        (Phase::IncrementGuessing, LINK),
        "nothing was added, nothing is undone"
    );
}

#[test]
fn late_polls_end_where_timely_ones_do() {
    let start = || {
        let mut c = Controller::new(Config::for_link(LINK), Duration::ZERO);
        c.on_pause(30 * US);
        c
    };
    let (mut timely, mut late) = (start(), start());
    for i in 0..2000 {
        timely.poll(i * US);
    }
    late.poll(1999 * US);
    assert_eq!((timely.phase(), timely.rate()), (late.phase(), late.rate()));
}
