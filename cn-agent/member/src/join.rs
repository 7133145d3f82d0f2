//! Becoming a member: one request, in the agent's JSON, and one answer.

use std::fmt::{self, Write};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::socket::{Descriptors, Socket, SocketPath};
use crate::wire::{self, NOT_YET, TEXT_MAX, VERSION, WELCOME, WELCOME_BYTES, Welcome};

/// How long the agent may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// Which memory of this process is a member of which space.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The agent's socket.
    pub agent: SocketPath,
    /// The space, as the agent named it when the region was mapped.
    pub space: u64,
    /// Where the memory begins.
    pub address: u64,
    /// Bytes of it, whole pages.
    pub bytes: u64,
    /// Which byte of the region (shared) is the first; 0 for private memory.
    pub offset: u64,
}

/// What a member shows the successor of an agent that has died.
#[derive(Clone, Copy, Debug)]
pub struct Keepsakes<'a> {
    /// The member's userfaultfd.
    pub uffd: BorrowedFd<'a>,
    /// The space's shared_state.
    pub shared_state: BorrowedFd<'a>,
    /// The space's memory, if it is shared.
    pub memory: Option<BorrowedFd<'a>>,
    /// The member's view.
    pub view: u16,
}

/// As who to join.
#[derive(Clone, Copy, Debug)]
pub enum As<'a> {
    /// A process with a userfaultfd of its own that is not set up yet.
    New(BorrowedFd<'a>),
    /// A forked child, which has read its view from the probe page.
    Child(u16),
    /// A member of before.
    Before(Keepsakes<'a>),
}

/// A text of bounded length that lies where it is.
#[derive(Clone, Copy)]
pub struct Text {
    bytes: [u8; TEXT_MAX],
    length: usize,
}

impl Text {
    const EMPTY: Text = Text { bytes: [0; TEXT_MAX], length: 0 };

    /// The text.
    pub fn as_str(&self) -> &str {
        let bytes = &self.bytes[..self.length];
        match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
        }
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// Why a process is no member.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Nobody listens.
    #[error("no agent answers at {agent:?}: {source}")]
    NoAgent {
        /// The socket.
        agent: SocketPath,
        /// What the kernel said.
        source: io::Error,
    },
    /// What was asked for is not there yet.
    #[error("the agent is not ready for this yet: {0}")]
    NotYet(Text),
    /// The agent refused.
    #[error("the agent refused: {0}")]
    Refused(Text),
    /// What answers is no agent of this release.
    #[error("what answers is no agent of this release; use programs of one release")]
    Protocol,
    /// The connection broke.
    #[error("the agent did not answer: {0}")]
    Broken(io::Error),
}

impl JoinError {
    /// Whether it may work a little later.
    pub fn may_pass(&self) -> bool {
        matches!(self, JoinError::NoAgent { .. } | JoinError::NotYet(_) | JoinError::Broken(_))
    }
}

/// A member.
#[derive(Debug)]
pub struct Joined {
    /// The connection that makes it one.
    pub socket: Socket,
    /// What the agent said.
    pub welcome: Welcome,
    /// A forked child's own userfaultfd, which it has to keep open as long as it lives.
    pub uffd: Option<OwnedFd>,
    /// The space's shared_state, to keep as well; not for a member of before, which has it.
    pub shared_state: Option<OwnedFd>,
}

/// Joins. Waits for the answer.
///
/// # Errors
/// Any [`JoinError`].
pub fn join(place: &Place, who: As<'_>) -> Result<Joined, JoinError> {
    // SAFETY: the call has no arguments and cannot fail. Not the cached number of before a fork.
    join_for(unsafe { libc::getpid() } as u32, place, who)
}

/// Joins with memory of another process, a virtual machine's, whose userfaultfd this one was given.
///
/// # Errors
/// Any [`JoinError`].
pub fn join_for(pid: u32, place: &Place, who: As<'_>) -> Result<Joined, JoinError> {
    let none = |source| JoinError::NoAgent { agent: place.agent, source };
    let socket = Socket::connect(&place.agent, ANSWER_MAX).map_err(none)?;
    let request = request(pid, place, who);
    let mut bytes = [0; 4 + TEXT_MAX];
    bytes[..4].copy_from_slice(&(request.length as u32).to_be_bytes());
    bytes[4..4 + request.length].copy_from_slice(&request.bytes[..request.length]);
    let bytes = &bytes[..4 + request.length];
    match who {
        As::New(uffd) => socket.send(bytes, &[uffd]),
        As::Child(_) => socket.send(bytes, &[]),
        As::Before(Keepsakes { uffd, shared_state, memory: None, .. }) => {
            socket.send(bytes, &[uffd, shared_state])
        }
        As::Before(Keepsakes { uffd, shared_state, memory: Some(memory), .. }) => {
            socket.send(bytes, &[uffd, shared_state, memory])
        }
    }
    .map_err(JoinError::Broken)?;

    let (mut head, mut descriptors) = ([0; WELCOME_BYTES], Descriptors::new());
    socket.receive_exact(&mut head, &mut descriptors).map_err(JoinError::Broken)?;
    let welcome = Welcome::decode(&head).ok_or(JoinError::Protocol)?;
    let mut text = Text { length: welcome.text as usize, ..Text::EMPTY };
    let room = text.bytes.get_mut(..welcome.text as usize).ok_or(JoinError::Protocol)?;
    socket.receive_exact(room, &mut descriptors).map_err(JoinError::Broken)?;
    match welcome.status {
        WELCOME => {
            let uffd = if matches!(who, As::Child(_)) { descriptors.take() } else { None };
            Ok(Joined { socket, welcome, uffd, shared_state: descriptors.take() })
        }
        NOT_YET => Err(JoinError::NotYet(text)),
        _ => Err(JoinError::Refused(text)),
    }
}

fn request(pid: u32, place: &Place, who: As<'_>) -> Text {
    let Place { space, address, bytes, offset, .. } = *place;
    let resume = matches!(who, As::Before(_));
    let mut text = Text::EMPTY;
    let written = write!(
        text,
        "{{\"version\":{VERSION},\"ask\":{{\"join\":{{\"space\":{space},\"address\":{address},\"bytes\":{bytes},\
         \"offset\":{offset},\"pid\":{pid},\"resume\":{resume},\"view\":"
    )
    .and_then(|()| match who {
        As::Child(view) | As::Before(Keepsakes { view, .. }) => write!(text, "{view}"),
        As::New(_) => text.write_str("null"),
    })
    .and_then(|()| text.write_str("}}}"));
    debug_assert!(written.is_ok(), "numbers have bounded lengths");
    text
}

/// The view that a probe page names, if it is one.
pub fn probed(page: &[u8; 16]) -> Option<u16> {
    page.starts_with(&wire::PROBE_MAGIC).then(|| u16::from_le_bytes([page[8], page[9]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_request_fits() {
        let agent = SocketPath::new(b"/x").unwrap();
        let place = Place { agent, space: u64::MAX, address: u64::MAX, bytes: u64::MAX, offset: u64::MAX };
        let text = request(u32::MAX, &place, As::Child(u16::MAX));
        assert!(
            text.as_str().starts_with(&format!("{{\"version\":{},", wire::VERSION))
                && text.as_str().ends_with("65535}}}"),
            "{text}"
        );
    }

    #[test]
    fn a_probe_page_names_its_view() {
        let mut page = [0; 16];
        assert_eq!(probed(&page), None);
        page[..8].copy_from_slice(&wire::PROBE_MAGIC);
        page[8..10].copy_from_slice(&0x1234_u16.to_le_bytes());
        assert_eq!(probed(&page), Some(0x1234));
    }
}
