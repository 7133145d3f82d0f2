//! The manager's fabric as switches of the FM API. Switch `k` has the memory nodes and compute nodes with
//! index `127 k` to `127 k + 126`. The state of a switch is derived from the manager's; each change is a
//! command to the manager.

mod events;
mod refusal;

use std::collections::BTreeMap;

use cxloe_fm::dcd::Tag;
use cxloe_fm::event_record::{EventContent, Log};
use cxloe_fm::fabric::{
    self, Capacity, Device, EventLog, Fabric, Host, LogSource, LogicalDevice, Operation, Slot, Unbind,
};
use cxloe_fm::header::ReturnCode;
use cxloe_fm::mld_component::QosControl;
use cxloe_fm::opcode::Opcode;
use cxloe_fm::tag;

use cxloe_fabric::api::{self, CreateRegion, Owner};
use cxloe_fabric::hdm::Decoder;
use cxloe_fabric::model::{
    ByteSize, ClearedLog, CnId, ComputeNode, DeviceKind, Health, LegState, MemoryNode, Name, OperationKind,
    OperationOutcome, Qos, Region, RegionState, SWITCH_NODES, UnbindOption,
};
use cxloe_gmm_core::manager::{Change, Command, Manager, ManagerError, Nameless};

/// Number of low bits of a switch's serial number that contain the switch's number; the other bits are the fabric's
/// number.
const SWITCH_BITS: u32 = 16;

/// State of FM API endpoints that the manager does not store. It is lost when the process ends, like the state of a
/// device that is reset.
#[derive(Debug, Default)]
pub struct Volatile {
    /// Values of command registers, by memory node, LD, and the LD's host.
    commands: BTreeMap<(Name, u8, Option<CnId>), u16>,
}

/// One switch of the fabric during one FM API command, which can read and change the switch.
#[derive(Debug)]
pub struct ManagerView<'a> {
    pub manager: &'a mut Manager,
    /// Number of the switch, from 0.
    pub switch: u32,
    /// Name of the caller in the event log.
    pub who: &'a str,
    /// Time of the command, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// Changes made by the command. The caller has to store them.
    pub changes: &'a mut Vec<Change>,
    pub volatile: &'a mut Volatile,
}

