//! Simulates both sides of a move: a manager, two compute nodes, the connection between source and target, and a guest.
//! Any step may fail and any party may stop. In every run, at most one side runs the guest, with the guest's own
//! memory.

use proptest::prelude::*;

use super::source::{RegionOwner, SourceEnd, SourceMove, SourceStep, StepOutcome};
use super::target::{TargetEnd, TargetMove, TargetOutcome, TargetStep};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Source,
    Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guest {
    Runs,
    Stopped,
    /// There is no QEMU, or it has no state.
    None,
}

/// A mistake that the checks have to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// The source treats a missing answer of the manager as a refusal.
    SilenceIsRefusal,
    /// The target lets the guest run before it has the region.
    RunsWithoutRegion,
    /// The source suspends the memory without writing dirty pages back.
    SkipsDirtyPages,
    /// The target continues without the notes of pages that are zeros.
    SkipsNotes,
    /// The target ends when the connection is lost, although it may still get the region.
    LeavesWithConnection,
    /// Pages of the former owner are written back after the hand-over of the region.
    WritesAfterCommit,
    /// The region is zeroed on the change of owner.
    ZeroedOnChange,
}

/// State of both sides and of the guest's memory: each number counts the guest's writes that it includes.
#[derive(Debug)]
struct World {
    source: SourceMove,
    target: TargetMove,
    owner: Side,
    /// A hand-over that is ordered and not carried out.
    ordered: Option<Side>,
    source_guest: Guest,
    target_guest: Guest,
    connected: bool,
    source_lives: bool,
    /// Messages on their way to the target.
    state_sent: bool,
    notes_sent: bool,
    abort_sent: Option<String>,
    /// Messages of the target.
    state_here: bool,
    waiting: bool,
    running_said: bool,
    failed_said: Option<String>,
    /// Writes of the guest so far.
    written: u64,
    /// Number of the guest's writes in the content of the region, and in the source's resident pages.
    region: u64,
    resident: u64,
    suspended: bool,
    notes_here: bool,
    /// Whether a step of the target has failed.
    target_broke: bool,
    mistake: Mistake,
    violation: Option<String>,
}

impl World {
    fn new(dry_run: bool, mistake: Mistake) -> World {
        World {
            source: SourceMove::new(dry_run),
            target: TargetMove::default(),
            owner: Side::Source,
            ordered: None,
            source_guest: Guest::Runs,
            target_guest: Guest::None,
            connected: true,
            source_lives: true,
            state_sent: false,
            notes_sent: false,
            abort_sent: None,
            state_here: false,
            waiting: false,
            running_said: false,
            failed_said: None,
            written: 1,
            region: 0,
            resident: 1,
            suspended: false,
            notes_here: false,
            target_broke: false,
            mistake,
            violation: None,
        }
    }

    fn check(&mut self) {
        let both = (self.source_guest, self.target_guest) == (Guest::Runs, Guest::Runs);
        let source_alone = self.source_guest != Guest::Runs || self.owner == Side::Source;
        let target_alone = self.target_guest != Guest::Runs || self.owner == Side::Target;
        if both || !source_alone || !target_alone {
            self.violation.get_or_insert(format!("two guests, or one without its region: {self:?}"));
        }
    }

    fn guests_write(&mut self) {
        if self.source_guest == Guest::Runs && !self.suspended {
            self.written += 1;
            self.resident = self.written;
        }
        if self.target_guest == Guest::Runs {
            let whole = self.region == self.written && (self.notes_here || self.mistake == Mistake::None);
            if !whole {
                self.violation.get_or_insert(format!("the guest has other memory than before: {self:?}"));
            }
            self.written += 1;
            self.region = self.written;
        }
    }

    /// The manager carries a hand-over out, if the agent of the owner has released the region.
    fn hand_over(&mut self) {
        let released = match self.owner {
            Side::Source => self.suspended || self.source_guest == Guest::None,
            Side::Target => self.target_guest == Guest::None,
        };
        if let Some(to) = self.ordered.filter(|_| released) {
            self.owner = to;
            self.ordered = None;
            match self.mistake {
                Mistake::WritesAfterCommit => self.region = self.region.saturating_sub(1),
                Mistake::ZeroedOnChange => self.region = 0,
                _ => {}
            }
        }
    }

