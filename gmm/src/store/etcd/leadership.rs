//! Election of the leader among managers that share one etcd: the manager whose key `PREFIX/leader` exists. The key is
//! bound to a lease and contains the leader's URL. The leader renews the lease three times in its duration. If it
//! cannot, its [`Lease`] ends before the one in etcd, so no two managers ever use the store at the same time.
//!
//! ```text
//!   attempt: leader's key exists? --yes--> follow its URL, look again later
//!              | no
//!              v
//!            request lease, create key (if still absent) --> Leadership --keep--> lead lost: attempt again
//! ```

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::EtcdStore;
use super::gateway::{EtcdError, Gateway};
use super::refusal::backoff;
use super::wire::{KeyValue, bytes, created_at, put_until, read};
use crate::store::lease::boot_ms;
use crate::store::{EtcdPlace, Lease, StoreError};

/// Default duration of a leader's lease, in seconds.
pub const LEASE_TTL_S_DEFAULT: u64 = 3;
/// Minimum duration of a lease in seconds, which is etcd's own.
pub const LEASE_TTL_S_MIN: u64 = 2;
/// Maximum duration of a lease in seconds.
pub const LEASE_TTL_S_MAX: u64 = 600;

/// Time-out of requests that this manager sends while it does not lead.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before a failed renewal is repeated.
const RENEW_PAUSE: Duration = Duration::from_millis(100);

/// Value of the leader's key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LeaderRecord {
    url: String,
    /// Random number of the leader's process.
    instance: u64,
}

/// A manager that tries to become the leader.
#[derive(Debug)]
pub struct Campaign {
    gateway: Arc<Gateway>,
    place: EtcdPlace,
    key: String,
    record: LeaderRecord,
    ttl_s: u64,
}

/// Result of an attempt to lead.
#[derive(Debug)]
pub enum Attempt {
    /// This manager has become the leader.
    Won(Leadership),
    /// Another manager leads; this is its URL.
    Led(String),
    /// No manager leads at present; the text gives the reason, which passes without intervention.
    Expiring(String),
    /// No manager can lead until an operator corrects the leader's key; the text says how.
    Blocked(String),
}

impl Campaign {
    /// A candidate among the managers that share `place`, reached at `url`, with a lease of `ttl_s` seconds.
    ///
    /// # Errors
    /// [`EtcdError`] if no client can be made; nothing is sent to etcd yet.
    pub fn new(place: &EtcdPlace, url: &str, ttl_s: u64) -> Result<Self, EtcdError> {
        let gateway = Arc::new(Gateway::new(place)?);
        let record = LeaderRecord { url: url.trim_end_matches('/').to_owned(), instance: rand::random() };
        let ttl_s = ttl_s.clamp(LEASE_TTL_S_MIN, LEASE_TTL_S_MAX);
        Ok(Self { gateway, place: place.clone(), key: place.key("leader"), record, ttl_s })
    }

    /// Tries once to become the leader.
    pub async fn attempt(&self) -> Result<Attempt, EtcdError> {
        let there = self.gateway.range(&json!({"key": bytes(&self.key)}), ANSWER_TIMEOUT).await?;
        if let Some(leader) = there.kvs.first() {
            match KeyState::of(leader, &self.record) {
                // The key is left from a leadership that this process has lost. Its lease is revoked, since
                // no other process can use it.
                KeyState::Own => self.gateway.revoke(leader.lease, ANSWER_TIMEOUT).await?,
                state => return Ok(self.held(state)),
            }
        }
        let asked_ms = boot_ms();
        let lease = self.gateway.grant(self.ttl_s, ANSWER_TIMEOUT).await?;
        let value = serde_json::to_string(&self.record).unwrap_or_default();
        let txn = json!({
            "compare": [created_at(&self.key, 0)],
            "success": [put_until(&self.key, &value, lease.id)],
            "failure": [read(&self.key)],
        });
        match self.gateway.txn(&txn, ANSWER_TIMEOUT).await {
            Ok(answer) if answer.succeeded => Ok(Attempt::Won(Leadership {
                gateway: Arc::clone(&self.gateway),
                lease: lease.id,
                ttl: Duration::from_secs(self.ttl_s),
                token: FencingToken {
                    key: self.key.clone(),
                    created: answer.header.revision,
                    lease: Lease::until(safe_end_ms(asked_ms, self.ttl_s)),
                },
            })),
            other => {
                // If the revocation fails, the lease expires by itself.
                drop(self.gateway.revoke(lease.id, ANSWER_TIMEOUT).await);
                let answer = other?;
                let state = answer.found(0).map(|leader| KeyState::of(leader, &self.record));
                Ok(self.held(state.unwrap_or(KeyState::Own)))
            }
        }
    }

