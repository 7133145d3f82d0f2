//! The store in an etcd cluster, for several managers of which one leads: the same records as in a file store, one key
//! each, under a prefix. Only the leader reads and writes them.
//!
//! Every write is one transaction with two conditions. First, the leader's key must be the one that this manager
//! created: so writes of a former leader fail, however late they arrive. Second, `commit`, which every write sets, must
//! have the revision of this manager's last write: so a request that was delayed behind later ones fails, and a
//! repeated request whose answer was lost is recognised as already carried out.
//!
//! A commit that does not fit into one transaction is first written in parts under `redo/` (a redo log), and is
//! committed once `redo/head` exists. Then its parts are applied and removed. If that is interrupted, the next load of
//! the store completes it.
//!
//! ```text
//!   PREFIX/format  leader  commit  redo/head  redo/000000 ...  state/TABLE/KEY ...
//! ```

mod access;
mod authority;
mod batch;
mod clusters;
mod gateway;
mod leadership;
mod member;
mod refusal;
mod wire;

use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

pub use self::authority::SharedAuthority;
pub use self::gateway::EtcdError;
pub use self::leadership::{
    Attempt, Campaign, FencingToken, LEASE_TTL_S_DEFAULT, LEASE_TTL_S_MAX, LEASE_TTL_S_MIN, Leadership,
};
pub use self::member::{EtcdMember, examine};
pub use self::refusal::{Refusal, backoff};

use self::batch::{Batch, record_key};
use self::gateway::Gateway;
use self::wire::{KeyValue, TxnAnswer, bytes, delete_span, end_of, put, read, set_at};
use super::record::{FORMAT, Record, Restore, Table};
use super::{EtcdPlace, Store, StoreError};
use cxloe_gmm_core::manager::{Change, Contradiction, FabricState};

/// Time-out of one try of a request.
const TRY_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of loads that are begun again because etcd compacted the revision that was being read.
const LOADS_MAX: u32 = 8;
/// Maximum number of keys per read.
const PAGE: i64 = 500;

/// A store in an etcd cluster, for the leader. It has its own async runtime, so it must not be used within another one.
#[derive(Debug)]
pub struct EtcdStore {
    runtime: Runtime,
    gateway: Gateway,
    place: EtcdPlace,
    token: FencingToken,
    /// Revision at which this manager last set `commit`.
    chain: i64,
    /// Number of writes of this manager until now.
    writes: u64,
}

impl EtcdStore {
    /// The store at `place`, for the leader with this token. It has to be loaded before the first commit.
    ///
    /// # Errors
    /// [`StoreError::Etcd`] if no client or runtime can be made; nothing is sent to etcd yet.
    pub fn open(place: &EtcdPlace, token: FencingToken) -> Result<Self, StoreError> {
        Self::with(place, token, Gateway::new(place))
    }

