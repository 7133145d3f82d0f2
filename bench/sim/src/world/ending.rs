//! End of a run: without further faults, all operations have to end, and the final state is checked.

use cxloe_net::sim::Path;
use cxloe_wire::time::Time;

use super::{World, state_of};
use crate::compute_node::ComputeNode;
use crate::node_context::NodeContext;
use crate::trace::Name;
use crate::violation::InvariantViolation;

impl World<'_> {
    /// Ends all faults, waits until all operations have ended, and checks the final state.
    pub(super) fn settle(&mut self) -> Result<(), InvariantViolation> {
        self.log(|| "all is well from here on".into());
        self.net.heal_all();
        self.net.set_default_path(Path::default());
        self.cns.iter_mut().for_each(|cn| cn.paused_until = Time::ZERO);
        self.mns.iter_mut().for_each(|mn| mn.paused_until = Time::ZERO);
        self.control.heal();
        self.restore_keys();
        self.quiet();
        if let Some(fabric) = &mut self.fabric {
            fabric.manager.heal();
            fabric.operator.calm_down();
        }
        let end = self.net.now() + self.settle;
        self.until(end, |world| Ok(world.cns.iter().all(ComputeNode::is_idle)))?;
        self.until(end, |world| {
            let now = world.net.now();
            let around = NodeContext { mns: &world.mns, state: state_of(&world.fabric) };
            let mut done = true;
            for cn in &mut world.cns {
                done &= cn.finish(now, around)?;
            }
            Ok(done)
        })?;
        self.agree(end)?;
        self.until(end, |world| {
            let now = world.net.now();
            let around = NodeContext { mns: &world.mns, state: state_of(&world.fabric) };
            let mut done = true;
            for cn in &mut world.cns {
                done &= cn.flush(now, around)?;
            }
            Ok(done)
        })?;
        // Flushes do not wait for the write-backs of removed regions, but these write-backs have to end too.
        self.until(end, |world| Ok(world.cns.iter().all(ComputeNode::has_nothing_pending)))?;
        // A node whose session ended shortly before reconnects, even if no region uses the session any longer.
        self.until(end, |world| Ok(world.cns.iter().all(ComputeNode::is_connected)))?;
        self.take_down(end)?;
        self.until(end, |world| {
            let now = world.net.now();
            let mut closed = true;
            for cn in &mut world.cns {
                closed &= cn.close(now);
            }
            Ok(closed)
        })?;
        // A killed compute node sends no goodbye, and does not connect again to a memory node on which it has
        // no memory. Its session there has to time out.
        let silence = self.cns.iter().any(ComputeNode::was_killed);
        let now = self.net.now();
        match self.mns.iter_mut().find_map(|mn| (!mn.has_nothing_pending(now, silence)).then_some(mn.mac)) {
            Some(mac) => {
                Err(InvariantViolation::NotIdle(format!("{} still has requests in its buffers", Name(mac))))
            }
            None => Ok(()),
        }
    }

    /// Waits until the control plane is idle, and checks that its parts agree.
    fn agree(&mut self, end: Time) -> Result<(), InvariantViolation> {
        if self.fabric.is_none() {
            return Ok(());
        }
        self.until(end, |world| {
            Ok(world.fabric.as_ref().is_none_or(|f| f.activity(&world.mns, &world.cns).is_none()))
        })?;
        let fabric = self.fabric.as_ref();
        fabric.map_or(Ok(()), |fabric| fabric.check(&self.mns, &self.cns))
    }

    /// Destroys all regions, and checks that nothing of them is left.
    fn take_down(&mut self, end: Time) -> Result<(), InvariantViolation> {
        let Some(fabric) = &mut self.fabric else { return Ok(()) };
        self.trace.log(self.net.now(), "*", || "everything is taken down".into());
        fabric.operator.close();
        self.until(end, |world| {
            Ok(world.fabric.as_ref().is_none_or(|f| {
                f.manager.state().regions.is_empty()
                    && f.manager.state().logical_devices.is_empty()
                    && f.activity(&world.mns, &world.cns).is_none()
            }))
        })?;
        let fabric = self.fabric.as_ref();
        fabric.map_or(Ok(()), |fabric| fabric.check_gone(&self.mns, &self.cns))
    }
}
