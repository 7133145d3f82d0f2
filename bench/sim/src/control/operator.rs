//! The simulated operator: requests regions; grows, disables, enables, binds, unbinds, resets and destroys
//! them while they are in use; repeats orders that are not answered; and records acknowledged regions, which
//! must not disappear.

use std::collections::BTreeSet;
use std::time::Duration;

use cxloe_fabric::api::{Bind, CreateRegion, ErrorCode, GrowRegion, Owner, Unbind};
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::{
    ByteSize, CnId, DeviceKind, EventKind, LogicalDevice, Name, Region, RegionState, UnbindOption,
};
use cxloe_gmm_core::manager::{Command, FabricState};
use cxloe_wire::random::Random;
use cxloe_wire::time::Time;

use super::message::{Caller, ManagerCall, ManagerReply};
use super::network::ControlNetwork;
use super::port::Port;
use crate::tally::Figures;
use crate::trace::Trace;
use crate::violation::InvariantViolation;

/// Maximum number of decoders of a region. A region grows in steps of its initial size, each with a further decoder, up
/// to this number.
const GROWN_MAX: usize = 3;
/// Maximum interval between two checks for missing regions.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A region that the operator keeps in existence for a compute node.
#[derive(Clone, Debug)]
pub struct DesiredRegion {
    /// Name of the region, unique in the run.
    pub name: Name,
    /// Compute node that is to own the region.
    pub owner: CnId,
    /// Number of memory nodes that the region is interleaved over.
    pub ways: Ways,
    /// Interleave granularity: number of consecutive bytes on one memory node.
    pub granularity: Granularity,
    /// Memory nodes on which the region is to be placed.
    pub on: Vec<Name>,
    /// Size in bytes of the part on each memory node.
    pub bytes: u64,
    /// True for a region that the compute node needs for a worker after its first.
    pub later: bool,
}

impl DesiredRegion {
    fn size(&self) -> u64 {
        u64::from(self.ways.count()) * self.bytes
    }

    fn create(&self) -> Command {
        Command::CreateRegion(CreateRegion {
            ways: self.ways,
            granularity: self.granularity,
            on: self.on.clone(),
            ..CreateRegion::new(self.name.clone(), self.size(), self.owner)
        })
    }
}

/// The operator's pending order, and the regions that the manager has acknowledged.
pub struct Operator {
    port: Port,
    random: Random,
    wanted: Vec<DesiredRegion>,
    /// Number of random orders still to be sent.
    left: u64,
    interval: Duration,
    next_at: Time,
    /// Order that was sent and is not answered yet.
    order: Option<Command>,
    /// Regions whose creation the manager has acknowledged. A region that a later order may destroy is removed from
    /// this set.
    promised: BTreeSet<Name>,
    /// True at the end of a run, when the operator destroys all regions.
    closing: bool,
    trace: Trace,
}

impl Operator {
    /// Makes an operator who keeps these regions in existence and sends `orders` random orders about them, on
    /// average `interval` apart.
    pub fn new(
        wanted: Vec<DesiredRegion>,
        orders: u64,
        interval: Duration,
        random: Random,
        trace: Trace,
    ) -> Operator {
        Operator {
            port: Port::new(Caller::Operator),
            random,
            wanted,
            left: orders,
            interval,
            next_at: Time::ZERO,
            order: None,
            promised: BTreeSet::new(),
            closing: false,
            trace,
        }
    }

    /// Returns the time of the operator's next action.
    pub fn deadline(&self) -> Option<Time> {
        if self.order.is_some() { self.port.deadline() } else { Some(self.next_at) }
    }

    /// Returns true if all random orders were sent and every order was answered.
    pub(crate) fn is_done(&self) -> bool {
        self.left == 0 && self.order.is_none()
    }

    /// Makes the operator send only orders that create or repair regions from now on.
    pub(crate) fn calm_down(&mut self) {
        self.left = 0;
    }

    /// Makes the operator destroy all regions from now on.
    pub fn close(&mut self) {
        self.left = 0;
        self.closing = true;
    }

    /// Sends the next order, or repeats the last one if its answer is overdue. `state` is the manager's
    /// state; `idle` is a compute node without a usable region, for which a region is repaired.
    pub fn work(&mut self, state: &FabricState, idle: Option<CnId>, now: Time, net: &mut ControlNetwork) {
        if self.port.has_given_up(now) {
            self.trace.log(now, "operator", || "no answer; asks again".into());
            self.ask(now, net);
        }
        if self.order.is_some() || now < self.next_at {
            return;
        }
        let wait = Duration::from_nanos(self.random.below(2 * self.interval.as_nanos() as u64));
        self.next_at = now + wait.min(LOOK_AGAIN).max(Duration::from_micros(100));
        let order = if self.closing {
            self.take_down(state)
        } else if let Some(missing) = self.wanted.iter().find(|w| !self.promised.contains(&w.name)) {
            // The region is missing at the beginning of a run, and after it was destroyed.
            let gone = !state.regions.contains_key(&missing.name);
            let soon = self.left == 0 || self.random.below(3) > 0;
            (gone && soon).then(|| missing.create())
        } else {
            None
        };
        let order = order.or_else(|| idle.filter(|_| !self.closing).and_then(|cn| self.repair(state, cn)));
        let order = order.or_else(|| self.make_later(state));
        let order = order.or_else(|| {
            if self.left == 0 {
                return None;
            }
            self.left -= 1;
            self.next_at = now + wait;
            self.draw(state)
        });
        self.order = order;
        if let Some(order) = &self.order {
            self.forget(order.clone(), state);
            self.ask(now, net);
        }
    }

