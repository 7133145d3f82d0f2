//! Following the manager: registration, refusal of a manager whose store is older than this node's watermark, changes
//! of regions, acknowledgements. This module decides on the next request; its caller exchanges the messages.
//!
//! ```text
//!            next                    Registered               next
//!   Start ----------> Registering ---------------> Followed <------+ Synced: changes of regions
//!                         | Stale, or refused         | next       |
//!                         v      next                 v            |
//!                     Refusing ------> Refused     Syncing --------+--> RestartReason
//!                                         '--> RestartReason
//! ```
//!
//! Driven by the contract of all machines ([`cxloe_wire::machine`]). It has no deadline: how long an answer may take is
//! in the request, and the pause before another attempt is the caller's, who knows the network.
//!
//! ```text
//!   loop {
//!       let answer = send(follow.next(attachments, quiet));             // the output, one for each input
//!       let changes = follow.on_answer(answer, attachments)?;           // or a RestartReason
//!       store attachments; carry out the changes
//!   }
//! ```
//!
//! After any [`RestartReason`], and whenever the manager cannot be reached, the caller starts anew with
//! [`Follow::restart`] after a pause. Attached regions are served all the time.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use cxloe_fabric::api::{
    ComputeNodeRegistered, ComputeNodeSync, ComputeNodeSynced, NotFollowed, Party, RegisterComputeNode,
};
use cxloe_fabric::model::lineage::{self, Lacking};
use cxloe_wire::machine::{Deadline, StateMachine};

use crate::attachments::{AttachmentChange, Attachments};

/// Minimum and maximum time-out, in milliseconds, of the long poll while a region that the manager reclaims
/// is being drained. The first is short, so that the end of a drain is reported soon; each sync doubles it.
const ACKNOWLEDGE_MS_MIN: u64 = 10;
const ACKNOWLEDGE_MS_MAX: u64 = 200;

#[derive(Clone, Debug, PartialEq)]
pub enum ManagerRequest {
    /// Registers the node: `POST /v1/compute-nodes`.
    Register(RegisterComputeNode),
    /// Reports that this node does not follow the manager, which then lists the node as such. A failure is
    /// ignored: the answer is [`ManagerAnswer::Done`] even if the manager does not reply.
    NotFollowed(NotFollowed),
    /// Waits for changes: `POST /v1/compute-nodes/CN/sync`, a long poll.
    Sync(ComputeNodeSync),
}

#[derive(Clone, Debug)]
pub enum ManagerAnswer {
    /// Answer to a registration that the manager accepted.
    Registered(Box<ComputeNodeRegistered>),
    /// Answer to a registration: the manager found that its own store is older than this node's watermark.
    Stale,
    /// Answer to a sync: the node's regions, at the end of the long poll.
    Synced(Box<ComputeNodeSynced>),
    /// Answer to [`ManagerRequest::NotFollowed`], or the end of an attempt to send it.
    Done,
}

/// Reason why the node has to register again.
pub type RestartReason = cxloe_fabric::follow::Halt<Lacking>;

#[derive(Debug)]
enum FollowPhase {
    Start,
    Registering,
    Refusing(RestartReason),
    /// The refusal is being reported to the manager.
    Refused(RestartReason),
    Followed,
    Syncing,
}

/// State of a compute node's registration with the manager.
#[derive(Debug)]
pub struct Follow {
    node: RegisterComputeNode,
    phase: FollowPhase,
    registration: u64,
    /// Number of the manager's run with which this node is registered.
    run: u64,
    heartbeat_ms: u64,
    /// Number of the event up to which all changes have been carried out.
    after_event: u64,
    acknowledge_ms: u64,
}

impl Follow {
    /// State for a node that registers as `node`; each registration adds the present watermark.
    pub fn new(node: RegisterComputeNode) -> Follow {
        let acknowledge_ms = ACKNOWLEDGE_MS_MIN;
        let (registration, run, heartbeat_ms, after_event) = (0, 0, 1, 0);
        Follow {
            node,
            phase: FollowPhase::Start,
            registration,
            run,
            heartbeat_ms,
            after_event,
            acknowledge_ms,
        }
    }

    /// Starts anew: the next request is a registration.
    pub fn restart(&mut self) {
        self.phase = FollowPhase::Start;
    }

    /// Description of the node in the next registration.
    pub fn node(&self) -> &RegisterComputeNode {
        &self.node
    }

    pub fn node_mut(&mut self) -> &mut RegisterComputeNode {
        &mut self.node
    }

    /// Number of the present registration; each new registration increments it.
    pub fn registration(&self) -> u64 {
        self.registration
    }

    /// Number of the event up to which all changes have been carried out.
    pub fn after_event(&self) -> u64 {
        self.after_event
    }

    /// Whether this manager is refused, so that only a report of the refusal is sent.
    pub fn is_refusing(&self) -> bool {
        matches!(self.phase, FollowPhase::Refusing(_) | FollowPhase::Refused(_))
    }

    /// Whether node and manager have accepted each other.
    pub fn is_registered(&self) -> bool {
        matches!(self.phase, FollowPhase::Followed | FollowPhase::Syncing)
    }

