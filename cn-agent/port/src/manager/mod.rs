//! The few calls to the manager that a compute node of one's own makes. Blocking, one connection for each, because a library
//! that is loaded into any program brings no runtime and no HTTP stack of its own. The agent and the tools use the client
//! of `cxloe-fabric` instead.
//!
//! Where there are several managers, a call goes to the one that leads: to where a manager points that does not, and to the
//! next one where nobody answers. A call that changes something is not made twice.

mod cut;
mod http;
mod place;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use cxloe_fabric::ClientError;
use cxloe_fabric::api::{
    ComputeNodeRegistered, ComputeNodeSync, ComputeNodeSynced, CreateRegion, DestroyRegion, Joined,
    RegisterComputeNode, Renew,
};
use cxloe_fabric::model::{CnId, Name, Region};
use cxloe_fabric::trust::Credentials;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use cut::Cut;
use http::{Answer, Request, Sent, Shown, send};
use place::Place;

/// How long an answer may take beyond the time the request asks the manager to wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How often one call is sent elsewhere at most.
const REDIRECTS_MAX: usize = 4;

/// Whether nobody on the way to the managers at `urls` reads or changes what is said: by a Unix socket, or over TLS.
pub(crate) fn is_private(urls: &str) -> bool {
    urls.split(',').all(|url| Place::parse(url.trim()).is_ok_and(|place| place.is_private()))
}

/// A manager, or several of which one leads.
#[derive(Debug)]
pub struct Manager {
    /// As given.
    urls: String,
    places: Vec<Place>,
    shown: Shown,
    /// Which of them answered last.
    current: Cell<usize>,
    /// Ends its calls early.
    cut: Cut,
}

impl Manager {
    /// The manager at `urls`: `https://HOST:PORT`, `unix:/path/to/socket`, or `http://HOST:PORT` of one that asks for no
    /// rights; several separated by commas. It is shown `credentials`.
    ///
    /// # Errors
    /// [`ClientError::BadUrl`].
    pub fn new(urls: &str, credentials: &Credentials) -> Result<Manager, ClientError> {
        let places = urls.split(',').map(|url| Place::parse(url.trim())).collect::<Result<_, _>>()?;
        let token = credentials.token.as_ref().map(|token| token.reveal());
        let shown = Shown { tls: Arc::new(credentials.tls()), token };
        Ok(Manager { urls: urls.to_owned(), places, shown, current: Cell::new(0), cut: Cut::default() })
    }

    /// What ends the call that is under way, and all later ones, from another thread.
    pub(crate) fn cut(&self) -> Cut {
        self.cut.clone()
    }

