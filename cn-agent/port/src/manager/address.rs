//! Address of a manager, and sending of one request to it.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cxloe_fabric::{ClientError, Unanswered};
use rustls::ClientConfig;
use ureq::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use ureq::http::{Request, Response, Uri};
use ureq::{Agent, AsSendBody, Body, Error};

use super::socket::{Sockets, unreached};

/// Longest answer in bytes: that for the largest possible region.
const ANSWER_MAX: u64 = 64 << 20;
/// Content type of all requests and answers.
const JSON: &str = "application/json";

/// Address of one manager: a Unix socket, plain HTTP, or HTTPS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagerAddress {
    /// URL of the manager, for messages.
    pub url: String,
    /// Path of the manager's Unix socket, if the address is one.
    unix: Option<PathBuf>,
    tls: bool,
}

/// One HTTP request to a manager.
pub struct Call {
    pub method: &'static str,
    /// Path and query of the URL.
    pub path: String,
    /// Body in JSON, if any.
    pub body: Option<Vec<u8>>,
    /// Longest wait for the answer.
    pub wait_limit: Duration,
}

pub struct Failure {
    /// Reason of the failure, with the URL.
    pub reason: Unanswered,
    /// Whether the request was sent, so that it may have been carried out.
    pub is_sent: bool,
}

impl ManagerAddress {
    /// Parses the URL of one manager.
    ///
    /// # Errors
    /// [`ClientError::BadUrl`].
    pub fn parse(url: &str) -> Result<ManagerAddress, ClientError> {
        let bad = |reason: &str| ClientError::BadUrl { url: url.to_owned(), reason: reason.to_owned() };
        if let Some(path) = url.strip_prefix("unix:") {
            return match path {
                "" => Err(bad("the path of the socket is missing")),
                path => Ok(ManagerAddress { url: url.to_owned(), unix: Some(path.into()), tls: false }),
            };
        }
        if !url.starts_with("https://") && !url.starts_with("http://") {
            return Err(bad("it does not start with https://HOST"));
        }
        let uri: Uri = url.parse().map_err(|_| bad("there is no host, or its port is no number"))?;
        let (scheme, host) = (uri.scheme_str().unwrap_or_default(), uri.host().unwrap_or_default());
        let authority = uri.port_u16().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        if uri.path() != "/" || uri.query().is_some() || uri.authority().is_none_or(|all| *all != authority) {
            return Err(bad("there is more than a host and a port"));
        }
        Ok(ManagerAddress { url: format!("{scheme}://{authority}"), unix: None, tls: scheme == "https" })
    }

    /// Whether the connection is private (TLS, or a Unix socket), so that a token may be sent.
    pub fn is_private(&self) -> bool {
        self.tls || self.unix.is_some()
    }

    /// Path of the manager's Unix socket, if the address is one.
    pub fn unix(&self) -> Option<&PathBuf> {
        self.unix.as_ref()
    }

    /// Sends a request by `agent`, which must have been made for this kind of address.
    ///
    /// # Errors
    /// [`Failure`] if there is no answer.
    pub fn send(
        &self,
        agent: &Agent,
        call: &Call,
        token: Option<&str>,
    ) -> Result<Response<Vec<u8>>, Failure> {
        self.answer(agent, call, token).map_err(|error| {
            let cause = unreached(&error);
            let text = match cause.unwrap_or(&error) {
                Error::Timeout(_) => "no answer in time".to_owned(),
                Error::Io(error) => error.to_string(),
                error => error.to_string(),
            };
            let (reason, is_sent) = match error {
                Error::Tls(_) => (Unanswered::Tls(self.url.clone()), false),
                _ if self.unix.is_some() && is_denied(cause) => {
                    (Unanswered::NotPermitted(self.url.clone()), false)
                }
                _ if Unanswered::is_without_tls(&text) => (Unanswered::Plain(self.url.clone()), false),
                _ => (Unanswered::Because(format!("{}: {text}", self.url)), cause.is_none()),
            };
            Failure { reason, is_sent }
        })
    }

    fn answer(&self, agent: &Agent, call: &Call, token: Option<&str>) -> Result<Response<Vec<u8>>, Error> {
        let base = if self.unix.is_some() { "http://localhost" } else { &self.url };
        let mut request = Request::builder().method(call.method).uri(format!("{base}{}", call.path));
        request = request.header(ACCEPT, JSON).header(CONTENT_TYPE, JSON);
        if let Some(token) = token.filter(|_| self.is_private()) {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let mut answer = match call.body.as_deref() {
            Some(body) => run(agent, request.body(body)?, call.wait_limit)?,
            None => run(agent, request.body(())?, call.wait_limit)?,
        };
        let body = answer.body_mut().with_config().limit(ANSWER_MAX).read_to_vec()?;
        Ok(answer.map(|_| body))
    }
}

/// Whether the kernel denied this user the connection to the manager's socket.
fn is_denied(cause: Option<&Error>) -> bool {
    matches!(cause, Some(Error::Io(error)) if error.kind() == ErrorKind::PermissionDenied)
}

/// Creates an HTTP agent for managers in the network or, with `unix`, for the manager behind that socket.
/// Each call opens a connection of its own.
pub fn agent(unix: Option<&PathBuf>, tls: &Arc<ClientConfig>) -> Agent {
    let config =
        Agent::config_builder().max_idle_connections(0).max_redirects(0).max_redirects_will_error(false);
    let config = config.http_status_as_error(false).proxy(None).build();
    let sockets = Sockets { unix: unix.cloned(), tls: Arc::clone(tls) };
    Agent::with_parts(config, sockets.clone(), sockets)
}

fn run(
    agent: &Agent,
    request: Request<impl AsSendBody>,
    wait_limit: Duration,
) -> Result<Response<Body>, Error> {
    agent.run(agent.configure_request(request).timeout_global(Some(wait_limit)).build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_places() {
        for (url, written, private) in [
            ("http://127.0.0.1:7440", "http://127.0.0.1:7440", false),
            ("http://manager/", "http://manager", false),
            ("http://[::1]:7440", "http://[::1]:7440", false),
            ("https://manager:7440", "https://manager:7440", true),
            ("https://[::1]", "https://[::1]", true),
            ("unix:/run/gmm.sock", "unix:/run/gmm.sock", true),
        ] {
            let place = ManagerAddress::parse(url).unwrap();
            assert_eq!((place.url.as_str(), place.is_private()), (written, private), "{url}");
        }
        for url in ["", "unix:", "ftp://a:1", "https://", "http://", "http://a:b", "http://a/b", "http://u@a"]
        {
            assert!(matches!(ManagerAddress::parse(url), Err(ClientError::BadUrl { .. })), "{url}");
        }
    }
}
