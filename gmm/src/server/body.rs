//! How large the body of a request may be, by what it asks; and how many large ones may be on their way in at a time, so
//! that who sends many cannot take the manager's memory.

use std::sync::Arc;

use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;

use super::error::ApiError;
use crate::rights::{Caller, Denied, May};
use cxloe_fabric::api::ErrorCode;

/// Largest body taken of a node, in bytes: the results and counters of a memory node with many commands.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Where backups are put back, which are larger.
pub const RESTORE_PATH: &str = "/v1/restore";
/// Largest body taken of anybody else, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Largest body taken of somebody who is not known: enough to log in with, in bytes.
const STRANGER_BYTES_MAX: u64 = 4 << 10;
/// Bodies beyond this count as large, in bytes.
const LARGE_BYTES: u64 = 32 << 10;
/// Large bodies on their way in at a time.
const LARGE_MAX: usize = 64;

/// The large bodies that are on their way in.
#[derive(Debug, Clone)]
pub struct Bodies(Arc<Semaphore>);

impl Default for Bodies {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LARGE_MAX)))
    }
}

/// What a request for this path may have as its body.
fn bytes_max(path: &str) -> usize {
    let of_nodes = ["/sync", "/orphans", "/v1/memory-nodes", "/v1/refused"];
    if of_nodes.iter().any(|end| path.ends_with(end)) { BODY_BYTES_MAX } else { REQUEST_BYTES_MAX }
}

impl Bodies {
    /// The request with its body if that is small or could be taken in, or what is answered instead.
    ///
    /// # Errors
    /// The answer.
    pub async fn take(&self, request: Request) -> Result<Request, Response> {
        let limit = bytes_max(request.uri().path());
        let hint = request.body().size_hint();
        let stranger =
            request.extensions().get::<Caller>().filter(|caller| matches!(caller.may, May::Nothing(_)));
        if let Some(stranger) = stranger
            && hint.upper().is_none_or(|upper| upper > STRANGER_BYTES_MAX)
        {
            return Err(ApiError::from(Denied::forbidden(stranger, "")).into_response());
        }
        if request.uri().path() == RESTORE_PATH || hint.upper().is_some_and(|upper| upper <= LARGE_BYTES) {
            // A backup is bounded where it is taken, once it is known that it may come.
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
        // Taken whole even if it is too large by a little, so that who sends it hears the answer.
        match to_bytes(body, BODY_BYTES_MAX).await {
            Ok(bytes) if bytes.len() <= limit => Ok(Request::from_parts(parts, Body::from(bytes))),
            _ => Err(too_large()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(path: &str, bytes: usize) -> Request {
        Request::post(path).body(Body::from(vec![b'x'; bytes])).unwrap()
    }

    #[tokio::test]
    async fn nodes_may_say_more_than_others_and_nobody_too_much() {
        let bodies = Bodies::default();
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
        let bodies = Bodies::default();
        let held = Arc::clone(&bodies.0).acquire_many_owned(LARGE_MAX as u32).await.unwrap();
        let large = bodies.take(post("/v1/x/sync", 100_000)).await;
        assert_eq!(large.unwrap_err().status().as_u16(), 503);
        assert!(bodies.take(post("/v1/x/sync", 30_000)).await.is_ok());
        drop(held);
        assert!(bodies.take(post("/v1/x/sync", 100_000)).await.is_ok());
        assert_eq!(bodies.0.available_permits(), LARGE_MAX, "given back when it is in");
    }
}
