//! One queue of each direction of a device, by the plug-in's functions for it: buffers that frames are written to, and
//! bursts of frames received.

#![expect(unsafe_code, reason = "a queue of the plug-in is a raw pointer")]

use std::ffi::c_void;
use std::ptr::NonNull;

use super::device::{self, Device, QueueUse, TakenQueue};
use super::plugin::{BURST, DeviceCounters, Frame, Plugin};
use crate::{LinkConfig, LinkError};

/// Queue made by the plug-in; dropping the value frees the queue.
pub(super) struct Queue {
    plugin: &'static Plugin,
    port: u16,
    queue: NonNull<c_void>,
    /// Buffer lent last; valid until it is committed.
    lent: NonNull<u8>,
    // Dropped after the queue is freed: when the last use of a port is dropped, the port is stopped.
    _in_use: QueueUse,
}

// SAFETY: only one thread at a time has the queue, and the plug-in binds a queue to no thread.
unsafe impl Send for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the plug-in made the queue, and nothing uses it after this call.
        unsafe { (self.plugin.free)(self.queue.as_ptr()) }
    }
}

impl Queue {
    /// Takes the queue that `config` names, of a device that is opened if it is not open yet. Returns the queue, and a
    /// text on how frames reach it for the detail of a link.
    ///
    /// # Errors
    /// [`LinkError::Unsupported`]: the device does not accept the configuration, or there is no memory for the queue.
    pub fn take(config: &LinkConfig, device: &Device) -> Result<(Queue, String), LinkError> {
        let TakenQueue { plugin, number, in_use, steering, kernel } = device::take_queue(config, device)?;
        let queue = plugin.queue(device.port, number).ok_or_else(|| LinkError::Unsupported {
            backend: "dpdk",
            interface: config.interface.clone(),
            why: "no memory for a queue".into(),
        })?;
        let place = match config.queues {
            1 => String::new(),
            queues => format!("; queue {number} of {queues}{}", steering.describe()),
        };
        let queue = Queue { plugin, port: device.port, queue, lent: NonNull::dangling(), _in_use: in_use };
        Ok((queue, format!("{}{place}", kernel.describe())))
    }

    /// Whether frames can pass: the device has a link, or a process is at the other end.
    pub fn is_up(&self) -> bool {
        self.plugin.is_up(self.port)
    }

    /// Releases the frames received last, and receives at most a burst. Returns the number of frames. References to
    /// earlier frames must not exist any more.
    #[inline]
    pub fn receive(&mut self, frames: &mut [Frame; BURST]) -> usize {
        // SAFETY: the queue is live, and at most as many frames are written as `frames` has space for.
        let count =
            unsafe { (self.plugin.receive)(self.queue.as_ptr(), frames.as_mut_ptr(), BURST as u32) as usize };
        count.min(BURST)
    }

    /// Number of frames that wait in the device's ring; `None` if its driver does not count them.
    pub fn waiting(&mut self) -> Option<usize> {
        // SAFETY: the queue is live.
        let count = unsafe { (self.plugin.waiting)(self.queue.as_ptr()) };
        usize::try_from(count).ok()
    }

    /// Reads the counters of lost frames since the port was opened: those of this queue, and for the first queue also
    /// those of the device.
    pub fn count(&mut self) -> DeviceCounters {
        let mut counters = DeviceCounters::default();
        // SAFETY: the queue is live, and the counters outlive the call.
        unsafe { (self.plugin.count)(self.queue.as_ptr(), &mut counters) };
        counters
    }

    /// Lends a buffer for a frame of `len` bytes, the same one until it is committed; `None` if none is free.
    #[inline]
    pub fn slot(&mut self, len: usize) -> Option<NonNull<u8>> {
        // SAFETY: the queue is live.
        self.lent = NonNull::new(unsafe { (self.plugin.slot)(self.queue.as_ptr(), len as u32) })?;
        Some(self.lent)
    }

    /// Buffer lent last, until it is committed.
    pub fn lent(&self) -> NonNull<u8> {
        self.lent
    }

    /// Queues the buffer lent last.
    #[inline]
    pub fn commit(&mut self) {
        // SAFETY: the queue is live.
        unsafe { (self.plugin.commit)(self.queue.as_ptr()) }
    }

    /// Sends the queued frames. Returns the number of those that have not left.
    #[inline]
    pub fn flush(&mut self) -> usize {
        // SAFETY: the queue is live.
        unsafe { (self.plugin.flush)(self.queue.as_ptr()) as usize }
    }
}
