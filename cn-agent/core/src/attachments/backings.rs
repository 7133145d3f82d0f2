//! Backings of regions: open questions to the device monitor, and the effect of its answers.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use cxloe_fabric::model::Name;

use super::{Attachment, AttachmentChange, AttachmentPhase, Attachments};
use crate::backing::{Backing, DevicePlacement, Preference};

/// Question to the device monitor: which backing a new region gets, or where the absent device of a region is
/// now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingQuery {
    pub region: Name,
    /// Time of the region's creation, which distinguishes the region from another one of the same name.
    pub created_ms: u64,
    /// Size of the region in bytes.
    pub bytes: u64,
    /// Placement on the device that serves the region and is absent; `None` if the backing is undecided.
    pub known: Option<DevicePlacement>,
}

impl Attachments {
    /// Sets the preference for regions whose backing is not decided yet.
    pub fn prefer(&mut self, preference: Preference) {
        self.preference = preference;
        let unknown = self.by_name.values_mut().filter(|a| a.backing == Backing::Undecided);
        // With this preference the agent looks for no devices, so the undecided regions get Ethernet now. None of these
        // regions has content on a device.
        if preference == Preference::Ethernet {
            unknown.for_each(|attachment| attachment.backing = Backing::Ethernet);
        }
    }

    pub(super) fn first_backing(&self) -> Backing {
        match self.preference {
            Preference::Ethernet => Backing::Ethernet,
            Preference::Auto | Preference::Cxl => Backing::Undecided,
        }
    }

    /// Returns the questions that the device monitor has not answered, at most one per region.
    pub fn questions(&self) -> Vec<BackingQuery> {
        let question = |attachment: &Attachment| {
            let known = match &attachment.backing {
                Backing::Ethernet => return None,
                Backing::Device(served) if served.lost.is_some() || served.present().is_some() => {
                    return None;
                }
                Backing::Device(served) => Some(served.clone()),
                Backing::Undecided => None,
            };
            let region = &attachment.region;
            let (name, bytes) = (region.name.clone(), region.size);
            Some(BackingQuery { region: name, created_ms: region.created_ms, bytes, known })
        };
        self.by_name.values().filter_map(question).collect()
    }

    /// All regions with their sizes in bytes and their backings.
    pub fn backings(&self) -> impl Iterator<Item = (&Name, u64, &Backing)> {
        self.by_name.values().map(|a| (&a.region.name, a.region.size, &a.backing))
    }

    /// Sets the backing of the region of `question`. Nothing changes if that question has already been answered.
    pub fn answer(&mut self, question: &BackingQuery, backing: Backing) -> Vec<AttachmentChange> {
        let mut changes = Vec::new();
        if !self.questions().iter().any(|open| {
            (&open.region, open.created_ms) == (&question.region, question.created_ms)
                && open.known.is_some() == question.known.is_some()
        }) {
            return changes;
        }
        let Some(attachment) = self.by_name.get_mut(&question.region) else { return changes };
        self.notes.remove(&question.region);
        let before = attachment.clone();
        attachment.backing = backing;
        if self.phase(&question.region) == AttachmentPhase::Attached {
            // The region is moved instead of dropped: its part beyond the device is served over Ethernet, and may have
            // dirty lines.
            let now = self.by_name[&question.region].clone();
            changes.extend([AttachmentChange::Move(before), AttachmentChange::Attach(now)]);
        } else {
            self.settle(&question.region, &mut changes);
        }
        changes
    }

    /// Sets the note on a region's backing; returns whether it has changed.
    pub fn explain(&mut self, region: &Name, note: Option<String>) -> bool {
        if !self.by_name.contains_key(region) {
            return false;
        }
        let before = match &note {
            Some(note) => self.notes.insert(region.clone(), note.clone()),
            None => self.notes.remove(region),
        };
        before != note
    }

    pub(super) fn note(&self, attachment: &Attachment) -> Option<String> {
        let Attachment { region, backing, .. } = attachment;
        let lost = |served: &DevicePlacement| {
            let why = served.lost.as_ref()?;
            Some(format!("its content is lost: {why}; destroy the region and create it anew"))
        };
        match backing {
            Backing::Device(served) if served.lost.is_some() => lost(served),
            Backing::Device(served)
                if self.preference == Preference::Ethernet && served.present().is_none() =>
            {
                Some(format!(
                    "its content is on {}, and this agent runs with --backend ethernet; run it with auto or cxl",
                    served.device
                ))
            }
            _ => self.notes.get(&region.name).cloned(),
        }
    }

    /// Handles the manager's reset of a region that a device serves: the region is detached, keeps its
    /// address, and its backing is decided anew, as for a new region.
    pub(super) fn decide_again(
        &mut self,
        name: &Name,
        before: Attachment,
        changes: &mut Vec<AttachmentChange>,
    ) {
        let backing = self.first_backing();
        if let Some(attachment) = self.by_name.get_mut(name) {
            attachment.backing = backing;
        }
        if self.phases.remove(name).is_some() {
            changes.push(AttachmentChange::Drop(before));
        }
        self.settle(name, changes);
    }
}
