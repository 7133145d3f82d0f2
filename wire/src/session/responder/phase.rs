//! States of a CN's session at the memory node and their transitions, as one table without frames or memory.
//!
//! ```text
//!               Start of an offer
//!     Absent -----------------------> Open -----------------.  a Hello of another instance: Ping
//!       ^  Hello: an offer             | ^                   v
//!       |                              | '-- a frame came since: that Hello is refused
//!       |                              |                  Challenged -- no frame came in time: an offer
//!       '---- Bye, ByeAck, silence, ---+---------------------'
//!             its slot is needed
//! ```
//!
//! An offer does not end the current session. It waits in [`Offers`](super::offers) until its Start replaces
//! the session. A Ping to the instance that has the session shows whether two instances of one CN are
//! running.
//!
//! The table has no timers: times are checked when a Hello comes, or at intervals by
//! [`poll`](super::Responder::poll):
//!
//! | event | time counts from | consequence |
//! |---|---|---|
//! | a session falls silent | its last frame | the session is removed |
//! | an offer grows old | its Hello | the offer is removed |
//! | a challenge is not answered | its first Ping | the other instance's next Hello is answered with an offer |

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionPhase {
    Absent,
    Open,
    /// The session is served. It was pinged because another instance asks for a session.
    Challenged,
}

/// Evidence, since the first Ping to a challenged session, that its instance is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Liveness {
    /// A frame has come recently.
    Confirmed,
    /// A frame has come, but long ago, so the challenge belongs to an earlier attempt.
    Stale,
    /// No frame has come yet.
    Pending,
    /// No frame has come within the time limit.
    TimedOut,
}

/// Input of the transition table: a frame, or a decision of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PhaseEvent {
    /// A Hello of the instance that has the session.
    Hello,
    /// A Hello of another instance.
    Rival(Liveness),
    /// A Start of an offered session.
    Start,
    /// A repeated Start of the current session, whose StartAck was lost.
    StartAgain,
    Ping,
    Pong,
    Bye,
    ByeAck,
    /// This node ends the session: the node is about to stop, or the session's frames are too long for the
    /// link.
    Dismiss,
    /// A CN with memory needs the slot of this session.
    Displace,
    /// No frame has come for [`idle_after`](super::ResponderConfig::idle_after).
    Idle,
}

/// Output of the transition table: the frame to send, the report to make, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// Answer the Hello with an offer.
    Offer,
    /// Send a Ping and start the time limit; leave the Hello unanswered.
    Challenge,
    /// Send another Ping; leave the Hello unanswered.
    AskAgain,
    /// Refuse the Hello, and report that two instances are running.
    Refuse,
    /// Make the offered session the current one.
    Adopt,
    SendStartAck,
    SendPong,
    /// Send ByeAck, and report that the session has ended.
    SendByeAck,
    SendBye,
    /// Report that the session has ended.
    TellEnded,
    /// Report that the session was removed after silence.
    TellExpired,
}

