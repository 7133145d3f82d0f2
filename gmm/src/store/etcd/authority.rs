//! The certificate authority's key for managers that share a store: the first manager stores it, every other
//! manager reads it, and a restored backup replaces it.

use std::time::Duration;

use serde_json::json;

use super::EtcdError;
use super::gateway::Gateway;
use super::wire::{bytes, put, read, set_at};
use crate::store::EtcdPlace;

/// Time-out of one request to etcd.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The authority's key in etcd. It must be used only in the runtime of its first request.
#[derive(Debug)]
pub struct SharedAuthority {
    gateway: Gateway,
    key: String,
}

impl SharedAuthority {
    /// Creates access to the key that is stored at `place`.
    ///
    /// # Errors
    /// [`EtcdError`] if no client can be made; nothing is sent to etcd yet.
    pub fn at(place: &EtcdPlace) -> Result<Self, EtcdError> {
        Ok(Self { gateway: Gateway::new(place)?, key: place.key("authority") })
    }

    /// The stored key; if there is none, `new` is stored and returned.
    pub async fn or_new(&self, new: &str) -> Result<String, EtcdError> {
        // The key is read first, since a full database refuses every transaction that may write.
        if let Some(stored) = self.read().await? {
            return Ok(stored);
        }
        let key = &self.key;
        let txn = json!({"compare": [set_at(key, 0)], "success": [put(key, new)], "failure": [read(key)]});
        let answer = self.gateway.txn(&txn, TIMEOUT).await?;
        Ok(answer.found(0).filter(|_| !answer.succeeded).map_or(new, |stored| &stored.value).to_owned())
    }

    /// The stored key, if there is one.
    pub async fn read(&self) -> Result<Option<String>, EtcdError> {
        let found = self.gateway.range(&json!({"key": bytes(&self.key)}), TIMEOUT).await?;
        Ok(found.kvs.into_iter().next().map(|stored| stored.value))
    }

    /// Stores `pem` in the place of the stored key.
    pub async fn replace(&self, pem: &str) -> Result<(), EtcdError> {
        let txn = json!({"compare": [], "success": [put(&self.key, pem)]});
        self.gateway.txn(&txn, TIMEOUT).await.map(drop)
    }
}
