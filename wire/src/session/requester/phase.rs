//! The states of a connection and what leads from one to another: one table, without data, time or frames.
//!
//! ```text
//!                connect            HelloAck             StartAck
//!      Closed ------------> Calling ---------> Starting ----------------.
//!        ^  ^                 ^ ^ '--given up------'                    v
//!        |  '----- close -----' |                                      Open --- Ping when idle
//!        |                      | dead (also of Open)                   |  ^
//!        |                      |              silence, new limits,     |  |  an answer, if it was
//!        |                      |              or the peer says Bye     v  |  only suspected
//!        |                      '------------------------- Reopening(standing)
//!        |                                        given up ^            | HelloAck
//!        |                                                 |            v
//!        |  ByeAck, or none                               Switching(standing) --- StartAck --> Open
//!      Closing <----------- close: Open, Reopening, Switching
//! ```
//!
//! A Hello ends nothing: in Reopening the old session goes on. From the first Start until its StartAck (Switching) no
//! request is sent, so that none of the old session can be executed after one of the new. A Start that stays unanswered
//! is given up and another Hello sent; until that has led to a session the old one may go on, if the memory node still
//! has it.

/// What becomes of the old session while a new one is being agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing is wrong with it; the new one has other limits.
    Sound,
    /// Nothing was heard for long. An answer clears it.
    Suspect,
    /// The peer has said Bye, or its frames are too long for the link: it does not recover.
    Leaving,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No session, and none is wanted.
    Closed,
    /// No session; Hello is sent until it is answered.
    Calling,
    /// No session; one was offered, and Start is sent until it is answered.
    Starting,
    /// A session.
    Open,
    /// A session that goes on, and Hello is sent for the next.
    Reopening(Standing),
    /// A session in which nothing is sent any more, and Start is sent in the next.
    Switching(Standing),
    /// A session that is to end; Bye is sent until it is answered.
    Closing,
}

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The application wants a session.
    Connect,
    /// The application wants none any more.
    Close,
    /// The link carries frames of another length.
    LimitsChanged,
    /// The same, and those of the session are too long for it.
    Outgrown,
    /// The Hello was answered by a session.
    Offered,
    /// The Hello was answered by other versions, one of which suits.
    OtherVersion,
    /// The Hello was answered by a refusal.
    Refused,
    /// It was answered, by the memory node itself, that this end's key belongs to it no more.
    Expelled,
    /// The Start was answered.
    Started,
    /// The peer has said Bye.
    PeerLeft,
    /// The peer has answered a Bye.
    ByeAcked,
    /// A genuine frame of the session has come.
    Heard,
    /// It is time to send Hello, Start or Bye (again).
    RetryDue,
    /// As many Byes as are sent have stayed unanswered.
    ByesSpent,
    /// The Start has stayed unanswered for too long.
    GivenUp,
    /// The session is idle.
    PingDue,
    /// Something has been owed, and nothing heard, for long.
    Silent,
    /// Something has been owed for so long that the session counts as lost.
    Dead,
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing.
    Nothing,
    /// Prepare a new Hello and send it at once.
    Call,
    /// The same; and if the session would have been sealed, say that the keys probably differ.
    CallAfterGivingUp,
    /// The same as `Call`; say that the session is suspect.
    CallSuspecting,
    /// The same as `Call`; say that the peer has left.
    CallAfterPeerLeft,
    /// The same as `Call`; everything unanswered fails, say that the session is dead.
    CallAfterDeath,
    /// Say that the peer has left; what is being sent goes on.
    TellPeerLeft,
    /// Everything unanswered fails, say that the session is dead; what is being sent goes on.
    TellDeath,
    /// Everything unanswered fails, say that the session is dead, and send the next Hello at leisure.
    RestAfterDeath,
    /// Send the next Hello at leisure.
    WaitLong,
    /// Send Start at once, and for so long.
    Start,
    /// The session offered becomes the session.
    Adopt,
    /// The session is well after all: stop calling.
    StopCalling,
    /// Send Bye at once, and so often.
    StartLeaving,
    /// Send the present Hello.
    SendHello,
    /// Send Start.
    SendStart,
    /// Send Bye.
    SendBye,
    /// Send Ping.
    SendPing,
    /// Stop sending; nobody needs to be told.
    Stop,
    /// Stop sending, and say that the session is closed.
    TellClosed,
}

impl Phase {
    /// Whether there is a session, be it one that is about to be replaced.
    #[inline]
    pub const fn has_session(self) -> bool {
        match self {
            Phase::Open | Phase::Reopening(_) | Phase::Switching(_) | Phase::Closing => true,
            Phase::Closed | Phase::Calling | Phase::Starting => false,
        }
    }

