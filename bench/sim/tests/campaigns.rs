//! Campaigns of the simulation: runs of all scenarios pass, a seed always gives the same run, and planted
//! faults are found.
//!
//! A fixed set of seeds is run, and as many others, drawn from the clock. `CXLOE_SIM_SEEDS` sets the size of
//! each set. `CXLOE_SIM_START`, or `CXLOE_SIM_FRESH`, which no other test uses, sets the first seed of the
//! second set. A failed seed is run once more, and the end of its trace is shown with the command that prints
//! all of it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cxloe_sim::{Campaign, CampaignResults, Class, Overrides, PlantedFault, Scenario, Tally, Trace, run};

/// Number of seeds in each set, unless `CXLOE_SIM_SEEDS` is set.
const SEEDS: u64 = 200;
/// Minimum number of runs for the check that every event has occurred.
const MANY: u64 = 100;
/// Number of trace lines printed for a failed seed.
const TAIL: usize = 60;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: write a number")))
}

fn campaign(scenario: Scenario, start: u64, seeds: u64) -> Campaign {
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get());
    Campaign { scenario, overrides: Overrides::default(), start, seeds, jobs, keep_going: false }
}

/// Runs all seeds of a campaign, and panics with the end of the trace of the first failed seed.
fn passes(campaign: &Campaign) -> CampaignResults {
    let outcome = campaign.run(|_| true);
    if let Some(failing) = outcome.failing.first() {
        let trace = Trace::keeping(TAIL);
        let again = run(&campaign.plan(failing.seed), &mut Tally::default(), &trace).err();
        println!("{}", trace.tail());
        assert_eq!(again.as_ref(), Some(&failing.broken), "a seed is a run");
        panic!("seed {}: {}\nreproduce: {}", failing.seed, failing.broken, campaign.command(failing.seed));
    }
    assert_eq!(outcome.seeds, campaign.seeds);
    outcome
}

/// Checks, if there are many runs of all faults, that every event has occurred and that most operations have
/// succeeded.
fn assert_eventful(outcome: &CampaignResults) {
    let figures = outcome.tally.figures;
    println!("{} seeds: {figures:#?}", outcome.seeds);
    if outcome.seeds >= MANY {
        assert_eq!(figures.missing(), [""; 0], "something never happened");
        assert!(figures.failed() * 3 < figures.operations, "most operations must succeed");
        let recorded: u64 =
            Class::ALL.iter().map(|class| outcome.tally.latencies[*class as usize].len()).sum();
        assert_eq!(recorded, figures.operations - figures.failed(), "each success has its latency");
    }
}

#[test]
fn fixed_seeds_pass() {
    assert_eventful(&passes(&campaign(Scenario::Mixed, 1, number("CXLOE_SIM_SEEDS").unwrap_or(SEEDS))));
}

#[test]
fn fresh_seeds_pass() {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let start = number("CXLOE_SIM_START").or_else(|| number("CXLOE_SIM_FRESH")).unwrap_or(clock);
    let seeds = number("CXLOE_SIM_SEEDS").unwrap_or(SEEDS);
    println!("CXLOE_SIM_START={start} CXLOE_SIM_SEEDS={seeds}");
    passes(&campaign(Scenario::Mixed, start, seeds));
}