/// Returns the next phase of a session in `phase` after `event`, and the action to take.
pub(super) const fn next(phase: SessionPhase, event: PhaseEvent) -> (SessionPhase, Action) {
    use SessionPhase::*;
    match (phase, event) {
        (Absent | Open | Challenged, PhaseEvent::Hello) => (phase, Action::Offer),
        (Absent, PhaseEvent::Rival(_)) => (Absent, Action::Offer),
        (Open, PhaseEvent::Rival(_)) => (Challenged, Action::Challenge),
        (Challenged, PhaseEvent::Rival(Liveness::Confirmed)) => (Open, Action::Refuse),
        (Challenged, PhaseEvent::Rival(Liveness::Stale)) => (Challenged, Action::Challenge),
        (Challenged, PhaseEvent::Rival(Liveness::Pending)) => (Challenged, Action::AskAgain),
        (Challenged, PhaseEvent::Rival(Liveness::TimedOut)) => (Challenged, Action::Offer),

        (Absent | Open | Challenged, PhaseEvent::Start) => (Open, Action::Adopt),
        (Open | Challenged, PhaseEvent::StartAgain) => (phase, Action::SendStartAck),

        (Open | Challenged, PhaseEvent::Ping) => (phase, Action::SendPong),
        (Open | Challenged, PhaseEvent::Pong) => (phase, Action::Nothing),
        (Open | Challenged, PhaseEvent::Bye) => (Absent, Action::SendByeAck),
        (Open | Challenged, PhaseEvent::ByeAck) => (Absent, Action::TellEnded),

        (Open | Challenged, PhaseEvent::Dismiss) => (phase, Action::SendBye),
        (Open | Challenged, PhaseEvent::Displace) => (Absent, Action::TellEnded),
        (Open | Challenged, PhaseEvent::Idle) => (Absent, Action::TellExpired),

        (
            Absent,
            PhaseEvent::StartAgain
            | PhaseEvent::Ping
            | PhaseEvent::Pong
            | PhaseEvent::Bye
            | PhaseEvent::ByeAck
            | PhaseEvent::Dismiss
            | PhaseEvent::Displace
            | PhaseEvent::Idle,
        ) => (Absent, Action::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use super::{Action, Liveness, PhaseEvent, SessionPhase, next};
    use Action::*;
    use SessionPhase::*;

    /// All rows of the table: the event, and its transition from [`Absent`], [`Open`] and [`Challenged`].
    const ROWS: [(PhaseEvent, [(SessionPhase, Action); 3]); 14] = [
        (PhaseEvent::Hello, [(Absent, Offer), (Open, Offer), (Challenged, Offer)]),
        (PhaseEvent::Rival(Liveness::Confirmed), [(Absent, Offer), (Challenged, Challenge), (Open, Refuse)]),
        (
            PhaseEvent::Rival(Liveness::Stale),
            [(Absent, Offer), (Challenged, Challenge), (Challenged, Challenge)],
        ),
        (
            PhaseEvent::Rival(Liveness::Pending),
            [(Absent, Offer), (Challenged, Challenge), (Challenged, AskAgain)],
        ),
        (
            PhaseEvent::Rival(Liveness::TimedOut),
            [(Absent, Offer), (Challenged, Challenge), (Challenged, Offer)],
        ),
        (PhaseEvent::Start, [(Open, Adopt), (Open, Adopt), (Open, Adopt)]),
        (PhaseEvent::StartAgain, [(Absent, Nothing), (Open, SendStartAck), (Challenged, SendStartAck)]),
        (PhaseEvent::Ping, [(Absent, Nothing), (Open, SendPong), (Challenged, SendPong)]),
        (PhaseEvent::Pong, [(Absent, Nothing), (Open, Nothing), (Challenged, Nothing)]),
        (PhaseEvent::Bye, [(Absent, Nothing), (Absent, SendByeAck), (Absent, SendByeAck)]),
        (PhaseEvent::ByeAck, [(Absent, Nothing), (Absent, TellEnded), (Absent, TellEnded)]),
        (PhaseEvent::Dismiss, [(Absent, Nothing), (Open, SendBye), (Challenged, SendBye)]),
        (PhaseEvent::Displace, [(Absent, Nothing), (Absent, TellEnded), (Absent, TellEnded)]),
        (PhaseEvent::Idle, [(Absent, Nothing), (Absent, TellExpired), (Absent, TellExpired)]),
    ];

    #[test]
    fn every_pair_of_phase_and_event() {
        for (event, row) in ROWS {
            for (phase, expected) in [Absent, Open, Challenged].into_iter().zip(row) {
                assert_eq!(next(phase, event), expected, "{event:?} in {phase:?}");
            }
        }
        // No event has two rows. The compiler checks that the match is exhaustive.
        for (place, (event, _)) in ROWS.iter().enumerate() {
            assert!(ROWS[..place].iter().all(|(other, _)| other != event), "{event:?}");
        }
    }
}
