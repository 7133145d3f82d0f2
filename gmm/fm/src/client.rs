//! Client of FM API endpoints of this manager or of others: one connection, one request at a time, typed
//! responses.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::answer::MESSAGE_MAX;
use super::bytes::{Payload, Reader, WrongLength};
use super::component::BackgroundStatus;
use super::header::{Category, Dialect, HEADER_BYTES, Header, ReturnCode};
use super::mctp::{Envelope, MctpMessage, PacketError, Packetizer, Reassembler, TYPE_FM_API};
use super::mld_port::{Tunnel, Tunnelled};
use super::opcode::{Effects, Opcode};

/// Time-out of a connection attempt, and of each response.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of repetitions of a request whose response is Retry Required.
const RETRIES: u32 = 4;
const RETRY_PAUSE: Duration = Duration::from_millis(50);
const READ_BYTES: usize = 4096;

/// Reason why a request has no successful response. `address` is the endpoint's address as the caller gave it
/// (`HOST:PORT`), and `asked` is the name of the command.
#[derive(Debug, thiserror::Error)]
pub enum FmClientError {
    #[error("no FM API endpoint at {address}: {source}; is it listening there (`gmm serve --fm-listen`)?")]
    Unreachable { address: String, source: std::io::Error },
    #[error(
        "the connection to {address} broke while {asked} was asked: {source}; ask again, and where it asks for a certificate, have this client join (`gmm fm join`)"
    )]
    Broken { address: String, asked: String, source: std::io::Error },
    /// The component answered with a return code other than success.
    #[error("{address} refused {asked}: {code}{}", hint(*code))]
    Refused { address: String, asked: String, code: ReturnCode },
    /// The endpoint sent something other than a valid response to the request.
    #[error(
        "{address} answered {asked} with something else: {reason}; does it use the other dialect (--dialect)?"
    )]
    Protocol {
        address: String,
        asked: String,
        /// Defect of the response, as text.
        reason: String,
    },
}

fn hint(code: ReturnCode) -> &'static str {
    match code {
        ReturnCode::InvalidInput => {
            " (something that was given does not exist, is in use, or is out of range; the manager's log names a wrong port; `gmm list -LPi` shows which memory node and which LD are at which port)"
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

/// Response with any return code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Header of the response, which contains the return code.
    pub header: Header,
    /// Payload of the response; empty for most errors.
    pub payload: Vec<u8>,
}

/// The component that a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipient {
    /// The switch that the connection leads to.
    Switch,
    /// The device behind this port of the switch; the request goes through the tunnel (5300h).
    Device(u8),
}

/// Byte stream to an endpoint: TCP, or TLS over TCP.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + std::fmt::Debug {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + std::fmt::Debug> ByteStream for S {}

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
    /// Connects over TCP without TLS to `address`, as in `127.0.0.1:2508`.
    ///
    /// # Errors
    /// [`FmClientError::Unreachable`] if no endpoint accepts the connection in time.
    pub async fn connect(address: &str, dialect: Dialect) -> Result<Self, FmClientError> {
        let unreachable = |source| FmClientError::Unreachable { address: address.to_owned(), source };
        let connected = timeout(ANSWER_TIMEOUT, TcpStream::connect(address)).await;
        let stream = connected.unwrap_or_else(|_| Err(timed_out())).map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        Ok(Self::over(stream, address, dialect))
    }

    /// Creates a client over `stream`, which is connected to `address`.
    pub fn over(stream: impl ByteStream + 'static, address: &str, dialect: Dialect) -> Self {
        let (reassembler, packetizer) = (Reassembler::new(MESSAGE_MAX), Packetizer::default());
        let (address, unread, stream) = (address.to_owned(), Vec::new(), Box::new(stream));
        Self { address, stream, dialect, reassembler, packetizer, unread, tag: 0 }
    }

    /// Sends a request with a response of type `R`. If the return code is Retry Required and a repetition is
    /// safe, repeats the request a few times.
    ///
    /// # Errors
    /// [`FmClientError`]; [`FmClientError::Refused`] for every return code other than success and a started background
    /// operation.
    pub async fn ask<R: Payload>(
        &mut self,
        recipient: Recipient,
        opcode: Opcode,
        request: &impl Payload,
    ) -> Result<R, FmClientError> {
        self.ask_with(recipient, opcode, &request.to_bytes(), R::from_bytes).await
    }

    /// Sends a request as [`Self::ask`] does, for payloads whose encoding depends on the dialect.
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
            // The payload is empty while the command continues in the background.
            return read(&response.payload).map_err(|error| FmClientError::Protocol {
                address: self.address.clone(),
                asked: asked(),
                reason: error.to_string(),
            });
        }
    }

    /// Returns the status of the switch's present or latest background operation.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub async fn background(&mut self) -> Result<BackgroundStatus, FmClientError> {
        self.ask(Recipient::Switch, Opcode::BackgroundStatus, &()).await
    }

    /// Sends any bytes under any opcode. Returns the response, whatever its return code.
    ///
    /// # Errors
    /// [`FmClientError`]; `Refused` only if the tunnel to a device is refused.
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

    /// Splits a response into header and payload, and checks that they belong to the request.
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

    /// Sends a request, and waits for the response, which has the same tag.
    async fn exchange(&mut self, opcode: u16, payload: &[u8]) -> Result<Vec<u8>, FmClientError> {
        self.tag = self.tag.wrapping_add(1) & 7;
        let body = Header::request(self.tag, opcode, payload.len()).with(payload, self.dialect);
        let message = MctpMessage { envelope: Envelope::request(self.tag), kind: TYPE_FM_API, body };
        let packets = self.packetizer.packets(&message);
        let exchanged = timeout(ANSWER_TIMEOUT, async {
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
                // This is a late response to an earlier request, which has timed out.
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

/// Returns true if a command that was answered with Retry Required can safely be sent again, although the first request
/// may have been carried out.
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
    std::io::Error::new(std::io::ErrorKind::TimedOut, format!("no answer within {ANSWER_TIMEOUT:?}"))
}
