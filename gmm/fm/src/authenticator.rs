//! Admission of clients to the FM API. The server decides on the admission before it reads the first byte of
//! MCTP, and checks for each message that the client still has access.
//!
//! ```text
//!   accept --> Authenticator: who is it? --> Answerer of that client --> is it still welcome? --> answer
//! ```

use std::future::{Future, ready};
use std::net::IpAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::answer::ClientAgreements;
use super::header::ReturnCode;

/// Answers the messages of one client. The manager implements it, and answers in its own thread.
pub trait Answerer: Clone + Send + Sync + 'static {
    /// Answers a message (header and payload) to a switch. Returns the client's settings after the message, and the
    /// response, or `None` if the message has no response. `Err`: the return code for a message that cannot be answered
    /// at present.
    fn answer(
        &self,
        switch: u32,
        session: ClientAgreements,
        message: Vec<u8>,
    ) -> impl Future<Output = Result<(ClientAgreements, Option<Vec<u8>>), ReturnCode>> + Send;

    /// Returns true while the client has access; otherwise its connection is closed.
    fn is_authorized(&self) -> bool {
        true
    }
}

/// Decides on the admission of clients to the FM API.
pub trait Authenticator: Clone + Send + Sync + 'static {
    /// Type of the byte stream to an admitted client, such as TLS over TCP.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Type that answers the messages of an admitted client.
    type Answerer: Answerer;

    /// Admits the client that has connected from `peer`. `None`: the connection is closed without an answer.
    fn authenticate(
        &self,
        stream: TcpStream,
        peer: IpAddr,
    ) -> impl Future<Output = Option<(Self::Stream, Self::Answerer)>> + Send;
}

/// Admits every client that can connect to the address.
#[derive(Debug, Clone)]
pub struct Open<A>(pub A);

impl<A: Answerer> Authenticator for Open<A> {
    type Stream = TcpStream;
    type Answerer = A;

    fn authenticate(
        &self,
        stream: TcpStream,
        _: IpAddr,
    ) -> impl Future<Output = Option<(TcpStream, A)>> + Send {
        ready(Some((stream, self.0.clone())))
    }
}
