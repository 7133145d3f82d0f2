//! Orders from other threads of the agent (control) to the worker, over a bounded channel and a waker; and their
//! results.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, unbounded};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::sleeper::Waker;
use cxloe_client::message::{Counters, Session};
use cxloe_cn_core::attachments::{Attachment, AttachmentChange};
use cxloe_paging::Spaces;
use cxloe_rings::client::Client;
use cxloe_wire::frame::Mac;

/// Maximum number of orders that wait for one worker.
const ORDERS_MAX: usize = 1024;
/// Longest time for which another thread waits for room in the channel; the worker empties it every few milliseconds at
/// most. Tests fill the channel themselves, and do not wait.
const ORDER_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 0 } else { 5 });
/// Interval of attempts to give an order that must not be lost.
const OFFER_INTERVAL: Duration = Duration::from_millis(5);
/// Longest wait for the worker's report.
const REPORT_MAX: Duration = Duration::from_secs(8);

/// An order to the worker, carried out between two rounds.
#[derive(Debug)]
pub enum WorkerOrder {
    /// Apply a change of attached regions from the manager.
    Follow(Box<AttachmentChange>),
    /// Open sessions with the memory nodes of a region that another worker serves.
    OpenSessions(Box<Attachment>),
    /// Report when no operation is in flight that began before the worker applied the manager's changes up to the event
    /// of this number. Those changes were ordered before this.
    Quiet(u64),
    /// Serve the rings of a new client.
    Serve(Box<Client>),
    /// Confirm that the worker is alive.
    Sign(Sender<()>),
    /// Report sessions and counters.
    Report(oneshot::Sender<WorkerReport>),
    /// Run a function on mapped regions.
    Paging(PagingOrder),
}

/// A function on mapped regions. It runs in the worker's thread, so it must be short.
pub struct PagingOrder(pub Box<dyn FnOnce(&mut Spaces) + Send>);

impl std::fmt::Debug for PagingOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PagingOrder")
    }
}

/// Receiver of tickets (numbers of orders to drain a region). A ticket arrives when the worker has written back all of
/// the region's lines.
#[derive(Clone, Debug)]
pub struct DrainedTickets(Receiver<u64>);

impl DrainedTickets {
    /// Creates the channel for the tickets of all workers. It is unbounded, but never holds more tickets than there
    /// were orders to drain a region.
    pub fn channel() -> (Sender<u64>, DrainedTickets) {
        let (sender, receiver) = unbounded();
        (sender, DrainedTickets(receiver))
    }

    pub fn next(&self) -> Option<u64> {
        self.0.try_recv().ok()
    }
}

/// Report to the manager about a leg of a mirrored region (its copy on one memory node).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegReport {
    /// An address of the region.
    pub hpa: u64,
    /// Address of the leg's memory node.
    pub mac: Mac,
    /// Epoch of the region (the version of its legs) to which the report refers.
    pub epoch: u64,
    /// For a leg that now has all of the content: its first CMem address. `None` for a leg whose memory node does not
    /// answer.
    pub filled: Option<u64>,
}

/// Receiver of the reports of all workers about legs (copies of mirrored regions).
#[derive(Debug)]
pub struct LegReports {
    /// Channel of reports. If it is full, the report is dropped, and the engine repeats it later.
    pub reports: mpsc::Receiver<LegReport>,
    /// Number of workers that still run, or that have ended while a write was not complete on all copies.
    unsettled: Arc<AtomicUsize>,
}

impl LegReports {
    /// Whether all workers have ended, and every write that they made is complete.
    pub fn are_settled(&self) -> bool {
        self.unsettled.load(Ordering::Acquire) == 0
    }
}

/// Maximum number of reports queued for the manager.
const REPORTS_MAX: usize = 64;

/// Senders by which a worker reports to the agent's other threads without a request; each worker has a clone.
#[derive(Clone, Debug)]
pub struct WorkerResults {
    /// Sends the ticket of an order to drain a region, when all of the region's lines are written back.
    pub drained: Sender<u64>,
    /// Sends reports about legs (copies of mirrored regions).
    pub legs: mpsc::Sender<LegReport>,
    unsettled: Arc<AtomicUsize>,
}

impl WorkerResults {
    /// Creates the channels from `workers` workers to control.
    pub fn channels(workers: usize) -> (WorkerResults, DrainedTickets, LegReports) {
        let (legs, reports) = mpsc::channel(REPORTS_MAX);
        let (drained, tickets) = DrainedTickets::channel();
        let unsettled = Arc::new(AtomicUsize::new(workers));
        let results = WorkerResults { drained, legs, unsettled: Arc::clone(&unsettled) };
        (results, tickets, LegReports { reports, unsettled })
    }

    /// Records that a worker has ended, and that every write that it made is complete.
    pub fn settle(&self) {
        self.unsettled.fetch_sub(1, Ordering::Release);
    }
}

/// The manager counts its changes as events. This is the last event for which no operation is in flight that began
/// before the event's changes were applied.
#[derive(Clone, Debug, Default)]
pub struct QuietEvent(Arc<AtomicU64>);

impl QuietEvent {
    /// Number of the event; 0 before the first.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub fn set(&self, event: u64) {
        self.0.store(event, Ordering::Relaxed);
    }
}

