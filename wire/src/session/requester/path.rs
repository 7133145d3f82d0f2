//! Longest frame that the path to a memory node carries. A switch between the two links may carry shorter
//! frames than both and drop longer ones silently. Then a session would open, but pages would never arrive.
//!
//! ```text
//!   Start of the session's longest frame --unanswered twice-------> the next session has shorter frames
//!                                        --StartAck, same length--> the path carries them both ways
//!   narrow session: now and then a Ping of the lost length --Pong, same length--> a session with long frames
//! ```

use core::time::Duration;

use crate::time::Time;

/// Frame lengths tried after the session's own: those of an Ethernet MTU of 1500, of the smallest MTU of IPv6
/// (RFC 8200, section 5) and of the smallest of IPv4 (RFC 791, section 3.2).
const SHORTER: [usize; 3] = [1514, 1294, 590];
/// Interval between Pings of the length that was lost.
const WIDEN_EVERY: Duration = Duration::from_secs(10);

/// Limit on the frame length of a path, as found by Starts and Pings.
#[derive(Debug, Default)]
pub(super) struct PathLimit {
    /// Longest frame to ask for, if the path is narrower than the links.
    limit: Option<usize>,
    /// Length of the frames that are lost.
    lost: usize,
    /// Length of the last Start that was given up.
    given_up: Option<usize>,
    /// Whether a session has started within the limit. Until then, the losses may be due to a memory node
    /// that stopped.
    confirmed: bool,
}

impl PathLimit {
    /// Longest frame to ask for over a link that carries frames of `link` bytes.
    pub fn request(&self, link: usize) -> usize {
        self.limit.map_or(link, |limit| limit.min(link))
    }

    /// Length of the frames that are lost, if a session with shorter ones has started.
    pub fn lost(&self) -> Option<usize> {
        (self.confirmed && self.limit.is_some()).then_some(self.lost)
    }

    /// Records that a Start of `frame` bytes stayed unanswered after a HelloAck. The first one may be a
    /// coincidence; after a second one of the same length, the next session has shorter frames.
    pub fn start_given_up(&mut self, frame: usize) {
        if self.given_up.replace(frame) != Some(frame) {
            return;
        }
        if let Some(shorter) = SHORTER.into_iter().find(|shorter| *shorter < frame) {
            self.lost = self.lost.max(frame);
            self.limit = Some(shorter);
            self.confirmed = false;
            // The shorter length also gets two attempts.
            self.given_up = None;
        }
    }

    /// Records that the memory node does not answer Hellos either, although Hellos are short frames. Returns `true` if
    /// the next Hello may ask for longer frames again, because the node was unreachable and so the losses do not show
    /// that the path is narrow.
    pub fn silent(&mut self) -> bool {
        self.given_up = None;
        let unproven = self.limit.is_some() && !self.confirmed;
        if unproven {
            self.widen();
        }
        unproven
    }

    /// Records the start of a session. Returns `true` if it is the first one within a limit.
    pub fn started(&mut self) -> bool {
        self.given_up = None;
        let first = self.limit.is_some() && !self.confirmed;
        self.confirmed = self.limit.is_some();
        first
    }

    /// Time of the next Ping of the lost length after `now`; `None` if the path is not narrow.
    pub fn probe_at(&self, now: Time) -> Option<Time> {
        self.lost().map(|_| now + WIDEN_EVERY)
    }

    /// Records a Pong of `len` bytes. Returns `true` if it shows that the path carries the frames that were
    /// lost before.
    pub fn pong(&mut self, len: usize) -> bool {
        let wide = self.lost().is_some_and(|lost| len >= lost);
        if wide {
            self.widen();
        }
        wide
    }

    /// Removes the limit, as after a change of the link.
    pub fn widen(&mut self) {
        *self = PathLimit::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_starts_of_a_length_make_the_next_session_shorter() {
        let mut path = PathLimit::default();
        assert_eq!(path.request(4151), 4151);
        path.start_given_up(4151);
        assert_eq!((path.request(4151), path.lost()), (4151, None));
        path.start_given_up(4151);
        assert_eq!((path.request(4151), path.lost()), (1514, None), "not proven yet");
        assert_eq!(path.request(900), 900);
        assert!(path.started() && !path.started());
        assert_eq!(path.lost(), Some(4151));
        for (lost, then) in [(1514, 1294), (1294, 590), (590, 590), (590, 590)] {
            path.start_given_up(lost);
            path.start_given_up(lost);
            assert_eq!(path.request(4151), then);
        }
    }

    #[test]
    fn a_node_that_is_away_narrows_nothing() {
        let mut path = PathLimit::default();
        path.start_given_up(4151);
        assert!(!path.silent());
        path.start_given_up(4151);
        assert_eq!(path.request(4151), 4151, "not twice in a row");
        path.start_given_up(4151);
        assert!(path.silent());
        assert_eq!(path.request(4151), 4151);
    }

    #[test]
    fn a_proven_limit_stands_until_a_long_pong_comes() {
        let mut path = PathLimit::default();
        assert_eq!(path.probe_at(Time(5)), None);
        path.start_given_up(4151);
        path.start_given_up(4151);
        assert!(path.started());
        assert!(!path.silent(), "its memory node went away later");
        assert_eq!(path.probe_at(Time(5)), Some(Time(5) + WIDEN_EVERY));
        assert!(!path.pong(60) && path.pong(4151) && !path.pong(4151));
        assert_eq!((path.request(4151), path.lost()), (4151, None));
    }
}
