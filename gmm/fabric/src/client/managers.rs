//! Choice of the manager for a request, if there are several: the leader, if a manager has named it; otherwise the
//! manager that answered last; and if that manager does not answer, the next one in the list.
//!
//! A request goes to another manager only if it cannot be carried out twice: the connection failed before the request
//! was sent, a manager that does not lead answered it, or it only reads. Otherwise the caller gets an error, and its
//! next request goes to the next manager.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};
use reqwest::{Method, StatusCode};
use serde::Serialize;

use super::{ClientError, Credentials, Unanswered, causes};
use crate::api::ErrorBody;

/// Time-out of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time-out of an answer, beyond the time that the request asks the manager to wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time-out of an answer if there is another manager to ask, also beyond the time that the request asks to
/// wait.
const ANSWER_TIMEOUT_SEVERAL: Duration = Duration::from_secs(3);
/// Error text of `hyper` when the peer answers plain HTTP with a TLS alert.
const NO_HTTP: &str = "invalid HTTP version parsed";
const REDIRECTS_MAX: usize = 4;

#[derive(Debug, Clone)]
struct ManagerAddress {
    http: reqwest::Client,
    /// The manager's URL, as messages show it.
    url: String,
    /// The part of request URLs before the path.
    base: String,
    /// Token to send with each request; `None` over plain HTTP.
    token: Option<String>,
}

impl ManagerAddress {
    fn new(url: &str, credentials: &Credentials) -> Result<Self, ClientError> {
        let bad = |reason: String| ClientError::BadUrl { url: url.to_owned(), reason };
        let builder = credentials
            .http()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true);
        let mut token = credentials.token.as_ref().map(|token| token.reveal());
        let (builder, base) = match url.strip_prefix("unix:") {
            Some("") => return Err(bad("the path of the socket is missing".to_owned())),
            Some(path) => {
                (builder.unix_socket(std::path::PathBuf::from(path)), "http://localhost".to_owned())
            }
            None => {
                let parsed = reqwest::Url::parse(url).map_err(|e| bad(e.to_string()))?;
                if !["http", "https"].contains(&parsed.scheme()) || parsed.host_str().is_none() {
                    return Err(bad("it does not start with https://HOST".to_owned()));
                }
                if parsed.scheme() == "http" {
                    // Without TLS, any listener on the network path could read the token.
                    token = None;
                }
                (builder, url.trim_end_matches('/').to_owned())
            }
        };
        let http = builder.build().map_err(|e| bad(causes(&e)))?;
        Ok(Self { http, url: url.to_owned(), base, token })
    }

    /// Returns a more precise error for a failed exchange, if its innermost cause `reason` shows that this
    /// user may not use the socket, or that the peer uses the other scheme, HTTP or HTTPS.
    fn known_failure(&self, error: &reqwest::Error, reason: &str) -> Option<Unanswered> {
        if self.url.starts_with("unix:") && is_denied(error) {
            return Some(Unanswered::NotPermitted(self.url.clone()));
        }
        match self.base.starts_with("https:") {
            true if Unanswered::is_without_tls(reason) => Some(Unanswered::Plain(self.url.clone())),
            false if reason == NO_HTTP => Some(Unanswered::Tls(self.url.clone())),
            _ => None,
        }
    }

    async fn ask(
        &self,
        request: &LeaderRequest<'_, impl Serialize>,
        timeout: Duration,
    ) -> Result<(LeaderAnswer, Option<String>), reqwest::Error> {
        let url = format!("{}{}", self.base, request.path);
        let mut asked = self.http.request(request.method.clone(), url).timeout(timeout);
        if let Some(token) = &self.token {
            asked = asked.bearer_auth(token);
        }
        if let Some(body) = request.body {
            asked = asked.json(body);
        } else if request.method != Method::GET {
            // A request that changes something must have the content type JSON, even without a body.
            asked = asked.header(CONTENT_TYPE, "application/json");
        }
        let response = asked.send().await?;
        let status = response.status();
        let header =
            |name| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let location = header(LOCATION).filter(|_| status == StatusCode::TEMPORARY_REDIRECT);
        let leaderless = status == StatusCode::SERVICE_UNAVAILABLE && header(RETRY_AFTER).is_some();
        let body = response.bytes().await?.to_vec();
        Ok((LeaderAnswer { url: self.url.clone(), status, body, leaderless }, location))
    }
}

/// Request that only the leading manager can answer.
#[derive(Debug)]
pub struct LeaderRequest<'a, B> {
    /// HTTP method, by which a request that only reads is recognised.
    pub method: Method,
    /// Path and query, without scheme and host.
    pub path: &'a str,
    /// Body to be sent as JSON.
    pub body: Option<&'a B>,
    /// Time that the manager may wait before it answers, in milliseconds.
    pub wait_ms: u64,
}

/// Answer of a manager, whether or not its status is an error.
#[derive(Debug)]
pub struct LeaderAnswer {
    /// URL of the manager that gave the answer.
    pub url: String,
    /// HTTP status, which may be an error.
    pub status: StatusCode,
    /// Body as received, usually JSON.
    pub body: Vec<u8>,
    /// True if the answer says that no manager leads.
    leaderless: bool,
}

#[derive(Debug)]
pub struct Managers {
    /// The URL or URLs as given, separated by commas.
    urls: String,
    credentials: Credentials,
    places: Vec<ManagerAddress>,
    /// Index in `places` of the manager that answered last.
    current: AtomicUsize,
    /// Address of the leader, as named by a manager that does not lead.
    leader: Mutex<Option<ManagerAddress>>,
    patience: Option<Box<dyn Patience>>,
}

