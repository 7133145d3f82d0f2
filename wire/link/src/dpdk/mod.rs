//! DPDK: a device that is driven without the kernel, by the optional plug-in of `wire/dpdk`.
//!
//! ```text
//!   DpdkLink --- plugin: functions of libcxloe_dpdk.so ---> DPDK's driver ---> card, or memory shared with a
//!   process
//!       |            (loaded when an interface is named dpdk:DEVICE)
//!       |------ burst: frames received last ---> queue: buffers to write to, frames received
//!       |------ device: names, DPDK's start, queues in use ---> steering: rules that lead frames to queues
//!       `------ counter: PFC frames that the device counts
//!   BareEnd: frames without a link, to measure
//! ```
//!
//! A frame is written and read in DPDK's own buffers. Arrivals cause no interrupt, so a thread that waits
//! polls the device, with short sleeps if the wait may be long. A link has one queue of each direction. The
//! links of a process share a device without locks: each has a queue of its own, to which the device passes
//! the frames for it.

#![expect(unsafe_code, reason = "the plug-in lends frames as raw pointers")]

mod bare;
mod burst;
mod counter;
mod device;
mod plugin;
mod queue;
mod steering;

use std::os::fd::RawFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cxloe_net::ETHERNET_HEADER;
use cxloe_net::rate::Rate;
use cxloe_wire::Transmit;
use cxloe_wire::frame::{Mac, vlan};

use crate::link_detail::LinkDetail;
use crate::{Link, LinkConfig, LinkCounters, LinkError, LinkInfo, OnFrame};
pub use bare::BareEnd;
use burst::Burst;
pub use counter::{DeviceCounter, pfc_counter};
pub use device::PREFIX;
use device::{Device, DeviceName};
use plugin::DeviceInfo;
pub use plugin::PLUGIN;
use queue::Queue;

/// Maximum sleep of a thread that waits for frames, as no interrupt ends the sleep.
const SLEEP_MAX: Duration = Duration::from_micros(50);

/// Time without a process at the other end of shared memory, after which the link is opened again.
const ALONE_MAX: Duration = Duration::from_millis(500);
/// Number of calls without a frame between two checks whether a process is at the other end.
const IDLE_CHECK: u32 = 4096;

/// Whether `interface` names a device of DPDK: it then begins with [`PREFIX`].
pub fn is_device(interface: &str) -> bool {
    interface.starts_with(PREFIX)
}

/// Description of a device, as its driver reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Address of the device, and of its first queue.
    pub mac: Mac,
    /// Number of queues that the device has in each direction.
    pub queues: u16,
    /// Name of DPDK's driver.
    pub driver: String,
    /// Whether frames can pass now: the port is open, and its link or the process at its other end is there.
    pub up: bool,
}

/// Loads the plug-in and describes the device of a link, without opening it.
///
/// # Errors
/// [`LinkError::Unsupported`]: the plug-in is missing or of another version, DPDK does not start, or there is
/// no such device.
pub fn look(config: &LinkConfig) -> Result<DeviceFacts, LinkError> {
    let device = device::find(&config.interface, config.queues)?;
    let (info, up) = (&device.info, device.plugin().is_up(device.port));
    Ok(DeviceFacts { mac: Mac(info.mac), queues: info.queues, driver: info.driver(), up })
}

/// Loads the plug-in and finds the device of an interface, for a process with `queues` links. Returns the device's
/// address and MTU.
pub(crate) fn address_and_mtu(interface: &str, queues: u32) -> Result<(Mac, usize), LinkError> {
    let device = device::find(interface, queues)?;
    Ok((Mac(device.info.mac), mtu(&device)))
}

/// Speed of a device's link or, while there is no link, of the fastest one that the device can have; `None` if the
/// driver reports neither, or there is no such device.
pub fn speed(interface: &str) -> Option<Rate> {
    speed_of(&device::find(interface, 1).ok()?.info)
}

fn speed_of(info: &DeviceInfo) -> Option<Rate> {
    let mbit = if info.speed > 0 { info.speed } else { info.fastest };
    Rate::bits_per_s(u64::from(mbit) * 1_000_000)
}

