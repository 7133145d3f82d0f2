//! Tests of the worker over a link that delivers no frames and records the worker's calls.

use std::os::fd::RawFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use cxloe_cn_core::attach::{SessionKeys, SessionSettings};
use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::Engine;
use cxloe_cn_core::user_shares::UserShares;
use cxloe_link::keys::SYSTEM;
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Link, LinkCounters, LinkError, LinkHealth, LinkInfo, OnFrame};
use cxloe_port::signals::Signals;
use cxloe_wire::Transmit;
use cxloe_wire::frame::Mac;
use cxloe_wire::session::Timing;

use super::{WorkerHandle, WorkerOptions};
use crate::worker::order::{PagingOrder, WorkerOrder, WorkerResults};

/// Time limit of each step, reached only if the test fails.
const LONG: Duration = Duration::from_secs(20);
const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);

/// An activity of the worker that tests observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerActivity {
    Round,
    /// The worker carried out an order.
    Order,
    /// The worker is about to sleep.
    Sleep,
}

struct SilentLink(LinkInfo, Sender<WorkerActivity>);

impl Transmit for SilentLink {
    fn slot(&mut self, _len: usize) -> Option<&mut [u8]> {
        None
    }

    fn commit(&mut self) {}
}

impl Link for SilentLink {
    fn info(&self) -> &LinkInfo {
        &self.0
    }

    fn receive(&mut self, _budget: usize, _on_frame: &mut OnFrame<'_>) -> Result<usize, LinkError> {
        let _ = self.1.send(WorkerActivity::Round);
        Ok(0)
    }

    fn transmit(&mut self) -> &mut dyn Transmit {
        self
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    fn wait(&mut self, _timeout: Duration) -> Result<(), LinkError> {
        Ok(())
    }

    /// Records a sleep: the worker asks for the link's descriptor before each one.
    fn readiness(&self) -> Option<RawFd> {
        let _ = self.1.send(WorkerActivity::Sleep);
        None
    }

    fn counters(&mut self) -> LinkCounters {
        LinkCounters::default()
    }
}

/// Starts a worker that sleeps whenever it can. Also returns the receiver of the worker's activities, and a sender for
/// activities that tests add.
fn start() -> (WorkerHandle, Sender<WorkerActivity>, Receiver<WorkerActivity>) {
    let (sender, seen) = channel();
    let info = LinkInfo {
        backend: "silent",
        detail: String::new(),
        interface: String::new(),
        mac: OWN,
        mtu: 1500,
        max_frame: 1514,
    };
    let station = SessionSettings {
        own: OWN,
        ethertype: 0x88b5,
        max_frame: info.max_frame,
        streams: 1,
        instance: 1,
        key: None,
        keys: SessionKeys::none(SYSTEM),
        timing: Timing::default(),
    };
    let options = WorkerOptions {
        index: 0,
        station,
        health: LinkHealth::default(),
        wait: WaitStyle::Sleep,
        cpu: None,
        clients_max: 1,
        shares: UserShares::ALL,
    };
    let engine = Engine::new(CacheConfig::default());
    let link = Box::new(SilentLink(info, sender.clone()));
    let (results, _, _) = WorkerResults::channels(1);
    let worker = WorkerHandle::start(link, engine, Signals::default(), options, results, || {}).unwrap();
    (worker, sender, seen)
}

/// Tests that the worker runs a round after each order before it sleeps. An order may begin a transfer, and the worker
/// must not sleep before the transfer is handled: no event would wake it.
#[test]
fn a_round_follows_each_order_before_any_sleep() {
    let (worker, sender, seen) = start();
    for _ in 0..3 {
        // After this activity the worker is asleep, or about to sleep.
        while seen.recv_timeout(LONG).unwrap() != WorkerActivity::Sleep {}
        let sender = sender.clone();
        let order = PagingOrder(Box::new(move |_| {
            let _ = sender.send(WorkerActivity::Order);
        }));
        worker.orders().give(WorkerOrder::Paging(order)).unwrap();
        while seen.recv_timeout(LONG).unwrap() != WorkerActivity::Order {}
        assert_eq!(seen.recv_timeout(LONG), Ok(WorkerActivity::Round));
    }
    worker.stop();
    worker.join().unwrap();
}
