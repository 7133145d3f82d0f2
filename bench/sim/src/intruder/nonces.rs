//! No nonce twice under one key: sealed frames carry a counter, which has to grow from one frame of a session to the next in
//! each direction. Whoever watches the cables sees that without any key.
//!
//! A session's first frame bears the number 0: the compute node's Start, after a HelloAck; the memory node's first frame
//! after that Start. While a session is taken over there are several, each with a counter of its own.

use std::collections::{HashMap, VecDeque};

use cxloe_wire::frame::{Command, FrameView, Gcm, Mac};

use crate::trace::Name;

/// Requests whose counters are remembered, to be used again by mistake.
const REMEMBERED_MAX: usize = 4096;

/// Sessions of one end with the other that may go on at a time: the one there is, and those that are to take its place.
const SESSIONS_MAX: usize = 4;

/// What one end has sent to the other.
#[derive(Default)]
struct Sent {
    /// The last counter of each session that may go on, the oldest first.
    sessions: Vec<u64>,
    /// What the other end has done from which a new session follows, as often as it has.
    may_begin: u32,
}

impl Sent {
    /// Whether a frame with this counter can be of a session that goes on, or begins; a Start is of the newest.
    fn is_next(&mut self, counter: u64, start: bool) -> bool {
        if counter == 0 && self.may_begin > 0 {
            self.may_begin -= 1;
            if self.sessions.len() == SESSIONS_MAX {
                self.sessions.remove(0);
            }
            self.sessions.push(0);
            return true;
        }
        if start {
            let newest = self.sessions.last_mut().filter(|last| **last < counter);
            return newest.map(|last| *last = counter).is_some();
        }
        // The one that is closest, and of several the oldest. When a newer one goes on, older ones are over.
        let closest = self.sessions.iter().filter(|last| **last < counter).max().copied();
        let Some(at) = self.sessions.iter().position(|last| Some(*last) == closest) else { return false };
        self.sessions[at] = counter;
        self.sessions.drain(..at);
        true
    }
}

/// Watches the counters of all sessions.
#[derive(Default)]
pub(crate) struct NonceWatch {
    sent: HashMap<(Mac, Mac), Sent>,
    /// What was wrong first.
    broken: Option<String>,
}

/// The counter's place in a sealed frame.
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
    /// What was wrong, if something was.
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Somebody has sent a Start in the name of `from`.
    pub fn see_start(&mut self, from: Mac, to: Mac) {
        self.sent.entry((to, from)).or_default().may_begin += 1;
    }

    /// A node sends this frame.
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

/// From whom to whom, command, and place: sequence number and AXI id.
type Request = (Mac, Mac, u8, [u8; 4]);

/// The mistake of a node that sets its counter back when it sends a request again: puts the counter of the first time into
/// the frame.
#[derive(Default)]
pub(crate) struct SetBack {
    first: VecDeque<(Request, Vec<u8>)>,
}

impl SetBack {
    /// A node sends this frame.
    pub fn change(&mut self, frame: &mut [u8]) {
        let Ok(view) = FrameView::new_checked(&*frame) else { return };
        let (Some(command), Some(at)) = (view.command(), counter_at(frame)) else { return };
        if command >= Command::Hello {
            return;
        }
        let Some(place) = frame[15..].first_chunk::<4>() else { return };
        let request = (view.src(), view.dst(), view.code(), *place);
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
        let mut sent = Sent::default();
        assert!(!sent.is_next(0, false), "nobody has offered anything");
        sent.may_begin = 1;
        assert!([0, 1, 2, 7].into_iter().all(|counter| sent.is_next(counter, false)));
        assert!(!sent.is_next(7, false) && !sent.is_next(3, false) && !sent.is_next(0, false));
        // Another is to take over, and the one there is goes on meanwhile.
        sent.may_begin = 1;
        assert!([0, 8, 9, 1, 2].into_iter().all(|counter| sent.is_next(counter, false)));
        assert!(!sent.is_next(2, false), "the one before is over");
        // One that said nothing but its Start, and the next.
        sent.may_begin = 2;
        assert!([0, 0, 1, 1].into_iter().all(|counter| sent.is_next(counter, false)));
        assert!(!sent.is_next(1, false));
        // A Start that is said again and again is not the session's that goes on with the same numbers.
        sent.may_begin = 1;
        assert!([0, 1, 2, 3].into_iter().all(|counter| sent.is_next(counter, true)));
        assert!([2, 3, 4].into_iter().all(|counter| sent.is_next(counter, false)));
        assert!(!sent.is_next(3, true) && sent.is_next(4, true));
    }
}
