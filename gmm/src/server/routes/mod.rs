//! The REST interface: each route turns a request into a command for the core, or a look at its state, and the result into
//! JSON. One file per resource; what they share is in `extract` (what a request gives), `answer` (what it gets) and `wait`
//! (long polls). The OpenAPI document is made from the very types the handlers take and return.

mod access;
mod answer;
mod compute_nodes;
mod events;
mod extract;
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

use super::body::{BODY_BYTES_MAX, Bodies};
use super::core::Core;
use super::error::ApiError;
use super::identify::{self, Door};
use cxloe_fabric::api::ErrorCode;
use guard::Routes;

/// Longest wait of a long poll and of creating or destroying, in milliseconds.
pub const WAIT_MS_MAX: u64 = 60_000;
/// How long a request may take beyond the longest wait.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(WAIT_MS_MAX + 10_000);

/// Where the manager that answers says it serves.
#[derive(Clone)]
struct Leader(Arc<str>);

/// Every route, over a running core of the manager that serves at `url`.
pub fn router(core: Core, url: &str, door: Door) -> Router {
    let identified = middleware::from_fn_with_state((core.clone(), door.clone()), identify::identified);
    openapi::documented(resources)
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn_with_state(Bodies::default(), bounded))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(identified)
        .layer(Extension(Leader(url.into())))
        .layer(Extension(door))
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
        .merge(health::routes())
}

/// Bounds the body of a request, and the time it may take, its body's arrival included.
async fn bounded(State(bodies): State<Bodies>, request: Request, next: Next) -> Response {
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
