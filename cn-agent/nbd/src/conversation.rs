//! One connection of an NBD client, as a state machine without I/O: bytes go in by [`Conversation::receive`], requests
//! come out of [`Conversation::step`], and immediate replies go to an `Output`.
//!
//! ```text
//!   greeting --> client's flags --> options --GO, EXPORT_NAME--> requests --DISC--> over
//!                                      | ABORT, no such export by EXPORT_NAME         ^
//!                                      +----------------------------------------------+
//! ```
//!
//! The conversation answers everything that the protocol alone decides: options, requests beyond the end,
//! writes to a read-only export, zeros that have to be fast, unknown commands. The payload of a write bypasses
//! the conversation ([`ConversationStep::Payload`]), so that the conversation never buffers more than an option
//! or a header of a client.

mod contexts;

use super::output::{Output, clipped};
use super::wire::{
    ClientFlags, Errno, GREETING, Handshake, Info, OPTION, OPTION_HEADER, OptReply, OptionCode,
    REQUEST_HEADER, RequestHeader, RequestKind, TransmissionFlags, parse_info, parse_option,
    put_option_reply,
};

/// Longest read, and longest payload of a write, in bytes: the length that clients may assume.
pub const LENGTH_MAX: u32 = 64 << 20;
/// Smallest request that a client should send, in bytes: a sector. Smaller ones are served as well.
const BLOCK_MIN: u32 = 512;
/// Preferred alignment of requests, in bytes: a page.
const BLOCK_PREFERRED: u32 = 4096;
/// Longest data of an option, in bytes: a name of 4,096 bytes, and many information requests.
const OPTION_DATA_MAX: u32 = 16 << 10;
/// Maximum number of options before an export is chosen.
const OPTIONS_MAX: u32 = 256;

/// The export offered to a client.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Name of the export; a client that names none gets it too.
    pub name: String,
    /// Size of the export in bytes, or the reason why it is unavailable.
    pub size: Result<u64, Unavailable>,
    pub read_only: bool,
}

/// Reason why an export is unavailable, in words for the client's user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// The region or the agent is absent.
    Away(String),
    /// The limit of clients is reached.
    Full(String),
}

/// A request within the bounds of the export, to be carried out by the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportRequest {
    /// Number by which the client recognises the answer.
    pub cookie: u64,
    pub command: ExportCommand,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportCommand {
    Read {
        offset: u64,
        /// Length in bytes, up to [`LENGTH_MAX`].
        length: u32,
        /// Whether the client requires an answer in a single chunk.
        whole: bool,
    },
    /// Write a range of the export; the data follows as [`ConversationStep::Payload`].
    Write {
        offset: u64,
        /// Length in bytes, up to [`LENGTH_MAX`].
        length: u32,
    },
    WriteZeroes {
        offset: u64,
        /// Length in bytes.
        length: u32,
    },
    /// Discard the content of a range of the export.
    Trim {
        offset: u64,
        /// Length in bytes.
        length: u32,
    },
    /// Read a range ahead, without sending it.
    Cache {
        offset: u64,
        /// Length in bytes.
        length: u32,
    },
    /// Tell where a range has holes and zeros. Its offset does not matter, because every range has the same answer.
    BlockStatus {
        /// Length in bytes, never 0.
        length: u32,
    },
    /// Make all completed writes durable.
    Flush,
}

/// Next action of the caller.
#[derive(Debug, PartialEq, Eq)]
pub enum ConversationStep {
    /// Send the output, and then receive at least this many further bytes, never 0.
    Receive(usize),
    /// Take this many bytes of the last write's payload, never 0: [`Conversation::payload`] returns those already
    /// received, and [`Conversation::paid`] has to be called for those that bypass the conversation.
    Payload(u32),
    Carry(ExportRequest),
    /// Send the output and disconnect the client.
    Leave,
}

