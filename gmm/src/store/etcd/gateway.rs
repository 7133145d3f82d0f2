//! Requests to an etcd cluster through its JSON gateway, one HTTP request each, to the member that answered
//! last. A request that the member cannot have begun is repeated at the next one. Other failures are returned
//! to the caller, and its next request goes to the next member.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cxloe_fabric::client::causes;
use futures_util::future::join_all;
use reqwest::header::AUTHORIZATION;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::access::http;
use super::clusters::{ClusterJudgement, Clusters};
use super::refusal::{Next, Refusal, Tries};
use super::wire::{LeaseGranted, RangeAnswer, TxnAnswer, WatchAnswer, bytes};
use crate::store::{EtcdAccess, EtcdPlace};

/// Time-out of a connection attempt, and of the first request to each member.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(700);

/// Maximum size of one message of a watch in bytes; it contains a value that anybody may have written (1.5 MiB at most,
/// in base64).
const WATCH_BYTES_MAX: usize = 4 << 20;

/// Reason for which a request to etcd failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// No answer arrived in time, or the members cannot serve the request at present. The request may have
    /// been carried out.
    #[error("etcd does not answer at {host}: {reason}; is it running, and has it a quorum?")]
    Away {
        /// `HOST:PORT` of the last member that the request was sent to.
        host: String,
        reason: String,
        refusal: Refusal,
    },
    #[error("etcd at {host} refuses: {reason}")]
    Refused {
        /// The member that answered, `HOST:PORT`.
        host: String,
        /// Error text of that member.
        reason: String,
        refusal: Refusal,
    },
    /// This manager's user does not exist at etcd, or lacks a right there.
    #[error(
        "etcd at {host} denies access: {reason}; look at the user of --etcd-user and its password, and at its role (`etcdctl user get`, `etcdctl role get`): it reads and writes all keys below the prefix"
    )]
    Denied {
        /// The member that answered, `HOST:PORT`.
        host: String,
        /// Error text of that member.
        reason: String,
    },
    /// The cluster's database is full (alarm NOSPACE).
    #[error(
        "etcd at {host} has no room: {reason}; give it room with `etcdctl compaction REVISION` (that of `etcdctl endpoint status -w json`), `etcdctl defrag --cluster` and `etcdctl alarm disarm`, or raise its --quota-backend-bytes"
    )]
    NoSpace {
        /// The member that answered, `HOST:PORT`.
        host: String,
        /// Error text of that member.
        reason: String,
    },
    /// A given address is not that of a member of the cluster.
    #[error("{host} is no member of this etcd cluster: {reason}; correct the addresses in --store")]
    NotMember {
        /// The address, `HOST:PORT`.
        host: String,
        /// Observation by which the address was recognised as wrong.
        reason: String,
        refusal: Refusal,
    },
}

impl EtcdError {
    /// The error of a request that this machine could not make.
    pub(super) fn of_this_machine(error: &std::io::Error) -> Self {
        let host = "this machine".to_owned();
        Self::Refused { host, reason: error.to_string(), refusal: Refusal::Invalid }
    }

    pub fn refusal(&self) -> Refusal {
        match self {
            Self::Away { refusal, .. } | Self::Refused { refusal, .. } | Self::NotMember { refusal, .. } => {
                *refusal
            }
            Self::Denied { .. } => Refusal::Denied,
            Self::NoSpace { .. } => Refusal::NoSpace,
        }
    }

    /// True if a retry may succeed.
    pub fn is_passing(&self) -> bool {
        self.refusal().is_passing()
    }

    /// True if the cluster's database is full (alarm NOSPACE).
    pub fn is_for_want_of_room(&self) -> bool {
        self.refusal() == Refusal::NoSpace
    }
}

struct Failed {
    host: String,
    reason: String,
    refusal: Refusal,
}

impl From<Failed> for EtcdError {
    fn from(Failed { host, reason, refusal }: Failed) -> Self {
        match refusal {
            Refusal::Unconnected | Refusal::Unanswered | Refusal::Busy => {
                Self::Away { host, reason, refusal }
            }
            Refusal::Denied => Self::Denied { host, reason },
            Refusal::NoSpace => Self::NoSpace { host, reason },
            Refusal::NotEtcd | Refusal::OtherCluster => Self::NotMember { host, reason, refusal },
            Refusal::Token | Refusal::Compacted | Refusal::NotFound | Refusal::Invalid => {
                Self::Refused { host, reason, refusal }
            }
        }
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

/// The configured members of the cluster, with what all clients of one manager have found out about them.
#[derive(Debug)]
struct Members {
    hosts: Vec<String>,
    /// Index of the member to ask next, modulo their number.
    current: AtomicUsize,
    clusters: Mutex<Clusters>,
    /// True if every member has been asked for the number of its cluster.
    probed: AtomicBool,
}

/// Client of an etcd cluster. It must be used only in the runtime of its first request; a [`sibling`](Self::sibling) may
/// be used in another one.
#[derive(Debug)]
pub struct Gateway {
    http: reqwest::Client,
    members: Arc<Members>,
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
        let hosts = place.hosts().to_vec();
        let clusters = Mutex::new(Clusters::of(hosts.len()));
        let members =
            Members { hosts, current: AtomicUsize::new(0), clusters, probed: AtomicBool::new(false) };
        Self::over(Arc::new(members), place.access.clone())
    }

    /// Creates a client of the same cluster with separate connections. Both clients share their findings about the
    /// members.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn sibling(&self) -> Result<Self, EtcdError> {
        Self::over(Arc::clone(&self.members), self.access.clone())
    }

