//! Calls that back up the manager's store or its authority, or restore a backup.

use reqwest::Method;

use super::{Client, ClientError};
use crate::api::{AuthorityPem, BackupAuthority, RestoreStore, RestoredStore};

impl Client {
    /// Returns a backup of the manager's store, as text. The authority of the fabric is not in it.
    pub async fn backup(&self) -> Result<Vec<u8>, ClientError> {
        let taken = self.exchange(Method::GET, "/v1/backup", "back the store up", None::<&()>, 0).await?;
        Ok(taken.1)
    }

    /// Returns the authority (CA) by which nodes authenticate the manager; `None` if the manager serves without TLS.
    pub async fn backup_authority(&self) -> Result<Option<AuthorityPem>, ClientError> {
        let BackupAuthority { authority } =
            self.get("/v1/backup/authority", "back the fabric's authority up").await?;
        Ok(authority)
    }

    /// Replaces the whole content of the manager's store by a backup, and its authority by the given one.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `bad_request` if the text is no backup, or the backup of another fabric, or if
    /// the given authority is not the backup's.
    pub async fn restore(&self, restore: &RestoreStore) -> Result<RestoredStore, ClientError> {
        self.call(Method::POST, "/v1/restore", "restore a backup", Some(restore), 0).await
    }
}
