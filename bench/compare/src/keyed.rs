//! Memory in a key-value store: common part of the clients of Redis and memcached, whose protocols differ.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use super::error::PeerError;
use super::pattern::BLOCK;
use super::pipeline::Pipeline;
use super::store::Store;
use super::stream::PeerStream;
use super::unit::{AccessUnit, LINE, STRETCH};

/// Number of blocks in flight in bulk patterns.
const BLOCKS_AHEAD: usize = 16;

/// Requests and answers of a key-value protocol.
pub trait KeyValue {
    /// Name of the server, for messages.
    const NAME: &'static str;
    /// Appends a request for the value of `key` to `out`.
    fn get(&self, key: &str, out: &mut Vec<u8>);
    /// Appends a request to store `value` under `key` to `out`.
    fn set(&self, key: &str, value: &[u8], out: &mut Vec<u8>);
    /// Length of the value that the first line of an answer to a request for `key` announces; `None` if it announces
    /// none.
    fn value_length(&self, line: &[u8], key: &str) -> Option<usize>;
    /// Bytes that follow each value.
    fn end_of_value(&self) -> &'static [u8];
    /// Answer of the server to a successful store request.
    fn stored(&self) -> &'static [u8];
}

/// Client of a key-value server.
pub struct Keyed<K> {
    stream: PeerStream,
    words: K,
    depth: usize,
    request: Vec<u8>,
    line: Vec<u8>,
    /// Requests for lines that were begun and not sent yet.
    out: Vec<u8>,
    /// Slots and keys of reads in flight, in the order of their answers.
    begun: VecDeque<(u32, String)>,
}

impl<K: KeyValue> Keyed<K> {
    /// Makes a client for a connection that is already open; stream patterns have `depth` requests in flight.
    pub fn new(stream: PeerStream, words: K, depth: usize) -> Keyed<K> {
        let (request, line, out) = (Vec::new(), Vec::new(), Vec::new());
        Keyed { stream, words, depth, request, line, out, begun: VecDeque::new() }
    }

    fn failed(source: io::Error) -> PeerError {
        PeerError::Io { what: format!("talking to {}", K::NAME), source }
    }

    /// Receives the value of `key` from the connection.
    fn value(&mut self, key: &str, out: &mut [u8]) -> Result<(), PeerError> {
        self.stream.line(&mut self.line).map_err(Self::failed)?;
        let unexpected = |found: &[u8]| PeerError::Protocol {
            expected: "a value",
            found: String::from_utf8_lossy(found).into_owned(),
        };
        if self.words.value_length(&self.line, key) != Some(out.len()) {
            return Err(unexpected(&self.line));
        }
        self.stream.receive(out).map_err(Self::failed)?;
        let mut end = [0; 8];
        let end = &mut end[..self.words.end_of_value().len()];
        self.stream.receive(end).map_err(Self::failed)?;
        if end == self.words.end_of_value() { Ok(()) } else { Err(unexpected(end)) }
    }

    fn stored(&mut self) -> Result<(), PeerError> {
        self.stream.line(&mut self.line).map_err(Self::failed)?;
        if self.line == self.words.stored() {
            return Ok(());
        }
        let found = String::from_utf8_lossy(&self.line).into_owned();
        Err(PeerError::Protocol { expected: "that it is stored", found })
    }

    fn get_many(&mut self, keys: &[String], out: &mut [u8], depth: usize) -> Result<(), PeerError> {
        let bytes = out.len() / keys.len().max(1);
        let mut sent = 0;
        for (answered, piece) in out.chunks_exact_mut(bytes).enumerate() {
            // New requests are sent only after half of those in flight are answered, so that one system call sends many
            // requests.
            if sent < keys.len() && sent - answered <= depth / 2 {
                self.request.clear();
                while sent < keys.len() && sent - answered < depth {
                    self.words.get(&keys[sent], &mut self.request);
                    sent += 1;
                }
                self.stream.send(&self.request).map_err(Self::failed)?;
            }
            self.value(&keys[answered], piece)?;
        }
        Ok(())
    }

