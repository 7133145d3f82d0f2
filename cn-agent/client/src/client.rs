//! A client of the agent's line port, in another process than the agent.
//!
//! Single lines go through the agent's line cache; [`read_bytes`](Client::read_bytes) and
//! [`write_bytes`](Client::write_bytes) move longer ranges without the cache, in as few frames as possible.
//!
//! A [`Client`] has rings of its own in memory shared with the agent. While both sides are awake, an operation is a few
//! writes to memory and back, without a system call. A waiting client spins for a bounded time, and then sleeps until
//! the agent wakes it. On the agent's own CPU the client yields instead of spinning, because the agent cannot run while
//! it spins. A round trip between client and agent takes, on one CPU of a small virtual machine: 2.9 us by yielding,
//! 4.7 by a futex, 5.6 by an eventfd, 9.3 by a socket and poll; between two CPUs 0.1 us by spinning and 25 to 32 us by
//! sleeping. The death of the agent, at any moment, ends every wait with [`ClientError::AgentGone`]; a client never
//! hangs.
//!
//! ```no_run
//! use cxloe_client::client::Client;
//!
//! let mut port = Client::connect(&cxloe_client::defaults::default_socket())?;
//! let hpa = port.regions()?.first().expect("a region is attached").hpa;
//! port.write(hpa, &[7; 64])?;
//! assert_eq!(port.read(hpa)?, [7; 64]);
//! port.flush()?;
//! # Ok::<(), cxloe_client::client::ClientError>(())
//! ```

pub mod port;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cxloe_cn_core::attachments::worker_of;
use cxloe_cn_core::cache::Line;
use cxloe_cn_core::engine::EngineError;
use cxloe_fabric::model::Name;
use cxloe_wire::frame::SHARDS_MAX;

use crate::message::{
    self, ANSWER_MAX, AgentAnswer, AgentCall, AgentCounters, AgentRequest, AttachedRegion, Counters,
    NodeView, PagingView, RefusalReason, Session, VERSION,
};
use crate::ring::Operation;
pub use port::Port;

/// Longest wait for an answer that requires a request of the agent to the manager.
const MANAGER_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum wait for an answer that the agent gives without the manager.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which this process waits for an answer beyond the time for which the agent itself may wait.
const ANSWER_SPARE: Duration = Duration::from_secs(5);
/// Longest wait for an operation; the agent gives up on a memory node long before that.
pub const OPERATION_TIMEOUT: Duration = Duration::from_secs(120);

/// Failure of a request to the agent, or of an operation on a port.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing listens on the agent's socket.
    #[error("no agent at {}: {source}; start one with `cn-agent run`, or name its socket", .path.display())]
    NoAgent {
        /// Path of the agent's socket.
        path: PathBuf,
        /// Error of connecting to the socket.
        source: io::Error,
    },
    /// This user may not connect to the agent's socket.
    #[error(
        "this user may not use the agent at {}: {source}; become a member of the group that owns the socket (`ls -l {}`), or run this as root",
        .path.display(), .path.display()
    )]
    NotPermitted {
        /// Path of the agent's socket.
        path: PathBuf,
        /// Error of connecting to the socket.
        source: io::Error,
    },
    /// The agent was reached, but refused the request.
    #[error("the agent at {} refused: {reason}", .path.display())]
    Refused {
        /// Path of the agent's socket.
        path: PathBuf,
        /// Reason in the agent's answer.
        reason: RefusalReason,
    },
    /// The agent has ended, in order or not. Lines that it had not yet written back are lost.
    #[error("the agent at {} has ended; connect again once it is back", .0.display())]
    AgentGone(PathBuf),
    /// The peer violates the protocol: it is no agent, or one of another version.
    #[error("the process that listens at {} is not an agent of this release: {reason}", .path.display())]
    Protocol {
        /// Path of the agent's socket.
        path: PathBuf,
        /// Description of the violation.
        reason: String,
    },
    /// The agent is alive but did not answer in time.
    #[error("the agent at {} has not answered within {limit:?}; look at its log", .path.display())]
    Silent {
        /// Path of the agent's socket.
        path: PathBuf,
        /// Duration of the wait.
        limit: Duration,
    },
    /// An operation on lines failed in the agent's engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A client of a running agent, for one thread: each further thread needs a client of its own.
