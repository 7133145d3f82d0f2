//! Carries out the orders of one worker, one after the other, as a requester of the other memory node. It asks for few
//! pages at a time, so that requests of compute nodes wait for little at both nodes, and rests while the other node's
//! receive queue is long.
//!
//! ```text
//!                 take            session with the right pool              all lines written
//!   no order ------------> calling ------------------> reading, writing --------------------> no order
//!                             ^                          |        |
//!                             '------- no answer --------'        '-- refused: rests, then from the first line
//! ```
//!
//! An order whose source does not answer for long gives way to one with another source.

use std::sync::Arc;
use std::time::Duration;

use cxloe_fabric::model::{FillCmem, FillSource};
use cxloe_wire::Transmit;
use cxloe_wire::frame::{FaultStatus, LINE_SIZE, Mac, PAGE_LINES, PfcVector};
use cxloe_wire::machine::{Deadline, StateMachine};
use cxloe_wire::session::{
    Completions, HandshakeDone, HandshakeJob, Identity, KeyPair, OpError, Requester, RequesterConfig,
    ResponderConfig, SessionEvent, Timing,
};
use cxloe_wire::time::Time;

use super::board::FillBoard;

/// Bytes asked for and not received from which on no more are asked for: four pages. On a line of 10 Gbit/s, another
/// station's frame waits at most 17 us behind them.
const IN_FLIGHT_MAX: u64 = 4 * (PAGE_LINES * LINE_SIZE) as u64;
/// Rest after a signal that the other node's receive queue is long. The signal is repeated while the queue stays long.
const CONGESTION_REST: Duration = Duration::from_millis(2);
/// Rest after the transmit ring was full.
const FULL_RING_REST: Duration = Duration::from_micros(100);
/// Rest after a refused request or line: a mapping has changed, and the manager's next list of orders follows.
const REFUSAL_REST: Duration = Duration::from_secs(1);
/// Time without a session with the right pool after which an order with another source goes first. It begins from its
/// first line later, so this is longer than a restart of the other node takes.
const SOURCE_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes copied between two reports to the board.
const REPORT_BYTES: u64 = 4 << 20;
/// Number of the low bits of a token that are the number of a line; the others are the number of the attempt.
const TOKEN_LINE_BITS: u32 = 44;

/// Memory of this node, written through the page table.
pub(crate) trait FillMemory {
    /// Writes whole lines at CMem byte address `addr` of CN id `cn`, all in one page.
    fn fill(&mut self, cn: u64, addr: u64, data: &[u8]) -> Result<(), FaultStatus>;
}

/// Settings for the copies of one worker.
#[derive(Clone, Copy, Debug)]
pub struct FillerSettings {
    /// Number of the worker.
    pub worker: u32,
    /// Random number drawn when the process starts.
    pub instance: u64,
    /// Real-time clock at [`Time::ZERO`], in nanoseconds since the Unix epoch.
    pub epoch_ns: u64,
}

/// Copier of one worker.
pub(crate) struct Filler {
    /// Addresses, keys and frame length, which the sessions for copies share with those of compute nodes.
    config: ResponderConfig,
    settings: FillerSettings,
    board: Arc<FillBoard>,
    /// Value of [`FillBoard::changes`] at the last look at the orders; `None` before the first.
    followed: Option<u64>,
    /// Set if there was any order at the last look.
    has_orders: bool,
    /// Number of requesters made.
    requesters: u64,
    active: Option<Active>,
}

/// Order that is carried out, and the session for it.
struct Active {
    requester: Requester,
    /// Number of the requester, by which results of handshakes find it.
    number: u64,
    fill: Fill,
    /// Time since which the source cannot be read, or since another order was looked for because of that; `None` while
    /// it can.
    waits_since: Option<Time>,
}

/// Progress with an order.
struct Fill {
    order: Arc<FillCmem>,
    bytes: u64,
    /// Bytes asked for; never less than `done`.
    asked: u64,
    /// Bytes received and written.
    done: u64,
    /// Value of `done` in the last report to the board.
    reported: u64,
    /// Number of the attempt: answers to requests of an earlier attempt are not used.
    attempt: u64,
    rest_until: Time,
    /// Set after the first refusal, which alone is logged.
    refused: bool,
}

impl Fill {
    fn new(order: Arc<FillCmem>, attempt: u64) -> Self {
        let bytes = order.mapping.bytes();
        let (asked, done, reported) = (0, 0, 0);
        Fill { order, bytes, asked, done, reported, attempt, rest_until: Time::ZERO, refused: false }
    }

