//! Sealed connection between the two sides of a move: Noise with the [ticket](super::ticket) as pre-shared key
//! (`NNpsk0`), over TCP or a Unix socket. Records carry either a message or bytes of QEMU's state.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cxloe_wire::session::NoisePrimitives;
use nix::sys::socket::{setsockopt, sockopt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use snow::{Builder, HandshakeState, StatelessTransportState};

use super::ticket::Ticket;

const NOISE: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// Maximum length of a record on the wire in bytes, given by Noise.
const SEALED_MAX: usize = 65535;
/// Number of bytes that sealing adds to a record.
const SEAL: usize = 16;
/// Maximum length of a record's content in bytes, without the byte for its kind.
pub const CONTENT_MAX: usize = SEALED_MAX - SEAL - 1;
/// Longest time for the peer's message in the handshake, however it is divided.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Longest time for which the peer may take nothing of what is sent; the guest may be stopped meanwhile.
const STALL_MAX: Duration = Duration::from_secs(10);
/// Silence in seconds after which TCP probes whether the peer's host is still there, the interval of the probes, and
/// their number.
const PROBES: (u32, u32, u32) = (15, 5, 6);

const MESSAGE: u8 = 1;
const STATE: u8 = 2;

#[derive(Debug)]
pub enum Record<'a> {
    /// A message, as JSON.
    Message(&'a [u8]),
    /// Bytes of QEMU's state.
    State(&'a [u8]),
}

/// A connected stream, over TCP or a Unix socket.
#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Tcp(stream) => Stream::Tcp(stream.try_clone()?),
            Stream::Unix(stream) => Stream::Unix(stream.try_clone()?),
        })
    }

    /// Limits the duration of each read; `None` removes the limit.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_read_limit(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(limit),
            Stream::Unix(stream) => stream.set_read_timeout(limit),
        }
    }

    /// Fills `buffer`, by the time `until` if there is one, however little the peer sends at a time.
    fn read_by(&mut self, mut buffer: &mut [u8], until: Option<Instant>) -> io::Result<()> {
        let Some(until) = until else { return self.read_exact(buffer) };
        let late =
            || io::Error::new(io::ErrorKind::TimedOut, "the other end has not sent its message in time");
        while !buffer.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(late());
            }
            self.set_read_limit(Some(left))?;
            match self.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => buffer = &mut buffer[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn shut_down(&self) {
        // Ignored: the connection may have ended already.
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(buffer),
            Stream::Unix(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The sending half of a connection.
pub struct SealedSender {
    stream: Stream,
    noise: Arc<StatelessTransportState>,
    next: u64,
    plain: Vec<u8>,
    sealed: Vec<u8>,
}

impl std::fmt::Debug for SealedSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealedSender").field("stream", &self.stream).finish_non_exhaustive()
    }
}

/// The receiving half of a connection.
pub struct SealedReceiver {
    stream: Stream,
    noise: Arc<StatelessTransportState>,
    next: u64,
    plain: Vec<u8>,
    sealed: Vec<u8>,
}

impl std::fmt::Debug for SealedReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealedReceiver").field("stream", &self.stream).finish_non_exhaustive()
    }
}

fn broken(error: snow::Error) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the tickets of the two sides differ, or it was changed on its way ({error})"),
    )
}

fn builder(ephemeral: [u8; 32], ticket: &Ticket) -> Result<Builder<'_>, snow::Error> {
    Builder::with_resolver(NOISE.parse()?, Box::new(NoisePrimitives { ephemeral })).psk(0, ticket.bytes())
}

/// Opens a connection as the side that has connected. `ephemeral` is random, and used for this connection alone.
///
/// # Errors
/// The kernel's error; [`io::ErrorKind::InvalidData`] if the tickets differ.
pub fn open(
    stream: Stream,
    ticket: &Ticket,
    ephemeral: [u8; 32],
) -> io::Result<(SealedSender, SealedReceiver)> {
    let mut state = builder(ephemeral, ticket).and_then(Builder::build_initiator).map_err(broken)?;
    let mut stream = ready(stream)?;
    send_handshake(&mut stream, &mut state)?;
    receive_handshake(&mut stream, &mut state, HANDSHAKE_MAX)?;
    halves(stream, state)
}

