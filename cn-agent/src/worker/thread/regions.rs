//! Changes of regions from the manager: regions are added, grow, move and are removed.

use cxloe_cn_core::attachments::{Attachment, AttachmentChange};
use cxloe_cn_core::drain::{AttachOutcome, Drained};
use cxloe_cn_core::engine::Engine;
use cxloe_wire::Transmit;
use cxloe_wire::time::Time;

use super::users::EngineUsers;

impl EngineUsers {
    /// Applies a change that the manager has made to this node's regions.
    pub fn follow(&mut self, change: AttachmentChange, engine: &mut Engine, now: Time) {
        let clients = &mut self.clients;
        match &change {
            AttachmentChange::Attach(Attachment { region, hpa, window, .. }) => {
                clients.set_owner(*hpa, region.uid.map(|uid| (*window, uid)));
            }
            AttachmentChange::Drop(Attachment { hpa, .. }) => clients.set_owner(*hpa, None),
            _ => {}
        }
        let drains = &mut self.drains;
        let restored = matches!(change, AttachmentChange::RestoredLegs(_));
        match change {
            AttachmentChange::Attach(region) if let Some(before) = self.waiting_moves.remove(region.hpa) => {
                self.stay(&before, &region, engine, now);
            }
            AttachmentChange::Attach(region) => match drains.attach(engine, Box::new(region)) {
                AttachOutcome::Now(region) => self.attach(&region, engine, now),
                AttachOutcome::Stays { region, from } => {
                    tracing::info!(region = %region.region.name, "region stays attached");
                    self.extend(&region, from, engine, now);
                }
                AttachOutcome::Later => {}
            },
            AttachmentChange::Extend { attachment, from } => {
                if let Some(attachment) = drains.extend(engine, attachment) {
                    self.extend(&attachment, from, engine, now);
                }
            }
            AttachmentChange::Move(region) => drains.move_away(engine, region, now),
            AttachmentChange::Drain { attachment, ticket } => {
                let moves = attachment.region.release.is_some_and(|release| release.to.is_some());
                if moves && self.spaces.uses(attachment.region.name.as_str()) {
                    tracing::info!(
                        region = %attachment.region.name,
                        "the region is to move to another node, or to be sealed: it is released once no program maps it"
                    );
                    self.waiting_moves.add(attachment, ticket);
                } else {
                    drains.drain(engine, attachment, ticket, now);
                }
            }
            AttachmentChange::Drop(region) => {
                let Attachment { region: now, hpa, .. } = region;
                self.waiting_moves.remove(hpa);
                engine.end_drain(hpa);
                // If the region is being drained, both descriptions of it are detached: that from the start of the
                // drain, and the present one, which may be larger.
                for region in drains.forget(hpa).map(|before| before.region).iter().chain([&now]) {
                    self.station.detach(engine, region, hpa);
                }
                self.spaces.dropped(hpa);
                let region = now;
                tracing::info!(region = %region.name, hpa = format_args!("{hpa:#x}"), "region detached");
            }
            AttachmentChange::Legs(attachment) | AttachmentChange::RestoredLegs(attachment) => {
                if drains.follow_legs(&attachment) {
                    return;
                }
                let Attachment { region, .. } = &attachment;
                match self.station.follow_legs(engine, &attachment, restored, now) {
                    Ok(()) => tracing::info!(
                        region = %region.name, state = %region.state, epoch = region.epoch,
                        "the region's legs have changed"
                    ),
                    Err(error) => tracing::error!(%error, "the region's legs are not followed"),
                }
            }
            AttachmentChange::Keys(told) => self.station.update_keys(engine, told, now),
            AttachmentChange::Hold(held) => {
                engine.set_in_reset(held);
                if held {
                    tracing::warn!("the manager has suspended this node: everything is detached");
                } else {
                    tracing::info!("the manager has resumed this node");
                }
            }
        }
    }

    /// Keeps a region attached that was to move to another node: the move was stopped while programs still mapped the
    /// region.
    fn stay(&mut self, before: &Attachment, region: &Attachment, engine: &mut Engine, now: Time) {
        tracing::info!(region = %region.region.name, "region stays attached");
        self.extend(region, before.region.size, engine, now);
        if let Err(error) = self.station.follow_legs(engine, region, false, now) {
            tracing::error!(%error, "the region's legs are not followed");
        }
    }

    /// Begins to release regions that are to move to another node and that programs have unmapped meanwhile.
    #[cold]
    pub fn release_unmapped(&mut self, engine: &mut Engine, now: Time) {
        let spaces = &self.spaces;
        while let Some((attachment, ticket)) =
            self.waiting_moves.take(|region| !spaces.uses(region.name.as_str()))
        {
            self.drains.drain(engine, attachment, ticket, now);
        }
    }

    /// Makes the bytes of a region beyond `from` accessible, if it has grown.
    fn extend(&mut self, attachment: &Attachment, from: u64, engine: &mut Engine, now: Time) {
        let Attachment { region, hpa, .. } = attachment;
        if region.size == from {
            return;
        }
        match self.station.extend(engine, attachment, from, now) {
            Ok(()) => {
                self.spaces.grown(*hpa, from, attachment.reach());
                tracing::info!(
                    region = %region.name, hpa = format_args!("{hpa:#x}"), from, bytes = region.size,
                    "region has grown"
                );
            }
            Err(error) => tracing::error!(%error, "the added part of a region is not attached"),
        }
    }

    fn attach(&mut self, attachment: &Attachment, engine: &mut Engine, now: Time) {
        let Attachment { region, hpa, .. } = attachment;
        engine.end_drain(*hpa);
        self.spaces.attached(*hpa);
        match self.station.attach(engine, attachment, now) {
            Ok(()) => tracing::info!(
                region = %region.name, hpa = format_args!("{hpa:#x}"), bytes = region.size,
                state = %region.state, "region attached"
            ),
            Err(error) => tracing::error!(%error, "region not attached"),
        }
    }

    /// Continues to drain regions (to write back their lines) that are to be detached. Reports a region when that is
    /// done, or attaches it again if an order to attach it came meanwhile.
    #[cold]
    pub fn advance_drains(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) {
        let wait_limit = self.station.timing.dead_after;
        match self.drains.advance(engine, &self.station, wait_limit, now, tx) {
            // An error is ignored: the receiving thread may have ended.
            Some(Drained::Tell(ticket)) => drop(self.sender.send(ticket)),
            Some(Drained::Attach(region)) => self.attach(&region, engine, now),
            None => {}
        }
    }
}
