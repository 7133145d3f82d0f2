//! The certificate authority's key for managers that share a store: the first manager stores it, and all managers use
//! the stored one.

use std::time::Duration;

use serde_json::json;

use super::EtcdError;
use super::gateway::Gateway;
use super::wire::{put, read, set_at};
use crate::store::EtcdPlace;

/// Time-out of one request.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The key stored at `place`; if there is none, `new` is stored and returned.
///
/// # Errors
/// [`EtcdError`].
pub async fn shared_authority(place: &EtcdPlace, new: &str) -> Result<String, EtcdError> {
    let (gateway, key) = (Gateway::new(place)?, place.key("authority"));
    let txn = json!({"compare": [set_at(&key, 0)], "success": [put(&key, new)], "failure": [read(&key)]});
    let answer = gateway.txn(&txn, TIMEOUT).await?;
    Ok(answer.found(0).filter(|_| !answer.succeeded).map_or(new, |kept| &kept.value).to_owned())
}
