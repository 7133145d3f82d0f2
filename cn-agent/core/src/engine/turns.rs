//! Driving the engine from the link's side: frames, timers, and the end of sessions.

use cxloe_wire::Transmit;
use cxloe_wire::frame::{HelloStatus, destination, source};
use cxloe_wire::machine::{Deadline, StateMachine};
use cxloe_wire::session::SessionEvent;
use cxloe_wire::time::Time;

use super::completer::Completer;
use super::pacing::{Signal, TOKENS};
use super::{Engine, EngineEvent, PeerSession, Sink};

impl StateMachine for Engine {
    #[inline]
    fn deadline(&self) -> Deadline {
        self.deadline
    }

    fn undrained(&self) -> Option<&'static str> {
        if self.core.events.is_empty() {
            self.peers.iter().find_map(|peer| peer.requester.undrained())
        } else {
            Some("an event of the engine")
        }
    }
}

impl Engine {
    /// Handles a frame from the link. Frames of unknown stations are ignored.
    #[inline]
    pub fn handle(&mut self, frame: &mut [u8], now: Time, tx: &mut dyn Transmit, sink: &mut dyn Sink) {
        let Some(from) = source(frame) else { return };
        // With one session the requester itself checks the frame's destination.
        let queues = self.queues_log2 > 0;
        let is_of = |p: &PeerSession| p.mac == from && (!queues || destination(frame) == Some(p.own));
        if !self.peers.get(self.last_peer).is_some_and(is_of) {
            let Some(index) = self.peers.iter().position(is_of) else { return };
            self.last_peer = index;
        }
        let peer = &mut self.peers[self.last_peer];
        tx.steer(peer.queue);
        let mut completer = Completer { core: &mut self.core, mac: peer.mac, now, sink };
        peer.requester.handle(frame, now, tx, &mut completer);
        self.deadline.keep_earlier(peer.requester.deadline());
        if core::mem::take(&mut self.core.congested) {
            self.pause(self.last_peer, Signal::MemoryNode, now);
        }
        // All events are handled before anything else is sent, because they may report that data is lost.
        while let Some(event) = self.peers[self.last_peer].requester.poll_event() {
            self.take_event(self.last_peer, event, now, tx);
        }
        if self.core.mirrors.is_pending() {
            self.deadline.keep_earlier(Deadline::new(now, "writes to mirrored copies"));
        }
    }

    /// Runs due timers. Flush the link afterwards.
    pub fn poll(&mut self, now: Time, tx: &mut dyn Transmit, sink: &mut dyn Sink) {
        for index in 0..self.peers.len() {
            let peer = &mut self.peers[index];
            if peer.requester.deadline().is_due(now) {
                let mut completer = Completer { core: &mut self.core, mac: peer.mac, now, sink };
                tx.steer(peer.queue);
                peer.requester.poll(now, tx, &mut completer);
                if let Some(pacer) = &mut peer.pacer {
                    // The poll may have sent held requests; they are charged now.
                    pacer.charge_sent(peer.requester.wire_bytes());
                    pacer.charge_repeated(peer.requester.counters().retransmitted_bytes);
                }
            }
            while let Some(event) = self.peers[index].requester.poll_event() {
                self.take_event(index, event, now, tx);
            }
        }
        if self.resume_at <= now {
            self.resume_at = Time(u64::MAX);
        }
        self.deadline = Deadline::NEVER;
        if !self.core.stranded.is_empty() {
            self.send_stranded(now, tx);
        }
        if self.mirrors_are_due(now) {
            self.settle_mirrors(now, tx, sink);
        }
        for peer in &self.peers {
            self.deadline.keep_earlier(peer.requester.deadline());
        }
        self.deadline.keep_earlier(Deadline::new(self.resume_at, TOKENS));
        let due_at = self.core.mirrors.due_at();
        self.deadline.keep_earlier(Deadline::new(due_at, "work for mirrored copies"));
        self.deadline = self.deadline.after(now);
    }

    /// Begins an orderly end of all sessions. Flush first; then poll until [`is_closed`](Self::is_closed).
    pub fn close(&mut self, now: Time, sink: &mut dyn Sink) {
        for peer in &mut self.peers {
            let mut completer = Completer { core: &mut self.core, mac: peer.mac, now, sink };
            peer.requester.close(now, &mut completer);
        }
        self.deadline = Deadline::new(Time::ZERO, "the end of the sessions");
    }

    /// Whether all sessions have ended, so that the link may be closed.
    pub fn is_closed(&self) -> bool {
        self.peers.iter().all(|p| !p.requester.is_open() && p.requester.deadline().is_never())
    }

    #[cold]
    fn take_event(&mut self, index: usize, event: SessionEvent, now: Time, tx: &mut dyn Transmit) {
        if let SessionEvent::Opened { incarnation, .. } = &event {
            self.peers[index].away = false;
            let siblings = self.siblings(index);
            let first = siblings.start;
            for sibling in &mut self.peers[siblings] {
                sibling.incarnation = Some(*incarnation);
                // The memory node answers the other shards only after the first shard has a session.
                if index == first {
                    sibling.requester.call_soon(now);
                    self.deadline.keep_earlier(Deadline::new(now, "sessions of further shards"));
                }
            }
            // Cached and stranded lines whose memory node has lost its content are dropped; lines of other memory
            // nodes in the same region stay.
            for (decoder, targets) in self.routes.targets_mut() {
                let mut lost = 0;
                for (position, target) in targets.iter_mut().enumerate().filter(|(_, t)| t.peer == first) {
                    target.incarnation.get_or_insert(*incarnation);
                    if target.mirror.is_some() {
                        // The position's other leg (its second copy) may still have the lines; the manager decides
                        // which leg is read.
                        continue;
                    }
                    lost |= u32::from(target.is_lost(Some(*incarnation))) << position;
                }
                if lost != 0 {
                    self.core.forget(decoder, lost);
                }
            }
            self.send_stranded(now, tx);
        }
        // With a single session, the requester itself records that its session is dead.
        self.peers[index].away |= event == SessionEvent::Dead && self.queues_log2 > 0;
        if self.is_used(index) || !parts_without_memory(&event) {
            self.core.event(EngineEvent::Session { mac: self.peers[index].mac, event });
        }
    }

    /// Whether any region lies on the memory node of this session.
    fn is_used(&self, index: usize) -> bool {
        let first = self.siblings(index).start;
        self.routes.iter().any(|route| route.targets.iter().any(|target| target.peer == first))
            || self.core.mirrors.has_peer(first)
    }
}

/// Whether the event is normal for a memory node on which this CN has no memory: the node is stopping, or
/// refuses the session.
fn parts_without_memory(event: &SessionEvent) -> bool {
    matches!(event, SessionEvent::PeerLeft | SessionEvent::Refused { status: HelloStatus::NotAllowed, .. })
}
