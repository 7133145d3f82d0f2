//! DPDK: a device without the kernel, by the optional plug-in of `wire/dpdk`.
//!
//! ```text
//!   DpdkLink --- plugin: functions of libcxloe_dpdk.so ---> DPDK's driver ---> card, or memory shared with a process
//!       |            (loaded when an interface is named dpdk:DEVICE)
//!       `------ device: names, DPDK's start, queues in use
//! ```
//!
//! A frame is written and read in DPDK's own buffers. Arrivals cause no interrupt: waiting is polling, with short sleeps
//! where it may take long. A link has one queue of each direction, and a node one link: DPDK's drivers steer
//! frames by rules of their own, which are not set here yet.

mod device;
mod plugin;

use std::ffi::c_void;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cxloe_net::ETHERNET_HEADER;
use cxloe_wire::Transmit;
use cxloe_wire::frame::{Mac, vlan};

use crate::link_detail::LinkDetail;
use crate::{Link, LinkConfig, LinkCounters, LinkError, LinkInfo, OnFrame};
pub use device::PREFIX;
use device::{Device, QueueUse};
pub use plugin::PLUGIN;
use plugin::{BURST, Frame, Plugin};

/// Longest sleep of a thread that waits for frames: no interrupt ends it.
const SLEEP_MAX: Duration = Duration::from_micros(50);

/// Time without a process at the other end after which a link is opened again.
const ALONE_MAX: Duration = Duration::from_millis(500);
/// Number of calls without a frame between two looks for that process.
const IDLE_CHECK: u32 = 4096;

/// Whether an interface is a device of DPDK.
pub fn is_device(interface: &str) -> bool {
    interface.starts_with(PREFIX)
}

/// Loads the plug-in and finds the device of an interface; returns its address and its MTU.
pub(crate) fn address_and_mtu(interface: &str) -> Result<(Mac, usize), LinkError> {
    let device = device::find(interface)?;
    Ok((Mac(device.info.mac), mtu(&device)))
}

/// MTU of a device in bytes: the one that is asked for, or else the device's.
fn mtu(Device { info, name, .. }: &Device) -> usize {
    if name.mtu > 0 { name.mtu.into() } else { info.mtu.into() }
}

/// A queue of a device.
pub struct DpdkLink {
    info: LinkInfo,
    ethertype: [u8; 2],
    port: u16,
    tx: DpdkTransmit,
    counters: LinkCounters,
    /// Frames received by a wait, for the next call of `receive`.
    waiting: Vec<Frame>,
    /// Whether the link has to be opened again to reach a process that has ended and come back.
    connects_by_opening: bool,
    /// Number of calls of `receive` that found nothing.
    idle: u32,
    /// Time since which there is no process at the other end.
    alone: Option<Instant>,
}

struct DpdkTransmit {
    queue: Queue,
    max_frame: usize,
    priority: Option<u8>,
    /// Length of the slot lent last; 0 if none is lent.
    lent: usize,
    /// Whether frames may wait to be sent.
    queued: bool,
    counters: LinkCounters,
}

/// A queue of the plug-in, which is freed when dropped.
struct Queue {
    plugin: &'static Plugin,
    queue: NonNull<c_void>,
    /// The buffer lent last; valid until it is committed.
    lent: *mut u8,
    // Dropped after the queue is freed: the port may be stopped then.
    _in_use: Arc<QueueUse>,
}

// SAFETY: one thread at a time has the queue, and the plug-in ties it to none.
unsafe impl Send for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the queue came from the plug-in, and is used no more.
        unsafe { (self.plugin.free)(self.queue.as_ptr()) }
    }
}

impl Queue {
    /// Receives up to `most` frames.
    #[inline]
    fn receive(&mut self, frames: &mut [Frame; BURST], most: usize) -> usize {
        // SAFETY: the queue is live; `frames` has room for a burst, and no more than `most` are written.
        unsafe {
            (self.plugin.receive)(self.queue.as_ptr(), frames.as_mut_ptr(), most.min(BURST) as u32) as usize
        }
    }

