//! One connection of an NBD client, as a state machine without I/O: bytes go in by [`Conversation::receive`], what they
//! ask for comes out of [`Conversation::step`], and what is to be said at once goes to an `Output`.
//!
//! ```text
//!   greeting --> client's flags --> options --GO, EXPORT_NAME--> requests --DISC--> over
//!                                      | ABORT, no such export by EXPORT_NAME         ^
//!                                      +----------------------------------------------+
//! ```
//!
//! Everything that can be decided from the protocol alone is answered here: options, requests beyond the end, writes
//! to what is read-only, what is not known. The payload of a write goes past it, to where it is to be
//! ([`Step::Payload`]), so that a client cannot make it keep more than an option or a header.

use super::output::{Output, clipped};
use super::wire::{
    Abilities, Errno, GREETING, Handshake, Info, Kind, OPTION, OPTION_HEADER, Opt, OptReply, REQUEST_HEADER,
    RequestHeader, Wishes, parse_info, parse_option, put_option_reply,
};

/// The longest read, and the longest payload of a write, in bytes: what clients may take for granted.
pub const LENGTH_MAX: u32 = 64 << 20;
/// The smallest request a client should make, in bytes: a sector. Smaller ones are served all the same.
const BLOCK_MIN: u32 = 512;
/// The preferred multiple of requests, in bytes: a page.
const BLOCK_PREFERRED: u32 = 4096;
/// The longest data of an option, in bytes: a name of 4,096 bytes, and much that is asked about it.
const OPTION_DATA_MAX: u32 = 16 << 10;
/// Options before an export is chosen.
const OPTIONS_MAX: u32 = 256;

/// What is to be had.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The name of the export; a client that names none gets it too.
    pub name: String,
    /// Its bytes, or why it is not to be had at present.
    pub size: Result<u64, Unavailable>,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// The reason why an export is not to be had at present, in words for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// The region or the agent is away.
    Away(String),
    /// As many clients are served as may be.
    Full(String),
}

/// A request that has to be carried out, within the bounds of the export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// By which the client knows the answer.
    pub cookie: u64,
    /// What is asked for.
    pub command: Command,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// So many bytes from an offset on.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes, up to [`LENGTH_MAX`].
        length: u32,
        /// Whether the answer has to be in one piece.
        whole: bool,
    },
    /// To write so many bytes, which follow: [`Step::Payload`].
    Write {
        /// First byte.
        offset: u64,
        /// Bytes, up to [`LENGTH_MAX`].
        length: u32,
    },
    /// To make so many bytes zero.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// That so many bytes are of no use any more.
    Trim {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// To bring what was written to where it lasts.
    Flush,
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// At least so many further bytes are needed, never 0. What is in the output should be sent first.
    Receive(usize),
    /// So many bytes of the last write's payload are still to come, never 0: [`Conversation::payload`] has those that are
    /// here, and [`Conversation::paid`] is to be told of those that went another way.
    Payload(u32),
    /// A request, to be answered by its cookie.
    Carry(Request),
    /// The client leaves: send what is in the output, and hang up.
    Leave,
}

/// Why a client has to be hung up on: what follows in its bytes cannot be told any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// It does not speak the fixed newstyle protocol, or says what nobody knows.
    #[error(
        "the client answered the greeting with flags {0:#x}; it has to speak the fixed newstyle protocol"
    )]
    Flags(u32),
    /// Not an option.
    #[error("the client sent something else where an option has to begin")]
    NoOption,
    /// An option that is too long.
    #[error("the client sent option {option} with {length} bytes of data; it may have {OPTION_DATA_MAX}")]
    LongOption {
        /// Its number.
        option: u32,
        /// Its data in bytes.
        length: u32,
    },
    /// Too many options.
    #[error("the client sent more than {OPTIONS_MAX} options without choosing an export")]
    ManyOptions,
    /// Not a request.
    #[error("the client sent something else where a request has to begin")]
    NoRequest,
    /// A payload that is too long.
    #[error("the client announced a write of {0} bytes; it may have {LENGTH_MAX}")]
    LongPayload(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The client's flags are due.
    Greeted,
    Options,
    Requests {
        size: u64,
    },
    /// A write's payload is due.
    Payload {
        size: u64,
        left: u32,
    },
    /// The payload of a write that was refused is to be passed over.
    Skipping {
        size: u64,
        left: u32,
    },
    Over,
}

