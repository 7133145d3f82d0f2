//! What this process answers requests with: the routes, while it leads; the way to the leader, while another one does; and
//! while nobody does, a hint. The listener serves through this all the time, whoever leads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::{AUTHORIZATION, HOST, LOCATION, ORIGIN, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tower_service::Service;

use super::body::BODY_BYTES_MAX;
use super::core::Core;
use super::error::ApiError;
use super::origin::{self, HostNames};
use super::web;
use crate::store::Lease;
use cxloe_daemon::http::{Crowded, Peer};
use cxloe_fabric::api::ErrorCode;

/// How long the body of a request that is sent elsewhere may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Of an origin and of a path, in an entry of the event log.
const ORIGIN_CHARS_MAX: usize = 100;

/// Who answers.
#[derive(Clone)]
enum Role {
    /// This process, with these routes, while its lease holds.
    Leading(Router, Lease),
    /// Another one, at this URL.
    Following(String),
    /// Nobody, for this reason.
    Waiting(String),
}

/// The role of this process, shared between those who set it and those who answer.
#[derive(Clone)]
pub struct LeaderElection {
    role: Arc<RwLock<Role>>,
    /// The core, while this process leads; for those who watch it.
    core: Arc<RwLock<Option<Core>>>,
    answered: Arc<[AtomicU64; CLASSES.len()]>,
    names: Arc<HostNames>,
}

/// Classes of statuses.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

impl LeaderElection {
    /// Nobody leads yet. Browsers may change something under these names.
    pub fn new(names: HostNames) -> Self {
        let role = Role::Waiting("this manager has just started".to_owned());
        Self {
            role: Arc::new(RwLock::new(role)),
            core: Arc::default(),
            answered: Arc::default(),
            names: names.into(),
        }
    }

    /// This process leads: `routes` answer while `lease` holds.
    pub fn lead(&self, routes: Router, lease: Lease) {
        self.set(Role::Leading(routes, lease));
    }

    /// Lets those who watch look at the core of a process that leads.
    pub fn show(&self, core: Core) {
        *self.core.write().unwrap_or_else(PoisonError::into_inner) = Some(core);
    }

