//! The messages between an agent and a member, as bytes: little-endian, of bounded length. Whoever receives them checks
//! every number; what is no message ends the connection and nothing else.

/// Version of the agent's local protocol that these messages belong to.
pub const VERSION: u32 = 6;
/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;
/// What a [`Welcome`] begins with.
pub const WELCOME_MAGIC: u32 = 0x4358_4C57;
/// What the probe page of a private view begins with; the view's number (u16) follows.
pub const PROBE_MAGIC: [u8; 8] = *b"CXLoEvw1";
/// Ranges in one message at most.
pub const RANGES_MAX: usize = 64;
/// Bytes of a welcome without its text.
pub const WELCOME_BYTES: usize = 24;
/// Bytes of a welcome's text at most.
pub const TEXT_MAX: usize = 512;
/// Bytes of the longest message.
pub const MESSAGE_MAX: usize = HEAD + RANGES_MAX * RANGE;

const HEAD: usize = 8;
/// Bytes of a range in a message.
pub const RANGE: usize = 8;

/// Pages of a view, counted from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// The first.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// The agent's answer to Join.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Welcome {
    /// 0: welcome. Anything else: refused, and the text says why.
    pub status: u32,
    /// The member's view.
    pub view: u16,
    /// The member's mapping.
    pub mapping: u16,
    /// Pages of the view.
    pub pages: u32,
    /// The agent's process.
    pub agent: u32,
    /// Bytes of text that follow.
    pub text: u32,
}

