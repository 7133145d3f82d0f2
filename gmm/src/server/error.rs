//! Failures as responses of the REST interface: a JSON body with the failure and the remedy, and the HTTP status of
//! that kind of failure.

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::core::CoreError;
use cxloe_fabric::api::{ErrorBody, ErrorCode};
use cxloe_gmm_core::manager::ManagerError;
use cxloe_gmm_core::rights::Denied;

/// Response to a request that cannot be carried out.
#[derive(Debug)]
pub struct ApiError(pub ErrorBody);

impl ApiError {
    /// A failure of kind `code`; `error` is the message, and `hint` the remedy.
    pub fn new(code: ErrorCode, error: impl Into<String>, hint: impl Into<String>) -> Self {
        Self(ErrorBody { error: error.into(), code, hint: hint.into() })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self.0)).into_response()
    }
}

impl From<CoreError> for ApiError {
    fn from(error: CoreError) -> Self {
        match error {
            CoreError::Manager(error) => error.into(),
            CoreError::Denied(denied) => denied.into(),
            CoreError::Unwritable(reason) => ManagerError::ReadOnly(reason).into(),
            other => Self::new(ErrorCode::Unavailable, other.to_string(), "ask again in a moment"),
        }
    }
}

impl From<Denied> for ApiError {
    fn from(denied: Denied) -> Self {
        Self::new(denied.code, denied.error, denied.hint)
    }
}

impl From<ManagerError> for ApiError {
    fn from(error: ManagerError) -> Self {
        Self::new(error.code(), error.to_string(), error.hint())
    }
}

impl From<JsonRejection> for ApiError {
    fn from(rejection: JsonRejection) -> Self {
        let too_large = rejection.status() == StatusCode::PAYLOAD_TOO_LARGE;
        let code = if too_large { ErrorCode::TooLarge } else { ErrorCode::BadRequest };
        Self::new(
            code,
            rejection.body_text(),
            "send JSON with Content-Type: application/json, as the interface describes it",
        )
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(ErrorCode::BadRequest, rejection.body_text(), "correct the part of the URL after '?'")
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        Self::new(ErrorCode::BadRequest, rejection.body_text(), "correct the name or CN id in the URL")
    }
}