impl ManagerView<'_> {
    /// Number, on this switch, of the node with this index; `None` if the node is on another switch.
    fn place(&self, index: u32) -> Option<u8> {
        let here = index / SWITCH_NODES == self.switch;
        here.then_some(u8::try_from(index % SWITCH_NODES).ok()).flatten()
    }

    /// The memory node at a port of this switch.
    pub(super) fn node_at(&self, port: u8) -> Option<&MemoryNode> {
        let mut nodes = self.manager.state().memory_nodes.values();
        nodes.find(|node| self.place(node.index) == Some(port))
    }

    /// The compute node that this virtual switch represents.
    fn compute_node(&self, vcs: u8) -> Option<&ComputeNode> {
        let mut nodes = self.manager.state().compute_nodes.values();
        nodes.find(|node| self.place(node.index) == Some(vcs))
    }

    fn name(&self, port: u8) -> Result<Name, ReturnCode> {
        self.node_at(port).map(|node| node.name.clone()).ok_or_else(|| self.no_device(port))
    }

    fn owner(&self, vcs: u8) -> Result<Owner, ReturnCode> {
        self.compute_node(vcs).map(|node| node.cn_id.into()).ok_or_else(|| self.no_host(vcs))
    }

    fn apply(&mut self, command: Command) -> Result<(), ReturnCode> {
        match self.manager.apply_for(self.who, command, self.now_ms) {
            Ok(outcome) => {
                self.changes.extend(outcome.changes);
                Ok(())
            }
            Err(error) => {
                tracing::info!(switch = self.switch, who = self.who, "FM API: refused: {error}");
                Err(code_of(&error))
            }
        }
    }

    /// The device that stands for a memory node, without its LDs.
    pub(super) fn bare_device(&self, node: &MemoryNode, port: u8) -> Device {
        // A MAC address is unique, so the first one serves as the serial number.
        let serial = node
            .macs
            .first()
            .map_or(0, |mac| mac.0.into_iter().fold(0, |serial, octet| serial << 8 | u64::from(octet)));
        Device {
            port,
            kind: self.kind(node),
            reachable: node.health == Health::Reachable,
            serial,
            lanes: u8::try_from(node.macs.len()).unwrap_or(u8::MAX),
            pool_bytes: node.extent_count() * node.extent_bytes,
            block_bytes: node.extent_bytes,
            backpressure: self.manager.stats_of(&node.name).map_or(0, backpressure),
            lds: Vec::new(),
        }
    }

    fn kind(&self, node: &MemoryNode) -> fabric::DeviceKind {
        match self.manager.kind_of(node) {
            DeviceKind::Mld => fabric::DeviceKind::Mld,
            DeviceKind::Sld => fabric::DeviceKind::Sld,
        }
    }

    fn logical_device(&self, node: &MemoryNode, ld: &cxloe_fabric::model::LogicalDevice) -> LogicalDevice {
        let regions = self.manager.regions_of_device(ld);
        let capacity = regions.iter().flat_map(|region| capacity_of(region, &node.name));
        let mut capacity: Vec<Capacity> = capacity.collect();
        capacity.sort_unstable_by_key(|capacity| capacity.dpa);
        LogicalDevice {
            id: u8::try_from(ld.id).unwrap_or(u8::MAX),
            reserved: ld.reserved,
            bound: ld.binding.is_some(),
            generation: generation(&capacity),
            capacity,
            decoders: regions.iter().flat_map(|region| decoders_of(region, &node.name)).collect(),
        }
    }

    pub(super) fn bare_host(&self, node: &ComputeNode, vcs: u8) -> Host {
        Host { vcs, reachable: node.health == Health::Reachable, held: node.held, slots: Vec::new() }
    }

    fn full_host(&self, node: &ComputeNode, vcs: u8) -> Host {
        let bound = self.manager.devices_of(node.cn_id).filter_map(|ld| self.slot(ld));
        let mut slots: Vec<Slot> = bound.collect();
        slots.sort_unstable_by_key(|slot| slot.vppb);
        Host { slots, ..self.bare_host(node, vcs) }
    }

    fn slot(&self, ld: &cxloe_fabric::model::LogicalDevice) -> Option<Slot> {
        let (binding, node) = (ld.binding.as_ref()?, self.manager.memory_node(&ld.memory_node).ok()?);
        let made = binding.region.as_ref().and_then(|region| self.manager.region(region).ok());
        let being_made = made.is_some_and(|region| region.state == RegionState::Creating);
        let id = u8::try_from(ld.id).ok();
        Some(Slot {
            vppb: binding.vppb?,
            in_progress: binding.unbinding.is_some() || being_made,
            port: self.place(node.index),
            ld: id.filter(|_| self.manager.kind_of(node) == DeviceKind::Mld),
        })
    }

    /// The manager's record of an LD of the memory node at a port; `None` if there is none.
    fn ld(&self, port: u8, ld: u8) -> Option<&cxloe_fabric::model::LogicalDevice> {
        let place = (self.node_at(port)?.name.clone(), u16::from(ld));
        self.manager.state().logical_devices.get(&place)
    }

    /// Key of an LD's command register: each host of an LD has a register of its own.
    fn register(&self, port: u8, ld: u8) -> Option<(Name, u8, Option<CnId>)> {
        let bound = self.ld(port, ld).and_then(|ld| ld.binding.as_ref());
        Some((self.node_at(port)?.name.clone(), ld, bound.map(|binding| binding.compute_node)))
    }
}

