//! Admission of sessions: Hello and Start, and the frames and time limits that keep or end a session.
//!
//! Answering a Hello ends nothing. The session that the answer offers waits in a bounded list
//! ([`Offers`](super::offers)) until Start arrives under the new session id. Session ids are unpredictable,
//! so that Start can come only from the receiver of the HelloAck.

use core::time::Duration;

use super::keyed::AckHandshake;
use super::offers::Offer;
use super::phase::{Action, Liveness, PhaseEvent, SessionPhase, next};
use super::session::{Session, early_buffer_len};
use super::stream::JOINT_ACKS_MAX;
use super::{Responder, ResponderEvent, ResponseStream};
use crate::Transmit;
use crate::frame::{
    Aead, Axi, Command, FEATURE_JOINT_ACKS, FEATURE_LONG_BURSTS, FEATURE_MULTI, FEATURE_SHARDS, Gcm,
    HEADER_LEN, Hello, HelloAck, HelloStatus, Integrity, LINE_SIZE, MAX_FRAME_LIMIT, Mac, Message, PfcVector,
    PublicKey, Seal, Space,
};
use crate::session::framer::{Framer, Identity, Received};
use crate::session::slab::Slab;
use crate::session::{Memory, ResponderCounters, WINDOW, infer};
use crate::time::Time;

/// Time within which the agent that has the session must answer a Ping, before another agent with the same MAC address
/// gets the session.
const CHALLENGE_TIMEOUT: Duration = Duration::from_millis(400);

/// Minimum frame length of a session: a line and the longest trailer.
const FRAME_MIN: usize = HEADER_LEN + LINE_SIZE + Gcm::TRAILER_LEN;

/// A frame received longer ago than this does not show that the CN is running.
const SIGN_OF_LIFE_MAX_AGE: Duration = Duration::from_secs(1);

/// Interval between checks for sessions of guests (CNs without memory here), because mappings change while
/// sessions last.
const GUEST_CHECK_INTERVAL: Duration = Duration::from_millis(100);

impl Session {
    /// Returns whether the frames received since the session was challenged (pinged) show that the CN is running.
    fn liveness(&self, now: Time) -> Liveness {
        if self.last_heard >= self.challenged_at {
            if now - self.last_heard < SIGN_OF_LIFE_MAX_AGE { Liveness::Confirmed } else { Liveness::Stale }
        } else if now - self.challenged_at >= CHALLENGE_TIMEOUT {
            Liveness::TimedOut
        } else {
            Liveness::Pending
        }
    }
}

impl Responder {
    pub(super) fn identity(&self, cn: Mac) -> Identity {
        Identity { own: self.config.own, peer: cn, ethertype: self.config.ethertype }
    }

    /// Handles a frame that is not a request.
    #[cold]
    pub(super) fn handle_control<M: Memory>(
        &mut self,
        command: Command,
        mut frame: Received<'_>,
        now: Time,
        memory: &mut M,
        tx: &mut dyn Transmit,
    ) {
        let cn = frame.src();
        self.asked_len = frame.bytes().len();
        match command {
            Command::Hello => {
                let outside = Framer::at_mn(self.identity(cn), Seal::OUTSIDE);
                // A group address cannot be the address of a CN.
                if cn.is_multicast() || frame.dst() != self.config.own {
                    self.counters.dropped_foreign += 1;
                } else if !outside.open(&mut frame, Space::Control, 0) {
                    self.counters.dropped_trailer += 1;
                } else if let Ok(Message::Hello(hello)) = frame.message()
                    && self.is_for_keys(&hello)
                {
                    self.keyed_hello(cn, &hello, frame.bytes(), now, memory, tx);
                } else if let Ok(Message::Hello(hello)) = frame.message()
                    && let Some(ack) = self.hello(cn, &hello, None, now, memory, tx)
                {
                    let axi = Axi { stream: 0, tag: 0 };
                    outside.send(tx, Space::Control, 0, axi, 0, &Message::HelloAck(ack));
                }
            }
            Command::Start => self.start(cn, frame, now, memory, tx),
            Command::Ping | Command::Pong | Command::Bye | Command::ByeAck => {
                let Some(index) = self.find(cn) else {
                    self.counters.dropped_foreign += 1;
                    return;
                };
                if self.open_control(index, &mut frame, now) {
                    let event = match command {
                        Command::Ping => PhaseEvent::Ping,
                        Command::Bye => PhaseEvent::Bye,
                        Command::ByeAck => PhaseEvent::ByeAck,
                        _ => PhaseEvent::Pong,
                    };
                    self.step(index, event, tx);
                }
            }
            // Echo frames are dropped here too: a node that answers them does so before it calls this function.
            _ => self.counters.dropped_foreign += 1,
        }
    }

