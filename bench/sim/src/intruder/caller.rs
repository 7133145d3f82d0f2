//! An impostor: a station that requests a session from a compute node's address; only its key is wrong.

use std::time::Duration;

use cxloe_wire::Transmit;
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};
use cxloe_wire::machine::StateMachine;
use cxloe_wire::session::{Completions, Identity, KeyPair, OpError, Requester, RequesterConfig};
use cxloe_wire::time::Time;

use crate::node_keys;
use crate::plan::TIMING;
use crate::trace::Name;
use crate::violation::InvariantViolation;

/// Time after which the impostor abandons its request for a session.
const CALL_TIMEOUT: Duration = Duration::from_millis(8);

/// A session request that an impostor sends from a compute node's address.
pub struct Caller {
    requester: Requester,
    until: Time,
}

/// Receiver that discards completions, because the impostor's session has no operations.
struct DiscardCompletions;

impl Completions for DiscardCompletions {
    fn read(&mut self, _: u64, _: &[u8]) {}
    fn written(&mut self, _: u64) {}
    fn failed(&mut self, _: u64, _: OpError, _: &[u8]) {}
}

impl Caller {
    /// Begins a request for a session with `mn` from the address `cn`, with an unregistered key or, if
    /// `insecure`, without one.
    pub fn new(
        cn: Mac,
        mn: Mac,
        instance: u64,
        max_frame: usize,
        (insecure, seed): (bool, u64),
        now: Time,
    ) -> Caller {
        let peer = node_keys::key_of(mn).public();
        let keys = KeyPair { own: node_keys::unknown(), peer, epoch_ns: node_keys::EPOCH_NS };
        let mut requester = Requester::new(RequesterConfig {
            identity: Identity { own: cn, peer: mn, ethertype: ETHERTYPE_DEFAULT },
            max_frame,
            streams: 1,
            instance,
            key: None,
            keys: (!insecure).then_some(keys),
            timing: TIMING,
            seed: seed.into(),
        });
        requester.connect(now);
        Caller { requester, until: now + CALL_TIMEOUT }
    }

    pub fn deadline(&self) -> Time {
        self.requester.deadline().at.min(self.until)
    }

    pub fn is_over(&self, now: Time) -> bool {
        now >= self.until
    }

    /// Handles frames that were sent to the compute node's address, and continues the request.
    ///
    /// # Errors
    /// Returns a violation if the memory node opens a session.
    pub fn work(
        &mut self,
        overheard: Vec<Vec<u8>>,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), InvariantViolation> {
        let requester = &mut self.requester;
        for mut frame in overheard {
            requester.handle(&mut frame, now, tx, &mut DiscardCompletions);
        }
        while let Some(job) = requester.poll_handshake() {
            requester.handshake_done(job.run(), now);
        }
        if requester.deadline().is_due(now) {
            requester.poll(now, tx, &mut DiscardCompletions);
        }
        if requester.is_open() {
            let Identity { own, peer, .. } = requester.identity();
            let (cn, mn) = (Name(own), Name(peer));
            let what =
                if requester.integrity() == "sealed" { "an unknown key" } else { "somebody without a key" };
            return Err(InvariantViolation::Rule(format!(
                "{mn} accepts {what}: somebody has a session as {cn}"
            )));
        }
        Ok(())
    }
}