    fn token(&self, at: u64) -> u64 {
        (self.attempt << TOKEN_LINE_BITS) | (at / LINE_SIZE as u64)
    }

    /// Whether a request of the present attempt has this token.
    fn is_of_attempt(&self, token: u64) -> bool {
        (token ^ self.token(0)) >> TOKEN_LINE_BITS == 0
    }

    /// Gives up the requests under way; the next ones continue at the first line not written.
    fn ask_again(&mut self) {
        self.attempt += 1;
        self.asked = self.done;
    }

    #[cold]
    fn begin_again(&mut self, status: FaultStatus, now: Time) {
        self.done = 0;
        self.ask_again();
        self.rest_until = now + REFUSAL_REST;
        if !std::mem::replace(&mut self.refused, true) {
            let (region, source) = (&self.order.mapping.region, &self.order.source.memory_node);
            tracing::info!(%region, %source, %status, "a copy was refused; it begins again");
        }
    }

    /// Whether the other end of the session has the content. A pool of another incarnation does not have it; the manager
    /// then withdraws the order.
    fn has_content(&self, requester: &Requester) -> bool {
        requester.is_open() && requester.incarnation() == Some(self.order.source.incarnation)
    }

    /// Whether more may be asked for in the present session, once the rest is over.
    fn can_ask(&self, requester: &Requester) -> bool {
        let more = self.asked < self.bytes && self.asked - self.done < IN_FLIGHT_MAX;
        more && self.has_content(requester)
    }

    /// Asks for the next lines, as many as may be under way.
    fn ask(&mut self, requester: &mut Requester, now: Time, tx: &mut dyn Transmit) {
        while now >= self.rest_until && self.can_ask(requester) {
            let line = (self.asked / LINE_SIZE as u64) as usize;
            let lines = requester.burst_read_lines_max().min(PAGE_LINES - line % PAGE_LINES).max(1);
            let (addr, token) = (self.order.mapping.cmem_base + self.asked, self.token(self.asked));
            let sent = match lines {
                1 => requester.read(0, addr, token, now, tx),
                lines => requester.burst_read(0, addr, lines as u8, token, now, tx),
            };
            if sent.is_err() {
                self.rest_until = now + FULL_RING_REST;
                break;
            }
            self.asked += (lines * LINE_SIZE) as u64;
        }
    }
}

/// Takes the answers of the other node, and writes the lines.
struct Answers<'a> {
    fill: &'a mut Fill,
    memory: &'a mut dyn FillMemory,
    now: Time,
}

impl Completions for Answers<'_> {
    fn read(&mut self, token: u64, data: &[u8]) {
        let fill = &mut *self.fill;
        // Answers come in the order of the requests, so the next line is the first one not written.
        if token != fill.token(fill.done) {
            return;
        }
        let mapping = &fill.order.mapping;
        match self.memory.fill(mapping.cn.mac().to_u64(), mapping.cmem_base + fill.done, data) {
            Ok(()) => fill.done += data.len() as u64,
            Err(status) => fill.begin_again(status, self.now),
        }
    }

    fn written(&mut self, _token: u64) {}

    #[cold]
    fn failed(&mut self, token: u64, error: OpError, _data: &[u8]) {
        if !self.fill.is_of_attempt(token) {
            return;
        }
        match error {
            OpError::Fault(status) => self.fill.begin_again(status, self.now),
            OpError::SessionDead | OpError::DataLost | OpError::FrameTooLarge | OpError::Closed => {
                self.fill.ask_again();
            }
        }
    }

    #[cold]
    fn congested(&mut self, vector: &PfcVector) {
        if (0..8).any(|class| vector.pause(class).is_some_and(|quanta| quanta > 0)) {
            self.fill.rest_until = self.fill.rest_until.max(self.now + CONGESTION_REST);
        }
    }
}

impl Active {
    /// Sends what is due, and asks for lines.
    fn work(&mut self, now: Time, memory: &mut dyn FillMemory, tx: &mut dyn Transmit) {
        let Active { requester, fill, .. } = self;
        if requester.deadline().is_due(now) {
            requester.poll(now, tx, &mut Answers { fill, memory, now });
        }
        fill.ask(requester, now, tx);
        let can_be_read = fill.has_content(requester);
        self.waits_since = if can_be_read { None } else { self.waits_since.or(Some(now)) };
        self.log_events();
    }

