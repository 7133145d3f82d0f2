//! Limits of request bodies: their size, which depends on the path, and the number of large bodies received at a time,
//! so that no client exhausts the manager's memory.

use std::error::Error;
use std::sync::Arc;

use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http_body_util::LengthLimitError;
use tokio::sync::Semaphore;

use super::error::ApiError;
use cxloe_fabric::api::ErrorCode;
use cxloe_gmm_core::rights::{Caller, CallerRights, Denied};

/// Maximum body of a request from a node, in bytes: the results and counters of a memory node with many commands.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Path of the route that restores backups, whose bodies may be larger.
pub const RESTORE_PATH: &str = "/v1/restore";
/// Maximum body of a request from other callers, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Maximum body of a request from an unknown caller, in bytes: enough to log in.
const STRANGER_BYTES_MAX: u64 = 4 << 10;
/// Size above which a body counts as large, in bytes.
const LARGE_BYTES: u64 = 32 << 10;
/// Maximum number of large bodies received at a time.
const LARGE_MAX: usize = 64;

/// Semaphore that limits the number of large bodies that are received at a time.
#[derive(Debug, Clone)]
pub struct BodyPermits(Arc<Semaphore>);

impl Default for BodyPermits {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LARGE_MAX)))
    }
}

/// Maximum body of a request for this path, in bytes.
fn bytes_max(path: &str) -> usize {
    let of_nodes = ["/sync", "/orphans", "/v1/memory-nodes", "/v1/refused"];
    if of_nodes.iter().any(|end| path.ends_with(end)) { BODY_BYTES_MAX } else { REQUEST_BYTES_MAX }
}

impl BodyPermits {
    /// Receives the body of a request, under a permit if it is large, and returns the request with the body.
    ///
    /// # Errors
    /// The response that refuses the request.
    pub async fn take(&self, request: Request) -> Result<Request, Response> {
        let limit = bytes_max(request.uri().path());
        let hint = request.body().size_hint();
        let stranger = request
            .extensions()
            .get::<Caller>()
            .filter(|caller| matches!(caller.may, CallerRights::Nothing(_)));
        if let Some(stranger) = stranger
            && hint.upper().is_none_or(|upper| upper > STRANGER_BYTES_MAX)
        {
            return Err(ApiError::from(Denied::forbidden(stranger, "")).into_response());
        }
        if request.uri().path() == RESTORE_PATH || hint.upper().is_some_and(|upper| upper <= LARGE_BYTES) {
            // Small bodies need no permit. The handler of a restore receives the backup itself, within a
            // limit of its own, after it has checked the caller's right.
            return Ok(request);
        }
        let too_large = || {
            let error = format!("the body of this request has more than {limit} bytes");
            ApiError::new(ErrorCode::TooLarge, error, "ask for less at a time").into_response()
        };
        if hint.lower() > BODY_BYTES_MAX as u64 {
            return Err(too_large());
        }
        let Ok(_taking) = self.0.try_acquire() else {
            let error = "too many large requests are on their way in";
            return Err(ApiError::new(ErrorCode::Unavailable, error, "ask again in a moment").into_response());
        };
        let (parts, body) = request.into_parts();
        // A body that is slightly too large is received to its end: otherwise the client would see a broken
        // connection instead of the response.
        match to_bytes(body, BODY_BYTES_MAX).await {
            Ok(bytes) if bytes.len() <= limit => Ok(Request::from_parts(parts, Body::from(bytes))),
            Err(error) if !is_too_long(&error) => Err(broken(&error).into_response()),
            _ => Err(too_large()),
        }
    }
}

/// True if the body is too long; false if it broke off or is malformed.
fn is_too_long(error: &axum::Error) -> bool {
    error.source().is_some_and(|source| source.is::<LengthLimitError>())
}

fn broken(error: &axum::Error) -> ApiError {
    let mut cause: &dyn Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let error = format!("the body of this request cannot be read: {cause}");
    ApiError::new(
        ErrorCode::BadRequest,
        error,
        "send as many bytes as the request says, in chunks that are whole",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(path: &str, bytes: usize) -> Request {
        Request::post(path).body(Body::from(vec![b'x'; bytes])).unwrap()
    }

    #[tokio::test]
    async fn nodes_have_larger_body_limits_and_all_are_bounded() {
        let bodies = BodyPermits::default();
        let sync = "/v1/memory-nodes/mn0/sync";
        for (path, bytes, status) in [
            (sync, 0, None),
            (sync, BODY_BYTES_MAX, None),
            (sync, BODY_BYTES_MAX + 1, Some(413)),
            ("/v1/memory-nodes", BODY_BYTES_MAX, None),
            ("/v1/regions", REQUEST_BYTES_MAX, None),
            ("/v1/regions", REQUEST_BYTES_MAX + 1, Some(413)),
            ("/v1/regions", 2 << 20, Some(413)),
        ] {
            let taken = bodies.take(post(path, bytes)).await;
            assert_eq!(taken.err().map(|refused| refused.status().as_u16()), status, "{path} {bytes}");
        }
    }

    #[tokio::test]
    async fn large_bodies_wait_outside_when_there_are_many_and_small_ones_do_not() {
        let bodies = BodyPermits::default();
        let held = Arc::clone(&bodies.0).acquire_many_owned(LARGE_MAX as u32).await.unwrap();
        let large = bodies.take(post("/v1/x/sync", 100_000)).await;
        assert_eq!(large.unwrap_err().status().as_u16(), 503);
        assert!(bodies.take(post("/v1/x/sync", 30_000)).await.is_ok());
        drop(held);
        assert!(bodies.take(post("/v1/x/sync", 100_000)).await.is_ok());
        assert_eq!(bodies.0.available_permits(), LARGE_MAX, "given back when it is in");
    }
}
