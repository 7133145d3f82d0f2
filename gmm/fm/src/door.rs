//! Who comes in to the FM API: decided by whoever serves it, before a byte of MCTP is read, and asked again with each
//! message.
//!
//! ```text
//!   accept --> Door: who is it? --> Answerer of that client --> is it still welcome? --> answer
//! ```

use std::future::{Future, ready};
use std::net::IpAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::answer::Session;
use super::header::ReturnCode;

/// Whoever answers one client: the manager, from wherever it runs.
pub trait Answerer: Clone + Send + Sync + 'static {
    /// The response to a message (header and payload) to a switch, if there is one, and the session after it. `Err`: this
    /// cannot be answered now, with that return code.
    fn answer(
        &self,
        switch: u32,
        session: Session,
        message: Vec<u8>,
    ) -> impl Future<Output = Result<(Session, Option<Vec<u8>>), ReturnCode>> + Send;

    /// Whether the client may still ask; one that may not is left.
    fn is_welcome(&self) -> bool {
        true
    }
}

/// Lets clients in.
pub trait Door: Clone + Send + Sync + 'static {
    /// What is spoken over with one that is in.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Who answers one that is in.
    type Answerer: Answerer;

    /// Lets in who has connected from `peer`; `None`: the connection is closed, and nothing was answered.
    fn admit(
        &self,
        stream: TcpStream,
        peer: IpAddr,
    ) -> impl Future<Output = Option<(Self::Stream, Self::Answerer)>> + Send;
}

/// Lets everybody in who reaches the address.
#[derive(Debug, Clone)]
pub struct Open<A>(pub A);

impl<A: Answerer> Door for Open<A> {
    type Stream = TcpStream;
    type Answerer = A;

    fn admit(&self, stream: TcpStream, _: IpAddr) -> impl Future<Output = Option<(TcpStream, A)>> + Send {
        ready(Some((stream, self.0.clone())))
    }
}
