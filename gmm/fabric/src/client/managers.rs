//! Which manager a request goes to, when there are several: the leader, once one of them has said who leads; else the one
//! that answered last; and when that one does not answer, the next.
//!
//! A request is sent again by itself only where that cannot do it twice: it never left, it was answered with "not I", or
//! it only reads. Otherwise who calls is told, and its next request goes to the next manager.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};
use reqwest::{Method, StatusCode};
use serde::Serialize;

use super::{ClientError, Credentials, causes};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an answer may take beyond the time the request asks the manager to wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The same, where there is another manager to ask.
const ANSWER_TIMEOUT_SEVERAL: Duration = Duration::from_secs(3);
/// How often one request is sent elsewhere at most.
const REDIRECTS_MAX: usize = 4;

/// Where one manager is.
#[derive(Debug, Clone)]
struct Place {
    http: reqwest::Client,
    /// What people are shown.
    url: String,
    /// What requests start with.
    base: String,
    /// The token that goes with them.
    token: Option<String>,
}

impl Place {
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
                    // Whoever listens on the way would have it, too.
                    token = None;
                }
                (builder, url.trim_end_matches('/').to_owned())
            }
        };
        let http = builder.build().map_err(|e| bad(causes(&e)))?;
        Ok(Self { http, url: url.to_owned(), base, token })
    }

    async fn ask(
        &self,
        request: &Request<'_, impl Serialize>,
        timeout: Duration,
    ) -> Result<(Answer, Option<String>), reqwest::Error> {
        let url = format!("{}{}", self.base, request.path);
        let mut asked = self.http.request(request.method.clone(), url).timeout(timeout);
        if let Some(token) = &self.token {
            asked = asked.bearer_auth(token);
        }
        if let Some(body) = request.body {
            asked = asked.json(body);
        } else if request.method != Method::GET {
            // What changes something has to say that it is JSON, also where there is nothing to say.
            asked = asked.header(CONTENT_TYPE, "application/json");
        }
        let response = asked.send().await?;
        let status = response.status();
        let header =
            |name| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let location = header(LOCATION).filter(|_| status == StatusCode::TEMPORARY_REDIRECT);
        let leaderless = status == StatusCode::SERVICE_UNAVAILABLE && header(RETRY_AFTER).is_some();
        let body = response.bytes().await?.to_vec();
        Ok((Answer { url: self.url.clone(), status, body, leaderless }, location))
    }
}

/// What is asked of whoever leads.
#[derive(Debug)]
pub struct Request<'a, B> {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub path: &'a str,
    /// The body, to be sent as JSON.
    pub body: Option<&'a B>,
    /// How long the manager may wait before it answers, in milliseconds.
    pub wait_ms: u64,
}

/// What a manager answered.
#[derive(Debug)]
pub struct Answer {
    /// Its URL.
    pub url: String,
    /// The status.
    pub status: StatusCode,
    /// The body.
    pub body: Vec<u8>,
    /// It says that nobody leads.
    leaderless: bool,
}

/// The managers of a fabric, as a client sees them.
#[derive(Debug)]
pub struct Managers {
    /// As given: one URL, or several separated by commas.
    urls: String,
    credentials: Credentials,
    places: Vec<Place>,
    /// Index in `places` of the one that answered last.
    current: AtomicUsize,
    /// Where a manager that does not lead said that the leader is.
    leader: Mutex<Option<Place>>,
}

impl Managers {
    /// The managers at `urls`, separated by commas.
    ///
    /// # Errors
    /// [`ClientError::BadUrl`].
    pub fn new(urls: &str, credentials: Credentials) -> Result<Self, ClientError> {
        let place = |url: &str| Place::new(url.trim(), &credentials);
        let places = urls.split(',').map(place).collect::<Result<_, _>>()?;
        Ok(Self {
            urls: urls.to_owned(),
            credentials,
            places,
            current: AtomicUsize::new(0),
            leader: Mutex::new(None),
        })
    }

    /// The URLs as they were given.
    pub fn urls(&self) -> &str {
        &self.urls
    }

    /// Asks whoever leads.
    ///
    /// # Errors
    /// Why nobody answered, in words.
    pub async fn ask(&self, request: &Request<'_, impl Serialize>) -> Result<Answer, String> {
        let several = self.places.len() > 1;
        let patience = if several { ANSWER_TIMEOUT_SEVERAL } else { ANSWER_TIMEOUT };
        let timeout = patience.saturating_add(Duration::from_millis(request.wait_ms));
        let first = self.current.load(Ordering::Relaxed);
        // The leader that is known, then each of the managers; and where they point to, in between.
        let mut tries = (0..self.places.len()).map(|next| (first + next) % self.places.len());
        let mut redirects = 0;
        let (mut reasons, mut leaderless) = (Vec::new(), None);
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
                    let leader = location.strip_suffix(request.path);
                    match leader.map(|url| Place::new(url, &self.credentials)) {
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
                    reasons.push(if several { format!("{}: {reason}", asked.url) } else { reason });
                    if !error.is_connect() && request.method != Method::GET {
                        self.current.fetch_add(1, Ordering::Relaxed);
                        break;
                    }
                }
            }
        }
        // That nobody leads says more than that some do not answer.
        leaderless.ok_or_else(|| reasons.join("; "))
    }

    fn known_leader(&self) -> Option<Place> {
        self.leader.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_leader(&self, leader: Option<Place>) {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = leader;
    }
}
