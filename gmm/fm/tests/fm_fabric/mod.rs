//! A fabric in memory for tests of the FM API: it does what it is told at once, but bindings, which wait until the test
//! finishes them. A listener over it, and packets written and read byte by byte.
#![allow(dead_code, reason = "each test uses its part of this")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cxloe_fm::answer::{Session, answer};
use cxloe_fm::dcd::Tag;
use cxloe_fm::event_record::Log;
use cxloe_fm::fabric::*;
use cxloe_fm::header::ReturnCode;
use cxloe_fm::listener::{Answerer, FmConfig, FmListener};
use cxloe_fm::opcode::Opcode;

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// Bytes from hexadecimal digits; anything else between them is for the reader.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    assert!(digits.len().is_multiple_of(2), "half a byte in {text}");
    digits.chunks_exact(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

/// A switch with an MLD of 4 GiB at port 0, an SLD of 1 GiB at port 3, and the hosts 0 and 2, the latter not reachable.
#[derive(Debug, Clone)]
pub struct MemoryFabric {
    pub hosts: Vec<Host>,
    pub devices: Vec<Device>,
    pub operation: Option<Operation>,
    pub qos: Qos,
    pub command: u16,
    pub logs: Vec<(Source, Log, EventLog)>,
    /// What was asked of it beside what can be seen.
    pub asked: Vec<String>,
    /// Refuses changes with this.
    pub refusal: Option<ReturnCode>,
    /// How many more times.
    pub refusals: u32,
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

    /// The LD, made if it is not there.
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

    /// Ends the background operation.
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

    fn events(&self, source: Source, log: Log) -> EventLog {
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

    fn clear_events(&mut self, source: Source, log: Log, through: u64) -> Result<(), ReturnCode> {
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

/// Answers over a fabric that the test can reach as well. Switch 1 is busy with other things for ever.
#[derive(Clone)]
pub struct Shared(pub Arc<Mutex<MemoryFabric>>);

impl Shared {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(MemoryFabric::new())))
    }
}

impl Answerer for Shared {
    async fn answer(
        &self,
        switch: u32,
        mut session: Session,
        message: Vec<u8>,
    ) -> Result<(Session, Option<Vec<u8>>), ReturnCode> {
        if switch == 1 {
            std::future::pending::<()>().await;
        }
        let response = answer(&mut *self.0.lock().unwrap(), &mut session, &message);
        Ok((session, response))
    }
}

/// How long anything may take to come about before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A listener over a fabric in memory, in threads of its own, until it is dropped.
pub struct Serving {
    pub addresses: Vec<SocketAddr>,
    runtime: tokio::runtime::Runtime,
}

impl Serving {
    pub fn start(shared: &Shared, change: impl FnOnce(&mut FmConfig)) -> Self {
        let mut config = FmConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.answer_within = PATIENCE;
        change(&mut config);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(FmListener::start(config, shared.clone())).unwrap();
        let addresses = listener.addresses().to_vec();
        runtime.spawn(listener.serve());
        Self { addresses, runtime }
    }

    /// From another address of this machine.
    pub fn connect_from(&self, from: [u8; 4], switch: usize) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        let stream = self.runtime.block_on(socket.connect(self.addresses[switch])).unwrap();
        let stream = stream.into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        Self::patient(stream)
    }

    pub fn connect(&self, switch: usize) -> TcpStream {
        Self::patient(TcpStream::connect(self.addresses[switch]).unwrap())
    }

    fn patient(stream: TcpStream) -> TcpStream {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

/// A message as packets: those of a client, `sent` packets after its first.
pub fn packets(sent: &mut u8, tag: u8, kind: u8, body: &[u8]) -> Vec<u8> {
    let content = [&[kind], body].concat();
    let count = content.len().div_ceil(64);
    let mut bytes = Vec::new();
    for (index, part) in content.chunks(64).enumerate() {
        let (som, eom) = (u8::from(index == 0) << 7, u8::from(index + 1 == count) << 6);
        bytes.extend([1, 0, 0, som | eom | (*sent & 3) << 4 | 8 | tag]);
        bytes.extend(part);
        bytes.resize((index + 1) * 68, 0);
        *sent = sent.wrapping_add(1);
    }
    bytes
}

pub fn send(stream: &mut TcpStream, sent: &mut u8, tag: u8, kind: u8, body: &[u8]) {
    stream.write_all(&packets(sent, tag, kind, body)).unwrap();
}

/// A message with its last packet's padding.
#[derive(Debug, Clone)]
pub struct Received {
    pub kind: u8,
    pub tag: u8,
    pub body: Vec<u8>,
}

/// The next message, which is one from a server: no tag owner, packets in sequence.
pub fn receive(stream: &mut TcpStream) -> Received {
    let mut content = Vec::new();
    let mut due = None;
    loop {
        let mut packet = [0; 68];
        stream.read_exact(&mut packet).unwrap();
        let (flags, sequence) = (packet[3], packet[3] >> 4 & 3);
        assert_eq!((packet[0], flags >> 7 == 1, flags & 8), (1, content.is_empty(), 0), "{packet:?}");
        assert!(due.is_none_or(|due| due == sequence), "{packet:?}");
        due = Some((sequence + 1) & 3);
        content.extend(&packet[4..]);
        if flags & 0x40 != 0 {
            return Received { kind: content[0], tag: flags & 7, body: content.split_off(1) };
        }
    }
}
