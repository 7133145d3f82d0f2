//! A listener over a fabric in memory, and packets written and read byte by byte.
#![allow(dead_code, unused_imports, reason = "each test uses its part of this")]

mod conversation;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use conversation::*;
use cxloe_fm::answer::{ClientAgreements, answer};
use cxloe_fm::authenticator::{Answerer, Open};
use cxloe_fm::header::ReturnCode;
use cxloe_fm::listener::{FmConfig, FmListener};
pub use cxloe_fm::memory_fabric::{GIB, MIB, MemoryFabric};

/// Returns bytes from hexadecimal digits; other characters between them are ignored.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    assert!(digits.len().is_multiple_of(2), "half a byte in {text}");
    digits.chunks_exact(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

/// Fabric that the listener and the test share. Switch 1 never answers in time.
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
        mut session: ClientAgreements,
        message: Vec<u8>,
    ) -> Result<(ClientAgreements, Option<Vec<u8>>), ReturnCode> {
        if switch == 1 {
            std::future::pending::<()>().await;
        }
        let response = answer(&mut *self.0.lock().unwrap(), &mut session, &message);
        Ok((session, response))
    }
}

/// Time-out of every wait, after which the test fails.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A listener over a fabric in memory. It runs in separate threads until this value is dropped.
pub struct Serving {
    pub addresses: Vec<SocketAddr>,
    runtime: tokio::runtime::Runtime,
}

impl Serving {
    pub fn start(shared: &Shared, change: impl FnOnce(&mut FmConfig)) -> Self {
        Self::over(shared.clone(), change)
    }

    /// Serves what `answerer` answers.
    pub fn over(answerer: impl Answerer, change: impl FnOnce(&mut FmConfig)) -> Self {
        let mut config = FmConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.answer_within = TEST_TIMEOUT;
        change(&mut config);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(FmListener::start(config, Open(answerer))).unwrap();
        let addresses = listener.addresses().to_vec();
        runtime.spawn(listener.serve());
        Self { addresses, runtime }
    }

    /// Connects from another address of this machine, which the listener counts as another client.
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
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream
    }
}

/// Returns a message as packets of a client, the first of which has sequence number `sent`.
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

/// Received message, including the padding of its last packet.
#[derive(Debug, Clone)]
pub struct Received {
    pub kind: u8,
    pub tag: u8,
    pub body: Vec<u8>,
}

/// Receives the next message, and asserts that it is a response of a server: the tag-owner bit is clear, and the
/// packets are in sequence.
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
