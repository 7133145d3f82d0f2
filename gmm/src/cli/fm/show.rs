//! Formatting of the answers of FM API endpoints as JSON and as tables.

pub use cxloe_daemon::command_line::Table;
use cxloe_daemon::command_line::new_table;
use cxloe_fabric::model::human_bytes;
use cxloe_fm::component::{BackgroundStatus, Identity, TYPE_3, TYPE_SWITCH};
use cxloe_fm::dcd;
use cxloe_fm::event_record::{EventContent, Events, Log};
use cxloe_fm::mld_component::{ALLOCATION_UNIT, LdAllocations, LdInfo, QosControl, QosStatus};
use cxloe_fm::opcode::{CommandEffect, Opcode};
use cxloe_fm::physical_switch::{
    DEVICE_MLD, DEVICE_SLD, LINK_PERST, LTSSM_DISABLED, LTSSM_L0, PortState, SwitchIdentity, port_state,
};
use cxloe_fm::virtual_switch::{NO_LD, VirtualSwitch, Vppb, VppbStatus, vcs_state};
use serde_json::{Value, json};

/// An answer in both output forms.
type JsonAndTable = (Value, Table);

/// Name of the command with this opcode; the number if it is unknown.
pub fn opcode(number: u16) -> String {
    match (number, Opcode::from_number(number)) {
        (0, _) => "none".to_owned(),
        (_, Some(known)) => known.name().to_owned(),
        (number, None) => format!("{number:04X}h"),
    }
}

/// A table with two columns, name and value, from these rows.
fn sheet(rows: Vec<(&str, String)>) -> Table {
    let mut table = new_table(["", "value"]);
    for (name, value) in rows {
        table.add_row([name.to_owned(), value]);
    }
    table
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Answer to Identify, of a switch or a device.
pub fn identity(identity: &Identity, switch: Option<&SwitchIdentity>) -> JsonAndTable {
    let kind = match identity.component_type {
        TYPE_SWITCH => "switch".to_owned(),
        TYPE_3 => "memory device".to_owned(),
        other => format!("type {other}"),
    };
    let mut value = json!({
        "component": kind,
        "vendor": identity.vendor,
        "device": identity.device,
        "serial": identity.serial,
        "message_bytes_max": 1u64.checked_shl(identity.message_max.into()).unwrap_or(0),
    });
    let mut rows = vec![
        ("component", kind),
        ("vendor, device", format!("{:04x}:{:04x}", identity.vendor, identity.device)),
        ("serial number", format!("{:016x}", identity.serial)),
    ];
    if let Some(switch) = switch {
        let ports: Vec<u8> = switch.active_ports.iter().collect();
        let hosts: Vec<u8> = switch.active_virtual_switches.iter().collect();
        rows.extend([
            ("ports", format!("{} of {} in use", ports.len(), switch.ports)),
            ("virtual switches", format!("{} of {} in use", hosts.len(), switch.virtual_switches)),
            ("vPPBs", format!("{} of {} bound", switch.bound_vppbs, switch.vppbs)),
            ("HDM decoders per upstream port", switch.decoders.to_string()),
        ]);
        value["switch"] = json!({
            "ports": switch.ports,
            "active_ports": ports,
            "virtual_switches": switch.virtual_switches,
            "active_virtual_switches": hosts,
            "vppbs": switch.vppbs,
            "bound_vppbs": switch.bound_vppbs,
            "decoders": switch.decoders,
        });
    }
    (value, sheet(rows))
}

pub fn ports(ports: &[PortState]) -> JsonAndTable {
    let mut table = new_table(["port", "state", "device", "link", "lanes", "LDs"]);
    let rows = ports.iter().map(|port| {
        let state = match port.state {
            port_state::DISABLED => "disabled",
            port_state::BINDING => "binding",
            port_state::UNBINDING => "unbinding",
            port_state::DOWNSTREAM => "downstream",
            port_state::UPSTREAM => "upstream",
            _ => "reserved",
        };
        let device = match port.device_type {
            DEVICE_SLD => "SLD",
            DEVICE_MLD => "MLD",
            _ if port.state == port_state::UPSTREAM => "host",
            _ => "-",
        };
        let link = match port.ltssm {
            _ if port.link_flags & LINK_PERST != 0 => "held in reset",
            LTSSM_L0 => "up",
            LTSSM_DISABLED => "down",
            _ => "training",
        };
        let cells = [port.port.to_string(), state.into(), device.into(), link.into()];
        table.add_row([cells.as_slice(), &[port.width.to_string(), port.ld_count.to_string()]].concat());
        json!({
            "port": port.port, "state": state, "device": device, "link": link, "lanes": port.width,
            "ld_count": port.ld_count,
        })
    });
    (rows.collect(), table)
}

fn vppb_status(vppb: &Vppb) -> &'static str {
    match vppb.status {
        VppbStatus::Unbound => "unbound",
        VppbStatus::InProgress => "in progress",
        VppbStatus::BoundPort | VppbStatus::BoundLd => "bound",
        VppbStatus::Other(_) => "reserved",
    }
}