///
/// It has a port of the agent's first worker, and opens ports of other workers when their addresses are used.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    /// Ports by worker; the first is open from the start.
    ports: Vec<Option<Port>>,
}

/// Sends a request to the agent at `path`, and waits for the answer.
fn ask(path: &Path, ask: AgentCall) -> Result<AgentAnswer, ClientError> {
    let mut socket = call(path, ask)?;
    match message::read(&mut socket, ANSWER_MAX) {
        Ok(AgentAnswer::Refused(reason)) => Err(ClientError::Refused { path: path.into(), reason }),
        Ok(answer) => Ok(answer),
        Err(error) => Err(unanswered(path, error)),
    }
}

/// Sends a request for which the agent needs the manager, and waits longer for the answer.
fn ask_through(path: &Path, ask: AgentCall) -> Result<AgentAnswer, ClientError> {
    ask_within(path, ask, Some(MANAGER_TIMEOUT))
}

/// Sends a request, and waits up to `limit` for the answer; without a limit, as long as the agent lives.
fn ask_within(path: &Path, ask: AgentCall, limit: Option<Duration>) -> Result<AgentAnswer, ClientError> {
    let mut socket = call(path, ask)?;
    socket.set_read_timeout(limit).map_err(|error| unanswered(path, error))?;
    match message::read(&mut socket, ANSWER_MAX) {
        Ok(AgentAnswer::Refused(reason)) => Err(ClientError::Refused { path: path.into(), reason }),
        Ok(answer) => Ok(answer),
        Err(error) => Err(unanswered(path, error)),
    }
}

/// Connects to the agent at `path` without sending a request.
pub(crate) fn call_quietly(path: &Path) -> Result<UnixStream, ClientError> {
    let none = |source| ClientError::NoAgent { path: path.into(), source };
    let socket = UnixStream::connect(path).map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => ClientError::NotPermitted { path: path.into(), source },
        _ => none(source),
    })?;
    socket.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(none)?;
    socket.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(none)?;
    Ok(socket)
}

fn call(path: &Path, ask: AgentCall) -> Result<UnixStream, ClientError> {
    let mut socket = call_quietly(path)?;
    message::write(&mut socket, &AgentRequest { version: VERSION, ask }).map_err(|e| unanswered(path, e))?;
    Ok(socket)
}

pub(crate) fn unanswered(path: &Path, error: io::Error) -> ClientError {
    match error.kind() {
        io::ErrorKind::InvalidData => protocol(path, error.to_string()),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            ClientError::Silent { path: path.into(), limit: ANSWER_TIMEOUT }
        }
        _ => ClientError::AgentGone(path.into()),
    }
}

pub(crate) fn protocol(path: &Path, reason: impl Into<String>) -> ClientError {
    ClientError::Protocol { path: path.into(), reason: reason.into() }
}

/// Regions that the agent at `path` has attached, in order of HPA.
///
/// # Errors
/// Any [`ClientError`] but [`ClientError::Engine`].
pub fn regions(path: &Path) -> Result<Vec<AttachedRegion>, ClientError> {
    match ask(path, AgentCall::Regions)? {
        AgentAnswer::Regions(regions) => Ok(regions),
        other => Err(protocol(path, format!("an answer that does not match the request: {other:?}"))),
    }
}

/// Logical devices bound to the compute node of the agent at `path`, and whether that node is suspended.
///
/// # Errors
/// Any [`ClientError`] but [`ClientError::Engine`].
pub fn node(path: &Path) -> Result<NodeView, ClientError> {
    match ask(path, AgentCall::Node)? {
        AgentAnswer::Node(node) => Ok(node),
        other => Err(protocol(path, format!("an answer that does not match the request: {other:?}"))),
    }
}

