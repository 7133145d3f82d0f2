//! Several queues of an interface joined into one link, with one descriptor to wait for all of them, or, for links that
//! have no descriptors, by asking each in turn.

#![expect(unsafe_code, reason = "epoll takes raw pointers")]

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_net::queues::{JointReadiness, join};

use crate::socket::{get_option, owned, poll_in};
use crate::{Link, LinkError};

/// Joins links of one process on one interface into one; queue `i` is the `i`-th link. A single link is
/// returned as it is.
///
/// # Errors
/// The descriptor to wait for all links cannot be made.
///
/// # Panics
/// If `links` is empty.
pub fn join_queues(links: Vec<Box<dyn Link>>) -> Result<Box<dyn Link>, LinkError> {
    let interval = links.iter().map(|link| link.sleep_max()).min().unwrap_or(Duration::MAX);
    if interval < Duration::MAX {
        return Ok(join(links, PolledReadiness { interval }));
    }
    let interface = links.first().map_or_else(String::new, |link| link.info().interface.clone());
    // SAFETY: creates a descriptor; the result is checked.
    let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
    let what = "make a descriptor for several queues";
    let epoll = epoll.map_err(|source| LinkError::Io { what, interface: interface.clone(), source })?;
    let readiness = RefCell::new(Readiness { epoll, entered: vec![(None, 0); links.len()] });
    Ok(join(links, EpollReadiness { interface, readiness }))
}

/// Waits for all links by an epoll descriptor that has their descriptors in its set.
struct EpollReadiness {
    interface: String,
    readiness: RefCell<Readiness>,
}

impl JointReadiness for EpollReadiness {
    fn descriptor(&self, links: &[Box<dyn Link>]) -> Option<RawFd> {
        let mut readiness = self.readiness.borrow_mut();
        readiness.follow(links);
        readiness.clear_errors();
        Some(readiness.epoll.as_raw_fd())
    }

    fn wait(&self, links: &mut [Box<dyn Link>], timeout: Duration) -> Result<(), LinkError> {
        self.descriptor(links);
        let io = |source: io::Error| LinkError::Io {
            what: "wait for frames",
            interface: self.interface.clone(),
            source,
        };
        poll_in(&self.readiness.borrow().epoll, timeout).map_err(io)
    }
}

/// Waits for links that must be polled at intervals.
struct PolledReadiness {
    interval: Duration,
}

impl JointReadiness for PolledReadiness {
    fn descriptor(&self, _links: &[Box<dyn Link>]) -> Option<RawFd> {
        None
    }

    fn wait(&self, links: &mut [Box<dyn Link>], timeout: Duration) -> Result<(), LinkError> {
        let until = Instant::now() + timeout;
        loop {
            for link in &mut *links {
                link.wait(Duration::ZERO)?;
                if link.holds(1) {
                    return Ok(());
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(self.interval));
        }
    }
}

struct Readiness {
    epoll: OwnedFd,
    /// Descriptor of each link in the set, and its [`reopened`](Link::reopened) count when it was added.
    entered: Vec<(Option<RawFd>, u32)>,
}

impl Readiness {
    /// Adds the descriptors of links that were opened again.
    fn follow(&mut self, links: &[Box<dyn Link>]) {
        for ((index, link), entered) in links.iter().enumerate().zip(&mut self.entered) {
            let now = (link.readiness(), link.reopened());
            if now == *entered {
                continue;
            }
            // The kernel removes a descriptor from the set when it is closed, and its number may be in use for another
            // file. So descriptors are only added here, never removed.
            if let Some(fd) = now.0 {
                let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: index as u64 };
                // SAFETY: the descriptor is that of an open link, and the event outlives the call. A
                // descriptor already in the set is left unchanged.
                unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
            }
            *entered = now;
        }
    }

