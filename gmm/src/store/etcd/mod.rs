//! The store in an etcd cluster, for several managers of which one leads: the same records as in a file, one key each,
//! under a prefix. Only the leader reads and writes it.
//!
//! Every write is one transaction with two conditions. That the leader's key is the one this manager created: a manager
//! that was deposed fails, however late its request arrives. And that `commit`, which every write sets, is as this manager
//! left it: a request that got lost on its way and arrives after later ones fails too, and one whose answer got lost is
//! recognised as done when it is repeated.
//!
//! A commit that does not fit into one transaction is written down first, in parts, under `redo/`; with `redo/head` it has
//! happened. Then its parts are carried out and removed. Whoever loads the store finishes what it finds there.
//!
//! ```text
//!   PREFIX/format  leader  commit  redo/head  redo/000000 ...  state/TABLE/KEY ...
//! ```

mod access;
mod authority;
mod batch;
mod gateway;
mod leadership;
mod wire;

use std::time::Duration;

use tokio::runtime::Runtime;

pub use self::authority::shared_authority;
pub use self::gateway::EtcdError;
pub use self::leadership::{
    Attempt, Campaign, FencingToken, LEASE_TTL_S_DEFAULT, LEASE_TTL_S_MAX, LEASE_TTL_S_MIN, Leadership,
};

use self::batch::{Batch, record_key};
use self::gateway::Gateway;
use self::wire::{Compare, KeyValue, Number, Range, Step, Txn, TxnAnswer};
use super::record::{FORMAT, FORMAT_BEFORE, Record, Restore, Table};
use super::{EtcdPlace, Store, StoreError};
use crate::manager::{Change, Contradiction, State};

/// How long one try may take.
const TRY_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before a try is repeated.
const PAUSE: Duration = Duration::from_millis(50);
/// Keys asked for at a time.
const PAGE: i64 = 500;

/// A store in an etcd cluster, as its leader has it. Not to be used within an async runtime: it has one of its own.
#[derive(Debug)]
pub struct EtcdStore {
    runtime: Runtime,
    gateway: Gateway,
    place: EtcdPlace,
    token: FencingToken,
    /// Revision at which `commit` was last set.
    chain: Number,
    /// Writes so far.
    writes: u64,
}