    /// Registers a compute node.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn register(&self, node: &RegisterComputeNode) -> Result<ComputeNodeRegistered, ClientError> {
        let asked = format!("register compute node {} ({})", node.name, node.cn_id);
        self.call("POST", "/v1/compute-nodes", &asked, Some(node), ANSWER_TIMEOUT)
    }

    /// Proves that the compute node lives, and waits for a change, for `patience` at most.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn sync(
        &self,
        cn: CnId,
        sync: &ComputeNodeSync,
        patience: Duration,
    ) -> Result<ComputeNodeSynced, ClientError> {
        let path = format!("/v1/compute-nodes/{cn}/sync");
        self.call("POST", &path, &format!("sync compute node {cn}"), Some(sync), patience)
    }

    /// A new certificate for the TLS key whose public half, in base64, is `tls_key`.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn renew(&self, tls_key: String) -> Result<Joined, ClientError> {
        let body = Some(&Renew { tls_key });
        self.call("POST", "/v1/renew", "renew the certificate of this node", body, ANSWER_TIMEOUT)
    }

    /// One region.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn region(&self, name: &Name) -> Result<Region, ClientError> {
        let (path, asked) = (format!("/v1/regions/{name}"), format!("show region {name}"));
        self.call("GET", &path, &asked, None::<&()>, ANSWER_TIMEOUT)
    }

    /// Creates a region.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn create_region(&self, create: &CreateRegion) -> Result<Region, ClientError> {
        let asked = format!("create region {} of {} for {}", create.name, create.size, create.owner);
        let patience = ANSWER_TIMEOUT.saturating_add(Duration::from_millis(create.wait_ms));
        self.call("POST", "/v1/regions", &asked, Some(create), patience)
    }

    /// Destroys a region.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn destroy_region(&self, name: &Name, options: DestroyRegion) -> Result<(), ClientError> {
        let (path, wait_ms) = (format!("/v1/regions/{name}?{}", options.query()), options.wait_ms);
        let patience = ANSWER_TIMEOUT.saturating_add(Duration::from_millis(wait_ms));
        self.exchange("DELETE", &path, &format!("destroy region {name}"), None::<&()>, patience).map(drop)
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        path: &str,
        asked: &str,
        body: Option<&impl Serialize>,
        patience: Duration,
    ) -> Result<T, ClientError> {
        let answer = self.exchange(method, path, asked, body, patience)?;
        serde_json::from_slice(&answer).map_err(|error| self.protocol(asked, error.to_string()))
    }

    fn protocol(&self, asked: &str, reason: String) -> ClientError {
        ClientError::Protocol { url: self.urls.clone(), asked: asked.to_owned(), reason }
    }

    /// Sends a request to whoever leads; the body of a success.
    fn exchange(
        &self,
        method: &'static str,
        path: &str,
        asked: &str,
        body: Option<&impl Serialize>,
        patience: Duration,
    ) -> Result<Vec<u8>, ClientError> {
        let body = body.map(serde_json::to_vec).transpose();
        let body = body.map_err(|error| self.protocol(asked, error.to_string()))?;
        let request = Request { method, path, body, patience, cut: &self.cut };
        let (place, answer) = self.ask(&request).map_err(|reason| ClientError::Unreachable {
            url: self.urls.clone(),
            asked: asked.to_owned(),
            reason,
        })?;
        if (200..300).contains(&answer.status) {
            return Ok(answer.body);
        }
        Err(match serde_json::from_slice(&answer.body) {
            Ok(body) => ClientError::Refused { url: place.url(), asked: asked.to_owned(), body },
            Err(_) => self.protocol(asked, format!("status {} without an error body", answer.status)),
        })
    }

    /// Asks whoever leads. Why nobody answered, in words.
    fn ask(&self, request: &Request<'_>) -> Result<(Place, Answer), String> {
        let first = self.current.get();
        let mut tries = (0..self.places.len()).map(|next| (first + next) % self.places.len());
        let (mut reasons, mut leaderless, mut redirects) = (Vec::new(), None, 0);
        let mut pointed: Option<Place> = None;
        loop {
            let place = match pointed.take() {
                Some(leader) => leader,
                None => match tries.next() {
                    Some(index) => {
                        self.current.set(index);
                        self.places[index].clone()
                    }
                    None => break,
                },
            };
            match send(&place, request, &self.shown) {
                Sent::Answered(Answer { status: 307, location: Some(location), .. }) => {
                    redirects += 1;
                    match location.strip_suffix(request.path).map(Place::parse) {
                        Some(Ok(leader)) if redirects <= REDIRECTS_MAX => pointed = Some(leader),
                        _ => {
                            reasons
                                .push(format!("{} points to {location}, which does not lead", place.url()));
                        }
                    }
                }
                Sent::Answered(answer) if answer.status == 503 && answer.retry => {
                    leaderless = Some((place, answer));
                }
                Sent::Answered(answer) => return Ok((place, answer)),
                Sent::Unreached(error) => reasons.push(format!("{}: {error}", place.url())),
                Sent::NoAnswer(error) => {
                    reasons.push(format!("{}: {error}", place.url()));
                    if request.method != "GET" {
                        self.current.set((self.current.get() + 1) % self.places.len());
                        break;
                    }
                }
            }
        }
        // That nobody leads says more than that some do not answer.
        leaderless.ok_or_else(|| reasons.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Answers one connection after the other with these, whatever is asked; what was asked.
    fn serve(answers: Vec<String>) -> (String, thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let thread = thread::spawn(move || {
            let serve = |answer: String| {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut asked, mut part) = (Vec::new(), [0; 4096]);
                while !asked.windows(4).any(|four| four == b"\r\n\r\n") {
                    let bytes = stream.read(&mut part).unwrap();
                    asked.extend_from_slice(&part[..bytes]);
                }
                stream.write_all(answer.as_bytes()).unwrap();
                String::from_utf8(asked).unwrap()
            };
            answers.into_iter().map(serve).collect()
        });
        (url, thread)
    }

    #[test]
    fn a_call_goes_to_the_leader() {
        let destroy = |manager: &Manager| {
            manager.destroy_region(
                &Name::new("r").unwrap(),
                DestroyRegion { force: true, wait_ms: 1, created_ms: None },
            )
        };
        let (leader, served) = serve(vec!["HTTP/1.1 204 No Content\r\n\r\n".into()]);
        let moved = format!("HTTP/1.1 307 T\r\nLocation: {leader}/v1/regions/r?force=true&wait_ms=1\r\n\r\n");
        let (follower, _) = serve(vec![moved]);
        // Port 9 of this machine: nobody answers.
        let manager =
            Manager::new(&format!("http://127.0.0.1:9, {follower}"), &Credentials::default()).unwrap();
        destroy(&manager).unwrap();
        let asked = served.join().unwrap();
        assert!(asked[0].starts_with("DELETE /v1/regions/r?force=true&wait_ms=1 HTTP/1.0\r\n"), "{asked:?}");

        let (leaderless, _) = serve(vec![
            "HTTP/1.1 503 S\r\nRetry-After: 1\r\n\r\n{\"error\":\"nobody leads\",\"hint\":\"wait\",\"code\":\"unavailable\"}".into(),
        ]);
        let error =
            destroy(&Manager::new(&leaderless, &Credentials::default()).unwrap()).unwrap_err().to_string();
        assert!(error.contains("refused to destroy region r: nobody leads; wait"), "{error}");
        let error = destroy(&Manager::new("http://127.0.0.1:9", &Credentials::default()).unwrap())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("unreachable at http://127.0.0.1:9") && error.contains("gmm serve"),
            "{error}"
        );
    }

    #[test]
    fn silence_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let manager =
            Manager::new(&format!("http://{}", listener.local_addr().unwrap()), &Credentials::default())
                .unwrap();
        let sync = ComputeNodeSync {
            registration: 1,
            after_event: 0,
            released: Vec::new(),
            quiet: 0,
            wait_ms: 60_000,
        };
        let own = "02:00:00:00:00:01".parse().unwrap();
        let error = manager.sync(own, &sync, Duration::from_millis(20)).unwrap_err().to_string();
        assert!(error.contains("no answer in time"), "{error}");
    }
}
