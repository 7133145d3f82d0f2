//! Links that outlive their interface. If an interface is deleted and created again, set down and up, given another MTU
//! or, for frames inside UDP, another IP address, its sockets become unusable. Sessions and pools must survive that.
//!
//! A thread watches the interface ([`notices`]), decides ([`decide`]) and opens links. A worker only releases its link
//! and takes the new one ([`link`]), between two batches, when a flag is set. Without a link, frames are lost. Sessions
//! tolerate that and continue as soon as frames pass again.
//!
//! ```text
//!   the kernel -- notices --> watcher: observe, decide, open   worker: receive(), flush(), ...
//!                                 |                               |
//!                                 +-------- Slot: close, closed, here is another --------+
//! ```
//!
//! All links of a process on one interface are closed before the first is opened again, and they are opened in their
//! order. So each worker gets the same place in the new fan-out group as in the old one.

mod decide;
mod link;
mod notices;

use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use decide::{Ground, LinkStep, Observation, Reopening};
use link::{PersistentLink, Slot};
use notices::Notices;

use super::interface::{Interface, name_of};
use super::{Link, LinkConfig, LinkError, open, udp};
use crate::Clock;

/// Minimum interval between checks of an interface during a series of notices.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(2);

/// Reason why a link is down, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkDown {
    /// Fault of the interface, and the remedy.
    pub why: String,
    /// Time without a link, in nanoseconds.
    pub for_ns: u64,
}

/// State of an interface's links, for status output and metrics; clones share it.
#[derive(Clone, Debug, Default)]
pub struct LinkHealth(Arc<Mutex<Health>>);

#[derive(Debug, Default)]
struct Health {
    down: Option<(String, Instant)>,
    reopened: u64,
    outer: Option<SocketAddr>,
}

impl LinkHealth {
    /// Reason why the links are down; `None` while they work.
    pub fn down(&self) -> Option<LinkDown> {
        let health = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (why, since) = health.down.as_ref()?;
        Some(LinkDown { why: why.clone(), for_ns: since.elapsed().as_nanos() as u64 })
    }

    /// Number of times that the links were opened again after a change of the interface.
    pub fn reopened(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).reopened
    }

    /// Outer address of this node at which the links were last opened; `None` if frames are not sent inside
    /// UDP.
    pub fn outer_address(&self) -> Option<SocketAddr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).outer
    }
}

/// Opens a link for each of `configs`, all on one interface, and reopens the links whenever the interface was
/// unavailable or has changed. Such a link never returns an error. Its address never changes: an interface that comes
/// back with another address is not used until it has the old one again.
///
/// # Errors
/// Errors of [`open()`], and of making the socket or the thread that watches the interface.
///
/// # Panics
/// If `configs` is empty.
pub fn open_persistent(configs: &[LinkConfig]) -> Result<(Vec<Box<dyn Link>>, LinkHealth), LinkError> {
    let name = configs.first().expect("at least one link is asked for").interface.clone();
    let io = |what| move |source| LinkError::Io { what, interface: name.clone(), source };
    let name = &configs[0].interface;
    let (interface, outer) = find(&configs[0], name)?;
    let links = configs.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let (alarm, wake) = UnixStream::pair().map_err(io.clone()("make a socket for the watch"))?;
    let quiet = alarm.set_nonblocking(true).and_then(|()| wake.set_nonblocking(true));
    quiet.map_err(io.clone()("set up the socket for the watch"))?;
    let alarm = Arc::new(alarm);
    let clock = Clock::new();
    let health = LinkHealth(Arc::new(Mutex::new(Health { outer, ..Health::default() })));
    let slots: Vec<Arc<Slot>> = links.iter().map(|_| Arc::default()).collect();
    let notices = Notices::listen()
        .inspect_err(|error| tracing::info!(%error, "no notices of interfaces: they are polled"));
    let state = Reopening::new(name, ground(&interface, outer), clock.now());
    let watch = LinkWatch {
        configs: configs.to_vec(),
        slots: slots.clone(),
        state,
        name: interface.name,
        notices: notices.ok(),
        wake,
        health: health.clone(),
        clock,
    };
    thread::Builder::new()
        .name("link-watch".into())
        .spawn(move || watch.run())
        .map_err(io("start a thread for the watch"))?;
    let persistent = links.into_iter().zip(slots).map(|(link, slot)| -> Box<dyn Link> {
        Box::new(PersistentLink::new(link, slot, Arc::clone(&alarm)))
    });
    Ok((persistent.collect(), health))
}

/// Thread that watches an interface and opens its links.
struct LinkWatch {
    configs: Vec<LinkConfig>,
    slots: Vec<Arc<Slot>>,
    state: Reopening,
    /// Current name of the interface, which may have been renamed.
    name: String,
    notices: Option<Notices>,
    /// Socket that wakes this thread; the workers have the other ends.
    wake: UnixStream,
    health: LinkHealth,
    clock: Clock,
}

impl LinkWatch {
    fn run(mut self) {
        loop {
            let observation = self.observe();
            let step = self.state.step(self.clock.now(), &observation);
            self.carry_out(step, &observation);
            if self.state.is_closing() && self.slots.iter().all(|slot| slot.is_closed()) {
                self.state.closed(self.clock.now());
                self.report();
                continue;
            }
            self.report();
            if !self.sleep() {
                return;
            }
        }
    }

    /// Observes the interface with the configured name, or otherwise the interface that had that name before.
    fn observe(&mut self) -> Observation {
        let configured = &self.configs[0].interface;
        let found = match find(&self.configs[0], configured) {
            Err(LinkError::NoSuchInterface(_)) => self.renamed(),
            found => found,
        };
        match found {
            Ok((interface, outer)) => {
                let found = ground(&interface, outer);
                if interface.name != self.name {
                    tracing::warn!(
                        before = %self.name, now = %interface.name,
                        "the interface has another name: the link stays, but the next start needs the right one"
                    );
                    self.name = interface.name;
                }
                Observation::Fit(found)
            }
            Err(error) => Observation::Unfit(error.to_string()),
        }
    }