/// Creates a region of `bytes` bytes for this process, by way of the agent and the manager. Returns the region's name
/// and the unit of its size in bytes; the region is attached a moment later.
///
/// # Errors
/// Any [`ClientError`] but [`ClientError::Engine`].
pub fn create(path: &Path, bytes: u64) -> Result<(Name, u64), ClientError> {
    match ask_through(path, AgentCall::Create { bytes })? {
        AgentAnswer::Created { region, unit } => Ok((region, unit)),
        other => Err(protocol(path, format!("an answer that does not match the request: {other:?}"))),
    }
}

/// Grows a region that was [created](create) for this user to `bytes` bytes.
///
/// # Errors
/// Any [`ClientError`] but [`ClientError::Engine`].
pub fn grow(path: &Path, region: Name, bytes: u64) -> Result<(), ClientError> {
    match ask_through(path, AgentCall::Grow { region, bytes })? {
        AgentAnswer::Done => Ok(()),
        other => Err(protocol(path, format!("an answer that does not match the request: {other:?}"))),
    }
}

/// Destroys a region that was [created](create) for this user.
///
/// # Errors
/// Any [`ClientError`] but [`ClientError::Engine`].
pub fn destroy(path: &Path, region: Name) -> Result<(), ClientError> {
    match ask_through(path, AgentCall::Destroy { region })? {
        AgentAnswer::Done => Ok(()),
        other => Err(protocol(path, format!("an answer that does not match the request: {other:?}"))),
    }
}

/// Sessions of the agent at `path` with memory nodes.
///
/// # Errors
/// Any [`ClientError`] but [`ClientError::Engine`].
pub fn sessions(path: &Path) -> Result<Vec<Session>, ClientError> {
    match ask(path, AgentCall::Sessions)? {
        AgentAnswer::Sessions(sessions) => Ok(sessions),
        other => Err(protocol(path, format!("an answer that does not match the request: {other:?}"))),
    }
}

/// Counters of the agent at `path`, since its start: sums over all of its workers.
///
/// # Errors
/// Any [`ClientError`] but [`ClientError::Engine`].
pub fn counters(path: &Path) -> Result<Counters, ClientError> {
    Ok(counters_by_worker(path)?.all)
}

/// Counters of the agent at `path`, since its start: their sums and, if the agent has several workers, the part of each.
///
/// # Errors
/// Any [`ClientError`] but [`ClientError::Engine`].
pub fn counters_by_worker(path: &Path) -> Result<AgentCounters, ClientError> {
    match ask(path, AgentCall::Counters)? {
        AgentAnswer::Counters(counters) => Ok(*counters),
        other => Err(protocol(path, format!("an answer that does not match the request: {other:?}"))),
    }
}

/// State of paging in one space (a mapped region) of the agent at `path`, or in all spaces.
///
/// # Errors
/// Any [`ClientError`] but [`ClientError::Engine`].
pub fn paging(path: &Path, space: Option<u64>) -> Result<Vec<PagingView>, ClientError> {
    match ask(path, AgentCall::Paging { space })? {
        AgentAnswer::Paging(views) => Ok(views),
        other => Err(protocol(path, format!("an answer that does not match the request: {other:?}"))),
    }
}

/// Changes the limit of resident bytes of a space (a mapped region) to `limit`.
///
/// # Errors
/// Any [`ClientError`] but [`ClientError::Engine`].
pub fn set_limit(path: &Path, space: u64, limit: u64) -> Result<(), ClientError> {
    match ask(path, AgentCall::SetLimit { space, limit })? {
        AgentAnswer::Done => Ok(()),
        other => Err(protocol(path, format!("an answer that does not match the request: {other:?}"))),
    }
}