impl Fabric for ManagerView<'_> {
    fn serial(&self) -> u64 {
        self.manager.state().meta.fabric << SWITCH_BITS | u64::from(self.switch)
    }

    fn hosts(&self) -> Vec<Host> {
        let nodes = self.manager.state().compute_nodes.values();
        let hosts = nodes.filter_map(|node| Some(self.full_host(node, self.place(node.index)?)));
        let mut hosts: Vec<Host> = hosts.collect();
        hosts.sort_unstable_by_key(|host| host.vcs);
        hosts
    }

    fn host(&self, vcs: u8) -> Option<Host> {
        self.compute_node(vcs).map(|node| self.full_host(node, vcs))
    }

    fn devices(&self) -> Vec<u8> {
        let nodes = self.manager.state().memory_nodes.values();
        let mut ports: Vec<u8> = nodes.filter_map(|node| self.place(node.index)).collect();
        ports.sort_unstable();
        ports
    }

    fn device(&self, port: u8) -> Option<Device> {
        let node = self.node_at(port)?;
        let lds = self.manager.state().logical_devices_of(&node.name);
        let lds = lds.map(|ld| self.logical_device(node, ld)).collect();
        Some(Device { lds, ..self.bare_device(node, port) })
    }

    fn no_device(&self, port: u8) -> ReturnCode {
        refusal::no_device(self, port)
    }

    fn no_host(&self, vcs: u8) -> ReturnCode {
        refusal::no_host(self, vcs)
    }

    fn operation(&self) -> Option<Operation> {
        let operation = self.manager.operation(self.switch)?;
        Some(Operation {
            opcode: match operation.kind {
                OperationKind::Bind => Opcode::BindVppb,
                OperationKind::Unbind => Opcode::UnbindVppb,
            },
            percent: self.manager.operation_percent(operation),
            outcome: operation.outcome.map(|outcome| match outcome {
                OperationOutcome::Done => ReturnCode::Success,
                OperationOutcome::Failed => ReturnCode::InternalError,
                OperationOutcome::Aborted => ReturnCode::Aborted,
            }),
        })
    }

    fn qos(&self, port: u8) -> fabric::Qos {
        let known = self.node_at(port).and_then(|node| self.manager.state().qos.get(&node.name));
        known.map_or_else(fabric::Qos::default, |qos| fabric::Qos {
            control: QosControl {
                enables: qos.enables,
                moderate: qos.moderate,
                severe: qos.severe,
                interval: qos.interval,
                request_basis: qos.request_basis,
                completion_interval: qos.completion_interval,
            },
            allocated: qos.allocated,
            limit: qos.limit,
        })
    }

    fn command_register(&self, port: u8, ld: u8) -> u16 {
        let place = self.register(port, ld);
        place.and_then(|place| self.volatile.commands.get(&place)).copied().unwrap_or(0)
    }

    fn events(&self, source: LogSource, log: Log) -> EventLog {
        let place = (self.switch, port_of(source), log.number());
        let cleared = self.manager.state().cleared_logs.get(&place);
        events::log(self, source, log, cleared.map_or(0, |cleared| cleared.through))
    }

    fn bind(&mut self, vcs: u8, vppb: u8, port: u8, ld: Option<u8>) -> Result<(), ReturnCode> {
        let (compute_node, memory_node) = (self.owner(vcs)?, self.name(port)?);
        let (ld, vppb) = (ld.map(u16::from), Some(vppb));
        // `wait_ms` is 0, because the FM API reports the end of the binding as the end of a background operation.
        let bind = api::Bind { compute_node, memory_node, ld, vppb, wait_ms: 0 };
        self.apply(Command::Bind(bind, Some(self.switch)))
    }

    fn unbind(&mut self, vcs: u8, vppb: u8, how: Unbind) -> Result<(), ReturnCode> {
        let cn = self.compute_node(vcs).ok_or_else(|| self.no_host(vcs))?.cn_id;
        let ld = self.manager.at_vppb(cn, vppb).ok_or(ReturnCode::InvalidInput)?;
        let option = match how {
            Unbind::WaitLinkDown => UnbindOption::WaitLinkDown,
            Unbind::Managed => UnbindOption::Managed,
            Unbind::Surprise => UnbindOption::Surprise,
        };
        let unbind = api::Unbind { memory_node: ld.memory_node.clone(), ld: ld.id, option, wait_ms: 0 };
        self.apply(Command::Unbind(unbind, Some(self.switch)))
    }

    fn abort(&mut self) -> Result<(), ReturnCode> {
        self.apply(Command::AbortOperation(self.switch))
    }

    fn generate_aer(&mut self, vcs: u8, vppb: u8, error: u32) -> Result<(), ReturnCode> {
        let compute_node = self.owner(vcs)?;
        self.apply(Command::GenerateAer { compute_node, vppb, aer: error })
    }

    fn hold(&mut self, vcs: u8, held: bool) -> Result<(), ReturnCode> {
        let owner = self.owner(vcs)?;
        self.apply(Command::Hold(owner, held))
    }

    fn reserve(&mut self, port: u8, first: u8, bytes: &[u64]) -> Result<(), ReturnCode> {
        let (node, sizes) = (self.name(port)?, bytes.iter().map(|bytes| ByteSize(*bytes)).collect());
        self.apply(Command::SetLdAllocations(node, first.into(), sizes))
    }

    fn set_qos(&mut self, port: u8, qos: fabric::Qos) -> Result<(), ReturnCode> {
        let fabric::Qos { control, allocated, limit } = qos;
        let qos = Qos {
            memory_node: self.name(port)?,
            enables: control.enables,
            moderate: control.moderate,
            severe: control.severe,
            interval: control.interval,
            request_basis: control.request_basis,
            completion_interval: control.completion_interval,
            allocated,
            limit,
        };
        self.apply(Command::SetQos(qos))
    }

    fn set_command_register(&mut self, port: u8, ld: u8, value: u16) {
        if let Some(place) = self.register(port, ld) {
            // Values that former hosts of the LD have written are removed.
            self.volatile.commands.retain(|(node, id, _), _| (node, *id) != (&place.0, place.1));
            self.volatile.commands.insert(place, value);
        }
    }

    fn add_capacity(&mut self, port: u8, ld: u8, bytes: u64, tag: Tag) -> Result<(), ReturnCode> {
        let node = self.name(port)?;
        let binding = self.ld(port, ld).and_then(|ld| ld.binding.as_ref());
        let owner = binding.ok_or(ReturnCode::RetryRequired)?.compute_node;
        let name = if tag == Tag::default() {
            self.manager.free_region_name(Nameless::DynamicCapacity(&node, ld.into()))
        } else {
            tag::name_of(&tag).ok_or(ReturnCode::InvalidInput)?
        };
        let create = CreateRegion { on: vec![node], wait_ms: 0, ..CreateRegion::new(name, bytes, owner) };
        self.apply(Command::CreateRegion(create))
    }

    fn release_capacity(&mut self, port: u8, ld: u8, tag: Tag, forced: bool) -> Result<(), ReturnCode> {
        let ld = self.ld(port, ld).ok_or(ReturnCode::InvalidInput)?;
        let regions = self.manager.regions_of_device(ld);
        let tagged = regions.into_iter().find(|region| tag::of(&region.name) == tag);
        let name = tagged.ok_or(ReturnCode::InvalidInput)?.name.clone();
        self.apply(match forced {
            true => Command::DestroyRegion { name, force: true, created_ms: None },
            false => Command::ReleaseRegion(name),
        })
    }

    fn clear_events(&mut self, source: LogSource, log: Log, through: u64) -> Result<(), ReturnCode> {
        let (port, log) = (port_of(source), log.number());
        self.apply(Command::ClearLog(ClearedLog { switch: self.switch, port, log, through }))
    }
}

