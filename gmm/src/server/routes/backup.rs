//! Routes that back the store up into one file and restore it while the manager runs.

use axum::Json;
use axum::extract::State;

use super::extract::Body;
use super::guard::{RequestCaller, Routes, get, post};
use crate::server::body::RESTORE_PATH;
use crate::server::core::Core;
use crate::server::error::ApiError;
use crate::store::backup;
use cxloe_fabric::api::{ErrorCode, RestoreStore, RestoredStore};
use cxloe_gmm_core::manager::Change;
use cxloe_gmm_core::rights::Right;

/// Maximum size of a backup to restore, in bytes.
pub const BACKUP_BYTES_MAX: usize = 512 << 20;

pub fn routes() -> Routes {
    Routes::new()
        .route(
            "/v1/backup",
            get(Right::Administer, take, |op| {
                op.id("backupStore").summary("All that the store has, as one file").response::<200, String>()
            }),
        )
        .route(
            RESTORE_PATH,
            post(Right::Administer, restore, |op| {
                op.id("restoreStore").summary("Put a backup in the place of all that the store has")
            })
            .taking(BACKUP_BYTES_MAX),
        )
}

async fn take(State(core): State<Core>) -> Result<String, ApiError> {
    // The state is copied, so that the core's thread continues while the backup is written.
    let state = core.view(|manager| manager.state().clone()).await?;
    let written = tokio::task::spawn_blocking(move || backup::write(&state)).await;
    let written = written.map_err(|error| error.to_string()).and_then(|written| written);
    written.map_err(|error| ApiError::new(ErrorCode::StoreFailed, error, "look at the manager's log"))
}

async fn restore(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Body(RestoreStore { backup, other_fabric }): Body<RestoreStore>,
) -> Result<Json<RestoredStore>, ApiError> {
    let refused = |error: String, hint: &'static str| ApiError::new(ErrorCode::BadRequest, error, hint);
    let read = tokio::task::spawn_blocking(move || backup::read(&backup)).await;
    let read = read.map_err(|error| refused(error.to_string(), "ask again"))?;
    let (head, state) = read.map_err(|error| refused(error.to_string(), "nothing was changed"))?;
    let run = rand::random_range(1..=u64::MAX);
    let restored = core
        .execute(move |manager, now_ms, changes| {
            let (fabric, before) = (manager.state().meta.fabric, manager.watermark());
            let empty = manager.state().regions.is_empty() && manager.state().memory_nodes.is_empty();
            if fabric != head.fabric && !empty && !other_fabric {
                return Err("this backup is another fabric's".to_owned());
            }
            let made = manager.restore(state, run, &caller.who, now_ms);
            let made: Vec<Change> = made.map_err(|error| error.to_string())?;
            changes.extend(made);
            Ok(RestoredStore { before, restored: head.watermark, now: manager.watermark() })
        })
        .await?;
    let hint = "nothing was changed; with `--other-fabric` it takes the place of this one";
    Ok(Json(restored.map_err(|error| refused(error, hint))?))
}
