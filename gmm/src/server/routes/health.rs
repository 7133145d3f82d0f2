//! Route of the manager's health, which anybody may read.

use axum::extract::State;
use axum::{Extension, Json};

use super::Leader;
use super::guard::{Routes, routes};
use crate::server::core::Core;
use crate::server::error::ApiError;
use crate::server::identify::Authenticator;
use cxloe_fabric::api::{ManagerHealth, Orphans};
use cxloe_gmm_core::manager::Manager;

pub fn routes() -> Routes {
    routes! {
        get "/v1/health" Anybody show: "showHealth", "Whether the manager is well, and how much it looks after";
    }
}

async fn show(
    State(core): State<Core>,
    Extension(Leader(leader)): Extension<Leader>,
    Extension(authenticator): Extension<Authenticator>,
) -> Result<Json<ManagerHealth>, ApiError> {
    let insecure = authenticator.is_insecure();
    let view = move |manager: &mut Manager, now_ms: u64, _: &mut _| ManagerHealth {
        status: if manager.frozen().is_some() { "read-only" } else { "ok" }.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        leader: Some(leader.to_string()),
        watermark: manager.watermark(),
        memory_nodes: manager.memory_node_count(),
        compute_nodes: manager.compute_node_count(),
        regions: manager.state().regions.len() as u64,
        fabric: manager.fabric().filter(|run| *run != 0).map(|run| format!("{run:016x}")),
        refused: manager.refused_nodes(now_ms).into_iter().map(|refused| refused.node).collect(),
        orphan_bytes: manager.state().orphans.values().map(Orphans::bytes).sum(),
        read_only: manager.frozen().map(str::to_owned),
        insecure,
    };
    Ok(Json(core.execute(view).await?))
}
