//! Server of the FM API on TCP: one address for each switch, a task for each connection.
//!
//! ```text
//!   admit (the caller's authenticator)  --> read --> reassemble --> answer (the manager's thread) --> packets --> one write
//! ```
//!
//! The requests of a connection are answered in sequence, so its memory is bounded: one message being received, one
//! being sent. While a client does not read its response, the server reads nothing more from it, and closes the
//! connection after [`FmConfig::read_within`]. The server also closes connections without requests for
//! [`FmConfig::idle_within`], and connections that send anything but MCTP. If there are too many connections, it closes
//! the one that has been silent longest, or else the newest one.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::answer::{self, ClientAgreements, MESSAGE_MAX};
use super::authenticator::{Answerer, Authenticator};
use super::connection_permits::ConnectionPermits;
use super::control::Endpoint;
use super::header::{Dialect, ReturnCode, TAG_AT};
use super::mctp::{MctpMessage, PacketError, Packetizer, Reassembler, TYPE_CCI, TYPE_CONTROL, TYPE_FM_API};
use super::settings::{ClientSettings, SettingsStore};

/// Default limit of simultaneous connections.
pub const CONNECTIONS_DEFAULT: usize = 1024;
/// Maximum number of switches of one manager: enough for all its compute nodes.
pub const SWITCHES_MAX: u16 = 128;
/// Default time-out of an answer, after which the client is asked to repeat the request. Clients wait about 100 ms.
pub(crate) const ANSWER_WITHIN_DEFAULT: Duration = Duration::from_millis(40);
/// Time within which a request that was answered too late may be repeated for its result.
const REPEAT_WITHIN: Duration = Duration::from_secs(10);
/// Default time-out for a client to read its response.
pub(crate) const READ_WITHIN_DEFAULT: Duration = Duration::from_secs(5);
/// Default time after which a connection without requests is closed.
pub(crate) const IDLE_WITHIN_DEFAULT: Duration = Duration::from_secs(300);
/// Time-out for the admission of a client.
pub(crate) const ADMIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum pause of a client within a message.
pub(crate) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of consecutive malformed messages after which a connection is closed.
const FAULTS_MAX: u32 = 32;
const READ_BYTES: usize = 64 * super::mctp::PACKET_BYTES;
/// Size of the kernel's send buffer per connection, in bytes. It holds responses that a client has not read
/// yet.
const SEND_BUFFER_BYTES: usize = 256 << 10;
/// Pause after a failed accept, for example for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FmConfig {
    /// Address of the first switch; the other switches have the following ports. With port 0, each switch gets a free
    /// port.
    pub listen: SocketAddr,
    /// Number of switches, 1 to [`SWITCHES_MAX`].
    pub switches: u16,
    /// Layout of the headers of all clients.
    pub dialect: Dialect,
    /// Maximum number of connections at a time, over all switches. If a client exceeds it, a silent connection is
    /// closed, or else the new one.
    pub connections_max: usize,
    /// Time-out of an answer, after which the client is asked to repeat the request.
    pub answer_within: Duration,
    /// Time-out for a client to read a response, after which its connection is closed.
    pub read_within: Duration,
    /// Time after which a connection without requests is closed.
    pub idle_within: Duration,
    /// Number of the fabric, from which each switch's UUID is derived.
    pub fabric: u64,
}

impl FmConfig {
    /// Returns a configuration with one switch at `listen`, and defaults otherwise.
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

/// Reason why the FM API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum FmListenError {
    #[error(
        "cannot listen on {address} for FM API clients of switch {switch}: {source}; give another address with --fm-listen"
    )]
    Listen {
        address: SocketAddr,
        /// Number of the switch, from 0.
        switch: u16,
        source: std::io::Error,
    },
    /// The port of the last switch would be above 65535.
    #[error(
        "{switches} switches do not fit from port {port} on: give a lower one with --fm-listen, or fewer with --fm-switches"
    )]
    Ports {
        /// TCP port of the first switch.
        port: u16,
        /// Number of switches, each of which needs a port.
        switches: u16,
    },
}

/// Running FM API server. When it is dropped, all listeners and connections close.
#[derive(Debug)]
pub struct FmListener {
    addresses: Vec<SocketAddr>,
    switches: JoinSet<()>,
}