    /// Whether another order is to be looked for: true once in each [`SOURCE_PATIENCE`] in which the source could not be
    /// read.
    fn is_stuck(&mut self, now: Time) -> bool {
        let is_stuck = self.waits_since.is_some_and(|since| now >= since + SOURCE_PATIENCE);
        if is_stuck {
            self.waits_since = Some(now);
        }
        is_stuck
    }

    fn log_events(&mut self) {
        while let Some(event) = self.requester.poll_event() {
            log(&self.fill.order, &event);
        }
    }

    /// Passes the progress to the board, if there is much of it or it is the end. Returns whether the order is complete.
    fn report_to(&mut self, board: &FillBoard) -> bool {
        let fill = &mut self.fill;
        let complete = fill.done >= fill.bytes;
        if complete || fill.done < fill.reported || fill.done - fill.reported >= REPORT_BYTES {
            board.report(&fill.order, fill.done);
            fill.reported = fill.done;
        }
        if complete {
            let (region, source) = (&fill.order.mapping.region, &fill.order.source.memory_node);
            tracing::info!(%region, %source, bytes = fill.bytes, "copied from another memory node");
        }
        complete
    }

    /// Ends the session.
    fn close(mut self, now: Time, memory: &mut dyn FillMemory, tx: &mut dyn Transmit) {
        let mut answers = Answers { fill: &mut self.fill, memory, now };
        self.requester.close(now, &mut answers);
        // Sends the Bye. If it is lost, the other node ends the session when it has been silent for long enough.
        self.requester.poll(now, tx, &mut answers);
    }
}

impl Filler {
    pub fn new(config: ResponderConfig, settings: FillerSettings, board: Arc<FillBoard>) -> Self {
        let (followed, has_orders, requesters, active) = (None, false, 0, None);
        Filler { config, settings, board, followed, has_orders, requesters, active }
    }

    /// Memory node that this worker copies from.
    #[inline]
    pub fn peer(&self) -> Option<Mac> {
        self.active.as_ref().map(|active| active.fill.order.source.mac)
    }

    /// Whether there are orders, of any worker.
    #[inline]
    pub fn has_orders(&self) -> bool {
        self.has_orders
    }

    /// Handles a frame of the [peer](Self::peer). Lines are written in this call.
    #[inline]
    pub fn handle(
        &mut self,
        frame: &mut [u8],
        now: Time,
        memory: &mut dyn FillMemory,
        tx: &mut dyn Transmit,
    ) {
        if let Some(Active { requester, fill, .. }) = &mut self.active {
            requester.handle(frame, now, tx, &mut Answers { fill, memory, now });
        }
    }

    /// Records that a HelloAck of `source` has come to this worker, although the worker has not called that node.
    #[cold]
    pub fn stray_answer(&self, source: Mac) {
        self.board.received_by(source, self.settings.worker);
    }

    /// Sends what is due. Call after each batch of frames, and at the [deadline](StateMachine::deadline).
    pub fn advance(&mut self, now: Time, memory: &mut dyn FillMemory, tx: &mut dyn Transmit) {
        // A complete order is followed by one that is not.
        while let Some(active) = &mut self.active {
            active.work(now, memory, tx);
            if active.report_to(&self.board) {
                self.take_next(now, memory, tx);
            } else if !active.is_stuck(now) || !self.exchange(now, memory, tx) {
                return;
            }
        }
    }

    /// Follows the board's list of orders, if it has changed. Call before each batch of frames.
    #[inline]
    pub fn follow(&mut self, now: Time, memory: &mut dyn FillMemory, tx: &mut dyn Transmit) {
        let changes = self.board.changes();
        if self.followed != Some(changes) {
            self.followed = Some(changes);
            self.follow_changes(now, memory, tx);
        }
    }

    #[cold]
    fn follow_changes(&mut self, now: Time, memory: &mut dyn FillMemory, tx: &mut dyn Transmit) {
        self.has_orders = !self.board.is_empty();
        let keeps = |active: &Active| self.board.keeps(self.settings.worker, &active.fill.order);
        if !self.active.as_ref().is_some_and(keeps) {
            self.take_next(now, memory, tx);
        }
    }

    /// Gives back the present order, if any, and takes another one, if there is any. The session goes on if both have
    /// the same source.
    fn take_next(&mut self, now: Time, memory: &mut dyn FillMemory, tx: &mut dyn Transmit) {
        let before = self.active.take();
        if let Some(active) = &before {
            self.board.give_back(&active.fill.order);
        }
        let next = self.board.take(self.settings.worker, self.config.own);
        if let Some(order) = &next {
            let (region, source) = (&order.mapping.region, &order.source.memory_node);
            tracing::info!(%region, %source, bytes = order.mapping.bytes(), "copying from another memory node");
        }
        match (before, next) {
            (Some(before), Some(order)) if before.fill.order.source == order.source => {
                let fill = Fill::new(order, before.fill.attempt + 1);
                self.active = Some(Active { fill, ..before });
            }
            (before, next) => {
                if let Some(before) = before {
                    before.close(now, memory, tx);
                }
                self.active = next.map(|order| self.call(order, now));
            }
        }
    }