/// Violation of the protocol after which the beginning of the next message is unknown, so the client is disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolViolation {
    /// The client does not use the fixed newstyle protocol, or set unknown flags.
    #[error("the client answered the greeting with flags {0:#x}; it has to use the fixed newstyle protocol")]
    Flags(u32),
    #[error("the client sent something else where an option has to begin")]
    NoOption,
    #[error("the client sent option {option} with {length} bytes of data; it may have {OPTION_DATA_MAX}")]
    LongOption {
        option: u32,
        /// Length of the option's data in bytes.
        length: u32,
    },
    #[error("the client sent more than {OPTIONS_MAX} options without choosing an export")]
    ManyOptions,
    #[error("the client sent something else where a request has to begin")]
    NoRequest,
    #[error("the client announced a write of {0} bytes; it may have {LENGTH_MAX}")]
    LongPayload(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NegotiationPhase {
    /// The client's flags are expected next.
    Greeted,
    Options,
    Requests {
        size: u64,
    },
    /// The payload of a write is expected next.
    Payload {
        size: u64,
        left: u32,
    },
    /// The payload of a refused write is expected next, and skipped.
    Skipping {
        size: u64,
        left: u32,
    },
    Over,
}

/// The protocol's state for one client. See the [module](self).
#[derive(Debug)]
pub struct Conversation {
    offer: Offer,
    phase: NegotiationPhase,
    handshake: Handshake,
    options: u32,
    /// Whether the client has selected the metadata context `base:allocation`.
    allocation: bool,
    input: Vec<u8>,
    /// Length in bytes of the consumed part at the beginning of `input`.
    taken: usize,
    /// Greeting and replies to options that are not in the output yet.
    said: Vec<u8>,
}

impl Conversation {
    /// A conversation with a new client, which the first step greets.
    pub fn new(offer: Offer) -> Conversation {
        let mut said = Vec::new();
        said.extend(GREETING.to_be_bytes());
        said.extend(OPTION.to_be_bytes());
        said.extend((Handshake::all().bits() as u16).to_be_bytes());
        Conversation {
            offer,
            phase: NegotiationPhase::Greeted,
            handshake: Handshake::empty(),
            options: 0,
            allocation: false,
            input: Vec::new(),
            taken: 0,
            said,
        }
    }

    pub(crate) fn is_negotiating(&self) -> bool {
        matches!(self.phase, NegotiationPhase::Greeted | NegotiationPhase::Options)
    }

    /// Appends `bytes` from the client, in pieces of any length.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.input.drain(..self.taken);
        self.taken = 0;
        self.input.extend_from_slice(bytes);
    }

    /// Parses received bytes up to the caller's next action.
    ///
    /// # Errors
    /// Any [`ProtocolViolation`]; the client has to be disconnected, and the conversation is over.
    pub fn step(&mut self, output: &mut Output) -> Result<ConversationStep, ProtocolViolation> {
        let outcome = loop {
            // Replies to options precede replies to requests.
            output.take(&mut self.said);
            let outcome = match self.phase {
                NegotiationPhase::Greeted => self.flags(),
                NegotiationPhase::Options => self.option(output),
                NegotiationPhase::Requests { size } => self.request(size, output),
                NegotiationPhase::Payload { left, .. } => Ok(Some(ConversationStep::Payload(left))),
                NegotiationPhase::Skipping { size, left } => Ok(self.skip(size, left)),
                NegotiationPhase::Over => Ok(Some(ConversationStep::Leave)),
            };
            if let Some(outcome) = outcome.transpose() {
                break outcome;
            }
        };
        output.take(&mut self.said);
        if outcome.is_err() {
            self.phase = NegotiationPhase::Over;
        }
        outcome
    }

    /// Returns the received bytes of the expected payload, at most `most`, and consumes them.
    pub fn payload(&mut self, most: usize) -> &[u8] {
        let NegotiationPhase::Payload { left, .. } = self.phase else { return &[] };
        let length = self.rest().len().min(most).min(left as usize);
        let from = self.taken;
        self.taken += length;
        self.paid(length);
        &self.input[from..from + length]
    }

    /// Records that `bytes` bytes of the expected payload bypassed the conversation; no byte of it may be buffered
    /// here.
    pub fn paid(&mut self, bytes: usize) {
        if let NegotiationPhase::Payload { size, left } = self.phase {
            self.phase = match left.saturating_sub(bytes as u32) {
                0 => NegotiationPhase::Requests { size },
                left => NegotiationPhase::Payload { size, left },
            };
        }
    }

    fn skip(&mut self, size: u64, left: u32) -> Option<ConversationStep> {
        let now = self.rest().len().min(left as usize);
        self.taken += now;
        let left = left - now as u32;
        self.phase = if left == 0 {
            NegotiationPhase::Requests { size }
        } else {
            NegotiationPhase::Skipping { size, left }
        };
        (left > 0).then_some(ConversationStep::Receive(left as usize))
    }

    fn rest(&self) -> &[u8] {
        &self.input[self.taken..]
    }

    /// The step that receives the rest of a message of `length` bytes; `None` if the whole message has been received.
    fn missing(&self, length: usize) -> Option<ConversationStep> {
        length.checked_sub(self.rest().len()).filter(|missing| *missing > 0).map(ConversationStep::Receive)
    }

    fn flags(&mut self) -> Result<Option<ConversationStep>, ProtocolViolation> {
        let Some(bytes) = self.rest().first_chunk() else { return Ok(self.missing(4)) };
        let flags = u32::from_be_bytes(*bytes);
        self.handshake = Handshake::from_bits(flags)
            .filter(|known| known.contains(Handshake::FIXED_NEWSTYLE))
            .ok_or(ProtocolViolation::Flags(flags))?;
        self.taken += 4;
        self.phase = NegotiationPhase::Options;
        Ok(None)
    }

    fn option(&mut self, output: &mut Output) -> Result<Option<ConversationStep>, ProtocolViolation> {
        let Some(header) = self.rest().first_chunk() else { return Ok(self.missing(OPTION_HEADER)) };
        let (option, length) = parse_option(header).ok_or(ProtocolViolation::NoOption)?;
        if length > OPTION_DATA_MAX {
            return Err(ProtocolViolation::LongOption { option, length });
        }
        let end = OPTION_HEADER + length as usize;
        if let Some(missing) = self.missing(end) {
            return Ok(Some(missing));
        }
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(ProtocolViolation::ManyOptions);
        }
        let data = self.rest()[OPTION_HEADER..end].to_vec();
        self.taken += end;
        match OptionCode::from(option) {
            OptionCode::ExportName => self.export_name(&data, output),
            OptionCode::Abort => {
                self.reply(option, OptReply::Ack, &[]);
                self.phase = NegotiationPhase::Over;
            }
            OptionCode::List if data.is_empty() => {
                if self.offer.size.is_ok() {
                    let (name, text) = (self.offer.name.clone(), self.description());
                    let length = (name.len() as u32).to_be_bytes();
                    self.reply(option, OptReply::Server, &[&length, name.as_bytes(), text.as_bytes()]);
                }
                self.reply(option, OptReply::Ack, &[]);
            }
            OptionCode::Info | OptionCode::Go => self.info(option, &data, output),
            OptionCode::ListMetaContext | OptionCode::SetMetaContext => self.contexts(option, &data, output),
            OptionCode::StructuredReply if data.is_empty() => {
                output.set_structured();
                self.reply(option, OptReply::Ack, &[]);
            }
            OptionCode::List | OptionCode::StructuredReply => {
                self.refuse(option, OptReply::Invalid, "this option has no data")
            }
            OptionCode::Other(_) => {
                self.refuse(option, OptReply::Unsupported, "this server does not support the option")
            }
        }
        Ok(None)
    }

    /// Chooses an export by `NBD_OPT_EXPORT_NAME`, which allows no error reply.
    fn export_name(&mut self, name: &[u8], output: &Output) {
        match self.offer.size {
            Ok(size) if self.is_offered(name) => {
                self.said.extend(size.to_be_bytes());
                self.said.extend(self.abilities(output).bits().to_be_bytes());
                if !self.handshake.contains(Handshake::NO_ZEROES) {
                    self.said.extend([0; 124]);
                }
                self.phase = NegotiationPhase::Requests { size };
            }
            _ => self.phase = NegotiationPhase::Over,
        }
    }

    /// Answers `NBD_OPT_INFO` and `NBD_OPT_GO`; `NBD_OPT_GO` also chooses the export.
    fn info(&mut self, option: u32, data: &[u8], output: &Output) {
        let Some((name, asked)) = parse_info(data) else {
            return self.refuse(option, OptReply::Invalid, "the data of the option does not add up");
        };
        let size = match self.export_size(name) {
            Ok(size) => size,
            Err((reply, why)) => return self.refuse(option, reply, &why),
        };
        let kind = |info: Info| (info as u16).to_be_bytes();
        let abilities = self.abilities(output).bits().to_be_bytes();
        self.reply(option, OptReply::Info, &[&kind(Info::Export), &size.to_be_bytes(), &abilities]);
        let sizes = [BLOCK_MIN, BLOCK_PREFERRED, LENGTH_MAX].map(u32::to_be_bytes);
        self.reply(option, OptReply::Info, &[&kind(Info::BlockSize), sizes.as_flattened()]);
        if asked.contains(&(Info::Name as u16)) {
            let name = self.offer.name.clone();
            self.reply(option, OptReply::Info, &[&kind(Info::Name), name.as_bytes()]);
        }
        if asked.contains(&(Info::Description as u16)) {
            let text = self.description();
            self.reply(option, OptReply::Info, &[&kind(Info::Description), text.as_bytes()]);
        }
        self.reply(option, OptReply::Ack, &[]);
        if OptionCode::from(option) == OptionCode::Go {
            self.phase = NegotiationPhase::Requests { size };
        }
    }

    fn description(&self) -> String {
        format!("region {} in remote memory (CXL over Ethernet)", self.offer.name)
    }

    /// Size in bytes of the export `name`, or the reply and the reason that refuse it.
    fn export_size(&self, name: &[u8]) -> Result<u64, (OptReply, String)> {
        if !self.is_offered(name) {
            return Err((OptReply::Unknown, "no such export; ask for the list, or name none".into()));
        }
        self.offer.size.clone().map_err(|unavailable| match unavailable {
            Unavailable::Away(why) => (OptReply::Shutdown, why),
            Unavailable::Full(why) => (OptReply::Policy, why),
        })
    }

    fn is_offered(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.offer.name.as_bytes()
    }

    fn abilities(&self, output: &Output) -> TransmissionFlags {
        let writing = if self.offer.read_only {
            TransmissionFlags::READ_ONLY
        } else {
            let zeroes = TransmissionFlags::WRITE_ZEROES | TransmissionFlags::FAST_ZERO;
            TransmissionFlags::FUA | TransmissionFlags::TRIM | zeroes
        };
        let df = if output.is_structured() { TransmissionFlags::DF } else { TransmissionFlags::empty() };
        // Connections share no cache, so that a write that was answered on one is seen on all.
        let always = TransmissionFlags::FLUSH | TransmissionFlags::MULTI_CONN | TransmissionFlags::CACHE;
        TransmissionFlags::HAS_FLAGS | always | writing | df
    }

    fn reply(&mut self, option: u32, reply: OptReply, data: &[&[u8]]) {
        put_option_reply(&mut self.said, option, reply, data);
    }

    fn refuse(&mut self, option: u32, reply: OptReply, why: &str) {
        self.reply(option, reply, &[clipped(why).as_bytes()]);
    }

    fn request(
        &mut self,
        size: u64,
        output: &mut Output,
    ) -> Result<Option<ConversationStep>, ProtocolViolation> {
        let Some(header) = self.rest().first_chunk() else { return Ok(self.missing(REQUEST_HEADER)) };
        let header = RequestHeader::parse(header).ok_or(ProtocolViolation::NoRequest)?;
        let payload = if header.kind == RequestKind::Write { header.length } else { 0 };
        if payload > LENGTH_MAX {
            return Err(ProtocolViolation::LongPayload(payload));
        }
        self.taken += REQUEST_HEADER;
        if header.kind == RequestKind::Disconnect {
            self.phase = NegotiationPhase::Over;
            return Ok(None);
        }
        if let Some((error, why)) = self.objection(&header, size) {
            output.error(header.cookie, error, why);
            self.phase = NegotiationPhase::Skipping { size, left: payload };
            return Ok(None);
        }
        let RequestHeader { cookie, offset, length, wishes, .. } = header;
        let command = match header.kind {
            RequestKind::Read => {
                ExportCommand::Read { offset, length, whole: wishes.contains(ClientFlags::DF) }
            }
            RequestKind::Write => ExportCommand::Write { offset, length },
            RequestKind::WriteZeroes => ExportCommand::WriteZeroes { offset, length },
            RequestKind::Trim => ExportCommand::Trim { offset, length },
            RequestKind::Cache => ExportCommand::Cache { offset, length },
            RequestKind::BlockStatus => ExportCommand::BlockStatus { length },
            RequestKind::Flush => ExportCommand::Flush,
            // Not reached: a disconnect was handled above, and `objection` has refused unknown requests.
            RequestKind::Disconnect | RequestKind::Other(_) => return Ok(None),
        };
        if payload > 0 {
            self.phase = NegotiationPhase::Payload { size, left: payload };
        }
        Ok(Some(ConversationStep::Carry(ExportRequest { cookie, command })))
    }

    /// Reason to refuse a request; `None` if the request is valid.
    fn objection(&self, header: &RequestHeader, size: u64) -> Option<(Errno, &'static str)> {
        let writes = matches!(header.kind, RequestKind::Write | RequestKind::WriteZeroes | RequestKind::Trim);
        let known = match header.kind {
            RequestKind::Read => ClientFlags::DF | ClientFlags::FUA,
            RequestKind::WriteZeroes => ClientFlags::FUA | ClientFlags::NO_HOLE | ClientFlags::FAST_ZERO,
            RequestKind::BlockStatus => ClientFlags::FUA | ClientFlags::REQ_ONE,
            RequestKind::Write | RequestKind::Trim | RequestKind::Flush | RequestKind::Cache => {
                ClientFlags::FUA
            }
            RequestKind::Disconnect | RequestKind::Other(_) => {
                return Some((Errno::Invalid, "this server does not support the request"));
            }
        };
        let beyond = header.offset.checked_add(header.length.into()).is_none_or(|end| end > size);
        if writes && self.offer.read_only {
            Some((Errno::NotPermitted, "the export is read-only"))
        } else if header.strange || !known.contains(header.wishes) {
            Some((Errno::Invalid, "the request has flags that this server does not support"))
        } else if header.kind == RequestKind::Read && header.length > LENGTH_MAX {
            Some((Errno::Overflow, "the read is longer than 64 MiB"))
        } else if header.kind == RequestKind::Flush && (header.offset, header.length) != (0, 0) {
            Some((Errno::Invalid, "a flush has neither offset nor length"))
        } else if header.kind == RequestKind::BlockStatus && !self.allocation {
            Some((Errno::Invalid, "the client has selected no metadata context"))
        } else if header.kind == RequestKind::BlockStatus && header.length == 0 {
            Some((Errno::Invalid, "a range of no bytes has no status"))
        } else if beyond && writes {
            Some((Errno::NoSpace, "the export ends before that"))
        } else if beyond {
            Some((Errno::Invalid, "the export ends before that"))
        } else if header.wishes.contains(ClientFlags::FAST_ZERO) {
            // Zeros travel to the memory node line by line, as data does.
            Some((Errno::NotSupported, "zeros take as long as data"))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests;
