//! Routes for nodes that refuse this manager because its store lacks changes that they have seen. Nodes report the
//! refusal; users list these nodes, and can make them accept the store.

use axum::Json;
use axum::extract::State;
use axum::response::NoContent;

use super::extract::Body;
use super::guard::{RequestCaller, Routes, routes};
use crate::server::core::Core;
use crate::server::error::ApiError;
use cxloe_fabric::api::{AdoptFabric, NotFollowed, RefusedNode};
use cxloe_gmm_core::manager::Command;

pub fn routes() -> Routes {
    routes! {
        get "/v1/refused" Look list: "listRefusedNodes",
            "Nodes that do not follow this manager, and what they would lose if they did";
        post "/v1/refused" Node not_followed: "sayNotFollowed",
            "A node reports that it does not follow, and what it holds";
        post "/v1/adopt" Administer adopt: "adoptFabric",
            "Give up what refused nodes have seen and this store does not have";
    }
}

async fn list(State(core): State<Core>) -> Result<Json<Vec<RefusedNode>>, ApiError> {
    Ok(Json(core.execute(|manager, now_ms, _| manager.refused_nodes(now_ms)).await?))
}

async fn not_followed(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Body(said): Body<NotFollowed>,
) -> Result<NoContent, ApiError> {
    core.apply(&caller, Command::NotFollowed(said), |_, _| ()).await?;
    Ok(NoContent)
}

async fn adopt(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Body(adopt): Body<AdoptFabric>,
) -> Result<NoContent, ApiError> {
    core.apply(&caller, Command::Adopt(adopt), |_, _| ()).await?;
    Ok(NoContent)
}
