//! Decisions at the source of a move, where the machine runs. After the first failure, all steps are undone.
//!
//! ```text
//!   Connect  WriteBack  Migrate | SendState  Suspend | Order ------> AwaitRunning --> Quit --> Moved
//!      |         |         |    |     |         |    |   | unclear        | it failed there
//!      |         |         |    |     |         |    |   v                v
//!      |         |         |    |     |         |    | Settle --+       TakeBack
//!      v         v         v    |     v         v    |   |      | there    | here again
//!   Abort <------+---------+----+-----+---------+----+---+------+----------+
//!      |          undo: ServeAgain, Cancel, Continue
//!      v                        guest is stopped     the manager decides
//!    Stayed
//! ```
//!
//! The guest runs at the source or at the target, never at both, because each side lets the guest run only while its
//! compute node owns the region: the source until it has ordered the hand-over, and again if the manager reports that
//! the order was not carried out; the target after its agent has attached the region. All of QEMU's state and all notes
//! on pages are at the target before the order, so the source may end in any way after the order.

/// Owner of the region, as the manager reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionOwner {
    /// This compute node owns the region, and no hand-over is under way.
    Here,
    /// The target's compute node owns the region.
    There,
    /// Unknown: the manager did not answer, or the hand-over is neither done nor given up.
    Unknown(String),
}

/// A step that [`sender`](super::sender) carries out. Each has one [`StepOutcome`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceStep {
    /// Connect to the target, and compare the machines.
    Connect,
    /// Have the agent write dirty pages back while the guest runs.
    WriteBack,
    /// Have QEMU send the part of its state that can be sent while the guest runs, and then stop the guest.
    Migrate,
    /// Have QEMU send the rest; wait until the target has all of it.
    SendState,
    /// Have the agent suspend the guest's memory, and send the agent's notes on pages to the target; wait until the
    /// target has them.
    Suspend,
    /// Order the hand-over of the region from the manager.
    Order,
    /// Have the manager stop the hand-over, and report the region's owner.
    Settle,
    /// Wait until the guest runs at the target.
    AwaitRunning,
    /// Order the hand-over of the region back to this compute node.
    TakeBack,
    /// End QEMU at the source.
    Quit,
    /// Have the agent serve the guest's memory again.
    ServeAgain,
    /// Cancel QEMU's migration.
    Cancel,
    /// Let the guest run again, if it ran before.
    Continue,
    /// Notify the target that the machine stays.
    Abort(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    Done,
    /// The step failed, or was interrupted.
    Failed(String),
    /// Answer of the manager.
    Owner(RegionOwner),
    /// QEMU has ended at the target, and the guest has not run there.
    FailedThere(String),
}

/// End of a move, at its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceEnd {
    /// The machine could move; nothing was done, as requested.
    Possible,
    /// The machine runs at the target.
    Moved,
    /// The target has all that the machine needs, but has not confirmed that it runs.
    Unconfirmed(String),
    /// The machine stays at the source.
    Stayed(String),
    /// The machine stays at the source, and cannot continue there.
    Broken(String),
}

/// State machine of a move at its source: `step` gives the step to carry out, `on` takes its outcome.
#[derive(Debug)]
pub struct SourceMove {
    dry_run: bool,
    next: Option<SourceStep>,
    /// Reason why the machine stays.
    reason: Option<String>,
    /// Whether QEMU has begun to migrate: then the migration has to be cancelled, and the guest may be stopped.
    migrating: bool,
    /// Whether the agent may have suspended the memory.
    suspended: bool,
    end: Option<SourceEnd>,
}

impl SourceMove {
    /// A move; with `dry_run`, only the comparison of the two sides.
    pub fn new(dry_run: bool) -> SourceMove {
        SourceMove {
            dry_run,
            next: Some(SourceStep::Connect),
            reason: None,
            migrating: false,
            suspended: false,
            end: None,
        }
    }

    /// The step to be carried out; `None` after the end of the move.
    pub fn step(&self) -> Option<&SourceStep> {
        self.next.as_ref()
    }

