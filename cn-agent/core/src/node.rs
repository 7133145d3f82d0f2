//! One round of a compute node: the order of work for every owner of an engine and a link.
//!
//! ```text
//!   receive -> received -> submit -> demand -> (flush) -> background -> poll -> handshakes -> drain
//!                                                        -> release -> flush -> wake
//! ```
//!
//! * Arrivals come first: they free windows and tokens for submissions of the same round, and may report a loss that
//!   makes a submission fail.
//! * Requests for pages that threads wait for are flushed before pages are fetched or evicted in advance.
//! * Clients with completions are woken last, when all frames have been sent.
//!
//! The round is the engine's part of the loop that drives all machines ([`cxloe_wire::machine`]). Its caller takes the
//! engine's events, and waits until the engine's deadline at the latest.
//!
//! Rounds are run by the agent's worker and its shutdown, ports, ports with mapped regions, and simulated nodes. The
//! code is generic, so steps that a user does not have cost nothing.

use cxloe_wire::Transmit;
use cxloe_wire::machine::StateMachine;
use cxloe_wire::time::Time;

use crate::engine::{Engine, Sink};

/// The operations of a link that a round needs.
pub trait Frames {
    /// Error after which the link cannot be used any more.
    type Error;

    /// Passes at most `budget` received frames to `on_frame`, each with the time of its arrival and the transmit
    /// side; returns their number. Does not wait.
    ///
    /// # Errors
    /// The link has failed.
    fn receive(
        &mut self,
        budget: usize,
        on_frame: impl FnMut(&mut [u8], Time, &mut dyn Transmit),
    ) -> Result<usize, Self::Error>;

    fn transmit(&mut self) -> &mut dyn Transmit;

    /// Sends all frames committed to the transmit side.
    ///
    /// # Errors
    /// The link has failed.
    fn flush(&mut self) -> Result<(), Self::Error>;
}

/// Users of the engine, whose steps a round takes. The default of each step is to do nothing.
pub trait Users {
    /// Receiver of the engine's results for these users.
    fn sink(&mut self) -> &mut dyn Sink;

    /// Whether requests of one round are held back to share frames. Only useful to users that submit several
    /// per round.
    #[inline]
    fn shares_frames(&self) -> bool {
        false
    }

    /// Handles the arrival of `frames` frames before anything is submitted: applies signals that pause requests.
    #[inline]
    fn received(&mut self, engine: &mut Engine, frames: usize, now: Time) {
        let _ = (engine, frames, now);
    }

    /// Submits operations; returns the number of those that the engine accepted.
    #[inline]
    fn submit(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        let _ = (engine, now, tx);
        0
    }

    /// Requests pages that threads wait for; returns the amount of work. If it is not 0, the round flushes the link.
    #[inline]
    fn demand(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        let _ = (engine, now, tx);
        0
    }

    /// Does work in advance: evictions, write-backs and read-ahead. Returns the amount of work.
    #[inline]
    fn background(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        let _ = (engine, now, tx);
        0
    }

    /// Hands out Diffie-Hellman computations, and passes results to their sessions.
    #[inline]
    fn handshakes(&mut self, engine: &mut Engine, now: Time) {
        let _ = (engine, now);
    }

    /// Continues to write back the dirty lines of regions that are being drained.
    #[inline]
    fn drain(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) {
        let _ = (engine, now, tx);
    }

    /// Wakes sleeping clients that have completions.
    #[inline]
    fn wake(&mut self) {}
}

/// Amount of work done in a round, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Time of the round; `None` if no frame had arrived in a round that only polls.
    pub at: Option<Time>,
    pub received: usize,
    /// Number of operations accepted, faults read and pages moved.
    pub taken: usize,
}

impl Found {
    /// Amount of work in the round; 0 if it was idle.
    #[inline]
    pub fn work(self) -> usize {
        self.received + self.taken
    }
}

