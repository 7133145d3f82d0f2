//! The manager's event log, presented as event logs of the FM API: those of a switch for links and bindings, those of
//! devices for capacity.
//!
//! | log | of | content |
//! |---|---|---|
//! | informational | switch | nodes reachable, hosts held and released, LDs bound and unbound |
//! | warning | switch | nodes unreachable |
//! | dynamic capacity | device | regions of its LDs that were made or are being released, as long as they exist |

use std::collections::BTreeMap;

use super::{ManagerView, capacity_of, device_link, host_link, places};
use cxloe_fabric::model::{CnId, DeviceKind, Event, EventKind, MemoryNode, Name, RegionState};
use cxloe_fm::answer::extent;
use cxloe_fm::bytes::count_u32;
use cxloe_fm::event_record::{EventContent, Log, Overflow};
use cxloe_fm::fabric::{EXTENTS_MAX, EventLog, LogEntry, LogSource};
use cxloe_fm::virtual_switch::{NO_LD, VppbStatus};

/// Value of `change` in [`EventContent::Capacity`]: the capacity was added.
const CAPACITY_ADDED: u8 = 0;
/// Value of `change` in [`EventContent::Capacity`]: the capacity is to be released.
const CAPACITY_RELEASED: u8 = 1;
/// vPPB number in events whose vPPB is no longer recorded.
const VPPB_UNKNOWN: u8 = 0xFF;

/// The vPPB of each LD, from the LD's latest binding event.
type Vppbs = BTreeMap<(Name, u16), Option<u8>>;

/// Event log of a switch or device, with the events after number `cleared`.
pub(super) fn log(view: &ManagerView<'_>, source: LogSource, log: Log, cleared: u64) -> EventLog {
    let events = &view.manager.state().events;
    let mut entries = Vec::new();
    let mut tell = |event: &Event, happening: EventContent| {
        if event.seq > cleared {
            entries.push(LogEntry { seq: event.seq, time_ms: event.time_ms, happening });
        }
    };
    match source {
        LogSource::Switch => {
            let mut vppbs = Vppbs::new();
            for event in events {
                of_switch(view, event, log, &mut vppbs).into_iter().for_each(|told| tell(event, told));
            }
        }
        LogSource::Device(port) if log == Log::DynamicCapacity => {
            if let Some(node) = view.node_at(port) {
                let mut hosts = Hosts { view, node, known: BTreeMap::new() };
                for event in events {
                    hosts.happenings(event).into_iter().for_each(|told| tell(event, told));
                }
            }
        }
        LogSource::Device(_) => {}
    }
    // Removed events may have belonged to any log: they count as overflow of each log that ever has records.
    let used = matches!(
        (source, log),
        (LogSource::Switch, Log::Informational | Log::Warning) | (LogSource::Device(_), Log::DynamicCapacity)
    );
    let forgotten = events.front().map_or(0, |oldest| oldest.seq - 1);
    let lost = forgotten.saturating_sub(cleared);
    let until_ns = events.front().map_or(0, |oldest| oldest.time_ms.saturating_mul(1_000_000));
    let overflow = Overflow { count: lost, first_ns: 0, last_ns: until_ns };
    EventLog { overflow: (used && lost > 0).then_some(overflow), entries }
}

fn of_switch(view: &ManagerView<'_>, event: &Event, log: Log, vppbs: &mut Vppbs) -> Option<EventContent> {
    let (of, happening) = match &event.kind {
        EventKind::MemoryNodeRegistered { memory_node, .. }
        | EventKind::MemoryNodeReachable { memory_node } => {
            (Log::Informational, device_link(view, memory_node, true).map(|(_, link)| link))
        }
        EventKind::MemoryNodeUnreachable { memory_node } => {
            (Log::Warning, device_link(view, memory_node, false).map(|(_, link)| link))
        }
        EventKind::ComputeNodeRegistered { compute_node, .. }
        | EventKind::ComputeNodeReachable { compute_node }
        | EventKind::ComputeNodeReleased { compute_node } => {
            (Log::Informational, host_link(view, *compute_node, true, false))
        }
        EventKind::ComputeNodeHeld { compute_node } => {
            (Log::Informational, host_link(view, *compute_node, true, true))
        }
        EventKind::ComputeNodeUnreachable { compute_node } => {
            (Log::Warning, host_link(view, *compute_node, false, false))
        }
        EventKind::LdBound { memory_node, ld, compute_node, vppb } => {
            vppbs.insert((memory_node.clone(), *ld), *vppb);
            let (port, vcs) = places(view, memory_node, *compute_node)?;
            let whole = view.manager.memory_node(memory_node).ok().map(|node| view.manager.kind_of(node));
            let (status, ld) = match whole {
                Some(DeviceKind::Sld) => (VppbStatus::BoundPort, NO_LD),
                _ => (VppbStatus::BoundLd, u8::try_from(*ld).unwrap_or(NO_LD)),
            };
            let vppb = vppb.unwrap_or(VPPB_UNKNOWN);
            (Log::Informational, Some(EventContent::Binding { vcs, vppb, status, port, ld }))
        }
        EventKind::LdUnbound { memory_node, ld, compute_node } => {
            let vppb = vppbs.remove(&(memory_node.clone(), *ld)).flatten().unwrap_or(VPPB_UNKNOWN);
            let (_, vcs) = places(view, memory_node, *compute_node)?;
            let (status, port, ld) = (VppbStatus::Unbound, 0, NO_LD);
            (Log::Informational, Some(EventContent::Binding { vcs, vppb, status, port, ld }))
        }
        _ => return None,
    };
    happening.filter(|_| of == log)
}

/// The hosts of a device: the owner of each LD, and the numbers of extents and tags that can still be added to each
/// host.
struct Hosts<'a> {
    view: &'a ManagerView<'a>,
    node: &'a MemoryNode,
    known: BTreeMap<CnId, Option<(u16, u32, u32)>>,
}

impl Hosts<'_> {
    /// The capacity changes of an event, one per extent.
    fn happenings(&mut self, event: &Event) -> Vec<EventContent> {
        let EventKind::RegionChanged { region, state, .. } = &event.kind else { return Vec::new() };
        let change = match state {
            RegionState::Active => CAPACITY_ADDED,
            RegionState::Releasing => CAPACITY_RELEASED,
            _ => return Vec::new(),
        };
        let Ok(region) = self.view.manager.region(region) else { return Vec::new() };
        if !region.lies_on(&self.node.name) {
            return Vec::new();
        }
        let (view, node) = (self.view, self.node);
        let host = *self.known.entry(region.owner).or_insert_with(|| host_of(view, node, region.owner));
        let Some((host, extents_free, tags_free)) = host else { return Vec::new() };
        let told = |extent| EventContent::Capacity { change, host, extent, extents_free, tags_free };
        capacity_of(region, &node.name).map(|capacity| told(extent(&capacity))).collect()
    }
}

fn host_of(view: &ManagerView<'_>, node: &MemoryNode, owner: CnId) -> Option<(u16, u32, u32)> {
    let mut lds = view.manager.state().logical_devices_of(&node.name);
    let ld = lds.find(|ld| ld.binding.as_ref().is_some_and(|binding| binding.compute_node == owner))?;
    let (mut extents, mut tags) = (0u32, 0u32);
    for region in view.manager.regions_of_device(ld) {
        let count = count_u32(capacity_of(region, &node.name).count());
        (extents, tags) = (extents + count, tags + u32::from(count > 0));
    }
    Some((ld.id, EXTENTS_MAX.saturating_sub(extents), EXTENTS_MAX.saturating_sub(tags)))
}
