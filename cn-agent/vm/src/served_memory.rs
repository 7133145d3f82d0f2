//! The pieces of a machine's memory as members of the region's space. Each piece has a connection to the agent, and a
//! thread that maintains it and connects to the agent's successor.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cxloe_member::helper::{HelperEnd, HelperHost, Member};
use cxloe_member::join::{JoinError, JoinKind, MemberMemory, join_for};
use cxloe_member::line::HelperLine;
use cxloe_member::socket::SocketPath;
use cxloe_member::wire::Pages;

use super::handover::{Machine, Piece};

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The agent refused to serve the memory, or did not answer.
    #[error("the machine's memory cannot be served: {0}")]
    Join(Box<JoinError>),
    /// A system call failed.
    #[error("cannot serve the machine's memory: {0}")]
    System(#[from] io::Error),
}

/// The space that serves the machine's memory, and its agent.
#[derive(Clone, Copy, Debug)]
pub struct MemorySource {
    pub agent: SocketPath,
    /// Number of the region's space.
    pub space: u64,
    /// Longest wait for the successor of an agent that has ended.
    pub wait: Duration,
}

/// Reason why a machine has to end.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum ExitReason {
    Lost(Pages),
    /// The agent has ended and no successor has taken over in time.
    Abandoned(JoinError),
}

/// Callback for a machine that has to end; any of the threads may call it, possibly more than once.
pub type OnExit = Arc<dyn Fn(ExitReason) + Send + Sync>;

/// Memory that the agent serves until this is dropped.
#[derive(Debug)]
pub struct ServedMemory(Vec<(Arc<HelperLine>, JoinHandle<()>)>);

impl ServedMemory {
    /// Makes each piece of the machine's memory a member of the space, so that the agent serves the piece.
    pub fn serve(
        machine: &Machine,
        source: &MemorySource,
        on_exit: &OnExit,
    ) -> Result<ServedMemory, ServeError> {
        let mut pieces = ServedMemory(Vec::with_capacity(machine.pieces.len()));
        for piece in &machine.pieces {
            pieces.0.push(start(machine, *piece, source, Arc::clone(on_exit))?);
        }
        Ok(pieces)
    }
}

impl Drop for ServedMemory {
    fn drop(&mut self) {
        self.0.iter().for_each(|(line, _)| line.leave());
        for (_, thread) in self.0.drain(..) {
            // An error is ignored: it means that the thread has panicked, and the panic's message is printed already.
            let _ = thread.join();
        }
    }
}

fn start(
    machine: &Machine,
    Piece { address, bytes, offset }: Piece,
    source: &MemorySource,
    on_exit: OnExit,
) -> Result<(Arc<HelperLine>, JoinHandle<()>), ServeError> {
    let MemorySource { agent, space, wait } = *source;
    let place = MemberMemory { agent, space, address, bytes, offset };
    let refused = |error| ServeError::Join(Box::new(error));
    let who = JoinKind::New { uffd: machine.uffd.as_fd(), files: Some(&machine.files) };
    let mut joined = join_for(machine.pid, &place, who).map_err(refused)?;
    let shared_state = joined.shared_state.take().ok_or_else(|| refused(JoinError::Protocol))?;
    let (uffd, files, pid) = (machine.uffd.try_clone()?, machine.files.try_clone()?, machine.pid);
    let line = Arc::new(HelperLine::new());
    let ready = Arc::new(Barrier::new(2));
    let (of_thread, there) = (Arc::clone(&line), Arc::clone(&ready));
    let body = move || {
        let member = Member::new(place, joined, uffd, shared_state, None, &of_thread, wait);
        let mut member = member.for_process(pid).with_files(Some(files));
        there.wait();
        if let HelperEnd::Abandoned(error) = member.run(&mut Watcher(&on_exit)) {
            on_exit(ExitReason::Abandoned(error));
        }
    };
    let thread = thread::Builder::new().name("cxloe-member".into()).spawn(body)?;
    // When both threads have reached the barrier, the helper thread can receive the request to leave.
    ready.wait();
    Ok((line, thread))
}

struct Watcher<'a>(&'a OnExit);

impl HelperHost for Watcher<'_> {
    fn lost(&mut self, pages: Pages) {
        (self.0)(ExitReason::Lost(pages));
    }

    fn orphaned(&mut self) {
        tracing::warn!("the agent has ended; the machine waits for its successor");
    }

    fn adopted(&mut self) {
        tracing::info!("another agent serves the machine's memory from here on");
    }
}
