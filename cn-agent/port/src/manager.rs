//! The few calls to the manager that a compute node of one's own makes. Blocking, one connection for each, because a library
//! that is loaded into any program brings no runtime and no HTTP stack of its own. The agent and the tools use the client
//! of `cxloe-fabric` instead.
//!
//! Where there are several managers, a call goes to the one that leads: to where a manager points that does not, and to the
//! next one where nobody answers. A call that changes something is not made twice.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cxloe_fabric::api::{
    ComputeNodeRegistered, ComputeNodeSync, ComputeNodeSynced, CreateRegion, DestroyRegion, ErrorBody,
    RegisterComputeNode,
};
use cxloe_fabric::model::{CnId, Name, Region};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an answer may take beyond the time the request asks the manager to wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How often one call is sent elsewhere at most.
const REDIRECTS_MAX: usize = 4;
/// The longest answer in bytes: that about the largest region there can be.
const ANSWER_MAX: u64 = 64 << 20;
/// The port of a URL without one.
const HTTP_PORT: u16 = 80;

/// Why a call to the manager failed.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The address of the manager cannot be used.
    #[error(
        "{url:?} is not the URL of a manager ({reason}); write http://HOST:PORT or unix:/path/to/socket, several separated by commas"
    )]
    BadUrl {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No answer: nobody listens there, the network is down, or the answer took too long.
    #[error("manager unreachable at {url}, asked to {asked}: {reason}; is `gmm serve` running there?")]
    Unreachable {
        /// The manager's URL.
        url: String,
        /// What was asked.
        asked: String,
        /// What happened.
        reason: String,
    },
    /// The manager answered that it will not or cannot.
    #[error("manager at {url} refused to {asked}: {}; {}", body.error, body.hint)]
    Refused {
        /// The manager's URL.
        url: String,
        /// What was asked.
        asked: String,
        /// What it said.
        body: Box<ErrorBody>,
    },
    /// What answers is no manager, or one of another version.
    #[error(
        "{url} answered a request to {asked} with what no manager of this version sends ({reason}); check the URL and both versions"
    )]
    Protocol {
        /// The manager's URL.
        url: String,
        /// What was asked.
        asked: String,
        /// What is odd about the answer.
        reason: String,
    },
}

/// Where one manager listens.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Unix(PathBuf),
    Tcp { host: String, port: u16 },
}

/// A stream to a manager.
trait Stream: Read + Write {
    fn set_patience(&self, patience: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))?;
        self.set_write_timeout(Some(patience))
    }
}

impl Stream for UnixStream {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))?;
        self.set_write_timeout(Some(patience))
    }
}

impl Place {
    fn parse(url: &str) -> Result<Place, ManagerError> {
        let bad = |reason| ManagerError::BadUrl { url: url.to_owned(), reason };
        if let Some(path) = url.strip_prefix("unix:") {
            return match path {
                "" => Err(bad("the path of the socket is missing")),
                path => Ok(Place::Unix(path.into())),
            };
        }
        let rest = url.strip_prefix("http://").ok_or_else(|| bad("it does not start with http://HOST"))?;
        let authority = rest.trim_end_matches('/');
        if authority.contains(['/', '@', '?', '#']) {
            return Err(bad("there is more than a host and a port"));
        }
        let (host, port) = match authority.rsplit_once(':') {
            // The colons of an address in brackets are its own.
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| bad("its port is no number"))?)
            }
            _ => (authority, HTTP_PORT),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if bare.is_empty() {
            return Err(bad("the host is missing"));
        }
        Ok(Place::Tcp { host: bare.to_owned(), port })
    }

    fn host(&self) -> String {
        match self {
            Place::Unix(_) => "localhost".into(),
            Place::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Place::Tcp { host, port } => format!("{host}:{port}"),
        }
    }

    fn url(&self) -> String {
        match self {
            Place::Unix(path) => format!("unix:{}", path.display()),
            Place::Tcp { .. } => format!("http://{}", self.host()),
        }
    }

    fn connect(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Place::Unix(path) => Ok(Box::new(UnixStream::connect(path)?)),
            Place::Tcp { host, port } => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            return Ok(Box::new(stream));
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }
}

/// A request, as it is sent.
struct Request<'a> {
    method: &'static str,
    path: &'a str,
    body: Option<Vec<u8>>,
    patience: Duration,
}

/// What has come of sending a request.
enum Sent {
    /// It did not leave.
    Unreached(io::Error),
    /// It may have been carried out.
    NoAnswer(io::Error),
    /// An answer.
    Answered(Answer),
}

/// An answer.
#[derive(Debug)]
struct Answer {
    status: u16,
    location: Option<String>,
    /// The manager asks to come again, because nobody leads.
    retry: bool,
    body: Vec<u8>,
}