    /// Releases the frames received last.
    #[inline]
    fn release(&mut self) {
        // SAFETY: the queue is live, and none of its frames is referred to any more.
        unsafe { (self.plugin.release)(self.queue.as_ptr()) }
    }
}

impl DpdkLink {
    /// Opens a queue of the device that `config.interface` names.
    ///
    /// # Errors
    /// [`LinkError::Unsupported`]: the plug-in is missing or of another version, DPDK does not start, the device does not
    /// exist, or does not take the configuration.
    pub fn open(config: &LinkConfig) -> Result<DpdkLink, LinkError> {
        let name = &config.interface;
        let unsupported =
            |why: &str| LinkError::Unsupported { backend: "dpdk", interface: name.clone(), why: why.into() };
        if config.queues > 1 {
            return Err(unsupported("it serves one queue: leave --workers and --queues at 1"));
        }
        let device = device::find(name)?;
        let (plugin, in_use) = device::take_queue(name, &device, config.queue as u16, config.queues as u16)?;
        let queue = plugin
            .queue(device.port, config.queue as u16)
            .ok_or_else(|| unsupported("no memory for a queue"))?;
        let mtu = mtu(&device);
        let max_frame = mtu + ETHERNET_HEADER;
        let state = if plugin.is_up(device.port) { "up" } else { "no link yet" };
        let speed = match device.info.speed {
            0 => String::new(),
            speed => format!(", {speed} Mbit/s"),
        };
        let info = LinkInfo {
            backend: "dpdk",
            detail: format!("driver {}{speed}, {state}", device.info.driver()),
            interface: name.clone(),
            mac: Mac(device.info.mac),
            mtu,
            max_frame,
        };
        Ok(DpdkLink {
            info,
            ethertype: config.ethertype.to_be_bytes(),
            port: device.port,
            tx: DpdkTransmit {
                queue: Queue { plugin, queue, lent: std::ptr::null_mut(), _in_use: in_use },
                max_frame,
                priority: config.priority,
                lent: 0,
                queued: false,
                counters: LinkCounters::default(),
            },
            counters: LinkCounters::default(),
            waiting: Vec::with_capacity(BURST),
            connects_by_opening: device.name.connects_by_opening(),
            idle: 0,
            alone: None,
        })
    }

    /// Fails once no process has been at the other end for a time, so that the link is opened again.
    #[cold]
    fn check_other_end(&mut self) -> Result<(), LinkError> {
        if !self.connects_by_opening || self.tx.queue.plugin.is_up(self.port) {
            self.alone = None;
            return Ok(());
        }
        if self.alone.get_or_insert_with(Instant::now).elapsed() < ALONE_MAX {
            return Ok(());
        }
        Err(LinkError::Unsupported {
            backend: "dpdk",
            interface: self.info.interface.clone(),
            why: "no process is at the other end of the shared memory".into(),
        })
    }

    /// Passes frames to `on_frame` that are for this node, and releases all.
    #[inline]
    fn pass(&mut self, frames: &[Frame], on_frame: &mut OnFrame<'_>) {
        for frame in frames {
            // SAFETY: the frame is valid until it is released, which is below, and nobody else refers to it.
            let bytes = unsafe { std::slice::from_raw_parts_mut(frame.bytes, frame.length as usize) };
            let bytes = vlan::strip(bytes);
            let is_ours = bytes.len() >= ETHERNET_HEADER
                && bytes[12..14] == self.ethertype
                && (bytes[..6] == self.info.mac.0 || bytes[0] & 1 == 1);
            if !is_ours {
                self.counters.rx_foreign += 1;
                continue;
            }
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += bytes.len() as u64;
            on_frame(bytes, &mut self.tx);
        }
        self.tx.queue.release();
    }
}

impl LinkDetail for DpdkLink {
    fn detail(&mut self) -> &mut String {
        &mut self.info.detail
    }
}

impl Link for DpdkLink {
    fn info(&self) -> &LinkInfo {
        &self.info
    }

