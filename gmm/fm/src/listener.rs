//! Serves the FM API on TCP: one address for each switch, a task for each connection.
//!
//! ```text
//!   let in (the caller's door) --> read --> reassemble --> answer (the manager's thread) --> packets --> one write
//! ```
//!
//! A connection's requests are answered one after the other in the order they came, so what it occupies is bounded: one
//! message coming in, one going out. While its client does not read, nothing more is read from it, and after
//! [`FmConfig::read_within`] it is closed. So are those that ask nothing for [`FmConfig::idle_within`], those that send
//! anything but MCTP, and, when there are too many, the one that has been silent longest or else the newest.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::answer::{self, MESSAGE_MAX, Session};
use super::control::Endpoint;
use super::door::{Answerer, Door};
use super::header::{Dialect, ReturnCode};
use super::mctp::{Message, PacketError, Packetizer, Reassembler, TYPE_CCI, TYPE_CONTROL, TYPE_FM_API};
use super::places::Places;
use super::settings::{Kept, Settings};

/// Connections served at a time unless told otherwise.
pub const CONNECTIONS_DEFAULT: usize = 1024;
/// Most switches of one manager: as many as it takes for all its compute nodes.
pub const SWITCHES_MAX: u16 = 128;
/// How long an answer may take unless told otherwise; the client is then asked to try again. Clients wait about 100 ms.
pub const ANSWER_WITHIN_DEFAULT: Duration = Duration::from_millis(40);
/// How long a client may take to read a response unless told otherwise.
pub const READ_WITHIN_DEFAULT: Duration = Duration::from_secs(5);
/// How long a client may ask nothing unless told otherwise.
pub const IDLE_WITHIN_DEFAULT: Duration = Duration::from_secs(300);
/// How long a client may take to show who it is.
pub const ADMIT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may pause within a message.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Broken messages in a row after which a connection is closed.
const FAULTS_MAX: u32 = 32;
/// Bytes read at once.
const READ_BYTES: usize = 64 * super::mctp::PACKET_BYTES;
/// Bytes of responses the kernel keeps for a client that does not read.
const SEND_BUFFER_BYTES: usize = 256 << 10;
/// Pause after accepting failed, for want of file descriptors for instance.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How to serve the FM API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FmConfig {
    /// Address of the first switch; the others are at the ports behind it. With port 0 each takes a free one.
    pub listen: SocketAddr,
    /// Switches, 1 to [`SWITCHES_MAX`].
    pub switches: u16,
    /// How headers are written.
    pub dialect: Dialect,
    /// Connections served at a time, over all switches; for more, silent ones are closed, or else the new ones.
    pub connections_max: usize,
    /// How long an answer may take.
    pub answer_within: Duration,
    /// How long a client may take to read a response before its connection is closed.
    pub read_within: Duration,
    /// How long a client may ask nothing before its connection is closed.
    pub idle_within: Duration,
    /// The number of the fabric, of which each switch's UUID is made.
    pub fabric: u64,
}

impl FmConfig {
    /// One switch at `listen`, the rest as usual.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            switches: 1,
            dialect: Dialect::default(),
            connections_max: CONNECTIONS_DEFAULT,
            answer_within: ANSWER_WITHIN_DEFAULT,
            read_within: READ_WITHIN_DEFAULT,
            idle_within: IDLE_WITHIN_DEFAULT,
            fabric: 0,
        }
    }
}

/// Why the FM API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum FmListenError {
    /// An address.
    #[error(
        "cannot listen on {address} for FM API clients of switch {switch}: {source}; give another address with --fm-listen"
    )]
    Listen {
        /// Where to.
        address: SocketAddr,
        /// For which switch.
        switch: u16,
        /// What the system said.
        source: std::io::Error,
    },
    /// The ports run out.
    #[error(
        "{switches} switches do not fit from port {port} on: give a lower one with --fm-listen, or fewer with --fm-switches"
    )]
    Ports {
        /// The first.
        port: u16,
        /// How many.
        switches: u16,
    },
}

/// The FM API being served, until this is dropped: listeners and connections are closed with it.
#[derive(Debug)]
pub struct FmListener {
    addresses: Vec<SocketAddr>,
    switches: JoinSet<()>,
}