/// Name of the kernel's interface for the card that `interface` names, if the driver leaves the card to the
/// kernel. The kernel then has counters that DPDK does not have.
pub fn kernel_interface(interface: &str) -> Option<String> {
    DeviceName::parse(interface).ok()?.kernel_interface(Path::new("/sys"))
}

/// MTU of a device in bytes: the one in its name, or else the device's own.
fn mtu(Device { info, name, .. }: &Device) -> usize {
    if name.mtu > 0 { name.mtu.into() } else { info.mtu.into() }
}

/// Link over one queue pair of a device of DPDK.
pub struct DpdkLink {
    info: LinkInfo,
    ethertype: [u8; 2],
    tx: DpdkTransmit,
    counters: LinkCounters,
    /// Frames received last. Those that are left are for the next call of `receive`.
    burst: Burst,
    /// Whether the ring was looked at to show frames, so that the next call of `receive` need not look.
    looked: bool,
    /// Whether the link must be opened again to reconnect after the process at the other end was restarted.
    connects_by_opening: bool,
    /// Number of calls of `receive` that found nothing.
    idle: u32,
    /// Time since which no process has been at the other end; `None` while there is one.
    alone: Option<Instant>,
}

struct DpdkTransmit {
    queue: Queue,
    max_frame: usize,
    priority: Option<u8>,
    /// Length of the slot lent last; 0 if none is lent.
    lent: usize,
    /// Whether committed frames may wait to be sent.
    queued: bool,
    /// Whether the next frame is to be sent at its commit.
    hastened: bool,
    counters: LinkCounters,
}

impl DpdkLink {
    /// Opens a queue of the device that `config.interface` names.
    ///
    /// # Errors
    /// [`LinkError::Unsupported`]: the plug-in is missing or of another version, DPDK does not start, or the
    /// device does not exist, does not accept the configuration, or cannot pass frames to several queues.
    pub fn open(config: &LinkConfig) -> Result<DpdkLink, LinkError> {
        let name = &config.interface;
        let device = device::find(name, config.queues)?;
        let (queue, place) = Queue::take(config, &device)?;
        let mtu = mtu(&device);
        let max_frame = mtu + ETHERNET_HEADER;
        let state = if queue.is_up() { "up" } else { "no link yet" };
        let speed = match device.info.speed {
            0 => String::new(),
            speed => format!(", {speed} Mbit/s"),
        };
        let info = LinkInfo {
            backend: "dpdk",
            detail: format!("driver {}{speed}, {state}{place}", device.info.driver()),
            interface: name.clone(),
            mac: Mac(device.info.mac).shard(config.shard()),
            mtu,
            max_frame,
        };
        Ok(DpdkLink {
            info,
            ethertype: config.ethertype.to_be_bytes(),
            tx: DpdkTransmit {
                queue,
                max_frame,
                priority: config.priority,
                lent: 0,
                queued: false,
                hastened: false,
                counters: LinkCounters::default(),
            },
            counters: LinkCounters::default(),
            burst: Burst::default(),
            looked: false,
            connects_by_opening: device.name.connects_by_opening(),
            idle: 0,
            alone: None,
        })
    }

