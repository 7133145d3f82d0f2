//! Responses of this process according to its role: those of the routes while it leads, a redirection while another
//! manager leads, and an error with a hint while no manager leads. The listener stays the same in all roles.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, LOCATION, ORIGIN, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http_body_util::BodyExt;
use tower_service::Service;

use super::body::BODY_BYTES_MAX;
use super::core::{Core, noting_changes};
use super::error::ApiError;
use super::origin::{self, HostNames};
use super::web;
use crate::store::Lease;
use cxloe_daemon::http::{Peer, TooManyRequests};
use cxloe_fabric::api::ErrorCode;

/// Maximum time for the body of a redirected request to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of characters of an origin or a path in an entry of the event log.
const ORIGIN_CHARS_MAX: usize = 100;

#[derive(Clone)]
enum Role {
    /// This process leads: these routes answer while the lease holds.
    Leading(Router, Lease),
    /// Another manager leads; this is its URL.
    Following(String),
    /// No manager leads, for this reason.
    Waiting(String),
}

/// The present role of this process, which the election sets and the listeners read.
#[derive(Clone)]
pub struct LeaderElection {
    role: Arc<RwLock<Role>>,
    /// The core, while this process leads; metrics and health checks use it.
    core: Arc<RwLock<Option<Core>>>,
    answered: Arc<[AtomicU64; CLASSES.len()]>,
    names: Arc<HostNames>,
}

/// Classes of HTTP statuses, as labels of metrics.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

impl LeaderElection {
    /// Starts in the role of a process while no manager leads. `names` are the host names under which browsers may send
    /// changes.
    pub fn new(names: HostNames) -> Self {
        let role = Role::Waiting("this manager has just started".to_owned());
        Self {
            role: Arc::new(RwLock::new(role)),
            core: Arc::default(),
            answered: Arc::default(),
            names: names.into(),
        }
    }

    /// Sets the role of leader: `routes` answer while `lease` holds.
    pub fn lead(&self, routes: Router, lease: Lease) {
        self.set(Role::Leading(routes, lease));
    }

    /// Makes the core available to metrics and health checks.
    pub fn show(&self, core: Core) {
        *self.core.write().unwrap_or_else(PoisonError::into_inner) = Some(core);
    }

