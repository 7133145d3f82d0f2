//! Simulated network: frames between any number of ports, in virtual time. A run can be repeated from its
//! seed.
//!
//! [`SimNetwork`] models the cables, switches and receive FIFOs between nodes. [`SimNetwork::attach`] returns
//! a [`SimLink`] for a MAC address. A frame that the link sends takes this path:
//!
//! ```text
//! commit, flush -> egress rate -> path: partition, faults, delay, jitter -> ingress rate -> FIFO -> receive
//!                  (port)         (each ordered pair of ports)              (port)          (port)
//! ```
//!
//! Time advances only by calls. The driver of the simulation reads the time of the [next
//! event](SimNetwork::next_event), makes the network [`step`](SimNetwork::step) to that time, and calls
//! [`receive`](crate::Link::receive) on the links. Each path has its own random sequence (from the seed and
//! both addresses), so that a further node does not change the traffic among the others.
//!
//! Frames are in buffers that are reused, so after the start nothing is allocated. Several threads may use a
//! network and its links, but only with a single thread can a run be repeated.

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

/// Reason why a port cannot be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// A link with this address is attached already.
    #[error("{0} is attached to this network already; drop its link before attaching it again")]
    Attached(Mac),
    /// The address is a group address.
    #[error("{0} is a group address: a port needs an address of its own")]
    Group(Mac),
}

/// Network in virtual time; clones are handles to the same network. See the [module](self).
#[derive(Clone)]
pub struct SimNetwork {
    net: Arc<Mutex<Net>>,
}

impl SimNetwork {
    /// Makes a network without ports, at [`Time::ZERO`]. Paths have no faults, and the delay of
    /// [`Path::default`].
    pub fn new(seed: u64) -> Self {
        SimNetwork { net: Arc::new(Mutex::new(Net::new(seed))) }
    }

    fn net(&self) -> MutexGuard<'_, Net> {
        // After a panic in a hook or in another thread the network stays usable, so that no second panic
        // hides the first.
        self.net.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches a port. An address can be attached again after its link was dropped, for example to simulate the
    /// restart of a node: frames on their way to the address still arrive, but the frames in the old port's FIFO are
    /// lost.
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

    /// Sets the path between all pairs of ports that have no path of their own.
    pub fn set_default_path(&self, path: Path) {
        self.net().set_default_path(path);
    }

    /// Sets the path from `from` to `to` (one direction only) from the next frame on. The ports may be
    /// attached later.
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

    /// Cuts `group` off from all other attached ports, in both directions. Cuts within the group remain.
    pub fn partition(&self, group: &[Mac]) {
        self.net().partition(group);
    }

    /// Ends all cuts, including those of partitions.
    pub fn heal_all(&self) {
        self.net().heal_all();
    }

    /// Current virtual time; advanced only by [`step`](Self::step).
    pub fn now(&self) -> Time {
        self.net().now()
    }

    /// Time of the network's next event; `None` if no frame is on its way. A frame in a FIFO waits for its
    /// receiver and is not an event.
    pub fn next_event(&self) -> Option<Time> {
        self.net().next_event()
    }

    /// Handles all events up to and including `until`, and sets the time to `until`. A time in the past has
    /// no effect. Returns the number of events.
    pub fn step(&self, until: Time) -> usize {
        self.net().step(until)
    }

    /// State of the receive FIFO of a port; `None` if the port was never attached.
    pub fn fifo(&self, mac: Mac) -> Option<FifoState> {
        self.net().fifo(mac)
    }

    /// Counters of the faults on the path from `from` to `to`.
    pub fn faults(&self, from: Mac, to: Mac) -> FaultCounters {
        self.net().faults(from, to)
    }

    /// Counters of the whole network, all ports and paths together.
    pub fn counters(&self) -> SimCounters {
        self.net().counters()
    }

    /// Sets a hook that is called with every [`Trace`]. The hook runs while the network is locked, so it must
    /// not call the network.
    pub fn on_trace(&self, hook: impl FnMut(&Trace<'_>) + Send + 'static) {
        self.net().on_trace(Box::new(hook));
    }

    /// Sets a hook that is called with every frame that a port sends, and with the port's address, before any
    /// impairment. The hook may change the frame. It runs while the network is locked, so it must not call
    /// the network.
    pub fn on_send(&self, hook: impl FnMut(Mac, &mut [u8]) + Send + 'static) {
        self.net().on_send(Box::new(hook));
    }

    /// Sets a hook that is called when the occupancy of a FIFO crosses its threshold. [`FifoState::above`] is set if
    /// the occupancy has risen above the threshold. The network is locked during the call, so the hook must not call
    /// the network.
    pub fn on_threshold(&self, hook: impl FnMut(Time, Mac, FifoState) + Send + 'static) {
        self.net().on_threshold(Box::new(hook));
    }
}

#[cfg(test)]
mod tests;