    fn with(
        place: &EtcdPlace,
        token: FencingToken,
        gateway: Result<Gateway, EtcdError>,
    ) -> Result<Self, StoreError> {
        let refused = |source| StoreError::Etcd { place: place.to_string(), source };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| refused(EtcdError::of_this_machine(&error)))?;
        let gateway = gateway.map_err(refused)?;
        Ok(Self { runtime, gateway, place: place.clone(), token, chain: 0, writes: 0 })
    }

    /// Repeats a request until etcd answers, as long as this manager leads.
    fn retry<T>(&self, ask: impl AsyncFn(Duration) -> Result<T, EtcdError>) -> Result<T, StoreError> {
        self.runtime.block_on(async {
            let (mut said, mut backoff) = (false, backoff());
            loop {
                let remaining = self.token.lease.remaining();
                if remaining.is_zero() {
                    return Err(self.not_leader_error());
                }
                match ask(remaining.min(TRY_TIMEOUT)).await {
                    Ok(answer) => return Ok(answer),
                    Err(reason) if reason.is_passing() => {
                        if !std::mem::replace(&mut said, true) {
                            tracing::warn!(store = %self.place, %reason, "the store does not answer; trying again");
                        }
                        tokio::time::sleep(backoff.pause().min(remaining)).await;
                    }
                    Err(source) => return Err(StoreError::Etcd { place: self.place.to_string(), source }),
                }
            }
        })
    }

    fn not_leader_error(&self) -> StoreError {
        StoreError::Deposed { place: self.place.to_string() }
    }

    /// The error for a damaged key; `key` may be given with or without the fabric's prefix.
    fn damaged_error(&self, key: &str, reason: impl Into<String>) -> StoreError {
        let prefix = self.place.key("");
        let key = if key.starts_with(&prefix) { key.to_owned() } else { format!("{prefix}{key}") };
        let look = self.place.etcdctl(&format!("get '{key}'"));
        StoreError::DamagedKey {
            place: self.place.to_string(),
            key,
            reason: reason.into(),
            look,
            empty: self.emptying(),
        }
    }

    /// Command that deletes everything of this fabric in etcd.
    fn emptying(&self) -> String {
        self.place.etcdctl(&format!("del --prefix {}", self.place.key("")))
    }

    /// Carries out all `steps` in one transaction of the leader, or none of them.
    fn write(&mut self, mut steps: Vec<Value>) -> Result<(), StoreError> {
        self.writes += 1;
        let commit = self.place.key("commit");
        let stamp = format!("{}-{}", self.token.created, self.writes);
        steps.push(put(&commit, &stamp));
        let txn = json!({
            "compare": [self.token.compare(), set_at(&commit, self.chain)],
            "success": steps,
            "failure": [read(&self.token.key), read(&commit)],
        });
        let answer = self.retry(async |timeout| self.gateway.txn(&txn, timeout).await)?;
        if answer.succeeded {
            self.chain = answer.header.revision;
            return Ok(());
        }
        self.check_lead(&answer)?;
        match answer.found(1) {
            // An earlier try was carried out, but its answer was lost.
            Some(last) if last.value == stamp => {
                self.chain = last.mod_revision;
                Ok(())
            }
            _ => Err(self.damaged_error("commit", "a manager that does not lead writes to it")),
        }
    }

    /// Checks that the leader's key, the first result in `answer`, is the one of this manager.
    fn check_lead(&self, answer: &TxnAnswer) -> Result<(), StoreError> {
        let ours = answer.found(0).is_some_and(|leader| leader.create_revision == self.token.created);
        if ours { Ok(()) } else { Err(self.not_leader_error()) }
    }

    /// Reads every key from `first` up to, but not including, `end` at `revision`, in pages.
    fn pages(
        &self,
        mut first: String,
        end: &str,
        revision: i64,
        mut each: impl FnMut(&KeyValue) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        loop {
            let (key, range_end) = (bytes(&first), bytes(end));
            let range = json!({"key": key, "range_end": range_end, "limit": PAGE, "revision": revision});
            let page = self.retry(async |timeout| self.gateway.range(&range, timeout).await)?;
            page.kvs.iter().try_for_each(&mut each)?;
            let Some(last) = page.kvs.last().filter(|_| page.more) else { return Ok(()) };
            // The next page begins at the smallest key after the last one read.
            first = format!("{}\0", last.key);
        }
    }

    /// Recovers the store: checks its format, and completes or discards a commit that a predecessor left incomplete.
    /// Returns the revision afterwards.
    fn recover(&mut self) -> Result<i64, StoreError> {
        let keys = [
            &self.token.key,
            &self.place.key("format"),
            &self.place.key("commit"),
            &self.place.key("redo/head"),
        ];
        let txn = json!({"success": keys.map(|key| read(key))});
        let found = self.retry(async |timeout| self.gateway.txn(&txn, timeout).await)?;
        self.check_lead(&found)?;
        match found.found(1) {
            Some(format) if format.value != FORMAT.to_string() => {
                let (place, found) = (self.place.to_string(), format.value.clone());
                return Err(StoreError::Format { place, found });
            }
            _ => {}
        }
        self.chain = found.found(2).map_or(0, |commit| commit.mod_revision);
        if let Some(head) = found.found(3) {
            let count: usize =
                head.value.parse().map_err(|_| self.damaged_error("redo/head", "it is no number"))?;
            tracing::info!(store = %self.place, parts = count, "finishing a commit that was under way");
            let mut parts = Vec::new();
            // The parts of the redo log, without its head, have the keys from `redo/0` up to, but not including,
            // `redo/:`; the colon sorts directly after the digit 9.
            let (first, end) = (self.place.key("redo/0"), self.place.key("redo/:"));
            self.pages(first, &end, found.header.revision, |part| {
                let steps = serde_json::from_str(&part.value);
                parts.push(steps.map_err(|error| self.damaged_error(&part.key, error.to_string()))?);
                Ok(())
            })?;
            if parts.len() != count {
                let reason = format!("{} of {count} parts of a commit are there", parts.len());
                return Err(self.damaged_error("redo/head", reason));
            }
            self.carry_out(parts)?;
        }
        let format = put(&self.place.key("format"), &FORMAT.to_string());
        self.write(vec![format, self.redo_ended()])?;
        Ok(self.chain)
    }

    /// Step that empties the redo log.
    fn redo_ended(&self) -> Value {
        let folder = self.place.key("redo/");
        delete_span(&folder, &end_of(&folder))
    }

    /// Writes a commit of several chunks to the redo log, which commits it.
    fn write_redo_log(&mut self, chunks: &[Vec<Value>]) -> Result<(), StoreError> {
        for (number, chunk) in chunks.iter().enumerate() {
            let text = serde_json::to_string(chunk);
            let text = text.map_err(|error| self.damaged_error("redo/head", error.to_string()))?;
            let mut steps = vec![put(&self.place.key(&format!("redo/{number:06}")), &text)];
            if number + 1 == chunks.len() {
                steps.push(put(&self.place.key("redo/head"), &chunks.len().to_string()));
            }
            self.write(steps)?;
        }
        Ok(())
    }

    /// Applies a commit from the redo log, and removes it from the log.
    fn carry_out(&mut self, chunks: Vec<Vec<Value>>) -> Result<(), StoreError> {
        let last = chunks.len().saturating_sub(1);
        for (number, mut chunk) in chunks.into_iter().enumerate() {
            if number == last {
                chunk.push(self.redo_ended());
            }
            self.write(chunk)?;
        }
        Ok(())
    }
}

