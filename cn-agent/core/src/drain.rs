//! Draining of regions: dirty lines of each region are written back to its memory nodes, a few in each round of the
//! worker, while other regions are served. Then the region's routes are removed, and either the control thread is
//! notified or the region is attached anew.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::time::Duration;

use cxloe_wire::Transmit;
use cxloe_wire::time::Time;

use crate::attach::SessionSettings;
use crate::attachments::Attachment;
use crate::engine::{DrainReason, Engine, WriteBackRange};

struct Drain {
    region: Attachment,
    work: WriteBackRange,
    then: DrainEnd,
    since: Time,
    /// Whether a log line has reported that the drain takes long.
    slow_logged: bool,
}

/// Action after all dirty lines of a region have been written back.
enum DrainEnd {
    /// Keep refusing operations on the region, and notify the control thread that the region with this ticket is
    /// drained.
    Tell(u64),
    /// Attach the region anew, as described here; `None` until the order to attach arrives.
    Attach(Option<Box<Attachment>>),
}

/// Action for the worker to carry out when a drain has ended.
pub enum Drained {
    /// Notify the control thread that the region with this ticket is drained.
    Tell(u64),
    Attach(Box<Attachment>),
}

pub enum AttachOutcome {
    Now(Box<Attachment>),
    /// The region is attached when its former attachment is drained.
    Later,
    /// The former attachment stays in use; only the part behind the first `from` bytes is to be added.
    Stays {
        region: Box<Attachment>,
        from: u64,
    },
}

/// The drains in progress; the worker advances them once in each round.
#[derive(Default)]
pub struct Drains {
    all: Vec<Drain>,
    /// Whether any drain made progress in the last round, so that the next round should follow soon.
    gets_on: bool,
    /// Addresses of regions that are detached while the manager copies them (a snapshot, a clone), and the start of
    /// each pause: operations are retried until the region is attached anew, or for the session's limit.
    paused: Vec<(core::ops::Range<u64>, Time)>,
}

fn range(region: &Attachment) -> core::ops::Range<u64> {
    region.hpa..region.hpa + region.window
}