    /// The result of an attempt while the leader's key exists.
    fn held(&self, state: KeyState) -> Attempt {
        let key = &self.key;
        let mend = || self.place.etcdctl(&format!("del {key}"));
        match state {
            KeyState::Other(url) => Attempt::Led(url),
            KeyState::Own => Attempt::Expiring("the election has just been decided otherwise".to_owned()),
            KeyState::Former => Attempt::Expiring(format!(
                "the lease of an earlier process at {} has not ended yet",
                self.record.url
            )),
            KeyState::Unleased => Attempt::Blocked(format!(
                "the key {key} in etcd has no lease, so nothing ends it: somebody has written it who is no manager; delete it with `{}`",
                mend()
            )),
            KeyState::Alien => Attempt::Blocked(format!(
                "the key {key} in etcd does not contain what managers of this version write; delete it with `{}`, unless managers of another version share this store",
                mend()
            )),
        }
    }
}

/// State of the leader's key, for one candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
enum KeyState {
    /// Another manager leads; this is its URL.
    Other(String),
    /// This process wrote the key.
    Own,
    /// An earlier process with the URL of this one wrote the key.
    Former,
    /// The key has no lease.
    Unleased,
    /// The key's value is not one that managers write.
    Alien,
}

impl KeyState {
    fn of(key: &KeyValue, own: &LeaderRecord) -> Self {
        match serde_json::from_str::<LeaderRecord>(&key.value) {
            Err(_) => Self::Alien,
            Ok(_) if key.lease == 0 => Self::Unleased,
            Ok(record) if record.instance == own.instance => Self::Own,
            Ok(record) if record.url == own.url => Self::Former,
            Ok(record) => Self::Other(record.url),
        }
    }
}

/// Describes the loss of the leader's key; `found` is the present record under the key.
fn lost(key: &str, found: Option<&KeyValue>) -> String {
    match found {
        None => format!("somebody deleted the key {key} in etcd, or etcd ended its lease"),
        Some(_) => format!("somebody else wrote the key {key} in etcd"),
    }
}

/// Time until which a manager relies on a lease that it requested or renewed at `asked_ms`: a tenth less than `ttl_s`,
/// since clocks run at different speeds.
fn safe_end_ms(asked_ms: u64, ttl_s: u64) -> u64 {
    asked_ms + ttl_s * 900
}

/// Condition on a leader's writes: the leader's key must be the one that this leader created. It fences off a
/// former leader.
#[derive(Debug, Clone)]
pub struct FencingToken {
    pub(super) key: String,
    /// Revision at which this leader created the key.
    pub(super) created: i64,
    pub(super) lease: Lease,
}

impl FencingToken {
    /// The leader's lease; once it has ended, no write is attempted.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The condition of a transaction that fails once the leader is replaced.
    pub(super) fn compare(&self) -> Value {
        created_at(&self.key, self.created)
    }
}

/// Leadership of this manager, as long as its lease is renewed.
#[derive(Debug)]
pub struct Leadership {
    gateway: Arc<Gateway>,
    lease: i64,
    ttl: Duration,
    token: FencingToken,
}

impl Leadership {
    /// Opens the store at `place` for this leader. The store's client and this leader share their findings about etcd's
    /// members.
    ///
    /// # Errors
    /// As [`EtcdStore::open`].
    pub fn store(&self, place: &EtcdPlace) -> Result<EtcdStore, StoreError> {
        EtcdStore::with(place, self.token(), self.gateway.sibling())
    }

    /// The condition on this leader's writes.
    pub fn token(&self) -> FencingToken {
        self.token.clone()
    }

    /// Renews the lease and watches the leader's key until the lead is lost, then ends the lease for all its
    /// clones. Returns the reason of the loss.
    pub async fn keep(&self) -> String {
        let reason = tokio::select! {
            reason = self.renew() => reason,
            reason = self.watch() => reason,
        };
        self.token.lease.end();
        reason
    }

