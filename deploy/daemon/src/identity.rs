//! The file by which a node that has joined is known to the manager: its TLS key, its certificate, and whom to trust. It is
//! written when the node joins, and again each time the certificate is renewed, two thirds through its time.
//!
//! ```text
//!   renew: 1763900000000          milliseconds since the Unix epoch
//!   manager: https://gmm.lab:7440
//!   joined: 3 17 9000            term, revision and run of the manager when the node joined
//!   -----BEGIN PRIVATE KEY-----   ...
//!   -----BEGIN CERTIFICATE-----   the node's
//!   -----BEGIN CERTIFICATE-----   the authority's
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cxloe_fabric::Client;
use cxloe_fabric::api::{Joined, Renew};
use cxloe_fabric::client::{Credentials, Identity, IdentityError};
use cxloe_fabric::model::Watermark;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};

/// What the line begins with that says when to renew.
const RENEW: &str = "renew: ";
/// What the line begins with that says where the manager is.
const MANAGER: &str = "manager: ";
/// What the line begins with that says how far the manager had come when the node joined.
const JOINED: &str = "joined: ";
/// How often it is looked whether the time has come, and how long to wait after it went wrong.
const LOOK: Duration = Duration::from_secs(60);
/// The user that daemons run as where they are installed as a package.
const DAEMON_USER: &str = "cxloe";

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum NodeIdentityError {
    /// The file.
    #[error("cannot {what} {path}, by which this node is known to the manager: {source}; `join` makes it")]
    File {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What is in it.
    #[error("{path}: {source}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: IdentityError,
    },
    /// No key could be made.
    #[error("cannot make a key: {0}")]
    Key(String),
}

/// What a node shows the manager.
#[derive(Debug)]
pub struct NodeIdentity {
    path: PathBuf,
    identity: Arc<Identity>,
    renew_ms: AtomicU64,
    manager: Option<String>,
    joined: Watermark,
}

impl NodeIdentity {
    /// The one at `path`.
    ///
    /// # Errors
    /// [`NodeIdentityError`].
    pub fn read(path: &Path) -> Result<Self, NodeIdentityError> {
        let failed = |source| NodeIdentityError::File { what: "read", path: path.into(), source };
        let text = fs::read_to_string(path).map_err(failed)?;
        let content = |source| NodeIdentityError::Content { path: path.into(), source };
        let identity = Identity::parse(&text).map_err(content)?;
        let line = text.lines().find_map(|line| line.strip_prefix(RENEW));
        let renew_ms = line.and_then(|ms| ms.trim().parse().ok()).unwrap_or(0);
        let manager = text.lines().find_map(|line| line.strip_prefix(MANAGER)).map(str::to_owned);
        let joined = text.lines().find_map(|line| line.strip_prefix(JOINED)).and_then(watermark);
        let joined = joined.unwrap_or_default();
        Ok(Self { path: path.into(), identity: identity.into(), renew_ms: renew_ms.into(), manager, joined })
    }

    /// The same where a node may have none: it was given no file. What there is becomes what this process shows.
    ///
    /// # Errors
    /// [`NodeIdentityError`].
    pub fn read_if_given(path: Option<&Path>) -> Result<Option<Arc<Self>>, NodeIdentityError> {
        let identity = path.map(|path| Self::read(path).map(Arc::new)).transpose()?;
        if let Some(identity) = &identity {
            identity.credentials().take();
        }
        Ok(identity)
    }

    /// What is shown with it.
    pub fn credentials(&self) -> Credentials {
        Credentials::of_node(Arc::clone(&self.identity))
    }

    /// The public half of its TLS key, as the manager takes it.
    fn tls_key(&self) -> Result<String, NodeIdentityError> {
        TlsKey::from_pem(self.identity.key_pem()).map(|key| key.public())
    }

    /// Where the manager is that it has joined at, if that was kept.
    pub fn manager(&self) -> Option<&str> {
        self.manager.as_deref()
    }

    /// How far the manager had come when the node joined; nothing where that was not kept.
    pub fn joined(&self) -> Watermark {
        self.joined
    }

