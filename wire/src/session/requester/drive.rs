//! What drives a connection: commands and time, turned into events; and what the table says is to be done, done.

use super::phase::{Action, Event, Phase, Standing, next};
use super::timers::Timer;
use super::{Completions, OpError, Requester, SessionEvent, Stream};
use crate::Transmit;
use crate::frame::{Axi, Hello, HelloStatus, MAX_FRAME_LIMIT, Message, Seal, Space};
use crate::session::framer::Framer;
use crate::time::Time;

/// Byes sent before the session is closed without an answer.
const BYES_MAX: u32 = 3;

impl Requester {
    /// Calls the memory node; goes on calling until a session is open or [`close`](Self::close) is called. One that is
    /// [barred](Self::bar) is not called.
    pub fn connect(&mut self, now: Time) {
        if self.barred {
            return;
        }
        if matches!(self.connection.phase(), Phase::Closed | Phase::Closing) {
            self.connection.refused = None;
        }
        self.step(Event::Connect, now);
    }

    /// Memory of the memory node was given to this end: if there was a session or a refusal before and there is no session
    /// now, asks for one at once, and says that it [is expected](Self::is_expected).
    pub fn expect(&mut self, now: Time) {
        let parted = self.connection.refused.is_some() || self.shared.counters.sessions > 0;
        if self.barred || !parted || self.connection.phase() == Phase::Open {
            return;
        }
        self.connection.refused = None;
        self.expected_until = Some(now + self.config.timing.dead_after);
        match self.connection.phase() {
            Phase::Closed | Phase::Closing => self.connect(now),
            _ => self.call_soon(now),
        }
    }

    /// Whether a session is about to open, so that operations had better wait than fail. Ends with the session, with a
    /// refusal other than that there is no memory here yet, and after the time in which a silent memory node is given up.
    pub fn is_expected(&self) -> bool {
        self.expected_until.is_some()
    }

    /// Asks for a session at once, if one is missed: what the memory node waited for before it answers has happened. Whose
    /// session is sound, and only to be replaced, goes on as it does.
    pub fn call_soon(&mut self, now: Time) {
        if let Phase::Calling | Phase::Reopening(Standing::Suspect | Standing::Leaving) =
            self.connection.phase()
        {
            self.call_newest(now);
        }
    }

    /// Speaks with the memory node no more, as its key was taken back: the next [`poll`](Self::poll), which is due at once,
    /// ends the session, and what is unanswered fails as if it had gone silent, so that what was to be written back is kept.
    /// `false`: calls it again.
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

    /// Ends the session of a memory node that has been barred since.
    #[cold]
    fn leave_barred(&mut self, now: Time, out: &mut dyn Completions) {
        self.fail_all(OpError::SessionDead, out);
        self.step(Event::Close, now);
        self.event(SessionEvent::Barred);
    }

    /// Ends the session in order; what is unanswered fails with [`OpError::Closed`].
    pub fn close(&mut self, now: Time, out: &mut dyn Completions) {
        self.fail_all(OpError::Closed, out);
        self.step(Event::Close, now);
    }

    /// Asks for another session, with what the configuration says now. The present one goes on until then, unless its
    /// frames have become too long.
    pub(super) fn agree_anew(&mut self, now: Time) {
        let outgrown = self.connection.max_frame() > self.config.max_frame;
        self.step(if outgrown { Event::Outgrown } else { Event::LimitsChanged }, now);
    }

