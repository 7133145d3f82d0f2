//! The agent's socket: answers questions, and opens ports. A thread with a small runtime; each connection is a
//! task, bounded in number, in the size of what it sends and in how long it may stay silent. A connection that
//! becomes a port leaves here for the worker.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::memory::{SharedMemory, send_with_descriptor};
use super::message::{self, Answer, Ask, REQUEST_MAX, Refused, Request, VERSION};
use super::ring::{AgentEnd, PORT_BYTES};
use crate::daemon::clients::{Client, Seat};
use crate::daemon::order::Report;
use crate::daemon::{Order, Orders};
use crate::manager::Listing;

/// Connections with questions at a time; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// How long a connection may take to say something.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long the worker may take to report.
const REPORT_MAX: Duration = Duration::from_secs(8);
/// The pause after a failed accept, most likely for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the agent cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Somebody answers there.
    #[error("another agent is running and listens on {}; end it, or choose another path with --socket", .0.display())]
    Taken(PathBuf),
    /// Something else is there.
    #[error("{} is there and is not a socket; remove it, or choose another path with --socket", .0.display())]
    NoSocket(PathBuf),
    /// The system refuses.
    #[error("cannot {what} {}: {source}; choose another path with --socket", .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// What the server hands on.
#[derive(Clone, Debug)]
pub struct Backstage {
    /// What is attached.
    pub listing: Listing,
    /// The worker.
    pub orders: Orders,
    /// Ports at a time.
    pub clients_max: usize,
}

/// The socket, bound: nobody else can be this agent from here on, and nothing is answered yet. It is removed
/// when this is dropped.
#[derive(Debug)]
pub struct Bound {
    listener: Option<StdListener>,
    path: PathBuf,
}

