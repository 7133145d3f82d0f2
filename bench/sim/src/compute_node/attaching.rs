//! Orders of a node's control: the simulated worker carries them out at its engine as `cn-agent`'s worker does, and
//! records the values that lines may have afterwards.

use std::ops::Range;

use cxloe_cn_core::attachments::{Attachment, AttachmentChange};
use cxloe_cn_core::drain::{AttachOutcome, Drained};
use cxloe_cn_core::engine::Engine;
use cxloe_fabric::model::LegState;
use cxloe_wire::Transmit;
use cxloe_wire::time::Time;

use super::Program;
use super::managed::{Order, Orders};
use super::ownership::Structure;
use crate::layout::Set;
use crate::node_context::NodeContext;
use crate::planted_fault::PlantedFault;
use crate::region::{Region, RegionPart};
use crate::register::Origin;
use crate::trace::Name;
use crate::violation::InvariantViolation;

fn addresses(attachment: &Attachment) -> Range<u64> {
    attachment.hpa..attachment.hpa + attachment.window
}

impl Program {
    /// Carries out the orders that wait, as `cn-agent`'s worker does between two rounds of its loop.
    pub fn follow_orders(&mut self, engine: &mut Engine, now: Time) {
        let Some(Orders { waiting, event }) = self.orders.take() else { return };
        waiting.into_iter().for_each(|order| self.carry_out(engine, order, now));
        if let Some(managed) = &mut self.managed {
            managed.followed(engine, event);
        }
    }

    /// Carries out one order of the node's control.
    pub fn carry_out(&mut self, engine: &mut Engine, order: Order, now: Time) {
        match order {
            Order::Apply(change) => self.apply_change(engine, change, now),
            Order::OpenSessions(attachment) => {
                let name = &attachment.region.name;
                self.trace.log(now, Name(self.name), || format!("open sessions for {name}"));
                if let Some(managed) = &self.managed {
                    managed.station.open_sessions(engine, &attachment, now);
                }
            }
        }
    }

    /// Applies one region change to the engine, and to the record of what lines may contain.
    fn apply_change(&mut self, engine: &mut Engine, change: AttachmentChange, now: Time) {
        self.trace.log(now, Name(self.name), || description(&change));
        if let Some(attachment) = change.attachment() {
            self.uses.record(Structure::Region(attachment.hpa));
        }
        let Some(managed) = &mut self.managed else { return };
        match change {
            AttachmentChange::Attach(attachment) => match managed.drains.attach(engine, Box::new(attachment))
            {
                AttachOutcome::Now(attachment) => self.attach(engine, &attachment, now),
                AttachOutcome::Stays { region, from } => {
                    managed.moving.retain(|(at, _)| *at != region.hpa);
                    self.extend(engine, &region, from, now);
                }
                AttachOutcome::Later => {}
            },
            AttachmentChange::Extend { attachment, from } => {
                if let Some(attachment) = managed.drains.extend(engine, attachment) {
                    self.extend(engine, &attachment, from, now);
                }
            }
            AttachmentChange::Move(attachment) => {
                if managed.moving.iter().all(|(hpa, _)| *hpa != attachment.hpa) {
                    managed.moving.push((attachment.hpa, now));
                }
                managed.drains.move_away(engine, attachment, now);
            }
            AttachmentChange::Drain { attachment, ticket }
                if self.mistake == Some(PlantedFault::LetsGoEarly) =>
            {
                // With this planted fault, the region is reported as drained before its modified lines are written
                // back.
                managed.drained.push(ticket);
                managed.station.detach(engine, &attachment.region, attachment.hpa);
                let parts = self.layout.remove(addresses(&attachment));
                self.give_up(&parts);
            }
            AttachmentChange::Drain { attachment, ticket } => {
                managed.tickets.push_back((ticket, attachment.hpa, attachment.window));
                if managed.moving.iter().all(|(hpa, _)| *hpa != attachment.hpa) {
                    managed.moving.push((attachment.hpa, now));
                }
                managed.drains.drain(engine, attachment, ticket, now);
            }
            AttachmentChange::Drop(attachment) => {
                let hpa = attachment.hpa;
                engine.end_drain(hpa);
                let before = managed.drains.forget(hpa).map(|before| before.region);
                for region in before.iter().chain([&attachment.region]) {
                    managed.station.detach(engine, region, hpa);
                }
                managed.moving.retain(|(at, _)| *at != hpa);
                self.dropped(addresses(&attachment));
            }
            AttachmentChange::Legs(attachment) | AttachmentChange::RestoredLegs(attachment)
                if managed.drains.follow_legs(&attachment) => {}
            AttachmentChange::Legs(attachment) => {
                let followed = managed.station.follow_legs(engine, &attachment, false, now);
                followed.expect("its memory nodes are known");
            }
            AttachmentChange::RestoredLegs(attachment) => {
                let followed = managed.station.follow_legs(engine, &attachment, true, now);
                followed.expect("its memory nodes are known");
            }
            AttachmentChange::Keys(reported) => managed.station.update_keys(engine, reported, now),
            AttachmentChange::Hold(held) => engine.set_in_reset(held),
        }
    }

