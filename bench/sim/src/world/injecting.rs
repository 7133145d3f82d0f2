//! Faults: their schedule, and their injection into nodes and the network.

use std::time::Duration;

use cxloe_wire::frame::Mac;
use cxloe_wire::time::Time;

use super::World;
use crate::compute_node::ComputeNode;
use crate::control::manager::KillPoint;
use crate::control::message::Caller;
use crate::fault::{self, Fault, pick};
use crate::memory_node::MemoryNode;
use crate::plan;
use crate::trace::Name;

impl World<'_> {
    pub(super) fn next_fault(&self) -> Option<Time> {
        // A fault that has a duration ends before the next fault begins.
        self.healed_at.or((self.faults.count > 0).then_some(self.fault_at))
    }

    pub(super) fn inject(&mut self, now: Time) {
        if self.healed_at.take().is_some() {
            self.log(|| "all paths are whole again".into());
            self.net.heal_all();
            self.restore_keys();
            return;
        }
        let r = &mut self.random;
        self.faults.count -= 1;
        self.fault_at = now + fault::interval(r);
        let (cn, mn) = (r.below(self.cns.len() as u64) as usize, r.below(self.mns.len() as u64) as usize);
        match self.faults.draw(r) {
            None => {}
            Some(Fault::Cut) => self.cut(now, cn, mn),
            Some(Fault::CutOff) => {
                let addresses: Vec<Mac> = self.cns[cn].addresses().collect();
                let until = now + Duration::from_micros(pick(r, &[500, 20_000, 200_000, 7_000_000]));
                self.net.partition(&addresses);
                self.healed_at = Some(until);
                self.tally.figures.cuts += 1;
                self.log(|| format!("cn{cn} is cut off until {until}"));
            }
            Some(Fault::Goodbye) => {
                self.mns[mn].say_goodbye(now);
                self.tally.figures.goodbyes += 1;
                self.log(|| format!("mn{mn} says goodbye"));
            }
            Some(Fault::Overload) => {
                let path = plan::overload(r);
                self.net.set_default_path(path);
                self.tally.figures.network_profiles += 1;
                self.log(|| format!("from here on: {}, delay {:?}", path.faults, path.delay));
            }
            Some(Fault::RestartKept) => {
                if r.below(2) == 0 {
                    // The new process may permit another number of streams, and frames of another length.
                    self.mns[mn].config.streams_max = 1 + r.below(3) as u8;
                    self.mns[mn].config.max_frame = pick(r, &[200, 700, plan::FRAME_MTU]);
                }
                self.mns[mn].hang_up(now, &mut self.control);
                self.mns[mn].restart(true);
                self.tally.figures.restarts_kept += 1;
                self.log(|| format!("mn{mn} restarts with its pool"));
            }
            Some(Fault::RestartLost) => {
                self.mns[mn].hang_up(now, &mut self.control);
                self.mns[mn].restart(false);
                self.tally.figures.restarts_lost += 1;
                self.log(|| format!("mn{mn} restarts without its pool"));
            }
            Some(Fault::Kill) => {
                self.cns[cn].is_killed(now, &mut self.control, self.tally);
                self.tally.figures.kills += 1;
                self.log(|| format!("cn{cn} is killed and starts anew"));
            }
            Some(Fault::Pause) => {
                let (is_cn, until) = (r.below(2) == 0, now + fault::duration(r));
                let (node, name) = if is_cn {
                    (&mut self.cns[cn].paused_until, Name(Name::cn(cn)))
                } else {
                    (&mut self.mns[mn].paused_until, Name(Name::mn(mn)))
                };
                *node = until;
                self.tally.figures.pauses += 1;
                self.log(|| format!("{name} stands still until {until}"));
            }
            Some(Fault::Replace) => {
                let reported = r.below(2) == 0;
                let replaced = self.cns[cn].replace_region(mn, reported, &self.mns);
                self.tally.figures.replaced += u64::from(replaced);
                self.log(|| format!("cn{cn} gets another region on mn{mn}"));
            }
            Some(Fault::Manager) => {
                let Some(fabric) = &mut self.fabric else { return };
                let at = pick(r, &[KillPoint::Now, KillPoint::BeforeCommit, KillPoint::AfterCommit]);
                fabric.manager.kill(now, at, fault::duration(r));
                self.tally.figures.managers_killed += 1;
                self.log(|| format!("the manager is to be killed: {at:?}"));
            }
            Some(Fault::WrongManager) => {
                let (empty, copies) = (r.below(2) == 0, r.below(3) == 0);
                let (lasts, away) = (fault::duration(r), fault::duration(r));
                let Some(fabric) = &mut self.fabric else { return };
                // The manager is started again over an older copy of its store, or an empty one. This fault
                // is injected only if every node can detect it. A node cannot detect it if it has not
                // followed any manager yet, or if the copy contains all events that the node has received.
                let state = fabric.manager.state();
                let all_follow = self.mns.iter().all(MemoryNode::has_followed)
                    && self.cns.iter().all(|cn| cn.has_followed(state));
                let mns = self.mns.iter().filter_map(MemoryNode::seen);
                let cns = self.cns.iter().filter_map(ComputeNode::seen);
                let all_can_tell = !mns.chain(cns).any(|seen| fabric.manager.could_mislead(empty, seen));
                if all_follow && all_can_tell && fabric.manager.mislead(now, empty, lasts, away) {
                    self.tally.figures.managers_killed += 1;
                    self.log(|| format!("the manager has another store for {lasts:?}, empty: {empty}"));
                }
                let Some(fabric) = &mut self.fabric else { return };
                if copies {
                    fabric.manager.copy_store();
                }
            }
            Some(Fault::ManagerAway) => {
                let whose = match r.below(3) {
                    0 => None,
                    1 => Some(Caller::Cn(cn)),
                    _ => Some(Caller::Mn(mn)),
                };
                let until = now + fault::duration(r);
                self.control.cut(whose, until);
                self.tally.figures.managers_away += 1;
                self.log(|| {
                    let whose = whose.map_or_else(|| "everybody".to_owned(), |whose| whose.to_string());
                    format!("the manager is out of reach of {whose} until {until}")
                });
            }
            Some(Fault::Forgery | Fault::Replay | Fault::Flood | Fault::Impostor)
                if self.intruder.is_none() => {}
            Some(fault @ (Fault::Forgery | Fault::Replay | Fault::Flood | Fault::Impostor)) => {
                self.intrude(fault, cn, mn, now);
            }
            Some(Fault::Revocation) => {
                let until = now + fault::duration(r);
                let revoked = [self.cns[cn].mac];
                self.mns.iter_mut().for_each(|mn| mn.revoke(&revoked));
                self.healed_at = Some(until);
                self.tally.figures.revocations += 1;
                self.log(|| format!("the key of cn{cn} is taken back until {until}"));
                self.intrude(Fault::Revocation, cn, mn, now);
            }
            Some(Fault::NetworkProfile) => {
                let path = plan::network_profile(r);
                self.net.set_default_path(path);
                self.tally.figures.network_profiles += 1;
                self.log(|| format!("from here on: {}, delay {:?}", path.faults, path.delay));
            }
        }
    }

    fn cut(&mut self, now: Time, cn: usize, mn: usize) {
        let mn_mac = self.mns[mn].mac;
        // Either all queues of a node are cut off, or one of them while the node's other sessions continue.
        let mut addresses: Vec<Mac> = self.cns[cn].addresses().collect();
        let r = &mut self.random;
        if addresses.len() > 1 && r.below(2) == 0 {
            addresses = vec![pick(r, &addresses)];
        }
        let (paths, of) = (addresses.len(), if addresses.len() == 1 { "path" } else { "paths" });
        let what = match r.below(3) {
            0 => {
                addresses.iter().for_each(|cn| self.net.cut(*cn, mn_mac));
                format!("{paths} {of} from cn{cn} to mn{mn} cut")
            }
            1 => {
                addresses.iter().for_each(|cn| self.net.cut(mn_mac, *cn));
                format!("{paths} {of} from mn{mn} to cn{cn} cut")
            }
            _ => {
                self.net.partition(&[mn_mac]);
                format!("mn{mn} is cut off")
            }
        };
        let until = now + fault::duration(r);
        self.healed_at = Some(until);
        self.tally.figures.cuts += 1;
        self.log(|| format!("{what} until {until}"));
    }
}