    /// Whether a sync has been sent and not been answered.
    pub fn is_syncing(&self) -> bool {
        matches!(self.phase, FollowPhase::Syncing)
    }

    /// Returns the next request to the manager. `quiet` is the number of an event: the caller guarantees that every
    /// operation that began before this event was applied has ended.
    ///
    /// # Panics
    /// If the previous request has not been answered.
    pub fn next(&mut self, attachments: &Attachments, quiet: u64) -> ManagerRequest {
        match mem::replace(&mut self.phase, FollowPhase::Registering) {
            FollowPhase::Start => ManagerRequest::Register(RegisterComputeNode {
                seen: attachments.seen(),
                ..self.node.clone()
            }),
            FollowPhase::Refusing(why) => {
                self.phase = FollowPhase::Refused(why);
                ManagerRequest::NotFollowed(NotFollowed {
                    node: Party::ComputeNode(self.node.cn_id),
                    seen: attachments.seen(),
                    holds: attachments.holds(),
                })
            }
            FollowPhase::Followed => {
                self.phase = FollowPhase::Syncing;
                let wait_ms = if attachments.is_draining() {
                    let next = (self.acknowledge_ms * 2).min(ACKNOWLEDGE_MS_MAX);
                    mem::replace(&mut self.acknowledge_ms, next)
                } else {
                    self.acknowledge_ms = ACKNOWLEDGE_MS_MIN;
                    self.heartbeat_ms
                };
                ManagerRequest::Sync(ComputeNodeSync {
                    registration: self.registration,
                    after_event: self.after_event,
                    released: attachments.released(),
                    quiet,
                    settled: false,
                    wait_ms: wait_ms.clamp(1, self.heartbeat_ms),
                })
            }
            FollowPhase::Registering | FollowPhase::Refused(_) | FollowPhase::Syncing => {
                unreachable!("the request before is under way")
            }
        }
    }

    /// Handles the manager's answer. Returns the changes of attached regions; `attachments` must be stored on disk
    /// before they are carried out.
    ///
    /// # Errors
    /// The reason why the node has to register again; `attachments` are unchanged.
    pub fn on_answer(
        &mut self,
        answer: ManagerAnswer,
        attachments: &mut Attachments,
    ) -> Result<Vec<AttachmentChange>, RestartReason> {
        match (mem::replace(&mut self.phase, FollowPhase::Followed), answer) {
            (FollowPhase::Registering, ManagerAnswer::Registered(answer)) => {
                if let Err(lacking) = lineage::check(&answer.lineage, answer.watermark, attachments.seen()) {
                    // The store is older than what this node has seen, so this node does not follow the
                    // manager.
                    self.phase = FollowPhase::Refusing(lacking.into());
                    return Ok(Vec::new());
                }
                let is_given_up = lineage::is_given_up(&answer.lineage, answer.watermark, attachments.seen());
                (self.registration, self.run) = (answer.registration, answer.watermark.run);
                (self.heartbeat_ms, self.after_event) = (answer.heartbeat_ms.max(1), answer.after_event);
                attachments.set_manager_watermark(answer.watermark);
                let changes = match is_given_up {
                    true => attachments.follow_restored(&answer.regions, answer.held),
                    false => attachments.follow(&answer.regions, answer.held),
                };
                attachments.follow_devices(&answer.devices);
                Ok(changes)
            }
            (FollowPhase::Registering, ManagerAnswer::Stale) => {
                self.phase = FollowPhase::Refusing(RestartReason::Stale);
                Ok(Vec::new())
            }
            (FollowPhase::Refused(why), ManagerAnswer::Done) => Err(why),
            (FollowPhase::Syncing, ManagerAnswer::Synced(synced)) => {
                // The answer comes from another run of the manager, with which this node is not registered.
                if synced.watermark.run != self.run {
                    return Err(RestartReason::Anew);
                }
                let mut changes = Vec::new();
                if let Some(regions) = &synced.regions {
                    attachments.set_manager_watermark(synced.watermark);
                    changes = attachments.follow(regions, synced.held);
                    attachments.follow_devices(&synced.devices);
                }
                synced.errors.iter().for_each(|error| attachments.log_vppb_error(error));
                (self.heartbeat_ms, self.after_event) = (synced.heartbeat_ms.max(1), synced.after_event);
                Ok(changes)
            }
            _ => Err(RestartReason::Unexpected),
        }
    }
}

impl StateMachine for Follow {
    fn deadline(&self) -> Deadline {
        Deadline::NEVER
    }

