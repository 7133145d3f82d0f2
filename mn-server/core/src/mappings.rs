//! Mappings that this node serves, and the rules by which they change. This module only decides: the slow part of a
//! change is returned as a [`Job`], and the change is complete when the job is passed back.
//!
//! The rules:
//! * commands are carried out in the order of their numbers, each once; a command already carried out is skipped
//! * a command or an answer below the highest term and revision ever seen is refused: a later message has overtaken it,
//!   or another manager leads now
//! * an extent gets a new owner only after no worker uses it any more and it reads as zeros, except by a hand-over of a
//!   region with its content
//! * the memory of a sealed mapping is never written; other CNs may read it by a share (read access for one CN), which
//!   ends with the mapping
//! * a clone has the content that its source had when the clone was made, even if the source changes later
//! * an extent is never taken from a CN by a command that names another CN; a hand-over names both
//! * memory that this node serves and an accepted manager does not list is no longer served, but kept as an orphan:
//!   assigned to no CN, and not zeroed until a command of the manager unmaps it
//! * memory that is neither listed nor free waits for a command that names its mapping; a command that names another
//!   mapping there, from a store that lacks the use in between, makes an orphan of it and fails
//! * memory that a restored store names, and that was unmapped and zeroed since the copy of the store was made, is an
//!   orphan too: its content is lost, and is not served as zeros
//! * mappings that no manager has confirmed for [`AUTHORISATION_MS`] are no longer served; their content is kept, and
//!   they are served again when a manager lists them

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use cxloe_fabric::api::{Held, MemoryNodeRegistered};
use cxloe_fabric::model::{
    CnId as FabricCnId, CommandResult, ExtentRun, Extents, FormerOwner, HandOver, LeaderTerm, Mapping, Name,
    NodeAction, NodeCommand, Share, Watermark,
    lineage::{self, Lacking},
};
use cxloe_wire::frame::Mac;

use crate::job::{Job, JobError, Purpose};
use crate::pool::{MpExtent, Pool};
use crate::translation::{PageTable, PageTableWriter, Recovery, TableError, Translation};

mod clones;
mod shares;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageRefusal {
    /// The manager's store lacks changes that this node has seen.
    #[error(transparent)]
    Lacking(#[from] Lacking),
    /// The watermark of the message is lower than the highest one that this node has seen from that manager.
    #[error(
        "the manager is at term {}, revision {}, and this node has seen term {}, revision {}: the answer was overtaken",
        got.term, got.revision, seen.term, seen.revision
    )]
    Stale { seen: Watermark, got: Watermark },
    /// Another manager answers, or the same one after a restart.
    #[error("another manager leads since this node registered; registering again")]
    AnotherRun,
    #[error("command {got} came when {expected} was next; registering again")]
    Gap { expected: u64, got: u64 },
}

#[derive(Debug)]
pub struct Mappings {
    writer: PageTableWriter,
    seen: Watermark,
    acked: u64,
    results: Vec<CommandResult>,
    /// Orphans: extents with content that the manager lists for no compute node, each with its last mapping.
    orphans: BTreeMap<MpExtent, Translation>,
    shares: Vec<Share>,
    /// Second job of a command that needs two jobs (a clone), until the I/O code takes it.
    continuation: Option<Job>,
    /// `true` while there are orphans that this node has not reported to the manager.
    unreported: bool,
    /// Mappings that are not served, whose content is kept until the manager lists them or a command names them: no
    /// manager has confirmed them for [`AUTHORISATION_MS`], or the manager listed their extents neither as used nor as
    /// free.
    withheld: BTreeMap<MpExtent, Translation>,
    /// Mappings that end when the answer to the registration is applied.
    leaving: Vec<Translation>,
    /// Set from the acceptance of a manager over a restored store until its list of mappings is applied.
    restored: bool,
    /// Set while a `MapCmem` that names a withheld mapping was issued before the backup that was restored: the content
    /// was written after the command had been carried out.
    keeps_content: bool,
    /// Time of the last answer of an accepted manager, in milliseconds of the caller's clock.
    heard_ms: u64,
    silent_before_ms: u64,
}

/// Time for which mappings are served without an answer from the manager, in milliseconds: 24 hours.
pub const AUTHORISATION_MS: u64 = 24 * 3600 * 1000;

