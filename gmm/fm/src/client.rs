//! Asks FM API endpoints, ours or others: one connection, one request at a time, typed by what is asked.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::answer::MESSAGE_MAX;
use super::bytes::{Payload, Reader, WrongLength};
use super::component::BackgroundStatus;
use super::header::{Category, Dialect, HEADER_BYTES, Header, ReturnCode};
use super::mctp::{Envelope, Message, PacketError, Packetizer, Reassembler, TYPE_FM_API};
use super::mld_port::{Tunnel, Tunnelled};
use super::opcode::{Effects, Opcode};

/// How long to wait for a connection, and for each response.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How often a component that asks for it is asked again.
const RETRIES: u32 = 4;
/// Pause before that.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Most bytes read at once.
const READ_BYTES: usize = 4096;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum FmClientError {
    /// No connection.
    #[error("no FM API endpoint at {address}: {source}; is it listening there (`gmm serve --fm-listen`)?")]
    Unreachable {
        /// Where.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The connection broke.
    #[error(
        "the connection to {address} broke while {asked} was asked: {source}; ask again, and where it asks for a certificate, have this client join (`gmm fm join`)"
    )]
    Broken {
        /// Where.
        address: String,
        /// What was asked.
        asked: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The component refused.
    #[error("{address} refused {asked}: {code}{}", hint(*code))]
    Refused {
        /// Where.
        address: String,
        /// What was asked.
        asked: String,
        /// Why.
        code: ReturnCode,
    },
    /// What came is no response.
    #[error(
        "{address} answered {asked} with something else: {reason}; does it speak the other dialect (--dialect)?"
    )]
    Protocol {
        /// Where.
        address: String,
        /// What was asked.
        asked: String,
        /// What is wrong with it.
        reason: String,
    },
}

fn hint(code: ReturnCode) -> &'static str {
    match code {
        ReturnCode::InvalidInput => {
            " (something that was given does not exist, is in use, or is out of range)"
        }
        ReturnCode::Unsupported => " (this component does not do that; see `gmm fm log`)",
        ReturnCode::Busy => {
            " (a background operation is under way: `gmm fm background` shows it, with --abort it ends)"
        }
        ReturnCode::RetryRequired => " (not in the present state; try again later)",
        ReturnCode::InvalidPayloadLength => " (the payload has the wrong length)",
        _ => "",
    }
}

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Its header.
    pub header: Header,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// Who is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipient {
    /// The switch itself.
    Switch,
    /// The device behind this port, through the tunnel.
    Device(u8),
}

/// What is spoken over with an endpoint: TCP, or TLS over it.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + std::fmt::Debug {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + std::fmt::Debug> ByteStream for S {}

/// A connection to an FM API endpoint.
#[derive(Debug)]
pub struct FmClient {
    address: String,
    stream: Box<dyn ByteStream>,
    dialect: Dialect,
    reassembler: Reassembler,
    packetizer: Packetizer,
    unread: Vec<u8>,
    tag: u8,
}

impl FmClient {
    /// Connects to `address`, as in `127.0.0.1:2508`.
    ///
    /// # Errors
    /// [`FmClientError::Unreachable`].
    pub async fn connect(address: &str, dialect: Dialect) -> Result<Self, FmClientError> {
        let unreachable = |source| FmClientError::Unreachable { address: address.to_owned(), source };
        let connected = timeout(PATIENCE, TcpStream::connect(address)).await;
        let stream = connected.unwrap_or_else(|_| Err(timed_out())).map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        Ok(Self::over(stream, address, dialect))
    }

    /// Asks over `stream`, which leads to `address`.
    pub fn over(stream: impl ByteStream + 'static, address: &str, dialect: Dialect) -> Self {
        let (reassembler, packetizer) = (Reassembler::new(MESSAGE_MAX), Packetizer::default());
        let (address, unread, stream) = (address.to_owned(), Vec::new(), Box::new(stream));
        Self { address, stream, dialect, reassembler, packetizer, unread, tag: 0 }
    }

    /// Asks for what `R` is, and asks again a few times if told to and doing it twice is as good as once.
    ///
    /// # Errors
    /// [`FmClientError`]; [`FmClientError::Refused`] with every return code but success and a started background operation.
    pub async fn ask<R: Payload>(
        &mut self,
        recipient: Recipient,
        opcode: Opcode,
        request: &impl Payload,
    ) -> Result<R, FmClientError> {
        self.ask_with(recipient, opcode, &request.to_bytes(), R::from_bytes).await
    }