/// Writes all dirty pages of a space (a mapped region) back, and waits until memory nodes have them. If `zeros` is
/// true, also writes zeros for discarded pages.
///
/// # Errors
/// Any [`ClientError`] but [`ClientError::Engine`].
pub fn clean_all(path: &Path, space: u64, zeros: bool) -> Result<(), ClientError> {
    done(path, ask_within(path, AgentCall::CleanAll { space, zeros }, None)?)
}

/// Suspends a space (a mapped region), so that its region can move to another compute node: faults wait, and no page is
/// resident when this returns. Returns the pages that will be used soon, and runs of pages that are zeros.
///
/// # Errors
/// Any [`ClientError`] but [`ClientError::Engine`]. If the agent has not answered within `limit`
/// ([`ClientError::Silent`]), the caller has to resume the space by [`serve_again`].
pub fn suspend(path: &Path, space: u64, limit: Duration) -> Result<PageLists, ClientError> {
    match ask_within(path, AgentCall::Suspend { space }, Some(limit))? {
        AgentAnswer::Suspended { hot, zeros } => Ok((hot, zeros)),
        other => Err(protocol(path, format!("an answer that does not match the request: {other:?}"))),
    }
}

/// Pages that will be used soon, and runs of pages that are zeros: the first page, and the number of pages.
pub type PageLists = (Vec<u32>, Vec<(u32, u32)>);

/// Passes notes about pages, made by the region's former compute node, to the agent: `hot` pages will be used soon,
/// `zeros` are runs of zero pages. The region of the space is not attached here yet. A request holds at most 2,000
/// numbers.
///
/// # Errors
/// Any [`ClientError`] but [`ClientError::Engine`].
pub fn note(path: &Path, space: u64, hot: Vec<u32>, zeros: Vec<(u32, u32)>) -> Result<(), ClientError> {
    done(path, ask(path, AgentCall::Note { space, hot, zeros })?)
}

/// Resumes a suspended space (a mapped region) when its region is attached. The agent waits up to `limit` for the
/// attachment.
///
/// # Errors
/// Any [`ClientError`] but [`ClientError::Engine`].
pub fn serve_again(path: &Path, space: u64, limit: Duration) -> Result<(), ClientError> {
    let wait_ms = limit.as_millis() as u64;
    done(path, ask_within(path, AgentCall::ServeAgain { space, wait_ms }, Some(limit + ANSWER_SPARE))?)
}

fn done(path: &Path, answer: AgentAnswer) -> Result<(), ClientError> {
    match answer {
        AgentAnswer::Done => Ok(()),
        other => Err(protocol(path, format!("an answer that does not match the request: {other:?}"))),
    }
}

