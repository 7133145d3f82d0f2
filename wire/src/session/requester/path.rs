//! Longest frame that the path to a memory node carries. A switch between two links may carry shorter frames than both,
//! and drops the longer ones without a word; then sessions open, and pages never come.
//!
//! ```text
//!   Start of the session's longest frame  --unanswered twice-->  the next session has shorter frames
//!                                         --StartAck as long-->  both ways carry them
//!   narrow session: now and then a Ping of the length that was lost  --Pong as long-->  a session with long frames
//! ```

use core::time::Duration;

use crate::time::Time;

/// Frame lengths tried after the session's own: those of an Ethernet MTU of 1500, and of the smallest MTU of IPv6 and
/// of IPv4 (RFC 8200, section 5; RFC 791, section 3.2).
const SHORTER: [usize; 3] = [1514, 1294, 590];
/// Interval of Pings of the length that was lost.
const WIDEN_EVERY: Duration = Duration::from_secs(10);

/// Knowledge of the path, from Starts and Pings.
#[derive(Debug, Default)]
pub(super) struct PathLimit {
    /// Longest frame to request, if the path is narrower than the links.
    limit: Option<usize>,
    /// Length of the frames that are lost.
    lost: usize,
    /// Length of the last Start that was given up.
    given_up: Option<usize>,
    /// Whether a session has started within the limit. Before, the memory node may have stopped instead.
    confirmed: bool,
}

impl PathLimit {
    /// Longest frame to request over a link that carries frames of `link` bytes.
    pub fn request(&self, link: usize) -> usize {
        self.limit.map_or(link, |limit| limit.min(link))
    }

    /// Length of the frames that are lost, if a session of shorter ones has started.
    pub fn lost(&self) -> Option<usize> {
        (self.confirmed && self.limit.is_some()).then_some(self.lost)
    }

    /// Handles a Start of `frame` bytes that stayed unanswered after a HelloAck. One may be a coincidence; after a
    /// second of the same length the next session is to have shorter frames.
    pub fn start_given_up(&mut self, frame: usize) {
        if self.given_up.replace(frame) != Some(frame) {
            return;
        }
        if let Some(shorter) = SHORTER.into_iter().find(|shorter| *shorter < frame) {
            self.lost = self.lost.max(frame);
            self.limit = Some(shorter);
            self.confirmed = false;
            self.given_up = None;
        }
    }

    /// Handles a memory node that does not answer short frames either: returns `true` if the next Hello may ask for
    /// longer frames again, as the node was away.
    pub fn silent(&mut self) -> bool {
        self.given_up = None;
        let unproven = self.limit.is_some() && !self.confirmed;
        if unproven {
            self.widen();
        }
        unproven
    }

    /// Handles the start of a session: returns `true` if it is the first within a limit.
    pub fn started(&mut self) -> bool {
        self.given_up = None;
        let first = self.limit.is_some() && !self.confirmed;
        self.confirmed = self.limit.is_some();
        first
    }

    /// Time of the next Ping of the lost length after `now`; none if the path is not narrow.
    pub fn probe_at(&self, now: Time) -> Option<Time> {
        self.lost().map(|_| now + WIDEN_EVERY)
    }

    /// Handles a Pong of `len` bytes: returns `true` if the path carries the frames that were lost before.
    pub fn pong(&mut self, len: usize) -> bool {
        let wide = self.lost().is_some_and(|lost| len >= lost);
        if wide {
            self.widen();
        }
        wide
    }

    /// Forgets all about the path, as after a change of the link.
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