    /// As [`Self::ask`], for payloads that take more than themselves to read and write.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub async fn ask_with<R>(
        &mut self,
        recipient: Recipient,
        opcode: Opcode,
        request: &[u8],
        read: impl Fn(&[u8]) -> Result<R, WrongLength>,
    ) -> Result<R, FmClientError> {
        let mut tries_left = RETRIES;
        loop {
            let response = self.send(recipient, opcode.number(), request).await?;
            let code = response.header.code;
            if code == ReturnCode::RetryRequired && tries_left > 0 && is_repeatable(opcode) {
                tries_left -= 1;
                sleep(RETRY_PAUSE).await;
                continue;
            }
            let asked = || asked(opcode.number());
            if !code.is_success() {
                return Err(FmClientError::Refused { address: self.address.clone(), asked: asked(), code });
            }
            // Where a command goes on in the background there is nothing to tell yet.
            return read(&response.payload).map_err(|error| FmClientError::Protocol {
                address: self.address.clone(),
                asked: asked(),
                reason: error.to_string(),
            });
        }
    }

    /// How the switch's background operation gets on, or went.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub async fn background(&mut self) -> Result<BackgroundStatus, FmClientError> {
        self.ask(Recipient::Switch, Opcode::BackgroundStatus, &()).await
    }

    /// Sends any bytes under any opcode and returns the response, whatever its return code.
    ///
    /// # Errors
    /// [`FmClientError`], but never `Refused` for `Recipient::Switch`; when the tunnel is refused, it is.
    pub async fn send(
        &mut self,
        recipient: Recipient,
        opcode: u16,
        payload: &[u8],
    ) -> Result<Response, FmClientError> {
        let Recipient::Device(port) = recipient else {
            let body = self.exchange(opcode, payload).await?;
            return self.response(opcode, &body);
        };
        let message = Header::request(self.tag, opcode, payload.len()).with(payload, self.dialect);
        let tunnel = Tunnel { port, target: 0, message }.to_bytes(self.dialect);
        let number = Opcode::Tunnel.number();
        let body = self.exchange(number, &tunnel).await?;
        let outer = self.response(number, &body)?;
        if !outer.header.code.is_success() {
            let asked = format!("the tunnel to port {port}");
            return Err(FmClientError::Refused {
                address: self.address.clone(),
                asked,
                code: outer.header.code,
            });
        }
        let inner = Tunnelled::from_bytes(&outer.payload, self.dialect);
        let inner = inner.map_err(|error| self.protocol(opcode, &error.to_string()))?;
        self.response(opcode, &inner.message)
    }

    fn protocol(&self, opcode: u16, reason: &str) -> FmClientError {
        let (address, reason) = (self.address.clone(), reason.to_owned());
        FmClientError::Protocol { address, asked: asked(opcode), reason }
    }

    /// Reads header and payload.
    fn response(&self, opcode: u16, body: &[u8]) -> Result<Response, FmClientError> {
        let header = Header::read(&mut Reader::new(body), self.dialect);
        let header = header.map_err(|_| self.protocol(opcode, "it has no header"))?;
        if header.category != Category::Response || header.opcode != opcode {
            return Err(self.protocol(opcode, "it is no response to it"));
        }
        let payload = body.get(HEADER_BYTES..HEADER_BYTES + header.length);
        let payload = payload.ok_or_else(|| self.protocol(opcode, "it is shorter than its header says"))?;
        Ok(Response { header, payload: payload.to_vec() })
    }

    /// Sends a request and waits for the message under its tag.
    async fn exchange(&mut self, opcode: u16, payload: &[u8]) -> Result<Vec<u8>, FmClientError> {
        self.tag = self.tag.wrapping_add(1) & 7;
        let body = Header::request(self.tag, opcode, payload.len()).with(payload, self.dialect);
        let message = Message { envelope: Envelope::request(self.tag), kind: TYPE_FM_API, body };
        let packets = self.packetizer.packets(&message);
        let exchanged = timeout(PATIENCE, async {
            self.stream.write_all(&packets).await?;
            self.receive().await
        });
        match exchanged.await.unwrap_or_else(|_| Err(timed_out())) {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(error)) => Err(self.protocol(opcode, &error.to_string())),
            Err(source) => {
                let (address, asked) = (self.address.clone(), asked(opcode));
                Err(FmClientError::Broken { address, asked, source })
            }
        }
    }

    async fn receive(&mut self) -> std::io::Result<Result<Vec<u8>, PacketError>> {
        loop {
            let mut bytes = self.unread.as_slice();
            let received = self.reassembler.receive(&mut bytes);
            let taken = self.unread.len() - bytes.len();
            self.unread.drain(..taken);
            match received {
                Some(Ok(message)) if message.kind == TYPE_FM_API && message.envelope.tag == self.tag => {
                    return Ok(Ok(message.body));
                }
                // The late answer to a request nobody waits for any more.
                Some(Ok(_)) => continue,
                Some(Err(error)) => return Ok(Err(error)),
                None => {}
            }
            let mut buffer = [0; READ_BYTES];
            let count = self.stream.read(&mut buffer).await?;
            if count == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            self.unread.extend_from_slice(&buffer[..count]);
        }
    }
}

/// Whether a command that may have been carried out, though it was not answered so, can be sent once more.
fn is_repeatable(opcode: Opcode) -> bool {
    let starts_something = opcode.effects().contains(Effects::BACKGROUND);
    !starts_something && !matches!(opcode, Opcode::InitiateDcAdd | Opcode::InitiateDcRelease)
}

fn asked(opcode: u16) -> String {
    match Opcode::from_number(opcode) {
        Some(known) => format!("{} ({opcode:04X}h)", known.name()),
        None => format!("command {opcode:04X}h"),
    }
}

fn timed_out() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::TimedOut, format!("nothing came for {PATIENCE:?}"))
}
