//! Routes with what they ask of who uses them. A route comes into being with its [`Right`] or not at all: the functions
//! here are the only way to make an [`Operation`], and [`Routes`] takes nothing else.

use std::convert::Infallible;

use aide::axum::ApiRouter;
use aide::axum::routing::{ApiMethodRouter, delete_with, get_with, post_with, put_with};
use aide::generate::GenContext;
use aide::openapi;
use aide::operation::{OperationHandler, OperationInput, OperationOutput};
use aide::transform::TransformOperation;
use axum::extract::{FromRequestParts, Request};
use axum::handler::Handler;
use axum::http::request::Parts;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};

use crate::rights::{Caller, Right};
use crate::server::core::Core;
use crate::server::error::ApiError;

/// Where the OpenAPI document says which right a route asks for.
pub const RIGHT_FIELD: &str = "x-cxloe-right";

/// A method of a path, with the right that it asks for.
pub struct Operation(ApiMethodRouter<Core>);

/// Paths and their operations.
pub struct Routes(ApiRouter<Core>);

impl Routes {
    /// None yet.
    pub fn new() -> Self {
        Self(ApiRouter::new())
    }

    /// With a path more, or with a method more of a path.
    pub fn route(self, path: &str, operation: Operation) -> Self {
        Self(self.0.api_route(path, operation.0))
    }

    /// With those of `others`.
    pub fn merge(self, others: Self) -> Self {
        Self(self.0.merge(others.0))
    }

    /// As the server takes them.
    pub fn into_router(self) -> ApiRouter<Core> {
        self.0
    }
}

macro_rules! operation {
    ($name:ident, $with:ident, $method:literal) => {
        #[doc = concat!("What `", $method, "` does, for those who have `right`.")]
        pub fn $name<H, I, O, T>(
            right: Right,
            handler: H,
            describe: impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_>,
        ) -> Operation
        where
            H: Handler<T, Core> + OperationHandler<I, O>,
            I: OperationInput,
            O: OperationOutput,
            T: 'static,
        {
            Operation(
                $with(handler, |operation| described(describe(operation), right)).layer::<_, Infallible>(
                    middleware::from_fn(move |request: Request, next: Next| checked(right, request, next)),
                ),
            )
        }
    };
}

operation!(get, get_with, "GET");
operation!(post, post_with, "POST");
operation!(put, put_with, "PUT");
operation!(delete, delete_with, "DELETE");

fn described(mut operation: TransformOperation<'_>, right: Right) -> TransformOperation<'_> {
    operation.inner_mut().extensions.insert(RIGHT_FIELD.to_owned(), right.name().into());
    match right {
        Right::Anybody => operation,
        _ => operation.security_requirement("token"),
    }
}

/// Lets those through who have `right`.
async fn checked(right: Right, request: Request, next: Next) -> Response {
    let nobody = Caller::nobody(None);
    let caller = request.extensions().get::<Caller>().unwrap_or(&nobody);
    match right.check(caller) {
        Ok(()) => next.run(request).await,
        Err(denied) => ApiError::from(denied).into_response(),
    }
}

/// Who asks.
pub struct By(pub Caller);

impl<S: Sync> FromRequestParts<S> for By {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.extensions.get::<Caller>().cloned().unwrap_or_else(|| Caller::nobody(None))))
    }
}

impl OperationInput for By {
    fn operation_input(_: &mut GenContext, _: &mut openapi::Operation) {}
}
