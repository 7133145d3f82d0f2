//! Driver of a connection: turns commands and time into events of the transition table, and carries out the
//! actions.

use core::time::Duration;

use super::pause::Pause;
use super::phase::{Action, ConnectionEvent, ConnectionPhase, OldSession, next};
use super::timers::Timer;
use super::{Completions, Keyed, OpError, RequestStream, Requester, SessionEvent};
use crate::Transmit;
use crate::frame::{Axi, Hello, HelloStatus, MAX_FRAME_LIMIT, Message, Seal, Space};
use crate::machine::{Deadline, StateMachine};
use crate::session::framer::Framer;
use crate::time::Time;

/// Minimum delay of a poll behind its deadline at which this process counts as having been paused. A busy thread polls
/// within milliseconds.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Number of Byes after which the session is closed without an answer.
const BYES_MAX: u32 = 3;

impl StateMachine for Requester {
    #[inline]
    fn deadline(&self) -> Deadline {
        self.timers.deadline()
    }

    fn undrained(&self) -> Option<&'static str> {
        if !self.events.is_empty() {
            Some("an event of a session")
        } else if self.keyed.as_ref().is_some_and(Keyed::has_jobs) {
            Some("a computation of a handshake")
        } else if self.shared.packing.held {
            Some("requests held back to share a frame")
        } else {
            None
        }
    }
}

impl Requester {
    /// Sends Hellos to the memory node until a session is open or [`close`](Self::close) is called. Sends
    /// none to a [barred](Self::bar) node.
    pub fn connect(&mut self, now: Time) {
        if self.barred {
            return;
        }
        if matches!(self.connection.phase(), ConnectionPhase::Closed | ConnectionPhase::Closing) {
            // The caller makes a new attempt, so a refusal is reported even if the same one was reported before.
            self.connection.refused = None;
        }
        self.step(ConnectionEvent::Connect, now);
    }

    /// Reports that the manager gave this CN memory on the memory node. A requester that has no session, but
    /// had one or was refused one, then asks for a session at once; that session is
    /// [expected](Self::is_expected).
    pub fn expect(&mut self, now: Time) {
        let parted = self.connection.refused.is_some() || self.shared.counters.sessions > 0;
        if self.barred || !parted || self.connection.phase() == ConnectionPhase::Open {
            return;
        }
        self.connection.refused = None;
        self.expected_until = Some(now + self.config.timing.dead_after);
        match self.connection.phase() {
            ConnectionPhase::Closed | ConnectionPhase::Closing => self.connect(now),
            _ => self.call_soon(now),
        }
    }

    /// Whether a session is about to open, so that operations should wait instead of failing. The result is `false`
    /// again when the session has opened, when it was refused for another reason than missing memory, or when the
    /// requester has given up a silent memory node.
    pub fn is_expected(&self) -> bool {
        self.expected_until.is_some()
    }

    /// Sends a new Hello at once if there is no working session, because the condition that delayed the
    /// memory node's answer is now met. A working session that is being replaced is not disturbed.
    pub fn call_soon(&mut self, now: Time) {
        if let ConnectionPhase::Calling
        | ConnectionPhase::Reopening(OldSession::Suspect | OldSession::Leaving) = self.connection.phase()
        {
            self.call_newest(now);
        }
    }

    /// Stops all exchange with the memory node if `barred`, because its key was withdrawn: the next
    /// [`poll`](Self::poll), due at once, ends the session. Unanswered requests fail as if the node were
    /// silent, so that data to be written back is kept. `false` connects again.
    pub fn bar(&mut self, barred: bool, now: Time) {
        if core::mem::replace(&mut self.barred, barred) == barred {
            return;
        }
        if barred {
            self.timers.arm(Timer::Retry, now);
        } else {
            self.connect(now);
        }
    }

    #[cold]
    fn leave_barred(&mut self, now: Time, out: &mut dyn Completions) {
        self.fail_all(OpError::SessionDead, out);
        self.step(ConnectionEvent::Close, now);
        self.event(SessionEvent::Barred);
    }

    /// Ends the session with a Bye. Unanswered requests fail with [`OpError::Closed`].
    pub fn close(&mut self, now: Time, out: &mut dyn Completions) {
        self.fail_all(OpError::Closed, out);
        self.step(ConnectionEvent::Close, now);
    }

