//! The key that managers sign certificates with, where they share a store: the first one puts it there, and all take what
//! is there.

use std::time::Duration;

use super::EtcdError;
use super::gateway::Gateway;
use super::wire::{Compare, Number, Range, Step, Txn};
use crate::store::EtcdPlace;

/// How long one question may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What is kept in the store at `place`: `new` if nothing was there.
///
/// # Errors
/// [`EtcdError`].
pub async fn shared_authority(place: &EtcdPlace, new: &str) -> Result<String, EtcdError> {
    let (gateway, key) = (Gateway::new(place)?, place.key("authority"));
    let txn = Txn {
        compare: vec![Compare::Mod { key: key.as_str().into(), mod_revision: Number(0) }],
        success: vec![Step::put(key.as_str(), new)],
        failure: vec![Step::Range(Range::one(key.as_str()))],
    };
    let answer = gateway.txn(&txn, TIMEOUT).await?;
    Ok(answer.found(0).filter(|_| !answer.succeeded).map_or_else(|| new.to_owned(), |kept| kept.value.text()))
}
