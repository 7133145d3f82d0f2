//! Long polls: reads of the manager's state, repeated after each change to a topic until there is a result or the time
//! is over.

use std::time::Duration;

use tokio::time::Instant;

use super::WAIT_MS_MAX;
use crate::server::core::Core;
use crate::server::error::ApiError;
use crate::server::topics::Topic;
use cxloe_gmm_core::manager::Manager;

/// Reads the state, and again after each change to `topic`, until `seen` returns a result or `wait_ms` milliseconds are
/// over.
///
/// # Errors
/// [`ApiError`] if the core does not answer.
pub async fn poll<T: Send + 'static>(
    core: &Core,
    topic: Topic,
    wait_ms: u64,
    seen: impl Fn(&Manager) -> Option<T> + Clone + Send + 'static,
) -> Result<Option<T>, ApiError> {
    let deadline = Instant::now() + Duration::from_millis(wait_ms.min(WAIT_MS_MAX));
    // The watch begins before the first read, so that no change between the two is missed.
    let mut watch = core.watch(topic);
    loop {
        if let Some(found) = core.view(seen.clone()).await? {
            return Ok(Some(found));
        }
        match tokio::time::timeout_at(deadline, watch.touched()).await {
            Ok(true) => {}
            Ok(false) | Err(_) => return Ok(None),
        }
    }
}
