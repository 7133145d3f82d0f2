//! TLS on accepted connections, and who is at the other end of one.

use std::net::IpAddr;
use std::sync::Arc;

use cxloe_fabric::model::Digest;
use rustls::ServerConfig;
use rustls::server::ParsedCertificate;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Who is at the other end of a connection, as far as that shows. Each request has it among its extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Somebody at this address, without TLS.
    Tcp(IpAddr),
    /// Somebody at this address, with TLS.
    Tls {
        /// The address.
        ip: IpAddr,
        /// The key of the client's certificate, whose private half it has: the hash of its SubjectPublicKeyInfo.
        key: Option<Digest>,
    },
    /// A process of this machine.
    Unix {
        /// Its user.
        uid: u32,
        /// Its group.
        gid: u32,
    },
}

impl Peer {
    /// Whoever is at the other end of a Unix socket.
    pub fn at(stream: &UnixStream) -> Option<Self> {
        match stream.peer_cred() {
            Ok(credentials) => Some(Self::Unix { uid: credentials.uid(), gid: credentials.gid() }),
            Err(error) => {
                tracing::debug!(%error, "a connection is closed: whose it is cannot be told");
                None
            }
        }
    }

    /// Whether a certificate was shown.
    pub fn is_proved(&self) -> bool {
        matches!(self, Self::Tls { key: Some(_), .. })
    }
}

/// What TLS connections are accepted with: none until there is a certificate, and another one from time to time.
#[derive(Clone)]
pub struct TlsDoor(watch::Receiver<Option<Arc<ServerConfig>>>);

impl TlsDoor {
    /// With what `configured` has at the time.
    pub fn new(configured: watch::Receiver<Option<Arc<ServerConfig>>>) -> Self {
        Self(configured)
    }

    /// The handshake with somebody at `ip`; none when it fails, or there is no certificate yet.
    pub fn accept(
        &self,
        stream: TcpStream,
        ip: IpAddr,
    ) -> impl Future<Output = Option<(TlsStream<TcpStream>, Peer)>> + Send + 'static {
        let config = self.0.borrow().clone();
        async move {
            let stream = match TlsAcceptor::from(config?).accept(stream).await {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::debug!(%ip, %error, "no TLS with who connected");
                    return None;
                }
            };
            let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let key = certificate.and_then(|certificate| {
                let parsed = ParsedCertificate::try_from(certificate).ok()?;
                Some(Digest::of(&parsed.subject_public_key_info()))
            });
            Some((stream, Peer::Tls { ip, key }))
        }
    }
}