    /// Carries out the source's present step; `fails` chooses its outcome.
    fn source_step(&mut self, fails: bool) {
        let Some(step) = self.source.step().cloned() else { return };
        let failed = || StepOutcome::Failed(format!("{step:?}"));
        // When the target has ended, it has also closed the connection.
        let gone = matches!(self.target.end(), Some(TargetEnd::Gone(_)));
        let connected = self.connected && !gone;
        let outcome = match &step {
            _ if !self.source_lives => return,
            SourceStep::Connect if self.target.step() == Some(TargetStep::Launch) && connected => {
                // The target has not started QEMU yet, so the source waits.
                if fails { failed() } else { return }
            }
            SourceStep::Connect if fails || !connected => failed(),
            SourceStep::Connect => StepOutcome::Done,
            SourceStep::WriteBack if fails => failed(),
            SourceStep::WriteBack => {
                self.region = self.resident;
                StepOutcome::Done
            }
            SourceStep::Migrate if fails || !connected => failed(),
            SourceStep::Migrate => {
                self.source_guest = Guest::Stopped;
                StepOutcome::Done
            }
            SourceStep::SendState if fails || !connected => failed(),
            SourceStep::SendState if !self.state_here => {
                self.state_sent = true;
                return;
            }
            SourceStep::SendState => StepOutcome::Done,
            SourceStep::Suspend if fails || !connected => {
                self.suspended = true;
                failed()
            }
            SourceStep::Suspend if !self.waiting => {
                self.suspended = true;
                if self.mistake != Mistake::SkipsDirtyPages {
                    self.region = self.resident;
                }
                self.notes_sent = true;
                return;
            }
            SourceStep::Suspend => StepOutcome::Done,
            SourceStep::Order => {
                self.ordered = Some(Side::Target);
                self.answer(fails)
            }
            SourceStep::Settle => {
                if !fails {
                    self.ordered = None;
                }
                self.answer(fails)
            }
            SourceStep::TakeBack => {
                self.ordered = (self.owner == Side::Target).then_some(Side::Source);
                self.answer(fails)
            }
            SourceStep::AwaitRunning if self.running_said => StepOutcome::Done,
            SourceStep::AwaitRunning => match self.failed_said.take() {
                Some(reason) => StepOutcome::FailedThere(reason),
                None if fails || !connected => failed(),
                None => return,
            },
            SourceStep::Quit => {
                self.source_guest = Guest::None;
                StepOutcome::Done
            }
            SourceStep::ServeAgain => {
                (self.suspended, self.resident) = (false, self.region.max(self.resident));
                if fails { failed() } else { StepOutcome::Done }
            }
            SourceStep::Cancel => StepOutcome::Done,
            SourceStep::Continue if self.source_guest == Guest::None => failed(),
            SourceStep::Continue => {
                self.source_guest = Guest::Runs;
                StepOutcome::Done
            }
            SourceStep::Abort(reason) => {
                if self.connected {
                    self.abort_sent = Some(reason.clone());
                }
                StepOutcome::Done
            }
        };
        self.source.on(outcome);
    }

    /// The manager's answer, or its silence.
    fn answer(&mut self, silent: bool) -> StepOutcome {
        self.hand_over();
        if silent {
            return match self.mistake {
                Mistake::SilenceIsRefusal => StepOutcome::Owner(RegionOwner::Here),
                _ => StepOutcome::Owner(RegionOwner::Unknown("silent".to_owned())),
            };
        }
        StepOutcome::Owner(match (self.owner, self.ordered) {
            (Side::Target, None) => RegionOwner::There,
            (Side::Source, None) => RegionOwner::Here,
            _ => RegionOwner::Unknown("under way".to_owned()),
        })
    }