/// A connection of a client. See the [module](self).
#[derive(Debug)]
pub struct Conversation {
    offer: Offer,
    phase: Phase,
    handshake: Handshake,
    options: u32,
    input: Vec<u8>,
    /// Bytes at the beginning of `input` that are done with.
    taken: usize,
    /// What is to be said before requests.
    said: Vec<u8>,
}

impl Conversation {
    /// A client has connected: it is greeted with the first step.
    pub fn new(offer: Offer) -> Conversation {
        let mut said = Vec::new();
        said.extend(GREETING.to_be_bytes());
        said.extend(OPTION.to_be_bytes());
        said.extend((Handshake::all().bits() as u16).to_be_bytes());
        Conversation {
            offer,
            phase: Phase::Greeted,
            handshake: Handshake::empty(),
            options: 0,
            input: Vec::new(),
            taken: 0,
            said,
        }
    }

    /// Whether no export has been chosen yet.
    pub fn is_negotiating(&self) -> bool {
        matches!(self.phase, Phase::Greeted | Phase::Options)
    }

    /// The client sent `bytes`, in pieces of any length.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.input.drain(..self.taken);
        self.taken = 0;
        self.input.extend_from_slice(bytes);
    }

    /// Goes on with what was received, to the next thing that others have to do.
    ///
    /// # Errors
    /// Any [`Violation`]; the client has to be hung up on, and the conversation is over.
    pub fn step(&mut self, output: &mut Output) -> Result<Step, Violation> {
        let outcome = loop {
            // What was said of options comes before what is said of requests.
            output.take(&mut self.said);
            let outcome = match self.phase {
                Phase::Greeted => self.flags(),
                Phase::Options => self.option(output),
                Phase::Requests { size } => self.request(size, output),
                Phase::Payload { left, .. } => Ok(Some(Step::Payload(left))),
                Phase::Skipping { size, left } => Ok(self.skip(size, left)),
                Phase::Over => Ok(Some(Step::Leave)),
            };
            if let Some(outcome) = outcome.transpose() {
                break outcome;
            }
        };
        output.take(&mut self.said);
        if outcome.is_err() {
            self.phase = Phase::Over;
        }
        outcome
    }

    /// What is here of the payload that is due, `most` bytes at most; it is taken with that.
    pub fn payload(&mut self, most: usize) -> &[u8] {
        let Phase::Payload { left, .. } = self.phase else { return &[] };
        let length = self.rest().len().min(most).min(left as usize);
        let from = self.taken;
        self.taken += length;
        self.paid(length);
        &self.input[from..from + length]
    }

    /// So many bytes of the payload that is due have gone another way; none are here.
    pub fn paid(&mut self, bytes: usize) {
        if let Phase::Payload { size, left } = self.phase {
            self.phase = match left.saturating_sub(bytes as u32) {
                0 => Phase::Requests { size },
                left => Phase::Payload { size, left },
            };
        }
    }

    fn skip(&mut self, size: u64, left: u32) -> Option<Step> {
        let now = self.rest().len().min(left as usize);
        self.taken += now;
        let left = left - now as u32;
        self.phase = if left == 0 { Phase::Requests { size } } else { Phase::Skipping { size, left } };
        (left > 0).then_some(Step::Receive(left as usize))
    }

    fn rest(&self) -> &[u8] {
        &self.input[self.taken..]
    }

    /// How many bytes are missing to have `length`; `None` if they are there.
    fn missing(&self, length: usize) -> Option<Step> {
        length.checked_sub(self.rest().len()).filter(|missing| *missing > 0).map(Step::Receive)
    }

    fn flags(&mut self) -> Result<Option<Step>, Violation> {
        let Some(bytes) = self.rest().first_chunk() else { return Ok(self.missing(4)) };
        let flags = u32::from_be_bytes(*bytes);
        self.handshake = Handshake::from_bits(flags)
            .filter(|known| known.contains(Handshake::FIXED_NEWSTYLE))
            .ok_or(Violation::Flags(flags))?;
        self.taken += 4;
        self.phase = Phase::Options;
        Ok(None)
    }

    fn option(&mut self, output: &mut Output) -> Result<Option<Step>, Violation> {
        let Some(header) = self.rest().first_chunk() else { return Ok(self.missing(OPTION_HEADER)) };
        let (option, length) = parse_option(header).ok_or(Violation::NoOption)?;
        if length > OPTION_DATA_MAX {
            return Err(Violation::LongOption { option, length });
        }
        let end = OPTION_HEADER + length as usize;
        if let Some(missing) = self.missing(end) {
            return Ok(Some(missing));
        }
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(Violation::ManyOptions);
        }
        let data = self.rest()[OPTION_HEADER..end].to_vec();
        self.taken += end;
        match Opt::from(option) {
            Opt::ExportName => self.export_name(&data, output),
            Opt::Abort => {
                self.reply(option, OptReply::Ack, &[]);
                self.phase = Phase::Over;
            }
            Opt::List if data.is_empty() => {
                if self.offer.size.is_ok() {
                    let (name, text) = (self.offer.name.clone(), self.description());
                    let length = (name.len() as u32).to_be_bytes();
                    self.reply(option, OptReply::Server, &[&length, name.as_bytes(), text.as_bytes()]);
                }
                self.reply(option, OptReply::Ack, &[]);
            }
            Opt::Info | Opt::Go => self.info(option, &data, output),
            Opt::StructuredReply if data.is_empty() => {
                output.set_structured();
                self.reply(option, OptReply::Ack, &[]);
            }
            Opt::List | Opt::StructuredReply => {
                self.refuse(option, OptReply::Invalid, "this option has no data")
            }
            Opt::Other(_) => {
                self.refuse(option, OptReply::Unsupported, "this server does not know the option")
            }
        }
        Ok(None)
    }

    /// Chooses an export the old way, in which nothing can be said against it.
    fn export_name(&mut self, name: &[u8], output: &Output) {
        match self.offer.size {
            Ok(size) if self.is_offered(name) => {
                self.said.extend(size.to_be_bytes());
                self.said.extend(self.abilities(output).bits().to_be_bytes());
                if !self.handshake.contains(Handshake::NO_ZEROES) {
                    self.said.extend([0; 124]);
                }
                self.phase = Phase::Requests { size };
            }
            _ => self.phase = Phase::Over,
        }
    }

    /// Tells about an export, and chooses it if that is asked for.
    fn info(&mut self, option: u32, data: &[u8], output: &Output) {
        let Some((name, asked)) = parse_info(data) else {
            return self.refuse(option, OptReply::Invalid, "the data of the option does not add up");
        };
        if !self.is_offered(name) {
            return self.refuse(option, OptReply::Unknown, "no such export; ask for the list, or name none");
        }
        let size = match self.offer.size.clone() {
            Ok(size) => size,
            Err(Unavailable::Away(why)) => return self.refuse(option, OptReply::Shutdown, &why),
            Err(Unavailable::Full(why)) => return self.refuse(option, OptReply::Policy, &why),
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
        if Opt::from(option) == Opt::Go {
            self.phase = Phase::Requests { size };
        }
    }

    /// A text for people.
    fn description(&self) -> String {
        format!("region {} in remote memory (CXL over Ethernet)", self.offer.name)
    }

    fn is_offered(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.offer.name.as_bytes()
    }

    fn abilities(&self, output: &Output) -> Abilities {
        let writing = if self.offer.read_only {
            Abilities::READ_ONLY
        } else {
            Abilities::FUA | Abilities::TRIM | Abilities::WRITE_ZEROES
        };
        let df = if output.is_structured() { Abilities::DF } else { Abilities::empty() };
        Abilities::HAS_FLAGS | Abilities::FLUSH | Abilities::MULTI_CONN | writing | df
    }

    fn reply(&mut self, option: u32, reply: OptReply, data: &[&[u8]]) {
        put_option_reply(&mut self.said, option, reply, data);
    }

    fn refuse(&mut self, option: u32, reply: OptReply, why: &str) {
        self.reply(option, reply, &[clipped(why).as_bytes()]);
    }

    fn request(&mut self, size: u64, output: &mut Output) -> Result<Option<Step>, Violation> {
        let Some(header) = self.rest().first_chunk() else { return Ok(self.missing(REQUEST_HEADER)) };
        let header = RequestHeader::parse(header).ok_or(Violation::NoRequest)?;
        let payload = if header.kind == Kind::Write { header.length } else { 0 };
        if payload > LENGTH_MAX {
            return Err(Violation::LongPayload(payload));
        }
        self.taken += REQUEST_HEADER;
        if header.kind == Kind::Disconnect {
            self.phase = Phase::Over;
            return Ok(None);
        }
        if let Some((error, why)) = self.objection(&header, size) {
            output.error(header.cookie, error, why);
            self.phase = Phase::Skipping { size, left: payload };
            return Ok(None);
        }
        let RequestHeader { cookie, offset, length, wishes, .. } = header;
        let command = match header.kind {
            Kind::Read => Command::Read { offset, length, whole: wishes.contains(Wishes::DF) },
            Kind::Write => Command::Write { offset, length },
            Kind::WriteZeroes => Command::WriteZeroes { offset, length },
            Kind::Trim => Command::Trim { offset, length },
            Kind::Flush => Command::Flush,
            // An objection was made above.
            Kind::Disconnect | Kind::Other(_) => return Ok(None),
        };
        if payload > 0 {
            self.phase = Phase::Payload { size, left: payload };
        }
        Ok(Some(Step::Carry(Request { cookie, command })))
    }

    /// What speaks against a request.
    fn objection(&self, header: &RequestHeader, size: u64) -> Option<(Errno, &'static str)> {
        let writes = matches!(header.kind, Kind::Write | Kind::WriteZeroes | Kind::Trim);
        let known = match header.kind {
            Kind::Read => Wishes::DF | Wishes::FUA,
            Kind::WriteZeroes => Wishes::FUA | Wishes::NO_HOLE,
            Kind::Write | Kind::Trim | Kind::Flush => Wishes::FUA,
            Kind::Disconnect | Kind::Other(_) => {
                return Some((Errno::Invalid, "this server does not know the request"));
            }
        };
        let beyond = header.offset.checked_add(header.length.into()).is_none_or(|end| end > size);
        if writes && self.offer.read_only {
            Some((Errno::NotPermitted, "the export is read-only"))
        } else if header.strange || !known.contains(header.wishes) {
            Some((Errno::Invalid, "the request has flags that this server does not know"))
        } else if header.kind == Kind::Read && header.length > LENGTH_MAX {
            Some((Errno::Overflow, "the read is longer than 64 MiB"))
        } else if header.kind == Kind::Flush && (header.offset, header.length) != (0, 0) {
            Some((Errno::Invalid, "a flush has neither offset nor length"))
        } else if beyond && writes {
            Some((Errno::NoSpace, "the export ends before that"))
        } else if beyond {
            Some((Errno::Invalid, "the export ends before that"))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests;