    /// Goes where `event` leads, and does what is to be done about it, but for what needs frames or completions: that is
    /// left to who has them, by the action returned.
    pub(super) fn step(&mut self, event: Event, now: Time) -> Action {
        let before = self.connection.phase();
        let (phase, action) = next(before, event);
        match action {
            Action::Nothing | Action::Stop | Action::StopCalling => {}
            Action::Call if event == Event::OtherVersion => self.call(self.connection.fallback, now),
            Action::Call => self.call_newest(now),
            Action::CallAfterGivingUp => {
                let ack = self.connection.offered.as_ref().map(|offered| offered.ack);
                self.call_newest(now);
                // The memory node has forgotten the offer or restarted since, or it cannot open our frames.
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
                self.connection.interval = self.config.timing.hello_first;
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
        }
        if phase.takes_requests() && !before.takes_requests() {
            // What waited for that is due.
            self.timers.arm(Timer::Streams, Time::ZERO);
        }
        if let Phase::Closed | Phase::Open = phase {
            self.timers.stop(Timer::Retry);
        }
        action
    }

    pub(super) fn call_newest(&mut self, now: Time) {
        self.call(*self.connection.versions.end(), now);
    }

    /// Asks for a session of this version.
    fn call(&mut self, version: u16, now: Time) {
        self.connection.hello = Some(Hello {
            version,
            features: self.connection.features,
            nonce: self.connection.nonces.next(),
            instance: self.config.instance,
            streams: self.config.streams,
            max_frame: self.config.max_frame.min(MAX_FRAME_LIMIT) as u16,
            integrity: self.integrity_wanted(),
            shard: self.connection.shard,
            owner: self.connection.owner,
        });
        self.connection.interval = self.config.timing.hello_first;
        self.timers.arm(Timer::Retry, now);
        self.prepare_keyed(now);
    }

    /// Does what time demands: sends again, pings, calls, gives up. Sends through `tx`; flush afterwards.
    pub fn poll(&mut self, now: Time, tx: &mut dyn Transmit, out: &mut dyn Completions) {
        if self.barred && !matches!(self.connection.phase(), Phase::Closed | Phase::Closing) {
            self.leave_barred(now, out);
        }
        if self.expected_until.is_some_and(|until| now >= until) {
            self.expected_until = None;
        }
        if core::mem::take(&mut self.expelled) && self.step(Event::Expelled, now) == Action::RestAfterDeath {
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
                if self.has_sent_enough() {
                    self.timers.arm(Timer::Rekey, now);
                }
                if now - self.last_heard.max(self.connection.last_ping) >= timing.ping_every {
                    let action = self.step(Event::PingDue, now);
                    self.send(action, now, tx);
                }
            }
            Timer::Dead => {
                let is_dead = |since| now - since >= timing.dead_after;
                if self.owed_since().is_some_and(is_dead)
                    && let Action::CallAfterDeath | Action::TellDeath = self.step(Event::Dead, now)
                {
                    self.fail_all(OpError::SessionDead, out);
                }
            }
            Timer::Suspect => {
                let silent = |since: Time| now - since.max(self.last_heard) >= timing.suspect_after;
                if self.owed_since().is_some_and(silent) {
                    self.step(Event::Silent, now);
                }
            }
            Timer::GiveUp => {
                self.step(Event::GivenUp, now);
            }
            Timer::Rekey => {
                self.step(Event::LimitsChanged, now);
            }
            Timer::Retry => {
                let spent = self.connection.phase() == Phase::Closing && self.connection.byes == BYES_MAX;
                let action = self.step(if spent { Event::ByesSpent } else { Event::RetryDue }, now);
                self.send(action, now, tx);
            }
        }
    }

    /// Sends what `action` says, if anything, and sees to it that it is sent again. What finds no room counts as lost.
    fn send(&mut self, action: Action, now: Time, tx: &mut dyn Transmit) {
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
                if let Some(offered) = &mut connection.offered {
                    offered.send(tx, &Message::Start);
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
            && let Some(soon) = self.crowded_retry(now)
        {
            self.timers.arm(Timer::Retry, soon);
            return;
        }
        let connection = &mut self.connection;
        self.timers.arm(Timer::Retry, now + connection.interval);
        connection.interval = (connection.interval * 2).min(self.config.timing.hello_max);
    }

    /// Since when something is owed: an answer in order to a stream's oldest request, or to a Ping. Other
    /// frames do not count, lest a request that never gets through wait for ever beside others that do.
    fn owed_since(&self) -> Option<Time> {
        let ping = self.connection.ping_since.filter(|at| *at > self.last_heard);
        self.streams.iter().filter_map(Stream::waiting_since).chain(ping).min()
    }

    /// Arms the timers that follow what has been sent and heard.
    fn rearm(&mut self, now: Time) {
        let (timing, phase) = (self.config.timing, self.connection.phase());
        let streams = self.streams.iter().filter(|_| phase.takes_requests()).filter_map(Stream::deadline);
        let streams = streams.min();
        let owed_since = self.owed_since().filter(|_| phase.has_session() && phase != Phase::Closing);
        let is_open = phase == Phase::Open;
        let silent_since = owed_since.map(|since| since.max(self.last_heard)).filter(|_| is_open);
        let idle_since = is_open.then(|| self.last_heard.max(self.connection.last_ping));
        self.timers.set(Timer::Streams, streams);
        self.timers.set(Timer::Ping, idle_since.map(|since| since + timing.ping_every));
        self.timers.set(Timer::Dead, owed_since.map(|since| since + timing.dead_after));
        self.timers.set(Timer::Suspect, silent_since.map(|since| since + timing.suspect_after));
        self.timers.settle(now);
    }
}
