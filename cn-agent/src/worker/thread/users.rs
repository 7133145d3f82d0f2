//! The users of the worker's engine, and their steps in a round: clients with rings, programs that map regions, and
//! drains of regions for the manager.

use crossbeam_channel::Sender;
use cxloe_cn_core::attach::SessionSettings;
use cxloe_cn_core::drain::Drains;
use cxloe_cn_core::engine::{Engine, EngineError, RequestId, Sink};
use cxloe_cn_core::node::{Found, Users};
use cxloe_link::keys::Handshaker;
use cxloe_link::wait::idle::{Pending, Seen};
use cxloe_paging::Spaces;
use cxloe_port::handshakes;
use cxloe_port::signals::Signals;
use cxloe_rings::clients::Clients;
use cxloe_wire::Transmit;
use cxloe_wire::machine::{Deadline, StateMachine};
use cxloe_wire::time::Time;

use super::waiting_moves::WaitingMoves;

/// Users of the engine, which receive the results of operations.
pub(super) struct EngineUsers {
    pub clients: Clients,
    pub spaces: Spaces,
    /// Sources of pause signals for requests.
    pub signals: Signals,
    /// Computes key exchanges for sessions with keys; `None` without a key.
    pub handshaker: Option<Handshaker<usize>>,
    pub drains: Drains,
    /// Regions that are to move to another node, but that programs still map.
    pub waiting_moves: WaitingMoves,
    /// Sends the ticket of an order to drain a region, when all of the region's lines are written back.
    pub sender: Sender<u64>,
    /// Common parameters of the sessions.
    pub station: SessionSettings,
    /// Whether the worker is ending; then nothing is submitted any more.
    pub ends: bool,
    /// Whether a client's operation waits because the engine had no room for it.
    refused: bool,
    /// Whether an awake client on this thread's CPU got completions in the last round.
    woke_client: bool,
}

impl EngineUsers {
    pub fn new(
        clients: Clients,
        spaces: Spaces,
        signals: Signals,
        handshaker: Option<Handshaker<usize>>,
        sender: Sender<u64>,
        station: SessionSettings,
    ) -> EngineUsers {
        EngineUsers {
            clients,
            spaces,
            signals,
            handshaker,
            drains: Drains::default(),
            waiting_moves: WaitingMoves::default(),
            sender,
            station,
            ends: false,
            refused: false,
            woke_client: false,
        }
    }

    /// State after a round, by which the worker decides whether to continue at once.
    #[inline]
    pub fn seen(&self, engine: &Engine, found: Found) -> Seen {
        let drains = !self.drains.is_empty() && self.drains.makes_progress();
        Seen {
            work: found.work(),
            in_flight: engine.in_flight() > 0,
            backpressured: self.refused || drains || self.spaces.has_work(),
            maps: !self.spaces.is_empty(),
            woke_client: self.woke_client,
        }
    }

    /// Time of the next timer of the engine or of a mapped region, and its reason.
    pub fn deadline(&self, engine: &Engine) -> Deadline {
        engine.deadline().min(self.spaces.deadline())
    }

    /// Conditions that limit the next sleep: timers, computations and unsent frames.
    pub fn pending(&self, engine: &Engine, unsent: bool) -> Pending {
        Pending {
            deadline: self.deadline(engine).at,
            computing: self.handshaker.as_ref().is_some_and(Handshaker::is_busy),
            unsent,
        }
    }
}

impl Users for EngineUsers {
    #[inline]
    fn sink(&mut self) -> &mut dyn Sink {
        self
    }

    /// Requests of all clients in a round share frames, if they fit.
    #[inline]
    fn shares_frames(&self) -> bool {
        true
    }

    #[inline]
    fn received(&mut self, engine: &mut Engine, _frames: usize, now: Time) {
        self.signals.poll(engine, || now);
    }

    #[inline]
    fn submit(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        if self.ends {
            self.refused = false;
            return 0;
        }
        let served = self.clients.serve(engine, self.spaces.mapped(), now, tx);
        self.refused = served.backpressured;
        served.taken
    }

    #[inline]
    fn demand(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        if self.ends { 0 } else { self.spaces.serve(engine, now, tx) }
    }

    #[inline]
    fn background(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        if self.ends { 0 } else { self.spaces.turn(engine, now, tx) }
    }

    #[inline]
    fn handshakes(&mut self, engine: &mut Engine, now: Time) {
        if let Some(handshaker) = &mut self.handshaker {
            handshakes::exchange(handshaker, engine, now);
        }
    }

    #[inline]
    fn drain(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) {
        if !self.waiting_moves.is_empty() && !self.ends {
            self.release_unmapped(engine, now);
        }
        if !self.drains.is_empty() && !self.ends {
            self.advance_drains(engine, now, tx);
        }
    }

    #[inline]
    fn wake(&mut self) {
        self.woke_client = self.clients.wake();
    }
}

impl Sink for EngineUsers {
    #[inline]
    fn read(&mut self, id: RequestId, data: &[u8]) {
        if id.is_paging() { self.spaces.read(id, data) } else { self.clients.read(id, data) }
    }

    #[inline]
    fn written(&mut self, id: RequestId) {
        if id.is_paging() { self.spaces.written(id) } else { self.clients.written(id) }
    }

    fn failed(&mut self, id: RequestId, error: EngineError) {
        if id.is_paging() { self.spaces.failed(id, error) } else { self.clients.failed(id, error) }
    }
}