/// Pauses of a client while no manager leads. The caller implements them, because this crate has no clock.
pub trait Patience: std::fmt::Debug + Send + Sync {
    /// Returns the pause before a request is sent again. `reason` says why no manager leads, and `tries` is
    /// the number of tries until now. `None`: the failure is reported.
    fn pause(&self, reason: &str, tries: u32) -> Option<Pause>;
}

/// Future that completes at the end of a pause.
pub type Pause = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Managers {
    /// Creates a client of the managers at `urls`, separated by commas.
    ///
    /// # Errors
    /// [`ClientError::BadUrl`] if one of `urls` is not the URL of a manager.
    pub fn new(urls: &str, credentials: Credentials) -> Result<Self, ClientError> {
        let place = |url: &str| ManagerAddress::new(url.trim(), &credentials);
        let places = urls.split(',').map(place).collect::<Result<_, _>>()?;
        Ok(Self {
            urls: urls.to_owned(),
            credentials,
            places,
            current: AtomicUsize::new(0),
            leader: Mutex::new(None),
            patience: None,
        })
    }

    /// Adds pauses: while no manager leads, requests are repeated as `patience` says.
    pub fn with_patience(self, patience: Box<dyn Patience>) -> Self {
        Self { patience: Some(patience), ..self }
    }

    /// Returns the URLs as they were given, separated by commas.
    pub fn urls(&self) -> &str {
        &self.urls
    }

    /// Sends a request to the leader, or to the next manager if it is safe to send it again. With `patience`,
    /// waits for a leader.
    ///
    /// # Errors
    /// The reason why no manager has answered.
    pub async fn ask(&self, request: &LeaderRequest<'_, impl Serialize>) -> Result<LeaderAnswer, Unanswered> {
        let mut tries = 0;
        loop {
            let mut elects = self.places.len() > 1;
            let asked = self.ask_once(request, &mut elects).await;
            let reason = match &asked {
                Ok(answer) if answer.leaderless => leaderless_reason(&answer.body),
                // Waits only if there are several managers: if none of them answers, one may soon be elected.
                Err(Unanswered::Because(reason)) if elects => reason.clone(),
                _ => return asked,
            };
            tries += 1;
            match self.patience.as_ref().and_then(|patience| patience.pause(&reason, tries)) {
                Some(pause) => pause.await,
                None => return asked,
            }
        }
    }

    /// Sends a request as [`ask`](Self::ask) does, without pauses. Sets `elects` if a manager redirected to a
    /// leader, which shows that the managers elect one.
    async fn ask_once(
        &self,
        request: &LeaderRequest<'_, impl Serialize>,
        elects: &mut bool,
    ) -> Result<LeaderAnswer, Unanswered> {
        let several = self.places.len() > 1;
        let wait_limit = if several { ANSWER_TIMEOUT_SEVERAL } else { ANSWER_TIMEOUT };
        let timeout = wait_limit.saturating_add(Duration::from_millis(request.wait_ms));
        let first = self.current.load(Ordering::Relaxed);
        // First the known leader, then each of the managers; redirections are followed at each.
        let mut tries = (0..self.places.len()).map(|next| (first + next) % self.places.len());
        let mut redirects = 0;
        let (mut reasons, mut leaderless, mut known) = (Vec::<String>::new(), None, None);
        let mut place = self.known_leader();
        loop {
            let asked = match place.take() {
                Some(leader) => leader,
                None => match tries.next() {
                    Some(index) => {
                        self.current.store(index, Ordering::Relaxed);
                        self.places[index].clone()
                    }
                    None => break,
                },
            };
            match asked.ask(request, timeout).await {
                Ok((_, Some(location))) if redirects < REDIRECTS_MAX => {
                    redirects += 1;
                    *elects = true;
                    let leader = location.strip_suffix(request.path);
                    match leader.map(|url| ManagerAddress::new(url, &self.credentials)) {
                        Some(Ok(leader)) => {
                            self.set_leader(Some(leader.clone()));
                            place = Some(leader);
                        }
                        _ => reasons.push(format!("{} points to {location}, which is no manager", asked.url)),
                    }
                }
                Ok((_, Some(_))) => reasons.push(format!("{} and others point to each other", asked.url)),
                Ok((answer, None)) if answer.leaderless => {
                    self.set_leader(None);
                    leaderless = Some(answer);
                }
                Ok((answer, None)) => return Ok(answer),
                Err(error) => {
                    self.set_leader(None);
                    let reason = causes(&error);
                    known = known.or_else(|| asked.known_failure(&error, &reason));
                    let reason = if several { format!("{}: {reason}", asked.url) } else { reason };
                    // The manager may have carried the request out, so only a request that reads is sent to
                    // another one.
                    if !error.is_connect() && request.method != Method::GET && known.is_none() {
                        self.current.fetch_add(1, Ordering::Relaxed);
                        return Err(Unanswered::Sent(reason));
                    }
                    // Several managers may have redirected to the same dead leader.
                    if !reasons.contains(&reason) {
                        reasons.push(reason);
                    }
                }
            }
        }
        // The lack of a leader explains the failure better than the silence of some managers.
        leaderless.ok_or_else(|| known.unwrap_or_else(|| Unanswered::Because(reasons.join("; "))))
    }

    fn known_leader(&self) -> Option<ManagerAddress> {
        self.leader.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_leader(&self, leader: Option<ManagerAddress>) {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = leader;
    }
}

/// Returns true if the kernel refused a connection to this user.
fn is_denied(error: &reqwest::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<std::io::Error>();
        if io.is_some_and(|io| io.kind() == std::io::ErrorKind::PermissionDenied) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Returns the reason in a manager's answer why no manager leads.
fn leaderless_reason(body: &[u8]) -> String {
    let body = serde_json::from_slice::<ErrorBody>(body).ok();
    body.map_or_else(|| "no manager leads".to_owned(), |body| body.error)
}