impl EtcdStore {
    /// The store at `place`, for the leader whose token this is. To be loaded before anything is committed.
    ///
    /// # Errors
    /// [`StoreError::Etcd`] when no client or runtime can be made; etcd is not asked yet.
    pub fn open(place: &EtcdPlace, token: FencingToken) -> Result<Self, StoreError> {
        let refused = |source| StoreError::Etcd { place: place.to_string(), source };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| {
            refused(EtcdError::Refused { host: "this machine".to_owned(), reason: error.to_string() })
        })?;
        let gateway = Gateway::new(place).map_err(refused)?;
        Ok(Self { runtime, gateway, place: place.clone(), token, chain: Number(0), writes: 0 })
    }

    /// Asks again and again while there is somebody to ask and this manager leads.
    fn insist<T>(&self, ask: impl AsyncFn(Duration) -> Result<T, EtcdError>) -> Result<T, StoreError> {
        self.runtime.block_on(async {
            let mut said = false;
            loop {
                let remaining = self.token.lease.remaining();
                if remaining.is_zero() {
                    return Err(self.deposed());
                }
                match ask(remaining.min(TRY_TIMEOUT)).await {
                    Ok(answer) => return Ok(answer),
                    Err(reason) if reason.is_passing() => {
                        if !std::mem::replace(&mut said, true) {
                            tracing::warn!(store = %self.place, %reason, "the store does not answer; trying again");
                        }
                        tokio::time::sleep(PAUSE.min(remaining)).await;
                    }
                    Err(source) => return Err(StoreError::Etcd { place: self.place.to_string(), source }),
                }
            }
        })
    }

    fn deposed(&self) -> StoreError {
        StoreError::Deposed { place: self.place.to_string() }
    }

    fn damaged(&self, reason: impl Into<String>) -> StoreError {
        StoreError::Damaged { place: self.place.to_string(), reason: reason.into() }
    }

    /// One transaction of the leader; all or none of `steps`.
    fn write(&mut self, steps: Vec<Step>) -> Result<(), StoreError> {
        self.writes += 1;
        let commit = self.place.key("commit");
        let stamp = format!("{}-{}", self.token.created.0, self.writes);
        let chained = Compare::Mod { key: commit.as_str().into(), mod_revision: self.chain };
        let mut success = steps;
        success.push(Step::put(commit.as_str(), stamp.as_str()));
        let failure = [&self.token.key, &commit].map(|key| Step::Range(Range::one(key.as_str()))).into();
        let txn = Txn { compare: vec![self.token.compare(), chained], success, failure };
        let answer = self.insist(async |timeout| self.gateway.txn(&txn, timeout).await)?;
        if answer.succeeded {
            self.chain = answer.header.revision;
            return Ok(());
        }
        self.check_lead(&answer)?;
        match answer.found(1) {
            // Done by an earlier try whose answer was lost.
            Some(last) if last.value.text() == stamp => {
                self.chain = last.mod_revision;
                Ok(())
            }
            _ => Err(self.damaged("somebody who does not lead writes to it")),
        }
    }

    /// Whether the leader's key, which is the first thing that `answer` found, is this manager's.
    fn check_lead(&self, answer: &TxnAnswer) -> Result<(), StoreError> {
        let ours = answer.found(0).is_some_and(|leader| leader.create_revision == self.token.created);
        if ours { Ok(()) } else { Err(self.deposed()) }
    }

    /// Every key of a range as of `revision` (0: now), a page at a time.
    fn pages(
        &self,
        mut range: Range,
        revision: Number,
        mut each: impl FnMut(&KeyValue) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        (range.limit, range.revision) = (Number(PAGE), revision);
        loop {
            let page = self.insist(async |timeout| self.gateway.range(&range, timeout).await)?;
            page.kvs.iter().try_for_each(&mut each)?;
            let Some(last) = page.kvs.last().filter(|_| page.more) else { return Ok(()) };
            range.key.0.clone_from(&last.key.0);
            range.key.0.push(0);
        }
    }

    /// Brings the store into order: checks its format, and finishes or forgets what a predecessor left half done.
    /// Returns the revision at which it is in order.
    fn tidy(&mut self) -> Result<Number, StoreError> {
        let keys = [
            &self.token.key,
            &self.place.key("format"),
            &self.place.key("commit"),
            &self.place.key("redo/head"),
        ];
        let looks: Vec<Step> = keys.map(|key| Step::Range(Range::one(key.as_str()))).into();
        let txn = Txn { success: looks, ..Txn::default() };
        let found = self.insist(async |timeout| self.gateway.txn(&txn, timeout).await)?;
        self.check_lead(&found)?;
        match found.found(1).map(|format| format.value.text()) {
            Some(format) if !(FORMAT_BEFORE..=FORMAT).any(|known| format == known.to_string()) => {
                return Err(StoreError::Format { place: self.place.to_string(), found: format });
            }
            _ => {}
        }
        self.chain = found.found(2).map_or(Number(0), |commit| commit.mod_revision);
        if let Some(head) = found.found(3) {
            let count: usize =
                head.value.text().parse().map_err(|_| self.damaged("redo/head is no number"))?;
            tracing::info!(store = %self.place, parts = count, "finishing a commit that was under way");
            let mut parts = Vec::new();
            self.pages(self.parts(), found.header.revision, |part| {
                parts.push(
                    serde_json::from_slice(&part.value.0)
                        .map_err(|error| self.damaged(format!("{}: {error}", part.key.text())))?,
                );
                Ok(())
            })?;
            if parts.len() != count {
                return Err(self.damaged(format!("{} of {count} parts of a commit are there", parts.len())));
            }
            self.carry_out(parts)?;
        }
        let format = Step::put(self.place.key("format"), FORMAT.to_string());
        self.write(vec![format, Step::Delete(Range::under(&self.place.key("redo/")))])?;
        Ok(self.chain)
    }

    /// The parts of a commit that was written down, without its head.
    fn parts(&self) -> Range {
        Range::span(self.place.key("redo/0"), self.place.key("redo/:"))
    }

    /// Writes down a commit of several chunks; with this it has happened.
    fn write_down(&mut self, chunks: &[Vec<Step>]) -> Result<(), StoreError> {
        for (number, chunk) in chunks.iter().enumerate() {
            let text = serde_json::to_string(chunk).map_err(|error| self.damaged(error.to_string()))?;
            let mut steps = vec![Step::put(self.place.key(&format!("redo/{number:06}")), text)];
            if number + 1 == chunks.len() {
                steps.push(Step::put(self.place.key("redo/head"), chunks.len().to_string()));
            }
            self.write(steps)?;
        }
        Ok(())
    }

    /// Carries out a commit that was written down, and forgets that it was.
    fn carry_out(&mut self, chunks: Vec<Vec<Step>>) -> Result<(), StoreError> {
        let last = chunks.len().saturating_sub(1);
        for (number, mut chunk) in chunks.into_iter().enumerate() {
            if number == last {
                chunk.push(Step::Delete(Range::under(&self.place.key("redo/"))));
            }
            self.write(chunk)?;
        }
        Ok(())
    }
}

impl Store for EtcdStore {
    fn load(&mut self) -> Result<State, StoreError> {
        let revision = self.tidy()?;
        let mut restore = Restore::default();
        for table in Table::ALL {
            let folder = record_key(&self.place, table, "");
            self.pages(Range::under(&folder), revision, |record| {
                let key = record.key.text();
                let key = key.strip_prefix(&folder).unwrap_or(&key);
                restore.add(table, key, &record.value.0).map_err(|error| self.damaged(error.to_string()))
            })?;
        }
        restore.finish().map_err(|source| self.contradicted(source))
    }

    fn contradicted(&self, source: Contradiction) -> StoreError {
        StoreError::Contradiction { place: self.place.to_string(), source }
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        let records = Record::all_of(changes).map_err(|error| self.damaged(error.to_string()))?;
        let mut chunks = Batch::of(records).chunks(&self.place)?;
        match chunks.len() {
            0 => Ok(()),
            1 => self.write(chunks.remove(0)),
            _ => {
                self.write_down(&chunks)?;
                self.carry_out(chunks)
            }
        }
    }
}