    fn target_step(&mut self, fails: bool) {
        let Some(step) = self.target.step() else { return };
        if let Some(reason) = self.abort_sent.clone()
            && !matches!(step, TargetStep::Run | TargetStep::EndMachine)
        {
            self.target.on(TargetOutcome::Aborted(reason));
            return;
        }
        let failed = || TargetOutcome::Failed(format!("{step:?}"));
        self.target_broke |= fails;
        let outcome = match step {
            TargetStep::Launch if fails => failed(),
            TargetStep::Launch => TargetOutcome::Done,
            TargetStep::EndMachine => {
                self.target_guest = Guest::None;
                if self.connected && self.target.is_returnable() {
                    self.failed_said = Some(self.target.reason().to_owned());
                }
                TargetOutcome::Done
            }
            TargetStep::Receive if self.state_sent && !fails => {
                (self.target_guest, self.state_here) = (Guest::Stopped, true);
                TargetOutcome::Done
            }
            TargetStep::TakeNotes if self.notes_sent && !fails => {
                (self.notes_here, self.waiting) = (true, true);
                TargetOutcome::Done
            }
            TargetStep::TakeNotes if self.state_here && self.mistake == Mistake::SkipsNotes => {
                self.waiting = true;
                TargetOutcome::Done
            }
            TargetStep::Receive | TargetStep::TakeNotes if fails => failed(),
            TargetStep::Receive | TargetStep::TakeNotes if !self.connected => TargetOutcome::Disconnected,
            TargetStep::Receive | TargetStep::TakeNotes => return,
            TargetStep::AwaitRegion if self.owner == Side::Target => TargetOutcome::Done,
            TargetStep::AwaitRegion if self.mistake == Mistake::RunsWithoutRegion && self.waiting => {
                TargetOutcome::Done
            }
            TargetStep::AwaitRegion if !self.connected => {
                if self.mistake == Mistake::LeavesWithConnection {
                    failed()
                } else {
                    TargetOutcome::Disconnected
                }
            }
            TargetStep::AwaitRegion => return,
            TargetStep::Finish if fails => failed(),
            TargetStep::Finish => TargetOutcome::Done,
            TargetStep::Run if fails => failed(),
            TargetStep::Run => {
                self.target_guest = Guest::Runs;
                self.running_said = self.connected;
                TargetOutcome::Done
            }
        };
        self.target.on(outcome);
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Source {
        fails: bool,
    },
    Target {
        fails: bool,
    },
    /// The manager and the agents carry out an ordered hand-over.
    HandOver,
    Write,
    /// The connection ends.
    Cut,
    /// The source's supervisor is killed, and its QEMU with it.
    KillSource,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let rarely = prop::bool::weighted(0.06);
    let event = prop_oneof![
        12 => rarely.prop_map(|fails| Event::Source { fails }),
        12 => rarely.prop_map(|fails| Event::Target { fails }),
        4 => Just(Event::HandOver),
        4 => Just(Event::Write),
        1 => prop::bool::weighted(0.5).prop_map(|cut| if cut { Event::Cut } else { Event::Write }),
        1 => prop::bool::weighted(0.1).prop_map(|kill| if kill { Event::KillSource } else { Event::Write }),
    ];
    prop::collection::vec(event, 10..80)
}

/// Applies `events`, and after them a fixed number of steps that do not fail, which lets both sides end.
fn run(events: &[Event], dry_run: bool, mistake: Mistake) -> World {
    let mut world = World::new(dry_run, mistake);
    let calm =
        [Event::Source { fails: false }, Event::Target { fails: false }, Event::HandOver, Event::Write];
    for event in events.iter().copied().chain(calm.into_iter().cycle().take(400)) {
        match event {
            Event::Source { fails } => world.source_step(fails),
            Event::Target { fails } => world.target_step(fails),
            Event::HandOver => world.hand_over(),
            Event::Write => world.guests_write(),
            Event::Cut => world.connected = false,
            Event::KillSource => {
                (world.source_lives, world.connected) = (false, false);
                world.source_guest = Guest::None;
            }
        }
        world.check();
    }
    world
}

fn check(world: &World) -> Result<(), String> {
    if let Some(violation) = &world.violation {
        return Err(violation.clone());
    }
    let guests = [world.source_guest, world.target_guest].iter().filter(|g| **g == Guest::Runs).count();
    if !world.source_lives {
        // The source was killed, and its QEMU with it, so the guest can run at the target only.
        return Ok(());
    }
    let end = world.source.end().ok_or_else(|| format!("the source waits for ever: {world:?}"))?;
    let expected = match end {
        SourceEnd::Possible | SourceEnd::Stayed(_) => world.source_guest == Guest::Runs && guests == 1,
        SourceEnd::Moved => world.target_guest == Guest::Runs && guests == 1,
        // The source has ended its guest. The guest runs at the target, unless a step of the target has failed.
        SourceEnd::Unconfirmed(_) => world.source_guest == Guest::None && (guests == 1 || world.target_broke),
        SourceEnd::Broken(_) => false,
    };
    if expected { Ok(()) } else { Err(format!("{end:?} is not what happened: {world:?}")) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn the_guest_runs_at_one_side_with_its_memory(events in events(), dry_run in prop::bool::weighted(0.1)) {
        let world = run(&events, dry_run, Mistake::None);
        prop_assert_eq!(check(&world), Ok(()));
    }
}

#[test]
fn a_calm_move_arrives() {
    let world = run(&[], false, Mistake::None);
    assert_eq!(
        (world.source.end(), world.target.end()),
        (Some(&SourceEnd::Moved), Some(&TargetEnd::Arrived))
    );
    let world = run(&[], true, Mistake::None);
    assert_eq!(world.source.end(), Some(&SourceEnd::Possible));
    assert_eq!((world.source_guest, world.target_guest), (Guest::Runs, Guest::None));
}

/// Tests that the checks find each planted mistake: at least one run with it fails.
#[test]
fn planted_mistakes_are_found() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    for mistake in [
        Mistake::SilenceIsRefusal,
        Mistake::RunsWithoutRegion,
        Mistake::SkipsDirtyPages,
        Mistake::SkipsNotes,
        Mistake::LeavesWithConnection,
        Mistake::WritesAfterCommit,
        Mistake::ZeroedOnChange,
    ] {
        let random = TestRng::from_seed(RngAlgorithm::ChaCha, &[5; 32]);
        let mut runner = TestRunner::new_with_rng(Config::default(), random);
        let strategy = events();
        let found = (0..4000).any(|_| {
            let events = strategy.new_tree(&mut runner).expect("events are drawn").current();
            check(&run(&events, false, mistake)).is_err()
        });
        assert!(found, "{mistake:?} is not found");
    }
}
