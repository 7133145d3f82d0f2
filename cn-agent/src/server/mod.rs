//! The agent's socket: answers requests, and opens ports. One thread runs each connection as a task; the number of
//! connections, the size of requests and the silence between requests are bounded. A connection that becomes a port, or
//! that makes its process a member of a mapped region's space, moves to the worker. A connection that owns a mapped
//! region stays as long as its owner keeps it open.
//!
//! The kernel reports the user of a connection (`caller`): memory that belongs to a user may be used by that user, root
//! and the agent's user. Each user has a share of the connections (`connection_permits`), so that no user can lock out
//! others or root.

mod caller;
mod connection_permits;
mod context;
mod manager;
mod mapping;
mod sent;
mod suspension;
mod temporary;

use std::io;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cxloe_daemon::{Bound, SocketError};
use cxloe_paging::PageNotes;
use cxloe_paging::spare_files::{NO_FILE_LEFT, is_spare};
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::worker::WorkerOrder;
use crate::worker::order::{Orders, ask};
use cxloe_client::memory::{SharedMemory, send_with_descriptor};
use cxloe_client::message::{
    self, AgentAnswer, AgentCall, AgentRequest, AttachedRegion, REQUEST_MAX, RefusalReason, Session, VERSION,
};
use cxloe_client::ring::{AgentEnd, PORT_BYTES};
use cxloe_cn_core::attachments::worker_of;
use cxloe_rings::client::Client;
use cxloe_rings::client_slot::{ClientSlot, NoSlot};

use caller::Caller;
use connection_permits::{ConnectionPermit, ConnectionPermits, ConnectionState};
pub use context::ServerContext;
use sent::SentDescriptors;

/// Longest silence of a connection before it is closed.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Longest wait for the workers' sessions when regions are listed.
const SESSIONS_WAIT_MAX: Duration = Duration::from_secs(1);
/// Pause after a failed accept, most likely for lack of free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds the agent's socket at `path`, for the agent's user and group. While it is bound, no other process can bind it
/// as this agent; requests are not answered yet.
pub fn bind(path: &Path) -> Result<Bound, SocketError> {
    Bound::bind(path, 0o660, "agent")
}