    /// Verifies a control frame of a session. Its sequence number must be higher than in all earlier control frames, so
    /// that copies have no effect (R11).
    fn open_control(&mut self, index: usize, frame: &mut Received<'_>, now: Time) -> bool {
        let Some(session) = &mut self.sessions[index] else { return false };
        let seq = infer(session.heard, frame.seq());
        if !session.framer.open(frame, Space::Control, seq) {
            session.counters.dropped_trailer += 1;
            return false;
        }
        if seq <= session.heard {
            session.counters.duplicates += 1;
            return false;
        }
        session.heard = seq;
        session.last_heard = now;
        true
    }

    fn answer(&mut self, index: usize, tx: &mut dyn Transmit, message: &Message<'_>) {
        self.answer_padded(index, tx, message, 0);
    }

    /// Answers with a frame that is padded to `len` bytes, or to the longest frame that the link carries if that is
    /// shorter.
    fn answer_padded(&mut self, index: usize, tx: &mut dyn Transmit, message: &Message<'_>, len: usize) {
        let len = len.min(self.config.max_frame).min(MAX_FRAME_LIMIT);
        if let Some(session) = &mut self.sessions[index]
            && session.framer.send_control(tx, session.sent + 1, message, len)
        {
            session.sent += 1;
        }
    }

    /// Decides on a Hello. `shown` is the key that the sender proved, with the result of the handshake, or `None`
    /// without a key. Returns `None` if there is no answer yet; the CN will repeat the Hello.
    pub(super) fn hello<M: Memory>(
        &mut self,
        cn: Mac,
        hello: &Hello,
        shown: Option<(PublicKey, &AckHandshake)>,
        now: Time,
        memory: &mut M,
        tx: &mut dyn Transmit,
    ) -> Option<HelloAck> {
        // A repeated Hello gets the same answer, not a second offer. A Hello with a key was already looked up
        // in `keyed_hello`.
        if shown.is_none()
            && let Some(ack) = self.offers.repeat(cn, hello)
        {
            return Some(ack);
        }
        let integrity = match shown {
            Some(_) => Integrity::Gcm,
            None if self.config.key.is_some() => Integrity::Aead,
            None => Integrity::Plain,
        };
        let mut ack = HelloAck {
            hello_nonce: hello.nonce,
            version_min: *self.versions.start(),
            version_max: *self.versions.end(),
            features: hello.features & self.features,
            session: 0,
            nonce: 0,
            window: WINDOW as u16,
            streams: hello.streams.min(self.config.streams_max),
            max_frame: hello.max_frame.min(self.config.max_frame.min(MAX_FRAME_LIMIT) as u16),
            incarnation: self.config.incarnation,
            integrity,
            status: HelloStatus::Ok,
        };
        let known = self.by_cn.get(cn);
        let owner = hello.cn(cn).filter(|_| hello.shard == 0 || ack.features & FEATURE_SHARDS != 0);
        let guest = !memory.has_memory(owner.unwrap_or(cn).to_u64());
        let refusal = if !self.versions.contains(&hello.version) {
            self.event(ResponderEvent::VersionMismatch { cn, version: hello.version });
            Some(HelloStatus::VersionMismatch)
        } else if self.draining {
            Some(HelloStatus::Draining)
        } else if hello.integrity != integrity {
            Some(HelloStatus::Integrity)
        } else if owner.is_none() {
            Some(HelloStatus::Shard)
        } else if let Some(status) =
            self.key_refusal(cn, owner.unwrap_or(cn), shown.map(|(key, _)| key), memory)
        {
            Some(status)
        } else if !memory.admits(owner.unwrap_or(cn).to_u64()) {
            Some(HelloStatus::NotAllowed)
        } else if hello.streams == 0 || usize::from(ack.max_frame) < FRAME_MIN {
            Some(HelloStatus::NoResources)
        } else if known.is_none() && guest && !self.has_room_for_guest(now, memory) {
            Some(HelloStatus::NotAllowed)
        } else if known.is_none() && !guest && !self.has_room(now, memory) {
            Some(HelloStatus::NoResources)
        } else {
            match known.map_or(Action::Offer, |index| self.asked_by(index, hello, now, tx)) {
                // The old instance has some time to answer the Ping, while the CN repeats its Hello.
                Action::Challenge | Action::AskAgain => return None,
                Action::Refuse => Some(HelloStatus::InstanceConflict),
                _ => None,
            }
        };
        if let Some(status) = refusal {
            ack.status = status;
            return Some(ack);
        }
        if hello.shard > 0 && !memory.is_current(hello.owner.to_u64(), hello.instance) {
            // The CN itself must have a session of this instance before its shards may have any.
            return None;
        }
        ack.session = self.nonces.next();
        ack.nonce = self.nonces.next();
        let secret = shown.map(|(_, answer)| answer.secret.as_slice());
        let seal = match (secret, self.config.key.as_deref()) {
            (None, None) => Seal::Plain { session: ack.session },
            (Some(secret), _) => Seal::Gcm(Gcm::derive(secret, cn, self.config.own, hello, &ack)),
            (None, Some(key)) => match Aead::derive(key, cn, self.config.own, hello, &ack) {
                Ok(aead) => Seal::Aead(aead),
                // The pre-shared key is shorter than the minimum.
                Err(_) => return Some(HelloAck { status: HelloStatus::Integrity, session: 0, ..ack }),
            },
        };
        let framer = Framer::at_mn(self.identity(cn), seal);
        let keyed = shown.map(|(key, answer)| (key, answer.clone()));
        self.offers.add(Offer { offered_at: now, guest, hello: *hello, ack, keyed, framer });
        Some(ack)
    }

