//! Answers to request messages: one response to each, whatever its content, and without waiting.
//!
//! ```text
//!   header, payload --> switch: 00xx 01xx 04xx 51xx 52xx 53xx
//!                          5300h |  message within the message
//!                                v
//!                       device: 00xx 01xx 04xx 54xx 56xx
//! ```
//!
//! Files: this one finds the component of a request and answers the commands of all components; `events` those of event
//! logs; `switch`, `mld` and `dynamic_capacity` those of one kind of component.

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
use super::fabric::{Device, DeviceKind, Fabric, LogSource};
use super::header::{Category, Dialect, HEADER_BYTES, Header, ReturnCode};
use super::identity::{DEVICE_MEMORY, DEVICE_SWITCH, VENDOR};
use super::opcode::{CommandEffect, Component, Opcode};

/// Binary logarithm of [`MESSAGE_MAX`]: room for the vPPBs of all virtual switches in one message.
pub(crate) const MESSAGE_MAX_LOG2: u8 = 17;
/// Maximum length of a message in either direction, in bytes.
pub const MESSAGE_MAX: usize = 1 << MESSAGE_MAX_LOG2;

/// Header layout and response limit that a client has chosen for its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAgreements {
    /// Layout of the headers that the client sends and receives.
    pub dialect: Dialect,
    /// Binary logarithm of the longest response in bytes.
    pub response_limit: u8,
}

impl ClientAgreements {
    /// Returns the settings of a new connection: this header layout, and the largest response limit.
    pub fn new(dialect: Dialect) -> Self {
        Self { dialect, response_limit: MESSAGE_MAX_LOG2 }
    }
}

/// Result of a command that was carried out.
enum CommandResponse {
    /// The command is complete; this is the payload of the response.
    Now(Vec<u8>),
    /// The command continues in the background.
    InBackground,
}

impl<P: Payload> From<P> for CommandResponse {
    fn from(payload: P) -> Self {
        Self::Now(payload.to_bytes())
    }
}

enum MessageTarget {
    Switch,
    Device(Device),
}

impl MessageTarget {
    fn component(&self) -> Component {
        match self {
            Self::Switch => Component::Switch,
            Self::Device(Device { kind: DeviceKind::Mld, .. }) => Component::Mld,
            Self::Device(Device { kind: DeviceKind::Sld, .. }) => Component::Sld,
        }
    }

    fn source(&self) -> LogSource {
        match self {
            Self::Switch => LogSource::Switch,
            Self::Device(device) => LogSource::Device(device.port),
        }
    }
}

struct RequestContext<'a> {
    fabric: &'a mut dyn Fabric,
    session: &'a mut ClientAgreements,
}

/// Returns the response to `message` (header and payload; further bytes are ignored), or `None` if it is not
/// a request.
pub fn answer(fabric: &mut dyn Fabric, session: &mut ClientAgreements, message: &[u8]) -> Option<Vec<u8>> {
    let room = 1 << session.response_limit;
    RequestContext { fabric, session }.respond(&MessageTarget::Switch, message, room)
}

/// Returns the response to a request that is too long to be received; `start` is its beginning.
pub fn refuse(dialect: Dialect, start: &[u8], code: ReturnCode) -> Option<Vec<u8>> {
    let header = Header::read(&mut super::bytes::Reader::new(&padded(start)), dialect).ok()?;
    let is_request = header.category == Category::Request;
    is_request.then(|| header.response(code, 0).with(&[], dialect))
}

/// Returns the message, extended with zeros if its header is incomplete.
fn padded(message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    message.resize(message.len().max(HEADER_BYTES), 0);
    message
}

impl RequestContext<'_> {
    /// Returns the response to `message`, of at most `room` bytes, but at least a header.
    fn respond(&mut self, target: &MessageTarget, message: &[u8], room: usize) -> Option<Vec<u8>> {
        let dialect = self.session.dialect;
        let mut message = padded(message);
        let header = Header::read(&mut super::bytes::Reader::new(&message), dialect).ok()?;
        if header.category != Category::Request {
            return None;
        }
        let end = HEADER_BYTES + header.length;
        // One client omits the last byte of a message if that saves a packet: the missing byte counts as 0.
        if message.len() + 1 == end {
            message.push(0);
        }
        let room = room.saturating_sub(HEADER_BYTES);
        let done = match message.get(HEADER_BYTES..end) {
            Some(payload) => self.carry_out(target, header.opcode, payload, room),
            None => Err(ReturnCode::InvalidPayloadLength),
        };
        let (code, payload) = match done {
            Ok(CommandResponse::Now(payload)) if payload.len() > room => {
                (ReturnCode::InternalError, Vec::new())
            }
            Ok(CommandResponse::Now(payload)) => (ReturnCode::Success, payload),
            Ok(CommandResponse::InBackground) => (ReturnCode::BackgroundStarted, Vec::new()),
            Err(code) => (code, Vec::new()),
        };
        Some(header.response(code, payload.len()).with(&payload, dialect))
    }

    fn carry_out(
        &mut self,
        target: &MessageTarget,
        opcode: u16,
        payload: &[u8],
        room: usize,
    ) -> Result<CommandResponse, ReturnCode> {
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
                MessageTarget::Switch => self.switch_command(opcode, payload, room),
                MessageTarget::Device(device) if opcode.number() >> 8 == 0x56 => {
                    self.dynamic_capacity_command(device, opcode, payload, room)
                }
                MessageTarget::Device(device) => self.mld_command(device, opcode, payload),
            },
        }
    }

    fn identity(&self, target: &MessageTarget) -> Identity {
        let (device, serial, component_type) = match target {
            MessageTarget::Switch => (DEVICE_SWITCH, self.fabric.serial(), TYPE_SWITCH),
            MessageTarget::Device(device) => (DEVICE_MEMORY, device.serial, TYPE_3),
        };
        let (vendor, message_max) = (VENDOR, MESSAGE_MAX_LOG2);
        let (subsystem_vendor, subsystem) = (vendor, device);
        Identity { vendor, device, subsystem_vendor, subsystem, serial, message_max, component_type }
    }

    fn background_status(&self, target: &MessageTarget) -> BackgroundStatus {
        // Only switches have background operations.
        let operation = match target {
            MessageTarget::Switch => self.fabric.operation(),
            MessageTarget::Device(_) => None,
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

    fn set_response_limit(&mut self, limit: ResponseLimit) -> Result<CommandResponse, ReturnCode> {
        if !(LIMIT_MIN..=MESSAGE_MAX_LOG2).contains(&limit.n) {
            return Err(ReturnCode::InvalidInput);
        }
        self.session.response_limit = limit.n;
        Ok(limit.into())
    }
}

fn effects_log(target: &MessageTarget) -> Vec<u8> {
    let mut writer = super::bytes::Writer::default();
    writer.list(&CommandEffect::log_of(target.component()));
    writer.finish()
}

fn get_log(target: &MessageTarget, request: GetLog, room: usize) -> Result<CommandResponse, ReturnCode> {
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
    Ok(CommandResponse::Now(part.to_vec()))
}

/// Returns the range of `count` entries from `first` on, of `total` existing ones.
///
/// # Errors
/// [`ReturnCode::InvalidInput`] if the range exceeds `total`.
fn within(first: u8, count: usize, total: u8) -> Result<std::ops::Range<usize>, ReturnCode> {
    let first = usize::from(first);
    let end = first + count;
    if end <= usize::from(total) { Ok(first..end) } else { Err(ReturnCode::InvalidInput) }
}