    fn undrained(&self) -> Option<&'static str> {
        match self.phase {
            FollowPhase::Start | FollowPhase::Refusing(_) | FollowPhase::Followed => {
                Some("a request to the manager")
            }
            FollowPhase::Registering | FollowPhase::Refused(_) | FollowPhase::Syncing => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use cxloe_fabric::model::{CnId, LeaderTerm, Name, Watermark};

    use super::*;

    fn follow() -> Follow {
        Follow::new(RegisterComputeNode {
            cn_id: "02:00:00:00:00:01".parse::<CnId>().unwrap(),
            name: Name::new("cn0").unwrap(),
            udp: None,
            key: None,
            new_key: false,
            instance_id: 1,
            seen: Watermark::default(),
        })
    }

    fn registered(term: u64, revision: u64, run: u64) -> ManagerAnswer {
        let watermark = Watermark { term, revision, run };
        ManagerAnswer::Registered(Box::new(ComputeNodeRegistered {
            registration: 7,
            watermark,
            term,
            lineage: vec![LeaderTerm { term, run, first: 0, adopted: Vec::new() }],
            heartbeat_ms: 1000,
            after_event: revision,
            regions: Vec::new(),
            devices: Vec::new(),
            held: false,
        }))
    }

    #[test]
    fn a_manager_with_an_older_store_is_refused_and_left() {
        let (mut follow, mut attachments) = (follow(), Attachments::default());
        attachments.join(Some(Watermark { term: 3, revision: 40, run: 9 }));
        let ManagerRequest::Register(node) = follow.next(&attachments, 0) else { panic!("a registration") };
        assert_eq!(node.seen, Watermark { term: 3, revision: 40, run: 9 });
        assert_eq!(follow.undrained(), None, "the answer is waited for");
        assert_eq!(follow.on_answer(registered(1, 2, 5), &mut attachments), Ok(Vec::new()));
        assert_eq!(follow.undrained(), Some("a request to the manager"));
        let ManagerRequest::NotFollowed(body) = follow.next(&attachments, 0) else { panic!("a refusal") };
        assert_eq!((body.seen, follow.undrained()), (node.seen, None));
        let halt = follow.on_answer(ManagerAnswer::Done, &mut attachments).unwrap_err();
        assert!(matches!(halt, RestartReason::Refused(_)), "{halt}");
        assert_eq!(attachments.seen(), node.seen, "nothing was taken over");

        follow.restart();
        follow.next(&attachments, 0);
        assert_eq!(follow.on_answer(ManagerAnswer::Stale, &mut attachments), Ok(Vec::new()));
        assert!(matches!(follow.next(&attachments, 0), ManagerRequest::NotFollowed(_)));
        assert_eq!(follow.on_answer(ManagerAnswer::Done, &mut attachments), Err(RestartReason::Stale));
    }

    #[test]
    fn only_the_registration_with_a_store_whose_loss_was_given_up_lowers_an_epoch() {
        let (mut follow, mut attachments) = (follow(), Attachments::default());
        let at = |epoch| {
            let mut region = crate::attachments::tests::spread("a", 2 << 20, 1);
            region.epoch = epoch;
            vec![region]
        };
        let listing = |answer: ManagerAnswer, epoch, adopted: Vec<Watermark>| {
            let ManagerAnswer::Registered(mut answer) = answer else { panic!("a registration") };
            answer.regions = at(epoch);
            answer.lineage[0].adopted = adopted;
            ManagerAnswer::Registered(answer)
        };
        follow.next(&attachments, 0);
        follow.on_answer(listing(registered(1, 9, 5), 7, Vec::new()), &mut attachments).unwrap();
        let seen = attachments.seen();

        // The same run again, whose answer was overtaken; then an old store that is refused, and then adopted.
        for (answer, adopted, shown) in [
            (registered(1, 9, 5), Vec::new(), 7),
            (registered(2, 4, 6), Vec::new(), 7),
            (registered(2, 4, 6), vec![seen], 3),
        ] {
            follow.restart();
            follow.next(&attachments, 0);
            follow.on_answer(listing(answer, 3, adopted), &mut attachments).unwrap();
            assert_eq!(attachments.list()[0].epoch, shown);
        }
    }

    #[test]
    fn syncs_follow_a_registration_until_another_run_answers() {
        let (mut follow, mut attachments) = (follow(), Attachments::default());
        follow.next(&attachments, 0);
        follow.on_answer(registered(1, 2, 5), &mut attachments).unwrap();
        let ManagerRequest::Sync(sync) = follow.next(&attachments, 2) else { panic!("a sync") };
        assert_eq!((sync.registration, sync.after_event, sync.quiet, sync.wait_ms), (7, 2, 2, 1000));
        let synced = |run| {
            ManagerAnswer::Synced(Box::new(ComputeNodeSynced {
                term: 1,
                watermark: Watermark { term: 1, revision: 3, run },
                heartbeat_ms: 500,
                after_event: 3,
                regions: None,
                devices: Vec::new(),
                held: false,
                errors: Vec::new(),
            }))
        };
        assert_eq!(follow.on_answer(synced(5), &mut attachments), Ok(Vec::new()));
        assert_eq!(follow.after_event(), 3);
        assert!(matches!(follow.next(&attachments, 3), ManagerRequest::Sync(sync) if sync.wait_ms == 500));
        assert_eq!(follow.on_answer(synced(6), &mut attachments), Err(RestartReason::Anew));
        follow.restart();
        follow.next(&attachments, 0);
        assert_eq!(follow.on_answer(synced(5), &mut attachments), Err(RestartReason::Unexpected));
    }
}