/// Maximum number of extent runs in one report of orphans. Further orphans are reported when reported ones have been
/// released.
const RUNS_PER_REPORT: usize = 2000;

impl Mappings {
    /// Opens the page table of `pool`; `seen` is the watermark from the node's state file.
    pub fn open(pool: Arc<Pool>, seen: Watermark) -> (Mappings, Recovery) {
        let (writer, recovery) = PageTableWriter::open(pool);
        let orphans = BTreeMap::new();
        let (results, leaving, withheld) = (Vec::new(), Vec::new(), BTreeMap::new());
        let (acked, unreported, heard_ms, silent_before_ms) = (0, false, 0, 0);
        let mappings = Mappings {
            writer,
            seen,
            acked,
            results,
            orphans,
            shares: Vec::new(),
            continuation: None,
            unreported,
            withheld,
            leaving,
            restored: false,
            keeps_content: false,
            heard_ms,
            silent_before_ms,
        };
        (mappings, recovery)
    }

    pub fn table(&self) -> &Arc<PageTable> {
        self.writer.table()
    }

    /// Highest watermark seen. The caller stores it on disk before it carries out a command that this watermark
    /// permits.
    pub fn seen(&self) -> Watermark {
        self.seen
    }

    /// Number of the last command carried out; acknowledged by each sync.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// Results that the manager has not acknowledged yet.
    pub fn results(&self) -> &[CommandResult] {
        &self.results
    }

    /// Removes the first `count` results, which the manager has acknowledged.
    pub fn reported(&mut self, count: usize) {
        self.results.drain(..count.min(self.results.len()));
    }

    pub fn len(&self) -> usize {
        self.writer.len()
    }

    pub fn is_empty(&self) -> bool {
        self.writer.is_empty()
    }

    /// Sets the watermark to that of the present registration's manager; refuses a lower one.
    pub fn observe_watermark(&mut self, got: Watermark) -> Result<(), MessageRefusal> {
        if got.run != self.seen.run {
            return Err(MessageRefusal::AnotherRun);
        }
        if got.is_before(self.seen) {
            return Err(MessageRefusal::Stale { seen: self.seen, got });
        }
        self.seen = got;
        Ok(())
    }

    /// Records an answer of an accepted manager at `now_ms`: mappings may be served for another [`AUTHORISATION_MS`].
    pub fn confirm(&mut self, now_ms: u64) {
        self.heard_ms = self.heard_ms.max(now_ms);
        self.silent_before_ms = 0;
    }

    /// Sets the time without a manager's answer, in milliseconds, that had passed before the caller's clock began.
    pub fn resume(&mut self, silent_ms: u64) {
        self.silent_before_ms = silent_ms;
    }

