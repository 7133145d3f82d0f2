//! Client of the manager's REST interface with typed calls, for memory nodes, compute nodes, the command line and the
//! benchmark. A call is one HTTP request over a pooled connection; the types of [`crate::api`] convert JSON. If there
//! are several managers, the request goes to the leader. A failed call that may have changed something is not repeated
//! here, because only the caller can decide whether to repeat it.
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
mod backup;
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
use crate::client_error::Unanswered;
pub use crate::trust::{Credentials, Identity, IdentityError, TOKEN_VARIABLE};
pub use logical_devices::Unbound;
use managers::{LeaderRequest, Managers};
pub use managers::{Patience, Pause};
pub use regions::Destroyed;

use crate::api::ErrorBody;

/// URL of a manager on this machine at its default port.
pub const URL_DEFAULT: &str = "https://127.0.0.1:7440";

/// Client of one manager, or of several of which one leads. Cheap to clone; clones share connections and the leader's
/// URL.
#[derive(Debug, Clone)]
pub struct Client {
    managers: Arc<Managers>,
}

impl Client {
    /// Returns a client with the [credentials of this process](Credentials::of_process), for the manager at `url`:
    /// `https://HOST:PORT`, `unix:/path/to/socket`, or `http://HOST:PORT` for a manager without access control. Several
    /// URLs, separated by commas, are those of managers that share a store. The first call connects.
    ///
    /// # Errors
    /// [`ClientError::BadUrl`] if `url` is none of these.
    pub fn new(url: &str) -> Result<Self, ClientError> {
        Self::with(url, Credentials::of_process())
    }

    /// Returns a client as from [`new`](Self::new), with `credentials` in place of those of this process.
    ///
    /// # Errors
    /// [`ClientError::BadUrl`] if `url` is none of these.
    pub fn with(url: &str, credentials: Credentials) -> Result<Self, ClientError> {
        Ok(Self { managers: Arc::new(Managers::new(url, credentials)?) })
    }

    /// Returns a client as from [`with`](Self::with). While no manager leads, requests are repeated after the
    /// pauses of `patience`.
    ///
    /// # Errors
    /// [`ClientError::BadUrl`] if `url` is none of these.
    pub fn patient(
        url: &str,
        credentials: Credentials,
        patience: Box<dyn Patience>,
    ) -> Result<Self, ClientError> {
        Ok(Self { managers: Arc::new(Managers::new(url, credentials)?.with_patience(patience)) })
    }

    /// Returns the URL or URLs with which this client was created, separated by commas.
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

    /// Sends one request and returns the status and body of a successful answer.
    async fn exchange(
        &self,
        method: Method,
        path: &str,
        asked: &str,
        body: Option<&impl Serialize>,
        wait_ms: u64,
    ) -> Result<(StatusCode, Vec<u8>), ClientError> {
        let answer = self.managers.ask(&LeaderRequest { method, path, body, wait_ms }).await;
        let answer = answer.map_err(|unanswered| unanswered.of_call(self.url(), asked))?;
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

/// Returns the HTTP client builder for this workspace: without a proxy, and without trust anchors for TLS.
pub fn http() -> reqwest::ClientBuilder {
    Credentials::default().http()
}

/// Returns the text of the innermost cause of an error: reqwest's own text repeats the URL, while the
/// innermost cause names the failure.
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
