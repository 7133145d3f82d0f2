//! Decisions of the target, to which a machine moves.
//!
//! ```text
//!   Launch --> Receive --> TakeNotes --> AwaitRegion --> Finish --> Run --> Arrived
//!      |          |            |             |  asked         |        |
//!      +----------+------------+-------------+ to abort       +--------+
//!      v                                                      v
//!   EndMachine --> Gone                                  EndMachine --> Gone
//! ```
//!
//! After the target has received all of the state and all notes on pages, it continues even if the connection is lost:
//! the region may be handed over to this compute node at any moment, and then the machine can continue nowhere else. So
//! the target waits until it gets the region, or the source reports that the machine stays.

/// A step that [`receiver`](super::receiver) carries out. Each has one [`TargetOutcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetStep {
    /// Start QEMU with the memory of the region that is to be handed over, and send its facts.
    Launch,
    /// Pass QEMU its state, until all of it has been received.
    Receive,
    /// Receive the notes on pages.
    TakeNotes,
    /// Wait until the agent has attached the region, and serves the memory.
    AwaitRegion,
    /// Wait until QEMU has loaded its state.
    Finish,
    Run,
    /// End QEMU, and release its memory; then send the reason to the source, if it may take the machine back.
    EndMachine,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetOutcome {
    Done,
    /// The step failed. [`TargetStep::AwaitRegion`] fails only if QEMU has ended.
    Failed(String),
    /// The source has reported that the machine stays.
    Aborted(String),
    Disconnected,
}

/// End of a move, at its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetEnd {
    /// The machine runs on this compute node.
    Arrived,
    /// The machine does not run on this compute node, for this reason.
    Gone(String),
}

/// State machine of a move at its target: `step` gives the step to carry out, `on` takes its outcome.
#[derive(Debug)]
pub struct TargetMove {
    next: Option<TargetStep>,
    reason: String,
    /// Whether the guest may have run at the target, so that the guest's state at the source is out of date.
    may_have_run: bool,
    end: Option<TargetEnd>,
}

impl Default for TargetMove {
    fn default() -> TargetMove {
        let next = Some(TargetStep::Launch);
        TargetMove { next, reason: String::new(), may_have_run: false, end: None }
    }
}

impl TargetMove {
    /// The step to be carried out; `None` after the end of the move.
    pub fn step(&self) -> Option<TargetStep> {
        self.next
    }

    /// The outcome of the move; `None` while there is a further step.
    pub fn end(&self) -> Option<&TargetEnd> {
        self.end.as_ref()
    }

    /// Reason for [`TargetStep::EndMachine`].
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether the source may take the machine back: the guest has not run here.
    pub fn is_returnable(&self) -> bool {
        !self.may_have_run
    }

    /// Records the outcome of the present step, and decides on the next step.
    pub fn on(&mut self, outcome: TargetOutcome) {
        use TargetOutcome as Outcome;
        use TargetStep as Step;
        let Some(step) = self.next.take() else { return };
        self.next = match (step, outcome) {
            (Step::Launch, Outcome::Done) => Some(Step::Receive),
            (Step::Receive, Outcome::Done) => Some(Step::TakeNotes),
            (Step::TakeNotes, Outcome::Done) => Some(Step::AwaitRegion),
            (Step::AwaitRegion, Outcome::Disconnected) => Some(Step::AwaitRegion),
            (Step::AwaitRegion, Outcome::Done) => Some(Step::Finish),
            (Step::Finish, Outcome::Done | Outcome::Disconnected) => {
                self.may_have_run = true;
                Some(Step::Run)
            }
            (Step::Run, Outcome::Done | Outcome::Disconnected) => {
                self.end = Some(TargetEnd::Arrived);
                None
            }
            (Step::EndMachine, _) => {
                self.end = Some(TargetEnd::Gone(self.reason.clone()));
                None
            }
            (_, outcome) => {
                self.reason = match outcome {
                    Outcome::Failed(reason) | Outcome::Aborted(reason) => reason,
                    Outcome::Disconnected => "the connection to the source has ended".to_owned(),
                    Outcome::Done => "a step that has no successor".to_owned(),
                };
                Some(Step::EndMachine)
            }
        };
    }
}
