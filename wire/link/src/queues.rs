//! Several links of one interface, each a queue with an address of its own, as one: what arrives at any of them is handed
//! over, and what is written leaves by the one that was named last ([`Transmit::steer`]).
//!
//! ```text
//!   receive <-- queue 0, 1, ... by turns
//!   steer(2), slot, commit --> queue 2        answers: the queue the frame came by, unless steered
//!   readiness <-- epoll <-- queue 0, 1, ...
//! ```

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use cxloe_wire::Transmit;

use crate::socket::{get_option, owned, poll_in};
use crate::{Link, LinkCounters, LinkError, LinkInfo, OnFrame};

/// Queues as one link.
struct Queues {
    links: Vec<Box<dyn Link>>,
    /// By which what is written leaves.
    queue: usize,
    /// Which is received from first: they take turns.
    first: usize,
    info: LinkInfo,
    reopened: u32,
    readiness: RefCell<Readiness>,
}

/// One descriptor for those of all links.
struct Readiness {
    epoll: OwnedFd,
    /// Each link's descriptor, and how often the link had been opened again when it was entered.
    entered: Vec<(Option<RawFd>, u32)>,
}

/// Makes one link of the links of a process on one interface; queue `i` is the `i`-th. One alone stays as it is.
///
/// # Errors
/// No descriptor to wait for all of them.
///
/// # Panics
/// If there is none.
pub fn join_queues(mut links: Vec<Box<dyn Link>>) -> Result<Box<dyn Link>, LinkError> {
    if links.len() == 1 {
        return Ok(links.remove(0));
    }
    let info = joint_info(&links);
    // SAFETY: makes a descriptor; the result is checked.
    let epoll =
        owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map_err(|source| LinkError::Io {
            what: "make a descriptor for several queues",
            interface: info.interface.clone(),
            source,
        })?;
    let readiness = RefCell::new(Readiness { epoll, entered: vec![(None, 0); links.len()] });
    Ok(Box::new(Queues { links, queue: 0, first: 0, info, reopened: 0, readiness }))
}

/// What the first says, and as much as all of them carry.
fn joint_info(links: &[Box<dyn Link>]) -> LinkInfo {
    let first = links.first().expect("at least one link is joined").info();
    LinkInfo {
        detail: format!("{}; {} queues", first.detail, links.len()),
        mtu: links.iter().map(|link| link.info().mtu).min().unwrap_or(first.mtu),
        max_frame: links.iter().map(|link| link.info().max_frame).min().unwrap_or(first.max_frame),
        ..first.clone()
    }
}

impl Readiness {
    /// Enters the descriptors that have changed.
    fn follow(&mut self, links: &[Box<dyn Link>]) {
        for ((index, link), entered) in links.iter().enumerate().zip(&mut self.entered) {
            let now = (link.readiness(), link.reopened());
            if now == *entered {
                continue;
            }
            // What was closed has left by itself, and its number may be another's by now: only what is there is entered.
            if let Some(fd) = now.0 {
                let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: index as u64 };
                // SAFETY: the descriptor is the link's, which is open, and the event outlives the call. One that is
                // entered already is left as it is.
                unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
            }
            *entered = now;
        }
    }

    /// Takes errors off sockets whose interface has gone down: until they are taken, every sleep ends at once.
    fn clear_errors(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        // SAFETY: the kernel writes at most as many events as the array has, which outlives the call; it does not wait.
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

/// The transmit side for a frame that came by queue `index`: that queue's is lent by its link meanwhile.
struct Answers<'a> {
    index: usize,
    own: &'a mut dyn Transmit,
    before: &'a mut [Box<dyn Link>],
    after: &'a mut [Box<dyn Link>],
    queue: &'a mut usize,
}

impl Answers<'_> {
    #[inline]
    fn chosen(&mut self) -> &mut dyn Transmit {
        match *self.queue {
            queue if queue < self.index => self.before[queue].transmit(),
            queue if queue > self.index => self.after[queue - self.index - 1].transmit(),
            _ => self.own,
        }
    }
}

impl Transmit for Answers<'_> {
    #[inline]
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        self.chosen().slot(len)
    }

    #[inline]
    fn steer(&mut self, queue: u8) {
        *self.queue = usize::from(queue).min(self.before.len() + self.after.len());
    }

    #[inline]
    fn hasten(&mut self) {
        self.chosen().hasten();
    }

    #[inline]
    fn commit(&mut self) {
        self.chosen().commit();
    }
}

impl Transmit for Queues {
    #[inline]
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        self.links[self.queue].transmit().slot(len)
    }

    #[inline]
    fn steer(&mut self, queue: u8) {
        self.queue = usize::from(queue).min(self.links.len() - 1);
    }

    #[inline]
    fn hasten(&mut self) {
        self.links[self.queue].transmit().hasten();
    }

    #[inline]
    fn commit(&mut self) {
        self.links[self.queue].transmit().commit();
    }
}

impl Link for Queues {
    fn info(&self) -> &LinkInfo {
        &self.info
    }

    fn receive(&mut self, budget: usize, on_frame: &mut OnFrame<'_>) -> Result<usize, LinkError> {
        let count = self.links.len();
        let mut received = 0;
        self.first = (self.first + 1) % count;
        for index in (self.first..count).chain(0..self.first) {
            let (before, rest) = self.links.split_at_mut(index);
            let Some((own, after)) = rest.split_first_mut() else { break };
            let queue = &mut self.queue;
            received += own.receive(budget - received, &mut |frame, own| {
                *queue = index;
                on_frame(frame, &mut Answers { index, own, before, after, queue });
            })?;
            if received == budget {
                break;
            }
        }
        let reopened = self.reopened();
        if reopened != self.reopened {
            self.reopened = reopened;
            self.info = joint_info(&self.links);
        }
        Ok(received)
    }

    fn peek(&mut self, budget: usize, look: &mut dyn FnMut(&[u8])) {
        self.links.iter_mut().for_each(|link| link.peek(budget, look));
    }

    fn holds(&mut self, count: usize) -> bool {
        self.links.iter_mut().any(|link| link.holds(count))
    }

    fn transmit(&mut self) -> &mut dyn Transmit {
        self
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.links.iter_mut().try_for_each(|link| link.flush())
    }

    fn has_unsent(&mut self) -> bool {
        self.links.iter_mut().any(|link| link.has_unsent())
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        self.readiness();
        let io = |source: io::Error| LinkError::Io {
            what: "wait for frames",
            interface: self.info.interface.clone(),
            source,
        };
        poll_in(&self.readiness.borrow().epoll, timeout).map_err(io)
    }

    fn readiness(&self) -> Option<RawFd> {
        let mut readiness = self.readiness.borrow_mut();
        readiness.follow(&self.links);
        readiness.clear_errors();
        Some(readiness.epoll.as_raw_fd())
    }

    fn counters(&mut self) -> LinkCounters {
        self.links.iter_mut().fold(LinkCounters::default(), |sum, link| sum.plus(&link.counters()))
    }

    fn reopened(&self) -> u32 {
        self.links.iter().map(|link| link.reopened()).fold(0, u32::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{PortConfig, SimNetwork};
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
        // Each is answered by its queue; the one of shard 1 by queue 3, as steered.
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
}
