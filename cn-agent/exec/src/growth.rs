//! Growth of a temporary region that has become full: whether to ask for more, for how much, and what its refusal means.
//! What the manager and the agent say goes in, what to do comes out; [`Grower`](super::lease::Grower) does it.
//!
//! ```text
//!          full: ask for half its size          the agent has more
//!   ready ------------------------------> asked -------------------> ready
//!     ^                                   |   ^ too much: ask for half of that
//!     |  not full any more                |   |
//!     +------------------------- refused <+---+ not even an extent, or for another reason: say so
//! ```

use cxloe_fabric::model::human_bytes;

/// Why a region has not grown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Less may be possible: it is more than a quota or the memory nodes have left.
    TooMuch(String),
    /// Nothing is.
    Other(String),
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the manager for so many bytes in all; [`Growth::answered`] hears what it says.
    Ask(u64),
    /// Say that it does not grow, and why.
    Say(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing is asked for.
    Ready,
    /// The manager has been asked for `more` besides the `had` bytes.
    Asked { had: u64, more: u64 },
    /// The manager has granted it, and the agent has `had` bytes still.
    Granted { had: u64 },
    /// It does not grow.
    Refused,
}

/// A region that may grow.
#[derive(Debug)]
pub struct Growth {
    unit: u64,
    window: u64,
    state: State,
    said: Option<String>,
}

impl Growth {
    /// Of a region with `window` bytes of addresses, that grows by multiples of `unit` bytes.
    pub fn new(unit: u64, window: u64) -> Growth {
        Growth { unit: unit.max(1), window, state: State::Ready, said: None }
    }

    /// Takes into account how the region stands at the agent: its bytes, and whether processes wait for room in it.
    pub fn look(&mut self, full: bool, bytes: u64) -> Option<Step> {
        match self.state {
            State::Granted { had } if bytes > had => self.state = State::Ready,
            State::Refused if !full => self.state = State::Ready,
            _ => {}
        }
        if !full || self.state != State::Ready {
            return None;
        }
        let room = self.window.saturating_sub(bytes) / self.unit * self.unit;
        let more = (bytes / 2).next_multiple_of(self.unit).max(self.unit).min(room);
        if more == 0 {
            let window = human_bytes(self.window);
            return self.refused(format!("it has no addresses beyond {window}; give it more with --size"));
        }
        self.state = State::Asked { had: bytes, more };
        Some(Step::Ask(bytes + more))
    }

    /// Takes into account what the manager has said.
    pub fn answered(&mut self, answer: Result<(), Refusal>) -> Option<Step> {
        let State::Asked { had, more } = self.state else { return None };
        match answer {
            Ok(()) => {
                self.state = State::Granted { had };
                None
            }
            Err(Refusal::TooMuch(_)) if more > self.unit => {
                let more = (more / 2 / self.unit).max(1) * self.unit;
                self.state = State::Asked { had, more };
                Some(Step::Ask(had + more))
            }
            Err(Refusal::TooMuch(why) | Refusal::Other(why)) => self.refused(why),
        }
    }

    fn refused(&mut self, why: String) -> Option<Step> {
        self.state = State::Refused;
        if self.said.as_ref() == Some(&why) {
            return None;
        }
        self.said = Some(why.clone());
        Some(Step::Say(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn growth(window: u64) -> Growth {
        Growth::new(2 * MIB, window * MIB)
    }

    fn ask(mib: u64) -> Option<Step> {
        Some(Step::Ask(mib * MIB))
    }

    fn too_much() -> Result<(), Refusal> {
        Err(Refusal::TooMuch("the quota".into()))
    }

    #[test]
    fn a_full_region_grows_by_half_and_is_asked_for_once() {
        let mut growth = growth(1024);
        assert_eq!(growth.look(false, 32 * MIB), None);
        assert_eq!(growth.look(true, 32 * MIB), ask(48));
        assert_eq!(growth.look(true, 32 * MIB), None, "the manager has not answered");
        assert_eq!(growth.answered(Ok(())), None);
        assert_eq!(growth.look(true, 32 * MIB), None, "the agent has not heard of it");
        assert_eq!(growth.look(true, 48 * MIB), ask(72), "it is full again");
        assert_eq!(growth.answered(Ok(())), None);
        assert_eq!(growth.look(false, 72 * MIB), None);
        assert_eq!(growth.look(true, 72 * MIB), ask(108));
    }

    #[test]
    fn it_grows_by_whole_extents_and_at_least_one() {
        assert_eq!(growth(1024).look(true, 2 * MIB), ask(4));
        assert_eq!(growth(1024).look(true, 6 * MIB), ask(10));
    }

    #[test]
    fn it_takes_what_a_quota_leaves() {
        let mut growth = growth(1024);
        assert_eq!(growth.look(true, 32 * MIB), ask(48));
        assert_eq!(growth.answered(too_much()), ask(40));
        assert_eq!(growth.answered(too_much()), ask(36));
        assert_eq!(growth.answered(Ok(())), None);
        assert_eq!(growth.look(true, 36 * MIB), ask(54));
    }

    #[test]
    fn a_refusal_is_told_once() {
        let mut growth = growth(1024);
        for said in [Some(Step::Say("the quota".into())), None] {
            assert_eq!(growth.look(true, 8 * MIB), ask(12));
            assert_eq!(growth.answered(too_much()), ask(10));
            assert_eq!(growth.answered(too_much()), said, "not even an extent");
            assert_eq!(growth.look(true, 8 * MIB), None, "it is not asked for again");
            assert_eq!(growth.look(false, 8 * MIB), None, "there was room meanwhile");
        }
        assert_eq!(growth.look(true, 8 * MIB), ask(12));
        let away = Err(Refusal::Other("no answer".into()));
        assert_eq!(growth.answered(away), Some(Step::Say("no answer".into())), "less is no remedy");
        assert_eq!(growth.answered(Ok(())), None, "nobody has asked");
    }

    #[test]
    fn it_stays_within_its_addresses() {
        let mut growth = growth(37);
        assert_eq!(growth.look(true, 32 * MIB), ask(36));
        assert_eq!(growth.answered(Ok(())), None);
        let Some(Step::Say(why)) = growth.look(true, 36 * MIB) else { panic!("there is no room") };
        assert!(why.contains("no addresses beyond"), "{why}");
        assert_eq!(growth.look(true, 36 * MIB), None);
    }
}
