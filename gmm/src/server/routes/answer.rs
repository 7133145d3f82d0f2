//! What a request gets besides plain JSON: answers whose status says whether what was asked for has come about, and which
//! say the same to the OpenAPI document.

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

/// It has come about (status `DONE`), or will without further asking (202); how things stand either way.
pub enum Settled<T, const DONE: u16> {
    /// It has.
    Done(T),
    /// It will.
    Pending(T),
}

/// It is gone (204), or will be without further asking (202 and how things stand).
pub enum Gone<T> {
    /// It is.
    Done,
    /// It will be.
    Pending(T),
}

/// It was made (201).
pub struct Created<T>(pub T);

/// With a cookie for a browser.
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

impl<T: serde::Serialize> IntoResponse for Gone<T> {
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

impl<T: JsonSchema> OperationOutput for Gone<T> {
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
