//! Growth of a temporary region that has become full: whether and by how much to enlarge it, and the
//! consequences of a refusal. The module does no I/O: it takes the answers of the manager and the agent, and
//! returns steps, which [`Grower`](super::lease::Grower) carries out.
//!
//! ```text
//!          full: ask for 50 % more              the agent has more
//!   ready ------------------------------> asked -------------------> ready
//!     ^                                   |   ^ too much: ask for half of that
//!     |  not full any more, or for long   |   |
//!     +------------------------- refused <+---+ not even an extent, or for another reason: report
//! ```

use cxloe_fabric::model::human_bytes;

/// Number of observations of a full region after a refusal before the manager is asked again: its quota may have been
/// raised, or the manager may only have been away.
const OBSERVATIONS_REFUSED: u32 = 4;

/// Reason for which the manager did not enlarge a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrowthRefusal {
    /// The size exceeds a quota or the free memory of the memory nodes; a smaller one may be granted.
    TooMuch(String),
    /// Any other reason: no size can be granted.
    Other(String),
}

/// Step that the caller of [`Growth`] has to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrowthStep {
    /// Request this total size from the manager; its answer goes to [`Growth::answered`].
    Ask(u64),
    /// Report that the region does not grow, and why.
    Say(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrowthState {
    /// No request is under way.
    Ready,
    /// `more` bytes, in addition to `had`, were requested from the manager.
    Asked { had: u64, more: u64 },
    /// The manager granted the request, but the agent still has only `had` bytes.
    Granted { had: u64 },
    /// The region does not grow; no further request is made until the region has had free room again, or has been
    /// observed to be full this many times more.
    Refused { left: u32 },
}

#[derive(Debug)]
pub struct Growth {
    unit: u64,
    window: u64,
    state: GrowthState,
    said: Option<String>,
}

impl Growth {
    /// Growth of a region that has `window` bytes of addresses and grows in multiples of `unit` bytes.
    pub fn new(unit: u64, window: u64) -> Growth {
        Growth { unit: unit.max(1), window, state: GrowthState::Ready, said: None }
    }

    /// Processes the state of the region at the agent: whether processes wait for room, and the region's size in bytes.
    pub fn observe(&mut self, full: bool, bytes: u64) -> Option<GrowthStep> {
        match self.state {
            GrowthState::Granted { had } if bytes > had => self.state = GrowthState::Ready,
            GrowthState::Refused { left } if !full || left <= 1 => self.state = GrowthState::Ready,
            GrowthState::Refused { left } => self.state = GrowthState::Refused { left: left - 1 },
            _ => {}
        }
        if !full || self.state != GrowthState::Ready {
            return None;
        }
        let room = self.window.saturating_sub(bytes) / self.unit * self.unit;
        // The region grows by half of its size, in whole units, at most to the end of its address range.
        let more = (bytes / 2).next_multiple_of(self.unit).max(self.unit).min(room);
        if more == 0 {
            let window = human_bytes(self.window);
            return self.refused(format!("it has no addresses beyond {window}; give it more with --size"));
        }
        self.state = GrowthState::Asked { had: bytes, more };
        Some(GrowthStep::Ask(bytes + more))
    }

    pub fn answered(&mut self, answer: Result<(), GrowthRefusal>) -> Option<GrowthStep> {
        let GrowthState::Asked { had, more } = self.state else { return None };
        match answer {
            Ok(()) => {
                self.state = GrowthState::Granted { had };
                None
            }
            Err(GrowthRefusal::TooMuch(_)) if more > self.unit => {
                let more = (more / 2 / self.unit).max(1) * self.unit;
                self.state = GrowthState::Asked { had, more };
                Some(GrowthStep::Ask(had + more))
            }
            Err(GrowthRefusal::TooMuch(why) | GrowthRefusal::Other(why)) => self.refused(why),
        }
    }

    fn refused(&mut self, why: String) -> Option<GrowthStep> {
        self.state = GrowthState::Refused { left: OBSERVATIONS_REFUSED };
        // The same reason is reported once.
        if self.said.as_ref() == Some(&why) {
            return None;
        }
        self.said = Some(why.clone());
        Some(GrowthStep::Say(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn growth(window: u64) -> Growth {
        Growth::new(2 * MIB, window * MIB)
    }

    fn ask(mib: u64) -> Option<GrowthStep> {
        Some(GrowthStep::Ask(mib * MIB))
    }

    fn too_much() -> Result<(), GrowthRefusal> {
        Err(GrowthRefusal::TooMuch("the quota".into()))
    }

    #[test]
    fn a_full_region_grows_by_half_and_is_asked_for_once() {
        let mut growth = growth(1024);
        assert_eq!(growth.observe(false, 32 * MIB), None);
        assert_eq!(growth.observe(true, 32 * MIB), ask(48));
        assert_eq!(growth.observe(true, 32 * MIB), None, "the manager has not answered");
        assert_eq!(growth.answered(Ok(())), None);
        assert_eq!(growth.observe(true, 32 * MIB), None, "the agent has not attached it");
        assert_eq!(growth.observe(true, 48 * MIB), ask(72), "it is full again");
        assert_eq!(growth.answered(Ok(())), None);
        assert_eq!(growth.observe(false, 72 * MIB), None);
        assert_eq!(growth.observe(true, 72 * MIB), ask(108));
    }

    #[test]
    fn it_grows_by_whole_extents_and_at_least_one() {
        assert_eq!(growth(1024).observe(true, 2 * MIB), ask(4));
        assert_eq!(growth(1024).observe(true, 6 * MIB), ask(10));
    }

    #[test]
    fn it_takes_what_a_quota_leaves() {
        let mut growth = growth(1024);
        assert_eq!(growth.observe(true, 32 * MIB), ask(48));
        assert_eq!(growth.answered(too_much()), ask(40));
        assert_eq!(growth.answered(too_much()), ask(36));
        assert_eq!(growth.answered(Ok(())), None);
        assert_eq!(growth.observe(true, 36 * MIB), ask(54));
    }

    #[test]
    fn a_refusal_is_logged_once() {
        let mut growth = growth(1024);
        for said in [Some(GrowthStep::Say("the quota".into())), None] {
            assert_eq!(growth.observe(true, 8 * MIB), ask(12));
            assert_eq!(growth.answered(too_much()), ask(10));
            assert_eq!(growth.answered(too_much()), said, "not even an extent");
            assert_eq!(growth.observe(true, 8 * MIB), None, "it is not asked for again");
            assert_eq!(growth.observe(false, 8 * MIB), None, "there was room meanwhile");
        }
        assert_eq!(growth.observe(true, 8 * MIB), ask(12));
        let away = Err(GrowthRefusal::Other("no answer".into()));
        assert_eq!(growth.answered(away), Some(GrowthStep::Say("no answer".into())), "less is no remedy");
        assert_eq!(growth.answered(Ok(())), None, "nobody has asked");
    }

    #[test]
    fn who_stays_full_asks_again() {
        let mut growth = growth(1024);
        assert_eq!(growth.observe(true, 8 * MIB), ask(12));
        for said in [Some(GrowthStep::Say("no answer".into())), None] {
            let away = Err(GrowthRefusal::Other("no answer".into()));
            assert_eq!(growth.answered(away), said);
            for _ in 1..OBSERVATIONS_REFUSED {
                assert_eq!(growth.observe(true, 8 * MIB), None);
            }
            assert_eq!(growth.observe(true, 8 * MIB), ask(12), "the manager may be back");
        }
        assert_eq!(growth.answered(Ok(())), None);
    }

    #[test]
    fn it_stays_within_its_addresses() {
        let mut growth = growth(37);
        assert_eq!(growth.observe(true, 32 * MIB), ask(36));
        assert_eq!(growth.answered(Ok(())), None);
        let Some(GrowthStep::Say(why)) = growth.observe(true, 36 * MIB) else { panic!("there is no room") };
        assert!(why.contains("no addresses beyond"), "{why}");
        assert_eq!(growth.observe(true, 36 * MIB), None);
    }
}
