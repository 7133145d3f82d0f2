//! Accepts connections on the TCP and the Unix socket and serves HTTP/1.1 on each, within limits: how many connections at
//! a time, how long a request's head may take, how large it may be.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// How long a connection may take to send the head of a request, and may stay idle between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(90);
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
}

/// Accepts and serves until `stop` becomes true; then lets requests under way end for a moment, and breaks the rest off.
pub async fn serve(
    listeners: Listeners,
    router: Router,
    connections_max: usize,
    mut stop: watch::Receiver<bool>,
) {
    let slots = Arc::new(Semaphore::new(connections_max));
    let mut connections = JoinSet::new();
    loop {
        // A slot first: who comes when all are taken waits in the kernel's queue.
        let slot = tokio::select! {
            slot = Arc::clone(&slots).acquire_owned() => slot,
            () = told_to_end(&mut stop) => break,
        };
        while connections.try_join_next().is_some() {}
        tokio::select! {
            accepted = accept_tcp(listeners.tcp.as_ref()) => match accepted {
                Ok((stream, peer)) => {
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%peer, %error, "TCP_NODELAY cannot be set");
                    }
                    let served = connection(stream, router.clone(), stop.clone());
                    connections.spawn(async move { served.await; drop(slot) });
                }
                Err(error) => accept_failed(&error).await,
            },
            accepted = accept_unix(listeners.unix.as_ref()) => match accepted {
                Ok(stream) => {
                    let served = connection(stream, router.clone(), stop.clone());
                    connections.spawn(async move { served.await; drop(slot) });
                }
                Err(error) => accept_failed(&error).await,
            },
            () = told_to_end(&mut stop) => break,
        }
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

async fn accept_tcp(listener: Option<&TcpListener>) -> std::io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

async fn accept_unix(listener: Option<&UnixListener>) -> std::io::Result<tokio::net::UnixStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

async fn accept_failed(error: &std::io::Error) {
    tracing::warn!(%error, "cannot accept a connection; trying again");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES_MAX);
    let served = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(served);
    let result = tokio::select! {
        result = served.as_mut() => result,
        () = told_to_end(&mut stop) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection broke");
    }
}
