//! Filling of a mirror's leg (one of two copies of a range, each on a memory node): pages that the leg misses are
//! copied from the other leg.
//!
//! ```text
//!   page missed --locked, bit cleared--> Reading --all lines here--> Writing --acknowledged--> unlocked
//! ```
//!
//! Both halves of a copy use the streams of the page, behind the writes that were sent before the page was locked.
//! Writes of a locked page are refused as busy. The next page begins when one ends; `window` decides how many are copied
//! at once.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use cxloe_wire::Transmit;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::time::Time;

use super::super::completer::Op;
use super::super::{Core, Engine, PeerSession};
use super::window::{FillWindow, PAGES_MAX};
use super::{LegMode, Mirror, Mirrors};

const PAGE_LINES: usize = 64;
/// Maximum time after which requests for which there was no room, or no token, are tried again: a small part of a round
/// trip under load. Completions bring them forward.
const RETRY: Duration = Duration::from_micros(50);

// `Core::end_selected` has one bit for each copy.
const _: () = assert!(PAGES_MAX <= u64::BITS as usize);

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
    /// Time at which the page was locked.
    began: Time,
    data: Box<[u8; PAGE_LINES * LINE_SIZE]>,
}

/// Copies of pages, for all mirrors.
pub(super) struct Fill {
    /// [`PAGES_MAX`] copies once a mirror was made; none before.
    copies: Vec<PageCopy>,
    /// Number of copies that are not idle.
    busy: usize,
    /// Number of requests in flight for copies.
    in_flight: usize,
    window: FillWindow,
    /// Time at which requests for which there was no room, or no token, are tried again; the end of time if there are
    /// none.
    retry_at: Time,
}

impl Default for Fill {
    fn default() -> Self {
        Fill {
            copies: Vec::new(),
            busy: 0,
            in_flight: 0,
            window: FillWindow::new(),
            retry_at: Time(u64::MAX),
        }
    }
}

impl Fill {
    /// Makes room for the maximum number of pages; to be called before the first fill.
    pub fn reserve(&mut self) {
        let idle = || PageCopy {
            phase: Phase::Idle,
            mirror: 0,
            side: 0,
            page: 0,
            asked: 0,
            done: 0,
            began: Time::ZERO,
            data: Box::new([0; PAGE_LINES * LINE_SIZE]),
        };
        self.copies.resize_with(PAGES_MAX, idle);
    }

    /// Time at which requests are tried again for which there was no room or no token.
    #[inline]
    pub fn retry_at(&self) -> Time {
        self.retry_at
    }

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
    /// Continues copies, and starts new ones for all legs that are being filled, within the windows.
    pub(super) fn advance_fill(&mut self, now: Time, tx: &mut dyn Transmit) {
        self.core.mirrors.fill.retry_at = Time(u64::MAX);
        // An owed write may be one of a page that is to be read. It is sent with the next poll, which then comes here.
        if self.core.mirrors.owes() || !self.core.mirrors.fills() {
            return;
        }
        let programs = self.core.ops.used() > self.core.mirrors.fill.in_flight;
        let most = self.core.mirrors.fill.window.pages(programs, now);
        let mut short = false;
        // Pages that are locked go first, so that they are unlocked soon.
        for index in 0..self.core.mirrors.fill.copies.len() {
            short |= !self.send_copy(index, now, tx);
        }
        for index in 0..self.core.mirrors.fill.copies.len() {
            let fill = &self.core.mirrors.fill;
            if short || fill.busy >= most {
                break;
            }
            if fill.copies[index].phase == Phase::Idle {
                if !self.core.mirrors.begin_copy(index, now) {
                    break;
                }
                short = !self.send_copy(index, now, tx);
            }
        }
        let mirrors = &mut self.core.mirrors;
        if short {
            mirrors.fill.window.lack();
            mirrors.fill.retry_at = (now + RETRY).min(self.resume_at);
        } else if mirrors.fill.busy == 0 {
            // Nothing is missed any more, so the next check of the legs, which reports that, is due.
            mirrors.watch_at = now;
        }
    }

