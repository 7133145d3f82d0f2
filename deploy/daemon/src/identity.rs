//! The file by which a node that has joined is known to the manager: its TLS key, its certificate, and whom to trust. It is
//! written when the node joins, and again each time the certificate is renewed, two thirds through its time.
//!
//! ```text
//!   renew: 1763900000000          milliseconds since the Unix epoch
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
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};

/// What the line begins with that says when to renew.
const RENEW: &str = "renew: ";
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
        Ok(Self { path: path.into(), identity: identity.into(), renew_ms: renew_ms.into() })
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

    /// Renews the certificate whenever its time has come. Never ends.
    pub async fn keep_renewed(&self, client: &Client) -> std::convert::Infallible {
        loop {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            if u128::from(self.renew_ms.load(Ordering::Relaxed)) <= now.as_millis() {
                match self.renew(client).await {
                    Ok(()) => tracing::info!(path = %self.path.display(), "the certificate is renewed"),
                    Err(error) => {
                        tracing::warn!(%error, "the certificate could not be renewed; trying again");
                    }
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn renew(&self, client: &Client) -> Result<(), Box<dyn std::error::Error>> {
        let joined = client.renew(&Renew { tls_key: self.tls_key()? }).await?;
        let pem = self.identity.renew(&joined.certificate, &joined.authority)?;
        write(&self.path, &with_renewal(&pem, joined.renew_ms))?;
        self.renew_ms.store(joined.renew_ms, Ordering::Relaxed);
        Ok(())
    }
}

/// A node's TLS key.
pub struct TlsKey(KeyPair);

impl TlsKey {
    /// The key in the file at `path`, or a new one where there is no such file.
    ///
    /// # Errors
    /// [`NodeIdentityError`].
    pub fn kept_or_new(path: &Path) -> Result<Self, NodeIdentityError> {
        match NodeIdentity::read(path) {
            Ok(identity) => Self::from_pem(identity.identity.key_pem()),
            Err(NodeIdentityError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let made = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256);
                made.map(Self).map_err(|error| NodeIdentityError::Key(error.to_string()))
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

    /// Writes it with what the manager answered to `path`, where only the daemon reads it.
    ///
    /// # Errors
    /// [`NodeIdentityError`].
    pub fn keep(&self, joined: &Joined, path: &Path) -> Result<(), NodeIdentityError> {
        let pem = format!("{}{}{}", self.0.serialize_pem(), joined.certificate, joined.authority);
        Identity::parse(&pem).map_err(|source| NodeIdentityError::Content { path: path.into(), source })?;
        let failed = |source| NodeIdentityError::File { what: "write", path: path.into(), source };
        write(path, &with_renewal(&pem, joined.renew_ms)).map_err(failed)
    }
}

fn with_renewal(pem: &str, renew_ms: u64) -> String {
    format!("{RENEW}{renew_ms}\n{pem}")
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
