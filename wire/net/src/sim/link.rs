//! A port as a [`Link`]. Frames are written into buffers and passed to the network at each flush; received
//! frames are taken in batches. So the network is locked once for each batch, and never while a frame is
//! handled.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{PortConfig, SimNetwork};
use crate::{ETHERNET_HEADER, Link, LinkCounters, LinkError, LinkInfo, OnFrame};
use cxloe_wire::Transmit;
use cxloe_wire::frame::Mac;

/// Maximum number of frames taken from the FIFO under one lock.
const BATCH: usize = 64;

/// Link of one port of a [`SimNetwork`]. Dropping the link closes the port; frames committed but not flushed
/// are lost.
pub struct SimLink {
    info: LinkInfo,
    batch: Vec<Vec<u8>>,
    /// Number of frames in the port's FIFO, readable without the network's lock.
    waiting: Arc<AtomicUsize>,
    sender: Sender,
    rx_frames: u64,
    rx_bytes: u64,
}

struct Sender {
    network: SimNetwork,
    port: usize,
    max_frame: usize,
    tx_slots: usize,
    /// Committed frames in order; if `lent` is true, the last one is the slot being written.
    staged: Vec<Vec<u8>>,
    lent: bool,
    spare: Vec<Vec<u8>>,
    /// Number of flushed frames that had not left the port at the last check.
    departing: usize,
    frames: u64,
    bytes: u64,
    full: u64,
}

impl SimLink {
    pub(super) fn new(
        network: SimNetwork,
        port: usize,
        waiting: Arc<AtomicUsize>,
        mac: Mac,
        config: &PortConfig,
        seed: u64,
    ) -> Self {
        let max_frame = config.mtu + ETHERNET_HEADER;
        let info = LinkInfo {
            backend: "sim",
            detail: format!("virtual time, seed {seed}"),
            interface: String::new(),
            mac,
            mtu: config.mtu,
            max_frame,
        };
        let sender = Sender {
            network,
            port,
            max_frame,
            tx_slots: config.tx_slots,
            staged: Vec::new(),
            lent: false,
            spare: Vec::new(),
            departing: 0,
            frames: 0,
            bytes: 0,
            full: 0,
        };
        SimLink { info, batch: Vec::with_capacity(BATCH), waiting, sender, rx_frames: 0, rx_bytes: 0 }
    }

    /// Handle to the network of this port, which advances its time.
    pub fn network(&self) -> &SimNetwork {
        &self.sender.network
    }
}

impl Sender {
    fn committed(&self) -> usize {
        self.staged.len() - usize::from(self.lent)
    }

    fn has_room(&mut self) -> bool {
        // The number of frames that have not left the port is read again, under the network's lock, only if the last
        // known number leaves no slot.
        if self.committed() + self.departing >= self.tx_slots {
            self.departing = self.network.net().departing(self.port);
        }
        self.committed() + self.departing < self.tx_slots
    }

    fn flush(&mut self) {
        let committed = self.committed();
        if committed == 0 {
            return;
        }
        let mut net = self.network.net();
        for frame in self.staged.drain(..committed) {
            net.send(self.port, frame);
            // One spare buffer is fetched for each frame passed on, so that the next slots need no lock.
            self.spare.push(net.buffer());
        }
        self.departing = net.departing(self.port);
    }
}

impl Transmit for Sender {
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.max_frame {
            return None;
        }
        if !self.has_room() {
            self.full += 1;
            return None;
        }
        if !self.lent {
            let buffer = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(self.max_frame));
            self.staged.push(buffer);
            self.lent = true;
        }
        let slot = self.staged.last_mut()?;
        slot.resize(len, 0);
        Some(slot)
    }

    fn commit(&mut self) {
        if self.lent {
            self.lent = false;
            self.frames += 1;
            self.bytes += self.staged.last().map_or(0, |frame| frame.len() as u64);
        }
    }
}

impl Link for SimLink {
    fn info(&self) -> &LinkInfo {
        &self.info
    }

    fn receive(&mut self, budget: usize, on_frame: &mut OnFrame<'_>) -> Result<usize, LinkError> {
        let mut received = 0;
        while received < budget && self.waiting.load(Ordering::Acquire) > 0 {
            let want = (budget - received).min(BATCH);
            let mut net = self.sender.network.net();
            while self.batch.len() < want
                && let Some(frame) = net.take(self.sender.port)
            {
                self.batch.push(frame);
            }
            // Unlocked before frames are handled, because the receiver may use the network.
            drop(net);
            let got = self.batch.len();
            for frame in &mut self.batch {
                self.rx_frames += 1;
                self.rx_bytes += frame.len() as u64;
                on_frame(frame, &mut self.sender);
            }
            if got > 0 {
                let mut net = self.sender.network.net();
                self.batch.drain(..).for_each(|frame| net.recycle(frame));
            }
            received += got;
            if got < want {
                break;
            }
        }
        Ok(received)
    }

    fn holds(&mut self, count: usize) -> bool {
        self.waiting.load(Ordering::Acquire) >= count
    }

    fn transmit(&mut self) -> &mut dyn Transmit {
        &mut self.sender
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.sender.flush();
        Ok(())
    }

    /// Returns at once, because only [`SimNetwork::step`] advances virtual time.
    fn wait(&mut self, _timeout: Duration) -> Result<(), LinkError> {
        Ok(())
    }

    fn readiness(&self) -> Option<RawFd> {
        None
    }

    /// Counts as [`LinkCounters::rx_dropped`] the frames that found the receive FIFO full.
    fn counters(&mut self) -> LinkCounters {
        let dropped = self.sender.network.fifo(self.info.mac).map_or(0, |fifo| fifo.dropped);
        LinkCounters {
            rx_frames: self.rx_frames,
            rx_bytes: self.rx_bytes,
            tx_frames: self.sender.frames,
            tx_bytes: self.sender.bytes,
            rx_dropped: dropped,
            tx_full: self.sender.full,
            ..LinkCounters::default()
        }
    }
}

impl Drop for SimLink {
    fn drop(&mut self) {
        self.sender.network.net().close(self.sender.port);
    }
}
