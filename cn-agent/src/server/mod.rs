//! The agent's socket: answers questions, and opens ports. A thread with a small runtime; each connection is a
//! task, bounded in number, in the size of what it sends and in how long it may stay silent. A connection that
//! becomes a port or a member leaves here for the worker; one that owns a mapped region stays as long as it likes.
//!
//! Who asks is who the kernel says it is (`caller`): memory that belongs to a user is that user's, root's and the agent's. One
//! user has a share of the connections (`places`), so that none locks the others out, or root.

mod caller;
mod context;
mod mapping;
mod places;
mod temporary;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cxloe_daemon::{Bound, SocketError};
use cxloe_member::socket::Descriptors;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::worker::order::{ask, report};
use crate::worker::{Order, Orders};
use cxloe_client::memory::{SharedMemory, send_with_descriptor};
use cxloe_client::message::{
    self, Answer, Ask, AttachedRegion, REQUEST_MAX, Refused, Request, Session, VERSION,
};
use cxloe_client::ring::{AgentEnd, PORT_BYTES};
use cxloe_rings::client::{Client, ClientSlot};

use caller::Caller;
pub use context::ServerContext;
use places::{Kind, Place, Places};

/// How long a connection may take to say something.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long a list of regions waits for what the worker says of sessions.
const SESSIONS_WAIT_MAX: Duration = Duration::from_secs(1);
/// The pause after a failed accept, most likely for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds the agent's socket at `path`, for its own user and group: nobody else can be this agent from here on, and
/// nothing is answered yet.
///
/// # Errors
/// Any [`SocketError`].
pub fn bind(path: &Path) -> Result<Bound, SocketError> {
    Bound::bind(path, 0o660, "agent")
}