    /// Whether a CN with memory can have a session, if necessary by ending the session of a guest.
    fn has_room<M: Memory>(&mut self, now: Time, memory: &mut M) -> bool {
        self.by_cn.len() < self.config.sessions_max || self.a_guest(now, memory).is_some()
    }

    /// Whether one more guest may have a session.
    fn has_room_for_guest<M: Memory>(&mut self, now: Time, memory: &mut M) -> bool {
        let most = self.config.guests_max;
        let guests = |responder: &Self| responder.sessions.iter().flatten().filter(|s| s.guest).count();
        if self.by_cn.len() >= self.config.sessions_max {
            return false;
        }
        if guests(self) >= most {
            self.look_for_guests(now, memory);
        }
        guests(self) < most
    }

    /// Returns the session of the guest that has been silent for longest.
    fn a_guest<M: Memory>(&mut self, now: Time, memory: &mut M) -> Option<usize> {
        self.look_for_guests(now, memory);
        let guests = self.sessions.iter().enumerate().filter_map(|(index, session)| {
            session.as_ref().filter(|session| session.guest).map(|session| (session.last_heard, index))
        });
        guests.min().map(|(_, index)| index)
    }

    /// Checks again which sessions belong to guests, because mappings change while sessions last.
    fn look_for_guests<M: Memory>(&mut self, now: Time, memory: &mut M) {
        if now - self.guests_at >= GUEST_CHECK_INTERVAL {
            self.guests_at = now;
            for session in self.sessions.iter_mut().flatten() {
                session.guest = !memory.has_memory(session.owner.to_u64());
            }
        }
    }

    /// Applies a Hello of the same or another instance to the current session, and returns the action.
    fn asked_by(&mut self, index: usize, hello: &Hello, now: Time, tx: &mut dyn Transmit) -> Action {
        let Some(session) = &self.sessions[index] else { return Action::Offer };
        let event = if session.instance == hello.instance {
            PhaseEvent::Hello
        } else {
            PhaseEvent::Rival(session.liveness(now))
        };
        let action = self.step(index, event, tx);
        if let (Action::Challenge, Some(session)) = (action, &mut self.sessions[index]) {
            session.challenged_at = now;
        }
        action
    }

