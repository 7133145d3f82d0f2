//! Nodes that do not follow this manager, for its store lacks what they have seen: they say so here, people look at them,
//! and give up what the store lacks.

use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use axum::Json;
use axum::extract::State;
use axum::response::NoContent;

use super::extract::Body;
use crate::manager::Command;
use crate::server::core::Core;
use crate::server::error::ApiError;
use cxloe_fabric::api::{AdoptFabric, NotFollowed, RefusedNode};

pub fn routes() -> ApiRouter<Core> {
    ApiRouter::new()
        .api_route(
            "/v1/refused",
            get_with(list, |op| {
                op.id("listRefusedNodes")
                    .summary("Nodes that do not follow this manager, and what they would lose if they did")
            })
            .post_with(not_followed, |op| {
                op.id("sayNotFollowed").summary("A node says that it does not follow, and what it holds")
            }),
        )
        .api_route(
            "/v1/adopt",
            post_with(adopt, |op| {
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
    Body(said): Body<NotFollowed>,
) -> Result<NoContent, ApiError> {
    core.apply(Command::NotFollowed(said), |_, _| ()).await?;
    Ok(NoContent)
}

async fn adopt(State(core): State<Core>, Body(adopt): Body<AdoptFabric>) -> Result<NoContent, ApiError> {
    core.apply(Command::Adopt(adopt), |_, _| ()).await?;
    Ok(NoContent)
}