impl Client {
    /// Connects to the agent whose socket is at `path`.
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        let (first, workers) = Port::open(path, 0)?;
        let mut ports = vec![Some(first)];
        ports.resize_with(workers.clamp(1, usize::from(SHARDS_MAX)), || None);
        Ok(Client { path: path.into(), ports })
    }

    /// The port of the worker that serves `hpa`; opens it first if need be.
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn port_at(&mut self, hpa: u64) -> Result<&mut Port, ClientError> {
        self.port(worker_of(hpa, self.ports.len()))
    }

    /// The port of the worker that serves `hpa`, without the others.
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn into_port_at(mut self, hpa: u64) -> Result<Port, ClientError> {
        self.port_at(hpa)?;
        let worker = worker_of(hpa, self.ports.len());
        Ok(self.ports.swap_remove(worker).expect("the port was opened"))
    }

    fn port(&mut self, worker: usize) -> Result<&mut Port, ClientError> {
        let Client { path, ports } = self;
        if ports[worker].is_none() {
            ports[worker] = Some(Port::open(path, worker)?.0);
        }
        Ok(ports[worker].as_mut().expect("it is open"))
    }

    /// Regions that the agent has attached, in order of HPA.
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn regions(&self) -> Result<Vec<AttachedRegion>, ClientError> {
        regions(&self.path)
    }

    /// Reads the line at `hpa`.
    ///
    /// # Errors
    /// [`ClientError::Engine`] with the error of the agent's engine; [`ClientError::AgentGone`],
    /// [`ClientError::Silent`] or [`ClientError::Protocol`].
    pub fn read(&mut self, hpa: u64) -> Result<Line, ClientError> {
        self.port_at(hpa)?.read(hpa)
    }

    /// Writes the line at `hpa` into the agent's cache. [`flush`](Self::flush) waits until the memory node has the
    /// line.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&mut self, hpa: u64, line: &Line) -> Result<(), ClientError> {
        self.port_at(hpa)?.write(hpa, line)
    }

    /// Reads the lines at `hpas` into `out`, as many at a time as the rings hold. After an error, no further operation
    /// is begun, and the first error is returned when those in flight have ended.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Panics
    /// If the slices differ in length.
    pub fn read_batch(&mut self, hpas: &[u64], out: &mut [Line]) -> Result<(), ClientError> {
        assert_eq!(hpas.len(), out.len(), "a place for each line");
        if let [Some(only)] = &mut self.ports[..] {
            return only.many(hpas.len(), |i| (Operation::Read, hpas[i], None), |i, data| out[i] = *data);
        }
        self.by_worker(
            hpas.len(),
            |i| hpas[i],
            |port, which| {
                port.many(
                    which.len(),
                    |i| (Operation::Read, hpas[which[i]], None),
                    |i, data| out[which[i]] = *data,
                )
            },
        )
    }

    /// Writes each line to its HPA, as many at a time as the rings hold. Lines with the same HPA are written in order.
    /// After an error, no further operation is begun, and the first error is returned when those in flight have ended.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write_batch(&mut self, lines: &[(u64, Line)]) -> Result<(), ClientError> {
        if let [Some(only)] = &mut self.ports[..] {
            return only.many(lines.len(), |i| (Operation::Write, lines[i].0, Some(&lines[i].1)), |_, _| {});
        }
        self.by_worker(
            lines.len(),
            |i| lines[i].0,
            |port, which| {
                let operation = |i: usize| (Operation::Write, lines[which[i]].0, Some(&lines[which[i]].1));
                port.many(which.len(), operation, |_, _| {})
            },
        )
    }

    /// Waits until every line that any client wrote earlier through this agent is at its memory node.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn flush(&mut self) -> Result<(), ClientError> {
        (0..self.ports.len()).try_for_each(|worker| self.port(worker)?.flush())
    }

    /// Reads `out.len()` bytes (whole lines) from `hpa` on.
    ///
    /// # Errors
    /// As [`read`](Self::read); `out` may have been changed in part.
    ///
    /// # Panics
    /// If the length is not a multiple of the line size.
    pub fn read_bytes(&mut self, hpa: u64, out: &mut [u8]) -> Result<(), ClientError> {
        self.port_at(hpa)?.read_bytes(hpa, out)
    }

    /// Writes `data` (whole lines) from `hpa` on, and returns once memory nodes have the data.
    ///
    /// # Errors
    /// As [`read`](Self::read); a part may have been written.
    ///
    /// # Panics
    /// If the length is not a multiple of the line size.
    pub fn write_bytes(&mut self, hpa: u64, data: &[u8]) -> Result<(), ClientError> {
        self.port_at(hpa)?.write_bytes(hpa, data)
    }

    /// Calls `run` for each worker that serves any of `count` addresses, with the indices of its addresses.
    fn by_worker(
        &mut self,
        count: usize,
        hpa: impl Fn(usize) -> u64,
        mut run: impl FnMut(&mut Port, &[usize]) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        let workers = self.ports.len();
        for worker in 0..workers {
            let which: Vec<usize> = (0..count).filter(|i| worker_of(hpa(*i), workers) == worker).collect();
            if !which.is_empty() {
                run(self.port(worker)?, &which)?;
            }
        }
        Ok(())
    }
}
