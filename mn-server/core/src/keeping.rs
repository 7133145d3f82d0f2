//! Rules by which a keeper process preserves a pool's memory between two processes of a memory node, without I/O.
//!
//! The keeper has the descriptor of the memory, which only one node process uses at a time: the *holder*. Another node
//! process gets the memory by [`Request::Want`] if there is no holder. For [`Request::Claim`], the keeper asks the
//! holder to end first.
//!
//! ```text
//!            keep            left (crash)                time is over
//!   Empty ---------> Held ----------------> Alone ---------------------> End
//!     | nothing comes  ^ |  ^                 | want, claim: memory
//!     v                | |  '-----------------'
//!    End               | | claim: the holder is asked to end; when it has left: memory for the claimant
//!                      '-'
//! ```

use std::time::Duration;

use cxloe_wire::time::Time;

/// Time within which the first holder has to send the memory's descriptor.
pub const EMPTY_MAX: Duration = Duration::from_secs(10);

/// Number of a node's connection to the keeper.
pub type NodeId = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Keep the memory whose descriptor is attached.
    Keep,
    /// Send the memory's descriptor, unless another node uses the memory.
    Want,
    /// Send the memory's descriptor when the node that uses the memory has ended, and ask that node to end.
    Claim,
    /// Free the memory: its holder has ended in order.
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The keeper has taken the descriptor.
    Kept,
    /// The node may use the memory whose descriptor is attached.
    Memory,
    /// Another node uses the memory or has claimed it.
    Held,
    /// The node is asked to end, so that another node can use the memory.
    Yield,
}

/// Next step for the keeper's I/O code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Answer(NodeId, Answer),
    /// Close the connection of a node that breaks the protocol.
    Refuse(NodeId),
    End,
}

/// State of a keeper: the holder of the memory, and the time until which memory without a holder is kept.
#[derive(Debug)]
pub struct Keeping {
    /// Time for which the memory is kept without a holder.
    keep: Duration,
    has_memory: bool,
    holder: Option<NodeId>,
    claimant: Option<NodeId>,
    ends_at: Option<Time>,
}

impl Keeping {
    /// Creates a keeper that has no memory yet. After the end of a holder, it keeps the memory for `keep`.
    pub fn new(keep: Duration, now: Time) -> Keeping {
        Keeping { keep, has_memory: false, holder: None, claimant: None, ends_at: Some(now + EMPTY_MAX) }
    }

    /// Time at which the keeper ends unless a node requests the memory earlier; `None` while there is a holder.
    pub fn ends_at(&self) -> Option<Time> {
        self.ends_at
    }

    /// Decides on a request of `node`; `with_memory` is `true` if a descriptor is attached.
    pub fn on_request(&mut self, node: NodeId, request: Request, with_memory: bool) -> Option<Action> {
        match request {
            Request::Keep if with_memory && !self.has_memory => {
                self.has_memory = true;
                self.hold(node);
                Some(Action::Answer(node, Answer::Kept))
            }
            Request::Want | Request::Claim if self.has_memory && self.holder.is_none() => {
                self.hold(node);
                Some(Action::Answer(node, Answer::Memory))
            }
            Request::Claim if self.has_memory && self.claimant.is_none() && self.holder != Some(node) => {
                self.claimant = Some(node);
                self.holder.map(|holder| Action::Answer(holder, Answer::Yield))
            }
            Request::Want | Request::Claim if self.has_memory => Some(Action::Answer(node, Answer::Held)),
            Request::Release if self.holder == Some(node) && self.claimant.is_none() => Some(Action::End),
            // Another node has claimed the memory, so the keeper passes the memory to that node and does not free it.
            Request::Release if self.holder == Some(node) => self.pass_on(),
            Request::Keep | Request::Want | Request::Claim | Request::Release => Some(Action::Refuse(node)),
        }
    }

    pub fn on_left(&mut self, node: NodeId, now: Time) -> Option<Action> {
        if self.claimant == Some(node) {
            self.claimant = None;
        }
        if self.holder != Some(node) {
            return None;
        }
        self.holder = None;
        self.ends_at = Some(now + self.keep);
        self.pass_on()
    }

