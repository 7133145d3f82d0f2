//! Checks of the legs of mirrors: a silent leg is reported to the manager, and a stale leg is filled when it answers
//! again.

use cxloe_wire::Transmit;
use cxloe_wire::time::Time;

use super::super::{Engine, EngineEvent, Sink};
use super::{LegMode, Mirrors, MissedPages, REPORT_INTERVAL, SILENCE_MAX, WATCH_INTERVAL};

impl Mirrors {
    /// Marks a leg as failing, because it has missed a write, is silent, or has lost its content. The manager
    /// then decides whether it becomes stale.
    pub(in super::super) fn leg_fails(&mut self, mirror: u16, side: usize, now: Time) {
        let Some(mirror) = self.get_mut(mirror) else { return };
        let leg = &mut mirror.legs[side];
        if !leg.failing {
            (leg.failing, leg.since, leg.reported) = (true, now, None);
        }
        self.pending = true;
    }

    /// Marks the leg that is read from as failing, because it did not answer a read or has `refused` it.
    pub(super) fn read_leg_fails(&mut self, mirror: u16, refused: bool, now: Time) {
        let Some(side) = self.get(mirror).map(|mirror| mirror.reads) else { return };
        self.leg_fails(mirror, side, now);
        if let Some(mirror) = self.get_mut(mirror) {
            mirror.legs[side].missed_write |= refused;
        }
    }

    /// Time of the next check of the legs, or of the next attempt of a request for which there was no room.
    #[inline]
    pub(in super::super) fn due_at(&self) -> Time {
        self.watch_at.min(self.fill.retry_at())
    }
}

impl Engine {
    /// Whether completions, or the time of the next check or attempt, have left work for
    /// [`settle_mirrors`](Self::settle_mirrors).
    #[inline]
    pub(in super::super) fn mirrors_are_due(&self, now: Time) -> bool {
        self.core.mirrors.pending || now >= self.core.mirrors.due_at()
    }

    /// Does the work of mirrors that belongs to no single operation: sends owed requests, checks the legs, ends writes,
    /// sends reads again, and copies pages.
    #[cold]
    pub(in super::super) fn settle_mirrors(&mut self, now: Time, tx: &mut dyn Transmit, sink: &mut dyn Sink) {
        self.core.mirrors.pending = false;
        // A request that is still owed is tried again with the next poll.
        let _ = self.send_owed(now, tx);
        if now >= self.core.mirrors.watch_at {
            self.watch_legs(now);
            self.core.mirrors.ended = true;
        }
        if self.core.mirrors.ended {
            self.end_pairs(now, sink);
        }
        self.send_orphans(now, tx, sink);
        self.advance_fill(now, tx);
    }

    /// Checks every leg, and sets the time of the next check.
    fn watch_legs(&mut self, now: Time) {
        let mut any = false;
        for number in 0..self.core.mirrors.list.len() as u16 {
            for side in 0..2 {
                any |= self.core.mirrors.get(number).is_some();
                self.watch_leg(number, side, now);
            }
        }
        // Requests of former mirrors have to end as well.
        let goes_on = any || self.core.mirrors.has_unfinished();
        self.core.mirrors.watch_at = if goes_on { now + WATCH_INTERVAL } else { Time(u64::MAX) };
    }

    fn watch_leg(&mut self, number: u16, side: usize, now: Time) {
        let Some(mirror) = self.core.mirrors.get(number) else { return };
        let leg = &mirror.legs[side];
        let siblings = self.siblings(leg.peer);
        let sessions = &self.peers[siblings];
        let mac = self.peers[leg.peer].mac;
        let is_open = sessions.iter().all(|session| session.requester.is_open());
        let silent = |since: Time| now - since > SILENCE_MAX;
        let is_silent = sessions.iter().filter_map(|session| session.requester.silent_since()).any(silent);
        let heard = sessions.iter().map(|session| session.requester.last_heard()).min().unwrap_or(Time::ZERO);
        let lost =
            leg.incarnation.zip(self.peer_incarnation(leg.peer)).is_some_and(|(ours, now)| ours != now);
        let (has_copies, in_reads) = (self.core.mirrors.fill.has(number), mirror.reads == side);
        let pages = mirror.pages();
        let Some(mirror) = self.core.mirrors.get_mut(number) else { return };
        let (route, epoch, filled_epoch) = (mirror.route, mirror.epoch, mirror.filled_epoch);
        let leg = &mut mirror.legs[side];
        match leg.mode {
            LegMode::Synced | LegMode::Joining if is_silent || lost => {
                self.core.mirrors.leg_fails(number, side, now);
            }
            // The leg answers again and has missed nothing, so the manager need not decide.
            LegMode::Synced | LegMode::Joining if leg.failing && is_open && !leg.missed_write => {
                leg.failing = false;
            }
            // The leg has answered since it became stale, so it can be filled.
            LegMode::Stale if is_open && !is_silent && !lost && heard > leg.since && !in_reads => {
                leg.mode = LegMode::Filling;
            }
            LegMode::Filling if !is_open || is_silent || lost => {
                (leg.mode, leg.since) = (LegMode::Stale, now);
                if lost {
                    leg.missed = MissedPages::all(pages);
                }
                self.core.end_copies(number);
                self.core.abandon_side(number, side);
            }
            // All pages are copied; the leg is reported as filled below.
            LegMode::Filling if leg.missed.is_empty() && !has_copies => {
                (leg.mode, leg.reported, leg.failing) = (LegMode::Joining, None, false);
                mirror.filled_epoch = epoch;
            }
            _ => {}
        }
        let Some(mirror) = self.core.mirrors.get_mut(number) else { return };
        let leg = &mut mirror.legs[side];
        let due = leg.reported.is_none_or(|at| now - at >= REPORT_INTERVAL);
        let cmem = leg.cmem;
        if due && leg.failing && leg.must_have() {
            leg.reported = Some(now);
            self.core.event(EngineEvent::LegSilent { hpa: route, mac, epoch });
        } else if due && leg.mode == LegMode::Joining {
            leg.reported = Some(now);
            let epoch = filled_epoch.max(mirror.filled_epoch);
            self.core.event(EngineEvent::LegFilled { hpa: route, mac, cmem, epoch });
        }
    }
}
