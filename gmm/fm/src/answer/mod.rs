//! Answers: a message in, the response to it out. Every request gets one, whatever it holds; nothing here waits.
//!
//! ```text
//!   header, payload --> switch: 00xx 01xx 04xx 51xx 52xx 53xx
//!                          5300h |  message within the message
//!                                v
//!                       device: 00xx 01xx 04xx 54xx 56xx
//! ```
//!
//! Files: this one finds who is asked and answers what every component answers; `events` its logs of events; `switch`,
//! `mld` and `dynamic_capacity` what only one kind does.

mod dynamic_capacity;
mod events;
mod mld;
mod switch;

pub use dynamic_capacity::extent;
pub use switch::{device_port, host_port};

use super::bytes::Payload;
use super::component::{
    BackgroundStatus, COMMAND_EFFECTS_LOG, GetLog, Identity, LIMIT_MIN, LogEntry, ResponseLimit,
    SupportedLogs, TYPE_3, TYPE_SWITCH,
};
use super::fabric::{Device, DeviceKind, Fabric, Source};
use super::header::{Category, Dialect, HEADER_BYTES, Header, ReturnCode};
use super::identity::{DEVICE_MEMORY, DEVICE_SWITCH, VENDOR};
use super::opcode::{CommandEffect, Component, Opcode};

/// The longest message either way has `2^n` bytes: room for all vPPBs of all virtual switches at once.
pub const MESSAGE_MAX_LOG2: u8 = 17;
/// The longest message either way in bytes.
pub const MESSAGE_MAX: usize = 1 << MESSAGE_MAX_LOG2;

/// What is agreed on with who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// How headers are written.
    pub dialect: Dialect,
    /// Responses have at most `2^n` bytes.
    pub response_limit: u8,
}

impl Session {
    /// That of a new connection.
    pub fn new(dialect: Dialect) -> Self {
        Self { dialect, response_limit: MESSAGE_MAX_LOG2 }
    }
}

/// A command that was carried out.
enum Done {
    /// All of it; with this payload.
    Now(Vec<u8>),
    /// It goes on.
    InBackground,
}

impl<P: Payload> From<P> for Done {
    fn from(payload: P) -> Self {
        Self::Now(payload.to_bytes())
    }
}

/// Who a message is for.
enum Target {
    Switch,
    Device(Device),
}

impl Target {
    fn component(&self) -> Component {
        match self {
            Self::Switch => Component::Switch,
            Self::Device(Device { kind: DeviceKind::Mld, .. }) => Component::Mld,
            Self::Device(Device { kind: DeviceKind::Sld, .. }) => Component::Sld,
        }
    }

    fn source(&self) -> Source {
        match self {
            Self::Switch => Source::Switch,
            Self::Device(device) => Source::Device(device.port),
        }
    }
}

/// Everything a command is carried out with.
struct RequestContext<'a> {
    fabric: &'a mut dyn Fabric,
    session: &'a mut Session,
}

/// The response to `message` (header and payload; more bytes behind them do not matter). `None`: it is no request.
pub fn answer(fabric: &mut dyn Fabric, session: &mut Session, message: &[u8]) -> Option<Vec<u8>> {
    let room = 1 << session.response_limit;
    RequestContext { fabric, session }.respond(&Target::Switch, message, room)
}

/// The response to a request that is too long to be taken in, of which this is the beginning.
pub fn refuse(dialect: Dialect, start: &[u8], code: ReturnCode) -> Option<Vec<u8>> {
    let header = Header::read(&mut super::bytes::Reader::new(&padded(start)), dialect).ok()?;
    let is_request = header.category == Category::Request;
    is_request.then(|| header.response(code, 0).with(&[], dialect))
}

/// A message with zeros for what is missing of its header.
fn padded(message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    message.resize(message.len().max(HEADER_BYTES), 0);
    message
}

