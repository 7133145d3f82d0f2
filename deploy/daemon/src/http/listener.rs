//! Accepts connections on the TCP and the Unix socket and serves HTTP/1.1 on each, within limits: connections in all
//! and of one peer, time for a request to arrive, size of its head. If there is no room, [`super::connections`] selects
//! the connection to evict.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio_rustls::server::TlsStream;
use tower_service::Service;

use super::connections::Connections;
use super::host_header;
use super::lingering::Lingering;
use super::stalled::StallGuard;
use super::tls::{Peer, TlsAuthenticator};

/// Maximum time between two requests of a connection, until the head of the second has arrived.
const HEAD_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum time without progress in sending an answer, because the peer does not read.
const STALL_MAX: Duration = Duration::from_secs(30);
/// Number of connections that each peer may have even if half of the limit for all peers is lower.
const PER_PEER_MIN: usize = 64;
/// Interval of the check for requests that take too long to arrive.
const SWEEP: Duration = Duration::from_secs(1);
/// Pause before the next check for room for another connection.
const FULL_PAUSE: Duration = Duration::from_millis(20);
/// Maximum length of the head of a request in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Pause after a failure to accept, for instance for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum time for requests under way to end after the stop signal.
const DRAIN: Duration = Duration::from_millis(500);

pub struct Listeners {
    pub tcp: Option<TcpListener>,
    pub unix: Option<UnixListener>,
    /// TLS for TCP connections; `None`: plain HTTP.
    pub tls: Option<TlsAuthenticator>,
}

/// Accepts and serves until `stop` becomes true; then waits up to half a second for requests under way, and breaks off
/// the rest. At most `connections_max` are served at a time, half of them from one peer.
pub async fn serve<S, B>(
    listeners: Listeners,
    service: S,
    connections_max: usize,
    mut stop: watch::Receiver<bool>,
) where
    S: Service<Request<TrackedBody>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
    B: Body + From<String> + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let connected = Connected::new(connections_max, listeners.tls.is_some());
    let mut connections = JoinSet::new();
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        // Checks for room before accepting: further connections wait in the kernel's queue.
        while !connected.has_room() {
            tokio::select! {
                () = tokio::time::sleep(FULL_PAUSE) => {}
                () = told_to_end(&mut stop) => break,
            }
        }
        while connections.try_join_next().is_some() {}
        let (stream, peer) = tokio::select! {
            accepted = accept(&listeners) => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // The usual cause is a lack of file descriptors; evicting a connection frees one.
                    connected.make_room();
                    accept_failed(&error).await;
                    continue;
                }
            },
            _ = sweep.tick() => {
                connected.sweep();
                continue;
            }
            () = told_to_end(&mut stop) => break,
        };
        let Some((slot, ended)) = connected.admit(peer) else { continue };
        let (service, stop) = (service.clone(), stop.clone());
        match (stream, &listeners.tls) {
            (AcceptedStream::Tcp(stream, ip), None) => {
                connections.spawn(connection(stream, Peer::Tcp(ip), slot, ended, service, stop))
            }
            (AcceptedStream::Tcp(stream, ip), Some(tls)) => {
                let accepting = tls.accept(stream, ip);
                connections.spawn(secured(accepting, slot, ended, service, stop))
            }
            (AcceptedStream::Unix(stream), _) => {
                let Some(peer) = Peer::at(&stream) else { continue };
                connections.spawn(connection(stream, peer, slot, ended, service, stop))
            }
        };
    }
    let all_ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN, all_ended).await.is_err() {
        connections.shutdown().await;
    }
}