    /// Watches the leader's key until somebody has changed or deleted it. The key is read before each watch,
    /// so that a broken watch misses no change.
    async fn watch(&self) -> String {
        let (key, mut backoff) = (&self.token.key, backoff());
        loop {
            let read = json!({"compare": [], "success": [read(key)]});
            let revision = match self.gateway.txn(&read, self.ttl / 3).await {
                Ok(answer) if answer.found(0).is_some_and(|key| self.is_as_created(key)) => {
                    answer.header.revision
                }
                Ok(answer) => return lost(key, answer.found(0)),
                // If etcd does not answer, this manager leads until its lease ends.
                Err(_) => {
                    tokio::time::sleep(backoff.pause()).await;
                    continue;
                }
            };
            // A watch at a member that is cut off from the others reports nothing, so it is replaced as often
            // as the lease is renewed.
            let changed = self.gateway.changed(key, revision + 1);
            match tokio::time::timeout(self.ttl / 3, changed).await {
                Ok(Ok(())) | Err(_) => backoff.reset(),
                Ok(Err(_)) => tokio::time::sleep(backoff.pause()).await,
            }
        }
    }

    fn is_as_created(&self, key: &KeyValue) -> bool {
        let FencingToken { created, .. } = self.token;
        (key.create_revision, key.mod_revision, key.lease) == (created, created, self.lease)
    }

    /// Renews the lease until it ends. Returns the reason why it ended.
    async fn renew(&self) -> String {
        let lease = &self.token.lease;
        let (usual, mut pause, mut trouble) = (self.ttl / 3, self.ttl / 3, None);
        loop {
            tokio::time::sleep(pause.min(lease.remaining())).await;
            // The renewed lease is counted from the time of the request, because the answer may arrive late.
            let asked_ms = boot_ms();
            let remaining = lease.remaining();
            if remaining.is_zero() {
                return trouble
                    .unwrap_or_else(|| "this process was stopped for longer than the lease".to_owned());
            }
            match self.gateway.renew(self.lease, usual.min(remaining)).await {
                Ok(granted) if granted.ttl_s > 0 => {
                    let ttl_s = u64::try_from(granted.ttl_s).unwrap_or(0).min(self.ttl.as_secs());
                    lease.extend(safe_end_ms(asked_ms, ttl_s));
                    if trouble.take().is_some() {
                        tracing::info!("etcd answers again; the lead is kept");
                    }
                    pause = usual;
                }
                Ok(_) => {
                    lease.end();
                    return "etcd has ended the lease".to_owned();
                }
                Err(error) => {
                    let reason = error.to_string();
                    if trouble.is_none() {
                        tracing::warn!(%reason, "cannot renew the lease of the lead; trying again");
                    }
                    trouble = Some(reason);
                    pause = RENEW_PAUSE;
                }
            }
        }
    }

    /// Gives up the lead, so that another manager need not wait until the lease expires. From this call on, this
    /// manager does not lead.
    ///
    /// # Errors
    /// [`EtcdError`]; the lease then expires.
    pub async fn resign(self) -> Result<(), EtcdError> {
        self.token.lease.end();
        self.gateway.revoke(self.lease, ANSWER_TIMEOUT).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leaders_key_is_judged_by_value_and_lease() {
        let own = LeaderRecord { url: "https://a:1".to_owned(), instance: 7 };
        let record = |url: &str, instance: u64| {
            serde_json::to_string(&LeaderRecord { url: url.to_owned(), instance }).unwrap()
        };
        for (value, lease, state) in [
            (record("https://b:1", 8), 3, KeyState::Other("https://b:1".to_owned())),
            (record("https://a:1", 7), 3, KeyState::Own),
            (record("https://a:1", 8), 3, KeyState::Former),
            (record("https://b:1", 8), 0, KeyState::Unleased),
            (record("https://a:1", 7), 0, KeyState::Unleased),
            ("https://b:1".to_owned(), 3, KeyState::Alien),
            (String::new(), 0, KeyState::Alien),
        ] {
            let key = KeyValue { value: value.clone(), lease, ..KeyValue::default() };
            assert_eq!(KeyState::of(&key, &own), state, "{value} {lease}");
        }
    }
}