/// Opens a connection as the side that has accepted it.
///
/// # Errors
/// As [`open`].
pub fn accept(
    stream: Stream,
    ticket: &Ticket,
    ephemeral: [u8; 32],
) -> io::Result<(SealedSender, SealedReceiver)> {
    let mut state = builder(ephemeral, ticket).and_then(Builder::build_responder).map_err(broken)?;
    let mut stream = ready(stream)?;
    receive_handshake(&mut stream, &mut state, HANDSHAKE_MAX)?;
    send_handshake(&mut stream, &mut state)?;
    halves(stream, state)
}

fn ready(stream: Stream) -> io::Result<Stream> {
    match &stream {
        Stream::Tcp(stream) => {
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(STALL_MAX))?;
            // Without probes, a peer whose host has lost its power would be waited for without end.
            let (idle, interval, count) = PROBES;
            setsockopt(stream, sockopt::KeepAlive, &true)?;
            setsockopt(stream, sockopt::TcpKeepIdle, &idle)?;
            setsockopt(stream, sockopt::TcpKeepInterval, &interval)?;
            setsockopt(stream, sockopt::TcpKeepCount, &count)?;
        }
        Stream::Unix(stream) => stream.set_write_timeout(Some(STALL_MAX))?,
    }
    Ok(stream)
}

fn send_handshake(stream: &mut Stream, state: &mut HandshakeState) -> io::Result<()> {
    let mut message = [0; 256];
    let length = state.write_message(&[], &mut message[2..]).map_err(broken)?;
    message[..2].copy_from_slice(&(length as u16).to_be_bytes());
    stream.write_all(&message[..2 + length])
}

fn receive_handshake(stream: &mut Stream, state: &mut HandshakeState, limit: Duration) -> io::Result<()> {
    let until = Some(Instant::now() + limit);
    let mut length = [0; 2];
    stream.read_by(&mut length, until)?;
    let mut message = [0; 254];
    let length = usize::from(u16::from_be_bytes(length));
    let message = message.get_mut(..length).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "the other end is no `cn-agent vm` of this release")
    })?;
    stream.read_by(message, until)?;
    state.read_message(message, &mut [0; 256]).map_err(broken).map(drop)
}

fn halves(stream: Stream, state: HandshakeState) -> io::Result<(SealedSender, SealedReceiver)> {
    stream.set_read_limit(None)?;
    let noise = Arc::new(state.into_stateless_transport_mode().map_err(broken)?);
    let buffer = || Vec::with_capacity(SEALED_MAX);
    let sender = SealedSender {
        stream: stream.try_clone()?,
        noise: Arc::clone(&noise),
        next: 0,
        plain: buffer(),
        sealed: buffer(),
    };
    Ok((sender, SealedReceiver { stream, noise, next: 0, plain: buffer(), sealed: buffer() }))
}