    /// Makes the transition for `event`, and sends the frame that its action calls for.
    pub(super) fn step(&mut self, index: usize, event: PhaseEvent, tx: &mut dyn Transmit) -> Action {
        let (phase, action) = self.decide(index, event);
        match action {
            Action::Challenge | Action::AskAgain => self.answer(index, tx, &Message::Ping),
            Action::SendStartAck => self.answer_padded(index, tx, &Message::StartAck, self.asked_len),
            Action::SendPong => self.answer_padded(index, tx, &Message::Pong, self.asked_len),
            Action::SendByeAck => self.answer(index, tx, &Message::ByeAck),
            Action::SendBye => self.answer(index, tx, &Message::Bye),
            Action::Nothing
            | Action::Offer
            | Action::Refuse
            | Action::Adopt
            | Action::TellEnded
            | Action::TellExpired => {}
        }
        self.conclude(index, phase, action);
        action
    }

    fn decide(&self, index: usize, event: PhaseEvent) -> (SessionPhase, Action) {
        next(self.sessions[index].as_ref().map_or(SessionPhase::Absent, |session| session.phase), event)
    }

    /// Sets the phase of the session at `index`, and queues the event that `action` calls for.
    fn conclude(&mut self, index: usize, phase: SessionPhase, action: Action) {
        let Some(session) = &mut self.sessions[index] else { return };
        let cn = session.cn;
        session.phase = phase;
        if phase == SessionPhase::Absent {
            self.end(index);
        }
        match action {
            Action::SendByeAck | Action::TellEnded => self.event(ResponderEvent::Ended(cn)),
            Action::TellExpired => self.event(ResponderEvent::Expired(cn)),
            Action::Refuse => self.event(ResponderEvent::Conflict(cn)),
            Action::Nothing
            | Action::Offer
            | Action::Challenge
            | Action::AskAgain
            | Action::Adopt
            | Action::SendStartAck
            | Action::SendPong
            | Action::SendBye => {}
        }
    }

    /// Starts the offered session, or answers a repeated Start whose StartAck was lost.
    fn start<M: Memory>(
        &mut self,
        cn: Mac,
        mut frame: Received<'_>,
        now: Time,
        memory: &mut M,
        tx: &mut dyn Transmit,
    ) {
        // A Start is the first control frame of its session, so its number is close to 0.
        let seq = infer(0, frame.seq());
        let offered = self.offers.any_to(cn);
        let opens = |offer: &Offer| offer.framer.open(&mut frame, Space::Control, seq);
        let Some(offer) = self.offers.take(cn, opens) else {
            match self.find(cn) {
                Some(index) => {
                    if self.open_control(index, &mut frame, now) {
                        self.step(index, PhaseEvent::StartAgain, tx);
                    }
                }
                None if offered => self.counters.dropped_trailer += 1,
                None => self.counters.dropped_foreign += 1,
            }
            return;
        };
        let Hello { shard, instance, .. } = offer.hello;
        let owner = offer.hello.cn(cn).unwrap_or(cn);
        // The key may have been withdrawn or registered since the offer.
        let shown = offer.keyed.as_ref().map(|(key, _)| *key);
        if self.key_refusal(cn, owner, shown, memory).is_some() {
            self.counters.dropped_handshake += 1;
            return;
        }
        let ready = match shard {
            0 => memory.take_over(owner.to_u64(), instance),
            _ => memory.is_current(owner.to_u64(), instance),
        };
        if !ready {
            // The offer is kept, because the CN repeats its Start until the other workers are ready.
            self.offers.add(offer);
            return;
        }
        self.finish_batch(tx);
        let old = self.by_cn.get(cn);
        let (phase, _) = old.map_or(next(SessionPhase::Absent, PhaseEvent::Start), |index| {
            self.decide(index, PhaseEvent::Start)
        });
        if let Some(index) = old {
            self.end(index);
        }
        let guest = !memory.has_memory(owner.to_u64());
        if old.is_none() && guest && !self.has_room_for_guest(now, memory) {
            return;
        }
        if self.by_cn.len() >= self.config.sessions_max {
            let Some(index) = self.a_guest(now, memory) else { return };
            self.step(index, PhaseEvent::Displace, tx);
        }
        let max_frame = usize::from(offer.ack.max_frame);
        let session = Session {
            cn,
            owner,
            shard,
            guest,
            instance,
            key: offer.keyed.map(|(key, _)| key),
            framer: offer.framer,
            max_frame,
            multi: offer.ack.features & FEATURE_MULTI != 0,
            long_bursts: offer.ack.features & FEATURE_LONG_BURSTS != 0,
            acks_max: if offer.ack.features & FEATURE_JOINT_ACKS != 0 { JOINT_ACKS_MAX } else { 1 },
            streams: (0..offer.ack.streams).map(ResponseStream::new).collect(),
            buffers: Slab::new(self.config.early_buffers, early_buffer_len(max_frame)),
            counters: ResponderCounters::default(),
            sent: 0,
            heard: seq,
            last_heard: now,
            phase,
            challenged_at: now,
        };
        let index = self.sessions.iter().position(Option::is_none).unwrap_or_else(|| {
            self.sessions.push(None);
            self.sessions.len() - 1
        });
        self.sessions[index] = Some(session);
        self.by_cn.insert(cn, index);
        self.counters.sessions += 1;
        self.answer_padded(index, tx, &Message::StartAck, self.asked_len);
        self.event(ResponderEvent::Started { cn, replaced: old.is_some() });
    }

