//! Routes that back the store up into one file, with the authority of the fabric as a second one, and restore both while
//! the manager runs.

use axum::extract::State;
use axum::{Extension, Json};

use super::access::authority;
use super::extract::Body;
use super::guard::{RequestCaller, Routes, get, post};
use crate::server::authority::Authority;
use crate::server::body::RESTORE_PATH;
use crate::server::core::Core;
use crate::server::error::ApiError;
use crate::server::identify::Authenticator;
use crate::store::backup::{self, BackupHead};
use cxloe_fabric::api::{AuthorityPem, BackupAuthority, ErrorCode, RestoreStore, RestoredStore};
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
            "/v1/backup/authority",
            get(Right::Administer, take_authority, |op| {
                op.id("backupAuthority").summary("The key that signs certificates, which is not in the store")
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

async fn take(
    State(core): State<Core>,
    Extension(authenticator): Extension<Authenticator>,
) -> Result<String, ApiError> {
    let hash = match authenticator.is_insecure() {
        true => None,
        false => Some(authority(&authenticator)?.hash()),
    };
    // The state is copied, so that the core's thread continues while the backup is written.
    let state = core.view(|manager| manager.state().clone()).await?;
    let written = tokio::task::spawn_blocking(move || backup::write(&state, hash)).await;
    let written = written.map_err(|error| error.to_string()).and_then(|written| written);
    written.map_err(|error| ApiError::new(ErrorCode::StoreFailed, error, "look at the manager's log"))
}

/// Returns the authority, or none without TLS: then no node verifies the manager by it, and the key would be
/// readable on the network.
async fn take_authority(
    RequestCaller(caller): RequestCaller,
    Extension(authenticator): Extension<Authenticator>,
) -> Result<Json<BackupAuthority>, ApiError> {
    if authenticator.is_insecure() {
        return Ok(Json(BackupAuthority { authority: None }));
    }
    let authority = authority(&authenticator)?;
    tracing::info!(by = %caller.who, "the key that signs certificates is given out for a backup");
    Ok(Json(BackupAuthority { authority: Some(AuthorityPem(authority.pem().to_owned())) }))
}

fn refused(error: impl Into<String>, hint: &'static str) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, error, hint)
}

/// The authority to store after the restore of the backup whose first line is `head`; none: the present authority
/// stays.
fn restored_authority(
    head: &BackupHead,
    given: Option<AuthorityPem>,
    authenticator: &Authenticator,
    without: bool,
) -> Result<Option<Authority>, ApiError> {
    if let Some(AuthorityPem(pem)) = given {
        let read = Authority::from_pem(&pem, "the given file").ok();
        let Some(given) = read.filter(|given| head.authority == Some(given.hash())) else {
            let hint =
                "nothing was changed; give the file FILE.authority.pem that was written with the backup";
            return Err(refused("the given authority is not this backup's, or is damaged", hint));
        };
        return Ok(Some(given));
    }
    let known = authenticator.authority().map(|known| known.hash());
    if !without && !authenticator.is_insecure() && head.authority.is_some_and(|hash| known != Some(hash)) {
        let hint = "nothing was changed; put FILE.authority.pem beside the backup, or, if it is lost, restore with \
                    `--without-authority` and have all nodes join again";
        return Err(refused(
            "this backup is of a fabric with another authority, and no node accepts this manager's",
            hint,
        ));
    }
    Ok(None)
}

async fn restore(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Extension(authenticator): Extension<Authenticator>,
    Body(RestoreStore { backup, other_fabric, authority, without_authority }): Body<RestoreStore>,
) -> Result<Json<RestoredStore>, ApiError> {
    let read = tokio::task::spawn_blocking(move || backup::read(&backup)).await;
    let read = read.map_err(|error| refused(error.to_string(), "ask again"))?;
    let (head, state) = read.map_err(|error| refused(error.to_string(), "nothing was changed"))?;
    let authority = restored_authority(&head, authority, &authenticator, without_authority)?;
    let run = rand::random_range(1..=u64::MAX);
    let known = authenticator.authority().map(|known| known.hash());
    let replaces = authority.as_ref().is_some_and(|given| known != Some(given.hash()));
    let restored = core
        .execute(move |manager, now_ms, changes| {
            let (fabric, before) = (manager.state().meta.fabric, manager.watermark());
            // A store without nodes and regions has nothing to lose, so it may be replaced by a backup of any
            // fabric.
            let empty = manager.state().regions.is_empty() && manager.state().memory_nodes.is_empty();
            if fabric != head.fabric && !empty && !other_fabric {
                return Err("this backup is another fabric's".to_owned());
            }
            let made = manager.restore(state, run, &caller.who, now_ms);
            let made: Vec<Change> = made.map_err(|error| error.to_string())?;
            changes.extend(made);
            let (restored, now) = (head.watermark, manager.watermark());
            Ok(RestoredStore { before, restored, now, authority: replaces })
        })
        .await?;
    let hint = "nothing was changed; with `--other-fabric` it takes the place of this one";
    let restored = restored.map_err(|error| refused(error, hint))?;
    // The authority is stored last: if this request is interrupted here, a repeated request stores it. It is stored
    // even if the manager uses it already, because somebody may have emptied the store in etcd.
    if let Some(authority) = authority {
        let hash = authority.hash();
        authenticator.replace_authority(authority).await.map_err(|error| {
            let hint = "the store is restored, and the authority is not: restore the same backup again";
            ApiError::new(ErrorCode::StoreFailed, error.to_string(), hint)
        })?;
        tracing::info!(%hash, "the restored authority signs certificates from now on");
    }
    Ok(Json(restored))
}