    /// Asks for another session with the current configuration. The current session remains in use until the new one
    /// has started, unless the current session's frames are now too long for the link.
    pub(super) fn agree_anew(&mut self, now: Time) {
        let outgrown = self.connection.max_frame() > self.config.max_frame;
        self.step(if outgrown { ConnectionEvent::Outgrown } else { ConnectionEvent::LimitsChanged }, now);
    }

    /// Makes the transition for `event` and carries out its action. An action that needs frames or
    /// completions is returned, for the caller to carry out.
    pub(super) fn step(&mut self, event: ConnectionEvent, now: Time) -> Action {
        let before = self.connection.phase();
        let (phase, action) = next(before, event);
        match action {
            Action::Nothing | Action::Stop | Action::StopCalling => {}
            Action::Call if event == ConnectionEvent::OtherVersion => {
                self.call(self.connection.fallback, now)
            }
            Action::Call => self.call_newest(now),
            Action::CallAfterGivingUp => {
                let ack = self.connection.offered.as_ref().map(|offered| offered.ack);
                if let Some(ack) = ack {
                    // The path may lose frames of this Start's length.
                    self.path.start_given_up(usize::from(ack.max_frame));
                }
                self.call_newest(now);
                // The memory node lost the offer, restarted, or cannot open this end's frames. The last cause
                // (different keys) is reported, because only the operator can correct it.
                if let Some(ack) = ack.filter(|_| self.config.key.is_some()) {
                    self.tell_refused(HelloStatus::Integrity, &ack);
                }
            }
            Action::CallSuspecting => {
                self.event(SessionEvent::Suspect);
                self.call_newest(now);
            }
            Action::CallAfterPeerLeft => {
                self.event(SessionEvent::PeerLeft);
                self.call_newest(now);
            }
            Action::CallAfterDeath => {
                self.event(SessionEvent::Dead);
                self.call_newest(now);
            }
            Action::TellPeerLeft => self.event(SessionEvent::PeerLeft),
            Action::TellDeath => self.event(SessionEvent::Dead),
            Action::TellClosed => self.event(SessionEvent::Closed),
            Action::RestAfterDeath | Action::WaitLong => {
                if action == Action::RestAfterDeath {
                    self.event(SessionEvent::Dead);
                }
                self.connection.interval = self.config.timing.hello_max;
                self.timers.arm(Timer::Retry, now + self.connection.interval);
            }
            Action::Start => {
                // Operations wait for the StartAck, so an unanswered Start is repeated after the same time as the probe
                // for an unanswered request.
                let hello_first = self.config.timing.hello_first;
                let rtt = &self.shared.rtt;
                let wait_limit = Duration::from_nanos(rtt.probe_ns());
                self.connection.interval =
                    if rtt.is_measured() { wait_limit.min(hello_first) } else { hello_first };
                self.timers.arm(Timer::Retry, now);
                self.timers.arm(Timer::GiveUp, now + self.config.timing.suspect_after);
            }
            Action::Adopt => self.connection.session = self.connection.offered.take(),
            Action::StartLeaving => {
                self.connection.byes = 0;
                self.timers.arm(Timer::Retry, now);
            }
            Action::SendHello | Action::SendStart | Action::SendBye | Action::SendPing => {}
        }
        self.connection.enter(phase);
        if !phase.awaits_start() {
            self.timers.stop(Timer::GiveUp);
        }
        if !phase.has_session() {
            self.timers.stop(Timer::Rekey);
            self.timers.stop(Timer::Widen);
        }
        if phase.takes_requests() && !before.takes_requests() {
            // Requests that waited for the session can be sent now.
            self.timers.arm(Timer::Streams, Time::ZERO);
        }
        if let ConnectionPhase::Closed | ConnectionPhase::Open = phase {
            self.timers.stop(Timer::Retry);
        }
        action
    }

    pub(super) fn call_newest(&mut self, now: Time) {
        self.call(*self.connection.versions.end(), now);
    }

