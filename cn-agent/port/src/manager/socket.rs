//! Connections for the HTTP client ureq to a manager: over a Unix socket, TCP, or TLS with the node's certificate and
//! the authority under which it has joined. ureq itself connects neither to Unix sockets nor with a given TLS
//! configuration.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, ShutdownHandle, Transport,
};

/// Time-out of opening a TCP connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// First bytes of a TLS alert (RFC 8446, 5.1).
const ALERT: [u8; 2] = [21, 3];
/// Default ports of HTTP and HTTPS URLs.
const PORTS: [u16; 2] = [80, 443];

/// Opens connections to one manager, for ureq.
#[derive(Debug, Clone)]
pub struct Sockets {
    /// Path of the Unix socket to connect to, for URLs with any host.
    pub unix: Option<PathBuf>,
    /// TLS configuration: the node's certificate and the trusted authority.
    pub tls: Arc<ClientConfig>,
}

/// A failed connection: nothing was sent.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Unreached(Error);

/// Cause of an error, if the call failed before its request was sent.
pub fn unreached(error: &Error) -> Option<&Error> {
    let Error::Other(cause) = error else { return None };
    cause.downcast_ref().map(|Unreached(cause)| cause)
}

impl Sockets {
    fn open(&self, details: &ConnectionDetails<'_>) -> Result<Connection, Error> {
        let uri = details.uri;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = uri.port_u16().unwrap_or(PORTS[usize::from(details.needs_tls())]);
        let socket = match &self.unix {
            // Both kinds of stream sockets are read, written and shut down by the same calls.
            Some(path) => TcpStream::from(OwnedFd::from(UnixStream::connect(path)?)),
            None => connect(host, port)?,
        };
        let socket = Arc::new(Socket(socket));
        let ending: Arc<dyn ShutdownHandle> = Arc::<Socket>::clone(&socket);
        (details.register_shutdown)(Arc::downgrade(&ending))?;
        socket.limit(details.timeout)?;
        let stream: Box<dyn Stream> = if details.needs_tls() {
            let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
            let tls = ClientConnection::new(Arc::clone(&self.tls), name).map_err(io::Error::other)?;
            let mut stream = StreamOwned::new(tls, OneBuffer(socket.0.try_clone()?));
            stream.conn.complete_io(&mut stream.sock)?;
            Box::new(stream)
        } else {
            Box::new(socket.0.try_clone()?)
        };
        let sizes = (details.config.input_buffer_size(), details.config.output_buffer_size());
        let (is_tls, buffers) = (details.needs_tls(), LazyBuffers::new(sizes.0, sizes.1));
        Ok(Connection { stream, is_tls, socket, answered: false, buffers })
    }
}

/// A socket that is written one buffer at a time. The standard library writes a single buffer with
/// `MSG_NOSIGNAL`, but several buffers at once, as rustls requests, without it. Then the signal SIGPIPE would
/// end a C program that has mapped a region when its manager hangs up.
struct OneBuffer(TcpStream);

impl Read for OneBuffer {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

impl Write for OneBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return stream.set_nodelay(true).map(|()| stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Connector for Sockets {
    type Out = Connection;

    fn connect(&self, details: &ConnectionDetails<'_>, _: Option<()>) -> Result<Option<Connection>, Error> {
        self.open(details).map(Some).map_err(|error| Error::Other(Box::new(Unreached(error))))
    }
}

impl Resolver for Sockets {
    /// Returns no address: [`Sockets::open`] resolves names. (ureq's own resolver starts a thread.)
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let mut addresses = self.empty();
        addresses.push(SocketAddr::from(([0; 4], 0)));
        Ok(addresses)
    }
}

struct Socket(TcpStream);

impl Socket {
    /// Sets the time-out of each read and write.
    fn limit(&self, timeout: NextTimeout) -> io::Result<()> {
        let limit = timeout.not_zero().map(|limit| *limit);
        self.0.set_read_timeout(limit)?;
        self.0.set_write_timeout(limit)
    }
}

impl ShutdownHandle for Socket {
    fn shutdown(&self) {
        // The error of a connection that has ended already is ignored.
        drop(self.0.shutdown(Shutdown::Both));
    }
}

trait Stream: Read + Write + Send + Sync {}

impl<T: Read + Write + Send + Sync> Stream for T {}

/// A connection to a manager, for one request.
pub struct Connection {
    stream: Box<dyn Stream>,
    is_tls: bool,
    /// Socket that carries the connection, below TLS.
    socket: Arc<Socket>,
    /// Whether any byte of an answer has arrived.
    answered: bool,
    buffers: LazyBuffers,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("socket", &self.socket.0).finish_non_exhaustive()
    }
}

impl Transport for Connection {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.socket.limit(timeout)?;
        let sent = self.stream.write_all(&self.buffers.output()[..amount]).and_then(|()| self.stream.flush());
        sent.map_err(|error| timed_out(error, timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.socket.limit(timeout)?;
        let buffer = self.buffers.input_append_buf();
        let count = self.stream.read(buffer).map_err(|error| timed_out(error, timeout))?;
        if !std::mem::replace(&mut self.answered, true) && buffer[..count].starts_with(&ALERT) {
            return Err(Error::Tls("the answer is an alert of TLS"));
        }
        self.buffers.input_appended(count);
        Ok(count > 0)
    }

    /// Always `false`: a connection serves one request.
    fn is_open(&mut self) -> bool {
        false
    }

    fn is_tls(&self) -> bool {
        self.is_tls
    }
}

fn timed_out(error: io::Error, timeout: NextTimeout) -> Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Timeout(timeout.reason),
        _ => Error::Io(error),
    }
}