    /// The core, while this process leads.
    pub fn core(&self) -> Option<Core> {
        self.core.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why nobody is known to lead, if that is so.
    pub fn waits_for(&self) -> Option<String> {
        match self.role() {
            Role::Waiting(reason) => Some(reason),
            _ => None,
        }
    }

    /// How many requests were answered, by the class of the status.
    pub fn answered(&self) -> impl Iterator<Item = (&'static str, u64)> {
        CLASSES.into_iter().zip(self.answered.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// The manager at `url` leads. Returns whether that is news.
    pub fn follow(&self, url: &str) -> bool {
        if matches!(self.role(), Role::Following(known) if known == url) {
            return false;
        }
        self.set(Role::Following(url.to_owned()));
        true
    }

    /// Nobody is known to lead. Returns whether the reason is news.
    pub fn wait(&self, reason: &str) -> bool {
        if matches!(self.role(), Role::Waiting(known) if known == reason) {
            return false;
        }
        self.set(Role::Waiting(reason.to_owned()));
        true
    }

    /// What a listener serves.
    pub fn router(&self) -> Router {
        web::parts().route("/", get(view)).fallback(answer).with_state(self.clone())
    }

    fn role(&self) -> Role {
        self.role.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, role: Role) {
        if !matches!(role, Role::Leading(..)) {
            *self.core.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
        *self.role.write().unwrap_or_else(PoisonError::into_inner) = role;
    }
}

async fn answer(State(election): State<LeaderElection>, request: Request) -> Response {
    let crowded = request.extensions().get::<Crowded>().is_some();
    let plain = matches!(request.extensions().get::<Peer>(), Some(Peer::Tcp(_)));
    let answer = match origin::check(request.method(), request.headers(), &election.names, plain) {
        Ok(()) if crowded => {
            let error = "too many requests of people and programs are being answered; a part of the connections is for nodes";
            let hint = "ask again in a moment, or raise --connections-max";
            ApiError::new(ErrorCode::Unavailable, error, hint).into_response()
        }
        Ok(()) => answer_as(election.role(), request).await,
        Err(refused) => {
            if let (ErrorCode::ForeignOrigin, Some(core)) = (refused.0.code, election.core()) {
                let headers = request.headers();
                let origin = headers.get(ORIGIN).or_else(|| headers.get(HOST));
                let origin = origin.and_then(|origin| origin.to_str().ok()).unwrap_or("?");
                let who = format!("a page of {}", origin.chars().take(ORIGIN_CHARS_MAX).collect::<String>());
                let path: String = request.uri().path().chars().take(ORIGIN_CHARS_MAX).collect();
                core.refused(who, format!("{} {path}", request.method()));
            }
            refused.into_response()
        }
    };
    let class = usize::from(answer.status().as_u16() / 100).saturating_sub(1);
    election.answered[class.min(CLASSES.len() - 1)].fetch_add(1, Ordering::Relaxed);
    answer
}

async fn answer_as(role: Role, request: Request) -> Response {
    match role {
        Role::Leading(mut routes, lease) if lease.holds() => {
            let answer = match routes.call(request).await {
                Ok(answer) => answer,
                Err(never) => match never {},
            };
            // Time has passed: what was true when it was looked up may be so no longer, and another one may know better.
            if lease.holds() { answer } else { nobody("this manager lost the lead while it answered") }
        }
        Role::Leading(..) => nobody("this manager has just lost the lead"),
        // Without TLS, nobody has to be known.
        Role::Following(url) if url.starts_with("https:") && is_local_user(&request) => {
            leader_is_elsewhere(&url)
        }
        Role::Following(url) => elsewhere(&url, request).await,
        Role::Waiting(reason) => nobody(&reason),
    }
}

/// Whether who asks would be nobody at the leader: a user of this machine, known by the socket, who gives no token.
fn is_local_user(request: &Request) -> bool {
    let by_socket = matches!(request.extensions().get::<Peer>(), Some(Peer::Unix { .. }));
    by_socket && !request.headers().contains_key(AUTHORIZATION)
}

/// Tells a user of this machine who leads, and how to ask there.
fn leader_is_elsewhere(url: &str) -> Response {
    let error = format!("another manager leads, at {url}, and it does not know the users of this machine");
    let hint = format!(
        "ask by the Unix socket on the leader's machine, or with a token that `gmm token create` makes there: `gmm login {url} \
         --token …`"
    );
    ApiError::new(ErrorCode::Unauthenticated, error, hint).into_response()
}

/// The web view: at the leader, and at a manager that knows none, for it says so.
async fn view(State(election): State<LeaderElection>, request: Request) -> Response {
    match election.role() {
        Role::Following(url) => elsewhere(&url, request).await,
        Role::Leading(..) | Role::Waiting(_) => web::page(),
    }
}

/// Sends a client to the manager at `url`. The body is taken first, so that a client still sending it hears the answer.
async fn elsewhere(url: &str, request: Request) -> Response {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let location = HeaderValue::try_from(format!("{url}{path}"));
    drop(tokio::time::timeout(BODY_TIMEOUT, to_bytes(request.into_body(), BODY_BYTES_MAX)).await);
    let Ok(location) = location else { return nobody("the leader's URL is none") };
    let hint = format!("ask {url}; a client that follows redirects does so by itself");
    ([(LOCATION, location)], ApiError::new(ErrorCode::NotLeader, "another manager leads", hint))
        .into_response()
}

fn nobody(reason: &str) -> Response {
    let error = format!("no manager leads at the moment: {reason}");
    let hint = "ask again in a second, or ask another manager";
    ([(RETRY_AFTER, "1")], ApiError::new(ErrorCode::Unavailable, error, hint)).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::StatusCode;
    use axum::routing::get;

    use super::*;
    use cxloe_fabric::api::ErrorBody;

    async fn ask(election: &LeaderElection, path: &str) -> (StatusCode, Option<String>, Vec<u8>) {
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(Body::from("{}")).unwrap();
        let answer = election.router().call(request).await.unwrap();
        let location = answer.headers().get(LOCATION).map(|url| url.to_str().unwrap().to_owned());
        (answer.status(), location, to_bytes(answer.into_body(), 10_000).await.unwrap().to_vec())
    }

    #[tokio::test]
    async fn who_leads_answers_and_others_say_who_does() {
        let election = LeaderElection::new(HostNames::default());
        let (status, _, body) = ask(&election, "/v1/x").await;
        let body: ErrorBody = serde_json::from_slice(&body).unwrap();
        assert_eq!((status.as_u16(), body.code), (503, ErrorCode::Unavailable));
        assert!(body.error.contains("just started") && body.hint.contains("another manager"), "{body:?}");

        assert!(election.follow("http://10.0.0.2:7440") && !election.follow("http://10.0.0.2:7440"));
        let (status, location, body) = ask(&election, "/v1/x?a=1&b=%20").await;
        assert_eq!(
            (status.as_u16(), location.as_deref()),
            (307, Some("http://10.0.0.2:7440/v1/x?a=1&b=%20"))
        );
        assert_eq!(serde_json::from_slice::<ErrorBody>(&body).unwrap().code, ErrorCode::NotLeader);

        // By the socket of this machine, the user is nobody there.
        election.follow("https://10.0.0.3:7440");
        let by_socket = |token: Option<&str>| {
            let mut request = Request::post("/v1/x").header("content-type", "application/json");
            if let Some(token) = token {
                request = request.header(AUTHORIZATION, token);
            }
            let mut request = request.body(Body::from("{}")).unwrap();
            request.extensions_mut().insert(Peer::Unix { uid: 0, gid: 0 });
            request
        };
        let answer = election.router().call(by_socket(None)).await.unwrap();
        assert_eq!(answer.status().as_u16(), 401);
        let body = to_bytes(answer.into_body(), 10_000).await.unwrap();
        let body: ErrorBody = serde_json::from_slice(&body).unwrap();
        assert!(body.error.contains("https://10.0.0.3:7440") && body.hint.contains("gmm login"), "{body:?}");
        let answer = election.router().call(by_socket(Some("Bearer cx1.x"))).await.unwrap();
        assert_eq!(answer.status().as_u16(), 307, "a token is known there");
        election.follow("http://10.0.0.3:7440");
        let answer = election.router().call(by_socket(None)).await.unwrap();
        assert_eq!(answer.status().as_u16(), 307, "nobody has to be known");
        let mut crowded = by_socket(None);
        crowded.extensions_mut().insert(Crowded);
        assert_eq!(election.router().call(crowded).await.unwrap().status().as_u16(), 503);

        let routes = || Router::new().route("/v1/x", get(|| async { "" }).post(|| async { "led" }));
        election.lead(routes(), Lease::for_ever());
        assert_eq!(ask(&election, "/v1/x").await.2, b"led");
        assert!(election.wait("etcd is away") && !election.wait("etcd is away"));
        assert_eq!(ask(&election, "/v1/x").await.0.as_u16(), 503);
    }

    #[tokio::test]
    async fn an_answer_that_comes_when_the_tenure_is_over_is_held_back() {
        let (election, lease) = (LeaderElection::new(HostNames::default()), Lease::until(u64::MAX));
        let ended = lease.clone();
        let stale = move || async move {
            ended.end();
            "what was true"
        };
        election.lead(Router::new().route("/v1/x", axum::routing::post(stale)), lease);
        let (status, _, body) = ask(&election, "/v1/x").await;
        assert_eq!(status.as_u16(), 503);
        assert!(String::from_utf8(body).unwrap().contains("lost the lead while it answered"));
        assert!(String::from_utf8(ask(&election, "/v1/x").await.2).unwrap().contains("just lost the lead"));
    }
}
