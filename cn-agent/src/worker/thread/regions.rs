//! Regions as the manager's news have them: they come, grow, move and go.

use cxloe_cn_core::attachments::{Attachment, Change};
use cxloe_cn_core::drain::{AttachOutcome, Drained};
use cxloe_wire::time::Time;

use super::Worker;

impl Worker {
    /// Does what the manager's news demand.
    pub(super) fn follow(&mut self, change: Change) {
        let now = self.clock.now();
        let clients = &mut self.parties.clients;
        match &change {
            Change::Attach(Attachment { region, hpa, window, .. }) => {
                clients.set_owner(*hpa, region.uid.map(|uid| (*window, uid)));
            }
            Change::Drop(Attachment { hpa, .. }) => clients.set_owner(*hpa, None),
            _ => {}
        }
        let (engine, drains) = (&mut self.engine, &mut self.drains);
        match change {
            Change::Attach(region) => match drains.attach(engine, Box::new(region)) {
                AttachOutcome::Now(region) => self.attach(&region, now),
                AttachOutcome::Stays { region, from } => {
                    tracing::info!(region = %region.region.name, "region stays attached");
                    self.extend(&region, from, now);
                }
                AttachOutcome::Later => {}
            },
            Change::Extend { attachment, from } => {
                if let Some(attachment) = drains.extend(engine, attachment) {
                    self.extend(&attachment, from, now);
                }
            }
            Change::Move(region) => drains.move_away(engine, region, now),
            Change::Drain { attachment, ticket } => drains.drain(engine, attachment, ticket, now),
            Change::Drop(region) => {
                let Attachment { region: now, hpa, .. } = region;
                engine.end_drain(hpa);
                // On its way out, it is as it was before, and what it has grown by since.
                for region in drains.forget(hpa).map(|before| before.region).iter().chain([&now]) {
                    self.options.station.detach(engine, region, hpa);
                }
                self.parties.spaces.dropped(hpa);
                let region = now;
                tracing::info!(region = %region.name, hpa = format_args!("{hpa:#x}"), "region detached");
            }
            Change::Keys(told) => self.options.station.tell_keys(engine, told, now),
            Change::Hold(held) => {
                engine.set_in_reset(held);
                if held {
                    tracing::warn!("the manager holds this node in reset: everything is detached");
                } else {
                    tracing::info!("the manager has released this node from reset");
                }
            }
        }
    }

    /// Makes reachable what a region has grown by since it had `from` bytes, if it has.
    fn extend(&mut self, attachment: &Attachment, from: u64, now: Time) {
        let Attachment { region, hpa, .. } = attachment;
        if region.size == from {
            return;
        }
        match self.options.station.extend(&mut self.engine, attachment, from, now) {
            Ok(()) => {
                self.parties.spaces.grown(*hpa, from, attachment.reach());
                tracing::info!(
                    region = %region.name, hpa = format_args!("{hpa:#x}"), from, bytes = region.size,
                    "region has grown"
                );
            }
            Err(error) => tracing::error!(%error, "what the region has grown by is not attached"),
        }
    }

    fn attach(&mut self, attachment: &Attachment, now: Time) {
        let Attachment { region, hpa, .. } = attachment;
        self.engine.end_drain(*hpa);
        self.parties.spaces.attached(*hpa);
        match self.options.station.attach(&mut self.engine, attachment, now) {
            Ok(()) => tracing::info!(
                region = %region.name, hpa = format_args!("{hpa:#x}"), bytes = region.size,
                state = %region.state, "region attached"
            ),
            Err(error) => tracing::error!(%error, "region not attached"),
        }
    }

    /// Goes on with regions on their way out.
    #[cold]
    pub(super) fn depart(&mut self, now: Time) {
        let patience = self.options.station.timing.dead_after;
        let (engine, station) = (&mut self.engine, &self.options.station);
        match self.drains.go_on(engine, station, patience, now, self.link.transmit()) {
            // Who gave the order may have ended.
            Some(Drained::Tell(ticket)) => drop(self.tell.send(ticket)),
            Some(Drained::Attach(region)) => self.attach(&region, now),
            None => {}
        }
    }
}