impl Answer {
    /// The answer in `bytes`, to which nothing is added any more.
    fn parse(bytes: &[u8]) -> Option<Answer> {
        const END: &[u8] = b"\r\n\r\n";
        let end = bytes.windows(END.len()).position(|four| four == END)?;
        let mut lines = std::str::from_utf8(&bytes[..end]).ok()?.split("\r\n");
        let mut first = lines.next()?.splitn(3, ' ');
        let version = first.next()?;
        let status = first.next()?.parse().ok().filter(|_| version.starts_with("HTTP/1."))?;
        let mut answer =
            Answer { status, location: None, retry: false, body: bytes[end + END.len()..].to_vec() };
        for line in lines {
            let (name, value) = line.split_once(':')?;
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "location" => answer.location = Some(value.to_owned()),
                "retry-after" => answer.retry = true,
                "content-length" if value.parse() != Ok(answer.body.len()) => return None,
                // Not to be sent to a client of HTTP/1.0.
                "transfer-encoding" => return None,
                _ => {}
            }
        }
        Some(answer)
    }
}

/// Sends a request as HTTP/1.0: the connection's end is the answer's.
fn send(place: &Place, request: &Request<'_>) -> Sent {
    let until = Instant::now() + request.patience;
    let mut stream = match place.connect() {
        Ok(stream) => stream,
        Err(error) => return Sent::Unreached(error),
    };
    let Request { method, path, body, .. } = request;
    let body = body.as_deref().unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: {}\r\nAccept: application/json\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        place.host(),
        body.len()
    );
    let mut exchange = || -> io::Result<Vec<u8>> {
        stream.set_patience(request.patience.max(Duration::from_millis(1)))?;
        stream.write_all(&[head.as_bytes(), body].concat())?;
        let (mut answer, mut part) = (Vec::new(), [0; 4096]);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
            }
            stream.set_patience(left)?;
            match stream.read(&mut part) {
                Ok(0) => return Ok(answer),
                Ok(bytes) if (answer.len() + bytes) as u64 > ANSWER_MAX => {
                    return Err(io::Error::other("the answer is too long"));
                }
                Ok(bytes) => answer.extend_from_slice(&part[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
                }
                Err(error) => return Err(error),
            }
        }
    };
    match exchange() {
        Ok(bytes) => match Answer::parse(&bytes) {
            Some(answer) => Sent::Answered(answer),
            None => Sent::NoAnswer(io::Error::other("what came is no answer of a manager")),
        },
        Err(error) => Sent::NoAnswer(error),
    }
}

/// A manager, or several of which one leads.
#[derive(Debug)]
pub struct Manager {
    /// As given.
    urls: String,
    places: Vec<Place>,
    /// Which of them answered last.
    current: Cell<usize>,
}

impl Manager {
    /// The manager at `urls`: `http://HOST:PORT` or `unix:/path/to/socket`, several separated by commas.
    ///
    /// # Errors
    /// [`ManagerError::BadUrl`].
    pub fn new(urls: &str) -> Result<Manager, ManagerError> {
        let places = urls.split(',').map(|url| Place::parse(url.trim())).collect::<Result<_, _>>()?;
        Ok(Manager { urls: urls.to_owned(), places, current: Cell::new(0) })
    }

    /// Registers a compute node.
    ///
    /// # Errors
    /// Any [`ManagerError`].
    pub fn register(&self, node: &RegisterComputeNode) -> Result<ComputeNodeRegistered, ManagerError> {
        let asked = format!("register compute node {} ({})", node.name, node.cn_id);
        self.call("POST", "/v1/compute-nodes", &asked, Some(node), ANSWER_TIMEOUT)
    }

    /// Proves that the compute node lives, and waits for a change, for `patience` at most.
    ///
    /// # Errors
    /// Any [`ManagerError`].
    pub fn sync(
        &self,
        cn: CnId,
        sync: &ComputeNodeSync,
        patience: Duration,
    ) -> Result<ComputeNodeSynced, ManagerError> {
        let path = format!("/v1/compute-nodes/{cn}/sync");
        self.call("POST", &path, &format!("sync compute node {cn}"), Some(sync), patience)
    }

    /// One region.
    ///
    /// # Errors
    /// Any [`ManagerError`].
    pub fn region(&self, name: &Name) -> Result<Region, ManagerError> {
        let (path, asked) = (format!("/v1/regions/{name}"), format!("show region {name}"));
        self.call("GET", &path, &asked, None::<&()>, ANSWER_TIMEOUT)
    }

    /// Creates a region.
    ///
    /// # Errors
    /// Any [`ManagerError`].
    pub fn create_region(&self, create: &CreateRegion) -> Result<Region, ManagerError> {
        let asked = format!("create region {} of {} for {}", create.name, create.size, create.owner);
        let patience = ANSWER_TIMEOUT.saturating_add(Duration::from_millis(create.wait_ms));
        self.call("POST", "/v1/regions", &asked, Some(create), patience)
    }

