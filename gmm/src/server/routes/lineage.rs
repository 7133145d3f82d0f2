//! Nodes that do not follow this manager, for its store lacks what they have seen: they say so here, people look at them,
//! and give up what the store lacks.

use axum::Json;
use axum::extract::State;
use axum::response::NoContent;

use super::extract::Body;
use super::guard::{By, Routes, get, post};
use crate::manager::Command;
use crate::rights::Right;
use crate::server::core::Core;
use crate::server::error::ApiError;
use cxloe_fabric::api::{AdoptFabric, NotFollowed, RefusedNode};

pub fn routes() -> Routes {
    Routes::new()
        .route(
            "/v1/refused",
            get(Right::Look, list, |op| {
                op.id("listRefusedNodes")
                    .summary("Nodes that do not follow this manager, and what they would lose if they did")
            }),
        )
        .route(
            "/v1/refused",
            post(Right::Node, not_followed, |op| {
                op.id("sayNotFollowed").summary("A node says that it does not follow, and what it holds")
            }),
        )
        .route(
            "/v1/adopt",
            post(Right::Administer, adopt, |op| {
                op.id("adoptFabric")
                    .summary("Give up what refused nodes have seen and this store does not have")
            }),
        )
}

async fn list(State(core): State<Core>) -> Result<Json<Vec<RefusedNode>>, ApiError> {
    Ok(Json(core.turn(|manager, now_ms, _| manager.refused_nodes(now_ms)).await?))
}

async fn not_followed(
    State(core): State<Core>,
    By(caller): By,
    Body(said): Body<NotFollowed>,
) -> Result<NoContent, ApiError> {
    core.apply(&caller, Command::NotFollowed(said), |_, _| ()).await?;
    Ok(NoContent)
}

async fn adopt(
    State(core): State<Core>,
    By(caller): By,
    Body(adopt): Body<AdoptFabric>,
) -> Result<NoContent, ApiError> {
    core.apply(&caller, Command::Adopt(adopt), |_, _| ()).await?;
    Ok(NoContent)
}
