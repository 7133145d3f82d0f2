//! Accepts connections on the TCP and the Unix socket and serves HTTP/1.1 on each, within limits: how many connections at
//! a time, of all and of one peer, how long a request may take to arrive, how large its head may be. Who has to go where
//! there is no room is decided in [`super::connections`].

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
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

use super::connections::{Admission, Connections};
use super::stalled::StallGuard;
use super::tls::{Peer, TlsDoor};

/// How long a connection may stay idle between two requests, the head of the second included.
const HEAD_TIMEOUT: Duration = Duration::from_secs(90);
/// How long somebody may take nothing of an answer.
const STALL_MAX: Duration = Duration::from_secs(30);
/// Connections that one peer may have however few there are in all.
const PER_PEER_MIN: usize = 64;
/// How often those are looked for that take too long to send a request.
const SWEEP: Duration = Duration::from_secs(1);
/// Pause before it is looked again whether there is room for another connection.
const FULL_PAUSE: Duration = Duration::from_millis(20);
/// Largest head of a request in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Pause after accepting failed, for want of file descriptors for instance.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long requests under way may take once the server is told to end.
const DRAIN: Duration = Duration::from_millis(500);

/// The sockets of a server.
pub struct Listeners {
    /// TCP, if wanted.
    pub tcp: Option<TcpListener>,
    /// Unix, if wanted.
    pub unix: Option<UnixListener>,
    /// TCP speaks TLS, if this is there.
    pub tls: Option<TlsDoor>,
}

/// Accepts and serves until `stop` becomes true; then lets requests under way end for a moment, and breaks the rest off.
/// At most `connections_max` are served at a time, half of them from one peer.
pub async fn serve<S, B>(
    listeners: Listeners,
    service: S,
    connections_max: usize,
    mut stop: watch::Receiver<bool>,
) where
    S: Service<Request<Arriving>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let connected = Connected::new(connections_max, listeners.tls.is_some());
    let mut connections = JoinSet::new();
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        // Room first: who comes when all are being served waits in the kernel's queue.
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
                    // For want of file descriptors, most of the time: somebody who asks nothing has one.
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
            (Stream::Tcp(stream, ip), None) => {
                connections.spawn(connection(stream, Peer::Tcp(ip), slot, ended, service, stop))
            }
            (Stream::Tcp(stream, ip), Some(tls)) => {
                let accepting = tls.accept(stream, ip);
                connections.spawn(secured(accepting, slot, ended, service, stop))
            }
            (Stream::Unix(stream), _) => {
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

/// Returns once the server is told to end, or nobody is left who could tell.
async fn told_to_end(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

/// A connection that was accepted.
enum Stream {
    Tcp(TcpStream, IpAddr),
    Unix(UnixStream),
}

async fn accept(listeners: &Listeners) -> std::io::Result<(Stream, Option<IpAddr>)> {
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
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%peer, %error, "TCP_NODELAY cannot be set");
            }
            Ok((Stream::Tcp(stream, peer.ip()), Some(peer.ip())))
        }
        accepted = unix => Ok((Stream::Unix(accepted?.0), None)),
    }
}

async fn accept_failed(error: &std::io::Error) {
    tracing::warn!(%error, "cannot accept a connection; trying again");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// Ends a connection when it is dropped.
type End = oneshot::Sender<()>;

/// The connections there are, shared with each of them.
#[derive(Clone)]
struct Connected {
    connections: Arc<Mutex<Connections<End>>>,
    started: Instant,
}

impl Connected {
    fn new(connections_max: usize, tells_apart: bool) -> Self {
        let per_peer_max = (connections_max / 2).max(PER_PEER_MIN);
        let connections = Connections::new(connections_max, per_peer_max);
        let connections = if tells_apart { connections.with_room_for_known() } else { connections };
        Self { connections: Arc::new(Mutex::new(connections)), started: Instant::now() }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Connections<End>> {
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

    /// A slot for a connection from `peer`, and what tells when it has to go.
    fn admit(&self, peer: Option<IpAddr>) -> Option<(ClientSlot, oneshot::Receiver<()>)> {
        let (end, ended) = oneshot::channel();
        let admission = self.lock().admit(peer, end, self.now_ms());
        match admission {
            Admission::Stays(id, _) => Some((ClientSlot { connected: self.clone(), id }, ended)),
            Admission::TooMany(_) => {
                tracing::debug!(?peer, "a connection is closed: its peer has as many as one may have");
                None
            }
        }
    }
}

/// A connection's place among the others; given back when this is dropped.
struct ClientSlot {
    connected: Connected,
    id: u64,
}

impl ClientSlot {
    fn receives(&self) {
        self.connected.lock().receives(self.id, self.connected.now_ms());
    }

    fn begins(&self) -> bool {
        self.connected.lock().begins(self.id)
    }

    fn works(&self) {
        self.connected.lock().works(self.id, self.connected.now_ms());
    }

    /// Who is at the other end has shown a certificate.
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

/// Among the extensions of a request that should be refused: of those who have shown no certificate, too many are being
/// answered already.
#[derive(Debug, Clone, Copy)]
pub struct Crowded;

/// The body of a request, whose end is told to the connection it comes on.
pub struct Arriving {
    body: Incoming,
    slot: Arc<ClientSlot>,
}

impl hyper::body::Body for Arriving {
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

/// Serves a connection after its TLS handshake, which has to be over in the time that a request may take to arrive.
async fn secured<S, B>(
    accepting: impl Future<Output = Option<(TlsStream<TcpStream>, Peer)>>,
    slot: ClientSlot,
    mut ended: oneshot::Receiver<()>,
    service: S,
    mut stop: watch::Receiver<bool>,
) where
    S: Service<Request<Arriving>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body + 'static,
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
    S: Service<Request<Arriving>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES_MAX);
    let slot = Arc::new(slot);
    let requests = service_fn(|request: Request<Incoming>| {
        let (mut service, slot) = (service.clone(), Arc::clone(&slot));
        async move {
            match request.body().is_end_stream() {
                true => slot.works(),
                false => slot.receives(),
            }
            let arriving = Arc::clone(&slot);
            let mut request = request;
            request.extensions_mut().insert(peer);
            if !slot.begins() {
                request.extensions_mut().insert(Crowded);
            }
            let answer = service.call(request.map(|body| Arriving { body, slot: arriving })).await;
            slot.rests();
            answer
        }
    });
    let stream = StallGuard::new(stream, STALL_MAX);
    let served = builder.serve_connection(TokioIo::new(stream), requests);
    tokio::pin!(served);
    let result = tokio::select! {
        result = served.as_mut() => result,
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