    /// Milliseconds since the last answer of an accepted manager, at `now_ms`.
    pub fn silent_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.heard_ms).saturating_add(self.silent_before_ms)
    }

    /// Stops serving mappings that no manager has confirmed for [`AUTHORISATION_MS`] at `now_ms`; returns the number
    /// of extents. Their content is kept, and they are served again when a manager lists them.
    pub fn expire(&mut self, now_ms: u64) -> usize {
        if self.silent_ms(now_ms) < AUTHORISATION_MS || self.is_empty() {
            return 0;
        }
        let all: Vec<Translation> = self.table().iter().collect();
        self.remove(&all);
        self.writer.seal();
        let count = all.len();
        self.withheld.extend(all.into_iter().map(|t| (t.mp_extent, t)));
        tracing::error!(
            extents = count,
            "no contact with a manager for 24 hours: compute nodes are no longer served; their memory is kept, and served again after contact with the manager this node follows"
        );
        count
    }

    /// Mappings that are not served, or end with the next step, and whose content is kept. The caller stores them on disk
    /// before the next step, because the page table has them no longer then.
    pub fn kept(&self) -> BTreeMap<MpExtent, Translation> {
        let kept = self.orphans.values().chain(self.withheld.values()).chain(&self.leaving);
        kept.map(|t| (t.mp_extent, *t)).collect()
    }

    /// Restores the [kept](Self::kept) mappings of an earlier process that served the same content. Call before the first
    /// registration.
    pub fn resume_kept(&mut self, kept: impl IntoIterator<Item = Translation>) {
        let extents = self.table().pool().extents();
        for t in kept {
            // The process ended before the mapping was removed, or after the extent got another one.
            if t.mp_extent.0 < extents && self.writer.owner(t.mp_extent).is_none() {
                self.withheld.insert(t.mp_extent, t);
            }
        }
    }

    /// Notes which mappings will end when the manager's `answer` is applied, for [`kept`](Self::kept).
    pub(crate) fn foresee(&mut self, answer: &MemoryNodeRegistered) {
        let listed = answer.mappings.iter().filter_map(|mapping| self.translations(mapping).ok());
        let keep: HashSet<Translation> = listed.flatten().collect();
        let leaving = self.table().iter().filter(|held| !keep.contains(held)).collect();
        self.leaving = leaving;
        if self.restored {
            self.orphan_emptied(keep);
        }
    }

    /// Accepts a manager if its `terms` prove that its store contains all that this node has seen.
    pub fn accept(&mut self, got: Watermark, terms: &[LeaderTerm]) -> Result<(), MessageRefusal> {
        lineage::check(terms, got, self.seen)?;
        self.restored |= lineage::is_given_up(terms, got, self.seen);
        self.seen = got;
        Ok(())
    }

    /// Bytes on this node with content of each compute node: mapped, orphaned, or no longer confirmed by a manager.
    pub fn held(&self) -> Vec<Held> {
        let bytes = self.table().pool().extent_bytes();
        let mut held: BTreeMap<FabricCnId, u64> = BTreeMap::new();
        let kept = self.orphans.values().chain(self.withheld.values()).copied();
        for t in self.table().iter().chain(kept.filter(|t| t.cmem_extent & self.beyond_cmem() == 0)) {
            if let Some(cn) = fabric_cn(t.cn) {
                *held.entry(cn).or_default() += bytes;
            }
        }
        let held = held.into_iter();
        held.map(|(compute_node, bytes)| Held { compute_node, region: None, created_ms: None, bytes })
            .collect()
    }

    /// Orphans for the next report to the manager, adjacent extents as one mapping. Empty if all are
    /// reported.
    pub fn orphans_to_report(&self) -> Vec<Mapping> {
        let extent_bytes = self.table().pool().extent_bytes();
        let mut by_owner: Vec<Translation> = self.orphans.values().copied().collect();
        by_owner.sort_unstable_by_key(|t| (t.cn, t.cmem_extent));
        let mut pieces: Vec<Mapping> = Vec::new();
        let (mut runs, mut last_extent) = (0, None);
        for t in by_owner.into_iter().filter(|_| self.unreported) {
            let Some(cn) = fabric_cn(t.cn) else { continue };
            let cmem_base = t.cmem_extent << self.table().extent_shift();
            let run = ExtentRun { first: t.mp_extent.0.into(), count: 1 };
            let follows = last_extent == Some((t.cn, t.cmem_extent.wrapping_sub(1)));
            runs += usize::from(
                !follows || pieces.last().is_some_and(|last| !last.extents.ends_before(run.first)),
            );
            if runs > RUNS_PER_REPORT {
                break;
            }
            last_extent = Some((t.cn, t.cmem_extent));
            match pieces.last_mut().filter(|_| follows) {
                Some(last) => last.extents.push(run),
                None => {
                    // The page table has no names of regions, and a mapping needs one.
                    let region = Name::new("orphan").expect("these letters are a name");
                    let extents = Extents::from_iter([run]);
                    let sealed = t.sealed;
                    pieces.push(Mapping {
                        cn,
                        region,
                        cmem_base,
                        extent_bytes,
                        extents,
                        sealed,
                        cn_key: None,
                    });
                }
            }
        }
        pieces
    }

    /// Marks all orphans as reported. Call after the manager has answered the report.
    pub fn orphans_reported(&mut self) {
        self.unreported = false;
    }

    /// Applies the answer to a registration, in which an accepted manager lists all mappings to serve. Mappings not
    /// listed are removed at once, and their content is kept; listed ones are added with their present content when the
    /// job is done.
    pub fn registered(&mut self, answer: &MemoryNodeRegistered) -> Result<Job, MessageRefusal> {
        self.accept(answer.watermark, &answer.lineage)?;
        self.acked = answer.acked_seq;
        self.results.clear();
        self.continuation = None;
        self.leaving.clear();
        self.keeps_content = std::mem::take(&mut self.restored);
        let mut wanted = Vec::new();
        for mapping in &answer.mappings {
            match self.translations(mapping) {
                Ok(translations) => wanted.extend(translations),
                Err(error) => tracing::error!(region = %mapping.region, %error, "cannot serve a region"),
            }
        }
        if self.keeps_content {
            self.orphan_emptied(wanted.iter().copied());
        }
        let free: HashSet<u64> = answer.unowned.iter().collect();
        if self.shares != answer.shares {
            self.set_shares(answer.shares.clone());
        }
        Ok(self.serve_only(wanted, &free))
    }

    /// Removes every mapping that is not `wanted`. Extents that the manager lists as free, or for another compute node,
    /// become orphans; for all others the manager sends a command later.
    fn serve_only(&mut self, wanted: Vec<Translation>, free: &HashSet<u64>) -> Job {
        let keep: HashSet<Translation> = wanted.iter().copied().collect();
        let listed: HashSet<MpExtent> = wanted.iter().map(|translation| translation.mp_extent).collect();
        let ended: Vec<Translation> = self.table().iter().filter(|held| !keep.contains(held)).collect();
        self.remove(&ended);
        // Workers may still use what was removed before and is listed again, by mappings that expired a moment ago.
        let generation =
            if ended.is_empty() { self.table().generation().current() } else { self.writer.seal() };
        let withheld = std::mem::take(&mut self.withheld).into_values();
        let unknown =
            |t: &Translation| free.contains(&u64::from(t.mp_extent.0)) || listed.contains(&t.mp_extent);
        for t in ended.into_iter().chain(withheld.filter(|held| !keep.contains(held))) {
            let kept = if unknown(&t) { &mut self.orphans } else { &mut self.withheld };
            kept.insert(t.mp_extent, t);
        }
        // The manager lists these extents again with their former mappings, so they are no longer orphans.
        self.orphans.retain(|_, t| !keep.contains(t));
        self.unreported = !self.orphans.is_empty();
        if self.unreported {
            let (extents, bytes) =
                (self.orphans.len(), self.table().pool().extent_bytes() * self.orphans.len() as u64);
            tracing::warn!(
                extents,
                bytes,
                "this node holds memory that the manager lists for no compute node: it is kept and not served; `gmm release-orphans` \
                 zeroes it and gives it back"
            );
        }
        let wanted = wanted.into_iter().filter(|t| !self.orphans.contains_key(&t.mp_extent)).collect();
        let plan = Plan { generation, ..Plan::default() };
        plan.job(Purpose::Reconcile(wanted))
    }

    /// Removes every mapping that is not `wanted`; the job adds the missing ones. The extents `granted`, and those that
    /// were mapped to another address before, then read as zeros; all others keep their content.
    pub(super) fn reconcile(&mut self, wanted: Vec<Translation>, mut granted: Vec<MpExtent>) -> Job {
        let keep: HashSet<Translation> = wanted.iter().copied().collect();
        let used: HashSet<MpExtent> = wanted.iter().map(|translation| translation.mp_extent).collect();
        let extra: Vec<Translation> = self.table().iter().filter(|held| !keep.contains(held)).collect();
        let removed = self.remove(&extra);
        self.writer.give_up_copies(&removed);
        let generation = if removed.is_empty() { 0 } else { self.writer.seal() };
        let (moved, released): (Vec<_>, Vec<_>) =
            removed.into_iter().partition(|extent| used.contains(extent));
        granted.extend(moved);
        granted.sort_unstable();
        granted.dedup();
        Plan { generation, released, granted, ..Plan::default() }.job(Purpose::Reconcile(wanted))
    }

    /// Begins to carry out a command. Returns `None` if the command needs no job, or was carried out before.
    pub fn start(&mut self, command: &NodeCommand) -> Result<Option<Job>, MessageRefusal> {
        // A command has the revision at which it was issued, which may be lower than that of an earlier answer, but the
        // term of the manager that sends it. So only the term is compared.
        if command.term < self.seen.term {
            return Err(MessageRefusal::Stale { seen: self.seen, got: command.watermark() });
        }
        if command.seq <= self.acked {
            return Ok(None);
        }
        if command.seq != self.acked + 1 {
            return Err(MessageRefusal::Gap { expected: self.acked + 1, got: command.seq });
        }
        let purpose = Purpose::Command(Box::new(command.clone()));
        match self.plan(&command.action) {
            Ok(plan) => Ok(Some(plan.job(purpose))),
            Err(error) => {
                self.conclude(command.seq, Some(error));
                Ok(None)
            }
        }
    }

    fn plan(&mut self, action: &NodeAction) -> Result<Plan, String> {
        let translations = self.translations(action.mapping())?;
        match action {
            NodeAction::MapCmem(_) => {
                let (mut granted, mut waits) = (Vec::new(), false);
                self.orphan_strangers(&translations, &[]);
                if let Some(orphan) = translations.iter().find_map(|t| self.orphans.get(&t.mp_extent)) {
                    return Err(orphan_error(orphan));
                }
                for t in &translations {
                    match self.writer.check(*t) {
                        Ok(true) => {}
                        // The job prepares the extent, after every worker has stopped using the extent's former
                        // mapping.
                        Ok(false) | Err(TableError::ExtentBusy(_)) => {
                            waits = true;
                            if !(self.keeps_content && self.withheld.contains_key(&t.mp_extent)) {
                                granted.push(t.mp_extent);
                            }
                        }
                        Err(error) => return Err(error.to_string()),
                    }
                }
                if self.writer.give_up_copies(&granted) {
                    self.writer.seal();
                }
                self.forget_kept(&translations);
                let generation = if waits { self.table().generation().current() } else { 0 };
                Ok(Plan { generation, granted, ..Plan::default() })
            }
            NodeAction::UnmapCmem(_) => {
                self.orphan_strangers(&translations, &[]);
                for t in &translations {
                    if let Some(owner) = self.writer.owner(t.mp_extent)
                        && !owner.is_same_place(t)
                    {
                        return Err(TableError::ExtentTaken(owner).to_string());
                    }
                    let orphan = self.orphans.get(&t.mp_extent);
                    if let Some(orphan) = orphan.filter(|orphan| !orphan.is_same_place(t)) {
                        return Err(orphan_error(orphan));
                    }
                }
                let held = self.orphans.len();
                self.forget_kept(&translations);
                // The release of an orphan makes room for others in the next report.
                self.unreported |= self.orphans.len() < held && !self.orphans.is_empty();
                self.end_shares_of(action.mapping());
                self.remove(&translations);
                // Extents without a mapping are zeroed as well: the job that zeroes them after an earlier removal may
                // not be complete.
                let released: Vec<MpExtent> = translations.iter().map(|t| t.mp_extent).collect();
                self.writer.give_up_copies(&released);
                Ok(Plan { generation: self.writer.seal(), released, ..Plan::default() })
            }
            NodeAction::HandOver(hand_over) => {
                let former = self.former(hand_over)?;
                self.orphan_strangers(&translations, &former);
                if self.keeps_content {
                    self.orphan_emptied(former.iter().copied());
                }
                for (before, t) in former.iter().zip(&translations) {
                    let stranger =
                        |held: &&Translation| !held.is_same_place(before) && !held.is_same_place(t);
                    let owner = self.writer.owner(t.mp_extent);
                    if let Some(owner) = owner.as_ref().filter(stranger) {
                        return Err(TableError::ExtentTaken(*owner).to_string());
                    }
                    let orphan = self.orphans.get(&t.mp_extent);
                    if let Some(orphan) = orphan.filter(stranger) {
                        return Err(orphan_error(orphan));
                    }
                }
                let FormerOwner { cn, cmem_base } = hand_over.former;
                self.end_shares_of(&Mapping { cn, cmem_base, ..hand_over.mapping.clone() });
                self.forget_kept(&former);
                let removed = self.remove(&former);
                let generation = if removed.is_empty() { 0 } else { self.writer.seal() };
                Ok(Plan { generation, ..Plan::default() })
            }
            NodeAction::Share(share) => {
                Ok(Plan { generation: self.share(share, &translations)?, ..Plan::default() })
            }
            NodeAction::Unshare(share) => {
                let shares = self.shares_without(share).collect();
                Ok(Plan { generation: self.set_shares(shares), ..Plan::default() })
            }
            NodeAction::Clone(clone) => self.plan_clone(clone, &translations),
        }
    }

    /// Translations of the mapping that a hand-over replaces, one for each extent. Fails if the content belongs to
    /// another incarnation of the pool, and so is lost.
    fn former(&self, hand_over: &HandOver) -> Result<Vec<Translation>, String> {
        let incarnation = self.table().pool().incarnation();
        if hand_over.incarnation != incarnation {
            return Err(format!(
                "the content is of pool incarnation {:#x}, and this pool's is {incarnation:#x}",
                hand_over.incarnation
            ));
        }
        let FormerOwner { cn, cmem_base } = hand_over.former;
        self.translations(&Mapping { cn, cmem_base, ..hand_over.mapping.clone() })
    }

    /// Completes the change begun by [`start`](Self::start) or [`registered`](Self::registered); `outcome` is the
    /// result of [`Job::carry_out`]. After [`JobError::Stopped`] the command has no result, and the manager sends it
    /// again.
    pub fn finish(&mut self, job: Job, outcome: Result<(), JobError>) {
        match (job.purpose, outcome) {
            (_, Err(JobError::Stopped)) => {}
            (Purpose::Reconcile(_), Err(error)) => {
                tracing::error!(%error, "cannot ready the extents to be served")
            }
            (Purpose::Reconcile(wanted), Ok(())) => {
                for t in wanted {
                    if let Err(error) = self.writer.map(t) {
                        tracing::error!(%error, "cannot serve an extent");
                    }
                }
            }
            (Purpose::Command(command) | Purpose::Copies(command), Err(error)) => {
                self.conclude(command.seq, Some(error.to_string()));
            }
            (Purpose::Copies(command), Ok(())) => self.serve_clone(&command),
            (Purpose::Command(command), Ok(())) if matches!(command.action, NodeAction::Clone(_)) => {
                self.begin_clone(command);
            }
            (Purpose::Command(command), Ok(())) => {
                let error = match &command.action {
                    NodeAction::MapCmem(mapping) => self.add(mapping).err(),
                    NodeAction::UnmapCmem(_)
                    | NodeAction::Share(_)
                    | NodeAction::Unshare(_)
                    | NodeAction::Clone(_) => None,
                    NodeAction::HandOver(hand_over) => self.add(&hand_over.mapping).err(),
                };
                self.conclude(command.seq, error);
            }
        }
    }

    /// Adds all extents of a mapping, or none of them.
    fn add(&mut self, mapping: &Mapping) -> Result<(), String> {
        let translations = self.translations(mapping)?;
        let present: HashSet<Translation> =
            translations.iter().filter_map(|t| self.writer.owner(t.mp_extent)).collect();
        for (count, t) in translations.iter().enumerate() {
            if let Err(error) = self.writer.map(*t) {
                let added: Vec<_> =
                    translations[..count].iter().filter(|t| !present.contains(t)).copied().collect();
                self.remove(&added);
                self.writer.seal();
                return Err(error.to_string());
            }
        }
        Ok(())
    }

    /// Removes those of the mappings that are there. After a restored store was adopted, a CN can have another extent at
    /// an address at which it had an orphan.
    fn remove(&mut self, translations: &[Translation]) -> Vec<MpExtent> {
        let mut removed = Vec::new();
        for t in translations {
            if self.writer.owner(t.mp_extent).is_some_and(|held| held.is_same_place(t)) {
                removed.extend(self.writer.unmap(t.cn, t.cmem_extent));
            }
        }
        removed
    }

    fn forget_kept(&mut self, translations: &[Translation]) {
        for t in translations {
            self.orphans.remove(&t.mp_extent);
            self.withheld.remove(&t.mp_extent);
        }
    }

    /// Makes orphans of withheld mappings in these extents that are neither the same as in `translations` nor as in
    /// `former`, by index. The command then fails, and the orphans are reported.
    fn orphan_strangers(&mut self, translations: &[Translation], former: &[Translation]) {
        for (at, t) in translations.iter().enumerate() {
            let Some(held) = self.withheld.get(&t.mp_extent).copied() else { continue };
            let is_own = held.is_same_place(t) || former.get(at).is_some_and(|t| held.is_same_place(t));
            if !is_own {
                tracing::warn!(
                    extent = t.mp_extent.0,
                    "a command names memory in which another mapping has content that the manager does not list: it is kept as an orphan"
                );
                self.withheld.remove(&t.mp_extent);
                self.orphans.insert(t.mp_extent, held);
                self.unreported = true;
            }
        }
    }

    /// Makes orphans of the extents `named` by a restored store of which this node has no record, neither for that mapping
    /// nor for another one: they were unmapped and zeroed since the copy of the store was made.
    fn orphan_emptied(&mut self, named: impl IntoIterator<Item = Translation>) {
        let (beyond, before) = (self.beyond_cmem(), self.orphans.len());
        for t in named {
            let extent = t.mp_extent;
            let is_withheld = self.withheld.contains_key(&extent);
            if self.writer.owner(extent).is_none() && !is_withheld && !self.orphans.contains_key(&extent) {
                // At no address that a manager lists, so that a later registration does not serve the zeros.
                self.orphans.insert(extent, Translation { cmem_extent: t.cmem_extent | beyond, ..t });
            }
        }
        let count = self.orphans.len() - before;
        if count > 0 {
            self.unreported = true;
            tracing::warn!(
                extents = count,
                "the manager's copy of its store lists memory that was unmapped and zeroed after the copy was made: its content is lost"
            );
        }
    }

    /// Bit of a CMem extent's number that is set at no address of a compute node.
    fn beyond_cmem(&self) -> u64 {
        1 << (48 - self.table().extent_shift())
    }

    fn conclude(&mut self, seq: u64, error: Option<String>) {
        if let Some(error) = &error {
            tracing::error!(seq, %error, "a command of the manager failed");
        }
        self.acked = seq;
        self.results.push(CommandResult { seq, error });
    }

    /// Converts a manager's mapping into translations, one for each extent.
    fn translations(&self, mapping: &Mapping) -> Result<Vec<Translation>, String> {
        let pool = self.table().pool();
        if mapping.extent_bytes != pool.extent_bytes() {
            return Err(format!(
                "the manager counts in extents of {} bytes, this pool in extents of {}",
                mapping.extent_bytes,
                pool.extent_bytes()
            ));
        }
        if !mapping.cmem_base.is_multiple_of(mapping.extent_bytes) {
            return Err(format!("CMem base {:#x} is not at the start of an extent", mapping.cmem_base));
        }
        if mapping.extents.len() > u64::from(pool.extents()) {
            return Err(format!(
                "{} extents are more than the pool's {}",
                mapping.extents.len(),
                pool.extents()
            ));
        }
        let (cn, first) = (cn_id(mapping.cn), mapping.cmem_base >> self.table().extent_shift());
        let mut used = HashMap::new();
        let mut translations = Vec::new();
        for (cmem_extent, index) in (first..).zip(mapping.extents.iter()) {
            let extents = pool.extents();
            let mp_extent = u32::try_from(index).ok().filter(|index| *index < extents).map(MpExtent);
            let mp_extent =
                mp_extent.ok_or_else(|| format!("extent {index} does not exist: the pool has {extents}"))?;
            if let Some(other) = used.insert(mp_extent, cmem_extent) {
                return Err(format!(
                    "extent {index} is listed twice, for CMem extents {other} and {cmem_extent}"
                ));
            }
            translations.push(Translation { cn, cmem_extent, mp_extent, sealed: mapping.sealed });
        }
        Ok(translations)
    }
}

/// Work that a change needs, and the condition for its start: the fields of a [`Job`] without its purpose.
#[derive(Debug, Default)]
struct Plan {
    generation: u64,
    released: Vec<MpExtent>,
    granted: Vec<MpExtent>,
    sources: Vec<MpExtent>,
}

impl Plan {
    fn job(self, purpose: Purpose) -> Job {
        let Plan { generation, released, granted, sources } = self;
        Job { purpose, generation, released, granted, sources }
    }
}

fn orphan_error(orphan: &Translation) -> String {
    let whose = fabric_cn(orphan.cn).map_or_else(|| orphan.cn.to_string(), |cn| cn.to_string());
    format!(
        "extent {} holds memory of CN {whose} that the manager did not list; it is kept until `gmm release-orphans`",
        orphan.mp_extent.0
    )
}

/// CN id in the manager's form; `None` if the number is no address of a CN.
fn fabric_cn(cn: crate::translation::CnId) -> Option<FabricCnId> {
    FabricCnId::new(Mac::from_u64(cn)).ok()
}

pub(super) fn cn_id(cn: FabricCnId) -> crate::translation::CnId {
    cn.mac().to_u64()
}
