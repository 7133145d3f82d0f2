//! Route of the sessions between compute nodes and memory nodes, from the memory nodes' latest reports. A report is an
//! array with one object per worker; the objects in its `sessions` have the compute node in `cn`.

use axum::Json;
use axum::extract::State;
use serde_json::Value;

use super::guard::{Routes, routes};
use crate::server::core::Core;
use crate::server::error::ApiError;
use cxloe_fabric::api::{MemoryNodeStatus, Session};
use cxloe_gmm_core::manager::Manager;

pub fn routes() -> Routes {
    routes! {
        get "/v1/sessions" Look list: "listSessions",
            "Sessions of compute nodes with memory nodes, as the latter report them";
    }
}

async fn list(State(core): State<Core>) -> Result<Json<Vec<Session>>, ApiError> {
    Ok(Json(core.view(sessions).await?))
}

fn sessions(manager: &Manager) -> Vec<Session> {
    manager.memory_node_statuses().iter().flat_map(|status| sessions_of(manager, status)).collect()
}

fn sessions_of(manager: &Manager, status: &MemoryNodeStatus) -> Vec<Session> {
    let workers = status.stats.as_array().into_iter().flatten().zip(0..);
    let reported = workers.flat_map(|(report, worker)| {
        let sessions = report.get("sessions").and_then(Value::as_array).into_iter().flatten();
        sessions.filter_map(Value::as_object).map(move |session| (worker, session.clone()))
    });
    let session = |(worker, mut counters): (u64, serde_json::Map<String, Value>)| {
        let compute_node = counters.remove("cn")?.as_str()?.parse().ok()?;
        let known = manager.state().compute_nodes.get(&compute_node);
        Some(Session {
            memory_node: status.node.name.clone(),
            worker,
            compute_node,
            compute_node_name: known.and_then(|node| node.name.clone()),
            counters,
        })
    };
    reported.filter_map(session).collect()
}
