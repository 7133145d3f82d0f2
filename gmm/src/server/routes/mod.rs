//! The REST interface. Each route turns a request into a command to the core, or a read of the core's state, and the
//! result into JSON. There is one file per resource; `extract` (request data), `answer` (responses) and `wait` (long
//! polls) are shared. The OpenAPI document is made from the types that the handlers take and return.

mod access;
mod answer;
mod backup;
mod compute_nodes;
mod events;
mod extract;
mod failures;
mod guard;
mod health;
mod lineage;
mod logical_devices;
mod memory_nodes;
mod openapi;
mod overview;
mod regions;
mod sessions;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};

use super::body::{BODY_BYTES_MAX, BodyPermits};
use super::core::Core;
use super::error::ApiError;
use super::identify::{self, Authenticator};
use cxloe_fabric::api::ErrorCode;
use guard::Routes;

/// Maximum wait of a long poll, and of a request that creates or destroys, in milliseconds.
pub const WAIT_MS_MAX: u64 = 60_000;
/// Time-out of a request, which includes its maximum wait.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(WAIT_MS_MAX + 10_000);

/// URL at which this manager is reached.
#[derive(Clone)]
struct Leader(Arc<str>);

/// The router of all routes, for a running core; `url` is where the manager is reached.
pub fn router(core: Core, url: &str, authenticator: Authenticator) -> Router {
    let identified =
        middleware::from_fn_with_state((core.clone(), authenticator.clone()), identify::identified);
    openapi::documented(resources)
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn_with_state(BodyPermits::default(), bounded))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(identified)
        .layer(Extension(Leader(url.into())))
        .layer(Extension(authenticator))
        .with_state(core)
}

fn resources() -> Routes {
    memory_nodes::routes()
        .merge(compute_nodes::routes())
        .merge(regions::routes())
        .merge(logical_devices::routes())
        .merge(lineage::routes())
        .merge(sessions::routes())
        .merge(events::routes())
        .merge(overview::routes())
        .merge(access::routes())
        .merge(backup::routes())
        .merge(health::routes())
}

/// Limits the size of a request's body, and the time of the request, which includes the arrival of the body.
async fn bounded(State(bodies): State<BodyPermits>, request: Request, next: Next) -> Response {
    let answered = async {
        match bodies.take(request).await {
            Ok(request) => next.run(request).await,
            Err(refused) => refused,
        }
    };
    match tokio::time::timeout(REQUEST_TIMEOUT, answered).await {
        Ok(response) => response,
        Err(_) => {
            ApiError::new(ErrorCode::Timeout, "the request did not end in time", "ask again").into_response()
        }
    }
}

async fn no_such_path(request: Request) -> ApiError {
    let error = format!("there is no {}", request.uri().path());
    ApiError::new(ErrorCode::NotFound, error, "/v1/openapi.json describes every path there is")
}

async fn no_such_method(request: Request) -> ApiError {
    let error = format!("{} does not take {}", request.uri().path(), request.method());
    ApiError::new(ErrorCode::MethodNotAllowed, error, "use a method that /v1/openapi.json describes")
}