    /// Destroys a region.
    ///
    /// # Errors
    /// Any [`ManagerError`].
    pub fn destroy_region(&self, name: &Name, options: DestroyRegion) -> Result<(), ManagerError> {
        let DestroyRegion { force, wait_ms } = options;
        let path = format!("/v1/regions/{name}?force={force}&wait_ms={wait_ms}");
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
    ) -> Result<T, ManagerError> {
        let answer = self.exchange(method, path, asked, body, patience)?;
        serde_json::from_slice(&answer).map_err(|error| self.protocol(asked, error.to_string()))
    }

    fn protocol(&self, asked: &str, reason: String) -> ManagerError {
        ManagerError::Protocol { url: self.urls.clone(), asked: asked.to_owned(), reason }
    }

    /// Sends a request to whoever leads; the body of a success.
    fn exchange(
        &self,
        method: &'static str,
        path: &str,
        asked: &str,
        body: Option<&impl Serialize>,
        patience: Duration,
    ) -> Result<Vec<u8>, ManagerError> {
        let body = body.map(serde_json::to_vec).transpose();
        let body = body.map_err(|error| self.protocol(asked, error.to_string()))?;
        let request = Request { method, path, body, patience };
        let (place, answer) = self.ask(&request).map_err(|reason| ManagerError::Unreachable {
            url: self.urls.clone(),
            asked: asked.to_owned(),
            reason,
        })?;
        if (200..300).contains(&answer.status) {
            return Ok(answer.body);
        }
        Err(match serde_json::from_slice(&answer.body) {
            Ok(body) => {
                ManagerError::Refused { url: place.url(), asked: asked.to_owned(), body: Box::new(body) }
            }
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
            match send(&place, request) {
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
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn urls_are_places() {
        let tcp = |host: &str, port| Place::Tcp { host: host.into(), port };
        for (url, place) in [
            ("http://127.0.0.1:7440", tcp("127.0.0.1", 7440)),
            ("http://manager/", tcp("manager", 80)),
            ("http://[::1]:7440", tcp("::1", 7440)),
            ("http://[::1]", tcp("::1", 80)),
            ("unix:/run/gmm.sock", Place::Unix("/run/gmm.sock".into())),
        ] {
            assert_eq!(Place::parse(url).unwrap(), place, "{url}");
        }
        assert_eq!(Place::parse("http://[::1]:7440").unwrap().host(), "[::1]:7440");
        for url in ["", "unix:", "https://a:1", "http://", "http://a:b", "http://a/b", "http://u@a"] {
            assert!(matches!(Place::parse(url), Err(ManagerError::BadUrl { .. })), "{url}");
        }
    }

    #[test]
    fn answers_are_read_whole_or_not_at_all() {
        let parse = |text: &str| Answer::parse(text.as_bytes());
        let answer = parse("HTTP/1.0 200 OK\r\nContent-Length: 2\r\nX: y\r\n\r\n{}").unwrap();
        assert_eq!((answer.status, answer.body.as_slice(), answer.retry), (200, &b"{}"[..], false));
        let elsewhere = parse("HTTP/1.1 307 T\r\nLocation: http://a/b\r\n\r\n").unwrap();
        assert_eq!(elsewhere.location.as_deref(), Some("http://a/b"));
        assert!(parse("HTTP/1.1 503 S\r\nRetry-After: 1\r\n\r\n").unwrap().retry);
        for cut in [
            "",
            "HTTP/1.0 200 OK\r\n",
            "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n{}",
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 x y\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert!(parse(cut).is_none(), "{cut:?}");
        }
    }

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
            manager.destroy_region(&Name::new("r").unwrap(), DestroyRegion { force: true, wait_ms: 1 })
        };
        let (leader, served) = serve(vec!["HTTP/1.1 204 No Content\r\n\r\n".into()]);
        let moved = format!("HTTP/1.1 307 T\r\nLocation: {leader}/v1/regions/r?force=true&wait_ms=1\r\n\r\n");
        let (follower, _) = serve(vec![moved]);
        // Port 9 of this machine: nobody answers.
        let manager = Manager::new(&format!("http://127.0.0.1:9, {follower}")).unwrap();
        destroy(&manager).unwrap();
        let asked = served.join().unwrap();
        assert!(asked[0].starts_with("DELETE /v1/regions/r?force=true&wait_ms=1 HTTP/1.0\r\n"), "{asked:?}");

        let (leaderless, _) = serve(vec![
            "HTTP/1.1 503 S\r\nRetry-After: 1\r\n\r\n{\"error\":\"nobody leads\",\"hint\":\"wait\",\"code\":\"unavailable\"}".into(),
        ]);
        let error = destroy(&Manager::new(&leaderless).unwrap()).unwrap_err().to_string();
        assert!(error.contains("refused to destroy region r: nobody leads; wait"), "{error}");
        let error = destroy(&Manager::new("http://127.0.0.1:9").unwrap()).unwrap_err().to_string();
        assert!(
            error.contains("unreachable at http://127.0.0.1:9") && error.contains("gmm serve"),
            "{error}"
        );
    }

    #[test]
    fn silence_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let manager = Manager::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
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
