//! A fabric in memory, for tests and fuzzing of the FM API. Changes are complete at once, except for bindings
//! and unbindings, which a test completes.

use crate::dcd::Tag;
use crate::event_record::Log;
use crate::fabric::*;
use crate::header::ReturnCode;
use crate::opcode::Opcode;

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// A switch with an MLD of 4 GiB at port 0, an SLD of 1 GiB at port 3, and the hosts 0 and 2; host 2 is not reachable.
#[derive(Debug, Clone)]
pub struct MemoryFabric {
    /// Hosts above the switch, which tests may change.
    pub hosts: Vec<Host>,
    /// Memory devices below the switch, which tests may change.
    pub devices: Vec<Device>,
    /// The present or latest background operation; a test ends it with [`finish`](MemoryFabric::finish).
    pub operation: Option<Operation>,
    /// Quality-of-service settings, which all devices share.
    pub qos: Qos,
    /// Value of the command register, which all LDs share.
    pub command: u16,
    /// Event logs, each with the component and the kind that it belongs to.
    pub logs: Vec<(LogSource, Log, EventLog)>,
    /// Calls whose effects a test cannot read back from the fabric, as texts, in the order of the calls.
    pub asked: Vec<String>,
    /// Return code with which changes are refused; none: changes are carried out.
    pub refusal: Option<ReturnCode>,
    /// Number of further changes to refuse.
    pub refusals: u32,
}

impl Default for MemoryFabric {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryFabric {
    pub fn new() -> Self {
        let mld = Device {
            port: 0,
            kind: DeviceKind::Mld,
            reachable: true,
            serial: 0x0102_0304,
            lanes: 2,
            pool_bytes: 4 * GIB,
            block_bytes: 2 * MIB,
            backpressure: 12,
            lds: Vec::new(),
        };
        let sld = Device {
            port: 3,
            kind: DeviceKind::Sld,
            lanes: 1,
            pool_bytes: GIB,
            backpressure: 0,
            ..mld.clone()
        };
        let host = |vcs, reachable| Host { vcs, reachable, held: false, slots: Vec::new() };
        Self {
            hosts: vec![host(0, true), host(2, false)],
            devices: vec![mld, sld],
            operation: None,
            qos: Qos::default(),
            command: 0,
            logs: Vec::new(),
            asked: Vec::new(),
            refusal: None,
            refusals: u32::MAX,
        }
    }

    fn refuse(&mut self) -> Result<(), ReturnCode> {
        let Some(code) = self.refusal.filter(|_| self.refusals > 0) else { return Ok(()) };
        self.refusals -= 1;
        Err(code)
    }

    /// Returns the LD with this id of the device at `port`, which is added if it does not exist.
    pub fn ld(&mut self, port: u8, id: u8) -> &mut LogicalDevice {
        let device = self.devices.iter_mut().find(|device| device.port == port).unwrap();
        if !device.lds.iter().any(|ld| ld.id == id) {
            device.lds.push(LogicalDevice { id, ..LogicalDevice::default() });
            device.lds.sort_by_key(|ld| ld.id);
        }
        device.lds.iter_mut().find(|ld| ld.id == id).unwrap()
    }

    fn slots(&mut self, vcs: u8) -> &mut Vec<Slot> {
        &mut self.hosts.iter_mut().find(|host| host.vcs == vcs).unwrap().slots
    }

    /// Ends the background operation, and the binding or unbinding of its vPPB, with this result.
    pub fn finish(&mut self, outcome: ReturnCode) {
        let operation = self.operation.as_mut().unwrap();
        (operation.percent, operation.outcome) = (100, Some(outcome));
        let unbound = operation.opcode == Opcode::UnbindVppb;
        let mut gone = Vec::new();
        for host in &mut self.hosts {
            gone.extend(host.slots.iter().filter(|slot| unbound && slot.in_progress).copied());
            host.slots.retain(|slot| !(unbound && slot.in_progress));
            host.slots.iter_mut().for_each(|slot| slot.in_progress = false);
        }
        for slot in gone {
            let ld = self.ld(slot.port.unwrap(), slot.ld.unwrap_or(0));
            ld.bound = false;
            ld.capacity.clear();
        }
    }
}

impl Fabric for MemoryFabric {
    fn serial(&self) -> u64 {
        0x0011_2233_4455_6677
    }

