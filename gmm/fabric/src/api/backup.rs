//! Bodies of requests about backups: the store as one file, and the authority (CA) of the fabric, a secret that is
//! backed up separately.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::Watermark;

/// Key and certificate of a fabric's authority in PEM: a secret, which its `Debug` text omits.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct AuthorityPem(pub String);

impl fmt::Debug for AuthorityPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorityPem").finish_non_exhaustive()
    }
}

/// Answer to `GET /v1/backup/authority`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BackupAuthority {
    /// The authority by which nodes authenticate this fabric's manager; none if the manager serves without
    /// TLS.
    pub authority: Option<AuthorityPem>,
}

/// Request to replace the whole content of the store by a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RestoreStore {
    /// The backup, from `GET /v1/backup`.
    pub backup: String,
    /// True to restore even the backup of another fabric.
    #[serde(default)]
    pub other_fabric: bool,
    /// The authority of the fabric that was backed up, from `GET /v1/backup/authority`. It replaces the
    /// manager's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<AuthorityPem>,
    /// True to restore although nodes will refuse the manager, because the backup's authority is neither
    /// given nor the manager's.
    #[serde(default)]
    pub without_authority: bool,
}

impl RestoreStore {
    /// Returns a request to restore `backup`, which has to be a backup of this fabric, made with its present authority.
    pub fn new(backup: String) -> Self {
        Self { backup, other_fabric: false, authority: None, without_authority: false }
    }
}

/// Result of a restored backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RestoredStore {
    /// The watermark of the state that the backup replaced.
    pub before: Watermark,
    /// The watermark (term and revision) in the backup. Nodes that have seen later changes do not accept this manager
    /// until an administrator gives these changes up.
    pub restored: Watermark,
    /// The watermark after the restoration.
    pub now: Watermark,
    /// True if the given authority replaced the manager's.
    pub authority: bool,
}
