//! Errors of calls to the manager, for both clients: that of this crate, and that of `cxloe-port` (programs with a link
//! of their own).

use crate::api::{ErrorBody, ErrorCode};

/// Error of a call to the manager.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address of the manager cannot be used.
    #[error(
        "{url:?} is not the URL of a manager ({reason}); write https://HOST:PORT or unix:/path/to/socket, several separated by commas"
    )]
    BadUrl {
        /// The URL as it was given.
        url: String,
        /// The defect of the URL, as text.
        reason: String,
    },
    /// No answer: no process listens there, the network is down, or the answer took too long.
    #[error("manager unreachable at {url}, asked to {asked}: {reason}; is `gmm serve` running there?")]
    Unreachable {
        /// URL of the manager, or of several.
        url: String,
        /// The request, as words that follow "asked to".
        asked: String,
        /// The reasons, innermost cause first.
        reason: String,
    },
    /// This user may not connect to the manager's socket.
    #[error(
        "this user may not use the manager at {url}, asked to {asked}: become a member of the group that owns the socket (`ls -l`), run this as root, or name the manager's https:// URL and log in (`gmm login`)"
    )]
    NotPermitted {
        /// URL of the manager.
        url: String,
        /// The request, as words that follow "asked to".
        asked: String,
    },
    /// The request was sent, and no answer came.
    #[error(
        "the manager at {url} was asked to {asked}, and its answer did not come ({reason}): it may have been done; look whether it was before you ask again"
    )]
    Unanswered {
        /// URL of the manager, or of several.
        url: String,
        /// The request, as words that follow "asked to".
        asked: String,
        /// The reasons, innermost cause first.
        reason: String,
    },
    /// The peer uses TLS, and the URL says plain HTTP.
    #[error(
        "the manager at {url}, asked to {asked}, uses TLS: write https:// instead of http://, which is for a manager that was started with --insecure"
    )]
    Tls {
        /// URL of the manager, or of several.
        url: String,
        /// The request, as words that follow "asked to".
        asked: String,
    },
    /// The peer uses no TLS, and the URL says HTTPS.
    #[error(
        "the manager at {url}, asked to {asked}, uses no TLS: if it was started with --insecure, write http:// instead of https://"
    )]
    Plain {
        /// URL of the manager, or of several.
        url: String,
        /// The request, as words that follow "asked to".
        asked: String,
    },
    /// The manager refused the request, or failed to carry it out.
    #[error("manager at {url} refused to {asked}: {}; {}", body.error, body.hint)]
    Refused {
        /// URL of the manager, or of several.
        url: String,
        /// The request, as words that follow "asked to".
        asked: String,
        /// Body of the manager's answer.
        body: ErrorBody,
    },
    /// The peer is no manager, or one of another version.
    #[error(
        "{url} answered a request to {asked} with what no manager of this version sends ({reason}); check the URL and both versions"
    )]
    Protocol {
        /// URL of the manager, or of several.
        url: String,
        /// The request, as words that follow "asked to".
        asked: String,
        /// The defect of the answer.
        reason: String,
    },
}

/// Reason for which no manager has answered a call.
#[derive(Debug)]
pub enum Unanswered {
    /// Any reason other than those below, as text.
    Because(String),
    /// The request was sent, would change something, and no answer came; the reason as text.
    Sent(String),
    /// The manager at this URL expects TLS; the request was plain HTTP.
    Tls(String),
    /// The manager at this URL uses no TLS; the request was HTTPS.
    Plain(String),
    /// This user may not connect to the socket at this URL.
    NotPermitted(String),
}

impl Unanswered {
    /// Adds the request `asked` and the managers' `urls` to the reason.
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

    /// True if `reason`, the innermost cause of a failed exchange over TLS, shows that the peer uses no TLS.
    pub fn is_without_tls(reason: &str) -> bool {
        // `rustls::InvalidMessage`: the answer is no TLS record.
        reason.contains("InvalidContentType")
    }
}

impl ClientError {
    /// The manager's error code; none if no manager answered with one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { body, .. } => Some(body.code),
            _ => None,
        }
    }

    /// True if a retry may succeed: no manager answered, or none leads at the moment.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. } | Self::NotPermitted { .. } | Self::Tls { .. } | Self::Plain { .. }
        ) || self.code() == Some(ErrorCode::Unavailable)
            || self.may_be_done()
    }

    /// True if the request may have been carried out, and may not have been.
    pub fn may_be_done(&self) -> bool {
        matches!(self, Self::Unanswered { .. }) || self.code() == Some(ErrorCode::MayBeDone)
    }
}
