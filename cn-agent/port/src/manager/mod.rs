//! Calls to the manager that a program needs to be a compute node. They block, with one connection each: this library
//! is loaded into any program, so it starts no runtime and no threads. The agent and the tools use the client of
//! `cxloe-fabric` instead.
//!
//! With several managers, a call is sent to the leader. A manager that is not the leader redirects the call to it; if a
//! manager does not answer, the next one in the list is tried. A call that changes something is never sent twice.

mod address;
mod socket;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use cxloe_fabric::api::{
    ComputeNodeRegistered, ComputeNodeSync, ComputeNodeSynced, CreateRegion, DestroyRegion, Joined,
    NotFollowed, RegisterComputeNode, Renew,
};
use cxloe_fabric::model::{CnId, ComputeNode, Name, Region};
use cxloe_fabric::trust::Credentials;
use cxloe_fabric::{ClientError, Unanswered};
use serde::Serialize;
use serde::de::DeserializeOwned;

use address::{Call, ManagerAddress, agent};
use ureq::Agent;
use ureq::http::header::{LOCATION, RETRY_AFTER};
use ureq::http::{Response, StatusCode};

/// Time-out of an answer, in addition to the time for which the request lets the manager wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Shortest time-out of a call: with less time left, no call is made.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);
/// Maximum number of redirections of one call.
const REDIRECTS_MAX: usize = 4;

/// Whether all managers at `urls` are reached privately: by a Unix socket, or over TLS.
pub(crate) fn is_private(urls: &str) -> bool {
    urls.split(',').all(|url| ManagerAddress::parse(url.trim()).is_ok_and(|place| place.is_private()))
}

/// A manager, or several of which one is the leader.
#[derive(Debug)]
pub struct Manager {
    /// URLs as given, separated by commas.
    urls: String,
    /// Managers, each with the HTTP agent for its address.
    places: Vec<(ManagerAddress, Agent)>,
    /// HTTP agent for all managers that are not reached by a socket.
    network: Agent,
    /// Token that calls present, if any.
    token: Option<String>,
    /// Index of the manager that answered last.
    current: Cell<usize>,
}

/// Handle that ends the calls of a [`Manager`] from another thread: a call that waits for a change may last a minute.
#[derive(Debug)]
pub(crate) struct Cut(Vec<Agent>);

impl Cut {
    /// Ends the call in progress and all later ones.
    pub(crate) fn now(&self) {
        self.0.iter().cloned().for_each(Agent::shutdown);
    }
}

impl Manager {
    /// Creates a client of the manager at `urls`: `https://HOST:PORT`, `unix:/path/to/socket`, or
    /// `http://HOST:PORT` for a manager without access control; several URLs are separated by commas. Calls
    /// present `credentials`.
    ///
    /// # Errors
    /// [`ClientError::BadUrl`].
    pub fn new(urls: &str, credentials: &Credentials) -> Result<Manager, ClientError> {
        let tls = Arc::new(credentials.tls());
        let network = agent(None, &tls);
        let place = |url: &str| {
            let place = ManagerAddress::parse(url.trim())?;
            let own = place.unix().map_or_else(|| network.clone(), |path| agent(Some(path), &tls));
            Ok((place, own))
        };
        let places = urls.split(',').map(place).collect::<Result<_, _>>()?;
        let token = credentials.token.as_ref().map(|token| token.reveal());
        Ok(Manager { urls: urls.to_owned(), places, network, token, current: Cell::new(0) })
    }

    /// A handle by which another thread ends the call in progress and all later ones.
    pub(crate) fn cut(&self) -> Cut {
        Cut(self.places.iter().map(|(_, agent)| agent).chain([&self.network]).cloned().collect())
    }