/// The running server; ends when dropped, and its socket with it.
#[derive(Debug)]
pub struct Server {
    _socket: Bound,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts answering on `socket`.
    ///
    /// # Errors
    /// [`SocketError::Io`] when there is no thread, or no descriptor.
    pub fn start(socket: Bound, context: ServerContext) -> Result<Server, SocketError> {
        let failed = || SocketError::io("start the thread that serves", socket.path());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed())?;
        let listener = {
            let _within = runtime.enter();
            socket.async_listener()?
        };
        let (stop, stopped) = watch::channel(false);
        let thread = thread::Builder::new()
            .name("local-server".into())
            .spawn(move || runtime.block_on(accept(listener, context, stopped)))
            .map_err(failed())?;
        Ok(Server { _socket: socket, stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: UnixListener, context: ServerContext, mut stopped: watch::Receiver<bool>) {
    let slots = Arc::new(AtomicUsize::new(0));
    let places = Places::default();
    loop {
        let accepted = tokio::select! {
            _ = stopped.changed() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((mut stream, _)) => {
                let Ok(caller) = Caller::of(&stream) else { continue };
                let waits = match places.take(Kind::Waits, caller) {
                    Ok(waits) => waits,
                    Err(limit) => {
                        tracing::debug!(
                            uid = caller.uid,
                            limit,
                            "a connection is closed: its user has as many as one may have"
                        );
                        refuse(&mut stream, limit);
                        continue;
                    }
                };
                let (context, slots, places) = (context.clone(), Arc::clone(&slots), places.clone());
                tokio::spawn(async move {
                    let Ok(place) = timeout(SILENCE_MAX, places.wait(Kind::Asks, caller)).await else {
                        refuse(&mut stream, waits.limit());
                        return;
                    };
                    let mut place = Held { place, places, owns: None };
                    let ended = converse(stream, caller, &context, slots, &mut place).await;
                    if let Some(space) = place.owns {
                        ask(&context.orders, move |spaces| spaces.own(space, false)).await;
                    }
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a connection to the agent's socket ended");
                    }
                    drop(waits);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the agent's socket");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// What a connection has.
struct Held {
    /// Its place among the others of its kind.
    place: Place,
    places: Places,
    /// The space it owns.
    owns: Option<u64>,
}

/// Tells who has too many connections that there is no room, if that can be told at once.
fn refuse(stream: &mut UnixStream, limit: usize) {
    let _ = stream.try_write(&message::encode(&Answer::Refused(Refused::Connections { limit })));
}

/// Answers until the other side leaves, stays silent, says nonsense, or becomes a port or a member.
async fn converse(
    mut stream: UnixStream,
    caller: Caller,
    context: &ServerContext,
    slots: Arc<AtomicUsize>,
    place: &mut Held,
) -> io::Result<()> {
    loop {
        let mut sent = Descriptors::new();
        let request = receive(&mut stream, &mut sent);
        // An owner may be silent.
        let request =
            if place.owns.is_some() { request.await? } else { timeout(SILENCE_MAX, request).await?? };
        let request: Request = match request {
            Ok(request) => request,
            Err(reason) => {
                return answer(&mut stream, &Answer::Refused(Refused::Malformed(reason))).await;
            }
        };
        if request.version != VERSION {
            return answer(&mut stream, &Answer::Refused(Refused::Version { agent: VERSION })).await;
        }
        let said = match request.ask {
            Ask::Regions => Answer::Regions(regions(context).await),
            Ask::Node => Answer::Node(context.listing.node()),
            Ask::Sessions => {
                report(&context.orders).await.map_or_else(ending, |report| Answer::Sessions(report.sessions))
            }
            Ask::Counters => report(&context.orders)
                .await
                .map_or_else(ending, |report| Answer::Counters(Box::new(report.counters))),
            Ask::Port => match ClientSlot::take(&slots, context.clients_max) {
                Some(slot) => return open_port(stream, caller, slot, &context.orders).await,
                None => Answer::Refused(Refused::Full { limit: context.clients_max }),
            },
            Ask::Map(_) if place.owns.is_some() => {
                Answer::Refused(Refused::Malformed("a connection maps one region; open another".into()))
            }
            Ask::Map(request) => {
                let owner = match place.places.take(Kind::Owns, caller) {
                    Ok(owner) => owner,
                    Err(limit) => {
                        return answer(&mut stream, &Answer::Refused(Refused::Connections { limit })).await;
                    }
                };
                match mapping::map(context, caller, request, sent).await {
                    Ok(mapped) => {
                        (place.place, place.owns) = (owner, Some(mapped.made.id));
                        timeout(SILENCE_MAX, mapped.answer(&mut stream)).await??;
                        continue;
                    }
                    Err(refused) => Answer::Refused(refused),
                }
            }
            Ask::Join(request) => return mapping::join(context, caller, request, sent, stream).await,
            Ask::SetLimit { space, .. } | Ask::CleanAll { space } if !sees(context, caller, space).await => {
                Answer::Refused(Refused::NoSpace)
            }
            Ask::SetLimit { space, limit } => {
                let set = ask(&context.orders, move |spaces| spaces.set_limit(space, limit)).await;
                set.map_or_else(ending, |set| done(set.map_err(Refused::from)))
            }
            Ask::Paging { space } => ask(&context.orders, move |spaces| spaces.report(space))
                .await
                .map_or_else(ending, |spaces| Answer::Paging(caller.seen(spaces))),
            Ask::Discard { space } if place.owns == Some(space) => {
                place.owns = None;
                let gone = ask(&context.orders, move |spaces| spaces.discard(space)).await;
                gone.map_or_else(ending, |()| Answer::Done)
            }
            Ask::Discard { .. } => Answer::Refused(Refused::NoSpace),
            Ask::Create { bytes } => said(temporary::create(context, caller, bytes).await),
            Ask::Grow { region, bytes } => said(temporary::grow(context, caller, region, bytes).await),
            Ask::Destroy { region } => said(temporary::destroy(context, caller, region).await),
            Ask::CleanAll { space } => clean_all(&context.orders, space).await,
        };
        answer(&mut stream, &said).await?;
    }
}

/// The regions, with how the sessions of their memory nodes stand, as far as the worker says so.
async fn regions(context: &ServerContext) -> Vec<AttachedRegion> {
    let mut regions = context.listing.regions();
    if !regions.is_empty()
        && let Ok(Some(report)) = timeout(SESSIONS_WAIT_MAX, report(&context.orders)).await
    {
        show_sessions(&mut regions, &report.sessions);
    }
    regions
}

/// Says of regions whose memory nodes are not connected that they are connecting.
fn show_sessions(regions: &mut [AttachedRegion], sessions: &[Session]) {
    let is_open = |mac: &str| {
        let mut of_it = sessions.iter().map(|session| &session.status).filter(|status| status.peer == mac);
        of_it.any(|status| matches!(status.state.as_str(), "open" | "suspect"))
    };
    regions.iter_mut().for_each(|region| region.show_sessions(is_open));
}

fn done(outcome: Result<(), Refused>) -> Answer {
    outcome.map_or_else(Answer::Refused, |()| Answer::Done)
}

fn said(outcome: Result<Answer, Refused>) -> Answer {
    outcome.unwrap_or_else(Answer::Refused)
}

/// Whether there is a space of this number, and the user who asks may see it.
async fn sees(context: &ServerContext, caller: Caller, space: u64) -> bool {
    let owner = ask(&context.orders, move |spaces| spaces.get(space).map(|space| space.options().owner));
    owner.await.flatten().is_some_and(|owner| caller.may_use(owner))
}

async fn clean_all(orders: &Orders, space: u64) -> Answer {
    let (tell, told) = oneshot::channel();
    let tell = Box::new(move |clean| {
        let _ = tell.send(clean);
    });
    match ask(orders, move |spaces| spaces.clean_all(space, tell)).await {
        None => ending(),
        Some(Err(error)) => Answer::Refused(error.into()),
        Some(Ok(())) => match told.await {
            Ok(true) => Answer::Done,
            Ok(false) => Answer::Refused(Refused::NotClean),
            Err(_) => ending(),
        },
    }
}

fn ending() -> Answer {
    Answer::Refused(Refused::Ending)
}

async fn receive(stream: &mut UnixStream, sent: &mut Descriptors) -> io::Result<Result<Request, String>> {
    let mut prefix = [0; 4];
    mapping::receive_first(stream, &mut prefix, sent).await?;
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

async fn open_port(
    mut stream: UnixStream,
    caller: Caller,
    slot: ClientSlot,
    orders: &Orders,
) -> io::Result<()> {
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
    let _ = orders.try_give(Order::Serve(Box::new(Client::new(end, socket, slot, caller.limited()))));
    Ok(())
}
