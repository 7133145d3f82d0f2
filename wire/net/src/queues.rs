//! Several links of one interface joined into one link. Each is a queue with its own address. Frames received
//! by any of them are passed on; a frame is sent by the queue selected last ([`Transmit::steer`]).
//!
//! ```text
//!   receive <-- queue 0, 1, ... in rotation
//!   steer(2), slot, commit --> queue 2        answers: the queue the frame came by, unless steered
//!   readiness <-- JointReadiness <-- queue 0, 1, ...
//! ```

use std::os::fd::RawFd;
use std::time::Duration;

use cxloe_wire::Transmit;

use crate::{Link, LinkCounters, LinkError, LinkInfo, OnFrame};

/// Link made of several links, one for each queue.
struct Queues<R> {
    links: Vec<Box<dyn Link>>,
    /// Index of the queue that sends frames.
    queue: usize,
    /// Index of the queue that is polled first. It advances at each `receive`, so that a busy queue does not starve the
    /// other queues.
    first: usize,
    info: LinkInfo,
    reopened: u32,
    readiness: R,
}

/// Way to wait for frames of several links at once.
pub trait JointReadiness: Send {
    /// Descriptor that becomes readable when one of `links` may have frames; `None` for simulated links, and for links
    /// that have none.
    fn descriptor(&self, links: &[Box<dyn Link>]) -> Option<RawFd>;

    /// Sleeps until a frame may have arrived at one of `links` or `timeout` has passed.
    ///
    /// # Errors
    /// [`LinkError::Io`] if the system call fails.
    fn wait(&self, links: &mut [Box<dyn Link>], timeout: Duration) -> Result<(), LinkError>;
}

/// Waiting on simulated links: returns at once, because only [`sim`](crate::sim) advances virtual time.
struct Virtual;

impl JointReadiness for Virtual {
    fn descriptor(&self, _links: &[Box<dyn Link>]) -> Option<RawFd> {
        None
    }

    fn wait(&self, _links: &mut [Box<dyn Link>], _timeout: Duration) -> Result<(), LinkError> {
        Ok(())
    }
}

/// Joins simulated links into one; queue `i` is the `i`-th link. A single link is returned as it is.
///
/// # Panics
/// If `links` is empty.
pub fn join_simulated(links: Vec<Box<dyn Link>>) -> Box<dyn Link> {
    join(links, Virtual)
}

/// Joins links of one process on one interface into one; queue `i` is the `i`-th link. A single link is
/// returned as it is.
///
/// # Panics
/// If `links` is empty.
pub fn join(mut links: Vec<Box<dyn Link>>, readiness: impl JointReadiness + 'static) -> Box<dyn Link> {
    if links.len() == 1 {
        return links.remove(0);
    }
    let info = joint_info(&links);
    Box::new(Queues { links, queue: 0, first: 0, info, reopened: 0, readiness })
}

/// Properties of the first link, with the smallest limits of all links.
fn joint_info(links: &[Box<dyn Link>]) -> LinkInfo {
    let first = links.first().expect("at least one link is joined").info();
    LinkInfo {
        detail: format!("{}; {} queues", first.detail, links.len()),
        mtu: links.iter().map(|link| link.info().mtu).min().unwrap_or(first.mtu),
        max_frame: links.iter().map(|link| link.info().max_frame).min().unwrap_or(first.max_frame),
        ..first.clone()
    }
}

/// Transmit side of all queues during the callback for a frame. The queue `index` is receiving, so its
/// transmit side is already borrowed and is passed as `own`.
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

impl<R: Send> Transmit for Queues<R> {
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

impl<R: JointReadiness> Link for Queues<R> {
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
        // A reopened link may have another MTU.
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
        self.readiness.wait(&mut self.links, timeout)
    }

    fn readiness(&self) -> Option<RawFd> {
        self.readiness.descriptor(&self.links)
    }

    fn sleep_max(&self) -> Duration {
        self.links.iter().map(|link| link.sleep_max()).min().unwrap_or(Duration::MAX)
    }

    fn counters(&mut self) -> LinkCounters {
        self.links.iter_mut().fold(LinkCounters::default(), |sum, link| sum.plus(&link.counters()))
    }

    fn reopened(&self) -> u32 {
        self.links.iter().map(|link| link.reopened()).fold(0, u32::wrapping_add)
    }
}