    /// Takes an order with another source in the place of the present one. Returns false if there is none.
    #[cold]
    fn exchange(&mut self, now: Time, memory: &mut dyn FillMemory, tx: &mut dyn Transmit) -> bool {
        let other =
            |active: &Active| self.board.exchange(self.settings.worker, self.config.own, &active.fill.order);
        let Some(order) = self.active.as_ref().and_then(other) else { return false };
        let next = self.call(order, now);
        if let Some(before) = self.active.replace(next) {
            let (region, source) = (&before.fill.order.mapping.region, &before.fill.order.source.memory_node);
            tracing::warn!(%region, %source, "the source of a copy does not answer; copies from others go first");
            before.close(now, memory, tx);
        }
        true
    }

    /// Begins an order with a new session.
    fn call(&mut self, order: Arc<FillCmem>, now: Time) -> Active {
        self.requesters += 1;
        let mut requester = Requester::new(self.session_with(&order.source));
        requester.connect(now);
        Active { requester, number: self.requesters, fill: Fill::new(order, 0), waits_since: None }
    }

    fn session_with(&self, source: &FillSource) -> RequesterConfig {
        let ResponderConfig { own, ethertype, max_frame, ref key, ref node_key, seed, .. } = self.config;
        let FillerSettings { instance, epoch_ns, .. } = self.settings;
        let keys = node_key.clone().zip(source.key).map(|(own, peer)| KeyPair { own, peer, epoch_ns });
        RequesterConfig {
            identity: Identity { own, peer: source.mac, ethertype },
            max_frame,
            streams: 1,
            instance,
            key: key.clone(),
            keys,
            timing: Timing::default(),
            seed: seed.part(self.requesters),
        }
    }

    /// Ends the session, when the worker stops.
    pub fn close(&mut self, now: Time, memory: &mut dyn FillMemory, tx: &mut dyn Transmit) {
        if let Some(active) = self.active.take() {
            self.board.give_back(&active.fill.order);
            active.close(now, memory, tx);
        }
    }

    /// Returns the next Diffie-Hellman computation that the caller is to run, and the number of the requester that
    /// needs its result.
    #[inline]
    pub fn poll_handshake(&mut self) -> Option<(u64, HandshakeJob)> {
        let active = self.active.as_mut()?;
        active.requester.poll_handshake().map(|job| (active.number, job))
    }

    /// Takes the result of a computation for requester `number`.
    pub fn handshake_done(&mut self, number: u64, done: HandshakeDone, now: Time) {
        // The numbers of jobs begin again with each requester.
        if let Some(active) = self.active.as_mut().filter(|active| active.number == number) {
            active.requester.handshake_done(done, now);
            active.log_events();
        }
    }

    /// Sets the frame length that the link now carries.
    pub fn set_max_frame(&mut self, max_frame: usize, now: Time) {
        self.config.max_frame = max_frame;
        if let Some(active) = &mut self.active {
            active.requester.set_max_frame(max_frame, now);
            active.log_events();
        }
    }
}

impl StateMachine for Filler {
    fn deadline(&self) -> Deadline {
        let Some(Active { requester, fill, .. }) = &self.active else { return Deadline::NEVER };
        let mut deadline = requester.deadline();
        // As long as answers are due, they are what the next requests wait for.
        if fill.asked == fill.done && fill.can_ask(requester) {
            deadline.keep_earlier(Deadline::new(fill.rest_until, "the next lines of a copy"));
        }
        deadline
    }

    fn undrained(&self) -> Option<&'static str> {
        self.active.as_ref()?.requester.undrained()
    }
}

#[cold]
fn log(order: &FillCmem, event: &SessionEvent) {
    let (region, source) = (&order.mapping.region, &order.source.memory_node);
    match event {
        SessionEvent::Refused { .. } | SessionEvent::Dead | SessionEvent::DataLost { .. } => {
            tracing::warn!(%region, %source, ?event, "copying from another memory node waits");
        }
        event => tracing::debug!(%region, %source, ?event, "session for copying"),
    }
}