impl SealedSender {
    /// Sends a message as JSON, in one record.
    ///
    /// # Errors
    /// The kernel's error.
    ///
    /// # Panics
    /// If the message has more than [`CONTENT_MAX`] bytes.
    pub fn message(&mut self, message: &impl Serialize) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        assert!(bytes.len() <= CONTENT_MAX, "a message fits one record");
        self.record(MESSAGE, &bytes)
    }

    /// Sends bytes of QEMU's state, in as many records as needed.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn state(&mut self, bytes: &[u8]) -> io::Result<()> {
        bytes.chunks(CONTENT_MAX).try_for_each(|part| self.record(STATE, part))
    }

    fn record(&mut self, kind: u8, content: &[u8]) -> io::Result<()> {
        self.plain.clear();
        self.plain.push(kind);
        self.plain.extend_from_slice(content);
        self.sealed.resize(2 + self.plain.len() + SEAL, 0);
        let sealed = self.noise.write_message(self.next, &self.plain, &mut self.sealed[2..]);
        let length = sealed.map_err(broken)?;
        self.next += 1;
        self.sealed[..2].copy_from_slice(&(length as u16).to_be_bytes());
        self.stream.write_all(&self.sealed[..2 + length]).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::new(io::ErrorKind::TimedOut, "the other end takes nothing any more")
            }
            _ => error,
        })
    }

    /// Ends the connection, for the peer and for this side's receiver.
    pub fn shut_down(&self) {
        self.stream.shut_down();
    }
}

