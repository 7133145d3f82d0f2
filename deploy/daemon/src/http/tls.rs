//! TLS on accepted connections, and the identity of a connection's peer.

use std::net::IpAddr;
use std::sync::Arc;

use cxloe_fabric::model::Digest;
use rustls::ServerConfig;
use rustls::server::ParsedCertificate;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Verified origin of a connection. Each request carries it as an extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Host without TLS, by its address.
    Tcp(IpAddr),
    Tls {
        ip: IpAddr,
        /// Hash of the SubjectPublicKeyInfo of the client's certificate, whose private key the client has proved to
        /// have.
        key: Option<Digest>,
    },
    Unix {
        uid: u32,
        gid: u32,
    },
}

impl Peer {
    /// Peer of a Unix socket, by the credentials that the kernel reports.
    pub fn at(stream: &UnixStream) -> Option<Self> {
        match stream.peer_cred() {
            Ok(credentials) => Some(Self::Unix { uid: credentials.uid(), gid: credentials.gid() }),
            Err(error) => {
                tracing::debug!(%error, "a connection is closed: its peer cannot be identified");
                None
            }
        }
    }

    pub(crate) fn is_proved(&self) -> bool {
        matches!(self, Self::Tls { key: Some(_), .. })
    }
}

/// TLS configuration for accepting connections: `None` until there is a certificate, replaced at each renewal.
#[derive(Clone)]
pub struct TlsAuthenticator(watch::Receiver<Option<Arc<ServerConfig>>>);

impl TlsAuthenticator {
    /// Creates the source of TLS configurations: a new connection uses the present value of `configured`.
    pub fn new(configured: watch::Receiver<Option<Arc<ServerConfig>>>) -> Self {
        Self(configured)
    }

    /// TLS handshake with the client at `ip`; `None` if it fails, or there is no certificate yet.
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
                    tracing::debug!(%ip, %error, "the TLS handshake with a client failed");
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