    /// Finds the interface used last, by its current name.
    fn renamed(&self) -> Result<(Interface, Option<SocketAddr>), LinkError> {
        let none = || LinkError::NoSuchInterface(self.configs[0].interface.clone());
        let name = name_of(self.state.index()).ok_or_else(none)?;
        match find(&self.configs[0], &name) {
            // The interface is another one: the kernel may have given it the index of a deleted interface.
            Ok((interface, _)) if interface.mac != self.state.mac() => Err(none()),
            found => found,
        }
    }

    fn carry_out(&mut self, step: LinkStep, observation: &Observation) {
        match step {
            LinkStep::Rest => {}
            LinkStep::Close => self.slots.iter().for_each(|slot| slot.close()),
            LinkStep::Open => self.open(observation),
        }
    }

    fn open(&mut self, observation: &Observation) {
        let Observation::Fit(found) = *observation else { return };
        let links: Result<Vec<_>, _> = self
            .configs
            .iter()
            .map(|config| open(&LinkConfig { interface: self.name.clone(), ..config.clone() }))
            .collect();
        let now = self.clock.now();
        match links {
            // The interface may have changed since it was checked, so only links with the node's address are used.
            Ok(links)
                if links
                    .iter()
                    .zip(&self.configs)
                    .any(|(link, c)| link.info().mac != found.mac.shard(c.shard())) =>
            {
                self.state.not_opened("the interface changed while the link was opened".into(), now);
            }
            Ok(links) => {
                self.state.opened(found, now);
                let mut health = self.health.0.lock().unwrap_or_else(PoisonError::into_inner);
                (health.reopened, health.outer) = (health.reopened + 1, found.outer);
                drop(health);
                for (slot, link) in self.slots.iter().zip(links) {
                    slot.hand_over(link);
                }
            }
            Err(error) => self.state.not_opened(error.to_string(), now),
        }
    }

    /// Reports a change in the log and in [`LinkHealth`].
    fn report(&mut self) {
        let mut health = self.health.0.lock().unwrap_or_else(PoisonError::into_inner);
        let interface = &self.configs[0].interface;
        match (self.state.why(), &mut health.down) {
            (None, None) => {}
            (None, down) => {
                let after = down.take().map(|(_, since)| since.elapsed()).unwrap_or_default();
                tracing::info!(%interface, ?after, "the link is open again");
            }
            (Some(why), Some((told, _))) if told == why => {}
            (Some(why), down) => {
                tracing::warn!(%interface, %why, "the link is closed; it is opened again when the interface is ready");
                let since = down.take().map_or_else(Instant::now, |(_, since)| since);
                *down = Some((why.to_owned(), since));
            }
        }
    }

    /// Waits for a notice, for a worker whose link has failed, or for the time of the next check. Returns
    /// `false` if no worker has a link any more.
    #[expect(unsafe_code, reason = "poll takes a raw pointer")]
    fn sleep(&mut self) -> bool {
        let pause = self.state.pause(self.clock.now());
        let notices = self.notices.as_ref().map_or(-1, Notices::descriptor);
        let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut set = [watch(self.wake.as_raw_fd()), watch(notices)];
        // Rounded up, so that the last fraction of a millisecond is not spent polling.
        let millis = pause.as_millis().saturating_add(1).min(i32::MAX as u128) as libc::c_int;
        // SAFETY: the set is a live array with the number of entries passed; the kernel skips a negative
        // descriptor.
        let ready = unsafe { libc::poll(set.as_mut_ptr(), set.len() as libc::nfds_t, millis) };
        if ready <= 0 {
            return true;
        }
        if set[0].revents != 0 && !self.take_alarms() {
            return false;
        }
        if set[1].revents != 0 {
            let (mut deleted, state) = (false, &mut self.state);
            // Reads at most 64 notices at a time; if more are left, the thread wakes again at once.
            for _ in 0..64 {
                let Some(notices) = &mut self.notices else { break };
                if !notices.take(&mut |index| deleted |= state.deleted(index) == LinkStep::Close) {
                    break;
                }
            }
            if deleted {
                self.slots.iter().for_each(|slot| slot.close());
            }
            // Notices come in series, so a short sleep saves checks that would show nothing new.
            thread::sleep(CHECK_INTERVAL_MIN);
        }
        true
    }

    /// Reads the workers' alarms. Returns `false` if all workers have ended.
    fn take_alarms(&mut self) -> bool {
        let mut bytes = [0; 64];
        match self.wake.read(&mut bytes) {
            Ok(0) => return false,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return false,
            _ => {}
        }
        for failure in self.slots.iter().filter_map(|slot| slot.failure()).collect::<Vec<_>>() {
            if self.state.failed(failure) == LinkStep::Close {
                self.slots.iter().for_each(|slot| slot.close());
            }
        }
        true
    }
}

/// Finds the interface `name`, with the MAC that a link of this configuration has on it, and the outer
/// address.
fn find(config: &LinkConfig, name: &str) -> Result<(Interface, Option<SocketAddr>), LinkError> {
    if config.is_over_udp() {
        let config = LinkConfig { interface: name.to_owned(), ..config.clone() };
        return udp::station(&config).map(|(interface, outer)| (interface, Some(outer)));
    }
    Ok((Interface::find_for(name, config.queues)?, None))
}

fn ground(interface: &Interface, outer: Option<SocketAddr>) -> Ground {
    Ground { index: interface.index, mac: interface.mac, mtu: interface.mtu, outer }
}