/// The running server, which ends and removes its socket when dropped.
#[derive(Debug)]
pub struct Server {
    _socket: Bound,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts to answer requests on `socket`.
    ///
    /// # Errors
    /// [`SocketError::Io`] when there is no thread or descriptor left.
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
    let places = ConnectionPermits::default();
    loop {
        let accepted = tokio::select! {
            _ = stopped.changed() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((mut stream, _)) => {
                let Ok(caller) = Caller::of(&stream) else { continue };
                // The last free descriptors are reserved for the agent's own files, so a connection that has taken one
                // of them is refused.
                if is_spare(&stream) {
                    tracing::warn!(uid = caller.uid, "a connection is closed: {NO_FILE_LEFT}");
                    sent::close(stream);
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
                let waits = match places.take(ConnectionState::Waits, caller) {
                    Ok(waits) => waits,
                    Err(limit) => {
                        tracing::debug!(
                            uid = caller.uid,
                            limit,
                            "a connection is closed: its user has as many as one may have"
                        );
                        refuse(&mut stream, limit);
                        sent::close(stream);
                        continue;
                    }
                };
                let (context, places) = (context.clone(), places.clone());
                tokio::spawn(async move {
                    let Ok(place) = timeout(SILENCE_MAX, places.wait(ConnectionState::Asks, caller)).await
                    else {
                        refuse(&mut stream, waits.limit());
                        sent::close(stream);
                        return;
                    };
                    let mut place = ConnectionResources { place, places, owns: None };
                    let mut stream = Some(stream);
                    let ended = converse(&mut stream, caller, &context, &mut place).await;
                    stream.into_iter().for_each(sent::close);
                    if let Some(space) = place.owns {
                        context.workers.disown(space).await;
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

/// Resources that a connection holds while it is open.
struct ConnectionResources {
    /// Permit of the connection in its present state.
    place: ConnectionPermit,
    places: ConnectionPermits,
    /// Number of the space that the connection owns.
    owns: Option<u64>,
}

/// Refuses a connection beyond the limit. Drops the answer if it cannot be sent at once, so that no client
/// delays others.
fn refuse(stream: &mut UnixStream, limit: usize) {
    let _ = stream.try_write(&message::encode(&AgentAnswer::Refused(RefusalReason::Connections { limit })));
}

/// Answers requests until the peer leaves, is silent for too long or sends an invalid request, or the connection
/// becomes a port or a member.
async fn converse(
    connection: &mut Option<UnixStream>,
    caller: Caller,
    context: &ServerContext,
    place: &mut ConnectionResources,
) -> io::Result<()> {
    // `None` only after the connection has become a port or a member.
    while let Some(stream) = connection {
        let mut sent = SentDescriptors::default();
        let request = receive(stream, &mut sent);
        // An owner's connection has no time-out: it stays open, mostly silent, as long as the region is
        // mapped.
        let request =
            if place.owns.is_some() { request.await? } else { timeout(SILENCE_MAX, request).await?? };
        let request: AgentRequest = match request {
            Ok(request) => request,
            Err(reason) => {
                return answer(stream, &AgentAnswer::Refused(RefusalReason::Malformed(reason))).await;
            }
        };
        if request.version != VERSION {
            return answer(stream, &AgentAnswer::Refused(RefusalReason::Version { agent: VERSION })).await;
        }
        let said = match request.ask {
            AgentCall::Regions => AgentAnswer::Regions(regions(context).await),
            AgentCall::Node => AgentAnswer::Node(context.listing.node()),
            AgentCall::Sessions => {
                context.workers.sessions().await.map_or_else(ending, AgentAnswer::Sessions)
            }
            AgentCall::Counters => {
                let counters = context.workers.counters().await;
                counters.map_or_else(ending, |counters| AgentAnswer::Counters(Box::new(counters)))
            }
            ask @ (AgentCall::Port | AgentCall::PortOf { .. }) => {
                let worker = if let AgentCall::PortOf { worker } = ask { worker } else { 0 };
                match (context.workers.get(worker), context.slots.take(caller.limited())) {
                    (None, _) => {
                        AgentAnswer::Refused(RefusalReason::Malformed(format!("no worker {worker}")))
                    }
                    (Some(orders), Ok(slot)) => {
                        let Some(stream) = connection.take() else { break };
                        return open_port(stream, caller, slot, orders, context.workers.count()).await;
                    }
                    (_, Err(NoSlot::Full(limit))) => AgentAnswer::Refused(RefusalReason::Full { limit }),
                    (_, Err(NoSlot::Share(reached))) => AgentAnswer::Refused(RefusalReason::Share(reached)),
                }
            }
            AgentCall::Map(_) if place.owns.is_some() => AgentAnswer::Refused(RefusalReason::Malformed(
                "a connection maps one region; open another".into(),
            )),
            AgentCall::Map(request) => {
                let owner = match place.places.take(ConnectionState::Owns, caller) {
                    Ok(owner) => owner,
                    Err(limit) => {
                        return answer(stream, &AgentAnswer::Refused(RefusalReason::Connections { limit }))
                            .await;
                    }
                };
                match mapping::map(context, caller, request, sent).await {
                    Ok(mapped) => {
                        (place.place, place.owns) = (owner, Some(mapped.made.id));
                        timeout(SILENCE_MAX, mapped.answer(stream)).await??;
                        continue;
                    }
                    Err(refused) => AgentAnswer::Refused(refused),
                }
            }
            AgentCall::Join(request) => {
                let Some(stream) = connection.take() else { break };
                return mapping::join(context, caller, request, sent, stream).await;
            }
            AgentCall::SetLimit { space, .. }
            | AgentCall::CleanAll { space, .. }
            | AgentCall::Suspend { space }
            | AgentCall::Note { space, .. }
            | AgentCall::ServeAgain { space, .. }
                if !sees(context, caller, space).await =>
            {
                AgentAnswer::Refused(RefusalReason::NoSpace)
            }
            AgentCall::SetLimit { space, limit } => {
                let orders = context.workers.of_space(space).await;
                let set = ask(orders, move |spaces| spaces.set_limit(space, limit)).await;
                set.map_or_else(ending, |set| done(set.map_err(RefusalReason::from)))
            }
            AgentCall::Paging { space } => {
                let spaces = context.workers.ask_all(move |spaces| spaces.report(space)).await;
                spaces.map_or_else(ending, |spaces| AgentAnswer::Paging(caller.seen(spaces.concat())))
            }
            AgentCall::Discard { space } if place.owns == Some(space) => {
                let orders = context.workers.of_space(space).await;
                let gone = ask(orders, move |spaces| spaces.discard(space)).await;
                // Without an answer of the worker, the owner is removed when the connection ends.
                place.owns = gone.is_none().then_some(space);
                gone.map_or_else(ending, |()| AgentAnswer::Done)
            }
            AgentCall::Discard { .. } => AgentAnswer::Refused(RefusalReason::NoSpace),
            AgentCall::Create { bytes } => into_answer(temporary::create(context, caller, bytes).await),
            AgentCall::Grow { region, bytes } => {
                into_answer(temporary::grow(context, caller, region, bytes).await)
            }
            AgentCall::Destroy { region } => into_answer(temporary::destroy(context, caller, region).await),
            AgentCall::CleanAll { space, zeros } => {
                clean_all(context.workers.of_space(space).await, space, zeros).await
            }
            AgentCall::Suspend { space } => into_answer(suspension::suspend(context, space).await),
            AgentCall::Note { space, hot, zeros } => {
                into_answer(suspension::note(context, space, PageNotes { hot, zeros }).await)
            }
            AgentCall::ServeAgain { space, wait_ms } => {
                into_answer(suspension::serve_again(context, caller, space, wait_ms).await)
            }
        };
        answer(stream, &said).await?;
    }
    Ok(())
}

/// The attached regions, with the state of their sessions if the worker reports that in time.
async fn regions(context: &ServerContext) -> Vec<AttachedRegion> {
    let mut regions = context.listing.regions();
    if !regions.is_empty()
        && let Ok(Some(reports)) = timeout(SESSIONS_WAIT_MAX, context.workers.reports()).await
    {
        for region in &mut regions {
            show_sessions(region, &reports[worker_of(region.hpa, reports.len())].sessions);
        }
    }
    regions
}

/// Marks a region as connecting, unless its worker's `sessions` with its memory nodes are open.
fn show_sessions(region: &mut AttachedRegion, sessions: &[Session]) {
    region.show_sessions(|mac| {
        let mut of_it = sessions.iter().map(|session| &session.status).filter(|status| status.peer == mac);
        of_it.any(|status| matches!(status.state.as_str(), "open" | "suspect"))
    });
}

fn done(outcome: Result<(), RefusalReason>) -> AgentAnswer {
    outcome.map_or_else(AgentAnswer::Refused, |()| AgentAnswer::Done)
}

fn into_answer(outcome: Result<AgentAnswer, RefusalReason>) -> AgentAnswer {
    outcome.unwrap_or_else(AgentAnswer::Refused)
}

/// Whether the space with this number exists, and the caller may use its memory.
async fn sees(context: &ServerContext, caller: Caller, space: u64) -> bool {
    let orders = context.workers.of_space(space).await;
    let owner = ask(orders, move |spaces| spaces.get(space).map(|space| space.options().owner));
    owner.await.flatten().is_some_and(|owner| caller.may_use(owner))
}

async fn clean_all(orders: &Orders, space: u64, zeros: bool) -> AgentAnswer {
    let (sender, receiver) = oneshot::channel();
    let sender = Box::new(move |clean| {
        let _ = sender.send(clean);
    });
    match ask(orders, move |spaces| spaces.clean_all(space, zeros, sender)).await {
        None => ending(),
        Some(Err(error)) => AgentAnswer::Refused(error.into()),
        Some(Ok(())) => match receiver.await {
            Ok(true) => AgentAnswer::Done,
            Ok(false) => AgentAnswer::Refused(RefusalReason::NotClean),
            Err(_) => ending(),
        },
    }
}

fn ending() -> AgentAnswer {
    AgentAnswer::Refused(RefusalReason::Ending)
}

async fn receive(
    stream: &mut UnixStream,
    sent: &mut SentDescriptors,
) -> io::Result<Result<AgentRequest, String>> {
    let mut prefix = [0; 4];
    sent.receive(stream, &mut prefix).await?;
    let length = match message::announced(prefix, REQUEST_MAX) {
        Ok(length) => length,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let mut bytes = vec![0; length];
    sent.receive(stream, &mut bytes).await?;
    // Field that requests of all protocol versions have.
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u32,
    }
    Ok(message::decode(&bytes).or_else(|error| match message::decode::<Versioned>(&bytes) {
        Ok(Versioned { version }) if version != VERSION => {
            Ok(AgentRequest { version, ask: AgentCall::Regions })
        }
        _ => Err(error.to_string()),
    }))
}

async fn answer(stream: &mut UnixStream, answer: &AgentAnswer) -> io::Result<()> {
    timeout(SILENCE_MAX, stream.write_all(&message::encode(answer))).await?
}

async fn open_port(
    mut stream: UnixStream,
    caller: Caller,
    slot: ClientSlot,
    orders: &Orders,
    workers: usize,
) -> io::Result<()> {
    let memory = match SharedMemory::create(PORT_BYTES) {
        Ok(memory) => memory,
        Err(error) => {
            let refused = AgentAnswer::Refused(RefusalReason::System(error.to_string()));
            let sent = answer(&mut stream, &refused).await;
            sent::close(stream);
            return sent;
        }
    };
    let end = AgentEnd::new(memory);
    let socket = stream.into_std()?;
    let hello = message::encode(&AgentAnswer::Port { bytes: PORT_BYTES as u64, workers });
    send_with_descriptor(&socket, &hello, end.memory().descriptor())?;
    // If the worker has ended, the socket closes here, by which the client detects the failure.
    let _ = orders.try_give(WorkerOrder::Serve(Box::new(Client::new(end, socket, slot, caller.limited()))));
    Ok(())
}