#[test]
fn every_scenario_passes_and_is_what_it_says() {
    let figures = |scenario| passes(&campaign(scenario, 1, 12)).tally.figures;
    let calm = figures(Scenario::Calm);
    assert_eq!((calm.lost, calm.retransmitted, calm.deaths, calm.failed()), (0, 0, 0, 0));
    let lossy = figures(Scenario::Lossy);
    assert!(lossy.lost > 0 && lossy.retransmitted > 0 && lossy.sacks > 0 && lossy.failed() == 0);
    assert!(figures(Scenario::Bursty).lost > 0);
    let reordering = figures(Scenario::Reordering);
    assert!(reordering.reordered > 0 && reordering.repeated > 0 && reordering.failed() == 0);
    let hostile = figures(Scenario::Hostile);
    assert!(hostile.corrupted > 0 && hostile.network_profiles > 0);
    assert!(figures(Scenario::Partitions).cuts > 0);
    let several =
        |seed| campaign(Scenario::Partitions, seed, 1).plan(seed).cns.iter().any(|cn| cn.queues > 1);
    assert!((1..13).any(several), "nobody has several queues");
    let restarts = figures(Scenario::Restarts);
    assert!(restarts.kills > 0 && restarts.restarts_kept > 0 && restarts.restarts_lost > 0);
    assert!(restarts.later_workers > 0);
    let interleaved = figures(Scenario::Interleaved);
    assert!(interleaved.shared_parts > 0 && interleaved.restarts_lost > 0 && interleaved.replaced > 0);
    assert!(figures(Scenario::Pauses).pauses > 0);
    let paging = figures(Scenario::Paging);
    assert!(
        paging.faults > 0 && paging.write_faults > 0 && paging.pages_evicted > 0 && paging.pages_ahead > 0
    );
    assert!(
        paging.pages_written_back > 0 && paging.forks > 0 && paging.discards > 0 && paging.successions > 0
    );
    assert!(paging.later_workers > 0);
    let sessions = figures(Scenario::Sessions);
    assert!(sessions.corrupted > 0 && sessions.goodbyes > 0 && sessions.losses_told > 0);
    let intruders = figures(Scenario::Intruders);
    assert!(intruders.forged > 0 && intruders.replayed > 0 && intruders.flooded > 0 && intruders.cookies > 0);
    assert!(intruders.impostors > 0 && intruders.revocations > 0 && intruders.sessions > 200);
    let control = passes(&campaign(Scenario::Control, 1, 150)).tally.figures;
    assert!(control.messages_lost > 0 && control.messages_repeated > 0 && control.regions_grown > 0);
    assert!(control.regions_disabled > 0 && control.regions_destroyed > 0 && control.bindings > 0);
    assert!(control.refused_withdrawn > 0 && control.unbindings > 0 && control.managers_killed == 0);
    assert!(control.later_workers > 0);
    let managers = passes(&campaign(Scenario::Managers, 1, 60)).tally.figures;
    assert!(managers.managers_killed > 0 && managers.managers_away > 0 && managers.regions_made > 0);
    let congested = passes(&campaign(Scenario::Congested, 1, 12)).tally;
    assert!(congested.figures.congestion > 0 && congested.figures.slowdowns > 0);
    assert!(
        congested.paces.phases.iter().filter(|looks| **looks > 0).count() >= 4,
        "{:?}",
        congested.paces.phases
    );
    assert!(congested.paces.least_share.mean() > 500.0, "some node starves");
}

/// Scenario: two seeds that failed in the past: the zeros of a discarded page were lost and not sent again if the run
/// had no write-back before its end. Nodes had one worker. Both must pass.
#[test]
fn seeds_that_failed_pass() {
    for (scenario, seed) in [(Scenario::Paging, 1_795_359_917), (Scenario::Mixed, 500_921)] {
        let overrides = Overrides { workers: Some(1), ..Overrides::default() };
        passes(&Campaign { overrides, ..campaign(scenario, seed, 1) });
    }
}

/// Scenario: eight workers in each compute node, with a static map, with a manager and with mapped memory. No structure
/// has two of them.
#[test]
fn eight_workers_share_nothing() {
    for scenario in [Scenario::Hostile, Scenario::Managers, Scenario::Paging] {
        let overrides = Overrides { workers: Some(8), ..Overrides::default() };
        let outcome = passes(&Campaign { overrides, ..campaign(scenario, 1, 6) });
        assert!(outcome.tally.figures.later_workers > 0, "{scenario}");
    }
}

/// R11: copies of writes that arrive when the 16 bits of their sequence numbers are in use again have no
/// effect.
#[test]
fn a_turn_of_the_sequence_numbers_later() {
    let overrides = Overrides { operations: Some(70_000), ..Overrides::default() };
    let outcome = passes(&Campaign { overrides, ..campaign(Scenario::Late, 1, 1) });
    let figures = outcome.tally.figures;
    assert!(figures.repeated > 10, "{figures:#?}");
    assert_eq!((figures.failed(), figures.sessions), (0, 1), "one session saw all of it");
}

/// Scenario: several seeds are run twice each. Both traces of a seed must be identical; traces of different seeds must
/// differ.
#[test]
fn a_seed_is_a_run() {
    let story = |seed| {
        let (trace, mut tally) = (Trace::keeping(0), Tally::default());
        run(&campaign(Scenario::Mixed, 0, 1).plan(seed), &mut tally, &trace).expect("a good run");
        (trace.digest(), tally.figures)
    };
    let mut stories: Vec<_> = (1..9).map(story).collect();
    assert_eq!(stories, (1..9).map(story).collect::<Vec<_>>());
    stories.dedup();
    assert_eq!(stories.len(), 8);
    assert!(stories.iter().all(|((lines, _), _)| *lines > 100));
}

/// Scenario: the same run with and without a trace. The counts must be equal.
#[test]
fn a_trace_only_listens() {
    let plan = campaign(Scenario::Mixed, 0, 1).plan(5);
    let figures = |trace: &Trace| {
        let mut tally = Tally::default();
        run(&plan, &mut tally, trace).expect("a good run");
        tally.figures
    };
    assert_eq!(figures(&Trace::NONE), figures(&Trace::keeping(9)));
}

