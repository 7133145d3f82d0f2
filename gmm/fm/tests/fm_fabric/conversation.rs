//! A connection to a fabric in memory: sends requests given in hexadecimal, and returns return codes and payloads.

use std::net::TcpStream;

use cxloe_fm::header::Dialect;

use super::{MemoryFabric, Serving, Shared, hex, receive, send};

pub const BUSY: u16 = 6;
pub const INVALID: u16 = 2;
pub const UNSUPPORTED: u16 = 3;
pub const RETRY: u16 = 5;
pub const LENGTH: u16 = 0x16;

pub struct Conversation {
    pub fabric: MemoryFabric,
    shared: Shared,
    _serving: Serving,
    stream: TcpStream,
    sent: u8,
}

impl Conversation {
    pub fn new() -> Self {
        Self::with(Dialect::Tools)
    }

    pub fn with(dialect: Dialect) -> Self {
        let shared = Shared::new();
        let serving = Serving::start(&shared, |config| config.dialect = dialect);
        let stream = serving.connect(0);
        Self { fabric: MemoryFabric::new(), shared, _serving: serving, stream, sent: 0 }
    }

    /// Sends a message (header and payload) and returns the response. `None` if the response to a control message that
    /// is sent afterwards arrives first.
    pub fn raw(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        *self.shared.0.lock().unwrap() = self.fabric.clone();
        send(&mut self.stream, &mut self.sent, 3, 7, message);
        send(&mut self.stream, &mut self.sent, 4, 0, &[0x81, 2]);
        let first = receive(&mut self.stream);
        let answered = first.tag == 3;
        let control = if answered { receive(&mut self.stream) } else { first.clone() };
        assert_eq!((control.kind, control.tag, &control.body[..6]), (0, 4, [1, 2, 0, 0, 0, 0].as_slice()));
        self.fabric = self.shared.0.lock().unwrap().clone();
        answered.then(|| {
            // The padding of the last packet is removed.
            let length = usize::from(u16::from_le_bytes([first.body[5], first.body[6]]));
            let beyond = if first.body[0] == 0x10 { first.body[7] >> 3 } else { first.body[7] & 0x1F };
            let end = 12 + length + (usize::from(beyond) << 16);
            assert_eq!((first.kind, first.body.len() / 64), (7, end / 64), "packets");
            assert!(first.body[end..].iter().all(|byte| *byte == 0));
            first.body[..end].to_vec()
        })
    }

    /// Sends a request, and returns the return code and payload of the response.
    #[track_caller]
    pub fn ask(&mut self, opcode: u16, payload: &str) -> (u16, Vec<u8>) {
        let payload = hex(payload);
        let [o0, o1] = opcode.to_le_bytes();
        let [l0, l1, l2, ..] = payload.len().to_le_bytes();
        let request = [&[0, 0x5A, 0, o0, o1, l0, l1, l2 << 3, 0, 0, 0, 0], payload.as_slice()].concat();
        let response = self.raw(&request).expect("every request is answered");
        let (header, payload) = response.split_at(12);
        let background = u8::from(header[8] == 1);
        let length = payload.len();
        let [l0, l1, l2, ..] = length.to_le_bytes();
        assert_eq!(header, [0x10, 0x5A, 0, o0, o1, l0, l1, l2 << 3 | background, header[8], 0, 0, 0]);
        (header[8].into(), payload.to_vec())
    }

    /// Sends a request as [`ask`](Self::ask) does, through the tunnel to the device at a port.
    #[track_caller]
    pub fn tunnel(&mut self, port: u8, opcode: u16, payload: &str) -> (u16, Vec<u8>) {
        let payload = hex(payload);
        let [o0, o1] = opcode.to_le_bytes();
        let [s0, s1, ..] = (payload.len() + 13).to_le_bytes();
        let [l0, l1, ..] = payload.len().to_le_bytes();
        let inner = [&[8, 0, 0x33, 0, o0, o1, l0, l1, 0, 0, 0, 0, 0], payload.as_slice()].concat();
        let request: String =
            [&[port, 0, s0, s1], inner.as_slice()].concat().iter().map(|b| format!("{b:02x}")).collect();
        let (code, response) = self.ask(0x5300, &request);
        assert_eq!(code, 0);
        let size = usize::from(u16::from_le_bytes([response[0], response[1]]));
        assert_eq!((&response[2..8], size), ([0, 0, 8, 0x10, 0x33, 0].as_slice(), response.len() - 4));
        let (header, payload) = response[5..].split_at(12);
        assert_eq!((&header[3..5], usize::from(header[5])), ([o0, o1].as_slice(), payload.len() & 0xFF));
        (header[8].into(), payload.to_vec())
    }

    #[track_caller]
    pub fn gives(&mut self, opcode: u16, payload: &str, response: &str) {
        assert_eq!(self.ask(opcode, payload), (0, hex(response)));
    }

    #[track_caller]
    pub fn refuses(&mut self, opcode: u16, payload: &str, code: u16) {
        assert_eq!(self.ask(opcode, payload), (code, vec![]));
    }

    #[track_caller]
    pub fn device_gives(&mut self, opcode: u16, payload: &str, response: &str) {
        assert_eq!(self.tunnel(0, opcode, payload), (0, hex(response)));
    }

    #[track_caller]
    pub fn device_refuses(&mut self, opcode: u16, payload: &str, code: u16) {
        assert_eq!(self.tunnel(0, opcode, payload), (code, vec![]));
    }
}