impl FmListener {
    /// Listens for every switch, for clients that `door` lets in. When this returns, clients can connect.
    ///
    /// # Errors
    /// [`FmListenError`], with nothing left listening.
    pub async fn start(config: FmConfig, door: impl Door) -> Result<Self, FmListenError> {
        let mut listeners = Vec::new();
        for switch in 0..config.switches {
            let port = match config.listen.port() {
                0 => Some(0),
                port => port.checked_add(switch),
            };
            let ports = FmListenError::Ports { port: config.listen.port(), switches: config.switches };
            let address = SocketAddr::new(config.listen.ip(), port.ok_or(ports)?);
            let listen = |source| FmListenError::Listen { address, switch, source };
            listeners.push(TcpListener::bind(address).await.map_err(listen)?);
        }
        let addresses: Result<Vec<_>, _> = listeners.iter().map(TcpListener::local_addr).collect();
        let listen = |source| FmListenError::Listen { address: config.listen, switch: 0, source };
        let addresses = addresses.map_err(listen)?;
        let places = Arc::new(Mutex::new(Places::new(config.connections_max)));
        let kept = Arc::default();
        let config = Arc::new(config);
        let mut switches = JoinSet::new();
        for (switch, listener) in (0..).zip(listeners) {
            let entrance = Entrance {
                switch,
                door: door.clone(),
                config: Arc::clone(&config),
                places: Arc::clone(&places),
                kept: Arc::clone(&kept),
            };
            switches.spawn(entrance.serve(listener));
        }
        Ok(Self { addresses, switches })
    }

    /// The address of each switch, by number.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Serves for as long as this is polled.
    pub async fn serve(mut self) {
        while let Some(ended) = self.switches.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a switch of the FM API is served no more");
            }
        }
    }
}

/// Where clients of one switch come in.
#[derive(Clone)]
struct Entrance<D> {
    switch: u32,
    door: D,
    config: Arc<FmConfig>,
    places: Arc<Mutex<Places>>,
    kept: Arc<Mutex<Kept>>,
}

/// Locks what no one leaves half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection's place among those there may be, given back when dropped.
struct ClientSlot {
    number: u64,
    leave: Arc<Notify>,
    places: Arc<Mutex<Places>>,
}

impl ClientSlot {
    fn take(places: &Arc<Mutex<Places>>, peer: IpAddr) -> Option<Self> {
        let (number, leave) = lock(places).take(peer.to_canonical(), Instant::now())?;
        Some(Self { number, leave, places: Arc::clone(places) })
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        lock(&self.places).leave(self.number);
    }
}