impl Bound {
    /// Binds `path` (mode 0660). The socket that a dead agent left is replaced, that of a living one is not.
    ///
    /// # Errors
    /// Any [`ServerError`].
    pub fn bind(path: &Path) -> Result<Bound, ServerError> {
        use std::os::unix::fs::FileTypeExt;
        let failed = |what, at: &Path| {
            let path = at.to_path_buf();
            move |source| ServerError::Io { what, path, source }
        };
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            fs::create_dir_all(dir).map_err(failed("create the directory", dir))?;
        }
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => return Err(ServerError::NoSocket(path.into())),
            Ok(_) => match StdStream::connect(path) {
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                    tracing::info!(path = %path.display(), "replacing the socket of an agent that has ended");
                }
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(failed("connect to the agent at", path)(e));
                }
                _ => return Err(ServerError::Taken(path.into())),
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed("look at", path)(e)),
        }
        // Made beside its place and moved there, so that it is never there with other rights.
        let mut new = path.as_os_str().to_owned();
        new.push(format!(".{}", std::process::id()));
        let new = PathBuf::from(new);
        let _ = fs::remove_file(&new);
        let listener = StdListener::bind(&new).map_err(failed("listen on", path))?;
        let placed = fs::set_permissions(&new, fs::Permissions::from_mode(0o660))
            .and_then(|()| listener.set_nonblocking(true))
            .and_then(|()| fs::rename(&new, path));
        if let Err(source) = placed {
            let _ = fs::remove_file(&new);
            return Err(failed("listen on", path)(source));
        }
        Ok(Bound { listener: Some(listener), path: path.into() })
    }

    /// Starts answering.
    ///
    /// # Errors
    /// [`ServerError::Io`] when there is no thread.
    pub fn serve(mut self, backstage: Backstage) -> Result<Server, ServerError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| ServerError::Io { what: "start the thread that serves", path, source }
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed(&self.path))?;
        let listener = self.listener.take().expect("only serve takes it");
        let (stop, stopped) = watch::channel(false);
        let path = self.path.clone();
        let thread = thread::Builder::new()
            .name("local-server".into())
            .spawn(move || {
                runtime.block_on(async {
                    match UnixListener::from_std(listener) {
                        Ok(listener) => accept(listener, backstage, stopped).await,
                        Err(error) => tracing::error!(%error, "cannot listen; no port can be opened"),
                    }
                });
            })
            .map_err(failed(&path))?;
        Ok(Server { _bound: self, stop, thread: Some(thread) })
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The running server; ends when dropped, and its socket with it.
#[derive(Debug)]
pub struct Server {
    _bound: Bound,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: UnixListener, backstage: Backstage, mut stopped: watch::Receiver<bool>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let seats = Arc::new(AtomicUsize::new(0));
    loop {
        let next = async {
            let permit = Arc::clone(&room).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            _ = stopped.changed() => return,
            next = next => next,
        };
        match accepted {
            Ok((stream, _)) => {
                let (backstage, seats) = (backstage.clone(), Arc::clone(&seats));
                tokio::spawn(async move {
                    let _permit = permit;
                    if let Err(error) = converse(stream, backstage, seats).await {
                        tracing::debug!(%error, "a connection to the agent's socket ended");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the agent's socket");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Answers until the other side leaves, stays silent, says nonsense, or becomes a port.
async fn converse(mut stream: UnixStream, backstage: Backstage, seats: Arc<AtomicUsize>) -> io::Result<()> {
    loop {
        let request: Request = match timeout(SILENCE_MAX, receive(&mut stream)).await?? {
            Ok(request) => request,
            Err(reason) => {
                return answer(&mut stream, &Answer::Refused(Refused::Malformed(reason))).await;
            }
        };
        if request.version != VERSION {
            return answer(&mut stream, &Answer::Refused(Refused::Version { agent: VERSION })).await;
        }
        let said = match request.ask {
            Ask::Regions => Answer::Regions(backstage.listing.get()),
            Ask::Sessions => report(&backstage.orders)
                .await
                .map_or_else(ending, |report| Answer::Sessions(report.sessions)),
            Ask::Counters => report(&backstage.orders)
                .await
                .map_or_else(ending, |report| Answer::Counters(Box::new(report.counters))),
            Ask::Port => match Seat::take(&seats, backstage.clients_max) {
                Some(seat) => return open_port(stream, seat, &backstage.orders).await,
                None => Answer::Refused(Refused::Full { limit: backstage.clients_max }),
            },
        };
        answer(&mut stream, &said).await?;
    }
}

fn ending() -> Answer {
    Answer::Refused(Refused::Ending)
}

async fn report(orders: &Orders) -> Option<Report> {
    let (tell, told) = oneshot::channel();
    orders.try_give(Order::Report(tell)).ok()?;
    timeout(REPORT_MAX, told).await.ok()?.ok()
}

async fn receive(stream: &mut UnixStream) -> io::Result<Result<Request, String>> {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix).await?;
    let length = match message::announced(prefix, REQUEST_MAX) {
        Ok(length) => length,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    // Of another version, it may look otherwise.
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u32,
    }
    Ok(message::decode(&bytes).or_else(|error| match message::decode::<Versioned>(&bytes) {
        Ok(Versioned { version }) if version != VERSION => Ok(Request { version, ask: Ask::Regions }),
        _ => Err(error.to_string()),
    }))
}

async fn answer(stream: &mut UnixStream, answer: &Answer) -> io::Result<()> {
    timeout(SILENCE_MAX, stream.write_all(&message::encode(answer))).await?
}

async fn open_port(mut stream: UnixStream, seat: Seat, orders: &Orders) -> io::Result<()> {
    let memory = match SharedMemory::create(PORT_BYTES) {
        Ok(memory) => memory,
        Err(error) => {
            return answer(&mut stream, &Answer::Refused(Refused::System(error.to_string()))).await;
        }
    };
    let end = AgentEnd::new(memory);
    let socket = stream.into_std()?;
    let hello = message::encode(&Answer::Port { bytes: PORT_BYTES as u64 });
    send_with_descriptor(&socket, &hello, end.memory().descriptor())?;
    // If the worker has ended, the socket closes here and the client is told by that.
    let _ = orders.try_give(Order::Serve(Box::new(Client::new(end, socket, seat))));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_agents_socket_is_replaced_a_living_ones_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/agent.sock");
        let living = Bound::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        let error = Bound::bind(&path).unwrap_err();
        assert!(matches!(&error, ServerError::Taken(taken) if *taken == path));
        assert!(error.to_string().contains("--socket"));
        drop(living);
        assert!(!path.exists(), "the socket goes with its agent");
        // What a killed agent leaves: a socket nobody listens on.
        drop(StdListener::bind(&path).unwrap());
        assert!(path.exists());
        let bound = Bound::bind(&path).unwrap();
        StdStream::connect(&path).unwrap();
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
        drop(bound);
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        fs::write(&path, "mine").unwrap();
        assert!(matches!(Bound::bind(&path), Err(ServerError::NoSocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        assert!(matches!(Bound::bind(Path::new("/proc/no/agent.sock")), Err(ServerError::Io { .. })));
    }
}
