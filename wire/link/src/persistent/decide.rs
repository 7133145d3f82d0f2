//! Decides, without I/O, when the links on an interface are closed and opened again. The input is
//! observations of the interface and the results of attempts.
//!
//! ```text
//!            the interface is gone, down, another, or of another MTU; a link has failed
//!   Open ---------------------------------------------------------------------------> Closing
//!    ^                                                                                   | every worker has
//!    |  opened              fit again, and the pause is over                             v released its link
//!    +----------------------------------------------------------------------------- Closed
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use cxloe_wire::frame::Mac;
use cxloe_wire::time::Time;

/// Pause after the first failure to open a link, or after a link has failed although its interface was in order;
/// doubled after each further failure.
const REOPEN_DELAY_FIRST: Duration = Duration::from_millis(50);
/// Maximum pause between two attempts to open.
const REOPEN_DELAY_MAX: Duration = Duration::from_secs(2);
/// Time after which an open link counts as stable; earlier failures then no longer lengthen the pause.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// Interval of checks of the interface while the link is open, in case a notice of a change is lost.
const CHECK_INTERVAL_OPEN: Duration = Duration::from_millis(500);
/// Interval of checks of the interface while the link is closed.
const CHECK_INTERVAL_CLOSED: Duration = Duration::from_millis(100);
/// Interval of checks whether all workers have released their links.
const CHECK_INTERVAL_CLOSING: Duration = Duration::from_millis(2);

/// Properties of an interface that the links on it depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ground {
    /// Index that the kernel gave the interface. An interface that was deleted and created again has a new
    /// one.
    pub index: u32,
    /// MAC address that the node has on the interface, by which other nodes identify it.
    pub mac: Mac,
    /// MTU in bytes; a change of it requires new links.
    pub mtu: usize,
    /// Outer address of the node, if its frames are sent inside UDP; otherwise `None`.
    pub outer: Option<SocketAddr>,
}

