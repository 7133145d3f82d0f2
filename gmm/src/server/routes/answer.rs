//! Types of responses other than plain JSON. The HTTP status of a response says whether the request is
//! complete; the OpenAPI document has the same statuses.

use aide::generate::GenContext;
use aide::openapi::{Operation, Response as Described};
use aide::operation::OperationOutput;
use axum::Json;
use axum::http::StatusCode;
use axum::http::header::SET_COOKIE;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;

use crate::server::error::ApiError;
use cxloe_fabric::api::ErrorBody;

/// Response with the object's present state: the request is complete (status `DONE`), or becomes complete without a
/// further request (202).
pub enum Settled<T, const DONE: u16> {
    Done(T),
    Pending(T),
}

/// The object is removed (204), or will be removed without a further request (202, with its present state).
pub enum Removed<T> {
    Done,
    Pending(T),
}

/// Response with status 201: the object was created.
pub struct Created<T>(pub T);

/// Response that sets a cookie in a browser.
pub struct WithCookie<T>(pub T, pub String);

impl<T: serde::Serialize> IntoResponse for Created<T> {
    fn into_response(self) -> Response {
        (StatusCode::CREATED, Json(self.0)).into_response()
    }
}

impl<T: serde::Serialize> IntoResponse for WithCookie<T> {
    fn into_response(self) -> Response {
        ([(SET_COOKIE, self.1)], Json(self.0)).into_response()
    }
}

impl<T: JsonSchema> OperationOutput for Created<T> {
    type Inner = T;

    fn inferred_responses(
        context: &mut GenContext,
        operation: &mut Operation,
    ) -> Vec<(Option<u16>, Described)> {
        vec![(Some(201), json::<T>(context, operation, "It was made."))]
    }
}

impl<T: JsonSchema> OperationOutput for WithCookie<T> {
    type Inner = T;

    fn inferred_responses(
        context: &mut GenContext,
        operation: &mut Operation,
    ) -> Vec<(Option<u16>, Described)> {
        vec![(Some(200), json::<T>(context, operation, "With a cookie."))]
    }
}

impl<T: serde::Serialize, const DONE: u16> IntoResponse for Settled<T, DONE> {
    fn into_response(self) -> Response {
        match self {
            Self::Done(value) => {
                (StatusCode::from_u16(DONE).unwrap_or(StatusCode::OK), Json(value)).into_response()
            }
            Self::Pending(value) => (StatusCode::ACCEPTED, Json(value)).into_response(),
        }
    }
}

impl<T: serde::Serialize> IntoResponse for Removed<T> {
    fn into_response(self) -> Response {
        match self {
            Self::Done => StatusCode::NO_CONTENT.into_response(),
            Self::Pending(value) => (StatusCode::ACCEPTED, Json(value)).into_response(),
        }
    }
}

fn json<T: JsonSchema>(context: &mut GenContext, operation: &mut Operation, what: &str) -> Described {
    let described = Json::<T>::operation_response(context, operation).unwrap_or_default();
    Described { description: what.to_owned(), ..described }
}

fn nothing(what: &str) -> Described {
    Described { description: what.to_owned(), ..Described::default() }
}

impl<T: JsonSchema, const DONE: u16> OperationOutput for Settled<T, DONE> {
    type Inner = T;

    fn inferred_responses(
        context: &mut GenContext,
        operation: &mut Operation,
    ) -> Vec<(Option<u16>, Described)> {
        let done = json::<T>(context, operation, "It has come about.");
        let pending =
            json::<T>(context, operation, "The time to wait is over; it comes about without further asking.");
        vec![(Some(DONE), done), (Some(202), pending)]
    }
}

impl<T: JsonSchema> OperationOutput for Removed<T> {
    type Inner = T;

    fn inferred_responses(
        context: &mut GenContext,
        operation: &mut Operation,
    ) -> Vec<(Option<u16>, Described)> {
        let pending =
            json::<T>(context, operation, "The time to wait is over; it comes about without further asking.");
        vec![(Some(204), nothing("It is gone.")), (Some(202), pending)]
    }
}

impl OperationOutput for ApiError {
    type Inner = ErrorBody;

    fn inferred_responses(
        context: &mut GenContext,
        operation: &mut Operation,
    ) -> Vec<(Option<u16>, Described)> {
        let why = "It failed; the status is that of the code in the body.";
        vec![(None, json::<ErrorBody>(context, operation, why))]
    }
}
