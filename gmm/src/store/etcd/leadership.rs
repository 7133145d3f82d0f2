//! Election of the leader among managers that share one etcd: the manager whose key `PREFIX/leader` exists. The key is
//! bound to a lease and contains the leader's URL. The leader renews the lease three times in its duration. If it
//! cannot, its [`Lease`] ends before etcd's, so no two managers ever use the store at the same time.
//!
//! ```text
//!   attempt: key there? --yes--> follow its URL, look again
//!              | no
//!              v
//!            lease, key created with it (if still absent) --> Leadership --keep--> ... --> over: attempt again
//! ```

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::gateway::{EtcdError, Gateway};
use super::wire::{bytes, created_at, put_until, read};
use crate::store::lease::boot_ms;
use crate::store::{EtcdPlace, Lease};

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
        Ok(Self { gateway, key: place.key("leader"), record, ttl_s })
    }

    /// Tries once to become the leader.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn attempt(&self) -> Result<Attempt, EtcdError> {
        let there = self.gateway.range(&json!({"key": bytes(&self.key)}), ANSWER_TIMEOUT).await?;
        if let Some(leader) = there.kvs.first() {
            match self.url_of(&leader.value) {
                Some(url) => return Ok(Attempt::Led(url)),
                // The key belongs to this process, which has lost its connection: its lease is revoked, since no other
                // process can use it.
                None => self.gateway.revoke(leader.lease, ANSWER_TIMEOUT).await?,
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
                let leader = other?.found(0).and_then(|leader| self.url_of(&leader.value));
                Ok(Attempt::Led(leader.unwrap_or_default()))
            }
        }
    }

    /// The URL in a leader's record; `None` if the record is that of this process.
    fn url_of(&self, value: &str) -> Option<String> {
        match serde_json::from_str::<LeaderRecord>(value) {
            Ok(record) if record.instance == self.record.instance => None,
            Ok(record) => Some(record.url),
            Err(_) => Some(String::new()),
        }
    }
}

/// Time until which a manager relies on a lease that it requested or renewed at `asked_ms`: a tenth less than `ttl_s`,
/// since clocks run at different speeds.
fn safe_end_ms(asked_ms: u64, ttl_s: u64) -> u64 {
    asked_ms + ttl_s * 900
}

/// Condition on a leader's writes: the leader's key must be the one that this leader created.
#[derive(Debug, Clone)]
pub struct FencingToken {
    pub(super) key: String,
    /// Revision at which this leader created the key.
    pub(super) created: i64,
    pub(super) lease: Lease,
}

impl FencingToken {
    /// The lease outside of which writes are not attempted.
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
    /// The condition on this leader's writes.
    pub fn token(&self) -> FencingToken {
        self.token.clone()
    }

    /// Renews the lease until it ends. Returns the reason of its end.
    pub async fn keep(&self) -> String {
        let lease = &self.token.lease;
        let (usual, mut pause, mut trouble) = (self.ttl / 3, self.ttl / 3, None);
        loop {
            tokio::time::sleep(pause.min(lease.remaining())).await;
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
