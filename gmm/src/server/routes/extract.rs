//! What a request gives a handler: the extractors of axum whose rejection is an [`ApiError`], and what paths name.

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

/// JSON body.
#[derive(FromRequest)]
#[from_request(via(Json), rejection(ApiError))]
pub struct Body<T>(pub T);

/// Query, after the `?` of the URL.
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Query), rejection(ApiError))]
pub struct Query<T>(pub T);

/// Parameters of the path.
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Path), rejection(ApiError))]
pub struct Path<T>(pub T);

/// Documents an extractor as the one of axum that it wraps.
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
    /// Its name.
    pub name: Name,
}

/// A path that names a compute node.
#[derive(Deserialize, JsonSchema)]
pub struct ComputeNodePath {
    /// Its CN id or its name.
    pub compute_node: Owner,
}