    pub fn core(&self) -> Option<Core> {
        self.core.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The reason why no manager leads; none if one does.
    pub fn waits_for(&self) -> Option<String> {
        match self.role() {
            Role::Waiting(reason) => Some(reason),
            _ => None,
        }
    }

    /// Returns the number of answered requests of each class of HTTP status, such as `2xx`.
    pub fn answered(&self) -> impl Iterator<Item = (&'static str, u64)> {
        CLASSES.into_iter().zip(self.answered.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Sets the role of follower of the manager at `url`. Returns true if the role has changed.
    pub fn follow(&self, url: &str) -> bool {
        if matches!(self.role(), Role::Following(known) if known == url) {
            return false;
        }
        self.set(Role::Following(url.to_owned()));
        true
    }

    /// Sets the role of a process while no manager leads, for `reason`. Returns true if the reason has changed.
    pub fn wait(&self, reason: &str) -> bool {
        if matches!(self.role(), Role::Waiting(known) if known == reason) {
            return false;
        }
        self.set(Role::Waiting(reason.to_owned()));
        true
    }

    /// Router that a listener serves, whether this manager leads or follows.
    pub fn router(&self) -> Router {
        web::parts().route("/", get(view)).fallback(answer).with_state(self.clone())
    }

    fn role(&self) -> Role {
        self.role.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, role: Role) {
        // Metrics and health checks must not show the state of a term that has ended.
        if !matches!(role, Role::Leading(..)) {
            *self.core.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
        *self.role.write().unwrap_or_else(PoisonError::into_inner) = role;
    }
}

async fn answer(State(election): State<LeaderElection>, request: Request) -> Response {
    let overloaded = request.extensions().get::<TooManyRequests>().is_some();
    let plain = matches!(request.extensions().get::<Peer>(), Some(Peer::Tcp(_)));
    let answer = match origin::check(request.method(), request.headers(), &election.names, plain) {
        Ok(()) if overloaded => {
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
            let (answer, changed) = noting_changes(routes.call(request)).await;
            let answer = match answer {
                Ok(answer) => answer,
                Err(never) => match never {},
            };
            match lease.holds() {
                true if changed && answer.status() == StatusCode::SERVICE_UNAVAILABLE => may_be_done(),
                true => answer,
                // The lease ended before the answer was ready: another manager may have changed the data.
                false if changed => may_be_done(),
                false => no_leader("this manager lost the lead while it answered"),
            }
        }
        Role::Leading(..) => no_leader("this manager has just lost the lead"),
        // A leader with TLS cannot identify a local user of this process's socket, so the user gets the leader's URL as
        // text. A leader without TLS identifies no callers, so a local user is redirected like any other client.
        Role::Following(url) if url.starts_with("https:") && is_local_user(&request) => {
            leader_is_elsewhere(&url)
        }
        Role::Following(url) => redirect(&url, request).await,
        Role::Waiting(reason) => no_leader(&reason),
    }
}

/// True for a caller that the leader could not identify: a user of this machine, identified by the socket and without a
/// token.
fn is_local_user(request: &Request) -> bool {
    let by_socket = matches!(request.extensions().get::<Peer>(), Some(Peer::Unix { .. }));
    by_socket && !request.headers().contains_key(AUTHORIZATION)
}

/// Responds to a user of this machine with the leader's URL, and with how to send a request to the leader.
fn leader_is_elsewhere(url: &str) -> Response {
    let error = format!("another manager leads, at {url}, and it cannot authenticate users of this machine");
    let hint = format!(
        "ask by the Unix socket on the leader's machine, or with a token that `gmm token create` makes there: `gmm login {url} \
         --token …`"
    );
    ApiError::new(ErrorCode::Unauthenticated, error, hint).into_response()
}

/// Serves the web view, or redirects to the leader. While no manager leads, the page says so.
async fn view(State(election): State<LeaderElection>, request: Request) -> Response {
    match election.role() {
        Role::Following(url) => redirect(&url, request).await,
        Role::Leading(..) | Role::Waiting(_) => web::page(),
    }
}

/// Redirects a client to the manager at `url`. Receives the body first, so that the client reads the response.
async fn redirect(url: &str, request: Request) -> Response {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let location = HeaderValue::try_from(format!("{url}{path}"));
    drop(tokio::time::timeout(BODY_TIMEOUT, discard(request.into_body())).await);
    let Ok(location) = location else { return no_leader("the leader's URL is none") };
    let hint = format!("ask {url}; a client that follows redirects does so by itself");
    ([(LOCATION, location)], ApiError::new(ErrorCode::NotLeader, "another manager leads", hint))
        .into_response()
}

/// Receives a body, up to the size that the leader accepts, and keeps nothing of it: its sender is not identified.
async fn discard(mut body: Body) {
    let mut received = 0;
    while let Some(Ok(frame)) = body.frame().await {
        received += frame.data_ref().map_or(0, |data| data.len());
        if received > BODY_BYTES_MAX {
            return;
        }
    }
}

fn no_leader(reason: &str) -> Response {
    let error = format!("no manager leads at the moment: {reason}");
    let hint = "ask again in a second, or ask another manager";
    ([(RETRY_AFTER, "1")], ApiError::new(ErrorCode::Unavailable, error, hint)).into_response()
}

/// Responds to a request whose change is perhaps in the store. The response has no `Retry-After`, because a repeated
/// request could make the change twice.
fn may_be_done() -> Response {
    let error = "this manager lost the lead, or ended, while it carried the request out: it may have been done, and may not";
    let hint = "look whether it was (`gmm list`, or the events) before you ask again";
    ApiError::new(ErrorCode::MayBeDone, error, hint).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::{Bytes, to_bytes};
    use axum::routing::get;
    use futures_util::stream;

    use super::*;
    use cxloe_fabric::api::ErrorBody;

    /// Part of a body. The number counts the parts in memory.
    struct Part(Arc<AtomicU64>);

    impl AsRef<[u8]> for Part {
        fn as_ref(&self) -> &[u8] {
            &[b' '; 4096]
        }
    }

    impl Drop for Part {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

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

        // The leader could not identify a user of this machine's socket, so there is no redirect.
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
        let mut overloaded = by_socket(None);
        overloaded.extensions_mut().insert(TooManyRequests);
        assert_eq!(election.router().call(overloaded).await.unwrap().status().as_u16(), 503);

        let routes = || Router::new().route("/v1/x", get(|| async { "" }).post(|| async { "led" }));
        election.lead(routes(), Lease::for_ever());
        assert_eq!(ask(&election, "/v1/x").await.2, b"led");
        assert!(election.wait("etcd is away") && !election.wait("etcd is away"));
        assert_eq!(ask(&election, "/v1/x").await.0.as_u16(), 503);
    }

    #[tokio::test]
    async fn a_body_is_not_kept_for_a_redirection() {
        let (held, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let reached = most.clone();
        let part = move |_: u32| {
            reached.fetch_max(held.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            Ok::<Bytes, std::convert::Infallible>(Bytes::from_owner(Part(held.clone())))
        };
        let body = Body::from_stream(stream::iter((0..64).map(part)));
        let election = LeaderElection::new(HostNames::default());
        election.follow("http://10.0.0.2:7440");
        let request = Request::post("/v1/x").header("content-type", "application/json").body(body).unwrap();
        assert_eq!(election.router().call(request).await.unwrap().status().as_u16(), 307);
        assert_eq!(most.load(Ordering::Relaxed), 1, "parts of the body in memory at once");
    }

    #[tokio::test]
    async fn an_answer_after_the_end_of_the_lease_is_withheld() {
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
