//! Latency of a request by the parts of Fig. 8, computed from time stamps of both ends.
//!
//! ```text
//!            CN                       Ethernet                        MN
//!   asked --a--> left --------------------b--------------> arrived --c--> access
//!    done <--f-- arrived <----------------e--------------- left <----d-----'
//! ```
//!
//! Both ends record their time stamps separately ([`RequesterTimestamps`], [`NodeTimestamps`]); afterwards
//! [`join`] matches them. All time stamps are from one clock, so that the six parts of a request add up to
//! its total exactly, in whole nanoseconds.

use std::collections::HashMap;

use serde::Serialize;

/// Name of each part in the paper, its meaning there, and the software's steps between its two time stamps.
pub const PARTS: [(&str, &str, &str); 6] = [
    (
        "a",
        "CXL agent to CN MAC",
        "line port called, until the frame is complete and the link is told to send",
    ),
    ("b", "Ethernet, there", "kernel, cable and the MN's ring, until its worker is handed the frame"),
    ("c", "MN MAC to DRAM", "checks, order and translation, until the pool is touched"),
    ("d", "DRAM to MN MAC", "copying the line, the answer with its checksum, until the link is told to send"),
    ("e", "Ethernet, back", "kernel, cable and the CN's ring, until the frame is handed over"),
    ("f", "CN MAC to CXL agent", "checks and order, until the caller has its answer"),
];

/// Time stamps of a request at the memory node, in nanoseconds of the common clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeTimestamps {
    /// CMem address of the line.
    pub addr: u64,
    pub write: bool,
    /// Time at which the worker received the frame.
    pub arrived: u64,
    /// Time just before the pool was accessed.
    pub access: u64,
    /// Time at which the answer was passed to the link.
    pub left: u64,
}

/// Time stamps of a request at the compute node, in nanoseconds of the common clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequesterTimestamps {
    /// CMem address of the line.
    pub addr: u64,
    pub write: bool,
    /// Time at which the operation was submitted.
    pub asked: u64,
    /// Time at which the request was passed to the link.
    pub left: u64,
    /// Time at which the answer's frame was received.
    pub arrived: u64,
    /// Time at which the operation completed.
    pub done: u64,
}

/// Parts of one request's latency, a to f, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LatencyParts(pub [u64; 6]);

impl LatencyParts {
    /// Computes the parts of a request from its time stamps at both ends; `None` if the time stamps are out
    /// of order.
    pub fn of(sent: &RequesterTimestamps, seen: &NodeTimestamps) -> Option<LatencyParts> {
        let moments = [sent.asked, sent.left, seen.arrived, seen.access, seen.left, sent.arrived, sent.done];
        let mut parts = [0; 6];
        for (part, pair) in parts.iter_mut().zip(moments.windows(2)) {
            *part = pair[1].checked_sub(pair[0])?;
        }
        Some(LatencyParts(parts))
    }

    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the latency of the Ethernet: the sum of parts b and e.
    pub fn network(&self) -> u64 {
        self.0[1] + self.0[4]
    }
}

/// Returns the parts of each request in `sent`, in the same order. A request has `None` if the memory node
/// received it never or more than once, which happens when a frame is lost and sent again.
pub fn join(sent: &[RequesterTimestamps], seen: &[NodeTimestamps]) -> Vec<Option<LatencyParts>> {
    let mut by_line: HashMap<(u64, bool), Vec<&NodeTimestamps>> = HashMap::new();
    for one in seen {
        by_line.entry((one.addr, one.write)).or_default().push(one);
    }
    let parts_of = |one: &RequesterTimestamps| {
        let candidates = by_line.get(&(one.addr, one.write))?;
        // The memory node may have recorded several requests for the same line. The right one is found by time: its
        // time stamps lie between those of the requester.
        let mut fitting = candidates.iter().filter_map(|seen| LatencyParts::of(one, seen));
        let parts = fitting.next()?;
        fitting.next().is_none().then_some(parts)
    };
    sent.iter().map(parts_of).collect()
}

/// Returns `count` evenly spread numbers below `of`, the first and the last included: the requests that Fig.
/// 9 and 10 show.
pub(crate) fn evenly(of: usize, count: usize) -> Vec<usize> {
    match (of, count.min(of)) {
        (0, _) | (_, 0) => Vec::new(),
        (_, 1) => vec![0],
        (of, count) => (0..count).map(|i| i * (of - 1) / (count - 1)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(addr: u64, at: u64) -> RequesterTimestamps {
        RequesterTimestamps {
            addr,
            write: false,
            asked: at,
            left: at + 200,
            arrived: at + 5_000,
            done: at + 5_100,
        }
    }

    fn seen(addr: u64, at: u64) -> NodeTimestamps {
        NodeTimestamps { addr, write: false, arrived: at + 2_200, access: at + 2_300, left: at + 2_450 }
    }

    #[test]
    fn parts_add_up_to_the_total() {
        let parts = LatencyParts::of(&sent(64, 1_000), &seen(64, 1_000)).unwrap();
        assert_eq!(parts, LatencyParts([200, 2_000, 100, 150, 2_550, 100]));
        assert_eq!((parts.total(), parts.network()), (5_100, 4_550));
    }

    #[test]
    fn moments_out_of_order_are_no_parts() {
        let late = NodeTimestamps { access: 9_000, ..seen(64, 1_000) };
        assert_eq!(LatencyParts::of(&sent(64, 1_000), &late), None);
        assert_eq!(LatencyParts::of(&sent(64, 2_500), &seen(64, 0)), None, "seen before it was sent");
    }

    #[test]
    fn both_ends_are_joined_by_line_and_time() {
        let write = RequesterTimestamps { write: true, ..sent(64, 30_000) };
        // The same line occurs twice, with another one between, and the memory node has recorded them in
        // another order.
        let at_cn = [sent(64, 0), sent(128, 10_000), sent(64, 20_000), write];
        let at_mn = [seen(128, 10_000), seen(64, 20_000), seen(64, 0)];
        let joined = join(&at_cn, &at_mn);
        let found: Vec<bool> = joined.iter().map(Option::is_some).collect();
        assert_eq!(
            found,
            [true, true, true, false],
            "the write was not seen: the read of its line is another"
        );
        assert!(joined.iter().flatten().all(|parts| parts.total() == 5_100));
    }

    #[test]
    fn what_was_seen_twice_is_left_out() {
        let again = NodeTimestamps { arrived: 2_500, access: 2_600, left: 2_700, ..seen(64, 0) };
        assert_eq!(join(&[sent(64, 0)], &[seen(64, 0), again]), [None]);
    }

    #[test]
    fn points_are_evenly_spread() {
        assert_eq!(evenly(10_000, 11), [0, 999, 1999, 2999, 3999, 4999, 5999, 6999, 7999, 8999, 9999]);
        assert_eq!(evenly(3, 11), [0, 1, 2]);
        assert!(evenly(0, 11).is_empty());
    }
}
