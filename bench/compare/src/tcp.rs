//! TCP sockets: the project's own client and server with one connection, without Nagle's delay. The memory is a vector
//! of the server.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::TcpListener;
use std::time::Instant;

use super::error::PeerError;
use super::measured::Measured;
use super::pattern::BLOCK;
use super::peer::{Facts, Peer};
use super::pipeline::Pipeline;
use super::plan::Plan;
use super::request::{DONE, HEADER, MemoryRequest};
use super::server::Server;
use super::stage::{FAR_ADDRESS, Stage};
use super::store::{Store, drive};
use super::stream::{PeerStream, Waiting};
use super::unit::{AccessUnit, LINE};

const PORT: u16 = 7500;
/// Number of blocks requested ahead in bulk patterns; enough to keep the connection busy.
const BLOCKS_AHEAD: usize = 16;
/// Bytes of answers that the server collects before it sends them.
const COLLECTED: usize = 256 << 10;

pub struct Tcp {
    pub waiting: Waiting,
}

impl Peer for Tcp {
    fn name(&self) -> &'static str {
        match self.waiting {
            Waiting::Spin => "tcp-spin",
            Waiting::Block => "tcp-block",
        }
    }

    fn facts(&self) -> Facts {
        Facts {
            what: match self.waiting {
                Waiting::Spin => "TCP sockets, TCP_NODELAY, both ends spinning",
                Waiting::Block => "TCP sockets, TCP_NODELAY, both ends sleeping in recv",
            },
            waits: match self.waiting {
                Waiting::Spin => "both ends spin on recv",
                Waiting::Block => "both ends sleep until the kernel wakes them",
            },
            copies: "server into its answer, kernel in and out of socket buffers, client out of its buffer",
            verified: "TCP's checksum is left out by the kernel over a veth; every byte read",
            figures: "a request of 16 bytes, answers in order; streams and bulk are pipelined on one connection",
        }
    }

    fn trial(&self, stage: &Stage, plan: &Plan) -> Result<Vec<Measured>, PeerError> {
        let waiting = self.waiting;
        let bytes = plan.bytes;
        let listen = || TcpListener::bind((FAR_ADDRESS, PORT));
        let server = Server::start(stage, "tcp", listen, move |listener| serve(&listener, waiting, bytes))?;
        let stream = PeerStream::connect(FAR_ADDRESS, PORT, waiting).map_err(failed)?;
        let mut client = Client { stream, depth: plan.depth, out: Vec::new(), begun: VecDeque::new() };
        let found = drive(&mut client, &stage.content, plan, &stage.interrupt);
        drop(client);
        server.end()?;
        found
    }
}

fn failed(source: io::Error) -> PeerError {
    PeerError::Io { what: "exchanging data over TCP".into(), source }
}

/// Serves one connection until it is closed.
fn serve(listener: &TcpListener, waiting: Waiting, bytes: usize) -> io::Result<()> {
    let (tcp, _) = listener.accept()?;
    let mut stream = PeerStream::over(tcp, waiting)?;
    let mut memory = vec![0; bytes];
    let mut answers = Vec::with_capacity(2 * COLLECTED);
    loop {
        let Some(mut pending) = stream.pending(HEADER)? else { return Ok(()) };
        let (mut taken, mut wanted) = (0, 0);
        while answers.len() < COLLECTED && pending.len() >= HEADER {
            let request = MemoryRequest::decoded(pending, memory.len()).ok_or(io::ErrorKind::InvalidData)?;
            let range = request.at..request.at + request.bytes;
            let mut length = HEADER;
            if request.is_write {
                length += request.bytes;
                let Some(data) = pending.get(HEADER..length) else {
                    wanted = length;
                    break;
                };
                memory[range].copy_from_slice(data);
                answers.write_all(&DONE)?;
            } else {
                answers.extend_from_slice(&memory[range]);
            }
            taken += length;
            pending = &pending[length..];
        }
        stream.consume(taken);
        stream.send(&answers)?;
        answers.clear();
        if wanted > 0 && stream.pending(wanted)?.is_none() {
            return Ok(());
        }
    }
}

struct Client {
    stream: PeerStream,
    depth: usize,
    /// Requests that were begun and not sent yet.
    out: Vec<u8>,
    /// Slots of reads in flight, in the order of their answers.
    begun: VecDeque<u32>,
}

impl Client {
    /// Reads pieces of equal size with `depth` requests in flight.
    fn pipelined(&mut self, places: &[usize], out: &mut [u8], depth: usize) -> io::Result<()> {
        let bytes = out.len() / places.len().max(1);
        let mut requests = Vec::with_capacity(depth * HEADER);
        let mut sent = 0;
        for (answered, piece) in out.chunks_exact_mut(bytes).enumerate() {
            // Further requests are sent when half are answered, so that one system call sends many.
            if sent - answered <= depth / 2 {
                requests.clear();
                while sent < places.len() && sent - answered < depth {
                    let request = MemoryRequest { is_write: false, number: 0, bytes, at: places[sent] };
                    requests.extend(request.encoded());
                    sent += 1;
                }
                self.stream.send(&requests)?;
            }
            self.stream.receive(piece)?;
        }
        Ok(())
    }

