//! What this node serves, and the rules by which that changes. Decides only: the slow part of each change is handed
//! out as a [`Job`], and the change is complete when the job comes back.
//!
//! The rules:
//! * commands are carried out in the order of their numbers, each once; one that was carried out is passed over
//! * a command or an answer from below the highest term and revision ever seen is refused: its manager lost its place
//! * an extent gets a new owner only after every worker has let go of it and it reads as zeros
//! * an extent is never taken from a CN by a command that names another CN
//! * what this node serves and an accepted manager does not list is no longer served, but kept: it is this node's orphan,
//!   given to nobody and zeroed by no one until the manager has it unmapped by name
//! * what no manager has confirmed for [`AUTHORISATION_MS`] is no longer served, and kept in the same way, until one does

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use cxloe_fabric::api::{Held, MemoryNodeRegistered};
use cxloe_fabric::model::{
    CnId as FabricCnId, CommandResult, ExtentRun, Extents, LeaderTerm, Mapping, Name, NodeAction,
    NodeCommand, Watermark,
    lineage::{self, Lacking},
};
use cxloe_wire::frame::Mac;

use super::job::{Job, JobError, Purpose};
use crate::pool::{MpExtent, Pool};
use cxloe_mn_core::translation::{PageTable, PageTableWriter, Recovery, TableError, Translation};

/// Why a message of a manager is not followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Its store does not contain what this node has seen.
    #[error(transparent)]
    Lacking(#[from] Lacking),
    /// It comes from below what this node has seen of that manager.
    #[error(
        "the manager is at term {}, revision {}, and this node has seen term {}, revision {}: the answer was overtaken",
        got.term, got.revision, seen.term, seen.revision
    )]
    Stale {
        /// The highest seen.
        seen: Watermark,
        /// The manager's.
        got: Watermark,
    },
    /// Another manager answers, or the same one after a restart.
    #[error("another manager leads since this node registered; registering again")]
    AnotherRun,
    /// A command is missing in between.
    #[error("command {got} came when {expected} was next; registering again")]
    Gap {
        /// The number due.
        expected: u64,
        /// The number that came.
        got: u64,
    },
}

/// The mappings of this node; holds the page table's writer.
#[derive(Debug)]
pub struct Mappings {
    writer: PageTableWriter,
    seen: Watermark,
    acked: u64,
    results: Vec<CommandResult>,
    /// Extents that are kept though the manager lists them for nobody, and whose they were.
    orphans: BTreeMap<MpExtent, Translation>,
    /// Whether the manager has yet to hear of some of them.
    unreported: bool,
    /// Served before, and not any more since no manager was heard for so long.
    expired: Vec<Translation>,
    /// When an accepted manager was heard last, in milliseconds of whatever clock tells the time here.
    heard_ms: u64,
    /// For how many milliseconds no manager had been heard when that clock began.
    silent_before_ms: u64,
}

/// How long a compute node is served without word from the manager, in milliseconds: 24 hours.
pub const AUTHORISATION_MS: u64 = 24 * 3600 * 1000;

/// Runs of orphans that are reported at a time. Others are when these are released.
const RUNS_PER_REPORT: usize = 2000;

impl Mappings {
    /// Opens the page table of `pool`; `seen` is what the node's state file holds.
    pub fn open(pool: Arc<Pool>, seen: Watermark) -> (Mappings, Recovery) {
        let (writer, recovery) = PageTableWriter::open(pool);
        let orphans = BTreeMap::new();
        let (results, expired) = (Vec::new(), Vec::new());
        let (acked, unreported, heard_ms, silent_before_ms) = (0, false, 0, 0);
        let mappings = Mappings {
            writer,
            seen,
            acked,
            results,
            orphans,
            unreported,
            expired,
            heard_ms,
            silent_before_ms,
        };
        (mappings, recovery)
    }

    /// The page table, to be shared with the workers.
    pub fn table(&self) -> &Arc<PageTable> {
        self.writer.table()
    }

    /// The highest term and revision seen; to be kept on disk before anything of it is carried out.
    pub fn seen(&self) -> Watermark {
        self.seen
    }

    /// The number of the last command carried out.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// Results not yet known to have reached the manager.
    pub fn results(&self) -> &[CommandResult] {
        &self.results
    }

    /// The manager has answered a sync that carried the first `count` results.
    pub fn reported(&mut self, count: usize) {
        self.results.drain(..count.min(self.results.len()));
    }