/// Observed state of the interface: whether frames can pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Observation {
    /// Frames can pass on an interface with these properties.
    Fit(Ground),
    /// Frames cannot pass, for this reason, which is shown to the operator.
    Unfit(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkStep {
    /// Only observe the interface again later.
    Rest,
    /// Make every worker release its link.
    Close,
    /// Open a link for every worker, and report the result.
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkPhase {
    Open { since: Time },
    Closing,
    Closed { not_before: Time },
}

/// Decides when the links on one interface are closed and opened again.
#[derive(Debug)]
pub(super) struct Reopening {
    interface: String,
    /// Properties of the interface on which the links were last opened; the MAC never changes.
    ground: Ground,
    phase: LinkPhase,
    /// Reason why the link is not open; `None` while it is.
    why: Option<String>,
    /// Number of consecutive failures that the interface did not cause, without a stable time in between.
    failures: u32,
}

impl Reopening {
    pub fn new(interface: &str, ground: Ground, now: Time) -> Reopening {
        let phase = LinkPhase::Open { since: now };
        Reopening { interface: interface.to_owned(), ground, phase, why: None, failures: 0 }
    }

    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    pub fn is_open(&self) -> bool {
        matches!(self.phase, LinkPhase::Open { .. })
    }

    /// Whether workers must release their links.
    pub fn is_closing(&self) -> bool {
        self.phase == LinkPhase::Closing
    }

    pub fn mac(&self) -> Mac {
        self.ground.mac
    }

    pub fn index(&self) -> u32 {
        self.ground.index
    }

    /// Maximum wait for a notice before the next [`step`](Self::step).
    pub fn pause(&self, now: Time) -> Duration {
        match self.phase {
            LinkPhase::Open { .. } => CHECK_INTERVAL_OPEN,
            LinkPhase::Closing => CHECK_INTERVAL_CLOSING,
            LinkPhase::Closed { not_before } if not_before > now => {
                CHECK_INTERVAL_CLOSED.min(not_before - now)
            }
            LinkPhase::Closed { .. } => CHECK_INTERVAL_CLOSED,
        }
    }

    /// Decides the next step from the observed state of the interface.
    pub fn step(&mut self, now: Time, observation: &Observation) -> LinkStep {
        match self.phase {
            LinkPhase::Open { since } => {
                if now - since >= STABLE_AFTER {
                    self.failures = 0;
                }
                let why = match self.judge(observation) {
                    Err(why) => Some(why),
                    Ok(found) => self.difference(found),
                };
                why.map_or(LinkStep::Rest, |why| self.close(why))
            }
            LinkPhase::Closing => LinkStep::Rest,
            LinkPhase::Closed { not_before } => match self.judge(observation) {
                Err(why) => {
                    self.why = Some(why);
                    LinkStep::Rest
                }
                Ok(_) if now < not_before => LinkStep::Rest,
                Ok(_) => LinkStep::Open,
            },
        }
    }

    /// Records that the interface with this index was deleted, even if an interface with the same properties exists
    /// again.
    pub fn deleted(&mut self, index: u32) -> LinkStep {
        match self.phase {
            LinkPhase::Open { .. } if index == self.ground.index => {
                self.close(format!("interface `{}` was deleted", self.interface))
            }
            _ => LinkStep::Rest,
        }
    }

    /// Records that a link has failed while its interface was in order.
    pub fn failed(&mut self, why: String) -> LinkStep {
        if !self.is_open() {
            return LinkStep::Rest;
        }
        self.failures += 1;
        self.close(why)
    }

    /// Records that every worker has released its link.
    pub fn closed(&mut self, now: Time) {
        if self.phase == LinkPhase::Closing {
            self.phase = LinkPhase::Closed { not_before: now + self.backoff() };
        }
    }

    /// Records that links are open on an interface with these properties.
    pub fn opened(&mut self, ground: Ground, now: Time) {
        (self.ground, self.why) = (ground, None);
        self.phase = LinkPhase::Open { since: now };
    }

    pub fn not_opened(&mut self, why: String, now: Time) {
        self.failures += 1;
        self.why = Some(why);
        self.phase = LinkPhase::Closed { not_before: now + self.backoff() };
    }

    fn close(&mut self, why: String) -> LinkStep {
        self.why = Some(why);
        self.phase = LinkPhase::Closing;
        LinkStep::Close
    }

    /// Returns the properties of the interface if links can be opened on it, otherwise the reason why not.
    fn judge(&self, observation: &Observation) -> Result<Ground, String> {
        let (interface, own) = (&self.interface, self.ground.mac);
        match observation {
            Observation::Unfit(why) => Err(why.clone()),
            // Sessions, mappings and the manager identify the node by its address. With another address it
            // would be another node, and frames to the old address would not reach it.
            Observation::Fit(Ground { mac, outer: Some(outer), .. })
                if *mac != own && Some(*outer) != self.ground.outer =>
            {
                Err(format!(
                    "the node listens at {outer} now and would be {mac}, as its MAC follows from its IP address here, \
                     and it is {own}; give `{interface}` the former IP address back, or restart the node to have it \
                     known by the new one"
                ))
            }
            Observation::Fit(Ground { mac, .. }) if *mac != own => Err(format!(
                "interface `{interface}` has the address {mac} now, and this node is {own}; give it back with `ip \
                 link set {interface} address {own}`, or restart the node to have it known by the new one"
            )),
            Observation::Fit(found) => Ok(*found),
        }
    }

    /// Returns the reason why open links must be replaced, if they were opened with other properties than
    /// `found`.
    fn difference(&self, found: Ground) -> Option<String> {
        let (interface, known) = (&self.interface, self.ground);
        match (known.outer, found.outer) {
            _ if found.index != known.index => {
                Some(format!("interface `{interface}` was deleted and made again"))
            }
            _ if found.mtu != known.mtu => {
                Some(format!("the MTU of `{interface}` has changed from {} to {}", known.mtu, found.mtu))
            }
            (Some(before), Some(now)) if before != now => {
                Some(format!("this node's address on `{interface}` has changed from {before} to {now}"))
            }
            _ => None,
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

    fn ground(index: u32, mtu: usize) -> Ground {
        Ground { index, mac: MAC, mtu, outer: None }
    }

    fn fit(index: u32, mtu: usize) -> Observation {
        Observation::Fit(ground(index, mtu))
    }

    fn gone() -> Observation {
        Observation::Unfit("no such interface".into())
    }

    fn open() -> Reopening {
        Reopening::new("mn0", ground(7, 1500), at(0))
    }

    #[test]
    fn a_link_that_is_well_is_left_alone() {
        let mut r = open();
        assert_eq!(r.step(at(1), &fit(7, 1500)), LinkStep::Rest);
        assert_eq!(r.deleted(8), LinkStep::Rest);
        assert!(r.why().is_none() && r.is_open());
    }

    #[test]
    fn an_interface_deleted_and_made_again_is_opened_at_once() {
        let mut r = open();
        assert_eq!(r.step(at(1), &gone()), LinkStep::Close);
        assert_eq!(r.why(), Some("no such interface"));
        // No link is opened while a worker still has its old one.
        assert_eq!(r.step(at(2), &fit(9, 1500)), LinkStep::Rest);
        assert!(r.is_closing());
        r.closed(at(3));
        assert_eq!(r.step(at(3), &gone()), LinkStep::Rest);
        assert_eq!(r.step(at(4), &fit(9, 1500)), LinkStep::Open);
        r.opened(ground(9, 1500), at(5));
        assert_eq!(r.why(), None);
        assert_eq!(r.step(at(6), &fit(9, 1500)), LinkStep::Rest);
    }

    #[test]
    fn a_deletion_is_detected_with_an_identical_interface() {
        let mut r = open();
        assert_eq!(r.step(at(1), &fit(8, 1500)), LinkStep::Close);
        assert!(r.why().unwrap().contains("made again"));
        let mut r = open();
        assert_eq!(r.deleted(7), LinkStep::Close);
        // A second notice during the closing has no effect.
        assert_eq!(r.deleted(7), LinkStep::Rest);
        r.closed(at(1));
        assert_eq!(r.step(at(1), &fit(7, 1500)), LinkStep::Open);
    }

    #[test]
    fn another_mtu_is_taken_up_and_another_address_is_not() {
        let mut r = open();
        assert_eq!(r.step(at(1), &fit(7, 9000)), LinkStep::Close);
        r.closed(at(2));
        assert_eq!(r.step(at(2), &fit(7, 9000)), LinkStep::Open);
        r.opened(ground(7, 9000), at(3));
        let other = Observation::Fit(Ground { mac: Mac([2, 0, 0, 0, 0, 3]), ..ground(7, 9000) });
        assert_eq!(r.step(at(4), &other), LinkStep::Close);
        r.closed(at(5));
        for ms in [5, 5_000, 500_000] {
            assert_eq!(r.step(at(ms), &other), LinkStep::Rest, "never opened under another address");
        }
        assert!(r.why().unwrap().contains("ip link set mn0 address 02:00:00:00:00:02"), "{:?}", r.why());
        assert_eq!(r.step(at(500_001), &fit(7, 9000)), LinkStep::Open);
    }

    #[test]
    fn another_ip_address_is_taken_up_unless_the_mac_follows_from_it() {
        let [before, after] = ["10.0.0.1:63669", "10.0.0.7:63669"].map(|text| text.parse().unwrap());
        let over_udp = |outer| Ground { outer: Some(outer), ..ground(7, 1500) };
        let mut r = Reopening::new("mn0", over_udp(before), at(0));
        assert_eq!(r.step(at(1), &Observation::Fit(over_udp(before))), LinkStep::Rest);
        assert_eq!(r.step(at(2), &Observation::Fit(over_udp(after))), LinkStep::Close);
        assert!(r.why().unwrap().contains("from 10.0.0.1:63669 to 10.0.0.7:63669"), "{:?}", r.why());
        r.closed(at(3));
        assert_eq!(r.step(at(3), &Observation::Fit(over_udp(after))), LinkStep::Open);
        r.opened(over_udp(after), at(3));
        assert_eq!(r.step(at(4), &Observation::Fit(over_udp(after))), LinkStep::Rest);
        let derived = Ground { mac: Mac([2, 0, 0, 0, 0, 3]), ..over_udp(before) };
        assert_eq!(r.step(at(5), &Observation::Fit(derived)), LinkStep::Close);
        assert!(r.why().unwrap().contains("the former IP address"), "{:?}", r.why());
        r.closed(at(6));
        assert_eq!(r.step(at(500_000), &Observation::Fit(derived)), LinkStep::Rest);
        assert_eq!(r.step(at(500_001), &Observation::Fit(over_udp(after))), LinkStep::Open);
    }

    #[test]
    fn failures_are_tried_again_at_growing_intervals() {
        let mut r = open();
        assert_eq!(r.failed("sent too much".into()), LinkStep::Close);
        assert_eq!(r.failed("and the other worker's".into()), LinkStep::Rest);
        assert_eq!(r.why(), Some("sent too much"));
        let mut now = 1;
        r.closed(at(now));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let began = now;
            while r.step(at(now), &fit(7, 1500)) != LinkStep::Open {
                let pause = r.pause(at(now));
                assert!(pause > Duration::ZERO && pause <= CHECK_INTERVAL_CLOSED);
                now += 1;
                assert!(now - began <= 2_000);
            }
            pauses.push(now - began);
            r.not_opened("busy".into(), at(now));
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
        // A missing interface does not count as a failure: links are opened as soon as the interface exists and the
        // pause is over.
        r.opened(ground(7, 1500), at(now));
        assert_eq!(r.step(at(now + 10_000), &gone()), LinkStep::Close);
        r.closed(at(now + 10_001));
        assert_eq!(r.step(at(now + 10_002), &fit(8, 1500)), LinkStep::Open, "steady before, so no pause");
    }
}
