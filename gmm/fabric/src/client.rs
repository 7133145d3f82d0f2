//! The manager's REST interface as typed calls, for memory nodes, compute nodes, the command line and the benchmark.
//! A call is one HTTP request over a pooled connection; the JSON goes through the types of [`crate::api`]. Where there are
//! several managers, it goes to the one that leads; apart from that nothing is retried here: who calls knows whether and
//! how often.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use cxloe_fabric::{api::CreateRegion, client::Client, model::{CnId, Name}};
//!
//! let manager = Client::new("unix:/run/cxloe-gmm/gmm.sock")?;
//! let owner: CnId = "02:00:00:00:00:01".parse()?;
//! let region = manager.create_region(&CreateRegion::new(Name::new("scratch")?, 1 << 30, owner)).await?;
//! println!("{} is {}", region.name, region.state);
//! # Ok(()) }
//! ```

mod access;
mod compute_nodes;
mod events;
mod lineage;
mod logical_devices;
mod managers;
mod memory_nodes;
mod regions;

use std::sync::Arc;

use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use crate::trust::{Credentials, Identity, IdentityError, TOKEN_VARIABLE};
pub use logical_devices::Unbound;
use managers::{Managers, Request};
pub use regions::Destroyed;

use crate::api::{ErrorBody, ErrorCode};

/// Where a manager listens unless told otherwise.
pub const URL_DEFAULT: &str = "https://127.0.0.1:7440";

/// Why a call to the manager failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address of the manager cannot be used.
    #[error(
        "{url:?} is not the URL of a manager ({reason}); write https://HOST:PORT or unix:/path/to/socket, several separated by commas"
    )]
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

    /// Whether the same call may succeed in a moment: nobody answered, or nobody leads just now.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable { .. }) || self.code() == Some(ErrorCode::Unavailable)
    }
}

/// A manager, or several of which one leads, as seen from another process. Cheap to clone; clones share connections and
/// what they know of the leader.
#[derive(Debug, Clone)]
pub struct Client {
    managers: Arc<Managers>,
}

impl Client {
    /// A client that shows [what this process does](Credentials::of_process), for the manager at `url`: `https://HOST:PORT`, `unix:/path/to/socket`, or
    /// `http://HOST:PORT` for one that asks for no rights; several, separated by commas, are managers that share a store.
    /// Connects with the first call.
    ///
    /// # Errors
    /// [`ClientError::BadUrl`] when `url` is neither.
    pub fn new(url: &str) -> Result<Self, ClientError> {
        Self::with(url, Credentials::of_process())
    }

    /// The same for who has `credentials`.
    ///
    /// # Errors
    /// [`ClientError::BadUrl`] when `url` is neither.
    pub fn with(url: &str, credentials: Credentials) -> Result<Self, ClientError> {
        Ok(Self { managers: Arc::new(Managers::new(url, credentials)?) })
    }

    /// The URL, or URLs, this client was made for.
    pub fn url(&self) -> &str {
        self.managers.urls()
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
        let answer = self.managers.ask(&Request { method, path, body, wait_ms }).await.map_err(|reason| {
            ClientError::Unreachable { url: self.url().to_owned(), asked: asked.to_owned(), reason }
        })?;
        if answer.status.is_success() {
            return Ok((answer.status, answer.body));
        }
        Err(match serde_json::from_slice::<ErrorBody>(&answer.body) {
            Ok(body) => ClientError::Refused { url: answer.url, asked: asked.to_owned(), body },
            Err(_) => self.protocol(asked, format!("status {} without an error body", answer.status)),
        })
    }

    fn parse<T: DeserializeOwned>(&self, asked: &str, body: &[u8]) -> Result<T, ClientError> {
        serde_json::from_slice(body).map_err(|error| self.protocol(asked, error.to_string()))
    }

    fn protocol(&self, asked: &str, reason: String) -> ClientError {
        ClientError::Protocol { url: self.url().to_owned(), asked: asked.to_owned(), reason }
    }
}

/// What HTTP clients of this workspace are built from: no proxy, and TLS that trusts nobody until it is told whom.
pub fn http() -> reqwest::ClientBuilder {
    Credentials::default().http()
}

/// The innermost cause of an error: reqwest's own text names the URL once more, what lies beneath says what happened.
pub fn causes(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
