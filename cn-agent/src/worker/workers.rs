//! Orders to all workers of the agent. Which worker serves an address or a space, and which workers a change concerns,
//! is decided by [`cxloe_cn_core::workers`]. An order for all workers is sent to each, and their reports are added up.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use cxloe_client::message::{AgentCounters, Session, WorkerCounters};
use cxloe_cn_core::attachments::{AttachmentChange, worker_of};
use cxloe_cn_core::workers::{self, FollowOrder, orders_for};
use cxloe_paging::Spaces;

use super::order::{Orders, OrdersGone, WorkerOrder, WorkerReport, ask, ask_until_taken, report};

/// Senders of orders to the workers, by number; clones share the channels.
#[derive(Clone, Debug)]
pub struct Workers(Arc<[Orders]>);

impl Workers {
    /// Takes the channels of all workers, of which there must be at least one.
    pub fn new(orders: Vec<Orders>) -> Workers {
        assert!(!orders.is_empty(), "an agent has a worker");
        Workers(orders.into())
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the worker number `index`; `None` for a number that no worker has.
    pub fn get(&self, index: usize) -> Option<&Orders> {
        self.0.get(index)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Orders> {
        self.0.iter()
    }

    /// Returns the worker that serves the address `hpa`.
    pub fn at(&self, hpa: u64) -> &Orders {
        &self.0[worker_of(hpa, self.0.len())]
    }

    /// Returns a random number for a new space of worker `index`; [`of_space`](Self::of_space) derives the
    /// worker from it.
    pub fn space_number(&self, index: usize) -> u64 {
        workers::space_number(rand::random(), index)
    }

    /// Returns the worker that serves space `id`. The number contains the worker that had the space at first. The space
    /// may have another worker after a restart of the agent with another number of workers, or if its region has got
    /// another address, so all workers are asked.
    pub async fn of_space(&self, id: u64) -> &Orders {
        let hinted = &self.0[workers::first_worker_of_space(id, self.count())];
        if self.0.len() == 1 {
            return hinted;
        }
        for orders in std::iter::once(hinted).chain(self.iter()) {
            if ask(orders, move |spaces| spaces.get(id).is_some()).await == Some(true) {
                return orders;
            }
        }
        hinted
    }

    /// Returns the worker number `hinted`, which serves the region `name`. Without a hint, returns the worker that has
    /// a space of the region (a space may outlive its region), or the first worker if none has.
    pub async fn of_region(&self, name: &str, hinted: Option<usize>) -> &Orders {
        if let Some(orders) = hinted.and_then(|index| self.get(index)) {
            return orders;
        }
        for orders in &self.0[1..] {
            let name = name.to_owned();
            if ask(orders, move |spaces| spaces.is_mapped(&name)).await == Some(true) {
                return orders;
            }
        }
        &self.0[0]
    }

    /// Removes an owner of space `id`. Waits for workers whose channels are full, because nothing else would remove it.
    pub async fn disown(&self, id: u64) {
        for orders in self.iter() {
            // Only one worker has the space. One that has ended has none.
            let _ = ask_until_taken(orders, move |spaces| spaces.own(id, false)).await;
        }
    }

    /// Runs a function on the spaces of all workers; `None` if a worker has ended.
    pub async fn ask_all<T: Send + 'static>(
        &self,
        what: impl Fn(&mut Spaces) -> T + Clone + Send + 'static,
    ) -> Option<Vec<T>> {
        let mut answers = Vec::with_capacity(self.count());
        for orders in self.iter() {
            answers.push(ask(orders, what.clone()).await?);
        }
        Some(answers)
    }

    /// Sends each change as an order to the workers that it concerns, and removes it from `changes`.
    ///
    /// # Errors
    /// A worker takes no orders now. Its change and those after it are left in `changes`, to be sent again. Only a change
    /// for all workers reaches a worker twice then; those set a state, so that the second has no effect.
    pub fn follow(&self, changes: &mut VecDeque<AttachmentChange>) -> Result<(), OrdersGone> {
        while let Some(change) = changes.front() {
            self.follow_one(change)?;
            changes.pop_front();
        }
        Ok(())
    }

    fn follow_one(&self, change: &AttachmentChange) -> Result<(), OrdersGone> {
        orders_for(change, self.count()).try_for_each(|(worker, order)| {
            self.0[worker].give(match order {
                FollowOrder::Apply(change) => WorkerOrder::Follow(Box::new(change.clone())),
                FollowOrder::OpenSessions(region) => WorkerOrder::OpenSessions(Box::new(region.clone())),
            })
        })
    }

    /// Has all workers report when no operation is in flight that began before the manager's changes up to `event`. If
    /// a worker's channel is full, the order is dropped: the order for a later event has the same effect.
    pub fn await_quiet(&self, event: u64) {
        for orders in self.iter() {
            let _ = orders.try_give(WorkerOrder::Quiet(event));
        }
    }

    /// Last event of the manager for which no worker has an operation in flight that began before the event's changes.
    pub fn quiet(&self) -> u64 {
        workers::quiet_event(self.iter().map(|orders| orders.quiet().get()))
    }

    /// Number of the first worker that does not confirm within `wait_limit` that it takes orders; `None` if all do.
    pub fn silent(&self, wait_limit: Duration) -> Option<usize> {
        self.iter().position(|orders| !orders.is_alive(wait_limit))
    }

    /// The reports of all workers, by number; `None` if one does not answer in time.
    pub async fn reports(&self) -> Option<Vec<WorkerReport>> {
        let mut reports = Vec::with_capacity(self.count());
        for orders in self.iter() {
            reports.push(report(orders).await?);
        }
        Some(reports)
    }

    /// Returns the sessions of all workers, with the names of [`named`] and, if there are several workers, their
    /// numbers.
    pub async fn sessions(&self) -> Option<Vec<Session>> {
        Some(sessions_of(self.reports().await?))
    }

    /// Returns the sums of the workers' counters and, if there are several workers, the counters of each; `None` if one
    /// does not answer in time.
    pub async fn counters(&self) -> Option<AgentCounters> {
        Some(counters_of(self.reports().await?))
    }
}

fn sessions_of(reports: Vec<WorkerReport>) -> Vec<Session> {
    let several = reports.len() > 1;
    let sessions = reports.into_iter().enumerate().flat_map(|(index, report)| {
        let mut sessions = named(index, report.sessions);
        sessions.iter_mut().for_each(|session| session.worker = several.then_some(index));
        sessions
    });
    sessions.collect()
}

fn counters_of(reports: Vec<WorkerReport>) -> AgentCounters {
    let counters = reports.iter().map(|report| report.counters.clone());
    let all = counters.reduce(|sum, each| sum.plus(&each)).unwrap_or_default();
    if reports.len() < 2 {
        return AgentCounters { all, workers: Vec::new() };
    }
    let workers = reports.into_iter().enumerate().map(|(worker, report)| {
        let WorkerReport { cpu, cpu_time_ns, counters, .. } = report;
        WorkerCounters { worker, cpu, cpu_time_ns, counters }
    });
    AgentCounters { all, workers: workers.collect() }
}

/// Appends the worker's number to the names of its sessions, except for worker 0.
pub fn named(worker: usize, mut sessions: Vec<Session>) -> Vec<Session> {
    if worker > 0 {
        sessions.iter_mut().for_each(|session| session.status.peer += &format!(" worker {worker}"));
    }
    sessions
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::Receiver;

    use super::*;
    use crate::worker::sleeper::Waker;
    use cxloe_client::message::Counters;
    use cxloe_wire::session::RequesterStatus;

    const PEER: &str = "02:00:00:00:00:02";

    fn report(clients: usize, cpu: u32) -> WorkerReport {
        let status = RequesterStatus { peer: PEER.into(), ..RequesterStatus::default() };
        WorkerReport {
            cpu: Some(cpu),
            cpu_time_ns: 5,
            sessions: vec![Session { status, ..Session::default() }],
            counters: Counters { clients, ..Counters::default() },
        }
    }

    #[test]
    fn several_workers_are_reported_one_by_one_and_as_sums() {
        let counters = counters_of(vec![report(2, 4), report(3, 6)]);
        assert_eq!(counters.all.clients, 5);
        let each: Vec<_> =
            counters.workers.iter().map(|of| (of.worker, of.cpu, of.counters.clients)).collect();
        assert_eq!(each, [(0, Some(4), 2), (1, Some(6), 3)]);
        let sessions = sessions_of(vec![report(2, 4), report(3, 6)]);
        let each: Vec<_> =
            sessions.iter().map(|of| (of.worker, of.status.peer.as_str(), of.peer())).collect();
        assert_eq!(each, [(Some(0), PEER, PEER), (Some(1), "02:00:00:00:00:02 worker 1", PEER)]);
    }

    #[test]
    fn changes_that_a_worker_does_not_take_are_left_in_their_order() {
        let (channels, inboxes): (Vec<_>, Vec<_>) =
            (0..2).map(|_| Orders::channel(Waker::new().unwrap())).unzip();
        let workers = Workers::new(channels);
        while workers.get(1).unwrap().try_give(WorkerOrder::Quiet(0)).is_ok() {}
        let mut changes = VecDeque::from([AttachmentChange::Hold(true), AttachmentChange::Hold(false)]);
        assert!(workers.follow(&mut changes).is_err());
        assert_eq!(changes, [AttachmentChange::Hold(true), AttachmentChange::Hold(false)]);
        while inboxes[1].try_recv().is_ok() {}
        assert!(workers.follow(&mut changes).is_ok() && changes.is_empty());
        let followed = |inbox: &Receiver<WorkerOrder>| {
            let held = |order| match order {
                WorkerOrder::Follow(change) => Some(*change == AttachmentChange::Hold(true)),
                _ => None,
            };
            inbox.try_iter().filter_map(held).collect::<Vec<bool>>()
        };
        assert_eq!((followed(&inboxes[1]), followed(&inboxes[0]).last()), (vec![true, false], Some(&false)));
    }

    #[test]
    fn one_worker_is_not_named() {
        let counters = counters_of(vec![report(2, 4)]);
        assert_eq!((counters.all.clients, counters.workers.len()), (2, 0));
        let sessions = sessions_of(vec![report(2, 4)]);
        assert_eq!((sessions[0].worker, sessions[0].status.peer.as_str()), (None, PEER));
    }
}