#[derive(Clone, Debug, Default)]
pub struct WorkerReport {
    /// CPU on which the worker runs; `None` if the kernel does not report it.
    pub cpu: Option<u32>,
    /// CPU time of the worker's thread in nanoseconds.
    pub cpu_time_ns: u64,
    pub sessions: Vec<Session>,
    /// Counters since the start of the agent.
    pub counters: Counters,
}

/// Error: the worker has ended, or takes no orders any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the worker of this agent has ended or takes no orders")]
pub struct OrdersGone;

/// Runs a function on mapped regions in the worker's thread; `None` if the worker has ended.
pub async fn ask<T: Send + 'static>(
    orders: &Orders,
    what: impl FnOnce(&mut Spaces) -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = oneshot::channel();
    let order = PagingOrder(Box::new(move |spaces| drop(sender.send(what(spaces)))));
    orders.try_give(WorkerOrder::Paging(order)).ok()?;
    receiver.await.ok()
}

/// Runs a function on mapped regions in the worker's thread, as soon as the channel has room; `None` only if the worker
/// has ended.
pub async fn ask_until_taken<T: Send + 'static>(
    orders: &Orders,
    what: impl FnOnce(&mut Spaces) -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = oneshot::channel();
    let order = PagingOrder(Box::new(move |spaces| drop(sender.send(what(spaces)))));
    let mut refused = orders.offer(WorkerOrder::Paging(order));
    loop {
        match refused {
            Ok(()) => return receiver.await.ok(),
            Err(TrySendError::Disconnected(_)) => return None,
            Err(TrySendError::Full(order)) => {
                sleep(OFFER_INTERVAL).await;
                refused = orders.offer(order);
            }
        }
    }
}

/// Requests the worker's report; `None` if the worker does not answer in time.
pub async fn report(orders: &Orders) -> Option<WorkerReport> {
    let (sender, receiver) = oneshot::channel();
    orders.try_give(WorkerOrder::Report(sender)).ok()?;
    timeout(REPORT_MAX, receiver).await.ok()?.ok()
}

/// Sender of orders to the worker; clones share the channel.
#[derive(Clone, Debug)]
pub struct Orders {
    sender: Sender<WorkerOrder>,
    waker: Waker,
    quiet: QuietEvent,
}

impl Orders {
    /// Creates a channel to the worker, which `waker` wakes after each order.
    pub fn channel(waker: Waker) -> (Orders, Receiver<WorkerOrder>) {
        let (sender, receiver) = bounded(ORDERS_MAX);
        (Orders { sender, waker, quiet: QuietEvent::default() }, receiver)
    }

    /// Last event of the manager for which no operation is in flight that began before the event's changes were
    /// applied.
    pub fn quiet(&self) -> &QuietEvent {
        &self.quiet
    }

    /// Gives an order. Waits up to 5 s for room in the channel.
    ///
    /// # Errors
    /// [`OrdersGone`], also if there is still no room after 5 s.
    pub fn give(&self, order: WorkerOrder) -> Result<(), OrdersGone> {
        let given = self.sender.send_timeout(order, ORDER_TIMEOUT);
        self.waker.wake();
        given.map_err(|_| OrdersGone)
    }

    /// Gives an order without waiting for room in the channel.
    ///
    /// # Errors
    /// [`OrdersGone`], also when the channel has no room.
    pub fn try_give(&self, order: WorkerOrder) -> Result<(), OrdersGone> {
        self.offer(order).map_err(|_| OrdersGone)
    }

    /// Gives an order without waiting for room in the channel; an order that is not taken comes back in the error.
    fn offer(&self, order: WorkerOrder) -> Result<(), TrySendError<WorkerOrder>> {
        let given = self.sender.try_send(order);
        self.waker.wake();
        given
    }

    /// Whether the worker confirms within `wait_limit` that it takes orders.
    pub fn is_alive(&self, wait_limit: Duration) -> bool {
        let (sign, seen) = bounded(1);
        self.try_give(WorkerOrder::Sign(sign)).is_ok() && seen.recv_timeout(wait_limit).is_ok()
    }

    /// Wakes the worker without an order, so that it checks whether to stop.
    pub fn wake(&self) {
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time limit of the test, reached only if it fails.
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn an_order_that_must_not_be_lost_waits_for_room() {
        let (orders, inbox) = Orders::channel(Waker::new().unwrap());
        while orders.try_give(WorkerOrder::Quiet(0)).is_ok() {}
        let worker = async {
            let mut spaces = Spaces::new().unwrap();
            loop {
                match inbox.try_recv() {
                    Ok(WorkerOrder::Paging(PagingOrder(order))) => return order(&mut spaces),
                    Ok(_) => {}
                    Err(_) => sleep(OFFER_INTERVAL).await,
                }
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let both = async { tokio::join!(ask_until_taken(&orders, |spaces| spaces.is_empty()), worker) };
        let (answer, ()) = runtime.block_on(async { timeout(LONG, both).await }).unwrap();
        assert_eq!(answer, Some(true));
        drop(inbox);
        let ended = async { timeout(LONG, ask_until_taken(&orders, |_| ())).await };
        assert_eq!(runtime.block_on(ended).unwrap(), None);
    }
}
