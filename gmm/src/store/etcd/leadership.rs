//! Who leads, when several managers share one etcd: the one whose key `PREFIX/leader` is there. The key goes with a lease
//! and names the leader's URL. The leader renews the lease three times in its duration; when it cannot, its [`Lease`] ends
//! before the lease does, so there is never a moment at which two speak for the store.
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

use super::gateway::{EtcdError, Gateway};
use super::wire::{Compare, Number, Put, Range, Step, Txn};
use crate::store::lease::boot_ms;
use crate::store::{EtcdPlace, Lease};

/// Seconds a leader's lease lasts unless told otherwise.
pub const LEASE_TTL_S_DEFAULT: u64 = 3;
/// The shortest lease in seconds; etcd grants no shorter ones.
pub const LEASE_TTL_S_MIN: u64 = 2;
/// The longest lease in seconds.
pub const LEASE_TTL_S_MAX: u64 = 600;

/// How long etcd may take to answer when there is no lease to lose.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before an attempt to renew is repeated.
const RENEW_PAUSE: Duration = Duration::from_millis(100);

/// What the leader's key holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LeaderRecord {
    /// Where it serves.
    url: String,
    /// Identifies its process (random at its start).
    instance: u64,
}

/// A manager that wants to lead.
#[derive(Debug)]
pub struct Campaign {
    gateway: Arc<Gateway>,
    key: String,
    record: LeaderRecord,
    ttl_s: u64,
}

/// What became of an attempt to lead.
#[derive(Debug)]
pub enum Attempt {
    /// This manager leads.
    Won(Leadership),
    /// Another one leads, and serves at this URL.
    Led(String),
}

impl Campaign {
    /// To lead the managers of `place`, serving at `url`, with a lease of `ttl_s` seconds.
    ///
    /// # Errors
    /// [`EtcdError`] when no client can be made; etcd is not asked yet.
    pub fn new(place: &EtcdPlace, url: &str, ttl_s: u64) -> Result<Self, EtcdError> {
        let gateway = Arc::new(Gateway::new(place)?);
        let record = LeaderRecord { url: url.trim_end_matches('/').to_owned(), instance: rand::random() };
        let ttl_s = ttl_s.clamp(LEASE_TTL_S_MIN, LEASE_TTL_S_MAX);
        Ok(Self { gateway, key: place.key("leader"), record, ttl_s })
    }

    /// Tries once.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn attempt(&self) -> Result<Attempt, EtcdError> {
        let there = self.gateway.range(&Range::one(self.key.as_str()), ANSWER_TIMEOUT).await?;
        if let Some(leader) = there.kvs.first() {
            match self.url_of(&leader.value.0) {
                Some(url) => return Ok(Attempt::Led(url)),
                // This process led and lost touch: nobody else knows, so the place need not stay empty.
                None => self.gateway.revoke(leader.lease, ANSWER_TIMEOUT).await?,
            }
        }
        let asked_ms = boot_ms();
        let lease = self.gateway.grant(self.ttl_s, ANSWER_TIMEOUT).await?;
        let value = serde_json::to_string(&self.record).unwrap_or_default();
        let key = self.key.as_str();
        let txn = Txn {
            compare: vec![Compare::Create { key: key.into(), create_revision: Number(0) }],
            success: vec![Step::Put(Put { key: key.into(), value: value.into(), lease: lease.id })],
            failure: vec![Step::Range(Range::one(key))],
        };
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
                // Best effort: without it, the lease ends by itself.
                drop(self.gateway.revoke(lease.id, ANSWER_TIMEOUT).await);
                let leader = other?.found(0).and_then(|leader| self.url_of(&leader.value.0));
                Ok(Attempt::Led(leader.unwrap_or_default()))
            }
        }
    }

    /// The URL in a leader's record, unless it is this process's own.
    fn url_of(&self, value: &[u8]) -> Option<String> {
        match serde_json::from_slice::<LeaderRecord>(value) {
            Ok(record) if record.instance == self.record.instance => None,
            Ok(record) => Some(record.url),
            Err(_) => Some(String::new()),
        }
    }
}

/// When a lease asked for, or renewed, at `asked_ms` is no longer counted on: a tenth early, for clocks do not agree.
fn safe_end_ms(asked_ms: u64, ttl_s: u64) -> u64 {
    asked_ms + ttl_s * 900
}

/// What writes of a leader are checked by: its key must be the one that it created.
#[derive(Debug, Clone)]
pub struct FencingToken {
    pub(super) key: String,
    pub(super) created: Number,
    pub(super) lease: Lease,
}

impl FencingToken {
    /// How long writes have a chance.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The comparison that fails once the leader was deposed.
    pub(super) fn compare(&self) -> Compare {
        Compare::Create { key: self.key.as_str().into(), create_revision: self.created }
    }
}

/// The lead, for as long as the lease is renewed.
#[derive(Debug)]
pub struct Leadership {
    gateway: Arc<Gateway>,
    lease: Number,
    ttl: Duration,
    token: FencingToken,
}

impl Leadership {
    /// What this leader's writes are checked by.
    pub fn token(&self) -> FencingToken {
        self.token.clone()
    }

    /// Renews the lease until it is over, and returns why.
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
                Ok(granted) if granted.ttl_s.0 > 0 => {
                    let ttl_s = u64::try_from(granted.ttl_s.0).unwrap_or(0).min(self.ttl.as_secs());
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

    /// Gives the lead back, so that another manager need not wait for the end of the lease. From here on this one does
    /// not lead.
    ///
    /// # Errors
    /// [`EtcdError`]; the lease then ends by itself.
    pub async fn give_back(self) -> Result<(), EtcdError> {
        self.token.lease.end();
        self.gateway.revoke(self.lease, ANSWER_TIMEOUT).await
    }
}
