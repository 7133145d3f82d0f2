//! Preserves a pool's memory after the end of the process that serves it, so that an upgrade or a crash loses nothing.
//!
//! Memory without a name (`anon`, `huge2m`, `huge1g`) exists as long as some process has its descriptor. Under systemd
//! the service manager has the descriptor (`descriptor_store`), elsewhere a keeper process ([`process`]) that the first
//! node starts. By the keeper's socket (`connection`) a later process of the same node gets the descriptor:
//!
//! ```text
//!   mn-server run --- Keep, descriptor ---> keeper        mn-server run (the next one)
//!        |  crash                             | -- Want ----- |
//!        x                                    | - descriptor->|
//!        |  still running: <- Yield --------- | <- Claim ---- |   (--take-over)
//! ```
//!
//! [`cxloe_mn_core::keeping`] makes the keeper's decisions.

mod connection;
mod descriptor_store;
mod message;
pub mod process;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use cxloe_mn_core::keeping::{Answer, Request};
use tracing::{info, warn};

use connection::{Connection, Watched};

use crate::pool::Pool;

/// Maximum wait for a running node to end after it was asked to.
const YIELD_MAX: Duration = Duration::from_secs(20);
/// Maximum wait for the end of a process that was killed, and the interval between attempts.
const HELD_MAX: Duration = Duration::from_secs(2);
const HELD_RETRY: Duration = Duration::from_millis(20);
/// Maximum wait for the answer of a keeper that runs.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Maximum wait for the first answer of a keeper that is started, on a machine whose processors are busy.
const START_MAX: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub struct KeeperOptions {
    pub name: String,
    pub socket: PathBuf,
    /// Time for which memory is kept after an unexpected end; zero: memory is not kept.
    pub keep: Duration,
    /// Set to take over the memory of a running node.
    pub take_over: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    #[error(
        "memory node {name} is running on this machine; end it, give this one another --name, or take its memory over \
         with --take-over"
    )]
    Held { name: String },
    #[error("memory node {name} has been asked to end, and has not within {waited:?}; end it by hand")]
    NotEnded { name: String, waited: Duration },
    #[error("cannot {what} the keeper of the pool's memory at {}: {source}", .path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
}

/// Memory left by an earlier process, and the connection to its keeper.
#[derive(Debug)]
pub struct Kept {
    /// Descriptor of the memory; `None` if none was kept.
    pub memory: Option<File>,
    keeper: Keeper,
}

#[derive(Debug)]
enum Keeper {
    ServiceManager,
    Process(Connection),
    /// No keeper runs. [`Kept::keep`] starts a keeper process when there is memory to keep.
    None,
}

impl Kept {
    /// Finds the memory left by an earlier process of this node; with `take_over`, makes a running process end first.
    pub fn find(options: &KeeperOptions) -> Result<Kept, KeeperError> {
        if descriptor_store::is_there() {
            let memory = descriptor_store::take().into_iter().next().map(File::from);
            return Ok(Kept { memory, keeper: Keeper::ServiceManager });
        }
        let since = Instant::now();
        loop {
            match Self::ask(options) {
                // If the earlier process was killed, it may not have ended yet.
                Err(KeeperError::Held { .. }) if !options.take_over && since.elapsed() < HELD_MAX => {
                    thread::sleep(HELD_RETRY);
                }
                found => return found,
            }
        }
    }

    /// Frees the memory, if there is any, so that a new pool can be kept.
    pub fn freed(self, options: &KeeperOptions) -> Result<Kept, KeeperError> {
        if self.memory.is_none() {
            return Ok(self);
        }
        let keeper = match self.keeper {
            Keeper::Process(connection) => {
                let failed = |source| KeeperError::Io { what: "end", path: options.socket.clone(), source };
                connection.send(Request::Release, None).map_err(failed)?;
                connection.await_end(ANSWER_MAX);
                Keeper::None
            }
            keeper => {
                descriptor_store::remove();
                keeper
            }
        };
        info!("the memory kept from an earlier process is freed");
        Ok(Kept { memory: None, keeper })
    }