    /// Returns an error if there has been no process at the other end for [`ALONE_MAX`]; the error makes the caller
    /// open the link again.
    #[cold]
    fn check_other_end(&mut self) -> Result<(), LinkError> {
        if !self.connects_by_opening || self.tx.queue.is_up() {
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

    /// Passes at most `budget` frames of the burst; those for this node go to `on_frame`. Returns their number.
    #[inline]
    fn pass(&mut self, budget: usize, on_frame: &mut OnFrame<'_>) -> usize {
        let frames = self.burst.take(budget);
        for frame in frames {
            // SAFETY: the frame is valid until the next burst is received, and no other reference to it exists.
            let bytes = unsafe { std::slice::from_raw_parts_mut(frame.bytes, frame.length as usize) };
            let bytes = vlan::strip(bytes);
            let is_ours = bytes.len() >= ETHERNET_HEADER
                && bytes[12..14] == self.ethertype
                && bytes[..6] == self.info.mac.0;
            if !is_ours {
                self.counters.rx_foreign += 1;
                continue;
            }
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += bytes.len() as u64;
            on_frame(bytes, &mut self.tx);
        }
        frames.len()
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
        while received < budget {
            if !std::mem::take(&mut self.looked) {
                self.burst.fill(&mut self.tx.queue);
            }
            if self.burst.left() == 0 {
                self.idle = self.idle.wrapping_add(1);
                if self.idle.is_multiple_of(IDLE_CHECK) {
                    self.check_other_end()?;
                }
                break;
            }
            received += self.pass(budget - received, on_frame);
            // The ring is empty then, and answers would wait for another look at it.
            if !self.burst.was_full() {
                break;
            }
        }
        Ok(received)
    }

    #[inline]
    fn peek(&mut self, budget: usize, look: &mut dyn FnMut(&[u8])) {
        self.burst.fill(&mut self.tx.queue);
        self.looked = true;
        for frame in self.burst.rest().iter().take(budget) {
            // SAFETY: the frame is valid until the next burst is received, and nothing changes it meanwhile.
            look(unsafe { std::slice::from_raw_parts(frame.bytes, frame.length as usize) });
        }
    }

    /// Counts the frames received in advance and, from three on, those in the device's ring. With a driver that does not
    /// count these, the link sees no more than a burst.
    #[inline]
    fn holds(&mut self, count: usize) -> bool {
        let ahead = self.burst.left();
        // Callers ask for one or two frames in each round. The device's answer would take its time and change nothing.
        if ahead >= count || count <= 2 {
            return ahead >= count;
        }
        if let Some(in_ring) = self.tx.queue.waiting() {
            return ahead + in_ring >= count;
        }
        self.burst.fill(&mut self.tx.queue);
        self.burst.left() >= count
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
        loop {
            self.burst.fill(&mut self.tx.queue);
            let left = until.saturating_duration_since(Instant::now());
            if self.burst.left() > 0 || left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(SLEEP_MAX));
        }
    }

    fn readiness(&self) -> Option<RawFd> {
        None
    }

    fn sleep_max(&self) -> Duration {
        SLEEP_MAX
    }

    fn counters(&mut self) -> LinkCounters {
        let lost = self.tx.queue.count();
        LinkCounters {
            rx_dropped: lost.rx_missed + lost.rx_dropped,
            tx_errors: lost.tx_errors,
            ..self.counters.plus(&self.tx.counters)
        }
    }
}

impl DpdkTransmit {
    fn send(&mut self) {
        self.queued = self.queue.flush() > 0;
    }
}

impl Transmit for DpdkTransmit {
    #[inline]
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        if !(ETHERNET_HEADER..=self.max_frame).contains(&len) {
            return None;
        }
        let tag = if self.priority.is_some() { vlan::TAG_LEN } else { 0 };
        let Some(slot) = self.queue.slot(len + tag) else {
            self.counters.tx_full += 1;
            // Queued frames may be sent now, which frees slots.
            self.send();
            return None;
        };
        self.lent = len;
        // SAFETY: the plug-in lends as many bytes as were asked for, only to this caller, until they are
        // committed.
        Some(unsafe { &mut std::slice::from_raw_parts_mut(slot.as_ptr(), len + tag)[tag..] })
    }

    #[inline]
    fn hasten(&mut self) {
        self.hastened = true;
    }

    #[inline]
    fn commit(&mut self) {
        let len = std::mem::take(&mut self.lent);
        if len == 0 {
            return;
        }
        if let Some(priority) = self.priority {
            // SAFETY: the buffer was lent with this many bytes, and is not committed yet.
            let slot =
                unsafe { std::slice::from_raw_parts_mut(self.queue.lent().as_ptr(), len + vlan::TAG_LEN) };
            vlan::insert(slot, priority);
        }
        self.queue.commit();
        self.queued = true;
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += len as u64;
        if std::mem::take(&mut self.hastened) {
            self.send();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_a_link_has_the_speed_of_its_fastest() {
        let speed = |speed, fastest| {
            speed_of(&DeviceInfo { speed, fastest, ..DeviceInfo::default() }).map(|rate| rate.get())
        };
        assert_eq!(speed(10_000, 25_000), Some(10_000_000_000));
        assert_eq!(speed(0, 25_000), Some(25_000_000_000));
        assert_eq!(speed(0, 0), None);
    }
}
