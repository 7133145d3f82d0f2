//! The states of a CN's session at the memory node and what leads from one to another: one table, without frames or
//! memory.
//!
//! ```text
//!               Start of an offer
//!     Absent -----------------------> Open -----------------.  a Hello of another instance: Ping
//!       ^  Hello: an offer             | ^                   v
//!       |                              | '-- heard since, not long ago: that Hello is refused
//!       |                              |                  Challenged -- not heard for so long: an offer
//!       '---- Bye, ByeAck, silence, ---+---------------------'
//!             its place is needed
//! ```
//!
//! An offer ends nothing; it waits in [`Offers`](super::offers) until its Start takes the session's place. Whether two
//! instances of one CN are alive is found out by asking the one that has the session.
//!
//! Nothing here has a time of its own: what depends on time is looked at when a Hello comes, or about once a second by
//! [`poll`](super::Responder::poll):
//!
//! | what | counts from | then |
//! |---|---|---|
//! | a session falls silent | its last frame | it is forgotten |
//! | an offer grows old | its Hello | it is forgotten |
//! | a challenge is not answered | its first Ping | the other instance's next Hello is answered by an offer |

/// The state of a CN's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is none.
    Absent,
    /// It is served.
    Open,
    /// It is served, and was asked for a sign of life because another instance wants its place.
    Challenged,
}

/// What a challenged session has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Liveness {
    /// It was heard since, and not long ago.
    Confirmed,
    /// It was heard since, but long ago: the challenge is of an earlier attempt.
    Stale,
    /// It was not heard yet.
    Pending,
    /// It was not heard for as long as is waited.
    TimedOut,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A Hello of the instance that has the session.
    Hello,
    /// A Hello of another instance.
    Rival(Liveness),
    /// A Start of a session offered.
    Start,
    /// A Start in the session there is: its answer was lost.
    StartAgain,
    /// A Ping.
    Ping,
    /// A Pong.
    Pong,
    /// A Bye.
    Bye,
    /// The answer to a Bye.
    ByeAck,
    /// This end takes leave of the session: the node stops, or its frames are too long for the link.
    Dismiss,
    /// A CN with memory needs the place.
    Displace,
    /// Nothing was heard for as long as a session lasts in silence.
    Idle,
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing.
    Nothing,
    /// Answer the Hello by an offer.
    Offer,
    /// Ask for a sign of life, from now on; the Hello is not answered yet.
    Challenge,
    /// Ask once more; the Hello is not answered yet.
    AskAgain,
    /// Refuse the Hello, and say that there are two instances.
    Refuse,
    /// The session offered becomes the session.
    Adopt,
    /// Send StartAck.
    SendStartAck,
    /// Send Pong.
    SendPong,
    /// Send ByeAck, and say that the session has ended.
    SendByeAck,
    /// Send Bye.
    SendBye,
    /// Say that the session has ended.
    TellEnded,
    /// Say that the session was forgotten.
    TellExpired,
}

/// What `event` makes of a session in `phase`, and what is to be done.
pub(super) const fn next(phase: Phase, event: Event) -> (Phase, Action) {
    use Phase::*;
    match (phase, event) {
        (Absent | Open | Challenged, Event::Hello) => (phase, Action::Offer),
        (Absent, Event::Rival(_)) => (Absent, Action::Offer),
        (Open, Event::Rival(_)) => (Challenged, Action::Challenge),
        (Challenged, Event::Rival(Liveness::Confirmed)) => (Open, Action::Refuse),
        (Challenged, Event::Rival(Liveness::Stale)) => (Challenged, Action::Challenge),
        (Challenged, Event::Rival(Liveness::Pending)) => (Challenged, Action::AskAgain),
        (Challenged, Event::Rival(Liveness::TimedOut)) => (Challenged, Action::Offer),

        (Absent | Open | Challenged, Event::Start) => (Open, Action::Adopt),
        (Open | Challenged, Event::StartAgain) => (phase, Action::SendStartAck),

        (Open | Challenged, Event::Ping) => (phase, Action::SendPong),
        (Open | Challenged, Event::Pong) => (phase, Action::Nothing),
        (Open | Challenged, Event::Bye) => (Absent, Action::SendByeAck),
        (Open | Challenged, Event::ByeAck) => (Absent, Action::TellEnded),

        (Open | Challenged, Event::Dismiss) => (phase, Action::SendBye),
        (Open | Challenged, Event::Displace) => (Absent, Action::TellEnded),
        (Open | Challenged, Event::Idle) => (Absent, Action::TellExpired),

        (
            Absent,
            Event::StartAgain
            | Event::Ping
            | Event::Pong
            | Event::Bye
            | Event::ByeAck
            | Event::Dismiss
            | Event::Displace
            | Event::Idle,
        ) => (Absent, Action::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use super::{Action, Event, Liveness, Phase, next};
    use Action::*;
    use Phase::*;

    /// Every row: the event, and what it does in [`Absent`], [`Open`] and [`Challenged`].
    const ROWS: [(Event, [(Phase, Action); 3]); 14] = [
        (Event::Hello, [(Absent, Offer), (Open, Offer), (Challenged, Offer)]),
        (Event::Rival(Liveness::Confirmed), [(Absent, Offer), (Challenged, Challenge), (Open, Refuse)]),
        (Event::Rival(Liveness::Stale), [(Absent, Offer), (Challenged, Challenge), (Challenged, Challenge)]),
        (Event::Rival(Liveness::Pending), [(Absent, Offer), (Challenged, Challenge), (Challenged, AskAgain)]),
        (Event::Rival(Liveness::TimedOut), [(Absent, Offer), (Challenged, Challenge), (Challenged, Offer)]),
        (Event::Start, [(Open, Adopt), (Open, Adopt), (Open, Adopt)]),
        (Event::StartAgain, [(Absent, Nothing), (Open, SendStartAck), (Challenged, SendStartAck)]),
        (Event::Ping, [(Absent, Nothing), (Open, SendPong), (Challenged, SendPong)]),
        (Event::Pong, [(Absent, Nothing), (Open, Nothing), (Challenged, Nothing)]),
        (Event::Bye, [(Absent, Nothing), (Absent, SendByeAck), (Absent, SendByeAck)]),
        (Event::ByeAck, [(Absent, Nothing), (Absent, TellEnded), (Absent, TellEnded)]),
        (Event::Dismiss, [(Absent, Nothing), (Open, SendBye), (Challenged, SendBye)]),
        (Event::Displace, [(Absent, Nothing), (Absent, TellEnded), (Absent, TellEnded)]),
        (Event::Idle, [(Absent, Nothing), (Absent, TellExpired), (Absent, TellExpired)]),
    ];

    #[test]
    fn every_pair_of_phase_and_event() {
        for (event, row) in ROWS {
            for (phase, expected) in [Absent, Open, Challenged].into_iter().zip(row) {
                assert_eq!(next(phase, event), expected, "{event:?} in {phase:?}");
            }
        }
        // No row twice; the match itself is exhaustive.
        for (place, (event, _)) in ROWS.iter().enumerate() {
            assert!(ROWS[..place].iter().all(|(other, _)| other != event), "{event:?}");
        }
    }
}
