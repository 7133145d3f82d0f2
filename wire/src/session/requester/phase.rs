//! States of a connection and their transitions, as one table without data, time or frames.
//!
//! ```text
//!                connect            HelloAck             StartAck
//!      Closed ------------> Calling ---------> Starting ----------------.
//!        ^  ^                 ^ ^ '--given up------'                    v
//!        |  '----- close -----' |                                      Open --- Ping when idle
//!        |                      | dead (also of Open)                   |  ^
//!        |                      |              silence, new limits,     |  |  an answer, if it was
//!        |                      |              or the peer sends Bye    v  |  only suspected
//!        |                      '------------------------- Reopening(old session)
//!        |                                        given up ^            | HelloAck
//!        |                                                 |            v
//!        |  ByeAck, or none                            Switching(old session) --- StartAck --> Open
//!      Closing <----------- close: Open, Reopening, Switching
//! ```
//!
//! A Hello ends nothing: in Reopening the old session remains in use. From the first Start until its StartAck
//! (Switching), no request is sent, so that no request of the old session can be executed after one of the new session;
//! answers of the old session are still taken. Start is repeated about once in a round trip, because operations wait
//! for its answer. An unanswered Start is given up, and another Hello is sent. Until this Hello leads to a session, the
//! old session may be used again, if the memory node still has it.

/// State of the old session while a new one is agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OldSession {
    /// The old session works; the new one is to have other limits or keys.
    Sound,
    /// Nothing was received for a long time; an answer makes the session sound again.
    Suspect,
    /// The peer sent Bye, or the session's frames are too long for the link, so the session cannot continue.
    Leaving,
}

/// State of a connection; see the diagram in the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionPhase {
    /// No session, and no Hello is sent.
    Closed,
    /// No session; Hello is repeated until an answer comes.
    Calling,
    /// No session yet, but one was offered; Start is repeated until an answer comes.
    Starting,
    /// A session is open, and its requests are sent.
    Open,
    /// The old session remains in use; Hello is repeated for a new one.
    Reopening(OldSession),
    /// No more requests are sent in the old session; Start is repeated for the new one.
    Switching(OldSession),
    /// The session is ending; Bye is repeated until an answer comes.
    Closing,
}

/// Input of the transition table: a call of the application, a frame, or an expired timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEvent {
    /// The application asks for a session.
    Connect,
    Close,
    /// The link's frame length has changed.
    LimitsChanged,
    /// The link's frame length has changed, and the session's frames are too long for it.
    Outgrown,
    /// A HelloAck has offered a session.
    Offered,
    /// A HelloAck has refused the version, and named one that this end supports.
    OtherVersion,
    /// A HelloAck has refused the session.
    Refused,
    /// An authenticated HelloAck has reported that this CN's key was withdrawn.
    Expelled,
    /// A StartAck has come for the offered session.
    Started,
    /// The peer has sent Bye.
    PeerLeft,
    ByeAcked,
    /// A genuine frame of the session has come.
    Heard,
    /// Hello, Start or Bye is due to be sent, or sent again.
    RetryDue,
    /// The last Bye has stayed unanswered.
    ByesSpent,
    /// The Start has stayed unanswered for its time limit.
    GivenUp,
    /// No frame was received, and no Ping sent, for the Ping interval.
    PingDue,
    /// An answer is due, and nothing was received for
    /// [`Timing::suspect_after`](super::Timing::suspect_after).
    Silent,
    /// An answer is due, and nothing was received for [`Timing::dead_after`](super::Timing::dead_after).
    Dead,
}

/// Output of the transition table: the frame to send, the report to make, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// Prepare a new Hello and send it at once.
    Call,
    /// `Call`. If the session whose Start stayed unanswered would have been sealed, also report that the keys probably
    /// differ.
    CallAfterGivingUp,
    /// `Call`, and report that the session is suspect.
    CallSuspecting,
    /// `Call`, and report that the peer has left.
    CallAfterPeerLeft,
    /// `Call`, fail all unanswered requests, and report that the session is dead.
    CallAfterDeath,
    /// Report that the peer has left; Hello or Start is repeated as before.
    TellPeerLeft,
    /// Fail all unanswered requests and report that the session is dead; Hello or Start is repeated as
    /// before.
    TellDeath,
    /// Fail all unanswered requests, report that the session is dead, and send the next Hello after the long
    /// interval.
    RestAfterDeath,
    /// Send the next Hello after the long interval.
    WaitLong,
    /// Send Start at once, and repeat it for a limited time.
    Start,
    /// Make the offered session the current one.
    Adopt,
    /// Stop sending Hellos, because the session has recovered.
    StopCalling,
    /// Send Bye at once, and repeat it a limited number of times.
    StartLeaving,
    /// Send the current Hello again.
    SendHello,
    SendStart,
    SendBye,
    SendPing,
    /// Stop sending Hello, Start and Bye, without a report.
    Stop,
    /// Stop sending Hello, Start and Bye, and report that the session is closed.
    TellClosed,
}

