//! Check that no nonce is used twice under one key. A sealed frame contains a counter, which must grow from
//! one frame of a session to the next in each direction; so the check needs no key.
//!
//! A session's first frame in each direction has counter 0: the compute node's Start, after a HelloAck, and
//! the memory node's first frame after that Start. While a session is being replaced by another one, several
//! coexist, each with its own counters.

use std::collections::{HashMap, VecDeque};

use cxloe_wire::frame::{Axi, Command, FrameView, Gcm, Mac};

use crate::trace::Name;

/// Number of requests whose counters the planted fault remembers in order to repeat them.
const REMEMBERED_MAX: usize = 4096;

/// Maximum number of coexisting sessions between two nodes: the current session, and new ones that are to replace it.
const SESSIONS_MAX: usize = 4;

/// Counters of the frames that one node has sent to another.
#[derive(Default)]
struct SentCounters {
    /// Last counter of each live session, from the oldest session to the newest.
    sessions: Vec<u64>,
    /// Number of sessions that may begin in this direction, because handshake frames of the other node permit them.
    may_begin: u32,
}

impl SentCounters {
    /// Returns true if a frame with this counter can belong to a live session or begin a new one. A Start frame can
    /// belong to the newest session only.
    fn is_next(&mut self, counter: u64, start: bool) -> bool {
        if counter == 0 && self.may_begin > 0 {
            self.may_begin -= 1;
            if self.sessions.len() == SESSIONS_MAX {
                // The first session carries the requests until a newer one is open, so it is kept. Of the sessions that
                // were to replace it, the oldest was abandoned and is removed.
                self.sessions.remove(1);
            }
            self.sessions.push(0);
            return true;
        }
        if start {
            let newest = self.sessions.last_mut().filter(|last| **last < counter);
            return newest.map(|last| *last = counter).is_some();
        }
        // The frame belongs to the session with the highest last counter below the frame's counter; among several, to
        // the oldest session. A frame of a newer session ends the older ones.
        let closest = self.sessions.iter().filter(|last| **last < counter).max().copied();
        let Some(at) = self.sessions.iter().position(|last| Some(*last) == closest) else { return false };
        self.sessions[at] = counter;
        self.sessions.drain(..at);
        true
    }
}

/// Counters of all sessions in the network, checked frame by frame.
#[derive(Default)]
pub(crate) struct NonceWatch {
    sent: HashMap<(Mac, Mac), SentCounters>,
    broken: Option<String>,
}

/// Returns the offset of the counter in a sealed frame; `None` if the frame is too short for one.
fn counter_at(frame: &[u8]) -> Option<usize> {
    let at = FrameView::new_checked(frame).ok()?.body_len() + Gcm::TAG_LEN;
    (frame.len() >= at + Gcm::COUNTER_LEN).then_some(at)
}

fn counter(frame: &[u8]) -> Option<u64> {
    let at = counter_at(frame)?;
    let bytes: [u8; Gcm::COUNTER_LEN] = frame[at..at + Gcm::COUNTER_LEN].try_into().ok()?;
    Some(bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

impl NonceWatch {
    /// Returns the first violation found, if there is one.
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Records that `from` has sent a Start frame to `to`. After it, `to` may begin a session in the opposite
    /// direction.
    pub fn see_start(&mut self, from: Mac, to: Mac) {
        self.sent.entry((to, from)).or_default().may_begin += 1;
    }

    /// Records a frame that a node sends, and checks its counter.
    pub fn see(&mut self, frame: &[u8]) {
        let Ok(view) = FrameView::new_checked(frame) else { return };
        let (from, to, command) = (view.src(), view.dst(), view.command());
        match command {
            Some(Command::Hello | Command::Echo | Command::EchoReply) => return,
            Some(Command::HelloAck) => {
                self.sent.entry((to, from)).or_default().may_begin += 1;
                return;
            }
            Some(Command::Start) => self.see_start(from, to),
            _ => {}
        }
        let Some(counter) = counter(frame) else { return };
        let fine = self.sent.entry((from, to)).or_default().is_next(counter, command == Some(Command::Start));
        if !fine && self.broken.is_none() {
            let (from, to) = (Name(from), Name(to));
            self.broken = Some(format!("{from} repeats nonce {counter} to {to}: {command:?}"));
        }
    }
}

/// Identification of a request, equal for its retransmissions: source, destination, command code, sequence
/// number, AXI id.
type RequestId = (Mac, Mac, u8, u16, Axi);

/// The planted fault that nodes reuse a request's counter in retransmissions: the counter of the first
/// transmission is written into each later one.
#[derive(Default)]
pub(crate) struct NonceReuse {
    first: VecDeque<(RequestId, Vec<u8>)>,
}

impl NonceReuse {
    /// Changes the counter in a frame that a node sends, if the frame is a retransmission.
    pub fn change(&mut self, frame: &mut [u8]) {
        let Ok(view) = FrameView::new_checked(&*frame) else { return };
        let (Some(command), Some(at)) = (view.command(), counter_at(frame)) else { return };
        if command >= Command::Hello {
            return;
        }
        let request = (view.src(), view.dst(), view.code(), view.seq(), view.axi());
        let end = at + Gcm::COUNTER_LEN;
        match self.first.iter().find(|(known, _)| *known == request) {
            Some((_, before)) => frame[at..end].copy_from_slice(before),
            None => {
                if self.first.len() == REMEMBERED_MAX {
                    self.first.pop_front();
                }
                self.first.push_back((request, frame[at..end].to_vec()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_grow_within_sessions_and_begin_anew_with_the_next() {
        let mut sent = SentCounters::default();
        assert!(!sent.is_next(0, false), "nobody has offered anything");
        sent.may_begin = 1;
        assert!([0, 1, 2, 7].into_iter().all(|counter| sent.is_next(counter, false)));
        assert!(!sent.is_next(7, false) && !sent.is_next(3, false) && !sent.is_next(0, false));
        // A new session begins that is to replace the current one; the current one continues for now.
        sent.may_begin = 1;
        assert!([0, 8, 9, 1, 2].into_iter().all(|counter| sent.is_next(counter, false)));
        assert!(!sent.is_next(2, false), "the one before is over");
        // A session sends only its Start frame before the next session begins.
        sent.may_begin = 2;
        assert!([0, 0, 1, 1].into_iter().all(|counter| sent.is_next(counter, false)));
        assert!(!sent.is_next(1, false));
        // A repeated Start must not be taken for a frame of a live session with the same counters.
        sent.may_begin = 1;
        assert!([0, 1, 2, 3].into_iter().all(|counter| sent.is_next(counter, true)));
        assert!([2, 3, 4].into_iter().all(|counter| sent.is_next(counter, false)));
        assert!(!sent.is_next(3, true) && sent.is_next(4, true));
        // However often the replacing session restarts, the live session must not be removed like an abandoned one.
        let mut sent = SentCounters { may_begin: 1 + SESSIONS_MAX as u32, ..SentCounters::default() };
        assert!(sent.is_next(0, true) && sent.is_next(65, false));
        assert!((0..SESSIONS_MAX).all(|_| sent.is_next(0, true)));
        assert!(sent.is_next(1, true) && sent.is_next(66, false) && sent.is_next(67, false));
        assert!(sent.is_next(2, true) && !sent.is_next(2, true));
    }
}
