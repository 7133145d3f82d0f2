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

pub use crate::client_error::ClientError;
pub use crate::trust::{Credentials, Identity, IdentityError, TOKEN_VARIABLE};
pub use logical_devices::Unbound;
use managers::{Managers, Request};
pub use regions::Destroyed;

use crate::api::ErrorBody;

/// Where a manager listens unless told otherwise.
pub const URL_DEFAULT: &str = "https://127.0.0.1:7440";

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
