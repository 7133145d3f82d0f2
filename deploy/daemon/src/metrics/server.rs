//! Serves metrics over HTTP: `GET /metrics` for Prometheus, `GET /healthz` for the health of the daemon. A separate
//! thread with a small runtime reads the daemon's counters only when a request arrives. The limits on connections,
//! request heads and idle time are those of the manager's REST interface.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::{Mutex, watch};
use tower_service::Service;

use super::{MetricsAddress, Scrape};
use crate::http::{Listeners, TrackedBody, serve};
use crate::{Bound, SocketError};

/// Maximum number of connections at a time; further ones wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 64;
/// Content type of Prometheus's text format, version 0.0.4.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Content type of all other answers.
const PLAIN: &str = "text/plain; charset=utf-8";

#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    #[error("cannot serve metrics on {address}: {source}; give another address with --metrics")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot serve metrics: {0}")]
    Socket(#[from] SocketError),
    #[error("cannot start the thread that serves metrics: {0}; raise the limit of processes (ulimit -u)")]
    Thread(io::Error),
}

/// Metrics and health of a daemon at one moment.
#[derive(Debug, Default)]
pub struct Sample {
    pub scrape: Scrape,
    /// Reason why the daemon does not work; `None` if it works.
    pub unwell: Option<String>,
}

enum Socket {
    Tcp(std::net::TcpListener),
    Unix(Bound),
}

/// A bound address; clients wait until metrics are [served](MetricsListener::serve).
pub struct MetricsListener(Socket);

impl MetricsListener {
    /// Binds `address`; clients that connect wait until [`serve`](Self::serve) is called.
    ///
    /// # Errors
    /// The address is in use, or cannot be bound.
    pub fn bind(address: &MetricsAddress) -> Result<MetricsListener, MetricsError> {
        Ok(MetricsListener(match address {
            MetricsAddress::Tcp(address) => {
                let listen = |source| MetricsError::Listen { address: *address, source };
                let listener = std::net::TcpListener::bind(address).map_err(listen)?;
                listener.set_nonblocking(true).map_err(listen)?;
                Socket::Tcp(listener)
            }
            MetricsAddress::Unix(path) => Socket::Unix(Bound::bind(path, 0o660, "daemon's metrics server")?),
        }))
    }

    /// Address in use; for TCP with the port that was chosen.
    pub fn address(&self) -> MetricsAddress {
        match &self.0 {
            Socket::Tcp(listener) => listener.local_addr().map_or_else(
                |_| MetricsAddress::Tcp(SocketAddr::from(([0, 0, 0, 0], 0))),
                MetricsAddress::Tcp,
            ),
            Socket::Unix(bound) => MetricsAddress::Unix(bound.path().to_path_buf()),
        }
    }

    /// Serves the results of `sample` until the server is dropped. Requests call `sample` one at a time.
    pub fn serve<F, R>(self, sample: F) -> Result<MetricsServer, MetricsError>
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Sample> + Send + 'static,
    {
        let address = self.address();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(MetricsError::Thread)?;
        let (listeners, socket) = {
            let _within = runtime.enter();
            match self.0 {
                Socket::Tcp(listener) => {
                    let tcp = tokio::net::TcpListener::from_std(listener).map_err(MetricsError::Thread)?;
                    (Listeners { tcp: Some(tcp), unix: None, tls: None }, None)
                }
                Socket::Unix(bound) => {
                    (Listeners { tcp: None, unix: Some(bound.async_listener()?), tls: None }, Some(bound))
                }
            }
        };
        let (stop, stopped) = watch::channel(false);
        let routes = Routes(Arc::new(Mutex::new(sample)));
        let thread = thread::Builder::new()
            .name("metrics".into())
            .spawn(move || runtime.block_on(serve(listeners, routes, CONNECTIONS_MAX, stopped)))
            .map_err(MetricsError::Thread)?;
        tracing::info!(%address, "serving /metrics and /healthz");
        Ok(MetricsServer { stop, thread: Some(thread), address, _socket: socket })
    }
}

/// A running server; dropping it stops it and removes its socket.
#[derive(Debug)]
pub struct MetricsServer {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    address: MetricsAddress,
    _socket: Option<Bound>,
}

impl MetricsServer {
    pub fn address(&self) -> &MetricsAddress {
        &self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the panic is in the log already.
            let _ = thread.join();
        }
    }
}

