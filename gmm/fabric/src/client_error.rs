//! Why a call to the manager failed, whichever client made it: that of this crate, or the small one of programs with a link
//! of their own, which bring no HTTP library.

use crate::api::{ErrorBody, ErrorCode};

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