    /// Prepares a Hello that asks for `version`, and sends it at the next poll.
    fn call(&mut self, version: u16, now: Time) {
        self.connection.hello = Some(Hello {
            version,
            features: self.connection.features,
            nonce: self.connection.nonces.next(),
            instance: self.config.instance,
            streams: self.config.streams,
            max_frame: self.path.request(self.config.max_frame.min(MAX_FRAME_LIMIT)) as u16,
            integrity: self.integrity_wanted(),
            shard: self.connection.shard,
            owner: self.connection.owner,
        });
        self.connection.hello_at = now;
        self.connection.interval = self.config.timing.hello_first;
        self.timers.arm(Timer::Retry, now);
        self.prepare_keyed(now);
    }

    /// Does all work that is due: retransmits, sends Pings and Hellos, gives up. Frames go to `tx`; flush it
    /// afterwards.
    pub fn poll(&mut self, now: Time, tx: &mut dyn Transmit, out: &mut dyn Completions) {
        self.note_pause(now);
        if self.barred
            && !matches!(self.connection.phase(), ConnectionPhase::Closed | ConnectionPhase::Closing)
        {
            self.leave_barred(now, out);
        }
        if self.expected_until.is_some_and(|until| now >= until) {
            self.expected_until = None;
        }
        // The withdrawal of this CN's key is handled here, because only a poll can report failed requests.
        if core::mem::take(&mut self.expelled)
            && self.step(ConnectionEvent::Expelled, now) == Action::RestAfterDeath
        {
            self.fail_all(OpError::SessionDead, out);
        }
        for timer in Timer::ALL {
            if self.timers.goes_off(timer, now) {
                self.fire(timer, now, tx, out);
            }
        }
        self.rearm(now);
    }

    fn fire(&mut self, timer: Timer, now: Time, tx: &mut dyn Transmit, out: &mut dyn Completions) {
        let timing = self.config.timing;
        match timer {
            Timer::Streams => {
                if let Some(framer) = self.connection.framer() {
                    for stream in &mut self.streams[..self.granted] {
                        stream.poll(now, framer, &mut self.shared, tx);
                    }
                }
            }
            Timer::Ping => {
                // The number of requests sent is checked here, at intervals, rather than for each frame.
                if self.has_sent_enough() {
                    self.timers.arm(Timer::Rekey, now);
                }
                if now - self.last_heard.max(self.connection.last_ping) >= timing.ping_every {
                    let action = self.step(ConnectionEvent::PingDue, now);
                    self.send(action, now, tx);
                }
            }
            Timer::Dead => {
                if self.owed_since().is_some_and(|since| now >= self.dead_at(since))
                    && let Action::CallAfterDeath | Action::TellDeath = self.step(ConnectionEvent::Dead, now)
                {
                    self.fail_all(OpError::SessionDead, out);
                }
            }
            Timer::Suspect => {
                let silent = |since: Time| now - since.max(self.last_heard) >= timing.suspect_after;
                if self.owed_since().is_some_and(silent) {
                    self.step(ConnectionEvent::Silent, now);
                }
            }
            Timer::GiveUp => {
                self.step(ConnectionEvent::GivenUp, now);
            }
            Timer::Rekey => {
                self.step(ConnectionEvent::LimitsChanged, now);
            }
            Timer::Widen => {
                // This frame is not recorded as a Ping: it is lost while the path is narrow, and an unanswered Ping
                // would make the session suspect.
                if let (Some(lost), Some(session)) = (self.path.lost(), &mut self.connection.session) {
                    session.send_padded(tx, &Message::Ping, lost.min(self.config.max_frame));
                }
                self.timers.set(Timer::Widen, self.path.probe_at(now));
            }
            Timer::Retry => {
                let spent =
                    self.connection.phase() == ConnectionPhase::Closing && self.connection.byes == BYES_MAX;
                let action = self
                    .step(if spent { ConnectionEvent::ByesSpent } else { ConnectionEvent::RetryDue }, now);
                self.send(action, now, tx);
            }
        }
    }