impl ConnectionPhase {
    /// Whether there is a session, even one that is about to be replaced.
    #[inline]
    pub const fn has_session(self) -> bool {
        match self {
            ConnectionPhase::Open
            | ConnectionPhase::Reopening(_)
            | ConnectionPhase::Switching(_)
            | ConnectionPhase::Closing => true,
            ConnectionPhase::Closed | ConnectionPhase::Calling | ConnectionPhase::Starting => false,
        }
    }

    /// Whether requests may be sent; not while one session replaces another.
    #[inline]
    pub const fn takes_requests(self) -> bool {
        match self {
            ConnectionPhase::Open | ConnectionPhase::Reopening(_) => true,
            ConnectionPhase::Closed
            | ConnectionPhase::Calling
            | ConnectionPhase::Starting
            | ConnectionPhase::Switching(_)
            | ConnectionPhase::Closing => false,
        }
    }

    /// Whether answers to requests are taken; this includes requests that the memory node executed before
    /// Start. In a suspect session an answer counts only if it makes the session sound again.
    #[inline]
    pub const fn takes_answers(self) -> bool {
        self.takes_requests() || matches!(self, ConnectionPhase::Switching(OldSession::Sound))
    }

    pub const fn awaits_offer(self) -> bool {
        matches!(self, ConnectionPhase::Calling | ConnectionPhase::Reopening(_))
    }

    /// Whether the connection waits for the answer to a Start, and so has an offered session.
    pub const fn awaits_start(self) -> bool {
        matches!(self, ConnectionPhase::Starting | ConnectionPhase::Switching(_))
    }

    /// State as status output shows it: `open`, `connecting`, `suspect` or `closed`.
    pub const fn name(self) -> &'static str {
        match self {
            ConnectionPhase::Closed => "closed",
            ConnectionPhase::Calling | ConnectionPhase::Starting => "connecting",
            ConnectionPhase::Open
            | ConnectionPhase::Reopening(OldSession::Sound)
            | ConnectionPhase::Switching(OldSession::Sound)
            | ConnectionPhase::Closing => "open",
            ConnectionPhase::Reopening(OldSession::Suspect | OldSession::Leaving)
            | ConnectionPhase::Switching(OldSession::Suspect | OldSession::Leaving) => "suspect",
        }
    }
}

