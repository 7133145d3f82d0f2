//! The messages between an agent and a member, as bytes: little-endian, of bounded length. The receiver checks every
//! number; bytes that form no message end the connection and nothing else.

/// Version of the agent's local protocol to which these messages belong.
pub const VERSION: u32 = 8;
pub const PAGE_BYTES: u64 = 4096;
/// First field of a [`JoinReply`].
pub const WELCOME_MAGIC: u32 = 0x4358_4C57;
/// First bytes of the probe page.
const PROBE_MAGIC: [u8; 8] = *b"CXLoEvw1";
/// Length in bytes of the content of the probe page; the rest of the page is zeros.
pub const PROBE_BYTES: usize = 24;
/// View number in the join request of a forked child to which the agent assigned no view: the agent refuses the request
/// and states the reason.
pub const NO_VIEW: u16 = u16::MAX;
/// Maximum number of ranges in one message.
pub const RANGES_MAX: usize = 64;
/// Length in bytes of a [`JoinReply`] without its text.
pub const WELCOME_BYTES: usize = 24;
/// Maximum length in bytes of the text after a [`JoinReply`].
pub const TEXT_MAX: usize = 512;
/// Length in bytes of the longest message.
pub const MESSAGE_MAX: usize = HEAD + RANGES_MAX * RANGE;

const HEAD: usize = 8;
/// Length in bytes of a range in a message.
pub const RANGE: usize = 8;

/// A range of pages of a view (a table of pages that one process, or all processes of a space, use).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    pub first: u32,
    pub count: u32,
}

/// The agent's answer to the request to join.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JoinReply {
    /// Status: [`WELCOME`], [`REFUSED`] or [`NOT_YET`]; the text has the reason of a refusal.
    pub status: u32,
    pub view: u16,
    pub mapping: u16,
    pub pages: u32,
    /// Process id of the agent.
    pub agent: u32,
    /// Length in bytes of the text that follows.
    pub text: u32,
}

/// Status: the process is a member of the space now, so the agent serves its page faults.
pub const WELCOME: u32 = 0;
/// Status: refused; a later attempt would be refused, too.
pub const REFUSED: u32 = 1;
/// Status: the space (a region being paged) does not exist yet, or its region is not attached yet; a later attempt may
/// succeed.
pub const NOT_YET: u32 = 2;

/// Content of the probe page, the first page of a member's memory, which tells a forked child which view (table of
/// pages) it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbePage {
    pub view: u16,
    /// Random number, different for each child. Only the child itself can read its first page, so the number shows that
    /// a request to join comes from the process that the view belongs to.
    pub proof: u64,
}

impl ProbePage {
    pub fn encode(&self) -> [u8; PROBE_BYTES] {
        let mut bytes = [0; PROBE_BYTES];
        bytes[..8].copy_from_slice(&PROBE_MAGIC);
        bytes[8..10].copy_from_slice(&self.view.to_le_bytes());
        bytes[16..].copy_from_slice(&self.proof.to_le_bytes());
        bytes
    }

