//! Failures with which every operation may respond, before or in place of its route: those of the connection, the
//! election, the middleware and the access control. The OpenAPI document lists them for each operation.

use aide::generate;
use aide::openapi::{Operation, ReferenceOr, Response, StatusCode};
use aide::operation::OperationOutput;
use axum::Json;

use cxloe_fabric::api::{ErrorBody, ErrorCode};

/// Failures that are possible for every request.
const ANY: [ErrorCode; 10] = [
    // Another manager leads, or no manager leads; the core is busy; the store fails.
    ErrorCode::NotLeader,
    ErrorCode::Unavailable,
    ErrorCode::StoreFailed,
    // The header Host is malformed, or the page has another origin.
    ErrorCode::BadRequest,
    ErrorCode::ForeignOrigin,
    // The caller is unknown or has no right. Large bodies of unknown callers are refused even if the route requires no
    // right.
    ErrorCode::Unauthenticated,
    ErrorCode::Forbidden,
    // The body is too large or too slow; a request of any method can have one.
    ErrorCode::TooLarge,
    ErrorCode::Timeout,
    ErrorCode::LimitReached,
];
/// Further failure of requests that change something.
const CHANGES: ErrorCode = ErrorCode::NotJson;
/// HTTP status of the connection itself, without a body, for a request head that is too large.
const HEAD_TOO_LARGE: u16 = 431;

/// Adds the possible failures to the description of `operation`, whose method is `method`; keeps the responses that are
/// described already.
pub fn describe(operation: &mut Operation, method: &str) {
    let body = generate::in_context(|context| Json::<ErrorBody>::operation_response(context, operation));
    let body = body.unwrap_or_default();
    let of = |description: String| ReferenceOr::Item(Response { description, ..body.clone() });
    let responses = operation.responses.get_or_insert_default();
    let changes = (method != "GET").then_some(CHANGES);
    for code in ANY.into_iter().chain(changes) {
        let name = serde_json::to_value(code).unwrap_or_default();
        let said = responses.responses.entry(StatusCode::Code(code.http_status()));
        said.or_insert_with(|| {
            of(format!("It failed; the code in the body is {name}, or another of this status."))
        });
    }
    let why = "It failed; the status is that of the code in the body.";
    responses.default.get_or_insert_with(|| of(why.to_owned()));
    let head = "The head of the request is too large.".to_owned();
    let head = Response { description: head, ..Response::default() };
    responses.responses.insert(StatusCode::Code(HEAD_TOO_LARGE), ReferenceOr::Item(head));
}
