//! The operator: asks for regions, has them grown, disabled, enabled, bound, unbound, reset and destroyed while they are
//! in use; asks again where no answer comes; and keeps a list of what was promised.

use std::collections::BTreeSet;
use std::time::Duration;

use cxloe_fabric::api::{Bind, CreateRegion, ErrorCode, GrowRegion, Owner, Unbind};
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::{
    ByteSize, CnId, DeviceKind, EventKind, LogicalDevice, Name, Region, RegionState, UnbindOption,
};
use cxloe_gmm::manager::{Command, State};
use cxloe_wire::random::Random;
use cxloe_wire::time::Time;

use super::message::{Answer, Caller, Request};
use super::network::ControlNetwork;
use super::port::Port;
use crate::broken::Broken;
use crate::tally::Figures;
use crate::trace::Trace;

/// How many times a region is as large as at first, at most.
const GROWN_MAX: usize = 3;
/// From one look to the next for what is missing.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A region that a compute node is to have.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Its name.
    pub name: Name,
    /// Whose it is.
    pub owner: CnId,
    /// Interleave ways.
    pub ways: Ways,
    /// Interleave granularity.
    pub granularity: Granularity,
    /// The memory nodes it is to lie on.
    pub on: Vec<Name>,
    /// Bytes on each.
    pub bytes: u64,
}

impl Wanted {
    fn size(&self) -> u64 {
        u64::from(self.ways.count()) * self.bytes
    }

    fn create(&self) -> Command {
        Command::CreateRegion(CreateRegion {
            ways: self.ways.count(),
            granularity: self.granularity.bytes(),
            on: self.on.clone(),
            ..CreateRegion::new(self.name.clone(), self.size(), self.owner)
        })
    }
}

/// The operator.
pub struct Operator {
    port: Port,
    random: Random,
    wanted: Vec<Wanted>,
    /// Orders still to be given.
    left: u64,
    interval: Duration,
    next_at: Time,
    /// Given, and not answered yet.
    order: Option<Command>,
    /// Regions that were promised and not taken back.
    promised: BTreeSet<Name>,
    /// Everything is to go.
    closing: bool,
    trace: Trace,
}

impl Operator {
    /// An operator who sees to these regions and gives so many orders about them, about `interval` apart.
    pub fn new(
        wanted: Vec<Wanted>,
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

    /// When there is something to do next.
    pub fn deadline(&self) -> Option<Time> {
        if self.order.is_some() { self.port.deadline() } else { Some(self.next_at) }
    }

    /// Whether all orders were given and answered.
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.order.is_none()
    }

    /// No more orders, but those that repair something.
    pub fn calm_down(&mut self) {
        self.left = 0;
    }

    /// From here on everything is taken down.
    pub fn close(&mut self) {
        self.left = 0;
        self.closing = true;
    }

