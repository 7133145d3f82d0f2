//! Output to a client, in order: headers and texts, data that is sent directly from the port's data area, and staged
//! data.

use std::collections::VecDeque;

use super::wire::{
    ALLOCATION_NUMBER, CHUNK_DATA, CHUNK_ERROR, CHUNK_NONE, CHUNK_STATUS, Errno, STATUS_DATA, put_chunk,
    put_chunk_header, put_simple,
};
use cxloe_client::memory::SharedMemory;
use cxloe_client::vectored::SendSlice;

/// Maximum length of an error's text in bytes.
pub const TEXT_MAX: usize = 1024;

#[derive(Debug)]
enum Segment {
    /// Number of bytes to send next from the output's `bytes`.
    Bytes(usize),
    /// Data of a part: its offset in the data area, and the number of bytes left to send.
    Part { part: u16, at: usize, left: usize },
    /// Staged data, and the number of its bytes that have been sent.
    Staged { data: Vec<u8>, sent: usize },
}

/// Output that is to be sent to one client.
#[derive(Debug, Default)]
pub struct Output {
    segments: VecDeque<Segment>,
    bytes: Vec<u8>,
    /// Number of bytes at the beginning of `bytes` that have been sent.
    done: usize,
    structured: bool,
}

impl Output {
    pub(crate) fn set_structured(&mut self) {
        self.structured = true;
    }

    pub(crate) fn is_structured(&self) -> bool {
        self.structured
    }

    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Number of bytes that wait to be sent, not counting the data of reads.
    pub fn waiting(&self) -> usize {
        self.bytes.len() - self.done
    }

    fn append(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.len();
        put(&mut self.bytes);
        let length = self.bytes.len() - before;
        match self.segments.back_mut() {
            _ if length == 0 => {}
            Some(Segment::Bytes(last)) => *last += length,
            _ => self.segments.push_back(Segment::Bytes(length)),
        }
    }

    /// Moves the content of `bytes` to the end of the output; `bytes` is empty afterwards.
    pub fn take(&mut self, bytes: &mut Vec<u8>) {
        self.append(|out| out.append(bytes));
    }

    /// Answers the request `cookie` with success and without data.
    pub fn done(&mut self, cookie: u64) {
        self.append(|out| put_simple(out, cookie, None));
    }

    /// Answers the request `cookie`, a read of zero bytes.
    pub fn nothing(&mut self, cookie: u64) {
        match self.structured {
            // A chunk without content, because clients disconnect when they receive a data chunk of zero bytes.
            true => self.append(|out| put_chunk(out, cookie, true, CHUNK_NONE, &[])),
            false => self.done(cookie),
        }
    }

    /// Answers the request `cookie` for the status of a range: it is a single extent of `length` bytes, with memory
    /// behind all of them. The client has selected `base:allocation`, so replies are structured.
    pub fn allocated(&mut self, cookie: u64, length: u32) {
        let extent = [ALLOCATION_NUMBER, length, STATUS_DATA].map(u32::to_be_bytes);
        self.append(|out| put_chunk(out, cookie, true, CHUNK_STATUS, &[extent.as_flattened()]));
    }

    /// Answers the request `cookie` with `error`; a structured reply also carries the text `why`.
    pub fn error(&mut self, cookie: u64, error: Errno, why: &str) {
        if !self.structured {
            return self.append(|out| put_simple(out, cookie, Some(error)));
        }
        let why = clipped(why).as_bytes();
        let parts = [&(error as u32).to_be_bytes()[..], &(why.len() as u16).to_be_bytes(), why];
        self.append(|out| put_chunk(out, cookie, true, CHUNK_ERROR, &parts));
    }

    /// Appends the header of a data chunk for the read `cookie`: `length` bytes at `offset` of the device.
    pub(crate) fn data_header(&mut self, cookie: u64, last: bool, offset: u64, length: usize) {
        match self.structured {
            true => self.append(|out| {
                put_chunk_header(out, cookie, last, CHUNK_DATA, length + size_of::<u64>());
                out.extend(offset.to_be_bytes());
            }),
            false => self.done(cookie),
        }
    }

    /// Appends data of the read `cookie`. The data stays in the data area at byte `at` until
    /// [`next_sent`](Self::next_sent) returns its part. Without structured replies, a single call has to append the
    /// whole data of the read.
    pub fn part(&mut self, cookie: u64, last: bool, offset: u64, part: u16, at: usize, length: usize) {
        self.data_header(cookie, last, offset, length);
        self.data(part, at, length);
    }

    /// Appends data without a header, from the data area as in [`part`](Self::part).
    pub fn data(&mut self, part: u16, at: usize, length: usize) {
        self.segments.push_back(Segment::Part { part, at, left: length });
    }

    /// Appends all data of the read `cookie`, from memory of this process.
    pub fn staged(&mut self, cookie: u64, offset: u64, data: Vec<u8>) {
        self.data_header(cookie, true, offset, data.len());
        self.segments.push_back(Segment::Staged { data, sent: 0 });
    }