    #[inline]
    fn receive(&mut self, budget: usize, on_frame: &mut OnFrame<'_>) -> Result<usize, LinkError> {
        let mut received = 0;
        if !self.waiting.is_empty() {
            let frames = std::mem::take(&mut self.waiting);
            self.pass(&frames, on_frame);
            received += frames.len();
            self.waiting = frames;
            self.waiting.clear();
        }
        let mut frames = [Frame { bytes: std::ptr::null_mut(), length: 0 }; BURST];
        while received < budget {
            let count = self.tx.queue.receive(&mut frames, budget - received);
            if count == 0 {
                self.idle = self.idle.wrapping_add(1);
                if self.idle.is_multiple_of(IDLE_CHECK) {
                    self.check_other_end()?;
                }
                break;
            }
            self.pass(&frames[..count], on_frame);
            received += count;
        }
        Ok(received)
    }

    #[inline]
    fn transmit(&mut self) -> &mut dyn Transmit {
        &mut self.tx
    }

    #[inline]
    fn flush(&mut self) -> Result<(), LinkError> {
        if self.tx.queued {
            self.tx.send();
        }
        Ok(())
    }

    fn has_unsent(&mut self) -> bool {
        self.tx.queued
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        self.check_other_end()?;
        let until = Instant::now() + timeout;
        while self.waiting.is_empty() {
            let mut frames = [Frame { bytes: std::ptr::null_mut(), length: 0 }; BURST];
            let count = self.tx.queue.receive(&mut frames, BURST);
            self.waiting.extend_from_slice(&frames[..count]);
            let left = until.saturating_duration_since(Instant::now());
            if count > 0 || left.is_zero() {
                break;
            }
            thread::sleep(left.min(SLEEP_MAX));
        }
        Ok(())
    }

    fn readiness(&self) -> Option<RawFd> {
        None
    }

    fn sleep_max(&self) -> Duration {
        SLEEP_MAX
    }

    fn counters(&mut self) -> LinkCounters {
        let lost = self.tx.queue.plugin.count(self.port);
        LinkCounters {
            rx_dropped: lost.rx_missed + lost.rx_dropped,
            tx_errors: lost.tx_errors,
            ..self.counters.plus(&self.tx.counters)
        }
    }
}

impl DpdkTransmit {
    fn send(&mut self) {
        // SAFETY: the queue is live.
        self.queued = unsafe { (self.queue.plugin.flush)(self.queue.queue.as_ptr()) } > 0;
    }
}

impl Transmit for DpdkTransmit {
    #[inline]
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        if !(ETHERNET_HEADER..=self.max_frame).contains(&len) {
            return None;
        }
        let tag = if self.priority.is_some() { vlan::TAG_LEN } else { 0 };
        // SAFETY: the queue is live.
        let slot = unsafe { (self.queue.plugin.slot)(self.queue.queue.as_ptr(), (len + tag) as u32) };
        let Some(slot) = NonNull::new(slot) else {
            self.counters.tx_full += 1;
            // What is queued may leave now, and make room.
            self.send();
            return None;
        };
        self.lent = len;
        self.queue.lent = slot.as_ptr();
        // SAFETY: the plug-in lends as many bytes as were asked for, to this caller alone, until they are committed.
        Some(unsafe { &mut std::slice::from_raw_parts_mut(slot.as_ptr(), len + tag)[tag..] })
    }

    #[inline]
    fn commit(&mut self) {
        let len = std::mem::take(&mut self.lent);
        if len == 0 {
            return;
        }
        if let Some(priority) = self.priority {
            // SAFETY: the buffer was lent with so many bytes, and is not committed yet.
            let slot = unsafe { std::slice::from_raw_parts_mut(self.queue.lent, len + vlan::TAG_LEN) };
            vlan::insert(slot, priority);
        }
        // SAFETY: the queue is live.
        unsafe { (self.queue.plugin.commit)(self.queue.queue.as_ptr()) };
        self.queued = true;
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += len as u64;
    }
}
