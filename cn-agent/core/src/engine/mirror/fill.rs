//! Filling of a mirror's leg (one of two copies of a range, each on a memory node): pages that the leg misses are
//! copied from the other leg.
//!
//! ```text
//!   page missed --locked, bit cleared--> Reading --all lines here--> Writing --acknowledged--> unlocked
//! ```
//!
//! Both halves of a copy use the streams of the page, behind the writes that were sent before the page was locked.
//! Writes of a locked page are refused as busy. Few pages are copied at once while programs have operations in flight.

use alloc::boxed::Box;
use alloc::vec::Vec;

use cxloe_wire::Transmit;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::time::Time;

use super::super::completer::Op;
use super::super::{Core, Engine, PeerSession};
use super::LegMode;

/// Maximum number of pages copied at once.
const PAGES_MAX: usize = 16;
/// Maximum number of pages copied at once while programs have operations in flight.
const PAGES_BESIDE_PROGRAMS: usize = 4;
const PAGE_LINES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// Lines are requested from the leg in sync.
    Reading,
    /// Lines are sent to the leg that is being filled.
    Writing,
}

struct PageCopy {
    phase: Phase,
    mirror: u16,
    /// Index of the leg that is being filled.
    side: usize,
    page: u64,
    /// Number of lines requested or sent so far, in the present phase.
    asked: usize,
    /// Number of lines read or acknowledged so far, in the present phase.
    done: usize,
    data: Box<[u8; PAGE_LINES * LINE_SIZE]>,
}

/// Copies of pages, for all mirrors.
#[derive(Default)]
pub(super) struct Fill {
    copies: Vec<PageCopy>,
    /// Number of copies that are not idle.
    busy: usize,
    /// Number of requests in flight for copies.
    in_flight: usize,
}

impl Fill {
    /// Whether a page is locked for writes, because it is being copied.
    #[inline]
    pub fn locks(&self, mirror: u16, page: u64) -> bool {
        let locked =
            |copy: &PageCopy| copy.phase != Phase::Idle && (copy.mirror, copy.page) == (mirror, page);
        self.busy > 0 && self.copies.iter().any(locked)
    }

    /// Whether pages of a mirror are being copied.
    pub fn has(&self, mirror: u16) -> bool {
        self.copies.iter().any(|copy| copy.phase != Phase::Idle && copy.mirror == mirror)
    }
}

impl Engine {
    /// Starts and continues copies for all legs that are being filled, within the windows.
    pub(super) fn advance_fill(&mut self, now: Time, tx: &mut dyn Transmit) {
        let filling = |leg: &super::MirrorLeg| leg.mode == LegMode::Filling;
        let mirrors = self.core.mirrors.list.iter().flatten();
        if self.core.mirrors.fill.busy == 0
            && !mirrors.into_iter().any(|mirror| mirror.legs.iter().any(filling))
        {
            return;
        }
        let programs = self.core.ops.used() > self.core.mirrors.fill.in_flight;
        let most = if programs { PAGES_BESIDE_PROGRAMS } else { PAGES_MAX };
        if self.core.mirrors.fill.copies.is_empty() {
            let idle = || PageCopy {
                phase: Phase::Idle,
                mirror: 0,
                side: 0,
                page: 0,
                asked: 0,
                done: 0,
                data: Box::new([0; PAGE_LINES * LINE_SIZE]),
            };
            self.core.mirrors.fill.copies.extend((0..PAGES_MAX).map(|_| idle()));
        }
        for index in 0..PAGES_MAX {
            if self.core.mirrors.fill.copies[index].phase == Phase::Idle
                && (self.core.mirrors.fill.busy >= most || !self.begin_copy(index))
            {
                continue;
            }
            self.send_copy(index, now, tx);
        }
    }

    /// Locks the next page that a leg being filled misses, and starts its copy. Returns `false` if no page is missed.
    fn begin_copy(&mut self, index: usize) -> bool {
        let mirrors = &mut self.core.mirrors;
        for (number, mirror) in mirrors.list.iter_mut().enumerate() {
            let Some(mirror) = mirror else { continue };
            let Some(side) = mirror.legs.iter().position(|leg| leg.mode == LegMode::Filling) else {
                continue;
            };
            let leg = &mut mirror.legs[side];
            let Some(word) = leg.missed.iter().position(|word| *word != 0) else { continue };
            let page = word as u64 * 64 + u64::from(leg.missed[word].trailing_zeros());
            // The page no longer counts as missed; `end_copy` sets the bit again if the copy fails.
            leg.has(page);
            let copy = &mut mirrors.fill.copies[index];
            (copy.phase, copy.mirror, copy.side, copy.page) = (Phase::Reading, number as u16, side, page);
            (copy.asked, copy.done) = (0, 0);
            mirrors.fill.busy += 1;
            return true;
        }
        false
    }

