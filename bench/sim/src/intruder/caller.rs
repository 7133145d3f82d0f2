//! A session asked for in the name of a compute node, with all that is known of it but its key.

use std::time::Duration;

use cxloe_wire::Transmit;
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};
use cxloe_wire::session::{Completions, Identity, KeyPair, OpError, Requester, RequesterConfig};
use cxloe_wire::time::Time;

use crate::broken::Broken;
use crate::node_keys;
use crate::plan::TIMING;
use crate::trace::Name;

/// How long it tries.
const PATIENCE: Duration = Duration::from_millis(8);

/// Who asks.
pub struct Caller {
    requester: Requester,
    until: Time,
}

/// Nothing is ever asked for.
struct Nothing;

impl Completions for Nothing {
    fn read(&mut self, _: u64, _: &[u8]) {}
    fn written(&mut self, _: u64) {}
    fn failed(&mut self, _: u64, _: OpError, _: &[u8]) {}
}

impl Caller {
    /// Shows a key that nobody knows, or `insecure` none at all.
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
        Caller { requester, until: now + PATIENCE }
    }

    pub fn deadline(&self) -> Time {
        self.requester.deadline().min(self.until)
    }

    pub fn is_over(&self, now: Time) -> bool {
        now >= self.until
    }

    /// Takes what was said to the compute node, and goes on.
    pub fn work(&mut self, overheard: Vec<Vec<u8>>, now: Time, tx: &mut dyn Transmit) -> Result<(), Broken> {
        let requester = &mut self.requester;
        for mut frame in overheard {
            requester.handle(&mut frame, now, tx, &mut Nothing);
        }
        while let Some(job) = requester.poll_handshake() {
            requester.handshake_done(job.run(), now);
        }
        if now >= requester.deadline() {
            requester.poll(now, tx, &mut Nothing);
        }
        if requester.is_open() {
            let Identity { own, peer, .. } = requester.identity();
            let (cn, mn) = (Name(own), Name(peer));
            let what =
                if requester.integrity() == "sealed" { "an unknown key" } else { "somebody without a key" };
            return Err(Broken::Rule(format!("{mn} accepts {what}: somebody has a session as {cn}")));
        }
        Ok(())
    }
}