impl FmListener {
    /// Listens for every switch. Clients that `authenticator` admits can connect when this returns.
    ///
    /// # Errors
    /// [`FmListenError`]; no address is then listened on.
    pub async fn start(config: FmConfig, authenticator: impl Authenticator) -> Result<Self, FmListenError> {
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
        let places = Arc::new(Mutex::new(ConnectionPermits::new(config.connections_max)));
        let kept = Arc::default();
        let config = Arc::new(config);
        let mut switches = JoinSet::new();
        for (switch, listener) in (0..).zip(listeners) {
            let entrance = ListenerContext {
                switch,
                authenticator: authenticator.clone(),
                config: Arc::clone(&config),
                places: Arc::clone(&places),
                kept: Arc::clone(&kept),
            };
            switches.spawn(entrance.serve(listener));
        }
        Ok(Self { addresses, switches })
    }

    /// Returns the listen address of each switch, by the switch's number.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Accepts and serves clients as long as the future is polled.
    pub async fn serve(mut self) {
        while let Some(ended) = self.switches.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a switch of the FM API is served no more");
            }
        }
    }
}

#[derive(Clone)]
struct ListenerContext<D> {
    switch: u32,
    authenticator: D,
    config: Arc<FmConfig>,
    places: Arc<Mutex<ConnectionPermits>>,
    kept: Arc<Mutex<SettingsStore>>,
}

/// Locks data that stays consistent even if a thread panics while it holds the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Permit of one connection. It is freed when this value is dropped.
struct ClientSlot {
    number: u64,
    leave: Arc<Notify>,
    places: Arc<Mutex<ConnectionPermits>>,
}

impl ClientSlot {
    fn take(places: &Arc<Mutex<ConnectionPermits>>, peer: IpAddr) -> Option<Self> {
        let (number, leave) = lock(places).take(peer.to_canonical(), Instant::now())?;
        Some(Self { number, leave, places: Arc::clone(places) })
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        lock(&self.places).leave(self.number);
    }
}

