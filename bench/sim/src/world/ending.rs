//! Nothing goes wrong any more: everything has to end, and to be as it should.

use cxloe_link::sim::Path;
use cxloe_wire::time::Time;

use super::{World, state_of};
use crate::broken::Broken;
use crate::compute_node::ComputeNode;
use crate::surroundings::Surroundings;
use crate::trace::Name;

impl World<'_> {
    /// Nothing goes wrong any more: everything has to end, and to be as it should.
    pub(super) fn settle(&mut self) -> Result<(), Broken> {
        self.say(|| "all is well from here on".into());
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
            let around = Surroundings { mns: &world.mns, state: state_of(&world.fabric) };
            let mut done = true;
            for cn in &mut world.cns {
                done &= cn.finish(around)?;
            }
            Ok(done)
        })?;
        self.agree(end)?;
        self.until(end, |world| {
            let now = world.net.now();
            let around = Surroundings { mns: &world.mns, state: state_of(&world.fabric) };
            let mut done = true;
            for cn in &mut world.cns {
                done &= cn.flush(now, around)?;
            }
            Ok(done)
        })?;
        // Write-backs of regions that are gone are nobody's, so that no flush waits for them; they end all the same.
        self.until(end, |world| Ok(world.cns.iter().all(ComputeNode::is_at_rest)))?;
        // Those that lost their session in the last moment need none, but get one.
        self.until(end, |world| Ok(world.cns.iter().all(|cn| cn.engine.is_connected())))?;
        self.take_down(end)?;
        let now = self.net.now();
        self.cns.iter_mut().for_each(|cn| cn.close(now));
        self.until(end, |world| Ok(world.cns.iter().all(|cn| cn.engine.is_closed())))?;
        // A compute node that was killed says no goodbye, and where it has no memory any more it never calls again: its
        // session there ends in silence.
        let silence = self.cns.iter().any(ComputeNode::was_killed);
        let now = self.net.now();
        match self.mns.iter_mut().find_map(|mn| (!mn.comes_to_rest(now, silence)).then_some(mn.mac)) {
            Some(mac) => Err(Broken::Unrest(format!("{} still has requests in its buffers", Name(mac)))),
            None => Ok(()),
        }
    }

    /// The control plane comes to rest, and agrees.
    fn agree(&mut self, end: Time) -> Result<(), Broken> {
        if self.fabric.is_none() {
            return Ok(());
        }
        self.until(end, |world| {
            Ok(world.fabric.as_ref().is_none_or(|f| f.unrest(&world.mns, &world.cns).is_none()))
        })?;
        let fabric = self.fabric.as_ref();
        fabric.map_or(Ok(()), |fabric| fabric.check(&self.mns, &self.cns))
    }

    /// All regions are destroyed, and nothing is left of them.
    fn take_down(&mut self, end: Time) -> Result<(), Broken> {
        let Some(fabric) = &mut self.fabric else { return Ok(()) };
        self.trace.say(self.net.now(), "*", || "everything is taken down".into());
        fabric.operator.close();
        self.until(end, |world| {
            Ok(world.fabric.as_ref().is_none_or(|f| {
                f.manager.state().regions.is_empty()
                    && f.manager.state().logical_devices.is_empty()
                    && f.unrest(&world.mns, &world.cns).is_none()
            }))
        })?;
        let fabric = self.fabric.as_ref();
        fabric.map_or(Ok(()), |fabric| fabric.check_gone(&self.mns, &self.cns))
    }
}