    /// Renews the certificate whenever its time has come. Never ends.
    pub async fn keep_renewed(&self, client: &Client) -> std::convert::Infallible {
        loop {
            self.renew_if_due(client).await;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Renews the certificate if its time has come; says so, and why it could not be done.
    pub async fn renew_if_due(&self, client: &Client) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if u128::from(self.renew_ms.load(Ordering::Relaxed)) > now.as_millis() {
            return;
        }
        match self.renew(client).await {
            Ok(()) => tracing::info!(path = %self.path.display(), "the certificate is renewed"),
            Err(error) => tracing::warn!(%error, "the certificate could not be renewed; trying again"),
        }
    }

    async fn renew(&self, client: &Client) -> Result<(), Box<dyn std::error::Error>> {
        let joined = client.renew(&Renew { tls_key: self.tls_key()? }).await?;
        let pem = self.identity.renew(&joined.certificate, &joined.authority)?;
        write(&self.path, &in_full(&pem, joined.renew_ms, self.manager(), self.joined))?;
        self.renew_ms.store(joined.renew_ms, Ordering::Relaxed);
        Ok(())
    }
}

/// A node's TLS key.
pub struct TlsKey(KeyPair);

impl TlsKey {
    /// The key in the file at `path`, or a new one where there is no such file. A new one is kept beside it until the
    /// manager has answered: a token is one key's, and if the answer gets lost, the node asks again with the same.
    ///
    /// # Errors
    /// [`NodeIdentityError`].
    pub fn kept_or_new(path: &Path) -> Result<Self, NodeIdentityError> {
        match NodeIdentity::read(path) {
            Ok(identity) => Self::from_pem(identity.identity.key_pem()),
            Err(NodeIdentityError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let draft = joining(path);
                if let Ok(kept) = fs::read_to_string(&draft)
                    && let Ok(kept) = Self::from_pem(&kept)
                {
                    return Ok(kept);
                }
                let made = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256);
                let made = made.map_err(|error| NodeIdentityError::Key(error.to_string()))?;
                let failed = |source| NodeIdentityError::File { what: "write", path: draft.clone(), source };
                write(&draft, &made.serialize_pem()).map_err(failed)?;
                Ok(Self(made))
            }
            Err(error) => Err(error),
        }
    }

    fn from_pem(pem: &str) -> Result<Self, NodeIdentityError> {
        KeyPair::from_pem(pem).map(Self).map_err(|error| NodeIdentityError::Key(error.to_string()))
    }

    /// Its public half, as the manager takes it.
    pub fn public(&self) -> String {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(self.0.public_key_raw())
    }

    /// Writes it with what the manager at the URL `manager` answered to `path`, where only the daemon reads it.
    ///
    /// # Errors
    /// [`NodeIdentityError`].
    pub fn keep(&self, joined: &Joined, manager: &str, path: &Path) -> Result<(), NodeIdentityError> {
        let pem = format!("{}{}{}", self.0.serialize_pem(), joined.certificate, joined.authority);
        Identity::parse(&pem).map_err(|source| NodeIdentityError::Content { path: path.into(), source })?;
        let failed = |source| NodeIdentityError::File { what: "write", path: path.into(), source };
        write(path, &in_full(&pem, joined.renew_ms, Some(manager), joined.watermark)).map_err(failed)?;
        drop(fs::remove_file(joining(path)));
        Ok(())
    }
}

/// Where the key of a node is kept that has asked to join and got no answer yet.
fn joining(path: &Path) -> PathBuf {
    path.with_extension("joining")
}

fn in_full(pem: &str, renew_ms: u64, manager: Option<&str>, joined: Watermark) -> String {
    let manager = manager.map_or_else(String::new, |url| format!("{MANAGER}{url}\n"));
    let Watermark { term, revision, run } = joined;
    format!("{RENEW}{renew_ms}\n{manager}{JOINED}{term} {revision} {run}\n{pem}")
}

fn watermark(text: &str) -> Option<Watermark> {
    let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
    let mut number = || numbers.next().flatten();
    Some(Watermark { term: number()?, revision: number()?, run: number()? })
}

/// Makes the folder of what a node keeps, if there is none: the daemon's own.
pub(crate) fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.exists() {
        return Ok(());
    }
    fs::create_dir_all(folder)?;
    if let Ok(Some(user)) = nix::unistd::User::from_name(DAEMON_USER)
        && nix::unistd::geteuid().is_root()
    {
        chown(folder, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
    }
    Ok(())
}

/// Replaces the file as a whole. It belongs to whom its folder belongs to: root may have a daemon join that runs as another
/// user.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_folder(folder)?;
    let owner = fs::metadata(folder)?;
    let draft = path.with_extension(format!("new-{}", std::process::id()));
    drop(fs::remove_file(&draft));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    if nix::unistd::geteuid().is_root() {
        chown(&draft, Some(owner.uid()), Some(owner.gid()))?;
    }
    fs::rename(&draft, path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn who_got_no_answer_asks_again_with_the_same_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mn-a.identity");
        let first = TlsKey::kept_or_new(&path).unwrap().public();
        assert_eq!(TlsKey::kept_or_new(&path).unwrap().public(), first);
        let mode = fs::metadata(joining(&path)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let other = folder.path().join("mn-b.identity");
        assert_ne!(TlsKey::kept_or_new(&other).unwrap().public(), first);
    }

    #[test]
    fn what_was_seen_when_joining_is_read_as_it_was_written() {
        let seen = Watermark { term: 3, revision: 17, run: u64::MAX };
        let text = in_full("PEM", 5, Some("https://m:1"), seen);
        let line = text.lines().find_map(|line| line.strip_prefix(JOINED)).unwrap();
        assert_eq!(watermark(line), Some(seen));
        assert!(["", "1 2", "1 2 x", "-1 2 3"].iter().all(|wrong| watermark(wrong).is_none()));
    }
}
