//! The sending half of an AF_XDP link. Chunks are lent one frame at a time, passed to the kernel in the
//! transmit ring, and returned in the completion ring.
//!
//! A frame longer than a chunk takes adjacent chunks: it is written in one piece and described in several.

#![expect(unsafe_code, reason = "frames lie in memory shared with the kernel")]

use std::sync::Arc;

use super::parts::HAS_MORE;
use super::ring::{Addresses, Descriptors, Ring, Umem};
use cxloe_wire::Transmit;
use cxloe_wire::frame::vlan;

pub(super) struct TxSide {
    pub ring: Ring<Descriptors>,
    completion: Ring<Addresses>,
    /// Offsets of the free chunks.
    free: Vec<u64>,
    /// Offset of the first chunk for frames to send.
    first: u64,
    /// Number of chunks for each frame.
    parts: u32,
    /// For each frame, the number of its chunks that the kernel still holds; empty if a frame has only one
    /// chunk.
    away: Box<[u8]>,
    umem: Arc<Umem>,
    lent: usize,
    tag: usize,
    priority: u8,
    max_frame: usize,
    pub queued: u32,
    pub frames: u64,
    pub bytes: u64,
    pub full: u64,
}

impl TxSide {
    /// Makes the transmit side over the chunks of `umem` from index `first` on. Each frame gets `parts` adjacent
    /// chunks.
    pub fn new(
        (ring, completion): (Ring<Descriptors>, Ring<Addresses>),
        umem: Arc<Umem>,
        (first, parts): (u32, u32),
        max_frame: usize,
        priority: Option<u8>,
    ) -> TxSide {
        let (chunk, frames) = (umem.chunk() as u64, ring.entries() / parts);
        let first = u64::from(first) * chunk;
        TxSide {
            ring,
            completion,
            free: (0..frames).map(|i| first + u64::from(i * parts) * chunk).collect(),
            first,
            parts,
            away: vec![0; if parts > 1 { frames as usize } else { 0 }].into_boxed_slice(),
            umem,
            lent: 0,
            tag: if priority.is_some() { vlan::TAG_LEN } else { 0 },
            priority: priority.unwrap_or(0),
            max_frame,
            queued: 0,
            frames: 0,
            bytes: 0,
            full: 0,
        }
    }

    /// Frees the chunks of frames that the kernel has sent.
    fn reclaim(&mut self) {
        for _ in 0..self.completion.readable() {
            let chunk = self.completion.pop();
            if self.parts == 1 {
                self.free.push(chunk);
                continue;
            }
            let group = u64::from(self.parts) * self.umem.chunk() as u64;
            let index = chunk.wrapping_sub(self.first) / group;
            let Some(away) = self.away.get_mut(index as usize) else { continue };
            *away = away.saturating_sub(1);
            if *away == 0 {
                self.free.push(self.first + index * group);
            }
        }
        self.completion.consume();
    }

    /// Adds descriptors for the `len` bytes from `at` on to the transmit ring, one for each chunk.
    #[inline(never)]
    fn describe(&mut self, at: u64, len: usize) {
        let chunk = self.umem.chunk();
        let index = (at - self.first) / (u64::from(self.parts) * chunk as u64);
        let parts = len.div_ceil(chunk);
        if let Some(away) = self.away.get_mut(index as usize) {
            *away = parts as u8;
        }
        for part in 0..parts {
            let begin = part * chunk;
            let options = if part + 1 < parts { HAS_MORE } else { 0 };
            let len = (len - begin).min(chunk) as u32;
            self.ring.push(libc::xdp_desc { addr: at + begin as u64, len, options });
        }
    }
}

impl Transmit for TxSide {
    #[inline]
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.max_frame || len == 0 {
            return None;
        }
        if self.free.is_empty() {
            self.reclaim();
        }
        // The chunk stays on the free list until commit(), because a slot that is not committed is lent again.
        let Some(&chunk) = self.free.last() else {
            self.full += 1;
            return None;
        };
        self.lent = len;
        let slot = self.umem.span(chunk + self.tag as u64, len)?;
        // SAFETY: the chunks from this one on, as many as the longest frame needs, are on the free list. The
        // kernel does not access them until commit() passes them on.
        Some(unsafe { &mut *slot })
    }

    #[inline]
    fn commit(&mut self) {
        if self.lent == 0 {
            return;
        }
        let len = self.lent + self.tag;
        self.lent = 0;
        let Some(chunk) = self.free.pop() else { return };
        if self.tag != 0
            && let Some(frame) = self.umem.span(chunk, len)
        {
            // SAFETY: as in slot(): this side still owns the chunks.
            vlan::insert(unsafe { &mut *frame }, self.priority);
        }
        if self.parts == 1 {
            self.ring.push(libc::xdp_desc { addr: chunk, len: len as u32, options: 0 });
        } else {
            self.describe(chunk, len);
        }
        self.queued += 1;
        self.frames += 1;
        self.bytes += len as u64;
    }
}