    /// Asks the keeper process for the memory that it keeps, without a retry.
    fn ask(options: &KeeperOptions) -> Result<Kept, KeeperError> {
        let failed = |what| {
            let path = options.socket.clone();
            move |source| KeeperError::Io { what, path, source }
        };
        let Some(connection) = Connection::open(&options.socket).map_err(failed("connect to"))? else {
            return Ok(Kept { memory: None, keeper: Keeper::None });
        };
        let request = if options.take_over { Request::Claim } else { Request::Want };
        let most = if options.take_over { YIELD_MAX } else { ANSWER_MAX };
        connection.send(request, None).map_err(failed("ask"))?;
        match connection.receive(most) {
            Ok(Some((Answer::Memory, Some(memory)))) => {
                Ok(Kept { memory: Some(File::from(memory)), keeper: Keeper::Process(connection) })
            }
            // The keeper has ended since the connection was made, or it has no memory yet.
            Ok(None) => Ok(Kept { memory: None, keeper: Keeper::None }),
            Ok(Some(_)) => Err(KeeperError::Held { name: options.name.clone() }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(KeeperError::NotEnded { name: options.name.clone(), waited: most })
            }
            Err(error) => Err(failed("ask")(error)),
        }
    }

    /// Makes a keeper (a process or the service manager) keep the memory of `pool`. `on_yield` is called when another
    /// process takes the memory over. If no keeper can be used, the node logs that and serves without one.
    pub fn keep(
        self,
        pool: &Pool,
        options: &KeeperOptions,
        on_yield: impl FnOnce() + Send + 'static,
    ) -> Keeping {
        let Some(memory) = pool.memory_fd() else { return Keeping(None) };
        let was_kept = self.memory.is_some() || pool.retained();
        let connection = match self.keeper {
            Keeper::ServiceManager => {
                // Memory kept from an earlier process is in the service manager's store already.
                if !was_kept && let Err(error) = descriptor_store::store(memory) {
                    warn!(%error, "the service manager does not keep the pool's memory: it ends with this process");
                }
                return Keeping(None);
            }
            Keeper::Process(connection) => Some(connection),
            Keeper::None if options.keep.is_zero() => return Keeping(None),
            Keeper::None => start(options, memory),
        };
        let watched = memory
            .try_clone_to_owned()
            .and_then(|memory| watch(connection, memory, options.clone(), on_yield))
            .inspect_err(|error| warn!(%error, "no keeper of the pool's memory: it ends with this process"));
        Keeping(watched.ok())
    }
}

/// Starts a keeper process. If the process does not run, logs the reason and returns `None`.
fn start(options: &KeeperOptions, memory: BorrowedFd<'_>) -> Option<Connection> {
    process::start(options, memory)
        .inspect_err(|error| {
            warn!(%error, "no keeper of the pool's memory runs: another is started; until then it ends with this process");
        })
        .ok()
}

fn watch(
    connection: Option<Connection>,
    memory: OwnedFd,
    options: KeeperOptions,
    on_yield: impl FnOnce() + Send + 'static,
) -> io::Result<Watched> {
    Watched::start(connection, on_yield, move || {
        info!("a keeper of the pool's memory is started, as none runs");
        start(&options, memory.as_fd())
    })
}

/// Memory of this process that a keeper keeps.
#[derive(Debug)]
#[must_use = "the memory is freed by `release`"]
pub struct Keeping(Option<Watched>);

impl Keeping {
    /// Frees the memory after an orderly end; a process that waits for the memory gets it instead. A service manager
    /// frees its copy itself: when the unit is stopped, not when it is restarted.
    pub fn release(self) {
        if let Some(watched) = self.0
            && let Err(error) = watched.release()
        {
            warn!(%error, "the keeper of the pool's memory keeps it until its time is over");
        }
    }
}