    /// Whether requests may be sent.
    #[inline]
    pub const fn takes_requests(self) -> bool {
        match self {
            Phase::Open | Phase::Reopening(_) => true,
            Phase::Closed | Phase::Calling | Phase::Starting | Phase::Switching(_) | Phase::Closing => false,
        }
    }

    /// Whether an answer to a Hello is waited for.
    pub const fn awaits_offer(self) -> bool {
        matches!(self, Phase::Calling | Phase::Reopening(_))
    }

    /// Whether an answer to a Start is waited for, so that there is a session offered.
    pub const fn awaits_start(self) -> bool {
        matches!(self, Phase::Starting | Phase::Switching(_))
    }

    /// As status shows it: `open`, `connecting`, `suspect` or `closed`.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Closed => "closed",
            Phase::Calling | Phase::Starting => "connecting",
            Phase::Open
            | Phase::Reopening(Standing::Sound)
            | Phase::Switching(Standing::Sound)
            | Phase::Closing => "open",
            Phase::Reopening(Standing::Suspect | Standing::Leaving)
            | Phase::Switching(Standing::Suspect | Standing::Leaving) => "suspect",
        }
    }
}

/// What `event` makes of a connection in `phase`, and what is to be done.
pub(super) const fn next(phase: Phase, event: Event) -> (Phase, Action) {
    use Phase::*;
    use Standing::{Leaving, Sound, Suspect};
    match (phase, event) {
        (Closed, Event::Connect) => (Calling, Action::Call),
        (Closing, Event::Connect) => (Reopening(Sound), Action::Call),
        (Calling | Starting | Open | Reopening(_) | Switching(_), Event::Connect) => (phase, Action::Nothing),

        (Closed, Event::Close) => (Closed, Action::Nothing),
        (Calling | Starting, Event::Close) => (Closed, Action::Stop),
        (Open | Reopening(_) | Switching(_) | Closing, Event::Close) => (Closing, Action::StartLeaving),

        (Calling | Starting, Event::LimitsChanged | Event::Outgrown) => (Calling, Action::Call),
        (Open, Event::LimitsChanged) => (Reopening(Sound), Action::Call),
        (Reopening(old) | Switching(old), Event::LimitsChanged) => (Reopening(old), Action::Call),
        (Open | Reopening(_) | Switching(_), Event::Outgrown) => (Reopening(Leaving), Action::Call),
        (Closed | Closing, Event::LimitsChanged | Event::Outgrown) => (phase, Action::Nothing),

        (Calling, Event::Offered) => (Starting, Action::Start),
        (Reopening(old), Event::Offered) => (Switching(old), Action::Start),
        (Calling | Reopening(_), Event::OtherVersion) => (phase, Action::Call),
        (Calling | Reopening(_), Event::Refused) => (phase, Action::WaitLong),
        (Calling, Event::Expelled) => (Calling, Action::WaitLong),
        (Reopening(_), Event::Expelled) => (Calling, Action::RestAfterDeath),
        (
            Closed | Starting | Open | Switching(_) | Closing,
            Event::Offered | Event::OtherVersion | Event::Refused | Event::Expelled,
        ) => (phase, Action::Nothing),

        (Starting | Switching(_), Event::Started) => (Open, Action::Adopt),
        (Closed | Calling | Open | Reopening(_) | Closing, Event::Started) => (phase, Action::Nothing),

        (Open, Event::PeerLeft) => (Reopening(Leaving), Action::CallAfterPeerLeft),
        (Reopening(Sound | Suspect), Event::PeerLeft) => (Reopening(Leaving), Action::TellPeerLeft),
        (Switching(Sound | Suspect), Event::PeerLeft) => (Switching(Leaving), Action::TellPeerLeft),
        (Closing, Event::PeerLeft | Event::ByeAcked | Event::ByesSpent) => (Closed, Action::TellClosed),
        (Closed | Calling | Starting | Reopening(Leaving) | Switching(Leaving), Event::PeerLeft) => {
            (phase, Action::Nothing)
        }
        (
            Closed | Calling | Starting | Open | Reopening(_) | Switching(_),
            Event::ByeAcked | Event::ByesSpent,
        ) => (phase, Action::Nothing),

        (Reopening(Suspect), Event::Heard) => (Open, Action::StopCalling),
        (
            Closed | Calling | Starting | Open | Reopening(Sound | Leaving) | Switching(_) | Closing,
            Event::Heard,
        ) => (phase, Action::Nothing),

        (Calling | Reopening(_), Event::RetryDue) => (phase, Action::SendHello),
        (Starting | Switching(_), Event::RetryDue) => (phase, Action::SendStart),
        (Closing, Event::RetryDue) => (Closing, Action::SendBye),
        (Closed | Open, Event::RetryDue) => (phase, Action::Nothing),

        (Starting, Event::GivenUp) => (Calling, Action::CallAfterGivingUp),
        (Switching(old), Event::GivenUp) => (Reopening(old), Action::CallAfterGivingUp),
        (Closed | Calling | Open | Reopening(_) | Closing, Event::GivenUp) => (phase, Action::Nothing),

        (Open, Event::PingDue) => (Open, Action::SendPing),
        (Open, Event::Silent) => (Reopening(Suspect), Action::CallSuspecting),
        (
            Closed | Calling | Starting | Reopening(_) | Switching(_) | Closing,
            Event::PingDue | Event::Silent,
        ) => (phase, Action::Nothing),

        (Open, Event::Dead) => (Calling, Action::CallAfterDeath),
        (Reopening(_), Event::Dead) => (Calling, Action::TellDeath),
        (Switching(_), Event::Dead) => (Starting, Action::TellDeath),
        // One that is closing ends by itself, and sooner.
        (Closed | Calling | Starting | Closing, Event::Dead) => (phase, Action::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use super::{Action, Event, Phase, Standing, next};
    use Phase::*;
    use Standing::{Leaving, Sound, Suspect};

    const PHASES: [Phase; 11] = [
        Closed,
        Calling,
        Starting,
        Open,
        Reopening(Sound),
        Reopening(Suspect),
        Reopening(Leaving),
        Switching(Sound),
        Switching(Suspect),
        Switching(Leaving),
        Closing,
    ];

    /// Where an event leads from, where to, and what is done.
    type Row = &'static [(Phase, Phase, Action)];

    /// Every row: what an event does where it does anything. Where a phase is not named, nothing happens.
    const ROWS: [(Event, Row); 18] = [
        (Event::Connect, &[(Closed, Calling, Action::Call), (Closing, Reopening(Sound), Action::Call)]),
        (
            Event::Close,
            &[
                (Calling, Closed, Action::Stop),
                (Starting, Closed, Action::Stop),
                (Open, Closing, Action::StartLeaving),
                (Reopening(Sound), Closing, Action::StartLeaving),
                (Reopening(Suspect), Closing, Action::StartLeaving),
                (Reopening(Leaving), Closing, Action::StartLeaving),
                (Switching(Sound), Closing, Action::StartLeaving),
                (Switching(Suspect), Closing, Action::StartLeaving),
                (Switching(Leaving), Closing, Action::StartLeaving),
                (Closing, Closing, Action::StartLeaving),
            ],
        ),
        (
            Event::LimitsChanged,
            &[
                (Calling, Calling, Action::Call),
                (Starting, Calling, Action::Call),
                (Open, Reopening(Sound), Action::Call),
                (Reopening(Sound), Reopening(Sound), Action::Call),
                (Reopening(Suspect), Reopening(Suspect), Action::Call),
                (Reopening(Leaving), Reopening(Leaving), Action::Call),
                (Switching(Sound), Reopening(Sound), Action::Call),
                (Switching(Suspect), Reopening(Suspect), Action::Call),
                (Switching(Leaving), Reopening(Leaving), Action::Call),
            ],
        ),
        (
            Event::Outgrown,
            &[
                (Calling, Calling, Action::Call),
                (Starting, Calling, Action::Call),
                (Open, Reopening(Leaving), Action::Call),
                (Reopening(Sound), Reopening(Leaving), Action::Call),
                (Reopening(Suspect), Reopening(Leaving), Action::Call),
                (Reopening(Leaving), Reopening(Leaving), Action::Call),
                (Switching(Sound), Reopening(Leaving), Action::Call),
                (Switching(Suspect), Reopening(Leaving), Action::Call),
                (Switching(Leaving), Reopening(Leaving), Action::Call),
            ],
        ),
        (
            Event::Offered,
            &[
                (Calling, Starting, Action::Start),
                (Reopening(Sound), Switching(Sound), Action::Start),
                (Reopening(Suspect), Switching(Suspect), Action::Start),
                (Reopening(Leaving), Switching(Leaving), Action::Start),
            ],
        ),
        (
            Event::OtherVersion,
            &[
                (Calling, Calling, Action::Call),
                (Reopening(Sound), Reopening(Sound), Action::Call),
                (Reopening(Suspect), Reopening(Suspect), Action::Call),
                (Reopening(Leaving), Reopening(Leaving), Action::Call),
            ],
        ),
        (
            Event::Refused,
            &[
                (Calling, Calling, Action::WaitLong),
                (Reopening(Sound), Reopening(Sound), Action::WaitLong),
                (Reopening(Suspect), Reopening(Suspect), Action::WaitLong),
                (Reopening(Leaving), Reopening(Leaving), Action::WaitLong),
            ],
        ),
        (
            Event::Expelled,
            &[
                (Calling, Calling, Action::WaitLong),
                (Reopening(Sound), Calling, Action::RestAfterDeath),
                (Reopening(Suspect), Calling, Action::RestAfterDeath),
                (Reopening(Leaving), Calling, Action::RestAfterDeath),
            ],
        ),
        (
            Event::Started,
            &[
                (Starting, Open, Action::Adopt),
                (Switching(Sound), Open, Action::Adopt),
                (Switching(Suspect), Open, Action::Adopt),
                (Switching(Leaving), Open, Action::Adopt),
            ],
        ),
        (
            Event::PeerLeft,
            &[
                (Open, Reopening(Leaving), Action::CallAfterPeerLeft),
                (Reopening(Sound), Reopening(Leaving), Action::TellPeerLeft),
                (Reopening(Suspect), Reopening(Leaving), Action::TellPeerLeft),
                (Switching(Sound), Switching(Leaving), Action::TellPeerLeft),
                (Switching(Suspect), Switching(Leaving), Action::TellPeerLeft),
                (Closing, Closed, Action::TellClosed),
            ],
        ),
        (Event::ByeAcked, &[(Closing, Closed, Action::TellClosed)]),
        (Event::Heard, &[(Reopening(Suspect), Open, Action::StopCalling)]),
        (
            Event::RetryDue,
            &[
                (Calling, Calling, Action::SendHello),
                (Starting, Starting, Action::SendStart),
                (Reopening(Sound), Reopening(Sound), Action::SendHello),
                (Reopening(Suspect), Reopening(Suspect), Action::SendHello),
                (Reopening(Leaving), Reopening(Leaving), Action::SendHello),
                (Switching(Sound), Switching(Sound), Action::SendStart),
                (Switching(Suspect), Switching(Suspect), Action::SendStart),
                (Switching(Leaving), Switching(Leaving), Action::SendStart),
                (Closing, Closing, Action::SendBye),
            ],
        ),
        (Event::ByesSpent, &[(Closing, Closed, Action::TellClosed)]),
        (
            Event::GivenUp,
            &[
                (Starting, Calling, Action::CallAfterGivingUp),
                (Switching(Sound), Reopening(Sound), Action::CallAfterGivingUp),
                (Switching(Suspect), Reopening(Suspect), Action::CallAfterGivingUp),
                (Switching(Leaving), Reopening(Leaving), Action::CallAfterGivingUp),
            ],
        ),
        (Event::PingDue, &[(Open, Open, Action::SendPing)]),
        (Event::Silent, &[(Open, Reopening(Suspect), Action::CallSuspecting)]),
        (
            Event::Dead,
            &[
                (Open, Calling, Action::CallAfterDeath),
                (Reopening(Sound), Calling, Action::TellDeath),
                (Reopening(Suspect), Calling, Action::TellDeath),
                (Reopening(Leaving), Calling, Action::TellDeath),
                (Switching(Sound), Starting, Action::TellDeath),
                (Switching(Suspect), Starting, Action::TellDeath),
                (Switching(Leaving), Starting, Action::TellDeath),
            ],
        ),
    ];

    #[test]
    fn every_pair_of_phase_and_event() {
        for (event, row) in ROWS {
            for phase in PHASES {
                let listed = row.iter().find(|(from, ..)| *from == phase);
                let expected = listed.map_or((phase, Action::Nothing), |(_, to, action)| (*to, *action));
                assert_eq!(next(phase, event), expected, "{event:?} in {phase:?}");
            }
        }
        // A row of its own for each event.
        for (place, (event, _)) in ROWS.iter().enumerate() {
            assert_eq!(*event as usize, place, "rows in the order of the events, none missing");
        }
        assert_eq!(Event::Dead as usize + 1, ROWS.len());
    }

    /// What phases hold follows from where they lead: a session comes by Adopt and goes by Tell…, Stop and Call….
    #[test]
    fn sessions_come_and_go_with_their_actions() {
        for (event, _) in ROWS {
            for phase in PHASES {
                let (to, action) = next(phase, event);
                match (phase.has_session(), to.has_session()) {
                    (false, true) => assert_eq!(action, Action::Adopt, "{event:?} in {phase:?}"),
                    (true, false) => assert!(
                        matches!(
                            action,
                            Action::TellClosed
                                | Action::TellDeath
                                | Action::CallAfterDeath
                                | Action::RestAfterDeath
                        ),
                        "{event:?} in {phase:?}: nobody is told"
                    ),
                    _ => {}
                }
                let offered = (phase.awaits_start(), to.awaits_start());
                assert_eq!(offered == (false, true), action == Action::Start, "{event:?} in {phase:?}");
                assert!(!(to.awaits_offer() && to.awaits_start()));
            }
        }
    }
}
