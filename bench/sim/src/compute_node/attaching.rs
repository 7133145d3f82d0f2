//! What the manager says of regions, carried out on the engine as the worker of `cn-agent` does it; and what that means
//! for what their lines may read as.

use std::ops::Range;

use cxloe_cn_core::attachments::{Attachment, Change};
use cxloe_cn_core::drain::{AttachOutcome, Drained};
use cxloe_fabric::model::LegState;
use cxloe_link::Link;
use cxloe_wire::time::Time;

use super::ComputeNode;
use crate::broken::Broken;
use crate::layout::Set;
use crate::mistake::Mistake;
use crate::region::{Place, Region};
use crate::register::Origin;
use crate::surroundings::Surroundings;
use crate::trace::Name;

fn addresses(attachment: &Attachment) -> Range<u64> {
    attachment.hpa..attachment.hpa + attachment.window
}

impl ComputeNode {
    /// Does what the manager's news demand.
    pub(super) fn obey(&mut self, change: Change, now: Time) {
        self.trace.say(now, Name(self.mac), || said(&change));
        let Some(managed) = &mut self.managed else { return };
        let engine = &mut self.engine;
        match change {
            Change::Attach(attachment) => match managed.drains.attach(engine, Box::new(attachment)) {
                AttachOutcome::Now(attachment) => self.attach(&attachment, now),
                AttachOutcome::Stays { region, from } => {
                    managed.moving.retain(|(at, _)| *at != region.hpa);
                    self.extend(&region, from, now);
                }
                AttachOutcome::Later => {}
            },
            Change::Extend { attachment, from } => {
                if let Some(attachment) = managed.drains.extend(engine, attachment) {
                    self.extend(&attachment, from, now);
                }
            }
            Change::Move(attachment) => {
                if managed.moving.iter().all(|(hpa, _)| *hpa != attachment.hpa) {
                    managed.moving.push((attachment.hpa, now));
                }
                managed.drains.move_away(engine, attachment, now);
            }
            Change::Drain { attachment, ticket } if self.mistake == Some(Mistake::LetsGoEarly) => {
                managed.attachments.drained(ticket);
                managed.station.detach(engine, &attachment.region, attachment.hpa);
                let parts = self.layout.remove(addresses(&attachment));
                self.give_up(&parts);
            }
            Change::Drain { attachment, ticket } => {
                managed.tickets.push_back((ticket, attachment.hpa, attachment.window));
                if managed.moving.iter().all(|(hpa, _)| *hpa != attachment.hpa) {
                    managed.moving.push((attachment.hpa, now));
                }
                managed.drains.drain(engine, attachment, ticket, now);
            }
            Change::Drop(attachment) => {
                let hpa = attachment.hpa;
                engine.end_drain(hpa);
                let before = managed.drains.forget(hpa).map(|before| before.region);
                for region in before.iter().chain([&attachment.region]) {
                    managed.station.detach(engine, region, hpa);
                }
                managed.moving.retain(|(at, _)| *at != hpa);
                self.dropped(addresses(&attachment));
            }
            Change::Keys(told) => managed.station.tell_keys(engine, told, now),
            Change::Hold(held) => engine.set_in_reset(held),
        }
    }

    fn extend(&mut self, attachment: &Attachment, from: u64, now: Time) {
        let Some(managed) = &mut self.managed else { return };
        if attachment.region.size > from {
            managed.station.extend(&mut self.engine, attachment, from, now).expect("its place is free");
            self.attached(attachment, from);
        }
    }

    fn attach(&mut self, attachment: &Attachment, now: Time) {
        let Some(managed) = &mut self.managed else { return };
        self.engine.end_drain(attachment.hpa);
        managed.station.attach(&mut self.engine, attachment, now).expect("its place is free");
        managed.moving.retain(|(at, _)| *at != attachment.hpa);
        // It may have been elsewhere.
        self.layout.remove(addresses(attachment));
        self.attached(attachment, 0);
    }

    /// The decoders of a region from the byte `from` of it on have routes.
    fn attached(&mut self, attachment: &Attachment, from: u64) {
        let Attachment { region, hpa, .. } = attachment;
        for (decoder, shape) in region.decoders.iter().enumerate() {
            if !shape.committed || shape.offset < from {
                continue;
            }
            let parts = (0..shape.ways.count()).map(|position| {
                let place =
                    Place { name: region.name.clone(), decoder, position, created_ms: region.created_ms };
                let mut legs = region.legs.iter();
                let leg = legs.find(|leg| (leg.decoder as usize, leg.position) == (decoder, position));
                let leg = leg.expect("every position has a leg");
                let mn = leg.memory_node.as_str().trim_start_matches("mn").parse().expect("mn and a number");
                self.part(place, mn, leg.cmem_base, leg.incarnation, leg.state == LegState::Lost)
            });
            let parts: Vec<_> = parts.collect();
            let bytes = shape.size / u64::from(shape.ways.count());
            let set = Set { base: hpa + shape.offset, granularity: shape.granularity, parts, bytes };
            self.layout.add(set);
        }
        if self.layout.is_spread() {
            let lines = self.layout.parts().len() * self.shape.lines();
            self.hot = self.random.below(lines as u64);
        }
    }