/// Returns as soon as `stop` is true or its sender was dropped.
async fn told_to_end(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

enum AcceptedStream {
    Tcp(TcpStream, IpAddr),
    Unix(UnixStream),
}

async fn accept(listeners: &Listeners) -> std::io::Result<(AcceptedStream, Option<IpAddr>)> {
    let tcp = async {
        match &listeners.tcp {
            Some(listener) => listener.accept().await,
            None => std::future::pending().await,
        }
    };
    let unix = async {
        match &listeners.unix {
            Some(listener) => listener.accept().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        accepted = tcp => {
            let (stream, peer) = accepted?;
            // Answers are small, and must not wait for more data.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%peer, %error, "TCP_NODELAY cannot be set");
            }
            Ok((AcceptedStream::Tcp(stream, peer.ip()), Some(peer.ip())))
        }
        accepted = unix => Ok((AcceptedStream::Unix(accepted?.0), None)),
    }
}

async fn accept_failed(error: &std::io::Error) {
    tracing::warn!(%error, "cannot accept a connection; trying again");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// Handle of a connection; dropping it ends the connection.
type EndSender = oneshot::Sender<()>;

/// Connections of a server, shared by the tasks that serve them.
#[derive(Clone)]
struct Connected {
    connections: Arc<Mutex<Connections<EndSender>>>,
    started: Instant,
}

impl Connected {
    fn new(connections_max: usize, tells_apart: bool) -> Self {
        let per_peer_max = (connections_max / 2).max(PER_PEER_MIN);
        let connections = Connections::new(connections_max, per_peer_max);
        let connections =
            if tells_apart { connections.with_room_for_known(connections_max) } else { connections };
        Self { connections: Arc::new(Mutex::new(connections)), started: Instant::now() }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Connections<EndSender>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_room(&self) -> bool {
        self.lock().has_room()
    }

    fn make_room(&self) {
        let now_ms = self.now_ms();
        drop(self.lock().evict(now_ms));
    }

    fn sweep(&self) {
        let now_ms = self.now_ms();
        drop(self.lock().expire(now_ms));
    }

    /// Slot for a connection from `peer`, and the receiver of its eviction; `None` if the connection is refused.
    fn admit(&self, peer: Option<IpAddr>) -> Option<(ClientSlot, oneshot::Receiver<()>)> {
        let (end, ended) = oneshot::channel();
        let admission = self.lock().admit(peer, end, self.now_ms());
        match admission {
            Ok((id, _)) => Some((ClientSlot { connected: self.clone(), id, partial: Arc::default() }, ended)),
            Err(_) => {
                tracing::debug!(
                    ?peer,
                    "a connection is closed: its peer, or all together, have as many as they may, all in use"
                );
                None
            }
        }
    }
}

/// Slot of a connection, released on drop.
struct ClientSlot {
    connected: Connected,
    id: u64,
    partial: Arc<AtomicBool>,
}

impl ClientSlot {
    fn receives(&self) {
        self.connected.lock().receives(self.id, self.connected.now_ms());
    }

    fn begins(&self) -> bool {
        self.connected.lock().begins(self.id)
    }

    fn works(&self) {
        self.partial.store(false, Ordering::Relaxed);
        self.connected.lock().works(self.id);
    }

    fn is_known(&self) {
        self.connected.lock().is_known(self.id);
    }

    fn rests(&self) {
        self.connected.lock().rests(self.id, self.connected.now_ms());
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        drop(self.connected.lock().remove(self.id));
    }
}

/// Mark on a request that must be refused, since too many requests of peers without a certificate are being answered.
#[derive(Debug, Clone, Copy)]
pub struct TooManyRequests;

/// Body of a request; its end marks the connection as busy.
pub struct TrackedBody {
    body: Incoming,
    slot: Arc<ClientSlot>,
}

impl hyper::body::Body for TrackedBody {
    type Data = <Incoming as hyper::body::Body>::Data;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Self::Data>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None)) || self.body.is_end_stream() {
            self.slot.works();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

/// Makes the TLS handshake, within the time limit for the arrival of a request, and serves the connection.
async fn secured<S, B>(
    accepting: impl Future<Output = Option<(TlsStream<TcpStream>, Peer)>>,
    slot: ClientSlot,
    mut ended: oneshot::Receiver<()>,
    service: S,
    mut stop: watch::Receiver<bool>,
) where
    S: Service<Request<TrackedBody>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body + From<String> + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let accepted = tokio::select! {
        accepted = accepting => accepted,
        _ = &mut ended => return,
        () = told_to_end(&mut stop) => return,
    };
    if let Some((stream, peer)) = accepted {
        if peer.is_proved() {
            slot.is_known();
        }
        connection(stream, peer, slot, ended, service, stop).await;
    }
}

async fn connection<S, B>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    slot: ClientSlot,
    ended: oneshot::Receiver<()>,
    service: S,
    mut stop: watch::Receiver<bool>,
) where
    S: Service<Request<TrackedBody>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body + From<String> + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES_MAX);
    let slot = Arc::new(slot);
    let requests = service_fn(|request: Request<Incoming>| {
        let (mut service, slot) = (service.clone(), Arc::clone(&slot));
        async move {
            // A request without a body has arrived completely.
            match request.body().is_end_stream() {
                true => slot.works(),
                false => slot.receives(),
            }
            if let Err(fault) = host_header::check(&request) {
                slot.rests();
                return Ok(host_header::refusal(fault));
            }
            let arriving = Arc::clone(&slot);
            let mut request = request;
            request.extensions_mut().insert(peer);
            if !slot.begins() {
                request.extensions_mut().insert(TooManyRequests);
            }
            let answer = service.call(request.map(|body| TrackedBody { body, slot: arriving })).await;
            slot.rests();
            answer
        }
    });
    let partial = Arc::clone(&slot.partial);
    let stream = Lingering::new(StallGuard::new(stream, STALL_MAX), partial);
    let served = builder.serve_connection(TokioIo::new(stream), requests);
    tokio::pin!(served);
    let result = tokio::select! {
        result = served.as_mut() => result,
        // Evicted: the connection is closed without an answer.
        _ = ended => return,
        () = told_to_end(&mut stop) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection broke");
    }
}
