//! Long polls: a look at the manager, a wait until what it is about was touched, and another look, until there is what is
//! looked for or the time is over.

use std::time::Duration;

use tokio::time::Instant;

use super::WAIT_MS_MAX;
use crate::manager::Manager;
use crate::server::core::Core;
use crate::server::error::ApiError;
use crate::server::topics::Topic;

/// Looks until `seen` returns something or `wait_ms` are over; looks again whenever `topic` was touched.
///
/// # Errors
/// [`ApiError`] when the core does not answer.
pub async fn poll<T: Send + 'static>(
    core: &Core,
    topic: Topic,
    wait_ms: u64,
    seen: impl Fn(&Manager) -> Option<T> + Clone + Send + 'static,
) -> Result<Option<T>, ApiError> {
    let deadline = Instant::now() + Duration::from_millis(wait_ms.min(WAIT_MS_MAX));
    let mut watch = core.watch(topic);
    loop {
        if let Some(found) = core.look(seen.clone()).await? {
            return Ok(Some(found));
        }
        match tokio::time::timeout_at(deadline, watch.touched()).await {
            Ok(true) => {}
            Ok(false) | Err(_) => return Ok(None),
        }
    }
}