    /// The part of a region at that place: the one it was if it has kept its content, or another life of it.
    fn part(&mut self, place: Place, mn: usize, cmem: u64, born: Option<u64>, lost: bool) -> usize {
        let known = self.regions.iter().position(|r| r.place.as_ref().is_some_and(|p| p.is_at(&place)));
        let life = known.map_or(0, |at| self.regions[at].life);
        if let Some(at) = known {
            let region = &mut self.regions[at];
            if region.place.as_ref() == Some(&place) && (region.cmem, region.born) == (cmem, born) {
                region.lost = lost;
                return at;
            }
        }
        let origin = Origin { cn: self.index, mn, life: life + 1, losses: 0, zero: true };
        let session = self.session_of(mn);
        let region =
            Region { lost, place: Some(place), ..Region::new(origin, cmem, self.shape, born, session) };
        match known {
            Some(at) => {
                self.regions[at] = region;
                at
            }
            None => {
                self.regions.push(region);
                self.regions.len() - 1
            }
        }
    }

    /// The incarnation that the last session with a memory node told.
    fn session_of(&self, mn: usize) -> Option<u64> {
        self.regions.iter().filter(|region| region.origin.mn == mn).find_map(|region| region.session)
    }

    /// The content at these addresses is gone.
    fn dropped(&mut self, range: Range<u64>) {
        let parts = self.layout.remove(range);
        self.give_up(&parts);
        for part in parts {
            self.regions[part].ends();
        }
    }

    /// Goes on with regions on their way out.
    pub(super) fn drain(&mut self, now: Time, around: Surroundings<'_>) -> Result<(), Broken> {
        let Some(managed) = self.managed.as_mut().filter(|managed| !managed.drains.is_empty()) else {
            return Ok(());
        };
        managed.drained_at = now;
        let patience = managed.station.timing.dead_after;
        let tx = self.link.transmit();
        let drained = managed.drains.go_on(&mut self.engine, &managed.station, patience, now, tx);
        match drained {
            None => {}
            Some(Drained::Tell(ticket)) => {
                managed.attachments.drained(ticket);
                let at = managed.tickets.iter().position(|(known, ..)| *known == ticket);
                let (_, hpa, window) = at.and_then(|at| managed.tickets.remove(at)).expect("a known ticket");
                managed.moving.retain(|(at, _)| *at != hpa);
                let parts = self.layout.remove(hpa..hpa + window);
                self.give_up(&parts);
                for part in parts {
                    self.check_stored(part, around)?;
                }
            }
            Some(Drained::Attach(attachment)) => {
                let moving = managed.moving.iter().find(|(hpa, _)| *hpa == attachment.hpa);
                let given_up = moving.is_some_and(|(_, since)| now >= *since + patience);
                for part in self.layout.parts_in(addresses(&attachment)).into_iter().filter(|_| given_up) {
                    // What could not be written back in time is lost, as when the process is killed.
                    self.regions[part].ends();
                }
                self.attach(&attachment, now);
            }
        }
        Ok(())
    }
}

/// A change in words.
fn said(change: &Change) -> String {
    let what = |what: &str, attachment: &Attachment| {
        let Attachment { region, hpa, .. } = attachment;
        let legs: Vec<_> = region
            .legs
            .iter()
            .map(|leg| {
                format!("{}:{:#x} {:x?} {:?}", leg.memory_node, leg.cmem_base, leg.incarnation, leg.state)
            })
            .collect();
        format!("{what} {} ({}) at {hpa:#x}: {legs:?}", region.name, region.state)
    };
    match change {
        Change::Attach(attachment) => what("attach", attachment),
        Change::Extend { attachment, from } => what(&format!("extend from {from:#x} on"), attachment),
        Change::Move(attachment) => what("move", attachment),
        Change::Drain { attachment, ticket } => what(&format!("let go, ticket {ticket}, of"), attachment),
        Change::Drop(attachment) => what("drop", attachment),
        Change::Hold(held) => format!("held: {held}"),
        Change::Keys(keys) => format!("keys of {} memory nodes", keys.len()),
    }
}