    /// Removes a session and adds its counts to the sums.
    pub(super) fn end(&mut self, index: usize) {
        if let Some(session) = self.sessions[index].take() {
            self.by_cn.remove(session.cn);
            self.early -= session.buffers.used();
            self.counters = self.counters.plus(&session.counters);
        }
        // An acknowledgement that this session held back is dropped, because another session may soon have the same
        // index.
        if self.due.is_some_and(|(session, _)| session == index) {
            self.due = None;
        }
    }

    /// Removes silent sessions and old offers.
    pub(super) fn expire(&mut self, now: Time) {
        self.offers.expire(now, self.config.max_frame);
        self.expire_handshakes(now);
        for index in 0..self.sessions.len() {
            if let Some(session) = &self.sessions[index]
                && now - session.last_heard >= self.config.idle_after
            {
                let (phase, action) = self.decide(index, PhaseEvent::Idle);
                self.conclude(index, phase, action);
            }
        }
    }

    /// Sets the frame length that the link now carries, for sessions offered from now on. Sessions with
    /// longer frames are ended by [`dismiss_outgrown`](Self::dismiss_outgrown).
    pub fn set_max_frame(&mut self, max_frame: usize) {
        self.config.max_frame = max_frame;
    }

    /// Sends a Bye to each CN whose session has frames too long for the link, so that the CN requests another session
    /// at once. Returns the number of Byes. Call it repeatedly, because a Bye may be lost.
    pub fn dismiss_outgrown(&mut self, tx: &mut dyn Transmit) -> usize {
        let mut told = 0;
        for index in 0..self.sessions.len() {
            if self.sessions[index].as_ref().is_some_and(|session| session.max_frame > self.config.max_frame)
            {
                self.step(index, PhaseEvent::Dismiss, tx);
                told += 1;
            }
        }
        told
    }

    /// Reports congestion of the receive queue to every CN that has sent a frame since `since`: the content
    /// of a PFC frame in a frame that switches forward. Returns the number of frames sent.
    pub fn congested(&mut self, vector: &PfcVector, since: Time, tx: &mut dyn Transmit) -> usize {
        let mut told = 0;
        for index in 0..self.sessions.len() {
            if self.sessions[index].as_ref().is_some_and(|session| session.last_heard >= since) {
                self.answer(index, tx, &Message::Congestion(*vector));
                if let Some(session) = &mut self.sessions[index] {
                    session.counters.congestion += 1;
                }
                told += 1;
            }
        }
        told
    }

    /// Accepts no new sessions and sends a Bye in each open one. Call it again until
    /// [`sessions`](Responder::sessions) is 0 or a time limit has passed.
    pub fn drain(&mut self, tx: &mut dyn Transmit) {
        self.draining = true;
        self.offers.clear();
        self.finish_batch(tx);
        for index in 0..self.sessions.len() {
            self.step(index, PhaseEvent::Dismiss, tx);
        }
    }
}