    fn over(members: Arc<Members>, access: EtcdAccess) -> Result<Self, EtcdError> {
        let refused = |reason: String| EtcdError::Refused {
            host: members.hosts.join(","),
            reason,
            refusal: Refusal::Invalid,
        };
        let builder = http(&access).map_err(refused)?.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
        let http = builder.build().map_err(|error| refused(causes(&error)))?;
        Ok(Self { http, members, access, token: Mutex::default() })
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

    /// Returns the number of the first configured member's cluster, and whether its database is full. Every
    /// member answers this request, without a quorum and without a token.
    pub async fn status(&self, timeout: Duration) -> Option<(Option<u64>, bool)> {
        let host = self.members.hosts.first()?;
        let (status, body) = self.post(host, None, "maintenance/status", &json!({}), timeout).await.ok()?;
        let answer: Value = serde_json::from_slice(&body).ok().filter(|_| status == 200)?;
        let errors = answer.get("errors").and_then(Value::as_array).into_iter().flatten();
        let full = errors.filter_map(Value::as_str).any(|error| error.contains("NOSPACE"));
        Some((cluster_of(&answer), full))
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
            Ok(_) | Err(Failed { refusal: Refusal::NotFound, .. }) => Ok(()),
            Err(failed) => Err(failed.into()),
        }
    }