    /// Sends the requests of a copy. Returns `false` if there was no room, or no token, for one of them.
    fn send_copy(&mut self, index: usize, now: Time, tx: &mut dyn Transmit) -> bool {
        loop {
            let copy = &self.core.mirrors.fill.copies[index];
            let first = copy.asked;
            if copy.phase == Phase::Idle || first == PAGE_LINES {
                return true;
            }
            let Some(mirror) = self.core.mirrors.get(copy.mirror) else { return true };
            let leg = &mirror.legs[if copy.phase == Phase::Reading { mirror.reads } else { copy.side }];
            let cmem = leg.cmem + (copy.page << 12) + (first * LINE_SIZE) as u64;
            let peer = self.session_of(leg.peer, cmem);
            let requester = &self.peers[peer].requester;
            let most = match copy.phase {
                Phase::Reading => requester.burst_read_lines_max(),
                _ => requester.burst_write_lines_max(),
            };
            let lines = most.min(PAGE_LINES - first);
            if lines == 0 {
                // There is no session. The next check of the legs decides about the leg, or tries again.
                return true;
            }
            if self.core.ops.is_full() || self.may_send(peer, now).is_err() {
                return false;
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
                return false;
            }
            copy.asked += lines;
            self.core.mirrors.fill.in_flight += 1;
            self.sent(peer);
        }
    }
}

impl Mirrors {
    /// Whether pages are being copied, or a leg is being filled.
    fn fills(&self) -> bool {
        let filling = |mirror: &Mirror| mirror.legs.iter().any(|leg| leg.mode == LegMode::Filling);
        self.fill.busy > 0 || self.list.iter().flatten().any(filling)
    }

    /// Locks the next page that a leg being filled misses, and starts its copy. Returns `false` if no page is missed.
    fn begin_copy(&mut self, index: usize, now: Time) -> bool {
        let Mirrors { list, fill, .. } = self;
        for (number, mirror) in list.iter_mut().enumerate() {
            let Some(mirror) = mirror else { continue };
            let Some(side) = mirror.legs.iter().position(|leg| leg.mode == LegMode::Filling) else {
                continue;
            };
            // The page no longer counts as missed; `Core::end_selected` sets the bit again if the copy fails.
            let Some(page) = mirror.legs[side].missed.take() else { continue };
            let copy = &mut fill.copies[index];
            (copy.phase, copy.mirror, copy.side, copy.page) = (Phase::Reading, number as u16, side, page);
            (copy.asked, copy.done, copy.began) = (0, 0, now);
            fill.busy += 1;
            return true;
        }
        false
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
    pub(in super::super) fn copy_written(&mut self, index: u8, lines: u8, now: Time) {
        let fill = &mut self.mirrors.fill;
        fill.in_flight -= 1;
        self.mirrors.pending = true;
        let Some(copy) = fill.copies.get_mut(usize::from(index)) else { return };
        copy.done += usize::from(lines);
        if copy.done == PAGE_LINES {
            copy.phase = Phase::Idle;
            fill.busy -= 1;
            fill.window.copied(copy.began, now);
        }
    }

    /// Ends a copy after the failure of a request, so that the leg misses the page again.
    #[cold]
    pub(in super::super) fn copy_failed(&mut self, index: u8) {
        self.mirrors.fill.in_flight -= 1;
        self.mirrors.pending = true;
        self.end_selected(1 << index);
    }

    /// Ends the copies of all pages of a mirror.
    pub(super) fn end_copies(&mut self, mirror: u16) {
        let mut selected = 0;
        for (index, copy) in self.mirrors.fill.copies.iter().enumerate() {
            selected |= u64::from(copy.mirror == mirror) << index;
        }
        self.end_selected(selected);
    }

    /// Ends copies, one bit each, so that the legs miss the pages again; answers in flight are ignored.
    fn end_selected(&mut self, selected: u64) {
        let Core { ops, mirrors: Mirrors { fill, list, .. }, .. } = self;
        let mut ended = 0_u64;
        for (index, copy) in fill.copies.iter_mut().enumerate() {
            if selected >> index & 1 == 0 || copy.phase == Phase::Idle {
                continue;
            }
            copy.phase = Phase::Idle;
            fill.busy -= 1;
            ended |= 1 << index;
            if let Some(Some(mirror)) = list.get_mut(usize::from(copy.mirror)) {
                mirror.legs[copy.side].missed.insert(copy.page);
            }
        }
        if ended == 0 {
            return;
        }
        for op in ops.iter_mut() {
            if let Op::Fill { copy, .. } = *op
                && ended >> copy & 1 == 1
            {
                *op = Op::Nothing;
                fill.in_flight -= 1;
            }
        }
    }
}