/// Returns the next phase of a connection in `phase` after `event`, and the action to take.
pub(super) const fn next(phase: ConnectionPhase, event: ConnectionEvent) -> (ConnectionPhase, Action) {
    use ConnectionPhase::*;
    use OldSession::{Leaving, Sound, Suspect};
    match (phase, event) {
        (Closed, ConnectionEvent::Connect) => (Calling, Action::Call),
        // A closing session still exists, so it is kept until a new one starts.
        (Closing, ConnectionEvent::Connect) => (Reopening(Sound), Action::Call),
        (Calling | Starting | Open | Reopening(_) | Switching(_), ConnectionEvent::Connect) => {
            (phase, Action::Nothing)
        }

        (Closed, ConnectionEvent::Close) => (Closed, Action::Nothing),
        (Calling | Starting, ConnectionEvent::Close) => (Closed, Action::Stop),
        (Open | Reopening(_) | Switching(_) | Closing, ConnectionEvent::Close) => {
            (Closing, Action::StartLeaving)
        }

        (Calling | Starting, ConnectionEvent::LimitsChanged | ConnectionEvent::Outgrown) => {
            (Calling, Action::Call)
        }
        (Open, ConnectionEvent::LimitsChanged) => (Reopening(Sound), Action::Call),
        // An offer with the old limits is given up.
        (Reopening(old) | Switching(old), ConnectionEvent::LimitsChanged) => (Reopening(old), Action::Call),
        (Open | Reopening(_) | Switching(_), ConnectionEvent::Outgrown) => (Reopening(Leaving), Action::Call),
        (Closed | Closing, ConnectionEvent::LimitsChanged | ConnectionEvent::Outgrown) => {
            (phase, Action::Nothing)
        }

        (Calling, ConnectionEvent::Offered) => (Starting, Action::Start),
        (Reopening(old), ConnectionEvent::Offered) => (Switching(old), Action::Start),
        (Calling | Reopening(_), ConnectionEvent::OtherVersion) => (phase, Action::Call),
        (Calling | Reopening(_), ConnectionEvent::Refused) => (phase, Action::WaitLong),
        (Calling, ConnectionEvent::Expelled) => (Calling, Action::WaitLong),
        (Reopening(_), ConnectionEvent::Expelled) => (Calling, Action::RestAfterDeath),
        (
            Closed | Starting | Open | Switching(_) | Closing,
            ConnectionEvent::Offered
            | ConnectionEvent::OtherVersion
            | ConnectionEvent::Refused
            | ConnectionEvent::Expelled,
        ) => (phase, Action::Nothing),

        (Starting | Switching(_), ConnectionEvent::Started) => (Open, Action::Adopt),
        (Closed | Calling | Open | Reopening(_) | Closing, ConnectionEvent::Started) => {
            (phase, Action::Nothing)
        }

        (Open, ConnectionEvent::PeerLeft) => (Reopening(Leaving), Action::CallAfterPeerLeft),
        (Reopening(Sound | Suspect), ConnectionEvent::PeerLeft) => (Reopening(Leaving), Action::TellPeerLeft),
        (Switching(Sound | Suspect), ConnectionEvent::PeerLeft) => (Switching(Leaving), Action::TellPeerLeft),
        (Closing, ConnectionEvent::PeerLeft | ConnectionEvent::ByeAcked | ConnectionEvent::ByesSpent) => {
            (Closed, Action::TellClosed)
        }
        (
            Closed | Calling | Starting | Reopening(Leaving) | Switching(Leaving),
            ConnectionEvent::PeerLeft,
        ) => (phase, Action::Nothing),
        (
            Closed | Calling | Starting | Open | Reopening(_) | Switching(_),
            ConnectionEvent::ByeAcked | ConnectionEvent::ByesSpent,
        ) => (phase, Action::Nothing),

        (Reopening(Suspect), ConnectionEvent::Heard) => (Open, Action::StopCalling),
        (
            Closed | Calling | Starting | Open | Reopening(Sound | Leaving) | Switching(_) | Closing,
            ConnectionEvent::Heard,
        ) => (phase, Action::Nothing),

        (Calling | Reopening(_), ConnectionEvent::RetryDue) => (phase, Action::SendHello),
        (Starting | Switching(_), ConnectionEvent::RetryDue) => (phase, Action::SendStart),
        (Closing, ConnectionEvent::RetryDue) => (Closing, Action::SendBye),
        (Closed | Open, ConnectionEvent::RetryDue) => (phase, Action::Nothing),

        (Starting, ConnectionEvent::GivenUp) => (Calling, Action::CallAfterGivingUp),
        (Switching(old), ConnectionEvent::GivenUp) => (Reopening(old), Action::CallAfterGivingUp),
        (Closed | Calling | Open | Reopening(_) | Closing, ConnectionEvent::GivenUp) => {
            (phase, Action::Nothing)
        }

        (Open, ConnectionEvent::PingDue) => (Open, Action::SendPing),
        (Open, ConnectionEvent::Silent) => (Reopening(Suspect), Action::CallSuspecting),
        (
            Closed | Calling | Starting | Reopening(_) | Switching(_) | Closing,
            ConnectionEvent::PingDue | ConnectionEvent::Silent,
        ) => (phase, Action::Nothing),

        (Open, ConnectionEvent::Dead) => (Calling, Action::CallAfterDeath),
        (Reopening(_), ConnectionEvent::Dead) => (Calling, Action::TellDeath),
        (Switching(_), ConnectionEvent::Dead) => (Starting, Action::TellDeath),
        // A closing session ends sooner anyway, after its last Bye.
        (Closed | Calling | Starting | Closing, ConnectionEvent::Dead) => (phase, Action::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use super::{Action, ConnectionEvent, ConnectionPhase, OldSession, next};
    use ConnectionPhase::*;
    use OldSession::{Leaving, Sound, Suspect};

    const PHASES: [ConnectionPhase; 11] = [
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

    /// Transitions of one event: phase before, phase after, action.
    type Row = &'static [(ConnectionPhase, ConnectionPhase, Action)];

    /// All transitions of each event. In a phase without an entry, nothing changes.
    const ROWS: [(ConnectionEvent, Row); 18] = [
        (
            ConnectionEvent::Connect,
            &[(Closed, Calling, Action::Call), (Closing, Reopening(Sound), Action::Call)],
        ),
        (
            ConnectionEvent::Close,
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
            ConnectionEvent::LimitsChanged,
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
            ConnectionEvent::Outgrown,
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
            ConnectionEvent::Offered,
            &[
                (Calling, Starting, Action::Start),
                (Reopening(Sound), Switching(Sound), Action::Start),
                (Reopening(Suspect), Switching(Suspect), Action::Start),
                (Reopening(Leaving), Switching(Leaving), Action::Start),
            ],
        ),
        (
            ConnectionEvent::OtherVersion,
            &[
                (Calling, Calling, Action::Call),
                (Reopening(Sound), Reopening(Sound), Action::Call),
                (Reopening(Suspect), Reopening(Suspect), Action::Call),
                (Reopening(Leaving), Reopening(Leaving), Action::Call),
            ],
        ),
        (
            ConnectionEvent::Refused,
            &[
                (Calling, Calling, Action::WaitLong),
                (Reopening(Sound), Reopening(Sound), Action::WaitLong),
                (Reopening(Suspect), Reopening(Suspect), Action::WaitLong),
                (Reopening(Leaving), Reopening(Leaving), Action::WaitLong),
            ],
        ),
        (
            ConnectionEvent::Expelled,
            &[
                (Calling, Calling, Action::WaitLong),
                (Reopening(Sound), Calling, Action::RestAfterDeath),
                (Reopening(Suspect), Calling, Action::RestAfterDeath),
                (Reopening(Leaving), Calling, Action::RestAfterDeath),
            ],
        ),
        (
            ConnectionEvent::Started,
            &[
                (Starting, Open, Action::Adopt),
                (Switching(Sound), Open, Action::Adopt),
                (Switching(Suspect), Open, Action::Adopt),
                (Switching(Leaving), Open, Action::Adopt),
            ],
        ),
        (
            ConnectionEvent::PeerLeft,
            &[
                (Open, Reopening(Leaving), Action::CallAfterPeerLeft),
                (Reopening(Sound), Reopening(Leaving), Action::TellPeerLeft),
                (Reopening(Suspect), Reopening(Leaving), Action::TellPeerLeft),
                (Switching(Sound), Switching(Leaving), Action::TellPeerLeft),
                (Switching(Suspect), Switching(Leaving), Action::TellPeerLeft),
                (Closing, Closed, Action::TellClosed),
            ],
        ),
        (ConnectionEvent::ByeAcked, &[(Closing, Closed, Action::TellClosed)]),
        (ConnectionEvent::Heard, &[(Reopening(Suspect), Open, Action::StopCalling)]),
        (
            ConnectionEvent::RetryDue,
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
        (ConnectionEvent::ByesSpent, &[(Closing, Closed, Action::TellClosed)]),
        (
            ConnectionEvent::GivenUp,
            &[
                (Starting, Calling, Action::CallAfterGivingUp),
                (Switching(Sound), Reopening(Sound), Action::CallAfterGivingUp),
                (Switching(Suspect), Reopening(Suspect), Action::CallAfterGivingUp),
                (Switching(Leaving), Reopening(Leaving), Action::CallAfterGivingUp),
            ],
        ),
        (ConnectionEvent::PingDue, &[(Open, Open, Action::SendPing)]),
        (ConnectionEvent::Silent, &[(Open, Reopening(Suspect), Action::CallSuspecting)]),
        (
            ConnectionEvent::Dead,
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
        // Each event has exactly one row.
        for (place, (event, _)) in ROWS.iter().enumerate() {
            assert_eq!(*event as usize, place, "rows in the order of the events, none missing");
        }
        assert_eq!(ConnectionEvent::Dead as usize + 1, ROWS.len());
    }

    /// A session begins only by Adopt and ends only by an action that reports it, as `has_session` requires.
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
