//! The simulated network: frames between any number of ports in virtual time, every run repeatable from a
//! seed.
//!
//! [`SimNetwork`] stands for the cables, switches and receive FIFOs between nodes. [`SimNetwork::attach`]
//! gives a [`SimLink`] per MAC address; what one link sends takes this way:
//!
//! ```text
//! commit, flush -> egress rate -> path: partition, faults, delay, jitter -> ingress rate -> FIFO -> receive
//!                  (port)         (each ordered pair of ports)              (port)          (port)
//! ```
//!
//! Nothing moves by itself: whoever drives the simulation asks for the [next event](SimNetwork::next_event),
//! lets the network [`step`](SimNetwork::step) to it, and calls [`receive`](super::Link::receive) on the
//! links. The network's time is the simulation's time. Each path draws from a random sequence of its own
//! (seed and both addresses), so that adding a node leaves what happens between the others as they were.
//!
//! Frames lie in buffers that circulate: after the first moments nothing is allocated. A network and its
//! links may be used from several threads, but only a single thread makes a run repeatable.

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
use super::impairment::FaultCounters;
use cxloe_wire::frame::Mac;
use cxloe_wire::time::Time;

/// What a simulated network refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// Two links with one address.
    #[error("{0} is attached to this network already; drop its link before attaching it again")]
    Attached(Mac),
    /// A group address as a port's own.
    #[error("{0} is a group address: a port needs an address of its own")]
    Group(Mac),
}

/// A network in virtual time; clones are handles to the same one. See the [module](self).
#[derive(Clone)]
pub struct SimNetwork {
    net: Arc<Mutex<Net>>,
}

impl SimNetwork {
    /// A network without ports, at [`Time::ZERO`]. Paths are perfect and take [`Path::default`]'s time.
    pub fn new(seed: u64) -> Self {
        SimNetwork { net: Arc::new(Mutex::new(Net::new(seed))) }
    }

    fn net(&self) -> MutexGuard<'_, Net> {
        // A panic in a hook or in a test's thread must not hide itself behind a second one here.
        self.net.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches a port. An address whose link was dropped can be attached again; frames on their way to it
    /// arrive, as they would at a node that restarts, what lay in its FIFO is gone.
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

    /// Makes `path` the path of every pair of ports that has none of its own.
    pub fn set_default_path(&self, path: Path) {
        self.net().set_default_path(path);
    }

    /// Gives frames from `from` to `to` (one direction only) a path of their own, from the next one on. The
    /// ports may be attached later.
    pub fn set_path(&self, from: Mac, to: Mac, path: Path) {
        self.net().set_path(from, to, path);
    }

    /// Loses everything from `from` to `to`, also what is on its way, until healed. One direction only.
    pub fn cut(&self, from: Mac, to: Mac) {
        self.net().set_cut(from, to, true);
    }

    /// Undoes a [`cut`](SimNetwork::cut).
    pub fn heal(&self, from: Mac, to: Mac) {
        self.net().set_cut(from, to, false);
    }

    /// Separates `group` from all other ports that exist, both ways. Cuts within the group stay as they are.
    pub fn partition(&self, group: &[Mac]) {
        self.net().partition(group);
    }

    /// Undoes every cut and partition.
    pub fn heal_all(&self) {
        self.net().heal_all();
    }

    /// The virtual time.
    pub fn now(&self) -> Time {
        self.net().now()
    }

    /// When the network next does something by itself; `None` when nothing is on its way. Frames that lie in
    /// FIFOs wait for their receivers and are no events.
    pub fn next_event(&self) -> Option<Time> {
        self.net().next_event()
    }

    /// Carries out everything up to and including `until`, which is then the time; a time in the past changes
    /// nothing. Returns how many events there were.
    pub fn step(&self, until: Time) -> usize {
        self.net().step(until)
    }

    /// The receive FIFO of a port, `None` if it was never attached.
    pub fn fifo(&self, mac: Mac) -> Option<FifoState> {
        self.net().fifo(mac)
    }

    /// What befell frames from `from` to `to` by the faults of their path.
    pub fn faults(&self, from: Mac, to: Mac) -> FaultCounters {
        self.net().faults(from, to)
    }

    /// What the network has done so far.
    pub fn counters(&self) -> SimCounters {
        self.net().counters()
    }

    /// Calls `hook` with what becomes of every frame as it is decided. The hook runs inside the network and must not
    /// call it.
    pub fn on_trace(&self, hook: impl FnMut(&Trace<'_>) + Send + 'static) {
        self.net().on_trace(Box::new(hook));
    }

    /// Calls `hook` with every frame that a port sends and whose it is, before anything befalls the frame: a tap at each
    /// port, which may change what passes by. The hook runs inside the network and must not call it.
    pub fn on_send(&self, hook: impl FnMut(Mac, &mut [u8]) + Send + 'static) {
        self.net().on_send(Box::new(hook));
    }

    /// Calls `hook` whenever the occupancy of a FIFO passes its threshold: with [`FifoState::above`] set when
    /// it rises above, not set when it is back at the threshold or below. The hook must not call the network.
    pub fn on_threshold(&self, hook: impl FnMut(Time, Mac, FifoState) + Send + 'static) {
        self.net().on_threshold(Box::new(hook));
    }
}

#[cfg(test)]
mod tests;
