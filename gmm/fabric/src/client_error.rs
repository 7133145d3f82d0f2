//! Errors of calls to the manager. They are used by the client of this crate, and by that of `cxloe-port`,
//! whose programs reach memory nodes by a link of their own.

use crate::api::{ErrorBody, ErrorCode};

/// Error of a call to the manager. `url` is the URL of the manager, or several separated by commas; `asked`
/// is the request, as words that follow "asked to"; `reason` begins with the innermost cause.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(
        "{url:?} is not the URL of a manager ({reason}); write https://HOST:PORT or unix:/path/to/socket, several separated by commas"
    )]
    BadUrl {
        url: String,
        /// Defect of the URL, as text.
        reason: String,
    },
    /// No process listens at the URL, the network is down, or the answer took too long.
    #[error("manager unreachable at {url}, asked to {asked}: {reason}; is `gmm serve` running there?")]
    Unreachable { url: String, asked: String, reason: String },
    /// The owner and mode of the manager's socket exclude this user.
    #[error(
        "this user may not use the manager at {url}, asked to {asked}: become a member of the group that owns the socket (`ls -l`), run this as root, or name the manager's https:// URL and log in (`gmm login`)"
    )]
    NotPermitted { url: String, asked: String },
    /// The request was sent, and no answer came, so the request may have been carried out.
    #[error(
        "the manager at {url} was asked to {asked}, and its answer did not come ({reason}): it may have been done; look whether it was before you ask again"
    )]
    Unanswered { url: String, asked: String, reason: String },
    /// The URL begins with http://, and the peer uses TLS.
    #[error(
        "the manager at {url}, asked to {asked}, uses TLS: write https:// instead of http://, which is for a manager that was started with --insecure"
    )]
    Tls { url: String, asked: String },
    /// The URL begins with https://, and the peer uses no TLS.
    #[error(
        "the manager at {url}, asked to {asked}, uses no TLS: if it was started with --insecure, write http:// instead of https://"
    )]
    Plain { url: String, asked: String },
    #[error("manager at {url} refused to {asked}: {}; {}", body.error, body.hint)]
    Refused { url: String, asked: String, body: ErrorBody },
    /// The peer is no manager, or one of another version.
    #[error(
        "{url} answered a request to {asked} with what no manager of this version sends ({reason}); check the URL and both versions"
    )]
    Protocol {
        url: String,
        asked: String,
        /// Defect of the answer.
        reason: String,
    },
}

/// Reason why no manager has answered a call, before the text that names the call is added.
#[derive(Debug)]
pub enum Unanswered {
    /// Any reason other than those below, as text.
    Because(String),
    /// A request that would change something was sent, and no answer came; the value is the reason, as text.
    Sent(String),
    /// The manager at this URL expects TLS; the request was plain HTTP.
    Tls(String),
    /// The manager at this URL uses no TLS; the request was HTTPS.
    Plain(String),
    /// This user may not connect to the socket at this URL.
    NotPermitted(String),
}

impl Unanswered {
    /// Returns the error of the call `asked` to the managers at `urls`.
    pub fn of_call(self, urls: &str, asked: &str) -> ClientError {
        let asked = asked.to_owned();
        match self {
            Self::Because(reason) => ClientError::Unreachable { url: urls.to_owned(), asked, reason },
            Self::Sent(reason) => ClientError::Unanswered { url: urls.to_owned(), asked, reason },
            Self::Tls(url) => ClientError::Tls { url, asked },
            Self::Plain(url) => ClientError::Plain { url, asked },
            Self::NotPermitted(url) => ClientError::NotPermitted { url, asked },
        }
    }

    /// Returns true if `reason`, the innermost cause of a failed exchange over TLS, shows that the peer uses
    /// no TLS.
    pub fn is_without_tls(reason: &str) -> bool {
        // `rustls::InvalidMessage`: the answer is no TLS record.
        reason.contains("InvalidContentType")
    }
}

impl ClientError {
    /// Returns the manager's error code; `None` if no manager answered with one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { body, .. } => Some(body.code),
            _ => None,
        }
    }

    /// Returns true if a retry may succeed: no manager answered, or none leads at the moment.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. } | Self::NotPermitted { .. } | Self::Tls { .. } | Self::Plain { .. }
        ) || self.code() == Some(ErrorCode::Unavailable)
            || self.may_be_done()
    }

    /// Returns true if the request may or may not have been carried out.
    pub fn may_be_done(&self) -> bool {
        matches!(self, Self::Unanswered { .. }) || self.code() == Some(ErrorCode::MayBeDone)
    }
}