    /// Sends the requests of a copy, as far as windows and free slots permit.
    fn send_copy(&mut self, index: usize, now: Time, tx: &mut dyn Transmit) {
        loop {
            let copy = &self.core.mirrors.fill.copies[index];
            let Some(mirror) = self.core.mirrors.get(copy.mirror) else { return };
            let leg = match copy.phase {
                Phase::Reading => &mirror.legs[mirror.reads],
                Phase::Writing => &mirror.legs[copy.side],
                Phase::Idle => return,
            };
            let first = copy.asked;
            let cmem = leg.cmem + (copy.page << 12) + (first * LINE_SIZE) as u64;
            let peer = self.session_of(leg.peer, cmem);
            let requester = &self.peers[peer].requester;
            let most = match copy.phase {
                Phase::Reading => requester.burst_read_lines_max(),
                _ => requester.burst_write_lines_max(),
            };
            let lines = most.min(PAGE_LINES - first);
            if lines == 0 || self.core.ops.is_full() || self.may_send(peer, now).is_err() {
                return;
            }
            let op = Op::Fill { copy: index as u8, first: first as u8, lines: lines as u8 };
            let token = self.core.ops.insert(op);
            let stream = self.stream_of(cmem);
            let PeerSession { requester, queue, .. } = &mut self.peers[peer];
            tx.steer(*queue);
            let copy = &mut self.core.mirrors.fill.copies[index];
            let sent = match copy.phase {
                Phase::Reading => requester.burst_read(stream, cmem, lines as u8, token, now, tx),
                _ => {
                    let mask = if lines == 64 { u64::MAX } else { (1 << lines) - 1 };
                    let data = &copy.data[first * LINE_SIZE..(first + lines) * LINE_SIZE];
                    requester.burst_write(stream, cmem, mask, data, token, now, tx)
                }
            };
            if sent.is_err() {
                self.core.ops.remove(token);
                return;
            }
            copy.asked += lines;
            self.core.mirrors.fill.in_flight += 1;
            self.sent(peer);
        }
    }
}

impl Core {
    /// Stores lines that were read for a copy. When the page is complete, the copy continues with writing its lines.
    pub(in super::super) fn copy_read(&mut self, index: u8, first: u8, data: &[u8]) {
        let fill = &mut self.mirrors.fill;
        fill.in_flight -= 1;
        self.mirrors.pending = true;
        let Some(copy) = fill.copies.get_mut(usize::from(index)) else { return };
        let at = usize::from(first) * LINE_SIZE;
        if let Some(room) = copy.data.get_mut(at..at + data.len()) {
            room.copy_from_slice(data);
        }
        copy.done += data.len() / LINE_SIZE;
        if copy.done == PAGE_LINES {
            (copy.phase, copy.asked, copy.done) = (Phase::Writing, 0, 0);
        }
    }

    /// Counts lines of a copy that were acknowledged. With the last one, the copy ends and the page is
    /// unlocked.
    pub(in super::super) fn copy_written(&mut self, index: u8, lines: u8) {
        let fill = &mut self.mirrors.fill;
        fill.in_flight -= 1;
        self.mirrors.pending = true;
        let Some(copy) = fill.copies.get_mut(usize::from(index)) else { return };
        copy.done += usize::from(lines);
        if copy.done == PAGE_LINES {
            copy.phase = Phase::Idle;
            fill.busy -= 1;
        }
    }

    /// Ends a copy after the failure of a request, so that the leg misses the page again.
    #[cold]
    pub(in super::super) fn copy_failed(&mut self, index: u8) {
        self.mirrors.fill.in_flight -= 1;
        self.mirrors.pending = true;
        self.end_copy(usize::from(index));
    }

    /// Ends the copy of a page, so that the leg misses the page again; answers in flight are ignored.
    fn end_copy(&mut self, index: usize) {
        let fill = &mut self.mirrors.fill;
        let Some(copy) = fill.copies.get_mut(index).filter(|copy| copy.phase != Phase::Idle) else { return };
        copy.phase = Phase::Idle;
        fill.busy -= 1;
        let (mirror, side, page) = (copy.mirror, copy.side, copy.page);
        if let Some(mirror) = self.mirrors.get_mut(mirror) {
            mirror.legs[side].miss(page);
        }
        let mut ended = 0;
        for op in self.ops.iter_mut() {
            if matches!(op, Op::Fill { copy, .. } if usize::from(*copy) == index) {
                *op = Op::Nothing;
                ended += 1;
            }
        }
        self.mirrors.fill.in_flight -= ended;
    }

    pub(super) fn end_copies(&mut self, mirror: u16) {
        for index in 0..self.mirrors.fill.copies.len() {
            let copy = &self.mirrors.fill.copies[index];
            if copy.phase != Phase::Idle && copy.mirror == mirror {
                self.end_copy(index);
            }
        }
    }
}
