//! Decisions of the target, to which a machine moves.
//!
//! ```text
//!   Launch --> Receive --> TakeNotes --> AwaitRegion --> Finish --> Run --> Arrived
//!      |          |            |             |  told          |        |
//!      +----------+------------+-------------+ to abort       +--------+
//!      v                                                      v
//!   EndMachine --> Gone                                  EndMachine --> Gone
//! ```
//!
//! Once all of the state and all notes are here, the loss of the connection changes nothing: the region may be given to
//! this compute node at any moment, and then the machine can go on nowhere else. So this side waits for the region until it
//! comes, or the source says that the machine stays.

/// A step that the shell carries out. Each has one [`TargetOutcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetStep {
    /// Start QEMU with the memory of the region that is to come, and send its facts.
    Launch,
    /// Pass QEMU its state, until all of it is here.
    Receive,
    /// Take the notes of pages.
    TakeNotes,
    /// Wait until the agent has attached the region, and serves the memory.
    AwaitRegion,
    /// Wait until QEMU has loaded its state.
    Finish,
    /// Let the guest run.
    Run,
    /// End QEMU, and release its memory; then send the reason to the source, if it may take the machine back.
    EndMachine,
}

/// Outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetOutcome {
    /// It is done.
    Done,
    /// It failed. While the region is waited for, that QEMU has ended.
    Failed(String),
    /// The source has said that the machine stays.
    Aborted(String),
    /// The connection has ended.
    Disconnected,
}

/// End of a move, at its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetEnd {
    /// The machine runs here.
    Arrived,
    /// It does not run here.
    Gone(String),
}

/// A move, at its target.
#[derive(Debug)]
pub struct TargetMove {
    next: Option<TargetStep>,
    reason: String,
    /// Whether the guest may have run here, so that it cannot go on from the state of before.
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
    /// The step to be carried out; `None` once the move has ended.
    pub fn step(&self) -> Option<TargetStep> {
        self.next
    }

    /// End of the move, once there is no further step.
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

    /// Takes the outcome of the present step.
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