/// Scenario: a fault is planted into the nodes. At least one of 40 seeds must fail because of it, which shows that the
/// checks can fail.
#[test]
fn planted_mistakes_are_found() {
    for (mistake, scenario) in [
        (PlantedFault::LosesWrites, Scenario::Calm),
        (PlantedFault::RepeatsWrites, Scenario::Lossy),
        (PlantedFault::RepeatsWrites, Scenario::Reordering),
        (PlantedFault::ForgetsAnswers, Scenario::Lossy),
        // This fault undoes a write that was acknowledged before the compute node was killed or lost its session.
        (PlantedFault::RollsBack, Scenario::Restarts),
        (PlantedFault::RollsBack, Scenario::Pauses),
        // With this fault, the memory node's service has an output left when the node waits.
        (PlantedFault::KeepsAnswers, Scenario::Calm),
        // These faults concern the authentication of sessions, and the nonces of sealed frames.
        (PlantedFault::AcceptsUnknownKeys, Scenario::Intruders),
        (PlantedFault::RepeatsNonces, Scenario::Intruders),
        // With these faults, compute nodes decode addresses differently from the manager.
        (PlantedFault::SwapsTargets, Scenario::Interleaved),
        (PlantedFault::WrongGranularity, Scenario::Interleaved),
        (PlantedFault::ShiftsTarget, Scenario::Interleaved),
        // These faults concern the control plane.
        (PlantedFault::RepeatsCommands, Scenario::Control),
        (PlantedFault::SkipsZeroing, Scenario::Control),
        (PlantedFault::ForgetsCommits, Scenario::Managers),
        (PlantedFault::ZeroesUnlisted, Scenario::Managers),
        (PlantedFault::TakesOldAnswers, Scenario::Managers),
        (PlantedFault::LetsGoEarly, Scenario::Control),
        // With these faults, the thread of a compute node sleeps too long.
        (PlantedFault::ForgetsTimers, Scenario::Lossy),
        (PlantedFault::ForgetsTimers, Scenario::Paging),
        (PlantedFault::SleepsOnOrders, Scenario::Control),
        // With these faults, workers of a compute node share what one of them has to have alone.
        (PlantedFault::SharesRegions, Scenario::Partitions),
        (PlantedFault::SharesRegions, Scenario::Control),
        (PlantedFault::SharesRegions, Scenario::Paging),
        (PlantedFault::SharesSessions, Scenario::Lossy),
        // These are faults of the simulated kernel, below the pager.
        (PlantedFault::IgnoresProtection, Scenario::Paging),
        (PlantedFault::CopiesStalePages, Scenario::Paging),
        (PlantedFault::DropsLate, Scenario::Paging),
    ] {
        let overrides = Overrides { plant: Some(mistake), ..Overrides::default() };
        let planted = Campaign { overrides, ..campaign(scenario, 1, 40) };
        let outcome = planted.run(|_| true);
        let failing = outcome.failing.first().unwrap_or_else(|| panic!("{mistake:?} was not found"));
        assert_eq!(
            run(&planted.plan(failing.seed), &mut Tally::default(), &Trace::NONE).err().as_ref(),
            Some(&failing.broken)
        );
        let said = match mistake {
            PlantedFault::AcceptsUnknownKeys => "accepts an unknown key",
            PlantedFault::RepeatsNonces => "repeats nonce",
            PlantedFault::KeepsAnswers => "nobody has taken: an acknowledgement",
            PlantedFault::ForgetsTimers | PlantedFault::SleepsOnOrders => "but a timer was due",
            PlantedFault::SharesRegions | PlantedFault::SharesSessions => "is used by workers",
            _ => "",
        };
        assert!(failing.broken.to_string().contains(said), "{}", failing.broken);
        assert!(planted.command(failing.seed).contains(&format!("--plant {mistake} --trace")));
        passes(&campaign(scenario, failing.seed, 1));
    }
}

/// Scenario: a campaign on one thread, and on four. The results must be equal.
#[test]
fn campaigns_add_up() {
    let one = Campaign { jobs: 1, ..campaign(Scenario::Mixed, 20, 12) };
    let many = Campaign { jobs: 4, ..one.clone() };
    let (one, many) = (passes(&one), passes(&many));
    assert_eq!(one.tally.figures, many.tally.figures);
    assert_eq!(one.tally.latencies, many.tally.latencies);
}

/// Scenario: an endless campaign is stopped. It must return the results so far.
#[test]
fn a_campaign_can_be_ended() {
    let endless = campaign(Scenario::Calm, 1, u64::MAX);
    let outcome = endless.run(|progress| progress.seeds < 3);
    assert!(outcome.seeds >= 3 && outcome.failing.is_empty());
}