    /// Decodes the content of a page; `None` if the page is no probe page.
    pub fn decode(bytes: &[u8; PROBE_BYTES]) -> Option<ProbePage> {
        let words = bytes.as_chunks::<8>().0;
        (words[0] == PROBE_MAGIC).then(|| ProbePage {
            view: u16::from_le_bytes([bytes[8], bytes[9]]),
            proof: u64::from_le_bytes(words[2]),
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl JoinReply {
    /// Encodes the answer, without its text.
    pub fn encode(&self) -> [u8; WELCOME_BYTES] {
        let views = u32::from(self.view) | u32::from(self.mapping) << 16;
        let words = [WELCOME_MAGIC, self.status, views, self.pages, self.agent, self.text];
        let mut bytes = [0; WELCOME_BYTES];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes an answer; `None` if the bytes do not begin with [`WELCOME_MAGIC`].
    pub fn decode(bytes: &[u8; WELCOME_BYTES]) -> Option<JoinReply> {
        let word = |index: usize| u32_at(bytes, index * 4);
        (word(0) == WELCOME_MAGIC).then(|| JoinReply {
            status: word(1),
            view: word(2) as u16,
            mapping: (word(2) >> 16) as u16,
            pages: word(3),
            agent: word(4),
            text: word(5),
        })
    }
}

/// Kind of a message: the first word of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MessageKind {
    /// From the agent: the member has to discard these pages of its private memory.
    Drop = 1,
    /// From the agent: the data of these pages is lost; touching them gives SIGBUS.
    Lost = 2,
    /// From the agent: the agent ends in an orderly way; the member waits for the agent's successor.
    Bye = 3,
    /// From the agent: acknowledges [`MessageKind::Discard`]; the pages may be discarded.
    Discarded = 4,
    /// From the agent: a text with the reason of a data loss; the message about the lost pages follows.
    Why = 5,
    /// From the agent: the region has had no room for evicted pages for too long; the process has to end.
    Full = 6,
    /// From the agent: these pages are lost, and this kernel cannot mark them so that touching them gives SIGBUS; the
    /// member sends SIGBUS to its process.
    Unmarked = 7,
    /// From a member: the oldest unanswered [`MessageKind::Drop`] is done.
    Dropped = 0x101,
    /// From a member: the member is about to discard these pages.
    Discard = 0x102,
    /// From a member: the member leaves the space.
    Leave = 0x105,
    /// From a member: the member will read these pages soon.
    WillRead = 0x106,
    /// From a member: the member will write these pages soon.
    WillWrite = 0x107,
    /// From a member: the member will not need these pages soon.
    Cold = 0x108,
    /// From a member: the member will not need these pages for a long time.
    PageOut = 0x109,
}

impl MessageKind {
    fn of(number: u32) -> Option<MessageKind> {
        use MessageKind::*;
        let all = [
            Drop, Lost, Bye, Discarded, Why, Full, Unmarked, Dropped, Discard, Leave, WillRead, WillWrite,
            Cold, PageOut,
        ];
        all.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// A message of either side about ranges of pages, or with a text.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Kind, which determines the sender and the meaning of the ranges.
    pub kind: MessageKind,
    ranges: [Pages; RANGES_MAX],
    count: usize,
}

/// Error: the received bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes received are no message of this release")]
pub struct InvalidMessage;

impl Message {
    /// Creates a message about at most [`RANGES_MAX`] ranges; further ranges are ignored.
    pub fn new(kind: MessageKind, ranges: &[Pages]) -> Message {
        let count = ranges.len().min(RANGES_MAX);
        let mut message = Message { kind, ranges: [Pages::default(); RANGES_MAX], count };
        message.ranges[..count].copy_from_slice(&ranges[..count]);
        message
    }

    /// A message that holds a text, cut to [`RANGES_MAX`] times [`RANGE`] bytes.
    pub fn words(kind: MessageKind, text: &str) -> Message {
        let mut message = Message::new(kind, &[]);
        for (range, part) in message.ranges.iter_mut().zip(text.as_bytes().chunks(RANGE)) {
            let mut bytes = [0; RANGE];
            bytes[..part.len()].copy_from_slice(part);
            *range = Pages { first: u32_at(&bytes, 0), count: u32_at(&bytes, 4) };
            message.count += 1;
        }
        message
    }

    /// The text, in items of eight bytes; bytes after a 0 have no meaning.
    pub fn text_bytes(&self) -> impl Iterator<Item = [u8; RANGE]> {
        self.ranges().iter().map(|range| {
            let mut bytes = [0; RANGE];
            bytes[..4].copy_from_slice(&range.first.to_le_bytes());
            bytes[4..].copy_from_slice(&range.count.to_le_bytes());
            bytes
        })
    }

    pub fn ranges(&self) -> &[Pages] {
        &self.ranges[..self.count]
    }

    pub fn encode(&self, bytes: &mut [u8; MESSAGE_MAX]) -> usize {
        let head = [self.kind as u32, self.count as u32];
        let words = head.into_iter().chain(self.ranges().iter().flat_map(|range| [range.first, range.count]));
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        HEAD + self.count * RANGE
    }
}

/// Received bytes that do not yet make up a whole message.
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
    pub const fn new() -> Inbox {
        Inbox { bytes: [0; 2 * MESSAGE_MAX], held: 0 }
    }

    /// Free space for the next bytes; never empty after [`next`](Self::next) has returned no message.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.held..]
    }

    /// Adds `bytes` bytes that were written to [`room`](Self::room).
    pub fn put(&mut self, bytes: usize) {
        self.held = (self.held + bytes).min(self.bytes.len());
    }

    /// Removes and returns the oldest message; `None` if its bytes have not all arrived.
    ///
    /// # Errors
    /// [`InvalidMessage`]; then the bytes that follow cannot be decoded either.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Message>, InvalidMessage> {
        if self.held < HEAD {
            return Ok(None);
        }
        let kind = MessageKind::of(u32_at(&self.bytes, 0)).ok_or(InvalidMessage)?;
        let count = u32_at(&self.bytes, 4) as usize;
        if count > RANGES_MAX {
            return Err(InvalidMessage);
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
        let sent = [Message::new(MessageKind::PageOut, &ranges), Message::new(MessageKind::Bye, &[])];
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
            let said: Vec<u8> = Message::words(MessageKind::Why, text).text_bytes().flatten().collect();
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
            assert_eq!(inbox.next().unwrap_err(), InvalidMessage);
        }
    }

    #[test]
    fn a_probe_page_names_its_view() {
        let page = ProbePage { view: 0x1234, proof: u64::MAX - 5 };
        assert_eq!(ProbePage::decode(&page.encode()), Some(page));
        assert_eq!(ProbePage::decode(&[0; PROBE_BYTES]), None);
    }

    #[test]
    fn a_join_reply_reads_back() {
        let welcome =
            JoinReply { status: 2, view: 0xFFFF, mapping: 1023, pages: 1 << 31, agent: 77, text: 3 };
        assert_eq!(JoinReply::decode(&welcome.encode()), Some(welcome));
        assert_eq!(JoinReply::decode(&[0; WELCOME_BYTES]), None);
    }
}