/// Handler of requests; the function in it makes a [`Sample`].
struct Routes<F>(Arc<Mutex<F>>);

impl<F> Clone for Routes<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F, R> Service<Request<TrackedBody>> for Routes<F>
where
    F: Fn() -> R + Send + Sync + 'static,
    R: Future<Output = Sample> + Send + 'static,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<TrackedBody>) -> Self::Future {
        let sample = Arc::clone(&self.0);
        Box::pin(async move {
            let path = request.uri().path();
            if path != "/metrics" && path != "/healthz" {
                return Ok(answer(StatusCode::NOT_FOUND, PLAIN, "here are /metrics and /healthz\n".into()));
            }
            if !matches!(*request.method(), Method::GET | Method::HEAD) {
                let mut refused = answer(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "GET or HEAD\n".into());
                refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET,HEAD"));
                return Ok(refused);
            }
            let found = {
                let sample = sample.lock().await;
                sample().await
            };
            Ok(if path == "/metrics" { metrics(found) } else { health(found) })
        })
    }
}

fn metrics(found: Sample) -> Response<Full<Bytes>> {
    match found.scrape.encode() {
        Ok(text) => answer(StatusCode::OK, FORMAT, text),
        Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("{error}\n")),
    }
}

fn health(found: Sample) -> Response<Full<Bytes>> {
    match found.unwell {
        None => answer(StatusCode::OK, PLAIN, "ok\n".into()),
        Some(reason) => answer(StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{reason}\n")),
    }
}

fn answer(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    crate::metrics_table! {
        /// Test gauge without labels.
        SO: Gauge "so" [];
    }

    fn ask(mut stream: impl Read + Write, request: &str) -> String {
        let asked = format!("{request} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
        stream.write_all(asked.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn sampled(well: &Arc<AtomicBool>) -> impl Fn() -> std::future::Ready<Sample> + Send + Sync + 'static {
        let well = Arc::clone(well);
        move || {
            let well = well.load(Ordering::Relaxed);
            let mut scrape = Scrape::new();
            scrape.set(&SO, &[], well);
            std::future::ready(Sample { scrape, unwell: (!well).then(|| "it is not so".into()) })
        }
    }

    #[test]
    fn metrics_and_health_are_those_of_the_moment() {
        let well = Arc::new(AtomicBool::new(true));
        let listener = MetricsListener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let server = listener.serve(sampled(&well)).unwrap();
        let MetricsAddress::Tcp(address) = *server.address() else { panic!("another kind of address") };
        let get = |path: &str| ask(std::net::TcpStream::connect(address).unwrap(), &format!("GET {path}"));
        let found = get("/metrics").to_lowercase();
        assert!(found.starts_with("http/1.1 200") && found.contains("version=0.0.4"), "{found}");
        assert!(
            found.contains("\r\n\r\n# help so test gauge without labels.\n# type so gauge\nso 1\n"),
            "{found}"
        );
        assert!(get("/healthz").starts_with("HTTP/1.1 200"));
        well.store(false, Ordering::Relaxed);
        assert!(get("/metrics").contains("\nso 0\n"));
        let unwell = get("/healthz");
        assert!(unwell.starts_with("HTTP/1.1 503") && unwell.contains("it is not so"), "{unwell}");
        assert!(get("/").starts_with("HTTP/1.1 404"));
        assert!(
            ask(std::net::TcpStream::connect(address).unwrap(), "POST /metrics").starts_with("HTTP/1.1 405")
        );
        let taken = MetricsListener::bind(&MetricsAddress::Tcp(address)).err().unwrap().to_string();
        assert!(taken.contains("--metrics"), "{taken}");
        drop(server);
        assert!(std::net::TcpStream::connect(address).is_err());
    }

    #[test]
    fn a_unix_socket_serves_as_well_and_goes_with_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.sock");
        let address = MetricsAddress::Unix(path.clone());
        let well = Arc::new(AtomicBool::new(true));
        let server = MetricsListener::bind(&address).unwrap().serve(sampled(&well)).unwrap();
        let found = ask(std::os::unix::net::UnixStream::connect(&path).unwrap(), "GET /metrics");
        assert!(found.contains("\nso 1\n"), "{found}");
        drop(server);
        assert!(!path.exists());
    }
}
