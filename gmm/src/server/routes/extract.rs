//! Extractors of request data: those of axum, but their rejections are [`ApiError`]s; and parameters of paths.

use aide::generate::GenContext;
use aide::openapi::Operation;
use aide::operation::OperationInput;
use axum::Json;
use axum::extract::{FromRequest, FromRequestParts};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::server::error::ApiError;
use cxloe_fabric::api::Owner;
use cxloe_fabric::model::Name;

/// JSON body of a request. A malformed one is refused with an [`ApiError`].
#[derive(FromRequest)]
#[from_request(via(Json), rejection(ApiError))]
pub struct Body<T>(pub T);

/// Query of a request: the part of the URL after `?`.
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Query), rejection(ApiError))]
pub struct Query<T>(pub T);

/// Parameters in the path of a request.
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Path), rejection(ApiError))]
pub struct Path<T>(pub T);

/// Gives an extractor the documentation of the axum extractor that it wraps.
macro_rules! documented_as {
    ($extractor:ident, $inner:path) => {
        impl<T: JsonSchema> OperationInput for $extractor<T> {
            fn operation_input(context: &mut GenContext, operation: &mut Operation) {
                <$inner as OperationInput>::operation_input(context, operation);
            }
        }
    };
}

documented_as!(Body, Json<T>);
documented_as!(Query, axum::extract::Query<T>);
documented_as!(Path, axum::extract::Path<T>);

/// A path that names a memory node or a region.
#[derive(Deserialize, JsonSchema)]
pub struct Named {
    /// Name of the memory node or region.
    pub name: Name,
}

/// Path parameter of routes about one compute node.
#[derive(Deserialize, JsonSchema)]
pub struct ComputeNodePath {
    /// CN id or name of the compute node.
    pub compute_node: Owner,
}
