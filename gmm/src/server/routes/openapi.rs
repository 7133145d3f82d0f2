//! The interface as an OpenAPI 3.1 document, at `/v1/openapi.json`. Routes come into being with their description, and the
//! schemas are those of the types their handlers take and return: what is served and what is described are one thing.

use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use aide::generate;
use aide::openapi::{Info, OpenApi};
use axum::{Extension, Json, Router};
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;

use crate::server::core::Core;

const DESCRIPTION: &str = "\
Memory nodes lend memory, compute nodes use it; this manager says which belongs to whom. What takes memory nodes or \
owners to come about is waited for up to `wait_ms`, and goes on without further asking after that (status 202). A \
request that fails is answered with an ErrorBody and the status of its code. A manager that does not lead answers with \
307 and the leader's URL. There is no authentication.";

/// The routes that `resources` gives, and the document that describes them, itself included.
pub fn documented(resources: impl FnOnce() -> ApiRouter<Core>) -> Router<Core> {
    // OpenAPI 3.1 has the JSON Schema of draft 2020-12.
    generate::in_context(|context| {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "#/components/schemas/".into();
        });
        context.schema = SchemaGenerator::new(settings);
    });
    let router = resources().api_route(
        "/v1/openapi.json",
        get_with(document, |op| op.id("showInterface").summary("This interface as an OpenAPI document")),
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
    let router = router.finish_api(&mut api);
    router.layer(Extension(Document(Arc::new(api))))
}

#[derive(Clone)]
struct Document(Arc<OpenApi>);

async fn document(Extension(Document(document)): Extension<Document>) -> Json<serde_json::Value> {
    Json(serde_json::to_value(&*document).unwrap_or_default())
}
