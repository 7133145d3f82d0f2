//! The pieces of a machine's memory as members of the region's space: a connection to the agent for each, which a thread
//! keeps up, and renews with the agent's successor.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cxloe_member::helper::{Ended, Host, Member};
use cxloe_member::join::{As, JoinError, Place, join_for};
use cxloe_member::line::Line;
use cxloe_member::socket::SocketPath;
use cxloe_member::wire::Pages;

use super::handover::{Machine, Piece};

/// Why a machine's memory is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The agent did not take it.
    #[error("the machine's memory cannot be served: {0}")]
    Join(Box<JoinError>),
    /// The system.
    #[error("cannot serve the machine's memory: {0}")]
    System(#[from] io::Error),
}

/// Where the machine's memory comes from.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// The agent's socket.
    pub agent: SocketPath,
    /// The region's space.
    pub space: u64,
    /// How long to wait for an agent that has ended.
    pub wait: Duration,
}

/// Why a machine cannot go on.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum ExitReason {
    /// Pages of its memory are lost.
    Lost(Pages),
    /// The agent has ended and nobody has taken over.
    Abandoned(JoinError),
}

/// Who is told that the machine cannot go on; by any of the threads, possibly more than once.
pub type OnExit = Arc<dyn Fn(ExitReason) + Send + Sync>;

/// Served memory. The agent serves it no longer when this is dropped.
#[derive(Debug)]
pub struct Pieces(Vec<(Arc<Line>, JoinHandle<()>)>);

impl Pieces {
    /// Has the machine's memory served.
    ///
    /// # Errors
    /// Any [`ServeError`].
    pub fn serve(machine: &Machine, source: &Source, on_exit: &OnExit) -> Result<Pieces, ServeError> {
        let mut pieces = Pieces(Vec::with_capacity(machine.pieces.len()));
        for piece in &machine.pieces {
            pieces.0.push(start(machine, *piece, source, Arc::clone(on_exit))?);
        }
        Ok(pieces)
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.0.iter().for_each(|(line, _)| line.leave());
        for (_, thread) in self.0.drain(..) {
            // It has panicked, if so, with a message of its own.
            let _ = thread.join();
        }
    }
}

fn start(
    machine: &Machine,
    Piece { address, bytes, offset }: Piece,
    source: &Source,
    on_exit: OnExit,
) -> Result<(Arc<Line>, JoinHandle<()>), ServeError> {
    let Source { agent, space, wait } = *source;
    let place = Place { agent, space, address, bytes, offset };
    let refused = |error| ServeError::Join(Box::new(error));
    let mut joined = join_for(machine.pid, &place, As::New(machine.uffd.as_fd())).map_err(refused)?;
    let shared_state = joined.shared_state.take().ok_or_else(|| refused(JoinError::Protocol))?;
    let (uffd, pid) = (machine.uffd.try_clone()?, machine.pid);
    let line = Arc::new(Line::new());
    let ready = Arc::new(Barrier::new(2));
    let (of_thread, there) = (Arc::clone(&line), Arc::clone(&ready));
    let body = move || {
        let member = Member::new(place, joined, uffd, shared_state, None, &of_thread, wait);
        let mut member = member.for_process(pid);
        there.wait();
        if let Ended::Abandoned(error) = member.run(&mut Watcher(&on_exit)) {
            on_exit(ExitReason::Abandoned(error));
        }
    };
    let thread = thread::Builder::new().name("cxloe-member".into()).spawn(body)?;
    // From here on a leave is heard.
    ready.wait();
    Ok((line, thread))
}

struct Watcher<'a>(&'a OnExit);

impl Host for Watcher<'_> {
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