fn port_of(source: LogSource) -> Option<u8> {
    match source {
        LogSource::Switch => None,
        LogSource::Device(port) => Some(port),
    }
}

/// The parts of a region that are mapped on `node`.
pub(super) fn capacity_of(region: &Region, node: &Name) -> impl Iterator<Item = Capacity> {
    let tag = tag::of(&region.name);
    let mapped = region.legs.iter().filter(move |leg| {
        &leg.memory_node == node && matches!(leg.state, LegState::Mapped | LegState::Stale)
    });
    mapped.map(move |leg| Capacity { dpa: leg.cmem_base, bytes: leg.bytes, tag })
}

/// The committed decoders of a region that have a target on `node`.
fn decoders_of(region: &Region, node: &Name) -> impl Iterator<Item = Decoder> {
    let leads_there = move |index: u32| region.legs_of(index).any(|leg| &leg.memory_node == node);
    let decoders = (0..).zip(&region.decoders);
    let decoders = decoders.filter(move |(index, decoder)| decoder.committed && leads_there(*index));
    decoders.map(|(_, decoder)| Decoder {
        base: decoder.offset,
        size: decoder.size,
        ways: decoder.ways,
        granularity: decoder.granularity,
    })
}

/// Generation number of a list of capacity: an FNV-1a hash of the list, which changes with the list and is
/// not stored.
fn generation(capacity: &[Capacity]) -> u32 {
    let bytes =
        capacity.iter().flat_map(|capacity| [capacity.dpa, capacity.bytes]).flat_map(u64::to_le_bytes);
    // Offset basis and prime of the 32-bit FNV-1a hash.
    bytes.fold(0x811C_9DC5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Percentage of a memory node's workers whose receive queue was too long in the node's latest report.
fn backpressure(stats: &serde_json::Value) -> u8 {
    let Some(workers) = stats.as_array().filter(|workers| !workers.is_empty()) else { return 0 };
    let congested = workers.iter().filter(|worker| worker["congested"].as_bool() == Some(true)).count();
    u8::try_from(congested * 100 / workers.len()).unwrap_or(100)
}

fn code_of(error: &ManagerError) -> ReturnCode {
    match error {
        ManagerError::OperationRuns { .. } => ReturnCode::Busy,
        ManagerError::StaticFabric | ManagerError::WrongKind { .. } => ReturnCode::Unsupported,
        // The same request may succeed later, for example when memory is free again.
        ManagerError::NoSpace { .. }
        | ManagerError::TooFewNodes { .. }
        | ManagerError::RegionInUse { .. }
        | ManagerError::LdInUse { .. }
        | ManagerError::WrongState { .. }
        | ManagerError::TooFragmented { .. }
        | ManagerError::LimitReached { .. } => ReturnCode::RetryRequired,
        ManagerError::Stale { .. } => ReturnCode::InternalError,
        _ => ReturnCode::InvalidInput,
    }
}

/// The link event of a memory node's port; `None` if the node is not on this switch.
pub(super) fn device_link(view: &ManagerView<'_>, node: &Name, up: bool) -> Option<(u8, EventContent)> {
    let node = view.manager.memory_node(node).ok()?;
    let port = view.place(node.index)?;
    let device = Device { reachable: up, ..view.bare_device(node, port) };
    Some((port, EventContent::Link(cxloe_fm::answer::device_port(&device))))
}

/// The link event of a compute node's port; `None` if the node is not on this switch.
pub(super) fn host_link(
    view: &ManagerView<'_>,
    cn: CnId,
    reachable: bool,
    held: bool,
) -> Option<EventContent> {
    let node = view.manager.state().compute_nodes.get(&cn)?;
    let host = Host { reachable, held, ..view.bare_host(node, view.place(node.index)?) };
    Some(EventContent::Link(cxloe_fm::answer::host_port(&host)))
}

/// Numbers of the memory node's port and the compute node's VCS; `None` unless both are on this switch.
pub(super) fn places(view: &ManagerView<'_>, node: &Name, cn: CnId) -> Option<(u8, u8)> {
    let port = view.place(view.manager.memory_node(node).ok()?.index)?;
    Some((port, view.place(view.manager.state().compute_nodes.get(&cn)?.index)?))
}