    pub fn on_time(&mut self, now: Time) -> Option<Action> {
        self.ends_at.is_some_and(|at| now >= at).then_some(Action::End)
    }

    fn hold(&mut self, node: NodeId) {
        self.holder = Some(node);
        self.ends_at = None;
    }

    /// Gives the memory to the node that has claimed it, if any.
    fn pass_on(&mut self) -> Option<Action> {
        let claimant = self.claimant.take()?;
        self.hold(claimant);
        Some(Action::Answer(claimant, Answer::Memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn held() -> Keeping {
        let mut keeping = Keeping::new(KEEP, at(0));
        assert_eq!(keeping.on_request(1, Request::Keep, true), Some(Action::Answer(1, Answer::Kept)));
        assert_eq!(keeping.ends_at(), None);
        keeping
    }

    #[test]
    fn memory_is_freed_at_an_orderly_end() {
        let mut keeping = held();
        assert_eq!(keeping.on_request(2, Request::Release, false), Some(Action::Refuse(2)));
        assert_eq!(keeping.on_request(1, Request::Release, false), Some(Action::End));
    }

    #[test]
    fn memory_outlives_a_holder_that_left_for_a_time() {
        let mut keeping = held();
        assert_eq!(keeping.on_left(1, at(5)), None);
        assert_eq!(keeping.on_time(at(64)), None);
        assert_eq!(keeping.on_time(at(65)), Some(Action::End));
        assert_eq!(keeping.on_request(2, Request::Want, false), Some(Action::Answer(2, Answer::Memory)));
        assert_eq!(keeping.on_time(at(1000)), None, "it has a holder again");
    }

    #[test]
    fn one_node_at_a_time_has_the_use_of_it() {
        let mut keeping = held();
        for request in [Request::Want, Request::Claim] {
            let holder = keeping.on_request(1, request, false);
            assert_eq!(holder, Some(Action::Answer(1, Answer::Held)), "{request:?} of the holder");
        }
        assert_eq!(keeping.on_request(2, Request::Want, false), Some(Action::Answer(2, Answer::Held)));
        assert_eq!(keeping.on_request(2, Request::Claim, false), Some(Action::Answer(1, Answer::Yield)));
        assert_eq!(keeping.on_request(3, Request::Claim, false), Some(Action::Answer(3, Answer::Held)));
        assert_eq!(keeping.on_left(3, at(1)), None);
        assert_eq!(keeping.on_left(1, at(2)), Some(Action::Answer(2, Answer::Memory)));
        assert_eq!(keeping.ends_at(), None);
        assert_eq!(keeping.on_request(3, Request::Want, false), Some(Action::Answer(3, Answer::Held)));
    }

    #[test]
    fn a_holder_that_ends_in_order_passes_it_on_to_a_claimant() {
        let mut keeping = held();
        keeping.on_request(2, Request::Claim, false);
        assert_eq!(keeping.on_request(1, Request::Release, false), Some(Action::Answer(2, Answer::Memory)));
        assert_eq!(keeping.on_left(1, at(3)), None, "it holds nothing any more");
        assert_eq!(keeping.on_time(at(1000)), None);
    }

    #[test]
    fn a_claimant_that_leaves_is_forgotten() {
        let mut keeping = held();
        keeping.on_request(2, Request::Claim, false);
        keeping.on_left(2, at(1));
        assert_eq!(keeping.on_request(1, Request::Release, false), Some(Action::End));
    }

    #[test]
    fn what_breaks_the_protocol_is_refused() {
        let mut keeping = Keeping::new(KEEP, at(0));
        assert_eq!(keeping.on_request(1, Request::Keep, false), Some(Action::Refuse(1)), "without memory");
        assert_eq!(keeping.on_request(1, Request::Want, false), Some(Action::Refuse(1)), "nothing is kept");
        assert_eq!(keeping.on_time(at(10)), Some(Action::End), "nothing has come");
        let mut keeping = held();
        assert_eq!(keeping.on_request(2, Request::Keep, true), Some(Action::Refuse(2)), "there is memory");
    }
}