/// Runs one round with at most `batch` frames. If `now` is `None`, the round only polls: the arrival of
/// frames sets the time, and without frames the round ends at once. So a port that spins need not read its
/// clock.
///
/// # Errors
/// The link has failed.
#[inline]
pub fn round<F: Frames>(
    engine: &mut Engine,
    link: &mut F,
    users: &mut impl Users,
    now: Option<Time>,
    batch: usize,
) -> Result<Found, F::Error> {
    if users.shares_frames() {
        engine.hold();
    }
    let (mut arrived, sink) = (None, users.sink());
    let received = link.receive(batch, |frame, at, tx| {
        arrived = Some(at);
        engine.handle(frame, at, tx, sink);
    })?;
    let Some(now) = arrived.max(now) else { return Ok(Found::default()) };
    users.received(engine, received, now);
    // The transmit side is obtained a single time per round, because for most links the call is virtual.
    let mut tx = link.transmit();
    let mut taken = users.submit(engine, now, tx);
    let demanded = users.demand(engine, now, tx);
    if demanded > 0 {
        link.flush()?;
        tx = link.transmit();
    }
    taken += demanded + users.background(engine, now, tx);
    if engine.deadline().is_due(now) {
        engine.poll(now, tx, users.sink());
        debug_assert!(!engine.deadline().is_due(now), "polled, and due again: {}", engine.deadline());
    }
    users.handshakes(engine, now);
    users.drain(engine, now, tx);
    engine.release(now, tx);
    link.flush()?;
    users.wake();
    Ok(Found { at: Some(now), received, taken })
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use crate::cache::CacheConfig;
    use crate::engine::{EngineError, RequestId};

    /// A link with `waiting` frames, and its users; both record the steps of the round.
    #[derive(Default)]
    struct Recorder {
        waiting: usize,
        demanded: usize,
        steps: Vec<&'static str>,
    }

    struct Ring<'a>(&'a core::cell::RefCell<Recorder>, Nothing);
    struct Steps<'a>(&'a core::cell::RefCell<Recorder>, Nothing);
    struct Nothing;

    impl Transmit for Nothing {
        fn slot(&mut self, _: usize) -> Option<&mut [u8]> {
            None
        }
        fn commit(&mut self) {}
    }

    impl Sink for Nothing {
        fn read(&mut self, _: RequestId, _: &[u8]) {}
        fn written(&mut self, _: RequestId) {}
        fn failed(&mut self, _: RequestId, _: EngineError) {}
    }

    impl Frames for Ring<'_> {
        type Error = ();

        fn receive(
            &mut self,
            budget: usize,
            mut on_frame: impl FnMut(&mut [u8], Time, &mut dyn Transmit),
        ) -> Result<usize, ()> {
            let count = core::mem::take(&mut self.0.borrow_mut().waiting).min(budget);
            (0..count).for_each(|at| on_frame(&mut [0; 64], Time(100 + at as u64), &mut self.1));
            self.0.borrow_mut().steps.push("receive");
            Ok(count)
        }

        fn transmit(&mut self) -> &mut dyn Transmit {
            &mut self.1
        }

        fn flush(&mut self) -> Result<(), ()> {
            self.0.borrow_mut().steps.push("flush");
            Ok(())
        }
    }

    impl Steps<'_> {
        fn step(&self, step: &'static str) {
            self.0.borrow_mut().steps.push(step);
        }
    }

    impl Users for Steps<'_> {
        fn sink(&mut self) -> &mut dyn Sink {
            &mut self.1
        }
        fn received(&mut self, _: &mut Engine, frames: usize, _: Time) {
            self.step(if frames > 0 { "arrived" } else { "nothing" });
        }
        fn submit(&mut self, _: &mut Engine, _: Time, _: &mut dyn Transmit) -> usize {
            self.step("submit");
            2
        }
        fn demand(&mut self, _: &mut Engine, _: Time, _: &mut dyn Transmit) -> usize {
            self.step("demand");
            self.0.borrow().demanded
        }
        fn background(&mut self, _: &mut Engine, _: Time, _: &mut dyn Transmit) -> usize {
            self.step("background");
            4
        }
        fn handshakes(&mut self, _: &mut Engine, _: Time) {
            self.step("handshakes");
        }
        fn drain(&mut self, _: &mut Engine, _: Time, _: &mut dyn Transmit) {
            self.step("drain");
        }
        fn wake(&mut self) {
            self.step("wake");
        }
    }

    fn run(recorder: Recorder, now: Option<Time>) -> (Found, Vec<&'static str>) {
        let cell = core::cell::RefCell::new(recorder);
        let mut engine = Engine::new(CacheConfig::OFF);
        let found = round(&mut engine, &mut Ring(&cell, Nothing), &mut Steps(&cell, Nothing), now, 3);
        (found.unwrap(), cell.into_inner().steps)
    }

    #[test]
    fn steps_come_in_their_order() {
        let before = ["receive", "arrived", "submit", "demand"];
        let after = ["background", "handshakes", "drain", "flush", "wake"];
        let (found, steps) = run(Recorder { waiting: 5, ..Recorder::default() }, Some(Time(7)));
        // Five frames wait, three are received; the time is that of the third.
        assert_eq!(found, Found { at: Some(Time(102)), received: 3, taken: 6 });
        assert_eq!(steps, [&before[..], &after].concat());
        // Requests for demanded pages are sent before background work.
        let (found, steps) = run(Recorder { waiting: 1, demanded: 1, ..Recorder::default() }, None);
        assert_eq!((found.at, found.work()), (Some(Time(100)), 8));
        assert_eq!(steps, [&before[..], &["flush"], &after].concat());
        let (found, steps) = run(Recorder::default(), Some(Time(7)));
        assert_eq!((found.at, found.work(), steps[1]), (Some(Time(7)), 6, "nothing"));
    }

    #[test]
    fn a_poll_of_an_empty_ring_is_nothing_else() {
        let (found, steps) = run(Recorder::default(), None);
        assert_eq!((found, steps), (Found::default(), vec!["receive"]));
    }
}
