//! The manager's REST interface as typed calls, for memory nodes, compute nodes, the command line and the benchmark.
//! A call is one HTTP request over a pooled connection; the JSON goes through the types of [`crate::api`]. Nothing is
//! retried here: who calls knows whether and how often.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use cxloe_gmm::{api::CreateRegion, client::Client, model::{CnId, Name}};
//!
//! let manager = Client::new("http://127.0.0.1:7440")?;
//! let owner: CnId = "02:00:00:00:00:01".parse()?;
//! let region = manager.create_region(&CreateRegion::new(Name::new("scratch")?, 1 << 30, owner)).await?;
//! println!("{} is {}", region.name, region.state);
//! # Ok(()) }
//! ```

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{
    ComputeNodeRegistered, ComputeNodeSync, ComputeNodeSynced, CreateRegion, DestroyRegion, ErrorBody,
    ErrorCode, Events, EventsQuery, ManagerHealth, MemoryNodeRegistered, MemoryNodeStatus, MemoryNodeSync,
    MemoryNodeSynced, RegisterComputeNode, RegisterMemoryNode, ResetRegion,
};
use crate::model::{CnId, ComputeNode, Name, Region};

/// Where a manager listens unless told otherwise.
pub const URL_DEFAULT: &str = "http://127.0.0.1:7440";

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an answer may take beyond the time the request asks the manager to wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a call to the manager failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address of the manager cannot be used.
    #[error("{url:?} is not the URL of a manager ({reason}); write http://HOST:PORT or unix:/path/to/socket")]
    BadUrl {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No answer: nobody listens there, the network is down, or the answer took too long.
    #[error("manager unreachable at {url}, asked to {asked}: {reason}; is `gmm serve` running there?")]
    Unreachable {
        /// The manager's URL.
        url: String,
        /// What was asked.
        asked: String,
        /// What happened, innermost cause first.
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
        body: ErrorBody,
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

impl ClientError {
    /// The manager's reason, if it gave one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { body, .. } => Some(body.code),
            _ => None,
        }
    }
}

/// What became of a region to be destroyed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destroyed {
    /// It is gone, its memory is zeroed and free.
    Gone,
    /// Memory nodes have yet to confirm; the manager goes on without further calls.
    Draining(Box<Region>),
}

/// A manager, as seen from another process. Cheap to clone; clones share connections.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    /// What people are shown.
    url: String,
    /// What requests start with.
    base: String,
}

impl Client {
    /// A client for the manager at `url`: `http://HOST:PORT` or `unix:/path/to/socket`. Connects with the first call.
    ///
    /// # Errors
    /// [`ClientError::BadUrl`] when `url` is neither.
    pub fn new(url: &str) -> Result<Self, ClientError> {
        let bad = |reason: String| ClientError::BadUrl { url: url.to_owned(), reason };
        let builder =
            reqwest::Client::builder().no_proxy().connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
        let (builder, base) = match url.strip_prefix("unix:") {
            Some("") => return Err(bad("the path of the socket is missing".to_owned())),
            Some(path) => {
                (builder.unix_socket(std::path::PathBuf::from(path)), "http://localhost".to_owned())
            }
            None => {
                let parsed = reqwest::Url::parse(url).map_err(|e| bad(e.to_string()))?;
                if parsed.scheme() != "http" || parsed.host_str().is_none() {
                    return Err(bad("it does not start with http://HOST".to_owned()));
                }
                (builder, url.trim_end_matches('/').to_owned())
            }
        };
        let http = builder.build().map_err(|e| bad(causes(&e)))?;
        Ok(Self { http, url: url.to_owned(), base })
    }

    /// The URL this client was made for.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Registers a memory node, or registers it again after a restart.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `name_in_use` while another daemon under this name is there, `stale_manager`
    /// when the manager has not come as far as `seen`, `bad_request` when a value is out of range.
    pub async fn register_memory_node(
        &self,
        node: &RegisterMemoryNode,
    ) -> Result<MemoryNodeRegistered, ClientError> {
        let asked = format!("register memory node {}", node.name);
        self.call(Method::POST, "/v1/memory-nodes", &asked, Some(node), 0).await
    }

    /// Reports results, proves that the memory node lives, and waits up to `sync.wait_ms` for commands.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_registered` when another registration took over or the manager does not
    /// know the node: register again.
    pub async fn sync_memory_node(
        &self,
        name: &Name,
        sync: &MemoryNodeSync,
    ) -> Result<MemoryNodeSynced, ClientError> {
        let asked = format!("sync memory node {name}");
        self.call(Method::POST, &format!("/v1/memory-nodes/{name}/sync"), &asked, Some(sync), sync.wait_ms)
            .await
    }

