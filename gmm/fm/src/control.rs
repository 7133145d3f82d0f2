//! Control messages of MCTP (Management Component Transport Protocol; DMTF DSP0236, section 12), by which a
//! bus owner identifies an endpoint. Over TCP there is no bus, so an assigned endpoint id is recorded and has
//! no further effect.

use super::mctp::{TYPE_CCI, TYPE_CONTROL, TYPE_FM_API};

/// Completion code: success.
const SUCCESS: u8 = 0x00;
/// Completion code: a field has an invalid value.
const INVALID_DATA: u8 = 0x02;
/// Completion code: too few bytes.
const INVALID_LENGTH: u8 = 0x03;
/// Completion code: unknown command.
const UNSUPPORTED: u8 = 0x05;
/// Completion code of Get Version: unknown message type.
const TYPE_UNSUPPORTED: u8 = 0x80;

const SET_EID: u8 = 0x01;
const GET_EID: u8 = 0x02;
const GET_UUID: u8 = 0x03;
const GET_VERSION: u8 = 0x04;
const GET_TYPES: u8 = 0x05;

const REQUEST: u8 = 1 << 7;
const DATAGRAM: u8 = 1 << 6;
const INSTANCE: u8 = 0x1F;
/// Message type that stands for MCTP itself in Get Version.
const TYPE_BASE: u8 = 0xFF;

/// The endpoint at the manager's end of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Endpoint id that the client has assigned; 0: none.
    pub eid: u8,
    /// UUID of the endpoint, the same for all connections to one switch.
    pub uuid: [u8; 16],
}

impl Endpoint {
    /// Returns the endpoint of a switch, without an id. Its UUID (version 8) is derived from the numbers of
    /// fabric and switch.
    pub fn of_switch(fabric: u64, switch: u32) -> Self {
        let mut uuid = [0; 16];
        let [first @ .., before_last, last] = fabric.to_be_bytes();
        uuid[..6].copy_from_slice(&first);
        // Version and variant bits of RFC 9562.
        (uuid[6], uuid[7], uuid[8], uuid[9]) = (0x80, before_last, 0x80, last);
        uuid[12..].copy_from_slice(&switch.to_be_bytes());
        Self { eid: 0, uuid }
    }

    /// Returns the response to the control message `body`, which does not include the message type; `None` if the
    /// message is not a request or has no response.
    pub fn answer(&mut self, body: &[u8]) -> Option<Vec<u8>> {
        let (&first, rest) = body.split_first()?;
        let (&command, data) = rest.split_first()?;
        if first & REQUEST == 0 {
            return None;
        }
        let (code, data) = match self.carry_out(command, data) {
            Ok(data) => (SUCCESS, data),
            Err(code) => (code, Vec::new()),
        };
        let wanted = first & DATAGRAM == 0;
        wanted.then(|| [&[first & INSTANCE, command, code], data.as_slice()].concat())
    }

    fn carry_out(&mut self, command: u8, data: &[u8]) -> Result<Vec<u8>, u8> {
        match command {
            SET_EID => {
                let [operation, eid] = *data.first_chunk().ok_or(INVALID_LENGTH)?;
                match operation & 3 {
                    // 0 and FFh are reserved; operation 3 (set the discovered flag) is for other buses.
                    0 | 1 if !matches!(eid, 0 | 0xFF) => self.eid = eid,
                    2 => self.eid = 0,
                    _ => return Err(INVALID_DATA),
                }
                // The response: the id is accepted, and there is no pool of ids.
                Ok(vec![0, self.eid, 0])
            }
            // The response: the id, and that this is a simple endpoint with a dynamic id.
            GET_EID => Ok(vec![self.eid, 0, 0]),
            GET_UUID => Ok(self.uuid.to_vec()),
            GET_VERSION => {
                let kind = *data.first().ok_or(INVALID_LENGTH)?;
                // Versions: 1.3.1 of MCTP and its control messages, 1.0 of the CXL bindings.
                match kind {
                    TYPE_BASE | TYPE_CONTROL => Ok(vec![1, 0xF1, 0xF3, 0xF1, 0x00]),
                    TYPE_FM_API | TYPE_CCI => Ok(vec![1, 0xF1, 0xF0, 0xFF, 0x00]),
                    _ => Err(TYPE_UNSUPPORTED),
                }
            }
            GET_TYPES => Ok(vec![2, TYPE_FM_API, TYPE_CCI]),
            _ => Err(UNSUPPORTED),
        }
    }
}
