//! The simulated network: frames between any number of ports in virtual time. A run is repeatable from its seed.
//!
//! [`SimNetwork`] models the cables, switches and receive FIFOs between nodes. [`SimNetwork::attach`] returns a
//! [`SimLink`] for a MAC address; a frame sent by a link takes this way:
//!
//! ```text
//! commit, flush -> egress rate -> path: partition, faults, delay, jitter -> ingress rate -> FIFO -> receive
//!                  (port)         (each ordered pair of ports)              (port)          (port)
//! ```
//!
//! Time advances only by calls: the simulation's driver reads the [next event](SimNetwork::next_event), makes the
//! network [`step`](SimNetwork::step) to its time, and calls [`receive`](crate::Link::receive) on the links. The
//! network's time is the simulation's time. Each path has a random sequence of its own (from the seed and both
//! addresses), so that another node does not change the traffic between the others.
//!
//! Frames lie in buffers that are reused: after the first moments nothing is allocated. Several threads may use a
//! network and its links, but only a single thread makes a run repeatable.

mod link;
mod net;
mod path;
mod port;
mod trace;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use self::link::SimLink;
use self::net::Net;
pub use self::net::SimCounters;
pub use self::path::Path;
pub use self::port::{FifoState, PortConfig};
pub use self::trace::{FrameOutcome, Trace};
use crate::impairment::FaultCounters;
use cxloe_wire::frame::Mac;
use cxloe_wire::time::Time;

/// Errors of a simulated network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// Two links with one address.
    #[error("{0} is attached to this network already; drop its link before attaching it again")]
    Attached(Mac),
    /// A group address as a port's own.
    #[error("{0} is a group address: a port needs an address of its own")]
    Group(Mac),
}

/// A network in virtual time; clones are handles to one network. See the [module](self).
#[derive(Clone)]
pub struct SimNetwork {
    net: Arc<Mutex<Net>>,
}

impl SimNetwork {
    /// Makes a network without ports, at [`Time::ZERO`]. Paths have no faults and [`Path::default`]'s delay.
    pub fn new(seed: u64) -> Self {
        SimNetwork { net: Arc::new(Mutex::new(Net::new(seed))) }
    }

    fn net(&self) -> MutexGuard<'_, Net> {
        // After a panic in a hook or another thread the network stays usable, so that no second panic hides the first.
        self.net.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches a port. An address whose link was dropped can be attached again, like a node that restarts: frames on
    /// their way to it arrive, those in its FIFO are lost.
    pub fn attach(&self, mac: Mac, config: PortConfig) -> Result<SimLink, SimError> {
        if mac.is_multicast() {
            return Err(SimError::Group(mac));
        }
        let mut net = self.net();
        let port = net.open(mac, config)?;
        let (waiting, seed) = (net.waiting(port), net.seed());
        drop(net);
        Ok(SimLink::new(self.clone(), port, waiting, mac, &config, seed))
    }

    /// Sets the path of all pairs of ports without a path of their own.
    pub fn set_default_path(&self, path: Path) {
        self.net().set_default_path(path);
    }

    /// Sets the path from `from` to `to` (one direction only) from the next frame on. The ports may be attached later.
    #[cfg(test)]
    pub(crate) fn set_path(&self, from: Mac, to: Mac, path: Path) {
        self.net().set_path(from, to, path);
    }

    /// Loses all frames from `from` to `to` (one direction only), including those on their way, until
    /// [`heal`](Self::heal).
    pub fn cut(&self, from: Mac, to: Mac) {
        self.net().set_cut(from, to, true);
    }

    /// Ends a [`cut`](SimNetwork::cut) from `from` to `to`.
    pub fn heal(&self, from: Mac, to: Mac) {
        self.net().set_cut(from, to, false);
    }

    /// Cuts `group` off from all other attached ports, in both directions. Cuts within the group stay as they are.
    pub fn partition(&self, group: &[Mac]) {
        self.net().partition(group);
    }

    /// Ends all cuts and partitions.
    pub fn heal_all(&self) {
        self.net().heal_all();
    }

    /// Present virtual time.
    pub fn now(&self) -> Time {
        self.net().now()
    }

    /// Time of the network's next event; `None` if no frame is on its way. Frames in FIFOs wait for their receivers and
    /// are no events.
    pub fn next_event(&self) -> Option<Time> {
        self.net().next_event()
    }

    /// Handles all events up to and including `until`, and sets the time to `until`; a time in the past changes
    /// nothing. Returns the number of events.
    pub fn step(&self, until: Time) -> usize {
        self.net().step(until)
    }

    /// State of the receive FIFO of a port; `None` if the port was never attached.
    pub fn fifo(&self, mac: Mac) -> Option<FifoState> {
        self.net().fifo(mac)
    }

    /// Counts of faults on the path from `from` to `to`.
    pub fn faults(&self, from: Mac, to: Mac) -> FaultCounters {
        self.net().faults(from, to)
    }

    /// Counts since the network was made.
    pub fn counters(&self) -> SimCounters {
        self.net().counters()
    }

    /// Sets a hook that is called with every [`Trace`] of a frame. The hook runs inside the network and must not call
    /// it.
    pub fn on_trace(&self, hook: impl FnMut(&Trace<'_>) + Send + 'static) {
        self.net().on_trace(Box::new(hook));
    }

    /// Sets a hook that is called with every frame that a port sends, and the port's address, before any impairment;
    /// the hook may change the frame. It runs inside the network and must not call it.
    pub fn on_send(&self, hook: impl FnMut(Mac, &mut [u8]) + Send + 'static) {
        self.net().on_send(Box::new(hook));
    }

    /// Sets a hook that is called when the occupancy of a FIFO passes its threshold: with [`FifoState::above`] set when
    /// it rises above, not set when it is at the threshold or below again. The hook must not call the network.
    pub fn on_threshold(&self, hook: impl FnMut(Time, Mac, FifoState) + Send + 'static) {
        self.net().on_threshold(Box::new(hook));
    }
}

#[cfg(test)]
mod tests;
