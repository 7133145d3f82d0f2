//! Port of the simulated network: connects a node to it, with a rate in each direction and a receive FIFO.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::rate::{Rate, RatedWire};
use cxloe_wire::frame::Mac;
use cxloe_wire::time::Time;

/// Properties of a port. The default has no rate limits, MTU 1500 and a FIFO of 512 frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// MTU in bytes, without the Ethernet header.
    pub mtu: usize,
    /// Rate of the wire from the port to the network; `None` means that frames take no time.
    pub egress: Option<Rate>,
    /// Rate of the wire from the network to the port, shared by all senders; `None` means that frames take no
    /// time.
    pub ingress: Option<Rate>,
    /// Maximum wait of a frame for the ingress wire, which stands for the size of a switch's buffer. A frame
    /// that would wait longer is lost.
    pub ingress_queue: Duration,
    /// Maximum number of committed frames that have not left the port. When it is reached, no further slot is
    /// lent.
    pub tx_slots: usize,
    /// Capacity of the receive FIFO in frames; frames that arrive at a full FIFO are lost.
    pub fifo_capacity: usize,
    /// Number of frames in the FIFO above which the hook of
    /// [`SimNetwork::on_threshold`](super::SimNetwork::on_threshold) is called. A memory node would send PFC frames at
    /// that occupancy.
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

/// Occupancy and losses of a receive FIFO, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FifoState {
    /// Number of frames in the FIFO now.
    pub occupancy: usize,
    /// Highest occupancy since the port was attached.
    pub peak: usize,
    /// Frames lost because the FIFO was full.
    pub dropped: u64,
    /// Whether the occupancy is above [`PortConfig::fifo_threshold`].
    pub above: bool,
}

pub(super) struct Port {
    pub mac: Mac,
    pub config: PortConfig,
    pub open: bool,
    pub egress: Option<RatedWire>,
    pub ingress: Option<RatedWire>,
    /// Departure times of the committed frames still queued.
    departures: VecDeque<Time>,
    fifo: VecDeque<Vec<u8>>,
    /// Length of the FIFO, which the link reads without locking the network.
    pub waiting: Arc<AtomicUsize>,
    peak: usize,
    dropped: u64,
    above: bool,
}

impl Port {
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
            egress: config.egress.map(RatedWire::new),
            ingress: config.ingress.map(RatedWire::new),
            ..Port::new(self.mac)
        };
    }

    /// Closes the port and returns the frames in its FIFO, whose buffers are reused.
    pub fn close(&mut self) -> impl Iterator<Item = Vec<u8>> {
        self.open = false;
        self.above = false;
        self.departures.clear();
        self.waiting.store(0, Ordering::Relaxed);
        self.fifo.drain(..)
    }

    /// Sends a frame of `len` bytes. Returns the time at which its last bit has left.
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

    /// Number of committed frames that have not left at `now`.
    pub fn departing(&mut self, now: Time) -> usize {
        while self.departures.front().is_some_and(|at| *at <= now) {
            self.departures.pop_front();
        }
        self.departures.len()
    }

    /// Adds a frame to the FIFO, or returns it if the FIFO is full.
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

    /// Updates [`FifoState::above`], and returns whether it has changed.
    pub fn crosses_threshold(&mut self) -> bool {
        let above = self.fifo.len() > self.config.fifo_threshold;
        std::mem::replace(&mut self.above, above) != above
    }

    pub fn fifo_state(&self) -> FifoState {
        FifoState { occupancy: self.fifo.len(), peak: self.peak, dropped: self.dropped, above: self.above }
    }
}
