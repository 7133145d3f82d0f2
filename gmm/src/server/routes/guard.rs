//! Routes with the rights that they require. An [`Operation`] can only be made by the functions in this file, each of
//! which takes a [`Right`], and [`Routes`] accepts nothing else: so every route has a right.

use std::convert::Infallible;

use aide::axum::ApiRouter;
use aide::axum::routing::{ApiMethodRouter, delete_with, get_with, post_with, put_with};
use aide::generate::GenContext;
use aide::openapi;
use aide::operation::{OperationHandler, OperationInput, OperationOutput};
use aide::transform::TransformOperation;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Request};
use axum::handler::Handler;
use axum::http::request::Parts;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};

use super::failures;
use crate::server::core::Core;
use crate::server::error::ApiError;
use cxloe_gmm_core::rights::{Caller, Right};

/// Field of the OpenAPI document for the right that a route requires.
pub const RIGHT_FIELD: &str = "x-cxloe-right";

/// Security scheme of the OpenAPI document: a token in `Authorization`.
pub const TOKEN_SCHEME: &str = "token";
/// Security scheme of the OpenAPI document: a node's certificate, presented in the TLS handshake.
pub const CERTIFICATE_SCHEME: &str = "certificate";

/// Handler of one or more methods of a path, with the right that it requires.
pub struct Operation(ApiMethodRouter<Core>);

impl Operation {
    /// The same operation with another limit for request bodies, in bytes.
    pub fn taking(self, bytes: usize) -> Self {
        Self(self.0.layer(DefaultBodyLimit::max(bytes)))
    }
}

/// Paths with their operations.
pub struct Routes(ApiRouter<Core>);

impl Routes {
    pub fn new() -> Self {
        Self(ApiRouter::new())
    }

    /// Adds a path, or a further method of a path.
    pub fn route(self, path: &str, operation: Operation) -> Self {
        Self(self.0.api_route(path, operation.0))
    }

    pub fn merge(self, others: Self) -> Self {
        Self(self.0.merge(others.0))
    }

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
                $with(handler, |operation| described(describe(operation), right, $method))
                    .layer::<_, Infallible>(middleware::from_fn(move |request: Request, next: Next| {
                        checked(right, request, next)
                    })),
            )
        }
    };
}

operation!(get, get_with, "GET");
operation!(post, post_with, "POST");
operation!(put, put_with, "PUT");
operation!(delete, delete_with, "DELETE");

/// Makes [`Routes`] from a table: method, path, right, handler; name and summary in the OpenAPI document.
macro_rules! routes {
    ($($method:ident $path:literal $right:ident $handler:ident: $id:literal, $summary:literal;)*) => {{
        use $crate::server::routes::guard;
        guard::Routes::new()$(.route(
            $path,
            guard::$method(cxloe_gmm_core::rights::Right::$right, $handler, |op| op.id($id).summary($summary)),
        ))*
    }};
}

pub(super) use routes;

fn described<'a>(
    mut operation: TransformOperation<'a>,
    right: Right,
    method: &str,
) -> TransformOperation<'a> {
    failures::describe(operation.inner_mut(), method);
    operation.inner_mut().extensions.insert(RIGHT_FIELD.to_owned(), right.name().into());
    match right {
        Right::Anybody => operation,
        _ => operation.security_requirement(TOKEN_SCHEME).security_requirement(CERTIFICATE_SCHEME),
    }
}

/// Refuses requests of callers that lack `right`.
async fn checked(right: Right, request: Request, next: Next) -> Response {
    let nobody = Caller::unauthenticated(None);
    let caller = request.extensions().get::<Caller>().unwrap_or(&nobody);
    match right.check(caller) {
        Ok(()) => next.run(request).await,
        Err(denied) => ApiError::from(denied).into_response(),
    }
}

/// The caller that the identification has attached to the request; an unauthenticated one if there is none.
pub struct RequestCaller(pub Caller);

impl<S: Sync> FromRequestParts<S> for RequestCaller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.extensions.get::<Caller>().cloned().unwrap_or_else(|| Caller::unauthenticated(None))))
    }
}

impl OperationInput for RequestCaller {
    fn operation_input(_: &mut GenContext, _: &mut openapi::Operation) {}
}