    fn hosts(&self) -> Vec<Host> {
        self.hosts.clone()
    }

    fn host(&self, vcs: u8) -> Option<Host> {
        self.hosts.iter().find(|host| host.vcs == vcs).cloned()
    }

    fn devices(&self) -> Vec<u8> {
        self.devices.iter().map(|device| device.port).collect()
    }

    fn device(&self, port: u8) -> Option<Device> {
        self.devices.iter().find(|device| device.port == port).cloned()
    }

    fn operation(&self) -> Option<Operation> {
        self.operation
    }

    fn qos(&self, _: u8) -> Qos {
        self.qos
    }

    fn command_register(&self, _: u8, _: u8) -> u16 {
        self.command
    }

    fn events(&self, source: LogSource, log: Log) -> EventLog {
        let found = self.logs.iter().find(|(of, kind, _)| (*of, *kind) == (source, log));
        found.map(|(_, _, log)| log.clone()).unwrap_or_default()
    }

    fn bind(&mut self, vcs: u8, vppb: u8, port: u8, ld: Option<u8>) -> Result<(), ReturnCode> {
        self.refuse()?;
        self.ld(port, ld.unwrap_or(0)).bound = true;
        self.slots(vcs).push(Slot { vppb, in_progress: true, port: Some(port), ld });
        self.operation = Some(Operation { opcode: Opcode::BindVppb, percent: 0, outcome: None });
        Ok(())
    }

    fn unbind(&mut self, vcs: u8, vppb: u8, how: Unbind) -> Result<(), ReturnCode> {
        self.refuse()?;
        self.slots(vcs).iter_mut().find(|slot| slot.vppb == vppb).unwrap().in_progress = true;
        self.operation = Some(Operation { opcode: Opcode::UnbindVppb, percent: 40, outcome: None });
        self.asked.push(format!("unbind {how:?}"));
        Ok(())
    }

    fn abort(&mut self) -> Result<(), ReturnCode> {
        self.refuse()?;
        self.asked.push("abort".to_owned());
        Ok(())
    }

    fn generate_aer(&mut self, vcs: u8, vppb: u8, error: u32) -> Result<(), ReturnCode> {
        self.refuse()?;
        self.asked.push(format!("aer {vcs} {vppb} {error:#x}"));
        Ok(())
    }

    fn hold(&mut self, vcs: u8, held: bool) -> Result<(), ReturnCode> {
        self.refuse()?;
        self.hosts.iter_mut().find(|host| host.vcs == vcs).unwrap().held = held;
        Ok(())
    }

    fn reserve(&mut self, port: u8, first: u8, bytes: &[u64]) -> Result<(), ReturnCode> {
        self.refuse()?;
        for (id, bytes) in (first..).zip(bytes) {
            self.ld(port, id).reserved = *bytes;
        }
        Ok(())
    }

    fn set_qos(&mut self, _: u8, qos: Qos) -> Result<(), ReturnCode> {
        self.refuse()?;
        self.qos = qos;
        Ok(())
    }

    fn set_command_register(&mut self, _: u8, _: u8, value: u16) {
        self.command = value;
    }

    fn add_capacity(&mut self, port: u8, ld: u8, bytes: u64, tag: Tag) -> Result<(), ReturnCode> {
        self.refuse()?;
        let ld = self.ld(port, ld);
        let dpa = ld.capacity.last().map_or(0, |last| last.dpa + last.bytes);
        ld.capacity.push(Capacity { dpa, bytes, tag });
        ld.generation += 1;
        Ok(())
    }

    fn release_capacity(&mut self, port: u8, ld: u8, tag: Tag, forced: bool) -> Result<(), ReturnCode> {
        self.refuse()?;
        let ld = self.ld(port, ld);
        ld.capacity.retain(|capacity| capacity.tag != tag);
        ld.generation += 1;
        self.asked.push(format!("release forced={forced}"));
        Ok(())
    }

    fn clear_events(&mut self, source: LogSource, log: Log, through: u64) -> Result<(), ReturnCode> {
        self.refuse()?;
        for (of, kind, log_now) in &mut self.logs {
            if (*of, *kind) == (source, log) {
                log_now.entries.retain(|entry| entry.seq > through);
                log_now.overflow = None;
            }
        }
        Ok(())
    }
}
