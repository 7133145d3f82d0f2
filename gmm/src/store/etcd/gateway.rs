//! Requests to an etcd cluster through its JSON gateway, one HTTP request each, to the member that answered last. If a
//! member does not answer or is unavailable, the next request is sent to the next member.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cxloe_fabric::client::causes;
use reqwest::header::AUTHORIZATION;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::access::http;
use super::wire::{LeaseGranted, RangeAnswer, TxnAnswer};
use crate::store::{EtcdAccess, EtcdPlace};

/// Time-out of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(700);
/// gRPC status codes of failures after which a retry may succeed: deadline exceeded; unavailable (no quorum, no leader,
/// shutting down).
const PASSING: [i32; 2] = [4, 14];
/// etcd's error for a full database (`--quota-backend-bytes`).
const NO_SPACE: &str = "database space exceeded";
/// gRPC status code: the token is invalid or has expired.
const UNAUTHENTICATED: i32 = 16;
/// gRPC status code: the object does not exist.
const NOT_FOUND: i32 = 5;

/// Reason for which a request to etcd failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// No answer in time. The request may have been carried out.
    #[error("etcd does not answer at {host}: {reason}; is it running, and has it a quorum?")]
    Away {
        /// `HOST:PORT` of the last member that the request was sent to.
        host: String,
        /// The reason, as text that follows the object in the message.
        reason: String,
    },
    /// A member refused the request.
    #[error("etcd at {host} refuses: {reason}")]
    Refused {
        /// The member that answered, `HOST:PORT`.
        host: String,
        /// Error text of that member.
        reason: String,
    },
}

impl EtcdError {
    /// True if a retry may succeed.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Away { .. })
    }

    /// True if the cluster's database is full (alarm NOSPACE).
    pub fn is_for_want_of_room(&self) -> bool {
        matches!(self, Self::Refused { reason, .. } if reason.contains(NO_SPACE))
    }
}

struct Failed {
    host: String,
    reason: String,
    /// gRPC status code; 0 if the answer had none.
    code: i32,
    is_passing: bool,
}

impl From<Failed> for EtcdError {
    fn from(Failed { host, reason, is_passing, .. }: Failed) -> Self {
        if is_passing { Self::Away { host, reason } } else { Self::Refused { host, reason } }
    }
}

/// Body of an error answer of the gateway.
#[derive(Deserialize)]
struct Failure {
    #[serde(default)]
    message: String,
    /// gRPC status code.
    #[serde(default)]
    code: i32,
}

/// Answer to an authentication: the token for user and password.
#[derive(Deserialize)]
struct Authenticated {
    token: String,
}

/// One message of a streamed answer.
#[derive(Deserialize)]
struct Streamed {
    result: LeaseGranted,
}

/// Client of an etcd cluster. It must be used only in the runtime of its first request.
#[derive(Debug)]
pub struct Gateway {
    http: reqwest::Client,
    hosts: Vec<String>,
    current: AtomicUsize,
    access: EtcdAccess,
    /// The token that etcd gave for user and password; none before the first authentication.
    token: Mutex<Option<String>>,
}

impl Gateway {
    /// A client of the cluster at `place`, which connects with the first request.
    ///
    /// # Errors
    /// [`EtcdError::Refused`] if no HTTP client can be made.
    pub fn new(place: &EtcdPlace) -> Result<Self, EtcdError> {
        let refused = |reason: String| EtcdError::Refused { host: place.to_string(), reason };
        let access = place.access.clone();
        let builder = http(&access).map_err(refused)?.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
        let http = builder.build().map_err(|error| refused(causes(&error)))?;
        let hosts = place.hosts().to_vec();
        Ok(Self { http, hosts, current: AtomicUsize::new(0), access, token: Mutex::default() })
    }