impl EtcdStore {
    fn load_once(&mut self) -> Result<FabricState, StoreError> {
        let revision = self.recover()?;
        let mut restore = Restore::default();
        for table in Table::ALL {
            let folder = record_key(&self.place, table, "");
            self.pages(folder.clone(), &end_of(&folder), revision, |record| {
                let key = record.key.strip_prefix(&folder).unwrap_or(&record.key);
                restore
                    .add(table, key, record.value.as_bytes())
                    .map_err(|error| self.damaged_error(&record.key, error.to_string()))
            })?;
        }
        restore.finish().map_err(|source| self.contradicted(source))
    }
}

impl Store for EtcdStore {
    fn record_bytes_max(&self) -> Option<u64> {
        Some(batch::RECORD_BYTES_MAX as u64 / 4 * 3)
    }

    fn load(&mut self) -> Result<FabricState, StoreError> {
        let mut loads = 1;
        loop {
            match self.load_once() {
                // All pages of a load are read at one revision. If etcd has compacted it, a later revision
                // will do.
                Err(StoreError::Etcd { source, .. })
                    if source.refusal() == Refusal::Compacted && loads < LOADS_MAX =>
                {
                    loads += 1;
                }
                loaded => return loaded,
            }
        }
    }

    fn contradicted(&self, source: Contradiction) -> StoreError {
        let (place, empty) = (self.place.to_string(), self.emptying());
        StoreError::ContradictionInEtcd { place, source, empty }
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        let records =
            Record::all_of(changes).map_err(|error| self.damaged_error("state", error.to_string()))?;
        let mut chunks = Batch::of(records).chunks(&self.place)?;
        match chunks.len() {
            0 => Ok(()),
            1 => self.write(chunks.remove(0)),
            _ => {
                self.write_redo_log(&chunks)?;
                self.carry_out(chunks)
            }
        }
    }
}