    /// Byte ranges to send next; `base` is the offset of the data area in `memory`.
    pub fn stretches<'a>(
        &'a self,
        memory: Option<&'a SharedMemory>,
        base: usize,
    ) -> impl Iterator<Item = SendSlice<'a>> {
        let mut bytes = &self.bytes[self.done..];
        self.segments.iter().map(move |segment| match segment {
            Segment::Bytes(length) => {
                let (now, later) = bytes.split_at(*length);
                bytes = later;
                SendSlice::Own(now)
            }
            Segment::Part { at, left, .. } => {
                memory.map_or(SendSlice::Own(&[]), |memory| SendSlice::Shared(memory, base + at, *left))
            }
            Segment::Staged { data, sent } => SendSlice::Own(&data[*sent..]),
        })
    }

    /// Takes `length` sent bytes off the output: returns the next item that is completely sent, and reduces `length`.
    pub fn next_sent(&mut self, length: &mut usize) -> Option<SentItem> {
        let Some(segment) = self.segments.front_mut() else {
            self.bytes.clear();
            self.done = 0;
            return None;
        };
        let left = match segment {
            Segment::Bytes(left) => {
                let now = (*length).min(*left);
                *left -= now;
                self.done += now;
                *length -= now;
                *left
            }
            Segment::Part { at, left, .. } => {
                let now = (*length).min(*left);
                (*at, *left, *length) = (*at + now, *left - now, *length - now);
                *left
            }
            Segment::Staged { data, sent } => {
                let now = (*length).min(data.len() - *sent);
                *sent += now;
                *length -= now;
                data.len() - *sent
            }
        };
        if left > 0 {
            return None;
        }
        self.segments.pop_front().map(|segment| match segment {
            Segment::Bytes(_) => SentItem::Bytes,
            Segment::Part { part, .. } => SentItem::Part(part),
            Segment::Staged { data, .. } => SentItem::Staged(data.len()),
        })
    }
}

/// An item of the output that has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentItem {
    /// Bytes that are not data.
    Bytes,
    /// Data of the part with this number.
    Part(u16),
    /// Staged data of this many bytes.
    Staged(usize),
}

/// The longest prefix of `text` of at most [`TEXT_MAX`] bytes.
pub(super) fn clipped(text: &str) -> &str {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simple(error: u32, cookie: u64) -> Vec<u8> {
        [&0x6744_6698_u32.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat()
    }

    fn chunk(last: bool, kind: u16, cookie: u64, body: &[u8]) -> Vec<u8> {
        let head = [&0x668e_33ef_u32.to_be_bytes()[..], &u16::from(last).to_be_bytes(), &kind.to_be_bytes()];
        [&head.concat()[..], &cookie.to_be_bytes(), &(body.len() as u32).to_be_bytes(), body].concat()
    }

    /// Sends everything in steps of `bite` bytes; returns the bytes, the parts sent, and the number of staged bytes.
    fn all(mut output: Output, memory: &SharedMemory, bite: usize) -> (Vec<u8>, Vec<u16>, usize) {
        let (mut bytes, mut parts, mut staged) = (Vec::new(), Vec::new(), 0);
        while !output.is_empty() {
            let mut now = Vec::new();
            for stretch in output.stretches(Some(memory), 64) {
                match stretch {
                    SendSlice::Own(own) => now.extend_from_slice(own),
                    SendSlice::Shared(memory, at, length) => {
                        let mut shared = vec![0; length];
                        memory.take(at, &mut shared);
                        now.extend(shared);
                    }
                }
            }
            now.truncate(bite);
            let mut length = now.len();
            while let Some(sent) = output.next_sent(&mut length) {
                match sent {
                    SentItem::Part(part) => parts.push(part),
                    SentItem::Staged(bytes) => staged += bytes,
                    SentItem::Bytes => {}
                }
            }
            bytes.extend(now);
        }
        assert_eq!(output.waiting(), 0);
        (bytes, parts, staged)
    }

    #[test]
    fn the_status_of_a_range_is_one_extent() {
        let mut output = Output::default();
        output.set_structured();
        output.allocated(4, 0x1_0200);
        let memory = SharedMemory::create(4096).unwrap();
        let body = b"\0\0\0\x01\0\x01\x02\0\0\0\0\0";
        assert_eq!(all(output, &memory, 7).0, chunk(true, 5, 4, body));
    }

    #[test]
    fn answers_are_simple_or_structured_as_was_agreed() {
        let memory = SharedMemory::create(4096).unwrap();
        memory.put(64 + 100, b"of a part");
        for bite in [1, 7, 1000] {
            let answers = |structured: bool| {
                let mut output = Output::default();
                if structured {
                    output.set_structured();
                }
                output.part(7, true, 64, 3, 100, 9);
                output.nothing(6);
                output.done(8);
                output.staged(5, 128, b"held data".to_vec());
                output.error(9, Errno::Io, &format!("why{}", "é".repeat(TEXT_MAX)));
                all(output, &memory, bite)
            };
            let expected = [
                simple(0, 7),
                b"of a part".to_vec(),
                simple(0, 6),
                simple(0, 8),
                simple(0, 5),
                b"held data".to_vec(),
                simple(5, 9),
            ];
            assert_eq!(answers(false), (expected.concat(), vec![3], 9));

            let text = format!("why{}", "é".repeat((TEXT_MAX - 3) / 2));
            let error = [&5_u32.to_be_bytes()[..], &(text.len() as u16).to_be_bytes(), text.as_bytes()];
            let expected = [
                chunk(true, 1, 7, &[&64_u64.to_be_bytes()[..], b"of a part"].concat()),
                // Tests a read of zero bytes: libnbd treats a data chunk without data as an error.
                chunk(true, 0, 6, b""),
                simple(0, 8),
                chunk(true, 1, 5, &[&128_u64.to_be_bytes()[..], b"held data"].concat()),
                chunk(true, 0x8001, 9, &error.concat()),
            ];
            assert_eq!(answers(true), (expected.concat(), vec![3], 9));
        }
    }
}
