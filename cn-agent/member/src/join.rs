//! The request of a process to become a member, in the agent's JSON, and the agent's answer.

#![expect(unsafe_code, reason = "getpid is a function of the C library")]

use std::fmt::{self, Write};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::process_files::ProcessFiles;
use crate::socket::{DESCRIPTORS_MAX, Descriptors, Socket, SocketPath};
use crate::wire::{JoinReply, NOT_YET, ProbePage, TEXT_MAX, VERSION, WELCOME, WELCOME_BYTES};

/// Longest wait for the agent's answer.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// Memory of a process, and the space to which it belongs.
#[derive(Clone, Copy, Debug)]
pub struct MemberMemory {
    pub agent: SocketPath,
    /// Number of the space, from the agent's answer when the region was mapped.
    pub space: u64,
    /// Address in the process at which the memory begins.
    pub address: u64,
    /// Length in bytes, a multiple of the page size.
    pub bytes: u64,
    /// Offset of the first byte in the region (shared memory); 0 for private memory.
    pub offset: u64,
}

/// Descriptors that a member passes to the successor of a dead agent.
#[derive(Clone, Copy, Debug)]
pub struct SuccessorDescriptors<'a> {
    pub uffd: BorrowedFd<'a>,
    pub shared_state: BorrowedFd<'a>,
    /// Memory file of the space, if the memory is shared.
    pub memory: Option<BorrowedFd<'a>>,
    /// Files through which the agent reads the member's memory, if the memory is private.
    pub files: Option<&'a ProcessFiles>,
    pub view: u16,
}

#[derive(Clone, Copy, Debug)]
pub enum JoinKind<'a> {
    /// A process that joins for the first time. The agent sets up its userfaultfd.
    New {
        uffd: BorrowedFd<'a>,
        /// Files through which the agent reads the process's memory; none for shared memory.
        files: Option<&'a ProcessFiles>,
    },
    /// A forked child, the userfaultfd of which the agent has from the fork event.
    Child {
        /// Content of the probe page, as the child has read it.
        probe: ProbePage,
        /// Files through which the agent reads the child's memory; none if the child may not open them. Then
        /// the child's pages are not evicted.
        files: Option<&'a ProcessFiles>,
    },
    /// A former member that joins the agent's successor.
    Before(SuccessorDescriptors<'a>),
}

impl<'a> JoinKind<'a> {
    fn files(&self) -> Option<&'a ProcessFiles> {
        match self {
            JoinKind::New { files, .. } | JoinKind::Child { files, .. } => *files,
            JoinKind::Before(before) => before.files,
        }
    }

    /// Descriptors that are sent with the request, in the order that the agent expects; returns their number.
    fn descriptors(&self, into: &mut [BorrowedFd<'a>; DESCRIPTORS_MAX], none: BorrowedFd<'a>) -> usize {
        *into = [none; DESCRIPTORS_MAX];
        let first = match self {
            JoinKind::New { uffd, .. } => [Some(*uffd), None, None],
            JoinKind::Child { .. } => [None; 3],
            JoinKind::Before(SuccessorDescriptors { uffd, shared_state, memory, .. }) => {
                [Some(*uffd), Some(*shared_state), *memory]
            }
        };
        let files = self.files();
        let last = [files.and_then(ProcessFiles::memory), files.map(ProcessFiles::table)];
        let all = first.into_iter().chain(last).flatten();
        all.zip(into).map(|(descriptor, place)| *place = descriptor).count()
    }
}

/// A text of at most [`TEXT_MAX`] bytes, stored without the heap.
#[derive(Clone, Copy)]
pub struct InlineText {
    bytes: [u8; TEXT_MAX],
    length: usize,
}

impl InlineText {
    const EMPTY: InlineText = InlineText { bytes: [0; TEXT_MAX], length: 0 };

    /// The text, up to its last whole character.
    pub fn as_str(&self) -> &str {
        let bytes = &self.bytes[..self.length];
        match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
        }
    }
}

impl fmt::Debug for InlineText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for InlineText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Write for InlineText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// No process accepts on the agent's socket.
    #[error("no agent answers at {agent:?}: {source}")]
    NoAgent { agent: SocketPath, source: io::Error },
    /// The space does not exist yet, or the region is not attached yet.
    #[error("the agent is not ready for this yet: {0}")]
    NotYet(InlineText),
    /// The agent refused, and would refuse a later attempt, too.
    #[error("the agent refused: {0}")]
    Refused(InlineText),
    /// The answer is not of this release's protocol.
    #[error("what answers is no agent of this release; use programs of one release")]
    Protocol,
    /// The connection broke, or no answer came in time.
    #[error("the agent did not answer: {0}")]
    Broken(io::Error),
}

