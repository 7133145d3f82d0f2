//! Actions of the unauthorised station, and revocations of keys.

use cxloe_wire::frame::Mac;
use cxloe_wire::time::Time;

use super::World;
use crate::compute_node::ComputeNode;
use crate::fault::Fault;
use crate::intruder::Intruder;
use crate::violation::InvariantViolation;

impl World<'_> {
    /// Lets the unauthorised station perform an action against compute node `cn` and memory node `mn`.
    pub(super) fn intrude(&mut self, what: Fault, cn: usize, mn: usize, now: Time) {
        let Some(intruder) = &mut self.intruder else { return };
        let addresses: Vec<Mac> = self.cns.iter().flat_map(ComputeNode::addresses).collect();
        // A node whose key is revoked must not get a session without a key either.
        let insecure = self.random.below(3) == 0 || what == Fault::Revocation;
        let (victim, node) = (self.cns[cn].mac, &mut self.mns[mn]);
        let figures = &mut self.tally.figures;
        let done = match what {
            Fault::Forgery => {
                let sent = intruder.forge();
                figures.forged += sent;
                format!("{sent} forged frames")
            }
            Fault::Replay => {
                let sent = intruder.replay();
                figures.replayed += sent;
                format!("{sent} frames come again")
            }
            Fault::Flood => {
                let sent = intruder.flood(node.mac, &addresses);
                figures.flooded += sent;
                format!("{sent} Hellos to mn{mn}")
            }
            _ if intruder.is_calling() || !intruder.call(victim, node.mac, self.max_frame, insecure, now) => {
                return;
            }
            _ => {
                if self.accepts_unknown && !insecure {
                    node.accept_unknown(true);
                }
                figures.impostors += 1;
                format!("somebody calls mn{mn} as cn{cn}")
            }
        };
        self.log(|| done);
    }

    /// Continues the intruder's actions, and reports an effect that they must not have.
    pub(super) fn check_intruder(&mut self, now: Time) -> Result<(), InvariantViolation> {
        let Some(intruder) = &mut self.intruder else { return Ok(()) };
        let called = intruder.is_calling();
        intruder.work(now)?;
        if called && !intruder.is_calling() && self.accepts_unknown {
            self.mns.iter_mut().for_each(|mn| mn.accept_unknown(false));
        }
        Ok(())
    }

    /// Ends the intruder's actions and, if it is active, the planted fault of accepting unregistered keys.
    pub(super) fn quiet(&mut self) {
        self.intruder.iter_mut().for_each(Intruder::stop);
        if self.accepts_unknown {
            self.mns.iter_mut().for_each(|mn| mn.accept_unknown(false));
        }
    }

    /// Registers the keys of all compute nodes again.
    pub(super) fn restore_keys(&mut self) {
        if self.intruder.is_some() && self.fabric.is_none() {
            self.mns.iter_mut().for_each(|mn| mn.revoke(&[]));
        }
    }
}