/// Virtual CXL switches (VCS) with their vPPBs: all vPPBs, or only those in use.
pub fn virtual_switches(switches: &[VirtualSwitch], all: bool) -> JsonAndTable {
    let mut table = new_table(["VCS", "state", "USP", "vPPB", "status", "port", "LD"]);
    let rows = switches.iter().map(|switch| {
        let state = match switch.state {
            vcs_state::DISABLED => "disabled",
            vcs_state::ENABLED => "enabled",
            vcs_state::INVALID => "invalid",
            _ => "reserved",
        };
        let numbered = (0u8..).zip(&switch.vppbs);
        let shown: Vec<(u8, &Vppb)> = numbered.filter(|(_, vppb)| all || is_used(vppb.status)).collect();
        let head = [switch.id.to_string(), state.to_owned(), switch.usp.to_string()];
        if shown.is_empty() {
            table.add_row([head.as_slice(), &["-".into(), "-".into(), "-".into(), "-".into()]].concat());
        }
        let vppbs = shown.iter().map(|(number, vppb)| {
            let status = vppb_status(vppb);
            let bound = is_used(vppb.status);
            let port = bound.then_some(vppb.port).filter(|port| *port != 0xFF);
            let ld = (vppb.ld != NO_LD).then_some(vppb.ld);
            let cell = |number: Option<u8>| number.map_or("-".to_owned(), |number| number.to_string());
            let cells = [number.to_string(), status.to_owned(), cell(port), cell(ld)];
            table.add_row([head.as_slice(), &cells].concat());
            json!({"vppb": number, "status": status, "port": port, "ld": ld})
        });
        let vppbs: Vec<Value> = vppbs.collect();
        json!({
            "vcs": switch.id, "state": state, "usp": switch.usp, "vppb_total": switch.vppb_total, "vppbs": vppbs,
        })
    });
    (rows.collect(), table)
}

pub fn background(status: &BackgroundStatus) -> JsonAndTable {
    let code = status.code.to_string();
    let rows = vec![
        ("operation", opcode(status.opcode)),
        ("running", if status.running { "yes" } else { "no" }.to_owned()),
        ("percent", status.percent.to_string()),
        ("result", if status.running { "-".to_owned() } else { code.clone() }),
    ];
    let value = json!({
        "opcode": format!("{:04x}", status.opcode), "operation": opcode(status.opcode),
        "running": status.running, "percent": status.percent, "return_code": status.code.number(), "result": code,
    });
    (value, sheet(rows))
}

pub fn effects(entries: &[CommandEffect]) -> JsonAndTable {
    let mut table = new_table(["opcode", "command", "effects"]);
    let rows = entries.iter().map(|entry| {
        let (number, name) = (format!("{:04x}", entry.opcode), opcode(entry.opcode));
        table.add_row([number.clone(), name.clone(), entry.effects.to_string()]);
        json!({"opcode": number, "command": name, "effects": entry.effects.0})
    });
    (rows.collect(), table)
}

fn happening(happening: &EventContent) -> String {
    match happening {
        EventContent::Link(port) => {
            let link = if port.ltssm == LTSSM_L0 { "up" } else { "down" };
            let reset = if port.link_flags & LINK_PERST != 0 { ", held in reset" } else { "" };
            format!("link of port {} {link}{reset}", port.port)
        }
        EventContent::Binding { vcs, vppb, status, port, ld } => {
            let (vppb_is, ld) = (vppb_status(&Vppb { status: *status, port: *port, ld: *ld }), *ld);
            let to = match status {
                VppbStatus::BoundLd => format!(" to port {port}, LD {ld}"),
                VppbStatus::BoundPort => format!(" to port {port}"),
                _ => String::new(),
            };
            format!("vPPB {vppb} of VCS {vcs} {vppb_is}{to}")
        }
        EventContent::Capacity { change, host, extent, .. } => {
            let what = match change {
                0 => "added to",
                1 | 2 => "to be released by",
                _ => "changed at",
            };
            format!("{} at {:#x} {what} host {host}", human_bytes(extent.length), extent.dpa)
        }
        EventContent::Other { id, .. } => format!("record {}", hexadecimal(id)),
    }
}

pub fn events(logs: &[(u8, Events)]) -> JsonAndTable {
    let mut table = new_table(["log", "handle", "time", "event"]);
    let mut all = Vec::new();
    for (log, events) in logs {
        let name = Log::from_number(*log).map_or_else(|| log.to_string(), |log| log.name().to_owned());
        let rows = events.records.iter().map(|record| {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(record.time_ns);
            let (time, what) =
                (humantime::format_rfc3339_millis(time).to_string(), happening(&record.happening));
            table.add_row([name.clone(), record.handle.to_string(), time.clone(), what.clone()]);
            json!({"handle": record.handle, "severity": record.severity, "time": time, "event": what})
        });
        let records: Vec<Value> = rows.collect();
        let lost = events.overflow.map(|overflow| overflow.count);
        if let Some(lost) = lost {
            table.add_row([name.clone(), "-".into(), "-".into(), format!("{lost} events were forgotten")]);
        }
        all.push(json!({"log": name, "more": events.more, "lost": lost, "records": records}));
    }
    (all.into(), table)
}