    fn ask(&mut self, now: Time, net: &mut ControlNetwork) {
        if let Some(order) = &self.order {
            self.port.call(ManagerCall::Order(Box::new(order.clone())), Duration::ZERO, now, net);
        }
    }

    /// Removes the regions that `order` may destroy from the acknowledged regions: the order may take effect even if
    /// its answer is lost.
    fn forget(&mut self, order: Command, state: &FabricState) {
        match order {
            Command::DestroyRegion { name, .. } | Command::ReleaseRegion(name) => {
                self.promised.remove(&name);
            }
            Command::Unbind(unbind, _) => {
                let on = state.regions.values().filter(|region| region.lies_on(&unbind.memory_node));
                let on: Vec<&Name> = on.map(|region| &region.name).collect();
                self.promised.retain(|name| !on.contains(&name));
            }
            _ => {}
        }
    }

    /// Returns an order that gives an idle compute node a usable region.
    fn repair(&mut self, state: &FabricState, cn: CnId) -> Option<Command> {
        let wanted = self.wanted.iter().find(|wanted| wanted.owner == cn)?;
        let Some(region) = state.regions.get(&wanted.name) else { return Some(wanted.create()) };
        let name = region.name.clone();
        match region.state {
            RegionState::Lost => Some(Command::ResetRegion(name)),
            RegionState::Disabled => Some(Command::EnableRegion(name)),
            _ => None,
        }
    }

    /// Returns an order that makes a region that is missing at a compute node with several workers. An earlier region whose
    /// acknowledgement was lost does not delay it: its compute node may have another worker's region, so that nothing else
    /// would make this one.
    fn make_later(&mut self, state: &FabricState) -> Option<Command> {
        let divided = |owner| self.wanted.iter().any(|wanted| wanted.later && wanted.owner == owner);
        let missing = |wanted: &&DesiredRegion| {
            let known = self.promised.contains(&wanted.name) || state.regions.contains_key(&wanted.name);
            !known && divided(wanted.owner)
        };
        let order = self.wanted.iter().find(missing).filter(|_| !self.closing)?.create();
        (self.left == 0 || self.random.below(3) > 0).then_some(order)
    }

    /// Returns a random order that is valid in this state.
    fn draw(&mut self, state: &FabricState) -> Option<Command> {
        if self.random.below(4) == 0
            && let Some(order) = self.bind_or_unbind(state)
        {
            return Some(order);
        }
        let at = self.random.below(self.wanted.len() as u64) as usize;
        let wanted = self.wanted[at].clone();
        let Some(region) = state.regions.get(&wanted.name) else { return Some(wanted.create()) };
        let name = region.name.clone();
        let roll = self.random.below(100);
        let order = match region.state {
            RegionState::Creating | RegionState::Draining => {
                Command::DestroyRegion { name, force: false, created_ms: None }
            }
            RegionState::Lost if roll < 80 => Command::ResetRegion(name),
            RegionState::Disabled | RegionState::Releasing if roll < 70 => Command::EnableRegion(name),
            RegionState::Lost | RegionState::Disabled | RegionState::Releasing => {
                Command::DestroyRegion { name, force: true, created_ms: None }
            }
            RegionState::Active | RegionState::Exposed | RegionState::Degraded => match roll {
                0..40 if region.decoders.len() < GROWN_MAX => Self::grow(&wanted, region),
                0..70 => Command::DisableRegion(name),
                70..85 => Command::DestroyRegion { name, force: true, created_ms: None },
                85..90 => Command::DestroyRegion { name, force: false, created_ms: None },
                _ => Command::ReleaseRegion(name),
            },
        };
        Some(order)
    }

    fn grow(wanted: &DesiredRegion, region: &Region) -> Command {
        let grow =
            GrowRegion { size: ByteSize(region.size + wanted.size()), on: wanted.on.clone(), wait_ms: 0 };
        Command::GrowRegion(region.name.clone(), grow)
    }

