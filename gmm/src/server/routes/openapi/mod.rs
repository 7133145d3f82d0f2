//! The OpenAPI 3.1 document of the interface, at `/v1/openapi.json`. Each route is made together with its
//! description, and the schemas are those of the types in its handler, so the document agrees with the
//! interface. A conversion to OpenAPI 3.0 is at `/v1/openapi-3.0.json`, since some generators of clients
//! accept only one of the two versions.

mod older;
mod schemas;

use std::sync::Arc;

use aide::generate;
use aide::openapi::{Info, OpenApi, SecurityScheme};
use axum::{Extension, Json, Router};
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::guard::{CERTIFICATE_SCHEME, Routes, TOKEN_SCHEME, get};
use crate::server::core::Core;
use cxloe_gmm_core::rights::Right;

const DESCRIPTION: &str = "\
Memory nodes lend memory, compute nodes use it; this manager assigns it. Operations that need memory nodes or owners are waited for up to `wait_ms`, and continue after that (status 202). A \
request that fails is answered with an ErrorBody and the status of its code. A manager that does not lead answers with \
307 and the leader's URL. A token or a node's certificate identifies the caller (without either: 401); `x-cxloe-right` \
of each operation says which callers may use it: that role or a more powerful one, or nodes of that kind (others: 403). \
On a manager started with --insecure, everybody may do everything.";

/// The routes of `resources` and the document that describes them, including its own route.
pub fn documented(resources: impl FnOnce() -> Routes) -> Router<Core> {
    // OpenAPI 3.1 uses JSON Schema draft 2020-12.
    generate::in_context(|context| {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "#/components/schemas/".into();
        });
        context.schema = SchemaGenerator::new(settings);
    });
    let routes = resources()
        .route(
            "/v1/openapi.json",
            get(Right::Look, document, |op| {
                op.id("showInterface").summary("This interface as an OpenAPI document")
            }),
        )
        .route(
            "/v1/openapi-3.0.json",
            get(Right::Look, older_document, |op| {
                op.id("showInterfaceOlder").summary("This interface as a document of OpenAPI 3.0")
            }),
        );
    let mut api = OpenApi {
        info: Info {
            title: "CXL over Ethernet: global memory manager".to_owned(),
            description: Some(DESCRIPTION.to_owned()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Info::default()
        },
        ..OpenApi::default()
    };
    let router = routes.into_router().finish_api_with(&mut api, |api| {
        let token = SecurityScheme::Http {
            scheme: "bearer".to_owned(),
            bearer_format: Some("cx1.…".to_owned()),
            description: Some("A token, as `gmm token create` prints it.".to_owned()),
            extensions: Default::default(),
        };
        let certificate = SecurityScheme::MutualTls {
            description: Some("A node's certificate, as it was given when the node joined.".to_owned()),
            extensions: Default::default(),
        };
        api.security_scheme(TOKEN_SCHEME, token).security_scheme(CERTIFICATE_SCHEME, certificate)
    });
    let mut document = serde_json::to_value(api).unwrap_or_default();
    schemas::simplify(&mut document);
    bound_integers(&mut document);
    let older = older::downgrade(&document);
    router.layer(Extension(Documents { document: Arc::new(document), older: Arc::new(older) }))
}

/// Adds maxima to integers of 32 and 64 bits, since validators ignore the format of an integer.
fn bound_integers(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(bound_integers),
        Value::Object(fields) => {
            let largest = match fields.get("format").and_then(Value::as_str) {
                Some("uint32") => Some(u64::from(u32::MAX)),
                Some("uint64") => Some(u64::MAX),
                _ => None,
            };
            if let Some(largest) = largest {
                fields.entry("maximum").or_insert(largest.into());
            }
            fields.values_mut().for_each(bound_integers);
        }
        _ => {}
    }
}

/// The document, in both versions of OpenAPI.
#[derive(Clone)]
struct Documents {
    document: Arc<Value>,
    older: Arc<Value>,
}

async fn document(Extension(documents): Extension<Documents>) -> Json<Value> {
    Json(Value::clone(&documents.document))
}

async fn older_document(Extension(documents): Extension<Documents>) -> Json<Value> {
    Json(Value::clone(&documents.older))
}