    fn extend(&mut self, engine: &mut Engine, attachment: &Attachment, from: u64, now: Time) {
        let Some(managed) = &mut self.managed else { return };
        if attachment.region.size > from {
            managed.station.extend(engine, attachment, from, now).expect("its place is free");
            self.attached(attachment, from);
        }
    }

    fn attach(&mut self, engine: &mut Engine, attachment: &Attachment, now: Time) {
        let Some(managed) = &mut self.managed else { return };
        engine.end_drain(attachment.hpa);
        managed.station.attach(engine, attachment, now).expect("its place is free");
        managed.moving.retain(|(at, _)| *at != attachment.hpa);
        // The region may have been attached at other addresses before.
        self.layout.remove(addresses(attachment));
        self.attached(attachment, 0);
    }

    /// Records that the engine decodes the region's bytes at offset `from` and above, and which memory nodes they are
    /// on.
    fn attached(&mut self, attachment: &Attachment, from: u64) {
        let Attachment { region, hpa, .. } = attachment;
        for (decoder, shape) in region.decoders.iter().enumerate() {
            if !shape.committed || shape.offset < from {
                continue;
            }
            let parts = (0..shape.ways.count()).map(|position| {
                let place = RegionPart {
                    name: region.name.clone(),
                    decoder,
                    position,
                    created_ms: region.created_ms,
                };
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

    /// Returns the index of the region part (a region's memory on one memory node) at `place`: the existing part if its
    /// content was kept, else a new part, whose lines are zero.
    fn part(&mut self, place: RegionPart, mn: usize, cmem: u64, born: Option<u64>, lost: bool) -> usize {
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

    /// Returns the incarnation (random number that identifies the content of its pool) that the last session with
    /// memory node `mn` reported. The first worker may have had a session before it has a region there.
    fn session_of(&self, mn: usize) -> Option<u64> {
        let mut known = self.regions.iter().filter(|region| region.origin.mn == mn);
        let reported = || self.reported.get(&Name::mn(mn)).and_then(|reported| reported.incarnation);
        known.find_map(|region| region.session).or_else(reported)
    }

    /// Records that the content at these addresses is lost.
    fn dropped(&mut self, range: Range<u64>) {
        let parts = self.layout.remove(range);
        self.give_up(&parts);
        for part in parts {
            self.regions[part].ends();
        }
    }

    /// Continues to write back the regions that the node is to release or move. When the release of a region is
    /// complete, checks the region's content in the pool.
    pub fn drain(
        &mut self,
        engine: &mut Engine,
        now: Time,
        tx: &mut dyn Transmit,
        around: NodeContext<'_>,
    ) -> Result<(), InvariantViolation> {
        let Some(managed) = &mut self.managed else { return Ok(()) };
        managed.poll_quiet(engine);
        if managed.drains.is_empty() {
            return Ok(());
        }
        let wait_limit = managed.station.timing.dead_after;
        let drained = managed.drains.advance(engine, &managed.station, wait_limit, now, tx);
        match drained {
            None => {}
            Some(Drained::Tell(ticket)) => {
                managed.drained.push(ticket);
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
                let given_up = moving.is_some_and(|(_, since)| now >= *since + wait_limit);
                for part in self.layout.parts_in(addresses(&attachment)).into_iter().filter(|_| given_up) {
                    // Lines that were not written back within the limit are lost, as if the process had been
                    // killed.
                    self.regions[part].ends();
                }
                self.attach(engine, &attachment, now);
            }
        }
        Ok(())
    }
}

/// Describes a region change for the trace.
fn description(change: &AttachmentChange) -> String {
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
        AttachmentChange::Attach(attachment) => what("attach", attachment),
        AttachmentChange::Extend { attachment, from } => {
            what(&format!("extend from {from:#x} on"), attachment)
        }
        AttachmentChange::Move(attachment) => what("move", attachment),
        AttachmentChange::Drain { attachment, ticket } => {
            what(&format!("let go, ticket {ticket}, of"), attachment)
        }
        AttachmentChange::Drop(attachment) => what("drop", attachment),
        AttachmentChange::Legs(attachment) => what("legs of", attachment),
        AttachmentChange::RestoredLegs(attachment) => what("restored legs of", attachment),
        AttachmentChange::Hold(held) => format!("held: {held}"),
        AttachmentChange::Keys(keys) => format!("keys of {} memory nodes", keys.len()),
    }
}
