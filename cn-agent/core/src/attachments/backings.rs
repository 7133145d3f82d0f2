//! What serves each region: which have to be asked about, and what an answer changes.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use cxloe_fabric::model::Name;

use super::{Attachment, Attachments, Change, Phase};
use crate::backing::{Backing, Preference, Served};

/// A region of which somebody has to say what serves it, or where its device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Its name.
    pub region: Name,
    /// When it was created: tells it from another of the same name.
    pub created_ms: u64,
    /// Its size.
    pub bytes: u64,
    /// The device that serves it, and is not there.
    pub known: Option<Served>,
}

impl Attachments {
    /// Says what new regions are to be served by.
    pub fn prefer(&mut self, preference: Preference) {
        self.preference = preference;
        let unknown = self.by_name.values_mut().filter(|a| a.backing == Backing::Undecided);
        // Nobody looks for devices, and nothing is on one yet.
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

    /// The regions to be asked about.
    pub fn questions(&self) -> Vec<Question> {
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
            Some(Question { region: name, created_ms: region.created_ms, bytes, known })
        };
        self.by_name.values().filter_map(question).collect()
    }

    /// All regions with what serves them.
    pub fn backings(&self) -> impl Iterator<Item = (&Name, u64, &Backing)> {
        self.by_name.values().map(|a| (&a.region.name, a.region.size, &a.backing))
    }

    /// What serves the region of `question` from now on. Nothing changes if that question is settled already.
    pub fn answer(&mut self, question: &Question, backing: Backing) -> Vec<Change> {
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
        if self.phase(&question.region) == Phase::Attached {
            // What is beyond the device goes over Ethernet, and is written back.
            let now = self.by_name[&question.region].clone();
            changes.extend([Change::Move(before), Change::Attach(now)]);
        } else {
            self.settle(&question.region, &mut changes);
        }
        changes
    }

    /// Says something about what serves a region; whether that is new.
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
        let lost = |served: &Served| {
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

    /// A region on a device was emptied by the manager: it is detached, keeps its address, and what serves it is decided
    /// anew, as if it had just been created.
    pub(super) fn decide_anew(&mut self, name: &Name, before: Attachment, changes: &mut Vec<Change>) {
        let backing = self.first_backing();
        if let Some(attachment) = self.by_name.get_mut(name) {
            attachment.backing = backing;
        }
        if self.phases.remove(name).is_some() {
            changes.push(Change::Drop(before));
        }
        self.settle(name, changes);
    }
}