    /// Returns an order that binds the memory node assigned as a whole (to one compute node), or unbinds a logical
    /// device if that memory node is bound already; `None` if the draw selects no device.
    fn bind_or_unbind(&mut self, state: &FabricState) -> Option<Command> {
        let bound: Vec<&LogicalDevice> =
            state.logical_devices.values().filter(|ld| ld.binding.is_some()).collect();
        let whole = state.memory_nodes.values().find(|node| node.kind == DeviceKind::Sld);
        let free = whole.filter(|node| !bound.iter().any(|ld| ld.memory_node == node.name));
        if let Some(node) = free {
            let owners: BTreeSet<CnId> = self.wanted.iter().map(|wanted| wanted.owner).collect();
            let owner = owners.into_iter().nth(self.random.below(2) as usize)?;
            let memory_node = node.name.clone();
            let compute_node = Owner::CnId(owner);
            return Some(Command::Bind(
                Bind { compute_node, memory_node, ld: None, vppb: None, wait_ms: 0 },
                None,
            ));
        }
        // If the memory node assigned as a whole is bound, it is always selected, so that it can be bound again later.
        // Logical devices on other memory nodes are unbound only sometimes.
        let whole = |ld: &&&LogicalDevice| whole.is_some_and(|node| node.name == ld.memory_node);
        let ld = bound.iter().find(whole).copied().or_else(|| {
            let at = self.random.below(4 * bound.len().max(1) as u64) as usize;
            bound.get(at).copied()
        })?;
        let option = if self.random.below(3) == 0 { UnbindOption::Surprise } else { UnbindOption::Managed };
        Some(Self::unbind(ld, option))
    }

    fn unbind(ld: &LogicalDevice, option: UnbindOption) -> Command {
        Command::Unbind(Unbind { memory_node: ld.memory_node.clone(), ld: ld.id, option, wait_ms: 0 }, None)
    }

    /// Returns an order that destroys one of the remaining regions or bindings.
    fn take_down(&self, state: &FabricState) -> Option<Command> {
        let region = state.regions.values().find(|region| region.state != RegionState::Draining);
        if let Some(region) = region {
            return Some(Command::DestroyRegion { name: region.name.clone(), force: true, created_ms: None });
        }
        let ld = state.logical_devices.values().find(|ld| ld.binding.is_some());
        ld.map(|ld| Self::unbind(ld, UnbindOption::Surprise))
    }

    /// Handles an answer from the manager; ignores one to an abandoned call.
    ///
    /// # Errors
    /// Returns a violation if the answer does not fit the order.
    pub fn handle(
        &mut self,
        call: u64,
        answer: ManagerReply,
        figures: &mut Figures,
    ) -> Result<(), InvariantViolation> {
        if !self.port.takes(call) {
            return Ok(());
        }
        let Some(order) = self.order.take() else { return Ok(()) };
        match answer {
            ManagerReply::Done => {
                let count = match &order {
                    Command::CreateRegion(create) => {
                        self.promised.extend(create.name.clone());
                        &mut figures.regions_made
                    }
                    Command::GrowRegion(..) => &mut figures.regions_grown,
                    Command::DisableRegion(_) | Command::ReleaseRegion(_) => &mut figures.regions_disabled,
                    Command::DestroyRegion { .. } => &mut figures.regions_destroyed,
                    Command::ResetRegion(_) => &mut figures.regions_reset,
                    Command::Bind(..) => &mut figures.bindings,
                    Command::Unbind(..) => &mut figures.unbindings,
                    _ => return Ok(()),
                };
                *count += 1;
                Ok(())
            }
            ManagerReply::Refused(code, why) => {
                if let (Command::CreateRegion(create), ErrorCode::NameInUse) = (&order, code) {
                    // The region exists already: either the first attempt has succeeded and its answer was lost, or the
                    // previous region of this name is still being zeroed.
                    self.trace.log(Time::ZERO, "operator", || format!("{create}: it is there: {why}"));
                }
                match code {
                    // The first answer was lost and the order was repeated, so the region has the requested
                    // size already.
                    ErrorCode::BadRequest if matches!(order, Command::GrowRegion(..)) => Ok(()),
                    ErrorCode::NameInUse
                    | ErrorCode::NoSpace
                    | ErrorCode::NotFound
                    | ErrorCode::RegionInUse
                    | ErrorCode::WrongState => Ok(()),
                    _ => Err(InvariantViolation::Rule(format!(
                        "the manager refuses {order:?}: {code:?}, {why}"
                    ))),
                }
            }
            _ => Err(InvariantViolation::Rule(format!("the manager answers {order:?} with {answer}"))),
        }
    }

    /// Checks that all acknowledged regions exist, except those that a memory node has refused.
    ///
    /// # Errors
    /// Returns a violation that names a missing region.
    pub fn check(&self, state: &FabricState) -> Result<(), InvariantViolation> {
        let refused = |name: &Name| {
            state.events.iter().any(
                |event| matches!(&event.kind, EventKind::MemoryNodeRefused { region, .. } if region == name),
            )
        };
        let missing = self.promised.iter().find(|name| !state.regions.contains_key(*name) && !refused(name));
        match missing {
            Some(name) => Err(InvariantViolation::Rule(format!(
                "region {name} was made, nobody took it down, and it is gone"
            ))),
            None => Ok(()),
        }
    }
}