/// Memory size and number of LDs of a multi-logical device.
pub fn ld_info(info: &LdInfo) -> JsonAndTable {
    let rows = vec![("memory", human_bytes(info.memory_size)), ("LDs", info.ld_count.to_string())];
    (json!({"memory_size": info.memory_size, "ld_count": info.ld_count, "qos": info.qos}), sheet(rows))
}

pub fn allocations(all: &LdAllocations) -> JsonAndTable {
    let mut table = new_table(["LD", "reserved"]);
    let unit = ALLOCATION_UNIT << all.granularity.min(2);
    let rows = (u16::from(all.first)..).zip(&all.allocations).map(|(ld, allocation)| {
        let units = allocation.range_1.saturating_add(allocation.range_2);
        let bytes = units.saturating_mul(unit);
        table.add_row([ld.to_string(), human_bytes(bytes)]);
        json!({"ld": ld, "reserved": bytes})
    });
    (rows.collect(), table)
}

pub fn qos(control: &QosControl, status: QosStatus, allocated: &[u8], limit: &[u8]) -> JsonAndTable {
    let list = |fractions: &[u8]| fractions.iter().map(u8::to_string).collect::<Vec<_>>().join(" ");
    let rows = vec![
        ("egress port congestion", if control.enables & 1 != 0 { "on" } else { "off" }.to_owned()),
        ("temporary throughput reduction", if control.enables & 2 != 0 { "on" } else { "off" }.to_owned()),
        ("moderate, severe", format!("{} %, {} %", control.moderate, control.severe)),
        ("backpressure", format!("{} %", status.backpressure)),
        ("allocated, 256ths by LD", list(allocated)),
        ("limit, 256ths by LD", list(limit)),
    ];
    let value = json!({
        "enables": control.enables, "moderate": control.moderate, "severe": control.severe,
        "interval": control.interval, "request_basis": control.request_basis,
        "completion_interval": control.completion_interval, "backpressure": status.backpressure,
        "allocated": allocated, "limit": limit,
    });
    (value, sheet(rows))
}

pub fn dcd_info(info: &dcd::DcdInfo) -> JsonAndTable {
    let capacity = info.capacity.saturating_mul(dcd::CAPACITY_UNIT);
    let rows = vec![
        ("hosts", info.hosts.to_string()),
        ("regions of each", info.regions.to_string()),
        ("capacity", human_bytes(capacity)),
        ("block sizes, bit by bit", format!("{:#x}", info.block_sizes[0])),
    ];
    let value = json!({
        "hosts": info.hosts, "regions": info.regions, "add_policies": info.add_policies,
        "removal_policies": info.removal_policies, "capacity": capacity, "block_sizes": info.block_sizes,
    });
    (value, sheet(rows))
}

pub fn dc_regions(regions: &dcd::HostRegions) -> JsonAndTable {
    let mut table = new_table(["region", "base", "length", "block"]);
    let rows = (0u8..).zip(&regions.regions).map(|(number, region)| {
        let (base, length) = (format!("{:#x}", region.base), human_bytes(region.length));
        table.add_row([number.to_string(), base, length, human_bytes(region.block_size)]);
        json!({
            "region": number, "base": region.base, "length": region.length, "block_size": region.block_size,
            "sanitize": region.sanitize & 1 != 0,
        })
    });
    let rows: Vec<Value> = rows.collect();
    (json!({"ld": regions.host, "regions": rows, "extents_free": regions.extents_free}), table)
}

/// A tag as text if it is printable, else in hexadecimal.
fn tag(tag: &dcd::Tag) -> String {
    let end = tag.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    match std::str::from_utf8(&tag[..end]) {
        Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => text.to_owned(),
        _ => hexadecimal(tag),
    }
}

pub fn extents(extents: &dcd::Extents) -> JsonAndTable {
    let mut table = new_table(["DPA", "length", "tag"]);
    let rows = extents.extents.iter().map(|extent| {
        table.add_row([format!("{:#x}", extent.dpa), human_bytes(extent.length), tag(&extent.tag)]);
        json!({"dpa": extent.dpa, "length": extent.length, "tag": tag(&extent.tag)})
    });
    let rows: Vec<Value> = rows.collect();
    (json!({"ld": extents.host, "total": extents.total, "extents": rows}), table)
}

/// Hexadecimal dump of `bytes`, sixteen per row; `offset` is the address of the first byte.
pub fn bytes(offset: u64, bytes: &[u8]) -> JsonAndTable {
    let mut table = new_table(["offset", "bytes"]);
    for (row, bytes) in (0u64..).zip(bytes.chunks(16)) {
        let spaced: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        table.add_row([format!("{:#06x}", offset + 16 * row), spaced.join(" ")]);
    }
    (json!({"offset": offset, "bytes": hexadecimal(bytes)}), table)
}

/// True if the vPPB is bound, or is currently being bound or unbound.
pub fn is_used(status: VppbStatus) -> bool {
    status != VppbStatus::Unbound
}
