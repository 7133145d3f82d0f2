//! Questions to an etcd cluster, over its JSON gateway: one HTTP request each, to the member that answered last. A member
//! that does not answer, or says that it cannot for now, makes the next question go to the next one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::AUTHORIZATION;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::access::{Authenticate, Authenticated, http};
use super::wire::{
    Failure, Ignored, LeaseGrant, LeaseGranted, LeaseId, Number, Range, RangeAnswer, Streamed, Txn, TxnAnswer,
};
use crate::store::{EtcdAccess, EtcdPlace};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(700);
/// gRPC: the answer did not come in time; the server is not available (no quorum, no leader, ending).
const PASSING: [i32; 2] = [4, 14];
/// How etcd says that its database is as large as it may be (`--quota-backend-bytes`).
const NO_SPACE: &str = "database space exceeded";
/// gRPC: the token is none, or has ended.
const UNAUTHENTICATED: i32 = 16;
/// Where a token is given for user and password.
const AUTHENTICATE: &str = "/v3/auth/authenticate";
/// gRPC: there is no such thing.
const NOT_FOUND: i32 = 5;

/// Why a question to etcd has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// Nobody answered in time. What was asked may have been done.
    #[error("etcd does not answer at {host}: {reason}; is it running, and has it a quorum?")]
    Away {
        /// The member asked last.
        host: String,
        /// What happened.
        reason: String,
    },
    /// It answered that it will not.
    #[error("etcd at {host} refuses: {reason}")]
    Refused {
        /// The member.
        host: String,
        /// What it said.
        reason: String,
    },
}

impl EtcdError {
    /// Whether it may be otherwise in a moment.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Away { .. })
    }

    /// Whether the cluster has no room for more (its alarm NOSPACE).
    pub fn is_for_want_of_room(&self) -> bool {
        matches!(self, Self::Refused { reason, .. } if reason.contains(NO_SPACE))
    }
}

/// A cluster. To be used in one runtime, that in which it was used first.
#[derive(Debug)]
pub struct Gateway {
    http: reqwest::Client,
    hosts: Vec<String>,
    current: AtomicUsize,
    access: EtcdAccess,
    /// What etcd has given for user and password.
    token: Mutex<Option<String>>,
}

impl Gateway {
    /// The cluster at `place`. Connects with the first question.
    ///
    /// # Errors
    /// [`EtcdError::Refused`] when no HTTP client can be made.
    pub fn new(place: &EtcdPlace) -> Result<Self, EtcdError> {
        let refused = |reason: String| EtcdError::Refused { host: place.to_string(), reason };
        let access = place.access.clone();
        let builder = http(&access).map_err(refused)?.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
        let http = builder
            .build()
            .map_err(|error| EtcdError::Refused { host: place.to_string(), reason: error.to_string() })?;
        let hosts = place.hosts().to_vec();
        Ok(Self { http, hosts, current: AtomicUsize::new(0), access, token: Mutex::default() })
    }

    /// Carries out a transaction.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn txn(&self, txn: &Txn, timeout: Duration) -> Result<TxnAnswer, EtcdError> {
        self.ask("/v3/kv/txn", txn, timeout).await.map_err(|(error, _)| error)
    }

    /// The keys of a range.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn range(&self, range: &Range, timeout: Duration) -> Result<RangeAnswer, EtcdError> {
        self.ask("/v3/kv/range", range, timeout).await.map_err(|(error, _)| error)
    }

    /// A lease of `ttl_s` seconds, or what etcd takes for the least.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn grant(&self, ttl_s: u64, timeout: Duration) -> Result<LeaseGranted, EtcdError> {
        let grant = LeaseGrant { ttl_s: Number(i64::try_from(ttl_s).unwrap_or(i64::MAX)) };
        self.ask("/v3/lease/grant", &grant, timeout).await.map_err(|(error, _)| error)
    }

    /// Renews a lease; it has no time left when it was over.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn renew(&self, id: Number, timeout: Duration) -> Result<LeaseGranted, EtcdError> {
        let renewed: Result<Streamed<LeaseGranted>, _> =
            self.ask("/v3/lease/keepalive", &LeaseId { id }, timeout).await;
        renewed.map(|answer| answer.result).map_err(|(error, _)| error)
    }

    /// Ends a lease, and deletes the keys that go with it. One that is over already is no error.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn revoke(&self, id: Number, timeout: Duration) -> Result<(), EtcdError> {
        let revoked: Result<Ignored, _> = self.ask("/v3/lease/revoke", &LeaseId { id }, timeout).await;
        match revoked {
            Ok(Ignored {}) | Err((_, NOT_FOUND)) => Ok(()),
            Err((error, _)) => Err(error),
        }
    }

    async fn ask<A: DeserializeOwned>(
        &self,
        path: &str,
        question: &impl Serialize,
        timeout: Duration,
    ) -> Result<A, (EtcdError, i32)> {
        let Some((name, password)) = &self.access.user else {
            return self.ask_as(None, path, question, timeout).await;
        };
        let kept = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let token = match kept {
            Some(token) => token,
            None => {
                let user = Authenticate { name, password };
                let given: Authenticated = self.ask_as(None, AUTHENTICATE, &user, timeout).await?;
                *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(given.token.clone());
                given.token
            }
        };
        let answered = self.ask_as(Some(&token), path, question, timeout).await;
        match answered {
            // The token has ended: the next try asks for another.
            Err((EtcdError::Refused { host, reason }, UNAUTHENTICATED)) => {
                *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
                Err((EtcdError::Away { host, reason }, UNAUTHENTICATED))
            }
            answered => answered,
        }
    }

    async fn ask_as<A: DeserializeOwned>(
        &self,
        token: Option<&str>,
        path: &str,
        question: &impl Serialize,
        timeout: Duration,
    ) -> Result<A, (EtcdError, i32)> {
        let current = self.current.load(Ordering::Relaxed);
        let host = &self.hosts[current % self.hosts.len()];
        let away = |reason: String| {
            let next = current.wrapping_add(1);
            let _ = self.current.compare_exchange(current, next, Ordering::Relaxed, Ordering::Relaxed);
            (EtcdError::Away { host: host.clone(), reason }, 0)
        };
        let scheme = self.access.scheme();
        let mut asked = self.http.post(format!("{scheme}://{host}{path}")).timeout(timeout).json(question);
        if let Some(token) = token {
            asked = asked.header(AUTHORIZATION, token);
        }
        let answer = asked.send().await.map_err(|error| away(cxloe_fabric::client::causes(&error)))?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(|error| away(cxloe_fabric::client::causes(&error)))?;
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| {
                let reason = format!("its answer is not what etcd's JSON gateway sends ({error})");
                (EtcdError::Refused { host: host.clone(), reason }, 0)
            });
        }
        match serde_json::from_slice::<Failure>(&body) {
            Ok(failure) if PASSING.contains(&failure.code) => Err(away(failure.message)),
            Ok(failure) => {
                Err((EtcdError::Refused { host: host.clone(), reason: failure.message }, failure.code))
            }
            Err(_) if status.is_server_error() => Err(away(format!("status {status}"))),
            Err(_) => {
                let reason =
                    format!("status {status}, which etcd's JSON gateway does not answer {path} with");
                Err((EtcdError::Refused { host: host.clone(), reason }, 0))
            }
        }
    }
}