    /// Sends a transaction, and returns the results of its steps.
    ///
    /// # Errors
    /// [`EtcdError`], as for every request.
    pub async fn txn(&self, txn: &Value, timeout: Duration) -> Result<TxnAnswer, EtcdError> {
        Ok(self.ask("kv/txn", txn, timeout).await?)
    }

    /// Reads the keys in a range, up to its limit.
    pub async fn range(&self, range: &Value, timeout: Duration) -> Result<RangeAnswer, EtcdError> {
        Ok(self.ask("kv/range", range, timeout).await?)
    }

    /// Requests a lease of `ttl_s` seconds; etcd may grant a longer one.
    pub async fn grant(&self, ttl_s: u64, timeout: Duration) -> Result<LeaseGranted, EtcdError> {
        Ok(self.ask("lease/grant", &json!({"TTL": ttl_s}), timeout).await?)
    }

    /// Renews a lease. The time left in the answer is 0 if the lease had already ended.
    pub async fn renew(&self, lease: i64, timeout: Duration) -> Result<LeaseGranted, EtcdError> {
        let Streamed { result } = self.ask("lease/keepalive", &json!({"ID": lease}), timeout).await?;
        Ok(result)
    }

    /// Ends a lease, and deletes its keys. A lease that has already ended is no error.
    pub async fn revoke(&self, lease: i64, timeout: Duration) -> Result<(), EtcdError> {
        match self.ask::<Value>("lease/revoke", &json!({"ID": lease}), timeout).await {
            Ok(_) | Err(Failed { code: NOT_FOUND, .. }) => Ok(()),
            Err(failed) => Err(failed.into()),
        }
    }

    fn token(&self) -> MutexGuard<'_, Option<String>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask<A: DeserializeOwned>(
        &self,
        path: &str,
        question: &Value,
        timeout: Duration,
    ) -> Result<A, Failed> {
        let Some((name, password)) = &self.access.user else {
            return self.ask_as(None, path, question, timeout).await;
        };
        let mut token = self.token().clone();
        if token.is_none() {
            let user = json!({"name": name, "password": password});
            let Authenticated { token: given } =
                self.ask_as(None, "auth/authenticate", &user, timeout).await?;
            token = Some(given);
            self.token().clone_from(&token);
        }
        let answered = self.ask_as(token.as_deref(), path, question, timeout).await;
        match answered {
            // The token has expired: the next try requests another one.
            Err(Failed { host, reason, code: UNAUTHENTICATED, .. }) => {
                *self.token() = None;
                Err(Failed { host, reason, code: UNAUTHENTICATED, is_passing: true })
            }
            answered => answered,
        }
    }

    async fn ask_as<A: DeserializeOwned>(
        &self,
        token: Option<&str>,
        path: &str,
        question: &Value,
        timeout: Duration,
    ) -> Result<A, Failed> {
        let current = self.current.load(Ordering::Relaxed);
        let host = &self.hosts[current % self.hosts.len()];
        let failed = |reason, code, is_passing| {
            if is_passing {
                let next = current.wrapping_add(1);
                let _ = self.current.compare_exchange(current, next, Ordering::Relaxed, Ordering::Relaxed);
            }
            Failed { host: host.clone(), reason, code, is_passing }
        };
        let url = format!("{}://{host}/v3/{path}", self.access.scheme());
        let mut asked = self.http.post(url).timeout(timeout).json(question);
        if let Some(token) = token {
            asked = asked.header(AUTHORIZATION, token);
        }
        let answer = asked.send().await.map_err(|error| failed(causes(&error), 0, true))?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(|error| failed(causes(&error), 0, true))?;
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| {
                failed(format!("its answer is not what etcd's JSON gateway sends ({error})"), 0, false)
            });
        }
        Err(match serde_json::from_slice(&body) {
            Ok(Failure { message, code }) => failed(message, code, PASSING.contains(&code)),
            Err(_) => failed(format!("status {status} for {path}"), 0, status.is_server_error()),
        })
    }
}
