//! What control tells the worker, over a bounded channel and a waker; and what it hears when that is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::sleeper::Waker;
use cxloe_client::message::{Counters, Session};
use cxloe_cn_core::attachments::Change;
use cxloe_paging::Spaces;
use cxloe_rings::client::Client;

/// Orders that may wait for the worker.
const ORDERS_MAX: usize = 1024;
/// How long control waits for room; the worker comes by every few milliseconds at most.
const ORDER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the worker may take to report.
const REPORT_MAX: Duration = Duration::from_secs(8);

/// Something for the worker to do.
#[derive(Debug)]
pub enum Order {
    /// What the manager's news demand of attached regions.
    Follow(Box<Change>),
    /// All that the manager has told up to this event is followed: say when no operation of before is on its way.
    Quiet(u64),
    /// Serve a client.
    Serve(Box<Client>),
    /// Say that the worker is alive.
    Sign(Sender<()>),
    /// Tell how things stand.
    Report(oneshot::Sender<Report>),
    /// Do something with mapped regions.
    Paging(PagingOrder),
}

/// Something to do with mapped regions, in the worker's thread: it must not take long.
pub struct PagingOrder(pub Box<dyn FnOnce(&mut Spaces) + Send>);

impl std::fmt::Debug for PagingOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PagingOrder")
    }
}

/// Tickets of regions that the worker has let go of.
#[derive(Clone, Debug)]
pub struct DrainedTickets(Receiver<u64>);

impl DrainedTickets {
    /// A channel from the worker; there are no more tickets in it than orders were given.
    pub fn channel() -> (Sender<u64>, DrainedTickets) {
        let (sender, receiver) = unbounded();
        (sender, DrainedTickets(receiver))
    }

    /// The oldest not yet taken.
    pub fn next(&self) -> Option<u64> {
        self.0.try_recv().ok()
    }
}

/// Up to which event no operation is on its way that was begun before it was heard of.
#[derive(Clone, Debug, Default)]
pub struct QuietEvent(Arc<AtomicU64>);

impl QuietEvent {
    /// The event; 0 before the first.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// So it is up to this event.
    pub fn set(&self, event: u64) {
        self.0.store(event, Ordering::Relaxed);
    }
}

/// How things stand.
#[derive(Clone, Debug)]
pub struct Report {
    /// The sessions.
    pub sessions: Vec<Session>,
    /// What was counted.
    pub counters: Counters,
}

/// The worker has ended, or does not come by any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the worker of this agent has ended or takes no orders")]
pub struct OrdersGone;

/// Has the worker do something with mapped regions; `None` when it has ended.
pub async fn ask<T: Send + 'static>(
    orders: &Orders,
    what: impl FnOnce(&mut Spaces) -> T + Send + 'static,
) -> Option<T> {
    let (tell, told) = oneshot::channel();
    let order = PagingOrder(Box::new(move |spaces| drop(tell.send(what(spaces)))));
    orders.try_give(Order::Paging(order)).ok()?;
    told.await.ok()
}

/// How the worker says that things stand; `None` when it does not.
pub async fn report(orders: &Orders) -> Option<Report> {
    let (tell, told) = oneshot::channel();
    orders.try_give(Order::Report(tell)).ok()?;
    timeout(REPORT_MAX, told).await.ok()?.ok()
}

/// Where orders are given.
#[derive(Clone, Debug)]
pub struct Orders {
    sender: Sender<Order>,
    waker: Waker,
    quiet: QuietEvent,
}

impl Orders {
    /// A channel whose other end is with the worker that `waker` wakes.
    pub fn channel(waker: Waker) -> (Orders, Receiver<Order>) {
        let (sender, receiver) = bounded(ORDERS_MAX);
        (Orders { sender, waker, quiet: QuietEvent::default() }, receiver)
    }

    /// Up to which event no operation of before is on its way.
    pub fn quiet(&self) -> &QuietEvent {
        &self.quiet
    }

    /// Gives an order; waits for room, for a bounded time.
    ///
    /// # Errors
    /// [`OrdersGone`].
    pub fn give(&self, order: Order) -> Result<(), OrdersGone> {
        let given = self.sender.send_timeout(order, ORDER_TIMEOUT);
        self.waker.wake();
        given.map_err(|_| OrdersGone)
    }

    /// Gives an order if there is room now.
    ///
    /// # Errors
    /// [`OrdersGone`] also when there is none.
    pub fn try_give(&self, order: Order) -> Result<(), OrdersGone> {
        let given = self.sender.try_send(order);
        self.waker.wake();
        given.map_err(|_| OrdersGone)
    }

    /// Whether the worker comes by within `patience`.
    pub fn is_alive(&self, patience: Duration) -> bool {
        let (sign, seen) = bounded(1);
        self.try_give(Order::Sign(sign)).is_ok() && seen.recv_timeout(patience).is_ok()
    }

    /// Wakes the worker without an order.
    pub fn wake(&self) {
        self.waker.wake();
    }
}