    /// Every memory node the manager knows, by name.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn memory_nodes(&self) -> Result<Vec<MemoryNodeStatus>, ClientError> {
        self.get("/v1/memory-nodes", "list memory nodes").await
    }

    /// Registers a compute node, or registers it again after a restart.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `name_in_use` while another agent with this CN id is there or another compute
    /// node has the name.
    pub async fn register_compute_node(
        &self,
        node: &RegisterComputeNode,
    ) -> Result<ComputeNodeRegistered, ClientError> {
        let asked = format!("register compute node {} ({})", node.name, node.cn_id);
        self.call(Method::POST, "/v1/compute-nodes", &asked, Some(node), 0).await
    }

    /// Proves that the compute node lives and waits up to `sync.wait_ms` for a change to its regions.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_registered` when another registration took over or the manager does not
    /// know the node: register again.
    pub async fn sync_compute_node(
        &self,
        cn: CnId,
        sync: &ComputeNodeSync,
    ) -> Result<ComputeNodeSynced, ClientError> {
        let asked = format!("sync compute node {cn}");
        self.call(Method::POST, &format!("/v1/compute-nodes/{cn}/sync"), &asked, Some(sync), sync.wait_ms)
            .await
    }

    /// Every compute node the manager knows, by CN id.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn compute_nodes(&self) -> Result<Vec<ComputeNode>, ClientError> {
        self.get("/v1/compute-nodes", "list compute nodes").await
    }

    /// Creates a region and waits up to `create.wait_ms` for its memory nodes. A region still `creating` when the time
    /// is over is returned as it is; it becomes `active` without further calls.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `no_space`, `name_in_use`, `not_found` (owner), `bad_request` (size, ways,
    /// granularity), `node_refused` (a memory node could not map it; the region is taken down again).
    pub async fn create_region(&self, create: &CreateRegion) -> Result<Region, ClientError> {
        let asked = format!("create region {} of {} for {}", create.name, create.size, create.owner);
        self.call(Method::POST, "/v1/regions", &asked, Some(create), create.wait_ms).await
    }

    /// Every region, by name.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn regions(&self) -> Result<Vec<Region>, ClientError> {
        self.get("/v1/regions", "list regions").await
    }

    /// One region.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found` when there is none of this name.
    pub async fn region(&self, name: &Name) -> Result<Region, ClientError> {
        self.get(&format!("/v1/regions/{name}"), &format!("show region {name}")).await
    }

    /// Destroys a region and waits up to `options.wait_ms` for its memory to be zeroed.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, or with `region_in_use` when the owner's agent is there and
    /// `options.force` is not set.
    pub async fn destroy_region(
        &self,
        name: &Name,
        options: DestroyRegion,
    ) -> Result<Destroyed, ClientError> {
        let asked = format!("destroy region {name}");
        let path = format!("/v1/regions/{name}?force={}&wait_ms={}", options.force, options.wait_ms);
        let (status, body) =
            self.exchange(Method::DELETE, &path, &asked, None::<&()>, options.wait_ms).await?;
        if status == StatusCode::NO_CONTENT {
            return Ok(Destroyed::Gone);
        }
        self.parse(&asked, &body).map(|region| Destroyed::Draining(Box::new(region)))
    }

    /// Maps a `lost` region again, empty, and waits up to `options.wait_ms` for its memory nodes. This accepts that what
    /// the lost legs held is gone.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, or with `wrong_state` when the region is not lost or a memory node
    /// of it is unreachable.
    pub async fn reset_region(&self, name: &Name, options: ResetRegion) -> Result<Region, ClientError> {
        let path = format!("/v1/regions/{name}/reset?wait_ms={}", options.wait_ms);
        self.call(Method::POST, &path, &format!("reset region {name}"), None::<&()>, options.wait_ms).await
    }

    /// Events after `query.after`, waiting up to `query.wait_ms` for the first.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn events(&self, query: EventsQuery) -> Result<Events, ClientError> {
        let limit = query.limit.map(|limit| format!("&limit={limit}")).unwrap_or_default();
        let path = format!("/v1/events?after={}&wait_ms={}{limit}", query.after, query.wait_ms);
        self.call(Method::GET, &path, "read events", None::<&()>, query.wait_ms).await
    }

    /// Whether the manager is well, and how much it looks after.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn health(&self) -> Result<ManagerHealth, ClientError> {
        self.get("/v1/health", "tell its health").await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, asked: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, asked, None::<&()>, 0).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        asked: &str,
        body: Option<&impl Serialize>,
        wait_ms: u64,
    ) -> Result<T, ClientError> {
        let (_, body) = self.exchange(method, path, asked, body, wait_ms).await?;
        self.parse(asked, &body)
    }

    /// Sends one request and returns status and body of a success.
    async fn exchange(
        &self,
        method: Method,
        path: &str,
        asked: &str,
        body: Option<&impl Serialize>,
        wait_ms: u64,
    ) -> Result<(StatusCode, Vec<u8>), ClientError> {
        let unreachable = |error: reqwest::Error| ClientError::Unreachable {
            url: self.url.clone(),
            asked: asked.to_owned(),
            reason: causes(&error),
        };
        let timeout = ANSWER_TIMEOUT.saturating_add(Duration::from_millis(wait_ms));
        let mut request = self.http.request(method, format!("{}{path}", self.base)).timeout(timeout);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let body = response.bytes().await.map_err(unreachable)?.to_vec();
        if status.is_success() {
            return Ok((status, body));
        }
        Err(match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(body) => ClientError::Refused { url: self.url.clone(), asked: asked.to_owned(), body },
            Err(_) => self.protocol(asked, format!("status {status} without an error body")),
        })
    }

    fn parse<T: DeserializeOwned>(&self, asked: &str, body: &[u8]) -> Result<T, ClientError> {
        serde_json::from_slice(body).map_err(|error| self.protocol(asked, error.to_string()))
    }

    fn protocol(&self, asked: &str, reason: String) -> ClientError {
        ClientError::Protocol { url: self.url.clone(), asked: asked.to_owned(), reason }
    }
}

/// The innermost cause of an error: reqwest's own text names the URL once more, what lies beneath says what happened.
fn causes(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
