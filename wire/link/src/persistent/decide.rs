//! When the links on an interface are closed and when they are opened again: decided without I/O, from what the
//! interface looks like and from what became of each attempt.
//!
//! ```text
//!            the interface is gone, down, another, or of another MTU; a link has failed
//!   Open ---------------------------------------------------------------------------> Closing
//!    ^                                                                                   | every worker has
//!    |  opened              fit again, and the pause is over                             v let go
//!    +----------------------------------------------------------------------------- Closed
//! ```

use std::time::Duration;

use cxloe_wire::frame::Mac;
use cxloe_wire::time::Time;

/// The pause after the first failure to open, or after a link that failed by itself; doubled with each further one.
const REOPEN_DELAY_FIRST: Duration = Duration::from_millis(50);
/// The longest pause between two attempts.
const REOPEN_DELAY_MAX: Duration = Duration::from_secs(2);
/// A link that has been open for so long has not failed before.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// How often the interface is looked at while the link is open, should no notice of a change come.
const CHECK_INTERVAL_OPEN: Duration = Duration::from_millis(500);
/// How often it is looked at while the link is closed.
const CHECK_INTERVAL_CLOSED: Duration = Duration::from_millis(100);
/// How often it is looked whether workers have let go.
const CHECK_INTERVAL_CLOSING: Duration = Duration::from_millis(2);

/// What the interface looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Observation {
    /// Frames can pass.
    Fit {
        /// The kernel's number of it, another one after it was deleted and made again.
        index: u32,
        /// Its address.
        mac: Mac,
        /// Its MTU in bytes.
        mtu: usize,
    },
    /// Frames cannot pass, for this reason.
    Unfit(String),
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing.
    Rest,
    /// Have every worker let go of its link.
    Close,
    /// Open a link for every worker, and say how it went.
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open { since: Time },
    Closing,
    Closed { not_before: Time },
}

/// The state of all links on one interface.
#[derive(Debug)]
pub(super) struct Reopening {
    interface: String,
    /// The address that links have to have: it is what others know this node by.
    mac: Mac,
    index: u32,
    mtu: usize,
    phase: Phase,
    /// Why the link is not open; `None` while it is.
    why: Option<String>,
    /// Failures that were not the interface's, without a steady time between them.
    failures: u32,
}

impl Reopening {
    /// Links that have just been opened.
    pub fn new(interface: &str, mac: Mac, index: u32, mtu: usize, now: Time) -> Reopening {
        let phase = Phase::Open { since: now };
        Reopening { interface: interface.to_owned(), mac, index, mtu, phase, why: None, failures: 0 }
    }

