//! What somebody without any right does to the nodes, and keys that are taken back.

use cxloe_wire::frame::Mac;
use cxloe_wire::time::Time;

use super::World;
use crate::broken::Broken;
use crate::compute_node::ComputeNode;
use crate::intruder::Intruder;
use crate::trouble::Trouble;

impl World<'_> {
    /// Somebody without any right does something.
    pub(super) fn intrude(&mut self, what: Trouble, cn: usize, mn: usize, now: Time) {
        let Some(intruder) = &mut self.intruder else { return };
        let addresses: Vec<Mac> = self.cns.iter().flat_map(ComputeNode::addresses).collect();
        // While a key is taken back its node is not to be served without one either.
        let insecure = self.random.below(3) == 0 || what == Trouble::Revocation;
        let (victim, node) = (self.cns[cn].mac, &mut self.mns[mn]);
        let figures = &mut self.tally.figures;
        let done = match what {
            Trouble::Forgery => {
                let sent = intruder.forge();
                figures.forged += sent;
                format!("{sent} forged frames")
            }
            Trouble::Replay => {
                let sent = intruder.replay();
                figures.replayed += sent;
                format!("{sent} frames come again")
            }
            Trouble::Flood => {
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
        self.say(|| done);
    }

    /// Has the intruder go on, and looks at what it has seen and reached.
    pub(super) fn look_at_intruder(&mut self, now: Time) -> Result<(), Broken> {
        let Some(intruder) = &mut self.intruder else { return Ok(()) };
        let called = intruder.is_calling();
        intruder.work(now)?;
        if called && !intruder.is_calling() && self.accepts_unknown {
            self.mns.iter_mut().for_each(|mn| mn.accept_unknown(false));
        }
        Ok(())
    }

    /// The intruder leaves it at that.
    pub(super) fn quiet(&mut self) {
        self.intruder.iter_mut().for_each(Intruder::rest);
        if self.accepts_unknown {
            self.mns.iter_mut().for_each(|mn| mn.accept_unknown(false));
        }
    }

    /// All keys are good again.
    pub(super) fn restore_keys(&mut self) {
        if self.intruder.is_some() && self.fabric.is_none() {
            self.mns.iter_mut().for_each(|mn| mn.revoke(&[]));
        }
    }
}