    /// The number of extents mapped.
    pub fn len(&self) -> usize {
        self.writer.len()
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.writer.is_empty()
    }

    /// Takes note of how far the manager has come with which this node is registered, or refuses to listen to it.
    pub fn hear(&mut self, got: Watermark) -> Result<(), Refusal> {
        if got.run != self.seen.run {
            return Err(Refusal::AnotherRun);
        }
        if got.is_before(self.seen) {
            return Err(Refusal::Stale { seen: self.seen, got });
        }
        self.seen = got;
        Ok(())
    }

    /// An accepted manager has said something at `now_ms`: what it has not taken back may be served for
    /// [`AUTHORISATION_MS`] more.
    pub fn confirm(&mut self, now_ms: u64) {
        self.heard_ms = self.heard_ms.max(now_ms);
        self.silent_before_ms = 0;
    }

    /// No manager had been heard for so many milliseconds when the clock began that tells the time here.
    pub fn resume(&mut self, silent_ms: u64) {
        self.silent_before_ms = silent_ms;
    }

    /// For how many milliseconds no accepted manager has been heard at `now_ms`.
    pub fn silent_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.heard_ms).saturating_add(self.silent_before_ms)
    }

    /// Stops serving what no manager has confirmed for [`AUTHORISATION_MS`] at `now_ms`; how many extents. Their content is
    /// kept, and they are served again when a manager lists them.
    pub fn expire(&mut self, now_ms: u64) -> usize {
        if self.silent_ms(now_ms) < AUTHORISATION_MS || self.is_empty() {
            return 0;
        }
        let all: Vec<Translation> = self.table().iter().collect();
        self.remove(&all);
        self.writer.seal();
        let count = all.len();
        self.expired.extend(all);
        tracing::error!(
            extents = count,
            "no manager has been heard for 24 hours: compute nodes are not served any more; their memory is kept, and served \
             again when the manager this node follows is there"
        );
        count
    }

    /// Accepts a manager whose store contains all that this node has seen, which `terms` have to show.
    pub fn accept(&mut self, got: Watermark, terms: &[LeaderTerm]) -> Result<(), Refusal> {
        lineage::check(terms, got, self.seen)?;
        self.seen = got;
        Ok(())
    }

    /// What this node holds, by compute node.
    pub fn held(&self) -> Vec<Held> {
        let bytes = self.table().pool().extent_bytes();
        let mut held: BTreeMap<FabricCnId, u64> = BTreeMap::new();
        let kept = self.orphans.values().chain(&self.expired).copied();
        for t in self.table().iter().chain(kept) {
            if let Some(cn) = fabric_cn(t.cn) {
                *held.entry(cn).or_default() += bytes;
            }
        }
        let held = held.into_iter();
        held.map(|(compute_node, bytes)| Held { compute_node, region: None, created_ms: None, bytes })
            .collect()
    }

    /// The orphans that the manager has yet to hear of, as one report takes them.
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
                    let region = Name::new("orphan").expect("these letters are a name");
                    let extents = Extents::from_iter([run]);
                    pieces.push(Mapping { cn, region, cmem_base, extent_bytes, extents, cn_key: None });
                }
            }
        }
        pieces
    }

    /// The manager has heard of the orphans.
    pub fn orphans_reported(&mut self) {
        self.unreported = false;
    }

    /// The answer to a registration with an accepted manager: all that the node has to serve. Mappings not listed are
    /// removed at once and their content is kept; those listed are added with their content as it is when the job is done.
    pub fn registered(&mut self, answer: &MemoryNodeRegistered) -> Result<Job, Refusal> {
        self.accept(answer.watermark, &answer.lineage)?;
        self.acked = answer.acked_seq;
        self.results.clear();
        let mut wanted = Vec::new();
        for mapping in &answer.mappings {
            match self.translations(mapping) {
                Ok(translations) => wanted.extend(translations),
                Err(error) => tracing::error!(region = %mapping.region, %error, "cannot serve a region"),
            }
        }
        let free: HashSet<u64> = answer.unowned.iter().collect();
        Ok(self.serve_only(wanted, &free))
    }

    /// Removes every mapping that is not `wanted`. What the manager takes for free, or for somebody else's, is an orphan from
    /// then on; of the rest it knows, and says with a command what becomes of it.
    fn serve_only(&mut self, wanted: Vec<Translation>, free: &HashSet<u64>) -> Job {
        let keep: HashSet<Translation> = wanted.iter().copied().collect();
        let listed: HashSet<MpExtent> = wanted.iter().map(|translation| translation.mp_extent).collect();
        let expired = std::mem::take(&mut self.expired);
        let held = self.table().iter().chain(expired);
        let extra: Vec<Translation> = held.filter(|held| !keep.contains(held)).collect();
        self.remove(&extra);
        let generation = if extra.is_empty() { 0 } else { self.writer.seal() };
        let unknown =
            |t: &&Translation| free.contains(&u64::from(t.mp_extent.0)) || listed.contains(&t.mp_extent);
        self.orphans.extend(extra.iter().filter(unknown).map(|t| (t.mp_extent, *t)));
        // Listed again as it was: it is somebody's.
        self.orphans.retain(|_, t| !keep.contains(t));
        self.unreported = !self.orphans.is_empty();
        if self.unreported {
            let (extents, bytes) =
                (self.orphans.len(), self.table().pool().extent_bytes() * self.orphans.len() as u64);
            tracing::warn!(
                extents,
                bytes,
                "this node holds memory that the manager lists for nobody: it is kept and not served; `gmm release-orphans` \
                 zeroes it and gives it back"
            );
        }
        let wanted = wanted.into_iter().filter(|t| !self.orphans.contains_key(&t.mp_extent)).collect();
        Job { purpose: Purpose::Reconcile(wanted), generation, released: Vec::new(), granted: Vec::new() }
    }

    /// Removes every mapping that is not `wanted`; those that are missing are added when the job is done. The
    /// extents `granted`, and those that were removed from under another address, read as zeros then; all
    /// others keep their content.
    pub(super) fn reconcile(&mut self, wanted: Vec<Translation>, mut granted: Vec<MpExtent>) -> Job {
        let keep: HashSet<Translation> = wanted.iter().copied().collect();
        let used: HashSet<MpExtent> = wanted.iter().map(|translation| translation.mp_extent).collect();
        let extra: Vec<Translation> = self.table().iter().filter(|held| !keep.contains(held)).collect();
        let removed = self.remove(&extra);
        let generation = if removed.is_empty() { 0 } else { self.writer.seal() };
        let (moved, released): (Vec<_>, Vec<_>) =
            removed.into_iter().partition(|extent| used.contains(extent));
        granted.extend(moved);
        granted.sort_unstable();
        granted.dedup();
        Job { purpose: Purpose::Reconcile(wanted), generation, released, granted }
    }

    /// Begins to carry out a command. `Ok(None)`: it was carried out before.
    pub fn start(&mut self, command: &NodeCommand) -> Result<Option<Job>, Refusal> {
        // Its revision is that of its issue, which may lie before what an answer has told already; its term is
        // that of the manager that delivers it.
        if command.term < self.seen.term {
            return Err(Refusal::Stale { seen: self.seen, got: command.watermark() });
        }
        if command.seq <= self.acked {
            return Ok(None);
        }
        if command.seq != self.acked + 1 {
            return Err(Refusal::Gap { expected: self.acked + 1, got: command.seq });
        }
        let purpose = Purpose::Command(Box::new(command.clone()));
        let mut job = Job { purpose, generation: 0, released: Vec::new(), granted: Vec::new() };
        match self.plan(&command.action) {
            Ok((generation, released, granted)) => {
                (job.generation, job.released, job.granted) = (generation, released, granted);
                Ok(Some(job))
            }
            Err(error) => {
                self.conclude(command.seq, Some(error));
                Ok(None)
            }
        }
    }

    #[allow(clippy::type_complexity)]
    fn plan(&mut self, action: &NodeAction) -> Result<(u64, Vec<MpExtent>, Vec<MpExtent>), String> {
        let translations = self.translations(action.mapping())?;
        match action {
            NodeAction::MapCmem(_) => {
                let mut granted = Vec::new();
                // A manager of a release that knows no orphans could not release them.
                if self.seen.run == 0 {
                    self.forget_orphans(&translations);
                }
                if let Some(orphan) = translations.iter().find_map(|t| self.orphans.get(&t.mp_extent)) {
                    return Err(kept(orphan));
                }
                for t in &translations {
                    match self.writer.check(t.cn, t.cmem_extent, t.mp_extent) {
                        Ok(true) => {}
                        // Its workers are waited for below.
                        Ok(false) | Err(TableError::ExtentBusy(_)) => granted.push(t.mp_extent),
                        Err(error) => return Err(error.to_string()),
                    }
                }
                let generation = if granted.is_empty() { 0 } else { self.table().generation().current() };
                Ok((generation, Vec::new(), granted))
            }
            NodeAction::UnmapCmem(_) => {
                for t in &translations {
                    if let Some(owner) = self.writer.owner(t.mp_extent)
                        && owner != *t
                    {
                        return Err(TableError::ExtentTaken(owner).to_string());
                    }
                    if let Some(orphan) = self.orphans.get(&t.mp_extent).filter(|orphan| *orphan != t) {
                        return Err(kept(orphan));
                    }
                }
                let held = self.orphans.len();
                self.forget_orphans(&translations);
                // The next ones can be reported.
                self.unreported |= self.orphans.len() < held && !self.orphans.is_empty();
                self.remove(&translations);
                // Extents that are not mapped are zeroed all the same; an earlier removal may still be under way.
                let released = translations.iter().map(|t| t.mp_extent).collect();
                Ok((self.writer.seal(), released, Vec::new()))
            }
        }
    }

    /// Completes what [`start`](Self::start) or [`registered`](Self::registered) began: `outcome` is what
    /// [`Job::carry_out`] returned. After [`JobError::Stopped`] the command stays unanswered and comes again.
    pub fn finish(&mut self, job: Job, outcome: Result<(), JobError>) {
        match (job.purpose, outcome) {
            (_, Err(JobError::Stopped)) => {}
            (Purpose::Reconcile(_), Err(error)) => {
                tracing::error!(%error, "cannot ready the extents to be served")
            }
            (Purpose::Reconcile(wanted), Ok(())) => {
                for t in wanted {
                    if let Err(error) = self.writer.map(t.cn, t.cmem_extent, t.mp_extent) {
                        tracing::error!(%error, "cannot serve an extent");
                    }
                }
            }
            (Purpose::Command(command), Err(error)) => self.conclude(command.seq, Some(error.to_string())),
            (Purpose::Command(command), Ok(())) => {
                let error = match &command.action {
                    NodeAction::MapCmem(mapping) => self.add(mapping).err(),
                    NodeAction::UnmapCmem(_) => None,
                };
                self.conclude(command.seq, error);
            }
        }
    }

    /// All of a mapping or nothing of it.
    fn add(&mut self, mapping: &Mapping) -> Result<(), String> {
        let translations = self.translations(mapping)?;
        let present: HashSet<Translation> =
            translations.iter().filter_map(|t| self.writer.owner(t.mp_extent)).collect();
        for (count, t) in translations.iter().enumerate() {
            if let Err(error) = self.writer.map(t.cn, t.cmem_extent, t.mp_extent) {
                let added: Vec<_> =
                    translations[..count].iter().filter(|t| !present.contains(t)).copied().collect();
                self.remove(&added);
                self.writer.seal();
                return Err(error.to_string());
            }
        }
        Ok(())
    }

    fn remove(&mut self, translations: &[Translation]) -> Vec<MpExtent> {
        translations.iter().filter_map(|t| self.writer.unmap(t.cn, t.cmem_extent)).collect()
    }

    fn forget_orphans(&mut self, translations: &[Translation]) {
        for t in translations {
            self.orphans.remove(&t.mp_extent);
        }
    }

    fn conclude(&mut self, seq: u64, error: Option<String>) {
        if let Some(error) = &error {
            tracing::error!(seq, %error, "a command of the manager failed");
        }
        self.acked = seq;
        self.results.push(CommandResult { seq, error });
    }

    /// A mapping of the manager, extent by extent, in this pool's terms.
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
            translations.push(Translation { cn, cmem_extent, mp_extent });
        }
        Ok(translations)
    }
}

/// Why an orphan is not taken for something else.
fn kept(orphan: &Translation) -> String {
    let whose = fabric_cn(orphan.cn).map_or_else(|| orphan.cn.to_string(), |cn| cn.to_string());
    format!(
        "extent {} holds memory of CN {whose} that the manager did not list; it is kept until `gmm release-orphans`",
        orphan.mp_extent.0
    )
}

/// The data path's number as the manager's CN id.
fn fabric_cn(cn: cxloe_mn_core::translation::CnId) -> Option<FabricCnId> {
    FabricCnId::new(Mac::from_u64(cn)).ok()
}

/// The manager's CN id as the data path's number.
pub(super) fn cn_id(cn: FabricCnId) -> cxloe_mn_core::translation::CnId {
    cn.mac().to_u64()
}