    /// Registers a compute node: `POST /v1/compute-nodes`.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn register(&self, node: &RegisterComputeNode) -> Result<ComputeNodeRegistered, ClientError> {
        let asked = format!("register compute node {} ({})", node.name, node.cn_id);
        self.call("POST", "/v1/compute-nodes", &asked, Some(node), ANSWER_TIMEOUT)
    }

    /// Lists the compute nodes that are registered with the manager: `GET /v1/compute-nodes`.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn compute_nodes(&self) -> Result<Vec<ComputeNode>, ClientError> {
        self.call("GET", "/v1/compute-nodes", "list compute nodes", None::<&()>, ANSWER_TIMEOUT)
    }

    /// Renews the registration, and waits for a change, for at most `wait_limit`.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn sync(
        &self,
        cn: CnId,
        sync: &ComputeNodeSync,
        wait_limit: Duration,
    ) -> Result<ComputeNodeSynced, ClientError> {
        let path = format!("/v1/compute-nodes/{cn}/sync");
        self.call("POST", &path, &format!("sync compute node {cn}"), Some(sync), wait_limit)
    }

    /// Reports that this node refuses the manager, so that administrators can see the refusal at the manager.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn not_followed(&self, body: &NotFollowed) -> Result<(), ClientError> {
        let asked = format!("record that {} does not follow", body.node);
        self.exchange("POST", "/v1/refused", &asked, Some(body), ANSWER_TIMEOUT).map(drop)
    }

    /// Requests a new certificate for the TLS key whose public half, in base64, is `tls_key`.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn renew(&self, tls_key: String) -> Result<Joined, ClientError> {
        let body = Some(&Renew { tls_key });
        self.call("POST", "/v1/renew", "renew the certificate of this node", body, ANSWER_TIMEOUT)
    }

    /// Reads the description of one region: `GET /v1/regions/NAME`.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn region(&self, name: &Name) -> Result<Region, ClientError> {
        let (path, asked) = (format!("/v1/regions/{name}"), format!("show region {name}"));
        self.call("GET", &path, &asked, None::<&()>, ANSWER_TIMEOUT)
    }

    /// Creates a region: `POST /v1/regions`; waits for its completion for up to the `wait_ms` of `create`.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn create_region(&self, create: &CreateRegion) -> Result<Region, ClientError> {
        let wait_limit = ANSWER_TIMEOUT.saturating_add(Duration::from_millis(create.wait_ms));
        self.call("POST", "/v1/regions", &create.to_string(), Some(create), wait_limit)
    }

    /// Destroys a region: `DELETE /v1/regions/NAME`; waits for its completion for up to the `wait_ms` of `options`.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn destroy_region(&self, name: &Name, options: DestroyRegion) -> Result<(), ClientError> {
        let (path, wait_ms) = (format!("/v1/regions/{name}?{}", options.query()), options.wait_ms);
        let wait_limit = ANSWER_TIMEOUT.saturating_add(Duration::from_millis(wait_ms));
        self.exchange("DELETE", &path, &format!("destroy region {name}"), None::<&()>, wait_limit).map(drop)
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        path: &str,
        asked: &str,
        body: Option<&impl Serialize>,
        wait_limit: Duration,
    ) -> Result<T, ClientError> {
        let answer = self.exchange(method, path, asked, body, wait_limit)?;
        serde_json::from_slice(&answer).map_err(|error| self.protocol(asked, error.to_string()))
    }

    fn protocol(&self, asked: &str, reason: String) -> ClientError {
        ClientError::Protocol { url: self.urls.clone(), asked: asked.to_owned(), reason }
    }

    /// Sends a request to the leader; returns the body of the answer if the request succeeded.
    fn exchange(
        &self,
        method: &'static str,
        path: &str,
        asked: &str,
        body: Option<&impl Serialize>,
        wait_limit: Duration,
    ) -> Result<Vec<u8>, ClientError> {
        let body = body.map(serde_json::to_vec).transpose();
        let body = body.map_err(|error| self.protocol(asked, error.to_string()))?;
        let call = Call { method, path: path.to_owned(), body, wait_limit: wait_limit.max(SHORTEST_TIMEOUT) };
        let (url, answer) = self.ask(&call).map_err(|unanswered| unanswered.of_call(&self.urls, asked))?;
        if answer.status().is_success() {
            return Ok(answer.into_body());
        }
        Err(match serde_json::from_slice(answer.body()) {
            Ok(body) => ClientError::Refused { url, asked: asked.to_owned(), body },
            Err(_) => self.protocol(asked, format!("status {} without an error body", answer.status())),
        })
    }

    /// Sends a request to the leader; returns the leader's URL and its answer.
    fn ask(&self, call: &Call) -> Result<(String, Response<Vec<u8>>), Unanswered> {
        let (first, count) = (self.current.get(), self.places.len());
        let mut tries = (0..count).map(|next| (first + next) % count);
        let (mut reasons, mut leaderless, mut redirects) = (Vec::new(), None, 0);
        let mut other_scheme = None;
        let mut pointed: Option<ManagerAddress> = None;
        loop {
            let (place, agent) = match pointed.take() {
                Some(leader) => (leader, &self.network),
                None => {
                    let Some(index) = tries.next() else { break };
                    self.current.set(index);
                    let (place, agent) = &self.places[index];
                    (place.clone(), agent)
                }
            };
            match place.send(agent, call, self.token.as_deref()) {
                Ok(answer) if answer.status() == StatusCode::TEMPORARY_REDIRECT => {
                    redirects += 1;
                    let location = answer.headers().get(LOCATION).and_then(|url| url.to_str().ok());
                    let location = location.unwrap_or_default();
                    match location.strip_suffix(&call.path).map(ManagerAddress::parse) {
                        Some(Ok(leader)) if redirects <= REDIRECTS_MAX && leader.unix().is_none() => {
                            pointed = Some(leader);
                        }
                        _ => reasons.push(format!("{} points to {location}, which does not lead", place.url)),
                    }
                }
                Ok(answer)
                    if answer.status() == StatusCode::SERVICE_UNAVAILABLE
                        && answer.headers().contains_key(RETRY_AFTER) =>
                {
                    leaderless = Some((place.url, answer));
                }
                Ok(answer) => return Ok((place.url, answer)),
                Err(failure) => {
                    match failure.reason {
                        Unanswered::Because(reason) => reasons.push(reason),
                        scheme => other_scheme = Some(scheme),
                    }
                    // The manager may have made the change before the failure, so the call is not sent to another
                    // manager.
                    if failure.is_sent && call.method != "GET" {
                        self.current.set((self.current.get() + 1) % count);
                        break;
                    }
                }
            }
        }
        // The answer of a manager that there is no leader explains the failure better than the silence of other
        // managers.
        leaderless.ok_or_else(|| other_scheme.unwrap_or_else(|| Unanswered::Because(reasons.join("; "))))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use cxloe_fabric::Client;
    use cxloe_fabric::api::{CreateToken, ErrorCode};
    use cxloe_fabric::model::Role;
    use cxloe_gmm::server::{Config, Server};

    use super::*;

    /// Serves one connection for each of `answers`; the thread returns the requests received.
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
        // The discard port of this machine, on which no program listens.
        let manager =
            Manager::new(&format!("http://127.0.0.1:9, {follower}"), &Credentials::default()).unwrap();
        destroy(&manager).unwrap();
        let asked = served.join().unwrap();
        assert!(asked[0].starts_with("DELETE /v1/regions/r?force=true&wait_ms=1 HTTP/1.1\r\n"), "{asked:?}");

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

    fn sync() -> ComputeNodeSync {
        ComputeNodeSync {
            registration: 1,
            after_event: 0,
            released: Vec::new(),
            quiet: 0,
            settled: false,
            wait_ms: 60_000,
        }
    }

    fn own() -> CnId {
        "02:00:00:00:00:01".parse().unwrap()
    }

    #[test]
    fn silence_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let manager = Manager::new(&url, &Credentials::default()).unwrap();
        let error = manager.sync(own(), &sync(), Duration::from_millis(20)).unwrap_err().to_string();
        assert!(error.contains("no answer in time"), "{error}");
    }

    #[test]
    fn a_call_is_ended_from_another_thread() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("gmm.sock");
        let (network, local) =
            (TcpListener::bind("127.0.0.1:0").unwrap(), UnixListener::bind(&socket).unwrap());
        let urls =
            [format!("http://{}", network.local_addr().unwrap()), format!("unix:{}", socket.display())];
        for url in urls {
            let manager = Manager::new(&url, &Credentials::default()).unwrap();
            let cut = manager.cut();
            let waiting = thread::spawn(move || {
                let hour = Duration::from_secs(3600);
                [manager.sync(own(), &sync(), hour), manager.sync(own(), &sync(), hour)]
            });
            let mut stream: Box<dyn Read> = if url.starts_with("unix:") {
                Box::new(local.accept().unwrap().0)
            } else {
                Box::new(network.accept().unwrap().0)
            };
            stream.read_exact(&mut [0; 16]).unwrap();
            cut.now();
            for ended in waiting.join().unwrap() {
                assert!(matches!(ended, Err(ClientError::Unreachable { .. })), "{ended:?}");
            }
        }
    }

    #[test]
    fn a_manager_is_reached_by_its_socket_and_over_tls() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("gmm.sock");
        let config = Config {
            listen: ([127, 0, 0, 1], 0).into(),
            socket: Some(socket.clone()),
            store: folder.path().join("gmm.redb").into(),
            ..Config::default()
        };
        let server = runtime.block_on(Server::start(config)).unwrap();
        let (local, network) =
            (format!("unix:{}", socket.display()), format!("https://{}", server.address()));
        let ask = CreateToken { role: Role::Admin, ttl_s: None, compute_nodes: Vec::new(), quota: None };
        let made = runtime.block_on(Client::new(&local).unwrap().create_token(&ask)).unwrap();
        let token = Credentials::of_token(made.token.parse().unwrap());
        let ask = |url: &str, credentials: &Credentials| {
            Manager::new(url, credentials).unwrap().region(&Name::new("none").unwrap()).unwrap_err()
        };
        for (url, credentials) in [(&local, &Credentials::default()), (&network, &token)] {
            let error = ask(url, credentials);
            assert_eq!(error.code(), Some(ErrorCode::NotFound), "{error}");
        }
        let error = ask(&network, &Credentials::default());
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("which authority to trust"), "{error}");
        runtime.block_on(server.stop()).unwrap();
    }

    #[test]
    fn the_other_scheme_is_named() {
        let alert = String::from_utf8(vec![21, 3, 3, 0, 2, 2, 40]).unwrap();
        let (url, _) = serve(vec![alert]);
        let error = Manager::new(&url, &Credentials::default())
            .unwrap()
            .region(&Name::new("r").unwrap())
            .unwrap_err();
        assert!(matches!(&error, ClientError::Tls { url: told, .. } if *told == url), "{error}");

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            stream.read_exact(&mut [0; 16]).unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        });
        let error = Manager::new(&url, &Credentials::default())
            .unwrap()
            .region(&Name::new("r").unwrap())
            .unwrap_err();
        assert!(matches!(&error, ClientError::Plain { url: told, .. } if *told == url), "{error}");
        server.join().unwrap();
    }
}