    /// The outcome of the move; `None` while there is a further step.
    pub fn end(&self) -> Option<&SourceEnd> {
        self.end.as_ref()
    }

    /// Whether no hand-over is ordered yet, so that the guest may continue at the source without the
    /// manager's consent.
    pub fn is_before_order(&self) -> bool {
        use SourceStep as Step;
        matches!(
            self.next,
            Some(Step::Connect | Step::WriteBack | Step::Migrate | Step::SendState | Step::Suspend)
        )
    }

    /// Records the outcome of the present step, and decides on the next step.
    pub fn on(&mut self, outcome: StepOutcome) {
        use SourceStep as Step;
        use StepOutcome as Outcome;
        let Some(step) = self.next.take() else { return };
        self.next = match (step, outcome) {
            (Step::Connect, Outcome::Done) if self.dry_run => {
                self.end = Some(SourceEnd::Possible);
                Some(Step::Abort("it was only asked whether the machine could move".to_owned()))
            }
            (Step::Connect, Outcome::Done) => Some(Step::WriteBack),
            (Step::WriteBack, Outcome::Done) => {
                self.migrating = true;
                Some(Step::Migrate)
            }
            (Step::Migrate, Outcome::Done) => Some(Step::SendState),
            (Step::SendState, Outcome::Done) => {
                self.suspended = true;
                Some(Step::Suspend)
            }
            (Step::Suspend, Outcome::Done) => Some(Step::Order),
            (Step::Order | Step::Settle, Outcome::Owner(RegionOwner::There)) => Some(Step::AwaitRunning),
            (Step::Order | Step::Settle, Outcome::Owner(RegionOwner::Here)) => {
                self.undo("the manager did not hand the region over".to_owned())
            }
            // An order without an answer may have been carried out, so the manager is asked for the region's owner.
            (Step::Order | Step::Settle, _) => Some(Step::Settle),
            (Step::AwaitRunning, Outcome::FailedThere(reason)) => {
                self.reason = Some(reason);
                Some(Step::TakeBack)
            }
            (Step::AwaitRunning, outcome) => {
                self.end = Some(match outcome {
                    Outcome::Failed(reason) => SourceEnd::Unconfirmed(reason),
                    _ => SourceEnd::Moved,
                });
                Some(Step::Quit)
            }
            (Step::TakeBack, Outcome::Owner(RegionOwner::Here)) => self.undo(String::new()),
            (Step::TakeBack, _) => Some(Step::TakeBack),
            (Step::ServeAgain, outcome) => {
                self.suspended = false;
                self.note(outcome);
                self.undo(String::new())
            }
            (Step::Cancel, outcome) => {
                self.migrating = false;
                self.note(outcome);
                Some(Step::Continue)
            }
            (Step::Continue, outcome) => {
                let reason = self.reason.clone().unwrap_or_default();
                self.end = Some(match outcome {
                    Outcome::Failed(broken) => SourceEnd::Broken(format!("{reason}; {broken}")),
                    _ => SourceEnd::Stayed(reason.clone()),
                });
                Some(Step::Abort(reason))
            }
            (Step::Quit | Step::Abort(_), _) => None,
            (_, Outcome::Failed(reason) | Outcome::FailedThere(reason)) => self.undo(reason),
            (_, Outcome::Owner(_)) => self.undo("an answer that does not match its step".to_owned()),
        };
    }

    /// Returns the next step that undoes the move. Records `reason`, unless an earlier reason is recorded.
    fn undo(&mut self, reason: String) -> Option<SourceStep> {
        let reason = self.reason.get_or_insert(reason).clone();
        if self.suspended {
            return Some(SourceStep::ServeAgain);
        }
        if self.migrating {
            return Some(SourceStep::Cancel);
        }
        self.end.get_or_insert_with(|| SourceEnd::Stayed(reason.clone()));
        Some(SourceStep::Abort(reason))
    }

    /// Appends a failure of an undoing step to the recorded reason.
    fn note(&mut self, outcome: StepOutcome) {
        if let (StepOutcome::Failed(more), Some(reason)) = (outcome, &mut self.reason) {
            *reason = format!("{reason}; {more}");
        }
    }
}
