//! Regions on their way out: what is modified of each goes back to its memory nodes, a little in each round of the worker,
//! while everything else is served. Then its routes go, and either control is told, or the region is attached anew.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::time::Duration;

use cxloe_wire::Transmit;
use cxloe_wire::time::Time;

use crate::attach::Station;
use crate::attachments::Attachment;
use crate::engine::{DrainReason, Engine, WriteBackRange};

/// A region on its way out.
struct Drain {
    region: Attachment,
    work: WriteBackRange,
    then: Then,
    since: Time,
    /// Whether it was said that it takes long.
    told: bool,
}

/// What comes after.
enum Then {
    /// It stays closed; control is told with this ticket.
    Tell(u64),
    /// It is attached as this; until it is known how, nothing.
    Attach(Option<Box<Attachment>>),
}

/// What has come of a drain, for the worker to carry on with.
pub enum Drained {
    /// Control is to be told.
    Tell(u64),
    /// This is to be attached.
    Attach(Box<Attachment>),
}

/// What becomes of an order to attach a region.
pub enum AttachOutcome {
    /// It is to be attached now.
    Now(Box<Attachment>),
    /// It is attached when what is attached of it is out.
    Later,
    /// All that is attached of it stays; what is behind the first `from` bytes is to be added.
    Stays {
        /// As it is now.
        region: Box<Attachment>,
        /// Bytes that are reachable.
        from: u64,
    },
}

/// All regions on their way out.
#[derive(Default)]
pub struct Drains {
    all: Vec<Drain>,
    /// Whether any gets on, so that it is worth coming back soon.
    gets_on: bool,
}

fn range(region: &Attachment) -> core::ops::Range<u64> {
    region.hpa..region.hpa + region.window
}

impl Drains {
    /// Whether nothing is on its way out.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether any gets on. Those that wait for a memory node that does not answer do not.
    pub fn gets_on(&self) -> bool {
        self.gets_on
    }

    fn find(&mut self, hpa: u64) -> Option<&mut Drain> {
        self.all.iter_mut().find(|drain| drain.region.hpa == hpa)
    }

    /// Lets go of a region; `ticket` says so when it is done.
    pub fn drain(&mut self, engine: &mut Engine, region: Attachment, ticket: u64, now: Time) {
        self.begin(engine, region, DrainReason::Draining, Then::Tell(ticket), now);
    }

    /// Takes a region out of the way of itself: an order to attach it follows.
    pub fn move_away(&mut self, engine: &mut Engine, region: Attachment, now: Time) {
        self.begin(engine, region, DrainReason::Moving, Then::Attach(None), now);
    }

    fn begin(&mut self, engine: &mut Engine, region: Attachment, why: DrainReason, then: Then, now: Time) {
        let work = engine.begin_drain(range(&region), why);
        match self.find(region.hpa) {
            // What is attached, and has to go, is what was there at first.
            Some(known) => (known.work, known.then, known.told) = (work, then, false),
            None => self.all.push(Drain { region, work, then, since: now, told: false }),
        }
        self.gets_on = true;
    }

    /// An order to attach `region`: if it is on its way out, it is attached when it is out, unless all that is attached of
    /// it may stay where it is: then it is open again, with everything modified.
    pub fn attach(&mut self, engine: &mut Engine, region: Box<Attachment>) -> AttachOutcome {
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

    /// An order to make reachable what `region` has grown by: if it is on its way out, it is attached with that when it is
    /// out. Otherwise it is given back.
    pub fn extend(&mut self, engine: &mut Engine, region: Attachment) -> Option<Attachment> {
        match self.all.iter().position(|drain| drain.region.hpa == region.hpa) {
            Some(at) => {
                self.postpone(engine, at, Box::new(region));
                None
            }
            None => Some(region),
        }
    }

    fn postpone(&mut self, engine: &mut Engine, at: usize, region: Box<Attachment>) {
        let known = &mut self.all[at];
        known.work = engine.begin_drain(range(&region), DrainReason::Moving);
        known.then = Then::Attach(Some(region));
    }

    /// The content of the region at `hpa` is gone: nothing is waited for. Returns what is still attached of it.
    pub fn forget(&mut self, hpa: u64) -> Option<Attachment> {
        let at = self.all.iter().position(|drain| drain.region.hpa == hpa)?;
        Some(self.all.swap_remove(at).region)
    }

    /// Goes on with all of them; returns one that is done. A region that is being moved is given up to what can be had
    /// of it after `patience`; one that the manager wants back is not let go of before everything is where it belongs.
    pub fn go_on(
        &mut self,
        engine: &mut Engine,
        station: &Station,
        patience: Duration,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Option<Drained> {
        let mut done = None;
        self.gets_on = false;
        for (at, drain) in self.all.iter_mut().enumerate() {
            let Drain { region, work, then, since, told } = drain;
            let late = now >= *since + patience;
            let result = engine.write_back_range(work, now, tx);
            self.gets_on |= result.is_ok();
            if late && !core::mem::replace(told, late) {
                let why = result.as_ref().err().map(ToString::to_string);
                tracing::warn!(region = %region.region.name, why, "writing back what is modified of a region takes long");
            }
            let ready = match then {
                Then::Tell(_) => true,
                Then::Attach(next) => next.is_some(),
            };
            let written = result == Ok(true);
            let given_up = late && !written && matches!(then, Then::Attach(_));
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
            Then::Tell(ticket) => Some(Drained::Tell(ticket)),
            Then::Attach(next) => {
                engine.end_drain(region.hpa);
                next.map(Drained::Attach)
            }
        }
    }
}
