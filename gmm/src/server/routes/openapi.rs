//! The interface as an OpenAPI 3.1 document, at `/v1/openapi.json`. Routes come into being with their description, and the
//! schemas are those of the types their handlers take and return: what is served and what is described are one thing.

use std::sync::Arc;

use aide::generate;
use aide::openapi::{Info, OpenApi, SecurityScheme};
use axum::{Extension, Json, Router};
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;

use super::guard::{Routes, get};
use crate::rights::Right;
use crate::server::core::Core;

const DESCRIPTION: &str = "\
Memory nodes lend memory, compute nodes use it; this manager says which belongs to whom. What takes memory nodes or \
owners to come about is waited for up to `wait_ms`, and goes on without further asking after that (status 202). A \
request that fails is answered with an ErrorBody and the status of its code. A manager that does not lead answers with \
307 and the leader's URL. Each operation says in `x-cxloe-right` what it asks of who uses it: a token of that role or of a \
more powerful one, or a node's certificate. On a manager started with --insecure, everybody may do everything.";

/// The routes that `resources` gives, and the document that describes them, itself included.
pub fn documented(resources: impl FnOnce() -> Routes) -> Router<Core> {
    // OpenAPI 3.1 has the JSON Schema of draft 2020-12.
    generate::in_context(|context| {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "#/components/schemas/".into();
        });
        context.schema = SchemaGenerator::new(settings);
    });
    let routes = resources().route(
        "/v1/openapi.json",
        get(Right::Look, document, |op| {
            op.id("showInterface").summary("This interface as an OpenAPI document")
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
        api.security_scheme("token", token)
    });
    router.layer(Extension(Document(Arc::new(api))))
}

#[derive(Clone)]
struct Document(Arc<OpenApi>);

async fn document(Extension(Document(document)): Extension<Document>) -> Json<serde_json::Value> {
    Json(serde_json::to_value(&*document).unwrap_or_default())
}