impl JoinError {
    /// Whether a later attempt may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, JoinError::NoAgent { .. } | JoinError::NotYet(_) | JoinError::Broken(_))
    }
}

/// Membership of a space, with all that the agent sent.
#[derive(Debug)]
pub struct Joined {
    /// Connection to the agent; membership ends when it is closed.
    pub socket: Socket,
    pub welcome: JoinReply,
    /// Userfaultfd of a forked child, which has to keep it open as long as it lives.
    pub uffd: Option<OwnedFd>,
    /// Shared state of the space, which the member keeps open; `None` for a former member, which has it already.
    pub shared_state: Option<OwnedFd>,
}

/// Makes this process a member, and waits for the agent's answer.
pub fn join(place: &MemberMemory, who: JoinKind<'_>) -> Result<Joined, JoinError> {
    // SAFETY: the call has no arguments and cannot fail. A cached process id would be the parent's after a fork.
    join_for(unsafe { libc::getpid() } as u32, place, who)
}

/// Joins with memory of process `pid`, a virtual machine monitor that passed its userfaultfd to this process.
pub fn join_for(pid: u32, place: &MemberMemory, who: JoinKind<'_>) -> Result<Joined, JoinError> {
    let none = |source| JoinError::NoAgent { agent: place.agent, source };
    let socket = Socket::connect(&place.agent, ANSWER_MAX).map_err(none)?;
    let request = request(pid, place, who);
    let mut bytes = [0; 4 + TEXT_MAX];
    bytes[..4].copy_from_slice(&(request.length as u32).to_be_bytes());
    bytes[4..4 + request.length].copy_from_slice(&request.bytes[..request.length]);
    let bytes = &bytes[..4 + request.length];
    let mut sent = [socket.as_fd(); DESCRIPTORS_MAX];
    let count = who.descriptors(&mut sent, socket.as_fd());
    socket.send(bytes, &sent[..count]).map_err(JoinError::Broken)?;

    let (mut head, mut descriptors) = ([0; WELCOME_BYTES], Descriptors::new());
    socket.receive_exact(&mut head, &mut descriptors).map_err(JoinError::Broken)?;
    let welcome = JoinReply::decode(&head).ok_or(JoinError::Protocol)?;
    let mut text = InlineText { length: welcome.text as usize, ..InlineText::EMPTY };
    let room = text.bytes.get_mut(..welcome.text as usize).ok_or(JoinError::Protocol)?;
    socket.receive_exact(room, &mut descriptors).map_err(JoinError::Broken)?;
    match welcome.status {
        WELCOME => {
            let uffd = if matches!(who, JoinKind::Child { .. }) { descriptors.take() } else { None };
            Ok(Joined { socket, welcome, uffd, shared_state: descriptors.take() })
        }
        NOT_YET => Err(JoinError::NotYet(text)),
        _ => Err(JoinError::Refused(text)),
    }
}

fn request(pid: u32, place: &MemberMemory, who: JoinKind<'_>) -> InlineText {
    let MemberMemory { space, address, bytes, offset, .. } = *place;
    let resume = matches!(who, JoinKind::Before(_));
    let mut text = InlineText::EMPTY;
    let written = write!(
        text,
        "{{\"version\":{VERSION},\"ask\":{{\"join\":{{\"space\":{space},\"address\":{address},\"bytes\":{bytes},\
         \"offset\":{offset},\"pid\":{pid},\"resume\":{resume},\"view\":"
    )
    .and_then(|()| match who {
        JoinKind::Child { probe: ProbePage { view, proof }, .. } => {
            write!(text, "{view},\"proof\":{proof}")
        }
        JoinKind::Before(SuccessorDescriptors { view, .. }) => write!(text, "{view}"),
        JoinKind::New { .. } => text.write_str("null"),
    })
    .and_then(|()| {
        let files = match who.files() {
            None => "none",
            Some(files) if files.memory().is_none() => "table",
            Some(_) => "all",
        };
        write!(text, ",\"files\":\"{files}\"}}}}}}")
    });
    debug_assert!(written.is_ok(), "numbers have bounded lengths");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_request_fits() {
        let agent = SocketPath::new(b"/x").unwrap();
        let place =
            MemberMemory { agent, space: u64::MAX, address: u64::MAX, bytes: u64::MAX, offset: u64::MAX };
        let probe = ProbePage { view: u16::MAX, proof: u64::MAX };
        let text = request(u32::MAX, &place, JoinKind::Child { probe, files: None });
        assert!(
            text.as_str().starts_with(&format!("{{\"version\":{VERSION},"))
                && text.as_str().ends_with(r#"65535,"proof":18446744073709551615,"files":"none"}}}"#),
            "{text}"
        );
    }
}