impl<D: Authenticator> ListenerContext<D> {
    async fn serve(self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            // The results of connections that have ended are removed, so that they do not accumulate.
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

    /// Serves one client until it disconnects or the server has to close the connection.
    async fn connection(self, stream: TcpStream, peer: IpAddr, slot: ClientSlot) -> Result<(), CloseReason> {
        prepare(&stream);
        let idle_within = self.config.idle_within;
        let admitted = tokio::select! {
            admitted = timeout(ADMIT_TIMEOUT, self.authenticator.authenticate(stream, peer)) => admitted,
            () = slot.leave.notified() => return Err(CloseReason::MadeRoom),
        };
        let Some((stream, answerer)) = admitted.ok().flatten() else { return Err(CloseReason::NotLetIn) };
        let mut client = Conversation::new(self, answerer, stream, peer);
        let mut buffer = vec![0; READ_BYTES];
        loop {
            lock(&slot.places).silent(slot.number, Instant::now());
            let amid = client.reassembler.is_incomplete();
            let wait_limit = if amid { MESSAGE_TIMEOUT.min(idle_within) } else { idle_within };
            let count = tokio::select! {
                read = timeout(wait_limit, client.stream.read(&mut buffer)) => read,
                () = slot.leave.notified() => return Err(CloseReason::MadeRoom),
            };
            let count = count.map_err(|_| match amid {
                true => CloseReason::Unfinished(wait_limit),
                false => CloseReason::Idle(wait_limit),
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
                    written.map_err(|_| CloseReason::DoesNotRead(read_within))??;
                }
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum CloseReason {
    #[error("{0}")]
    Broken(#[from] std::io::Error),
    #[error("it did not read its response within {0:?}")]
    DoesNotRead(Duration),
    #[error("it did not finish a message within {0:?}")]
    Unfinished(Duration),
    #[error("it sent no request for {0:?}")]
    Idle(Duration),
    #[error("it was refused: it has no certificate of an FM client of this fabric")]
    NotLetIn,
    #[error("it is no longer authorized: its certificate was revoked, or it has joined again")]
    NotWelcome,
    #[error("it was idle, and its connection was needed for another client; raise --fm-connections-max")]
    MadeRoom,
    #[error("{FAULTS_MAX} broken messages in a row, the last: {0}")]
    Garbage(PacketError),
}

struct Conversation<D: Authenticator> {
    entrance: ListenerContext<D>,
    answerer: D::Answerer,
    peer: IpAddr,
    stream: D::Stream,
    reassembler: Reassembler,
    packetizer: Packetizer,
    endpoint: Endpoint,
    session: ClientAgreements,
    /// Number of malformed messages since the last well-formed one.
    faults: u32,
    late: Option<LateAnswer>,
}

type Answering =
    Pin<Box<dyn Future<Output = Result<(ClientAgreements, Option<Vec<u8>>), ReturnCode>> + Send>>;

/// Answer to the last request, which the client was asked to repeat. The manager carries the request out all the same, so
/// a repetition gets this answer, and is not carried out once more.
struct LateAnswer {
    /// The request with tag 0: a repetition may have another tag.
    request: Vec<u8>,
    since: Instant,
    answering: Answering,
}

impl<D: Authenticator> Conversation<D> {
    fn new(entrance: ListenerContext<D>, answerer: D::Answerer, stream: D::Stream, peer: IpAddr) -> Self {
        let session = ClientAgreements::new(entrance.config.dialect);
        let endpoint = Endpoint::of_switch(entrance.config.fabric, entrance.switch);
        let (reassembler, packetizer) = (Reassembler::new(MESSAGE_MAX), Packetizer::default());
        Self {
            entrance,
            answerer,
            peer,
            stream,
            reassembler,
            packetizer,
            endpoint,
            session,
            faults: 0,
            late: None,
        }
    }

    /// Applies the settings that clients at this address have made, over this connection or others.
    fn take_over_settings(&mut self) -> ClientSettings {
        let settings = lock(&self.entrance.kept).of(self.entrance.switch, self.peer);
        (self.endpoint.eid, self.session.response_limit) = (settings.eid, settings.response_limit);
        settings
    }

    fn keep_settings(&self, before: ClientSettings) {
        let settings = ClientSettings { eid: self.endpoint.eid, response_limit: self.session.response_limit };
        if settings != before {
            lock(&self.entrance.kept).set(self.entrance.switch, self.peer, settings);
        }
    }

    /// Returns the response to a received message; `None` if the message has none.
    async fn respond(
        &mut self,
        received: Result<MctpMessage, PacketError>,
    ) -> Result<Option<MctpMessage>, CloseReason> {
        if !self.answerer.is_authorized() {
            return Err(CloseReason::NotWelcome);
        }
        let message = match received {
            Ok(message) => message,
            Err(error) => {
                tracing::debug!(switch = self.entrance.switch, "FM API: {error}");
                self.faults += 1;
                let PacketError::TooLong { start, .. } = &error else {
                    return if self.faults < FAULTS_MAX {
                        Ok(None)
                    } else {
                        Err(CloseReason::Garbage(error))
                    };
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
        let request = with_tag(message.to_vec(), 0);
        let late = self.late.take();
        let late = late.filter(|late| late.request == request && late.since.elapsed() < REPEAT_WITHIN);
        let (since, mut answering) = match late {
            Some(late) => (late.since, late.answering),
            None => (Instant::now(), self.begin(message.to_vec())),
        };
        let code = match timeout(self.entrance.config.answer_within, &mut answering).await {
            Ok(Ok((session, response))) => {
                self.session = session;
                let tag = message.get(TAG_AT).copied().unwrap_or(0);
                return response.map(|response| with_tag(response, tag));
            }
            Ok(Err(code)) => code,
            // The manager is busy: the client is asked to repeat the request.
            Err(_) => {
                self.late = Some(LateAnswer { request, since, answering });
                ReturnCode::RetryRequired
            }
        };
        answer::refuse(self.session.dialect, message, code)
    }

    fn begin(&self, message: Vec<u8>) -> Answering {
        let (answerer, switch, session) = (self.answerer.clone(), self.entrance.switch, self.session);
        Box::pin(async move { answerer.answer(switch, session, message).await })
    }
}

/// Returns the message with this tag in its header.
fn with_tag(mut message: Vec<u8>, tag: u8) -> Vec<u8> {
    if let Some(place) = message.get_mut(TAG_AT) {
        *place = tag;
    }
    message
}

fn is_fm(kind: u8) -> bool {
    matches!(kind, TYPE_FM_API | TYPE_CCI)
}

fn reply(request: &MctpMessage, body: Vec<u8>) -> MctpMessage {
    MctpMessage { envelope: request.envelope.back(), kind: request.kind, body }
}

/// Sets options of the socket. A failure is ignored, because the connection works without them.
fn prepare(stream: &TcpStream) {
    let keep_alive = setsockopt(stream, sockopt::KeepAlive, &true);
    let send_buffer = setsockopt(stream, sockopt::SndBuf, &SEND_BUFFER_BYTES);
    let set = keep_alive.and(send_buffer).map_err(std::io::Error::from).and(stream.set_nodelay(true));
    if let Err(error) = set {
        tracing::debug!(%error, "an option of an FM API connection cannot be set");
    }
}