impl Drains {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && self.paused.is_empty()
    }

    /// Whether any drain makes progress. Drains that wait for a silent memory node do not.
    pub fn makes_progress(&self) -> bool {
        self.gets_on
    }

    fn find(&mut self, hpa: u64) -> Option<&mut Drain> {
        self.all.iter_mut().find(|drain| drain.region.hpa == hpa)
    }

    /// Drains a region; `ticket` identifies the report of its end. Operations on the region fail from now on, except if
    /// it is detached only while the manager copies it: then they are retried until it is attached again.
    pub fn drain(&mut self, engine: &mut Engine, region: Attachment, ticket: u64, now: Time) {
        if region.region.release.is_some_and(|release| release.copy) {
            let paused = (range(&region), now);
            self.begin(engine, region, DrainReason::Moving, DrainEnd::Tell(ticket), now);
            self.paused.push(paused);
        } else {
            self.begin(engine, region, DrainReason::Draining, DrainEnd::Tell(ticket), now);
        }
    }

    /// Drains a region whose routes change. A later order attaches the region again, with the new routes.
    pub fn move_away(&mut self, engine: &mut Engine, region: Attachment, now: Time) {
        self.begin(engine, region, DrainReason::Moving, DrainEnd::Attach(None), now);
    }

    fn begin(
        &mut self,
        engine: &mut Engine,
        region: Attachment,
        why: DrainReason,
        then: DrainEnd,
        now: Time,
    ) {
        self.end_pause(region.hpa);
        let work = engine.begin_drain(range(&region), why);
        match self.find(region.hpa) {
            // The attachment of the first order is kept, because its routes are the ones to remove at the end.
            Some(known) => (known.work, known.then, known.slow_logged) = (work, then, false),
            None => self.all.push(Drain { region, work, then, since: now, slow_logged: false }),
        }
        self.gets_on = true;
    }

    /// Handles an order to attach `region`. If the region is being drained, it is attached after the drain. An
    /// exception is a new attachment that only extends the former one: it cancels the drain, and operations on the
    /// region, with its dirty lines, continue.
    pub fn attach(&mut self, engine: &mut Engine, region: Box<Attachment>) -> AttachOutcome {
        self.end_pause(region.hpa);
        let Some(at) = self.all.iter().position(|drain| drain.region.hpa == region.hpa) else {
            return AttachOutcome::Now(region);
        };
        if let Some(from) = region.grown_from(&self.all[at].region) {
            engine.end_drain(region.hpa);
            self.all.swap_remove(at);
            return AttachOutcome::Stays { region, from };
        }
        self.postpone(engine, at, region);
        AttachOutcome::Later
    }

    /// Handles an order to extend `region`. If the region is being drained, it is attached at its new size
    /// after the drain; otherwise it is returned, to be extended now.
    pub fn extend(&mut self, engine: &mut Engine, region: Attachment) -> Option<Attachment> {
        match self.all.iter().position(|drain| drain.region.hpa == region.hpa) {
            Some(at) => {
                self.postpone(engine, at, Box::new(region));
                None
            }
            None => Some(region),
        }
    }

    /// Handles a change of the legs (copies on memory nodes) of `region`. Returns whether the region is being drained
    /// to be attached anew; it then gets these legs, while its present routes are to others.
    pub fn follow_legs(&mut self, region: &Attachment) -> bool {
        match self.find(region.hpa).map(|drain| &mut drain.then) {
            Some(DrainEnd::Attach(Some(next))) => {
                **next = region.clone();
                true
            }
            _ => false,
        }
    }

    fn postpone(&mut self, engine: &mut Engine, at: usize, region: Box<Attachment>) {
        let known = &mut self.all[at];
        known.work = engine.begin_drain(range(&region), DrainReason::Moving);
        known.then = DrainEnd::Attach(Some(region));
    }

    /// Cancels the drain of the region at `hpa`, whose content is gone. Returns the attachment whose routes
    /// still exist.
    pub fn forget(&mut self, hpa: u64) -> Option<Attachment> {
        self.end_pause(hpa);
        let at = self.all.iter().position(|drain| drain.region.hpa == hpa)?;
        Some(self.all.swap_remove(at).region)
    }

    fn end_pause(&mut self, hpa: u64) {
        self.paused.retain(|(range, _)| range.start != hpa);
    }

    /// Lets operations fail on regions that the manager has not given back within `wait_limit`: it may be away.
    fn refuse_late(&mut self, engine: &mut Engine, wait_limit: Duration, now: Time) {
        self.paused.retain(|(range, since)| {
            let late = now >= *since + wait_limit;
            if late {
                tracing::warn!(
                    hpa = format_args!("{:#x}", range.start),
                    "a region that was detached to be copied is not back within the session's limit: operations fail"
                );
                engine.refuse_drained(range.start);
            }
            !late
        });
    }

    /// Advances all drains; returns one that has ended. A drain for a move ends after `wait_limit` even if lines
    /// could not be written back; a drain for the manager ends only when all lines are written back.
    pub fn advance(
        &mut self,
        engine: &mut Engine,
        station: &SessionSettings,
        wait_limit: Duration,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Option<Drained> {
        let mut done = None;
        self.refuse_late(engine, wait_limit, now);
        self.gets_on = false;
        for (at, drain) in self.all.iter_mut().enumerate() {
            let Drain { region, work, then, since, slow_logged } = drain;
            let late = now >= *since + wait_limit;
            let result = engine.write_back_range(work, now, tx);
            self.gets_on |= result.is_ok();
            if late && !core::mem::replace(slow_logged, late) {
                let why = result.as_ref().err().map(ToString::to_string);
                tracing::warn!(region = %region.region.name, why, "writing back a region's modified lines takes long");
            }
            let ready = match then {
                DrainEnd::Tell(_) => true,
                DrainEnd::Attach(next) => next.is_some(),
            };
            let written = result == Ok(true);
            let given_up = late && !written && matches!(then, DrainEnd::Attach(_));
            if ready && (written || given_up) {
                if given_up {
                    tracing::error!(
                        region = %region.region.name,
                        "not everything modified could be written back within the session's limit"
                    );
                }
                done = Some(at);
                break;
            }
        }
        let Drain { region, then, .. } = self.all.swap_remove(done?);
        station.detach(engine, &region.region, region.hpa);
        tracing::info!(
            region = %region.region.name, hpa = format_args!("{:#x}", region.hpa), "region detached"
        );
        match then {
            DrainEnd::Tell(ticket) => Some(Drained::Tell(ticket)),
            DrainEnd::Attach(next) => {
                // Operations on these addresses are permitted again, because the region is attached anew at the same
                // addresses.
                engine.end_drain(region.hpa);
                next.map(Drained::Attach)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cxloe_fabric::model::{Release, UnbindOption};
    use cxloe_net::Link;

    use super::*;
    use crate::attach::tests::Node;
    use crate::attachments::tests::spread;
    use crate::engine::EngineError;

    const HPA: u64 = 1 << 40;
    const LIMIT: Duration = Duration::from_secs(1);

    /// A node with an attached region, its drains, and the attachment of the region as the manager reclaims it.
    fn reclaimed(copy: bool) -> (Node, Drains, Attachment) {
        let mut node = Node::new();
        let mut region = spread("r", 2 << 20, 1);
        let option = UnbindOption::Managed;
        node.station
            .attach(&mut node.engine, &Attachment::over_ethernet(region.clone(), HPA, 64 << 20), Time::ZERO)
            .unwrap();
        region.release = Some(Release { option, destroy: false, done: false, to: None, seal: false, copy });
        (node, Drains::default(), Attachment::over_ethernet(region, HPA, 64 << 20))
    }

    fn advance(node: &mut Node, drains: &mut Drains, now: Time) -> Option<Drained> {
        drains.advance(&mut node.engine, &node.station, LIMIT, now, node.link.transmit())
    }

    #[test]
    fn operations_wait_while_a_region_is_copied() {
        let (mut node, mut drains, region) = reclaimed(true);
        drains.drain(&mut node.engine, region.clone(), 7, Time::ZERO);
        assert_eq!(node.read(HPA), EngineError::Busy);
        assert!(matches!(advance(&mut node, &mut drains, Time::ZERO), Some(Drained::Tell(7))));
        assert_eq!(node.read(HPA), EngineError::Busy, "it is detached, and comes back");
        assert!(!drains.is_empty(), "the pause has an end");
        assert!(matches!(drains.attach(&mut node.engine, Box::new(region)), AttachOutcome::Now(_)));
        assert!(drains.is_empty());
    }

    #[test]
    fn operations_fail_if_a_copied_region_does_not_come_back() {
        let (mut node, mut drains, region) = reclaimed(true);
        drains.drain(&mut node.engine, region, 7, Time::ZERO);
        assert!(advance(&mut node, &mut drains, Time::ZERO).is_some());
        let almost = Time::ZERO + (LIMIT - Duration::from_nanos(1));
        assert!(advance(&mut node, &mut drains, almost).is_none());
        assert_eq!(node.read(HPA), EngineError::Busy);
        assert!(advance(&mut node, &mut drains, Time::ZERO + LIMIT).is_none());
        assert_eq!(node.read(HPA), EngineError::Draining(HPA));
        assert!(drains.is_empty());
    }

    #[test]
    fn a_region_is_attached_anew_with_the_legs_that_it_has_by_then() {
        let (mut node, mut drains, region) = reclaimed(false);
        assert!(!drains.follow_legs(&region), "it is not drained");
        drains.move_away(&mut node.engine, region.clone(), Time::ZERO);
        let mut elsewhere = region;
        elsewhere.region.legs[0].cmem_base += 2 << 20;
        let outcome = drains.attach(&mut node.engine, Box::new(elsewhere.clone()));
        assert!(matches!(outcome, AttachOutcome::Later));
        elsewhere.region.epoch += 1;
        assert!(drains.follow_legs(&elsewhere));
        let drained = advance(&mut node, &mut drains, Time::ZERO);
        assert!(matches!(drained, Some(Drained::Attach(region)) if *region == elsewhere));
    }

    #[test]
    fn operations_fail_at_once_on_a_region_that_is_taken_back() {
        let (mut node, mut drains, region) = reclaimed(true);
        drains.drain(&mut node.engine, region, 7, Time::ZERO);
        // The order changes: the region is to be destroyed instead.
        let (_, _, region) = reclaimed(false);
        drains.drain(&mut node.engine, region, 8, Time::ZERO);
        assert_eq!(node.read(HPA), EngineError::Draining(HPA));
        assert!(matches!(advance(&mut node, &mut drains, Time::ZERO), Some(Drained::Tell(8))));
        assert!(drains.is_empty());
    }
}