impl SealedReceiver {
    /// Receives the next record; `None` at the end of the connection.
    ///
    /// # Errors
    /// The kernel's error; [`io::ErrorKind::InvalidData`] if the record was changed.
    pub fn record(&mut self) -> io::Result<Option<Record<'_>>> {
        self.record_by(None)
    }

    fn record_by(&mut self, until: Option<Instant>) -> io::Result<Option<Record<'_>>> {
        let mut length = [0; 2];
        match self.stream.read_by(&mut length, until) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let length = usize::from(u16::from_be_bytes(length));
        self.sealed.resize(length, 0);
        self.stream.read_by(&mut self.sealed, until)?;
        self.plain.resize(length, 0);
        // The number is part of the seal, so a record that is repeated or out of order is refused.
        let opened = self.noise.read_message(self.next, &self.sealed, &mut self.plain).map_err(broken)?;
        self.next += 1;
        match self.plain[..opened].split_first() {
            Some((&MESSAGE, content)) => Ok(Some(Record::Message(content))),
            Some((&STATE, content)) => Ok(Some(Record::State(content))),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a record of an unknown kind")),
        }
    }

    /// Receives a message, all of it within `limit`.
    ///
    /// # Errors
    /// The kernel's error, also for the end of the connection; [`io::ErrorKind::TimedOut`];
    /// [`io::ErrorKind::InvalidData`] for anything but a message of the type `T`.
    pub fn message<T: DeserializeOwned>(&mut self, limit: Duration) -> io::Result<T> {
        let message = match self.record_by(Some(Instant::now() + limit))? {
            Some(Record::Message(bytes)) => serde_json::from_slice(bytes).map_err(io::Error::from),
            Some(Record::State(_)) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "state before its time"))
            }
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        };
        self.stream.set_read_limit(None)?;
        message
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use nix::sys::socket::getsockopt;

    use super::*;
    use crate::migration::message::TargetMessage;

    const LIMIT: Duration = Duration::from_secs(20);

    type Opened = io::Result<(SealedSender, SealedReceiver)>;

    fn pair(there: Ticket) -> (Opened, Opened) {
        let (a, b) = UnixStream::pair().unwrap();
        let other = thread::spawn(move || accept(Stream::Unix(b), &there, [2; 32]));
        let here = open(Stream::Unix(a), &Ticket::of([9; 32]), [1; 32]);
        (here, other.join().unwrap())
    }

    #[test]
    fn records_arrive_in_order_and_sealed() {
        let (here, there) = pair(Ticket::of([9; 32]));
        let ((mut sender, _), (_, mut receiver)) = (here.unwrap(), there.unwrap());
        let state: Vec<u8> = (0..200_000_u32).map(|byte| byte as u8).collect();
        let expected = state.clone();
        let sending = thread::spawn(move || {
            sender.message(&TargetMessage::StateHere { bytes: 7 }).unwrap();
            sender.state(&state).unwrap();
            sender.message(&TargetMessage::Arrived).unwrap();
            sender.shut_down();
        });
        let first: TargetMessage = receiver.message(LIMIT).unwrap();
        assert_eq!(first, TargetMessage::StateHere { bytes: 7 });
        let mut got = Vec::new();
        loop {
            match receiver.record().unwrap() {
                Some(Record::State(bytes)) => got.extend_from_slice(bytes),
                Some(Record::Message(bytes)) => {
                    assert_eq!(bytes, br#""arrived""#);
                    break;
                }
                None => panic!("it ended early"),
            }
        }
        assert!(got == expected && receiver.record().unwrap().is_none());
        sending.join().unwrap();
    }

    #[test]
    fn a_peer_that_takes_nothing_is_given_up() {
        let (here, there) = pair(Ticket::of([9; 32]));
        let ((mut sender, _receiver), _there) = (here.unwrap(), there.unwrap());
        let Stream::Unix(stream) = &sender.stream else { unreachable!("the pair is of Unix sockets") };
        assert_eq!(stream.write_timeout().unwrap(), Some(STALL_MAX));
        stream.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
        let more_than_fits = vec![0; 16 << 20];
        let error = sender.state(&more_than_fits).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_host_that_has_lost_its_power_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        for stream in [stream, accepted] {
            let Stream::Tcp(stream) = ready(Stream::Tcp(stream)).unwrap() else {
                unreachable!("it is of TCP")
            };
            assert_eq!(stream.write_timeout().unwrap(), Some(STALL_MAX));
            assert!(getsockopt(&stream, sockopt::KeepAlive).unwrap());
            assert_eq!(getsockopt(&stream, sockopt::TcpKeepIdle).unwrap(), PROBES.0);
        }
    }

    #[test]
    fn a_peer_that_sends_byte_by_byte_does_not_hold_the_other_side() {
        let (here, mut there) = UnixStream::pair().unwrap();
        // Each byte comes long before the limit, and the last one after it.
        let dripping = thread::spawn(move || {
            let bytes = [0, 254].into_iter().chain([1; 254]);
            for byte in bytes {
                if there.write_all(&[byte]).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        let ticket = Ticket::of([9; 32]);
        let mut state = builder([2; 32], &ticket).and_then(Builder::build_responder).unwrap();
        let mut stream = Stream::Unix(here);
        let error = receive_handshake(&mut stream, &mut state, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(stream);
        dripping.join().unwrap();
    }

    #[test]
    fn another_ticket_is_refused_by_both_sides() {
        let (here, there) = pair(Ticket::of([8; 32]));
        assert!(there.unwrap_err().to_string().contains("the tickets of the two sides differ"));
        assert!(here.is_err());
    }

    #[test]
    fn a_changed_record_is_refused() {
        let (a, b) = UnixStream::pair().unwrap();
        let (c, d) = UnixStream::pair().unwrap();
        // Between the two sides, the last byte of the third record is changed.
        let mut relay = (b, c);
        let other = thread::spawn(move || {
            let (mut sender, _) = accept(Stream::Unix(d), &Ticket::of([9; 32]), [2; 32]).unwrap();
            sender.message(&TargetMessage::Arrived).unwrap();
        });
        let between = thread::spawn(move || {
            let pass = |from: &mut UnixStream, to: &mut UnixStream, change: u8| {
                let mut length = [0; 2];
                from.read_exact(&mut length).unwrap();
                let mut bytes = vec![0; usize::from(u16::from_be_bytes(length))];
                from.read_exact(&mut bytes).unwrap();
                *bytes.last_mut().unwrap() ^= change;
                to.write_all(&length).unwrap();
                to.write_all(&bytes).unwrap();
            };
            pass(&mut relay.0, &mut relay.1, 0);
            pass(&mut relay.1, &mut relay.0, 0);
            pass(&mut relay.1, &mut relay.0, 1);
        });
        let (_, mut receiver) = open(Stream::Unix(a), &Ticket::of([9; 32]), [1; 32]).unwrap();
        let error = receiver.message::<TargetMessage>(LIMIT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        other.join().unwrap();
        between.join().unwrap();
    }
}