    /// Clears the errors of sockets whose interface has gone down. A pending error would end every sleep at
    /// once.
    fn clear_errors(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        // SAFETY: the kernel writes at most as many events as the array has; the array outlives the call,
        // which does not wait.
        let count = unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), events.len() as libc::c_int, 0)
        };
        for event in &events[..usize::try_from(count).unwrap_or(0)] {
            let (flags, index) = (event.events, event.u64 as usize);
            if flags & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0
                && let Some((Some(fd), _)) = self.entered.get(index)
            {
                let _ = get_option::<libc::c_int>(fd, libc::SOL_SOCKET, libc::SO_ERROR);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxloe_net::pass_on;
    use cxloe_wire::Transmit;

    use crate::sim::{PortConfig, SimLink, SimNetwork};
    use cxloe_wire::frame::Mac;
    use cxloe_wire::time::Time;

    const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const MN: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn write(tx: &mut dyn Transmit, from: Mac, to: Mac, mark: u8) {
        let slot = tx.slot(60).unwrap();
        slot.fill(mark);
        slot[..6].copy_from_slice(&to.0);
        slot[6..12].copy_from_slice(&from.0);
        tx.commit();
    }

    #[test]
    fn frames_leave_by_the_queue_that_was_named_and_answers_by_theirs() {
        let net = SimNetwork::new(1);
        let mut mn = net.attach(MN, PortConfig::default()).unwrap();
        let queue = |shard| -> Box<dyn Link> {
            Box::new(net.attach(CN.shard(shard), PortConfig::default()).unwrap())
        };
        let mut link = join_queues((0..4).map(queue).collect()).unwrap();
        assert_eq!((link.info().mac, link.readiness().is_some()), (CN, true));
        for shard in [2, 0, 3, 1] {
            link.transmit().steer(shard);
            write(link.transmit(), CN.shard(shard), MN, shard);
        }
        link.flush().unwrap();
        assert_eq!(link.counters().tx_frames, 4);
        net.step(Time(1_000_000));
        let mut seen = Vec::new();
        mn.receive(64, &mut |frame, tx| {
            let from = Mac(*frame[6..].first_chunk().unwrap());
            assert_eq!(from, CN.shard(frame[59]), "by the queue whose address it bears");
            seen.push(frame[59]);
            write(tx, MN, from, frame[59]);
        })
        .unwrap();
        mn.flush().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3]);
        net.step(Time(2_000_000));
        // Each frame is answered by the queue it came by. Only the answer to shard 1 is steered, to queue 3.
        let mut answers = 0;
        let all = link.receive(64, &mut |frame, tx| {
            let mark = frame[59];
            assert_eq!(frame[..6], CN.shard(mark).0);
            let shard = if mark == 1 { 3 } else { mark };
            if mark == 1 {
                tx.steer(shard);
            }
            write(tx, CN.shard(shard), MN, 100 + mark);
            answers += 1;
        });
        assert_eq!((all.unwrap(), answers), (4, 4));
        link.flush().unwrap();
        net.step(Time(3_000_000));
        let mut senders = Vec::new();
        mn.receive(64, &mut |frame, _| senders.push((frame[59], frame[6] >> 4))).unwrap();
        senders.sort_unstable();
        assert_eq!(senders, [(100, 0), (101, 3), (102, 2), (103, 3)]);
    }

    #[test]
    fn a_budget_holds_for_all_and_every_queue_has_its_turn() {
        let net = SimNetwork::new(1);
        let mut mn = net.attach(MN, PortConfig::default()).unwrap();
        let queue = |shard| -> Box<dyn Link> {
            Box::new(net.attach(CN.shard(shard), PortConfig::default()).unwrap())
        };
        let mut link = join_queues((0..2).map(queue).collect()).unwrap();
        for shard in [0, 1, 0, 1] {
            write(mn.transmit(), MN, CN.shard(shard), shard);
        }
        mn.flush().unwrap();
        net.step(Time(1_000_000));
        let mut seen = Vec::new();
        for _ in 0..4 {
            assert_eq!(link.receive(1, &mut |frame, _| seen.push(frame[59])).unwrap(), 1);
        }
        assert_eq!(seen, [1, 0, 1, 0]);
        assert_eq!(link.receive(1, &mut |_, _| panic!("nothing is left")).unwrap(), 0);
    }
    /// Link without a descriptor, which finds a frame at some wait.
    struct PolledLink {
        inner: SimLink,
        /// Number of waits before a frame has arrived.
        waits: u32,
    }

    impl Link for PolledLink {
        pass_on!(self => self.inner; info receive transmit flush readiness counters);

        fn wait(&mut self, _timeout: Duration) -> Result<(), LinkError> {
            self.waits = self.waits.saturating_sub(1);
            Ok(())
        }

        fn holds(&mut self, count: usize) -> bool {
            self.waits == 0 && count == 1
        }

        fn sleep_max(&self) -> Duration {
            Duration::from_micros(50)
        }
    }

    #[test]
    fn links_without_descriptors_are_asked_in_turn() {
        let net = SimNetwork::new(1);
        let joined = |waits: [u32; 2]| {
            let queue = |(shard, waits)| -> Box<dyn Link> {
                let inner = net.attach(CN.shard(shard), PortConfig::default()).unwrap();
                Box::new(PolledLink { inner, waits })
            };
            join_queues((0..).zip(waits).map(queue).collect()).unwrap()
        };
        let mut link = joined([u32::MAX, 5]);
        assert_eq!((link.readiness(), link.sleep_max()), (None, Duration::from_micros(50)));
        let start = Instant::now();
        link.wait(Duration::from_secs(60)).unwrap();
        assert!(start.elapsed() < Duration::from_secs(30), "a frame of the second queue ends the wait");
        drop(link);
        let start = Instant::now();
        joined([u32::MAX, u32::MAX]).wait(Duration::from_millis(5)).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(5), "no frame arrives");
    }
}