    /// Waits until etcd reports a change of `key` at `revision` or later.
    ///
    /// # Errors
    /// [`EtcdError`] if the member ends the watch or breaks the connection.
    pub async fn changed(&self, key: &str, revision: i64) -> Result<(), EtcdError> {
        let Members { hosts, current, .. } = &*self.members;
        let host = &hosts[current.load(Ordering::Relaxed) % hosts.len()];
        let broken =
            |reason: String| EtcdError::Away { host: host.clone(), reason, refusal: Refusal::Unanswered };
        let question = json!({"create_request": {"key": bytes(key), "start_revision": revision.to_string()}});
        let mut asked = self.http.post(format!("{}://{host}/v3/watch", self.access.scheme())).json(&question);
        if let Some(token) = self.token().clone() {
            asked = asked.header(AUTHORIZATION, token);
        }
        let mut answer = asked.send().await.map_err(|error| broken(causes(&error)))?;
        let mut lines = Vec::new();
        while let Some(part) = answer.chunk().await.map_err(|error| broken(causes(&error)))? {
            lines.extend_from_slice(&part);
            while let Some(end) = lines.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = lines.drain(..=end).collect();
                match serde_json::from_slice::<WatchAnswer>(&line) {
                    Ok(WatchAnswer { result }) if !result.events.is_empty() => return Ok(()),
                    Ok(WatchAnswer { result }) if !result.canceled => {}
                    _ => return Err(broken("it ended the watch".to_owned())),
                }
            }
            if lines.len() > WATCH_BYTES_MAX {
                return Err(broken("its answer to a watch is too long".to_owned()));
            }
        }
        Err(broken("it ended the watch".to_owned()))
    }

    fn token(&self) -> MutexGuard<'_, Option<String>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clusters(&self) -> MutexGuard<'_, Clusters> {
        self.members.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request; if it fails, repeats it with a new token or at other members where that may help.
    async fn ask<A: DeserializeOwned>(
        &self,
        path: &str,
        question: &Value,
        timeout: Duration,
    ) -> Result<A, Failed> {
        let deadline = Instant::now() + timeout;
        self.probe().await;
        let mut tries = Tries::new(self.members.hosts.len());
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let failed = match self.ask_with_token(path, question, remaining).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            if failed.refusal == Refusal::Token {
                *self.token() = None;
            }
            if tries.next(failed.refusal) == Next::Report || deadline <= Instant::now() {
                return Err(failed);
            }
        }
    }

    /// Asks every member for the number of its cluster, before the first request and only if there are several members.
    /// A member that does not answer is judged later, by its first answer to another request.
    async fn probe(&self) {
        let hosts = &self.members.hosts;
        if hosts.len() == 1 || self.members.probed.swap(true, Ordering::Relaxed) {
            return;
        }
        let asked = hosts.iter().map(|host| async move {
            // Every member answers this request, without a quorum and without a token.
            let (status, body) =
                self.post(host, None, "maintenance/status", &json!({}), CONNECT_TIMEOUT).await.ok()?;
            cluster_of(&serde_json::from_slice(&body).ok().filter(|_| status == 200)?)
        });
        let found = join_all(asked).await;
        let mut clusters = self.clusters();
        for (member, cluster) in found.into_iter().enumerate() {
            cluster.into_iter().for_each(|cluster| clusters.saw(member, cluster));
        }
    }

    async fn ask_with_token<A: DeserializeOwned>(
        &self,
        path: &str,
        question: &Value,
        timeout: Duration,
    ) -> Result<A, Failed> {
        let Some((name, password)) = &self.access.user else {
            return self.ask_as(None, path, question, timeout).await.map_err(|failed| match failed.refusal {
                // Without a user, no token can be requested: access is denied.
                Refusal::Token => Failed { refusal: Refusal::Denied, ..failed },
                _ => failed,
            });
        };
        let mut token = self.token().clone();
        if token.is_none() {
            let user = json!({"name": name, "password": password});
            match self.ask_as(None, "auth/authenticate", &user, timeout).await {
                Ok(Authenticated { token: given }) => token = Some(given),
                // Access control is off: no token is needed.
                Err(failed) if failed.refusal == Refusal::Token => {}
                Err(failed) => return Err(failed),
            }
            self.token().clone_from(&token);
        }
        self.ask_as(token.as_deref(), path, question, timeout).await
    }

    async fn ask_as<A: DeserializeOwned>(
        &self,
        token: Option<&str>,
        path: &str,
        question: &Value,
        timeout: Duration,
    ) -> Result<A, Failed> {
        let Members { hosts, current, .. } = &*self.members;
        let asked = current.load(Ordering::Relaxed);
        let member = asked % hosts.len();
        let host = &hosts[member];
        let failed = |reason, refusal: Refusal| {
            if refusal.moves_on() {
                let next = asked.wrapping_add(1);
                // If another request has already moved `current` on, moving it again would skip a member.
                let _ = current.compare_exchange(asked, next, Ordering::Relaxed, Ordering::Relaxed);
            }
            Failed { host: host.clone(), reason, refusal }
        };
        let (status, body) = self.post(host, token, path, question, timeout).await.map_err(|error| {
            failed(
                causes(&error),
                if error.is_connect() { Refusal::Unconnected } else { Refusal::Unanswered },
            )
        })?;
        if status == 200 {
            let alien = |error: serde_json::Error| {
                failed(
                    format!("its answer is not what etcd's JSON gateway sends ({error})"),
                    Refusal::NotEtcd,
                )
            };
            let answer: Value = serde_json::from_slice(&body).map_err(alien)?;
            if let Some(cluster) = cluster_of(&answer) {
                let judged = self.clusters().judge(member, cluster);
                if judged != ClusterJudgement::Ours {
                    let reason = match judged {
                        ClusterJudgement::Other => "it belongs to cluster",
                        _ => "the members belong to different clusters, this one to",
                    };
                    return Err(failed(format!("{reason} {cluster:x}"), Refusal::OtherCluster));
                }
            }
            return serde_json::from_value(answer).map_err(alien);
        }
        Err(match serde_json::from_slice(&body) {
            Ok(Failure { message, code }) if code != 0 => {
                let refusal = Refusal::of(code, &message);
                failed(message, refusal)
            }
            _ => failed(format!("status {status} for {path}"), Refusal::of_status(status)),
        })
    }

    /// Sends a request to one member, and returns the HTTP status and the body.
    async fn post(
        &self,
        host: &str,
        token: Option<&str>,
        path: &str,
        question: &Value,
        timeout: Duration,
    ) -> Result<(u16, Vec<u8>), reqwest::Error> {
        let url = format!("{}://{host}/v3/{path}", self.access.scheme());
        let mut asked = self.http.post(url).timeout(timeout).json(question);
        if let Some(token) = token {
            asked = asked.header(AUTHORIZATION, token);
        }
        let answer = asked.send().await?;
        Ok((answer.status().as_u16(), answer.bytes().await?.to_vec()))
    }
}

/// Number of the cluster that gave an answer, also if the answer is the first message of a stream.
fn cluster_of(answer: &Value) -> Option<u64> {
    let header = answer.get("header").or_else(|| answer.get("result")?.get("header"))?;
    header.get("cluster_id")?.as_str()?.parse().ok()
}