    /// Gives the next order, or the last one again. `state` is what a look at the manager shows; `idle`: a compute node
    /// has nothing to work with.
    pub fn work(&mut self, state: &State, idle: Option<CnId>, now: Time, net: &mut ControlNetwork) {
        if self.port.has_given_up(now) {
            self.trace.say(now, "operator", || "no answer; asks again".into());
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
            // At first, and after it was destroyed.
            let gone = !state.regions.contains_key(&missing.name);
            let soon = self.left == 0 || self.random.below(3) > 0;
            (gone && soon).then(|| missing.create())
        } else {
            None
        };
        let order = order.or_else(|| idle.filter(|_| !self.closing).and_then(|cn| self.repair(state, cn)));
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
            self.port.call(Request::Order(Box::new(order.clone())), Duration::ZERO, now, net);
        }
    }

    /// What an order takes back is promised no longer, whether it comes about or not.
    fn forget(&mut self, order: Command, state: &State) {
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

    /// What lets a compute node go on that has nothing.
    fn repair(&mut self, state: &State, cn: CnId) -> Option<Command> {
        let wanted = self.wanted.iter().find(|wanted| wanted.owner == cn)?;
        let Some(region) = state.regions.get(&wanted.name) else { return Some(wanted.create()) };
        let name = region.name.clone();
        match region.state {
            RegionState::Lost => Some(Command::ResetRegion(name)),
            RegionState::Disabled => Some(Command::EnableRegion(name)),
            _ => None,
        }
    }

    /// Any order that makes sense.
    fn draw(&mut self, state: &State) -> Option<Command> {
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
            RegionState::Active | RegionState::Degraded => match roll {
                0..40 if region.decoders.len() < GROWN_MAX => Self::grow(&wanted, region),
                0..70 => Command::DisableRegion(name),
                70..85 => Command::DestroyRegion { name, force: true, created_ms: None },
                85..90 => Command::DestroyRegion { name, force: false, created_ms: None },
                _ => Command::ReleaseRegion(name),
            },
        };
        Some(order)
    }

    fn grow(wanted: &Wanted, region: &Region) -> Command {
        let grow =
            GrowRegion { size: ByteSize(region.size + wanted.size()), on: wanted.on.clone(), wait_ms: 0 };
        Command::GrowRegion(region.name.clone(), grow)
    }

    /// Binds a memory node that is given away whole, or unbinds a logical device.
    fn bind_or_unbind(&mut self, state: &State) -> Option<Command> {
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
        // Those that are whole are unbound more often than slices.
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

    /// Takes something down that is still there.
    fn take_down(&self, state: &State) -> Option<Command> {
        let region = state.regions.values().find(|region| region.state != RegionState::Draining);
        if let Some(region) = region {
            return Some(Command::DestroyRegion { name: region.name.clone(), force: true, created_ms: None });
        }
        let ld = state.logical_devices.values().find(|ld| ld.binding.is_some());
        ld.map(|ld| Self::unbind(ld, UnbindOption::Surprise))
    }

    /// An answer has arrived.
    ///
    /// # Errors
    /// It is none that the manager may give.
    pub fn hear(&mut self, call: u64, answer: Answer, figures: &mut Figures) -> Result<(), Broken> {
        if !self.port.takes(call) {
            return Ok(());
        }
        let Some(order) = self.order.take() else { return Ok(()) };
        match answer {
            Answer::Done => {
                let count = match &order {
                    Command::CreateRegion(create) => {
                        self.promised.insert(create.name.clone());
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
            Answer::Refused(code, why) => {
                if let (Command::CreateRegion(create), ErrorCode::NameInUse) = (&order, code) {
                    // The first try came through, and its answer was lost; or the last one is still being zeroed.
                    self.trace.say(Time::ZERO, "operator", || format!("{} is there: {why}", create.name));
                }
                match code {
                    // Asked a second time, after the first answer was lost: it is as large by now.
                    ErrorCode::BadRequest if matches!(order, Command::GrowRegion(..)) => Ok(()),
                    ErrorCode::NameInUse
                    | ErrorCode::NoSpace
                    | ErrorCode::NotFound
                    | ErrorCode::RegionInUse
                    | ErrorCode::WrongState => Ok(()),
                    _ => Err(Broken::Rule(format!("the manager refuses {order:?}: {code:?}, {why}"))),
                }
            }
            _ => Err(Broken::Rule(format!("the manager answers {order:?} with {answer}"))),
        }
    }

    /// What was promised is there.
    ///
    /// # Errors
    /// Something is not.
    pub fn check(&self, state: &State) -> Result<(), Broken> {
        let refused = |name: &Name| {
            state.events.iter().any(
                |event| matches!(&event.kind, EventKind::MemoryNodeRefused { region, .. } if region == name),
            )
        };
        let missing = self.promised.iter().find(|name| !state.regions.contains_key(*name) && !refused(name));
        match missing {
            Some(name) => {
                Err(Broken::Rule(format!("region {name} was made, nobody took it down, and it is gone")))
            }
            None => Ok(()),
        }
    }
}