    /// Why the link is not open; `None` while it is.
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// Whether links are open.
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open { .. })
    }

    /// Whether workers are to let go of their links.
    pub fn is_closing(&self) -> bool {
        self.phase == Phase::Closing
    }

    /// The address that links have to have.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// The interface that links were opened on last, as the kernel numbers it.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// How long to wait for a notice before the next [`step`](Self::step).
    pub fn pause(&self, now: Time) -> Duration {
        match self.phase {
            Phase::Open { .. } => CHECK_INTERVAL_OPEN,
            Phase::Closing => CHECK_INTERVAL_CLOSING,
            Phase::Closed { not_before } if not_before > now => CHECK_INTERVAL_CLOSED.min(not_before - now),
            Phase::Closed { .. } => CHECK_INTERVAL_CLOSED,
        }
    }

    /// What to do, with the interface as it is.
    pub fn step(&mut self, now: Time, observation: &Observation) -> Step {
        match self.phase {
            Phase::Open { since } => {
                if now - since >= STABLE_AFTER {
                    self.failures = 0;
                }
                let why = match (self.judge(observation), observation) {
                    (Err(why), _) => why,
                    (Ok(()), Observation::Fit { index, .. }) if *index != self.index => {
                        format!("interface `{}` was deleted and made again", self.interface)
                    }
                    (Ok(()), Observation::Fit { mtu, .. }) if *mtu != self.mtu => {
                        format!("the MTU of `{}` has changed from {} to {mtu}", self.interface, self.mtu)
                    }
                    (Ok(()), _) => return Step::Rest,
                };
                self.close(why)
            }
            Phase::Closing => Step::Rest,
            Phase::Closed { not_before } => match self.judge(observation) {
                Err(why) => {
                    self.why = Some(why);
                    Step::Rest
                }
                Ok(()) if now < not_before => Step::Rest,
                Ok(()) => Step::Open,
            },
        }
    }

    /// The interface of this number has been deleted, though one that looks the same may be there by now.
    pub fn deleted(&mut self, index: u32) -> Step {
        match self.phase {
            Phase::Open { .. } if index == self.index => {
                self.close(format!("interface `{}` was deleted", self.interface))
            }
            _ => Step::Rest,
        }
    }

    /// A link has failed by itself.
    pub fn failed(&mut self, why: String) -> Step {
        if !self.is_open() {
            return Step::Rest;
        }
        self.failures += 1;
        self.close(why)
    }

    /// Every worker has let go of its link.
    pub fn closed(&mut self, now: Time) {
        if self.phase == Phase::Closing {
            self.phase = Phase::Closed { not_before: now + self.backoff() };
        }
    }

    /// Links are open again, on this interface.
    pub fn opened(&mut self, index: u32, mtu: usize, now: Time) {
        (self.index, self.mtu, self.why) = (index, mtu, None);
        self.phase = Phase::Open { since: now };
    }

    /// They could not be opened.
    pub fn not_opened(&mut self, why: String, now: Time) {
        self.failures += 1;
        self.why = Some(why);
        self.phase = Phase::Closed { not_before: now + self.backoff() };
    }

    fn close(&mut self, why: String) -> Step {
        self.why = Some(why);
        self.phase = Phase::Closing;
        Step::Close
    }

    fn judge(&self, observation: &Observation) -> Result<(), String> {
        match observation {
            Observation::Unfit(why) => Err(why.clone()),
            // Sessions, mappings and the manager know the node by its address: under another one it would be another
            // node, and under the old one no switch would bring it a frame.
            Observation::Fit { mac, .. } if *mac != self.mac => Err(format!(
                "interface `{0}` has the address {mac} now, and this node is {1}; give it back with `ip link set {0} \
                 address {1}`, or restart the node to have it known by the new one",
                self.interface, self.mac
            )),
            Observation::Fit { .. } => Ok(()),
        }
    }

    fn backoff(&self) -> Duration {
        match self.failures {
            0 => Duration::ZERO,
            n => REOPEN_DELAY_FIRST.saturating_mul(1 << (n - 1).min(16)).min(REOPEN_DELAY_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
    const SEC: u64 = 1_000_000_000;

    fn at(ms: u64) -> Time {
        Time(SEC + ms * 1_000_000)
    }

    fn fit(index: u32, mtu: usize) -> Observation {
        Observation::Fit { index, mac: MAC, mtu }
    }

    fn gone() -> Observation {
        Observation::Unfit("no such interface".into())
    }

    fn open() -> Reopening {
        Reopening::new("mn0", MAC, 7, 1500, at(0))
    }

    #[test]
    fn a_link_that_is_well_is_left_alone() {
        let mut r = open();
        assert_eq!(r.step(at(1), &fit(7, 1500)), Step::Rest);
        assert_eq!(r.deleted(8), Step::Rest);
        assert!(r.why().is_none() && r.is_open());
    }

    #[test]
    fn an_interface_deleted_and_made_again_is_opened_at_once() {
        let mut r = open();
        assert_eq!(r.step(at(1), &gone()), Step::Close);
        assert_eq!(r.why(), Some("no such interface"));
        // Nothing is opened while a worker still holds the old one.
        assert_eq!(r.step(at(2), &fit(9, 1500)), Step::Rest);
        assert!(r.is_closing());
        r.closed(at(3));
        assert_eq!(r.step(at(3), &gone()), Step::Rest);
        assert_eq!(r.step(at(4), &fit(9, 1500)), Step::Open);
        r.opened(9, 1500, at(5));
        assert_eq!(r.why(), None);
        assert_eq!(r.step(at(6), &fit(9, 1500)), Step::Rest);
    }

    #[test]
    fn a_deletion_is_noticed_though_all_looks_as_before() {
        let mut r = open();
        assert_eq!(r.step(at(1), &fit(8, 1500)), Step::Close);
        assert!(r.why().unwrap().contains("made again"));
        let mut r = open();
        assert_eq!(r.deleted(7), Step::Close);
        // Told again while closing: once is enough.
        assert_eq!(r.deleted(7), Step::Rest);
        r.closed(at(1));
        assert_eq!(r.step(at(1), &fit(7, 1500)), Step::Open);
    }

    #[test]
    fn another_mtu_is_taken_up_and_another_address_is_not() {
        let mut r = open();
        assert_eq!(r.step(at(1), &fit(7, 9000)), Step::Close);
        r.closed(at(2));
        assert_eq!(r.step(at(2), &fit(7, 9000)), Step::Open);
        r.opened(7, 9000, at(3));
        let other = Observation::Fit { index: 7, mac: Mac([2, 0, 0, 0, 0, 3]), mtu: 9000 };
        assert_eq!(r.step(at(4), &other), Step::Close);
        r.closed(at(5));
        for ms in [5, 5_000, 500_000] {
            assert_eq!(r.step(at(ms), &other), Step::Rest, "never opened under another address");
        }
        assert!(r.why().unwrap().contains("ip link set mn0 address 02:00:00:00:00:02"), "{:?}", r.why());
        assert_eq!(r.step(at(500_001), &fit(7, 9000)), Step::Open);
    }

    #[test]
    fn failures_are_tried_again_at_growing_intervals() {
        let mut r = open();
        assert_eq!(r.failed("sent too much".into()), Step::Close);
        assert_eq!(r.failed("and the other worker's".into()), Step::Rest);
        assert_eq!(r.why(), Some("sent too much"));
        let mut now = 1;
        r.closed(at(now));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let began = now;
            while r.step(at(now), &fit(7, 1500)) != Step::Open {
                let pause = r.pause(at(now));
                assert!(pause > Duration::ZERO && pause <= CHECK_INTERVAL_CLOSED);
                now += 1;
                assert!(now - began <= 2_000);
            }
            pauses.push(now - began);
            r.not_opened("busy".into(), at(now));
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
        // An interface that is gone is no failure: it is opened as soon as it is there and the pause is over.
        r.opened(7, 1500, at(now));
        assert_eq!(r.step(at(now + 10_000), &gone()), Step::Close);
        r.closed(at(now + 10_001));
        assert_eq!(r.step(at(now + 10_002), &fit(8, 1500)), Step::Open, "steady before, so no pause");
    }
}