    /// Sends the frame that `action` calls for, if any, and arms its repetition. If the transmit ring is
    /// full, the frame counts as lost.
    fn send(&mut self, action: Action, now: Time, tx: &mut dyn Transmit) {
        if action == Action::SendHello
            && now - self.connection.hello_at >= self.config.timing.suspect_after
            && self.path.silent()
        {
            self.call_newest(now);
            return;
        }
        if action == Action::SendHello && self.keyed.is_some() {
            self.send_keyed_hello(now, tx);
        }
        let connection = &mut self.connection;
        match action {
            Action::SendHello if self.keyed.is_some() => {}
            Action::SendHello => {
                let outside = Framer::at_cn(self.config.identity, Seal::OUTSIDE);
                let axi = Axi { stream: 0, tag: 0 };
                if let Some(hello) = connection.hello {
                    outside.send(tx, Space::Control, 0, axi, 0, &Message::Hello(hello));
                }
            }
            Action::SendStart => {
                // Padded to the length of the session's longest frame, to test that the path carries such
                // frames.
                if let Some(offered) = &mut connection.offered {
                    offered.send_padded(tx, &Message::Start, usize::from(offered.ack.max_frame));
                }
            }
            Action::SendBye => {
                connection.byes += 1;
                connection.send(tx, &Message::Bye);
                self.timers.arm(Timer::Retry, now + self.config.timing.hello_first);
                return;
            }
            Action::SendPing => {
                connection.last_ping = now;
                if connection.ping_since.is_none_or(|at| at <= self.last_heard) {
                    connection.ping_since = Some(now);
                }
                connection.send(tx, &Message::Ping);
                return;
            }
            _ => return,
        }
        if action == Action::SendHello
            && let Some(soon) = self.overload_retry(now)
        {
            self.timers.arm(Timer::Retry, soon);
            return;
        }
        let connection = &mut self.connection;
        self.timers.arm(Timer::Retry, now + connection.interval);
        // Hello intervals grow by an eighth. So a memory node that returns after an absence gets a Hello within an
        // eighth of the length of that absence.
        let more = if action == Action::SendHello { connection.interval / 8 } else { connection.interval };
        connection.interval = (connection.interval + more).min(self.config.timing.hello_max);
    }

    /// Returns the time since which an answer is due to the oldest request of a stream or to a Ping. Answers to later
    /// requests, or in other streams, do not restart this time: otherwise a request that never arrives would stay
    /// unanswered for ever without an error.
    pub(super) fn owed_since(&self) -> Option<Time> {
        let ping = self.connection.ping_since.filter(|at| *at > self.last_heard);
        self.streams.iter().filter_map(RequestStream::waiting_since).chain(ping).min()
    }

    /// Records that this process did not run before `now`, if its poll is late. Answers that came meanwhile
    /// may be lost, and the memory node may have stopped together with this process, as on a host that was
    /// suspended (R8).
    fn note_pause(&mut self, now: Time) {
        let late = now - self.timers.deadline().at;
        if late < PAUSE_MIN {
            return;
        }
        let before = self.owed_since().map_or(Duration::ZERO, |since| self.pause.beyond(since));
        self.pause = Pause { end: now, length: (before + late).min(self.config.timing.dead_after) };
    }

    /// Returns the time at which the session is dead if an answer has been due since `since`. Pauses of this
    /// process are not silence of the memory node; they extend the limit, at most to double.
    fn dead_at(&self, since: Time) -> Time {
        since + self.config.timing.dead_after + self.pause.beyond(since)
    }

    /// Arms the timers that depend on the last frames sent and received.
    fn rearm(&mut self, now: Time) {
        let (timing, phase) = (self.config.timing, self.connection.phase());
        let streams =
            self.streams.iter().filter(|_| phase.takes_requests()).filter_map(RequestStream::deadline);
        let streams = streams.min();
        let owed_since =
            self.owed_since().filter(|_| phase.has_session() && phase != ConnectionPhase::Closing);
        let is_open = phase == ConnectionPhase::Open;
        let silent_since = owed_since.map(|since| since.max(self.last_heard)).filter(|_| is_open);
        let idle_since = is_open.then(|| self.last_heard.max(self.connection.last_ping));
        self.timers.set(Timer::Streams, streams);
        self.timers.set(Timer::Ping, idle_since.map(|since| since + timing.ping_every));
        self.timers.set(Timer::Dead, owed_since.map(|since| self.dead_at(since)));
        self.timers.set(Timer::Suspect, silent_since.map(|since| since + timing.suspect_after));
        self.timers.settle(now);
    }
}
