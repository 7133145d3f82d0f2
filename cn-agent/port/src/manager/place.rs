//! Where a manager is: a Unix socket, an address without TLS, or one with TLS, at which a node shows its certificate and
//! trusts the authority that it has joined under.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cxloe_fabric::ClientError;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The ports of URLs without one.
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// Where one manager listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At this socket.
    Unix(PathBuf),
    /// At this host and port.
    Tcp {
        /// Name or address, without brackets.
        host: String,
        /// The port.
        port: u16,
        /// TLS is spoken there.
        tls: bool,
    },
}

/// A stream to a manager.
pub trait Stream: Read + Write {
    /// How long one read or write may take from here on.
    fn set_patience(&self, patience: Duration) -> io::Result<()>;
    /// What ends it from another thread.
    fn ending(&self) -> io::Result<Ending>;
}

/// Ends a stream.
#[derive(Debug)]
pub enum Ending {
    /// Of this socket.
    Unix(UnixStream),
    /// Of this connection.
    Tcp(TcpStream),
}

impl Ending {
    /// Nothing comes and nothing goes any more: whoever waits for it hears of that.
    pub fn now(&self) {
        // One that has ended is what is wanted.
        let _ = match self {
            Ending::Unix(stream) => stream.shutdown(Shutdown::Both),
            Ending::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Stream for TcpStream {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))?;
        self.set_write_timeout(Some(patience))
    }

    fn ending(&self) -> io::Result<Ending> {
        Ok(Ending::Tcp(self.try_clone()?))
    }
}

impl Stream for UnixStream {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))?;
        self.set_write_timeout(Some(patience))
    }

    fn ending(&self) -> io::Result<Ending> {
        Ok(Ending::Unix(self.try_clone()?))
    }
}

impl Stream for StreamOwned<ClientConnection, TcpStream> {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.sock.set_patience(patience)
    }

    fn ending(&self) -> io::Result<Ending> {
        self.sock.ending()
    }
}

impl Place {
    /// The place that `url` says.
    ///
    /// # Errors
    /// [`ClientError::BadUrl`].
    pub fn parse(url: &str) -> Result<Place, ClientError> {
        let bad = |reason: &str| ClientError::BadUrl { url: url.to_owned(), reason: reason.to_owned() };
        if let Some(path) = url.strip_prefix("unix:") {
            return match path {
                "" => Err(bad("the path of the socket is missing")),
                path => Ok(Place::Unix(path.into())),
            };
        }
        let (tls, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(bad("it does not start with https://HOST")),
        };
        let authority = rest.trim_end_matches('/');
        if authority.contains(['/', '@', '?', '#']) {
            return Err(bad("there is more than a host and a port"));
        }
        let (host, port) = match authority.rsplit_once(':') {
            // The colons of an address in brackets are its own.
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| bad("its port is no number"))?)
            }
            _ => (authority, if tls { HTTPS_PORT } else { HTTP_PORT }),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if bare.is_empty() {
            return Err(bad("the host is missing"));
        }
        Ok(Place::Tcp { host: bare.to_owned(), port, tls })
    }

    /// As the header `Host` has it.
    pub fn host(&self) -> String {
        match self {
            Place::Unix(_) => "localhost".into(),
            Place::Tcp { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Place::Tcp { host, port, .. } => format!("{host}:{port}"),
        }
    }

    /// As people are shown it.
    pub fn url(&self) -> String {
        match self {
            Place::Unix(path) => format!("unix:{}", path.display()),
            Place::Tcp { tls, .. } => format!("{}://{}", if *tls { "https" } else { "http" }, self.host()),
        }
    }

    /// Whether a token may be sent there: nobody on the way reads it.
    pub fn is_private(&self) -> bool {
        matches!(self, Place::Unix(_) | Place::Tcp { tls: true, .. })
    }

    /// Connects; where TLS is spoken, by `config`. The handshake takes place with the first write.
    ///
    /// # Errors
    /// What the system said.
    pub fn connect(&self, config: &Arc<ClientConfig>) -> io::Result<Box<dyn Stream>> {
        match self {
            Place::Unix(path) => Ok(Box::new(UnixStream::connect(path)?)),
            Place::Tcp { host, port, tls } => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            if !tls {
                                return Ok(Box::new(stream));
                            }
                            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                            let tls = ClientConnection::new(Arc::clone(config), name);
                            return Ok(Box::new(StreamOwned::new(tls.map_err(io::Error::other)?, stream)));
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_places() {
        let at = |host: &str, port, tls| Place::Tcp { host: host.into(), port, tls };
        let tcp = |host: &str, port| at(host, port, false);
        for (url, place) in [
            ("http://127.0.0.1:7440", tcp("127.0.0.1", 7440)),
            ("http://manager/", tcp("manager", 80)),
            ("http://[::1]:7440", tcp("::1", 7440)),
            ("http://[::1]", tcp("::1", 80)),
            ("https://manager:7440", at("manager", 7440, true)),
            ("https://[::1]", at("::1", 443, true)),
            ("unix:/run/gmm.sock", Place::Unix("/run/gmm.sock".into())),
        ] {
            assert_eq!(Place::parse(url).unwrap(), place, "{url}");
        }
        assert_eq!(Place::parse("http://[::1]:7440").unwrap().host(), "[::1]:7440");
        assert_eq!(Place::parse("https://a:7440").unwrap().url(), "https://a:7440");
        for url in ["", "unix:", "ftp://a:1", "https://", "http://", "http://a:b", "http://a/b", "http://u@a"]
        {
            assert!(matches!(Place::parse(url), Err(ClientError::BadUrl { .. })), "{url}");
        }
    }
}
