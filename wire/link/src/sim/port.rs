//! A port: where a node meets the network, with a rate each way and a receive FIFO.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::super::rate::{Line, Rate};
use cxloe_wire::frame::Mac;
use cxloe_wire::time::Time;

/// What a port is like. The default has no rate limits, MTU 1500 and a FIFO of 512 frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Bytes of a frame without its Ethernet header.
    pub mtu: usize,
    /// Rate of the wire from the port to the network; `None` takes no time.
    pub egress: Option<Rate>,
    /// Rate of the wire from the network to the port: where several senders meet; `None` takes no time.
    pub ingress: Option<Rate>,
    /// How long a frame may wait for the ingress wire (the switch's buffer, in time); longer, and it is lost.
    pub ingress_queue: Duration,
    /// Frames committed that have not left the port, at most: then slots are refused.
    pub tx_slots: usize,
    /// Frames the receive FIFO holds; what arrives beyond is lost.
    pub fifo_capacity: usize,
    /// Occupancy above which the FIFO says so
    /// ([`SimNetwork::on_threshold`](super::SimNetwork::on_threshold)): where a memory node would send PFC.
    pub fifo_threshold: usize,
}

impl Default for PortConfig {
    fn default() -> Self {
        PortConfig {
            mtu: 1500,
            egress: None,
            ingress: None,
            ingress_queue: Duration::from_millis(1),
            tx_slots: 2048,
            fifo_capacity: 512,
            fifo_threshold: 512,
        }
    }
}

/// A receive FIFO at a moment, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FifoState {
    /// In it now.
    pub occupancy: usize,
    /// The most that ever were.
    pub peak: usize,
    /// Lost because it was full.
    pub dropped: u64,
    /// Whether the occupancy is above [`PortConfig::fifo_threshold`].
    pub above: bool,
}

/// A port in use.
pub(super) struct Port {
    pub mac: Mac,
    pub config: PortConfig,
    pub open: bool,
    pub egress: Option<Line>,
    pub ingress: Option<Line>,
    /// When frames committed leave, for those that have not.
    departures: VecDeque<Time>,
    fifo: VecDeque<Vec<u8>>,
    /// Its length, for the link to look at without the network's lock.
    pub waiting: Arc<AtomicUsize>,
    peak: usize,
    dropped: u64,
    above: bool,
}

impl Port {
    /// A closed port.
    pub fn new(mac: Mac) -> Self {
        Port {
            mac,
            config: PortConfig::default(),
            open: false,
            egress: None,
            ingress: None,
            departures: VecDeque::new(),
            fifo: VecDeque::new(),
            waiting: Arc::default(),
            peak: 0,
            dropped: 0,
            above: false,
        }
    }

    pub fn open(&mut self, config: PortConfig) {
        *self = Port {
            config,
            open: true,
            egress: config.egress.map(Line::new),
            ingress: config.ingress.map(Line::new),
            ..Port::new(self.mac)
        };
    }

    /// Closes the port and gives back the frames it held.
    pub fn close(&mut self) -> impl Iterator<Item = Vec<u8>> {
        self.open = false;
        self.above = false;
        self.departures.clear();
        self.waiting.store(0, Ordering::Relaxed);
        self.fifo.drain(..)
    }

    /// Sends a frame of `len` bytes; returns when its last bit has left.
    pub fn depart(&mut self, len: usize, now: Time) -> Time {
        match &mut self.egress {
            None => now,
            Some(line) => {
                let at = line.carry(len, now);
                self.departures.push_back(at);
                at
            }
        }
    }

    /// Frames committed that have not left.
    pub fn departing(&mut self, now: Time) -> usize {
        while self.departures.front().is_some_and(|at| *at <= now) {
            self.departures.pop_front();
        }
        self.departures.len()
    }

    /// Puts a frame into the FIFO, or gives it back if that is full.
    pub fn push(&mut self, frame: Vec<u8>) -> Result<(), Vec<u8>> {
        if self.fifo.len() >= self.config.fifo_capacity {
            self.dropped += 1;
            return Err(frame);
        }
        self.fifo.push_back(frame);
        self.waiting.store(self.fifo.len(), Ordering::Release);
        self.peak = self.peak.max(self.fifo.len());
        Ok(())
    }

    pub fn last_arrived(&self) -> Option<&[u8]> {
        self.fifo.back().map(Vec::as_slice)
    }

    pub fn pop(&mut self) -> Option<Vec<u8>> {
        let frame = self.fifo.pop_front();
        self.waiting.store(self.fifo.len(), Ordering::Relaxed);
        frame
    }

    /// Notes which side of the threshold the occupancy is on; whether that has changed.
    pub fn crosses_threshold(&mut self) -> bool {
        let above = self.fifo.len() > self.config.fifo_threshold;
        std::mem::replace(&mut self.above, above) != above
    }

    pub fn fifo_state(&self) -> FifoState {
        FifoState { occupancy: self.fifo.len(), peak: self.peak, dropped: self.dropped, above: self.above }
    }
}