    fn set_many<'a>(
        &mut self,
        values: impl ExactSizeIterator<Item = (String, &'a [u8])>,
        depth: usize,
    ) -> Result<(), PeerError> {
        let (count, mut answered) = (values.len(), 0);
        self.request.clear();
        for (index, (key, value)) in values.enumerate() {
            if index - answered == depth {
                self.stream.send(&self.request).map_err(Self::failed)?;
                self.request.clear();
                while index - answered > depth / 2 {
                    self.stored()?;
                    answered += 1;
                }
            }
            self.words.set(&key, value, &mut self.request);
        }
        self.stream.send(&self.request).map_err(Self::failed)?;
        while answered < count {
            self.stored()?;
            answered += 1;
        }
        Ok(())
    }
}

/// Pieces of the memory of `bytes` bytes each, with their keys.
fn pieces(kind: char, all: &[u8], bytes: usize) -> impl ExactSizeIterator<Item = (String, &[u8])> {
    all.chunks_exact(bytes).enumerate().map(move |(index, value)| (format!("{kind}{index}"), value))
}

fn kind(unit: AccessUnit) -> char {
    match unit {
        AccessUnit::Line => 'l',
        AccessUnit::Page => 'p',
        AccessUnit::Stretch => 'm',
    }
}

impl<K: KeyValue> Store for Keyed<K> {
    fn read(&mut self, unit: AccessUnit, index: usize, out: &mut [u8]) -> Result<(), PeerError> {
        let key = format!("{}{index}", kind(unit));
        self.request.clear();
        self.words.get(&key, &mut self.request);
        self.stream.send(&self.request).map_err(Self::failed)?;
        self.value(&key, out)
    }

    fn write(&mut self, index: usize, line: &[u8]) -> Result<(), PeerError> {
        self.request.clear();
        self.words.set(&format!("l{index}"), line, &mut self.request);
        self.stream.send(&self.request).map_err(Self::failed)?;
        self.stored()
    }

    fn read_many(
        &mut self,
        unit: AccessUnit,
        indices: &[usize],
        out: &mut [u8],
    ) -> Result<Option<()>, PeerError> {
        let keys: Vec<String> = indices.iter().map(|index| format!("{}{index}", kind(unit))).collect();
        self.get_many(&keys, out, unit.in_flight(self.depth)).map(Some)
    }

    fn write_lines(&mut self, indices: &[usize], lines: &[u8]) -> Result<(), PeerError> {
        let values = indices.iter().zip(lines.chunks_exact(LINE));
        self.set_many(values.map(|(index, line)| (format!("l{index}"), line)), self.depth)
    }

    fn bulk_read(&mut self, out: &mut [u8]) -> Result<(), PeerError> {
        let keys: Vec<String> = (0..out.len() / BLOCK).map(|index| format!("b{index}")).collect();
        self.get_many(&keys, out, BLOCKS_AHEAD)
    }

    fn bulk_write(&mut self, all: &[u8]) -> Result<(), PeerError> {
        self.set_many(pieces('b', all, BLOCK), BLOCKS_AHEAD)
    }

    fn fill(&mut self, all: &[u8]) -> Result<(), PeerError> {
        self.set_many(pieces('m', all, STRETCH), AccessUnit::Stretch.in_flight(self.depth))?;
        self.set_many(pieces('p', all, AccessUnit::Page.bytes()), self.depth)?;
        self.set_many(pieces('l', all, LINE), self.depth)
    }

    fn pipeline(&mut self) -> Option<&mut dyn Pipeline> {
        Some(self)
    }
}

impl<K: KeyValue> Pipeline for Keyed<K> {
    fn begin(&mut self, slot: u32, line: usize) -> Result<bool, PeerError> {
        let key = format!("l{line}");
        self.words.get(&key, &mut self.out);
        self.begun.push_back((slot, key));
        Ok(true)
    }

    fn take(&mut self, until: Instant, arrived: &mut dyn FnMut(u32, &[u8])) -> Result<(), PeerError> {
        self.stream.send(&self.out).map_err(Self::failed)?;
        self.out.clear();
        if !self.stream.has_data(until).map_err(Self::failed)? {
            return Ok(());
        }
        let mut found = [0; LINE];
        while self.stream.is_ahead()
            && let Some((slot, key)) = self.begun.pop_front()
        {
            self.value(&key, &mut found)?;
            arrived(slot, &found);
        }
        Ok(())
    }
}