impl<D: Door> Entrance<D> {
    async fn serve(self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            match listener.accept().await {
                Ok((stream, peer)) => match ClientSlot::take(&self.places, peer.ip()) {
                    Some(slot) => {
                        let served = self.clone().connection(stream, peer.ip(), slot);
                        connections.spawn(async move {
                            if let Err(error) = served.await {
                                tracing::info!(%peer, "FM API client closed: {error}");
                            }
                        });
                    }
                    None => tracing::warn!(%peer, "too many FM API clients: closed at once"),
                },
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an FM API client; trying again");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Serves one client until it leaves or has to be left.
    async fn connection(self, stream: TcpStream, peer: IpAddr, slot: ClientSlot) -> Result<(), Farewell> {
        prepare(&stream);
        let idle_within = self.config.idle_within;
        let admitted = tokio::select! {
            admitted = timeout(ADMIT_TIMEOUT, self.door.admit(stream, peer)) => admitted,
            () = slot.leave.notified() => return Err(Farewell::MadeRoom),
        };
        let Some((stream, answerer)) = admitted.ok().flatten() else { return Err(Farewell::NotLetIn) };
        let mut client = Conversation::new(self, answerer, stream, peer);
        let mut buffer = vec![0; READ_BYTES];
        loop {
            lock(&slot.places).silent(slot.number, Instant::now());
            let amid = client.reassembler.is_amid();
            let patience = if amid { MESSAGE_TIMEOUT.min(idle_within) } else { idle_within };
            let count = tokio::select! {
                read = timeout(patience, client.stream.read(&mut buffer)) => read,
                () = slot.leave.notified() => return Err(Farewell::MadeRoom),
            };
            let count = count.map_err(|_| match amid {
                true => Farewell::Unfinished(patience),
                false => Farewell::Idle(patience),
            })??;
            if count == 0 {
                return Ok(());
            }
            let mut bytes = &buffer[..count];
            while let Some(received) = client.reassembler.receive(&mut bytes) {
                lock(&slot.places).busy(slot.number);
                if let Some(response) = client.respond(received).await? {
                    let packets = client.packetizer.packets(&response);
                    let read_within = client.entrance.config.read_within;
                    let written = timeout(read_within, client.stream.write_all(&packets)).await;
                    written.map_err(|_| Farewell::DoesNotRead(read_within))??;
                }
            }
        }
    }
}

/// Why a connection is closed from this end.
#[derive(Debug, thiserror::Error)]
enum Farewell {
    #[error("{0}")]
    Broken(#[from] std::io::Error),
    #[error("it did not read its response within {0:?}")]
    DoesNotRead(Duration),
    #[error("it did not finish a message within {0:?}")]
    Unfinished(Duration),
    #[error("it asked nothing for {0:?}")]
    Idle(Duration),
    #[error("it was not let in: it showed no certificate of an FM client of this fabric")]
    NotLetIn,
    #[error("it may not ask any more: its certificate was revoked, or it has joined again")]
    NotWelcome,
    #[error("it was silent, and had to make room for another client; give more with --fm-connections-max")]
    MadeRoom,
    #[error("{FAULTS_MAX} broken messages in a row, the last: {0}")]
    Garbage(PacketError),
}

/// One connection's state.
struct Conversation<D: Door> {
    entrance: Entrance<D>,
    answerer: D::Answerer,
    peer: IpAddr,
    stream: D::Stream,
    reassembler: Reassembler,
    packetizer: Packetizer,
    endpoint: Endpoint,
    session: Session,
    /// Broken messages since the last good one.
    faults: u32,
}

impl<D: Door> Conversation<D> {
    fn new(entrance: Entrance<D>, answerer: D::Answerer, stream: D::Stream, peer: IpAddr) -> Self {
        let session = Session::new(entrance.config.dialect);
        let endpoint = Endpoint::of_switch(entrance.config.fabric, entrance.switch);
        let (reassembler, packetizer) = (Reassembler::new(MESSAGE_MAX), Packetizer::default());
        Self { entrance, answerer, peer, stream, reassembler, packetizer, endpoint, session, faults: 0 }
    }

    /// What was set at this end by its client, be it on another connection.
    fn take_over_settings(&mut self) -> Settings {
        let settings = lock(&self.entrance.kept).of(self.entrance.switch, self.peer);
        (self.endpoint.eid, self.session.response_limit) = (settings.eid, settings.response_limit);
        settings
    }

    fn keep_settings(&self, before: Settings) {
        let settings = Settings { eid: self.endpoint.eid, response_limit: self.session.response_limit };
        if settings != before {
            lock(&self.entrance.kept).set(self.entrance.switch, self.peer, settings);
        }
    }

    /// The response to what came, if it gets one.
    async fn respond(&mut self, received: Result<Message, PacketError>) -> Result<Option<Message>, Farewell> {
        if !self.answerer.is_welcome() {
            return Err(Farewell::NotWelcome);
        }
        let message = match received {
            Ok(message) => message,
            Err(error) => {
                tracing::debug!(switch = self.entrance.switch, "FM API: {error}");
                self.faults += 1;
                let PacketError::TooLong { start, .. } = &error else {
                    return if self.faults < FAULTS_MAX { Ok(None) } else { Err(Farewell::Garbage(error)) };
                };
                let refused =
                    answer::refuse(self.session.dialect, &start.body, ReturnCode::InvalidPayloadLength);
                return Ok(refused.filter(|_| is_fm(start.kind)).map(|body| reply(start, body)));
            }
        };
        self.faults = 0;
        let settings = self.take_over_settings();
        let body = match message.kind {
            TYPE_CONTROL => self.endpoint.answer(&message.body),
            kind if is_fm(kind) => self.ask(&message.body).await,
            kind => {
                tracing::debug!(
                    switch = self.entrance.switch,
                    "FM API: message type {kind:#04x} is none of these"
                );
                None
            }
        };
        self.keep_settings(settings);
        Ok(body.map(|body| reply(&message, body)))
    }

    async fn ask(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let asked = self.answerer.answer(self.entrance.switch, self.session, message.to_vec());
        let code = match timeout(self.entrance.config.answer_within, asked).await {
            Ok(Ok((session, response))) => {
                self.session = session;
                return response;
            }
            Ok(Err(code)) => code,
            Err(_) => ReturnCode::RetryRequired,
        };
        answer::refuse(self.session.dialect, message, code)
    }
}

fn is_fm(kind: u8) -> bool {
    matches!(kind, TYPE_FM_API | TYPE_CCI)
}

fn reply(request: &Message, body: Vec<u8>) -> Message {
    Message { envelope: request.envelope.back(), kind: request.kind, body }
}

/// Sets what helps; a connection works without.
fn prepare(stream: &TcpStream) {
    let keep_alive = setsockopt(stream, sockopt::KeepAlive, &true);
    let send_buffer = setsockopt(stream, sockopt::SndBuf, &SEND_BUFFER_BYTES);
    let set = keep_alive.and(send_buffer).map_err(std::io::Error::from).and(stream.set_nodelay(true));
    if let Err(error) = set {
        tracing::debug!(%error, "an option of an FM API connection cannot be set");
    }
}