    /// Writes lines with several requests in flight.
    fn pipelined_writes(&mut self, indices: &[usize], lines: &[u8]) -> Result<(), PeerError> {
        let mut requests = Vec::with_capacity(self.depth.min(indices.len()) * (HEADER + LINE));
        let mut sent = 0;
        for answered in 0..indices.len() {
            if sent - answered <= self.depth / 2 {
                requests.clear();
                while sent < indices.len() && sent - answered < self.depth {
                    let at = indices[sent] * LINE;
                    requests.extend(MemoryRequest { is_write: true, number: 0, bytes: LINE, at }.encoded());
                    requests.extend_from_slice(&lines[sent * LINE..(sent + 1) * LINE]);
                    sent += 1;
                }
                self.stream.send(&requests).map_err(failed)?;
            }
            self.done()?;
        }
        Ok(())
    }

    fn done(&mut self) -> Result<(), PeerError> {
        let mut answer = [0; DONE.len()];
        self.stream.receive(&mut answer).map_err(failed)?;
        if answer == DONE {
            return Ok(());
        }
        Err(PeerError::Protocol { expected: "`done`", found: format!("{answer:?}") })
    }
}

impl Store for Client {
    fn read(&mut self, unit: AccessUnit, index: usize, out: &mut [u8]) -> Result<(), PeerError> {
        let bytes = unit.bytes();
        let request = MemoryRequest { is_write: false, number: 0, bytes, at: index * bytes };
        self.stream.send(&request.encoded()).and_then(|()| self.stream.receive(out)).map_err(failed)
    }

    fn write(&mut self, index: usize, line: &[u8]) -> Result<(), PeerError> {
        let mut message = [0; HEADER + LINE];
        let request = MemoryRequest { is_write: true, number: 0, bytes: LINE, at: index * LINE };
        message[..HEADER].copy_from_slice(&request.encoded());
        message[HEADER..].copy_from_slice(line);
        self.stream.send(&message).map_err(failed)?;
        self.done()
    }

    fn read_many(
        &mut self,
        unit: AccessUnit,
        indices: &[usize],
        out: &mut [u8],
    ) -> Result<Option<()>, PeerError> {
        let places: Vec<usize> = indices.iter().map(|index| index * unit.bytes()).collect();
        self.pipelined(&places, out, unit.in_flight(self.depth)).map(Some).map_err(failed)
    }

    fn write_lines(&mut self, indices: &[usize], lines: &[u8]) -> Result<(), PeerError> {
        self.pipelined_writes(indices, lines)
    }

    fn bulk_read(&mut self, out: &mut [u8]) -> Result<(), PeerError> {
        let places: Vec<usize> = (0..out.len()).step_by(BLOCK).collect();
        self.pipelined(&places, out, BLOCKS_AHEAD).map_err(failed)
    }

    fn bulk_write(&mut self, all: &[u8]) -> Result<(), PeerError> {
        for (index, block) in all.chunks(BLOCK).enumerate() {
            let request = MemoryRequest { is_write: true, number: 0, bytes: block.len(), at: index * BLOCK };
            self.stream.send(&request.encoded()).map_err(failed)?;
            self.stream.send(block).map_err(failed)?;
            if index >= BLOCKS_AHEAD {
                self.done()?;
            }
        }
        (0..all.chunks(BLOCK).len().min(BLOCKS_AHEAD)).try_for_each(|_| self.done())
    }

    fn pipeline(&mut self) -> Option<&mut dyn Pipeline> {
        Some(self)
    }
}

impl Pipeline for Client {
    fn begin(&mut self, slot: u32, line: usize) -> Result<bool, PeerError> {
        let request = MemoryRequest { is_write: false, number: 0, bytes: LINE, at: line * LINE };
        self.out.extend(request.encoded());
        self.begun.push_back(slot);
        Ok(true)
    }

    fn take(&mut self, until: Instant, arrived: &mut dyn FnMut(u32, &[u8])) -> Result<(), PeerError> {
        self.stream.send(&self.out).map_err(failed)?;
        self.out.clear();
        if !self.stream.has_data(until).map_err(failed)? {
            return Ok(());
        }
        let mut line = [0; LINE];
        while self.stream.is_ahead()
            && let Some(slot) = self.begun.pop_front()
        {
            self.stream.receive(&mut line).map_err(failed)?;
            arrived(slot, &line);
        }
        Ok(())
    }
}