impl RequestContext<'_> {
    /// The response, of at most `room` bytes if that is enough for a header.
    fn respond(&mut self, target: &Target, message: &[u8], room: usize) -> Option<Vec<u8>> {
        let dialect = self.session.dialect;
        let mut message = padded(message);
        let header = Header::read(&mut super::bytes::Reader::new(&message), dialect).ok()?;
        if header.category != Category::Request {
            return None;
        }
        let end = HEADER_BYTES + header.length;
        // One client leaves the last byte out when that saves it a packet.
        if message.len() + 1 == end {
            message.push(0);
        }
        let room = room.saturating_sub(HEADER_BYTES);
        let done = match message.get(HEADER_BYTES..end) {
            Some(payload) => self.carry_out(target, header.opcode, payload, room),
            None => Err(ReturnCode::InvalidPayloadLength),
        };
        let (code, payload) = match done {
            Ok(Done::Now(payload)) if payload.len() > room => (ReturnCode::InternalError, Vec::new()),
            Ok(Done::Now(payload)) => (ReturnCode::Success, payload),
            Ok(Done::InBackground) => (ReturnCode::BackgroundStarted, Vec::new()),
            Err(code) => (code, Vec::new()),
        };
        Some(header.response(code, payload.len()).with(&payload, dialect))
    }

    fn carry_out(
        &mut self,
        target: &Target,
        opcode: u16,
        payload: &[u8],
        room: usize,
    ) -> Result<Done, ReturnCode> {
        let opcode = Opcode::from_number(opcode).ok_or(ReturnCode::Unsupported)?;
        if !opcode.is_of(target.component()) {
            return Err(ReturnCode::Unsupported);
        }
        match opcode {
            Opcode::Identify => {
                <()>::from_bytes(payload)?;
                Ok(self.identity(target).into())
            }
            Opcode::BackgroundStatus => {
                <()>::from_bytes(payload)?;
                Ok(self.background_status(target).into())
            }
            Opcode::GetResponseLimit => {
                <()>::from_bytes(payload)?;
                Ok(ResponseLimit { n: self.session.response_limit }.into())
            }
            Opcode::SetResponseLimit => self.set_response_limit(ResponseLimit::from_bytes(payload)?),
            Opcode::GetEventRecords => self.get_events(target.source(), payload, room),
            Opcode::ClearEventRecords => self.clear_events(target.source(), payload),
            Opcode::GetSupportedLogs => {
                <()>::from_bytes(payload)?;
                let size = super::bytes::count_u32(effects_log(target).len());
                Ok(SupportedLogs { logs: vec![LogEntry { id: COMMAND_EFFECTS_LOG, size }] }.into())
            }
            Opcode::GetLog => get_log(target, GetLog::from_bytes(payload)?, room),
            opcode => match target {
                Target::Switch => self.switch_command(opcode, payload, room),
                Target::Device(device) if opcode.number() >> 8 == 0x56 => {
                    self.dynamic_capacity_command(device, opcode, payload, room)
                }
                Target::Device(device) => self.mld_command(device, opcode, payload),
            },
        }
    }

    fn identity(&self, target: &Target) -> Identity {
        let (device, serial, component_type) = match target {
            Target::Switch => (DEVICE_SWITCH, self.fabric.serial(), TYPE_SWITCH),
            Target::Device(device) => (DEVICE_MEMORY, device.serial, TYPE_3),
        };
        let (vendor, message_max) = (VENDOR, MESSAGE_MAX_LOG2);
        let (subsystem_vendor, subsystem) = (vendor, device);
        Identity { vendor, device, subsystem_vendor, subsystem, serial, message_max, component_type }
    }

    fn background_status(&self, target: &Target) -> BackgroundStatus {
        // Devices do everything at once.
        let operation = match target {
            Target::Switch => self.fabric.operation(),
            Target::Device(_) => None,
        };
        let idle =
            BackgroundStatus { running: false, percent: 0, opcode: 0, code: ReturnCode::Success, vendor: 0 };
        operation.map_or(idle, |operation| BackgroundStatus {
            running: operation.outcome.is_none(),
            percent: operation.percent.min(100),
            opcode: operation.opcode.number(),
            code: operation.outcome.unwrap_or(ReturnCode::Success),
            ..idle
        })
    }

    fn set_response_limit(&mut self, limit: ResponseLimit) -> Result<Done, ReturnCode> {
        if !(LIMIT_MIN..=MESSAGE_MAX_LOG2).contains(&limit.n) {
            return Err(ReturnCode::InvalidInput);
        }
        self.session.response_limit = limit.n;
        Ok(limit.into())
    }
}

fn effects_log(target: &Target) -> Vec<u8> {
    let mut writer = super::bytes::Writer::default();
    writer.list(&CommandEffect::log_of(target.component()));
    writer.finish()
}

fn get_log(target: &Target, request: GetLog, room: usize) -> Result<Done, ReturnCode> {
    if request.id != COMMAND_EFFECTS_LOG {
        return Err(ReturnCode::InvalidInput);
    }
    let log = effects_log(target);
    let offset = usize::try_from(request.offset).map_err(|_| ReturnCode::InvalidInput)?;
    let length = usize::try_from(request.length).map_err(|_| ReturnCode::InvalidInput)?;
    let part = offset.checked_add(length).and_then(|end| log.get(offset..end));
    let part = part.ok_or(ReturnCode::InvalidInput)?;
    if part.len() > room {
        return Err(ReturnCode::InvalidInput);
    }
    Ok(Done::Now(part.to_vec()))
}

/// `first` and how many of `count` are meant, when all there are is `total`.
///
/// # Errors
/// [`ReturnCode::InvalidInput`] when that is not all within `total`.
fn within(first: u8, count: usize, total: u8) -> Result<std::ops::Range<usize>, ReturnCode> {
    let first = usize::from(first);
    let end = first + count;
    if end <= usize::from(total) { Ok(first..end) } else { Err(ReturnCode::InvalidInput) }
}