/// Joined.
pub const WELCOME: u32 = 0;
/// Refused for good.
pub const REFUSED: u32 = 1;
/// Refused for now: what is asked for is not there yet. Try again.
pub const NOT_YET: u32 = 2;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Welcome {
    /// Its bytes.
    pub fn encode(&self) -> [u8; WELCOME_BYTES] {
        let views = u32::from(self.view) | u32::from(self.mapping) << 16;
        let words = [WELCOME_MAGIC, self.status, views, self.pages, self.agent, self.text];
        let mut bytes = [0; WELCOME_BYTES];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// A welcome, if these bytes are one.
    pub fn decode(bytes: &[u8; WELCOME_BYTES]) -> Option<Welcome> {
        let word = |index: usize| u32_at(bytes, index * 4);
        (word(0) == WELCOME_MAGIC).then(|| Welcome {
            status: word(1),
            view: word(2) as u16,
            mapping: (word(2) >> 16) as u16,
            pages: word(3),
            agent: word(4),
            text: word(5),
        })
    }
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Agent: take these pages away from the process's private memory.
    Drop = 1,
    /// Agent: the data of these pages is lost; touching them gives SIGBUS.
    Lost = 2,
    /// Agent: I end in order; wait for my successor.
    Bye = 3,
    /// Agent: go on with what [`Kind::Discard`] announced.
    Discarded = 4,
    /// Agent: why pages are about to be lost, in words.
    Why = 5,
    /// Agent: the region has had no room for pages that have to leave for too long; the process cannot go on.
    Full = 6,
    /// Member: the oldest [`Kind::Drop`] not yet answered is done.
    Dropped = 0x101,
    /// Member: I am about to discard these pages.
    Discard = 0x102,
    /// Member: I leave.
    Leave = 0x105,
    /// Member: I will read these pages soon.
    WillRead = 0x106,
    /// Member: I will write these pages soon.
    WillWrite = 0x107,
    /// Member: I do not need these pages soon.
    Cold = 0x108,
    /// Member: I do not need these pages for long.
    PageOut = 0x109,
}

impl Kind {
    fn of(number: u32) -> Option<Kind> {
        use Kind::*;
        let all = [
            Drop, Lost, Bye, Discarded, Why, Full, Dropped, Discard, Leave, WillRead, WillWrite, Cold,
            PageOut,
        ];
        all.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// What it says.
    pub kind: Kind,
    ranges: [Pages; RANGES_MAX],
    count: usize,
}

/// What came is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what came is no message of this release")]
pub struct NoMessage;

impl Message {
    /// A message about at most [`RANGES_MAX`] ranges; more are left out.
    pub fn new(kind: Kind, ranges: &[Pages]) -> Message {
        let count = ranges.len().min(RANGES_MAX);
        let mut message = Message { kind, ranges: [Pages::default(); RANGES_MAX], count };
        message.ranges[..count].copy_from_slice(&ranges[..count]);
        message
    }

    /// A message that says something in words, as much of it as has room.
    pub fn words(kind: Kind, text: &str) -> Message {
        let mut message = Message::new(kind, &[]);
        for (range, part) in message.ranges.iter_mut().zip(text.as_bytes().chunks(RANGE)) {
            let mut bytes = [0; RANGE];
            bytes[..part.len()].copy_from_slice(part);
            *range = Pages { first: u32_at(&bytes, 0), count: u32_at(&bytes, 4) };
            message.count += 1;
        }
        message
    }

    /// What such a message says: bytes, of which those after a 0 mean nothing, eight in each item.
    pub fn said(&self) -> impl Iterator<Item = [u8; RANGE]> {
        self.ranges().iter().map(|range| {
            let mut bytes = [0; RANGE];
            bytes[..4].copy_from_slice(&range.first.to_le_bytes());
            bytes[4..].copy_from_slice(&range.count.to_le_bytes());
            bytes
        })
    }

    /// The pages it is about.
    pub fn ranges(&self) -> &[Pages] {
        &self.ranges[..self.count]
    }

    /// Writes its bytes; how many.
    pub fn encode(&self, bytes: &mut [u8; MESSAGE_MAX]) -> usize {
        let head = [self.kind as u32, self.count as u32];
        let words = head.into_iter().chain(self.ranges().iter().flat_map(|range| [range.first, range.count]));
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        HEAD + self.count * RANGE
    }
}

/// What has come of messages, until they are whole.
#[derive(Debug)]
pub struct Inbox {
    bytes: [u8; 2 * MESSAGE_MAX],
    held: usize,
}

impl Default for Inbox {
    fn default() -> Inbox {
        Inbox::new()
    }
}

impl Inbox {
    /// An empty one.
    pub const fn new() -> Inbox {
        Inbox { bytes: [0; 2 * MESSAGE_MAX], held: 0 }
    }

    /// Where the next bytes go; never empty after [`next`](Self::next) has said that there is no message.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.held..]
    }

    /// So many bytes have been put there.
    pub fn put(&mut self, bytes: usize) {
        self.held = (self.held + bytes).min(self.bytes.len());
    }

    /// The oldest message, if it is whole.
    ///
    /// # Errors
    /// [`NoMessage`]; nothing that follows can be understood.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Message>, NoMessage> {
        if self.held < HEAD {
            return Ok(None);
        }
        let kind = Kind::of(u32_at(&self.bytes, 0)).ok_or(NoMessage)?;
        let count = u32_at(&self.bytes, 4) as usize;
        if count > RANGES_MAX {
            return Err(NoMessage);
        }
        let length = HEAD + count * RANGE;
        if self.held < length {
            return Ok(None);
        }
        let mut message = Message { kind, ranges: [Pages::default(); RANGES_MAX], count };
        for (index, range) in message.ranges[..count].iter_mut().enumerate() {
            let at = HEAD + index * RANGE;
            *range = Pages { first: u32_at(&self.bytes, at), count: u32_at(&self.bytes, at + 4) };
        }
        self.bytes.copy_within(length..self.held, 0);
        self.held -= length;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_whole_however_they_are_cut() {
        let ranges = [Pages { first: 7, count: 3 }, Pages { first: u32::MAX, count: 1 }];
        let sent = [Message::new(Kind::PageOut, &ranges), Message::new(Kind::Bye, &[])];
        let mut stream = [0; 2 * MESSAGE_MAX];
        let mut length = 0;
        for message in &sent {
            let mut bytes = [0; MESSAGE_MAX];
            let count = message.encode(&mut bytes);
            stream[length..length + count].copy_from_slice(&bytes[..count]);
            length += count;
        }
        for step in 1..=length {
            let mut inbox = Inbox::new();
            let mut seen = 0;
            for part in stream[..length].chunks(step) {
                inbox.room()[..part.len()].copy_from_slice(part);
                inbox.put(part.len());
                while let Some(message) = inbox.next().unwrap() {
                    assert_eq!((message.kind, message.ranges()), (sent[seen].kind, sent[seen].ranges()));
                    seen += 1;
                }
                assert!(!inbox.room().is_empty());
            }
            assert_eq!(seen, 2, "in steps of {step}");
        }
    }

    #[test]
    fn words_come_as_they_were_said_and_cut_if_need_be() {
        let heard = |text: &str| {
            let said: Vec<u8> = Message::words(Kind::Why, text).said().flatten().collect();
            String::from_utf8(said).unwrap().trim_end_matches('\0').to_string()
        };
        assert_eq!([heard(""), heard("eight by"), heard("eight byte")], ["", "eight by", "eight byte"]);
        let long = "x".repeat(2 * TEXT_MAX);
        assert_eq!(heard(&long).len(), RANGES_MAX * RANGE);
    }

    #[test]
    fn nonsense_is_told() {
        for words in [[9_u32, 0], [1, 65], [u32::MAX, u32::MAX]] {
            let mut inbox = Inbox::new();
            inbox.room()[..4].copy_from_slice(&words[0].to_le_bytes());
            inbox.room()[4..8].copy_from_slice(&words[1].to_le_bytes());
            inbox.put(8);
            assert_eq!(inbox.next().unwrap_err(), NoMessage);
        }
    }

    #[test]
    fn a_welcome_reads_back() {
        let welcome = Welcome { status: 2, view: 0xFFFF, mapping: 1023, pages: 1 << 31, agent: 77, text: 3 };
        assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
        assert_eq!(Welcome::decode(&[0; WELCOME_BYTES]), None);
    }
}
