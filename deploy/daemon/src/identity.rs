//! The file by which a node that has joined is known to the manager ([`IdentityFile`]): reading it, writing it where only
//! the daemon reads it, and having the certificate renewed, two thirds through its time.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cxloe_fabric::Client;
use cxloe_fabric::api::{Joined, Party, Renew};
use cxloe_fabric::client::{Credentials, Identity, IdentityError};
use cxloe_fabric::model::Watermark;
use cxloe_fabric::trust::{IdentityFile, Renewal, Step};
use cxloe_private::Existing;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};

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
    /// What of the file stays the same.
    manager: Option<String>,
    joined: Watermark,
    identity: Arc<Identity>,
    /// The file as it is.
    file: Mutex<IdentityFile>,
}

impl NodeIdentity {
    /// The one at `path`.
    ///
    /// # Errors
    /// [`NodeIdentityError`].
    pub fn read(path: &Path) -> Result<Self, NodeIdentityError> {
        let failed = |source| NodeIdentityError::File { what: "read", path: path.into(), source };
        let text = cxloe_private::read_to_string(path).map_err(failed)?;
        let content = |source| NodeIdentityError::Content { path: path.into(), source };
        let file = IdentityFile::parse(&text).map_err(content)?;
        let (manager, joined, identity) = (file.manager.clone(), file.joined, Arc::clone(&file.identity));
        Ok(Self { path: path.into(), manager, joined, identity, file: Mutex::new(file) })
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
        let mut renewal = Renewal::new(self.renew_ms());
        loop {
            let now_ms = now_ms();
            match renewal.step(now_ms) {
                Step::Wait(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
                Step::Renew => match self.renew(client).await {
                    Ok(()) => {
                        tracing::info!(path = %self.path.display(), "the certificate is renewed");
                        renewal.renewed(self.renew_ms());
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the certificate could not be renewed; trying again");
                        renewal.failed(now_ms);
                    }
                },
            }
        }
    }

    /// Renews the certificate if its time has come; says so, and why it could not be done.
    pub async fn renew_if_due(&self, client: &Client) {
        if Renewal::new(self.renew_ms()).step(now_ms()) != Step::Renew {
            return;
        }
        match self.renew(client).await {
            Ok(()) => tracing::info!(path = %self.path.display(), "the certificate is renewed"),
            Err(error) => tracing::warn!(%error, "the certificate could not be renewed; trying again"),
        }
    }

    fn renew_ms(&self) -> u64 {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).renew_ms
    }

    async fn renew(&self, client: &Client) -> Result<(), Box<dyn std::error::Error>> {
        // A program of this node with a link of its own may have been faster.
        let written = cxloe_private::read_to_string(&self.path).unwrap_or_default();
        let newer = self.file.lock().unwrap_or_else(PoisonError::into_inner).follow(&written);
        if newer.is_ok_and(|newer| newer) {
            return Ok(());
        }
        let joined = client.renew(&Renew { tls_key: self.identity.public_key() }).await?;
        let text = {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.renewed(&joined)?;
            file.text()
        };
        Ok(write(&self.path, &text)?)
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
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
                if let Ok(kept) = cxloe_private::read_to_string(&draft)
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

    /// Writes it with what the manager at the URL `manager` answered for `node` to `path`, where only the daemon reads it.
    ///
    /// # Errors
    /// [`NodeIdentityError`].
    pub fn keep(
        &self,
        node: &Party,
        joined: &Joined,
        manager: &str,
        path: &Path,
    ) -> Result<(), NodeIdentityError> {
        let pem = format!("{}{}{}", self.0.serialize_pem(), joined.certificate, joined.authority);
        let identity = Identity::parse(&pem)
            .map_err(|source| NodeIdentityError::Content { path: path.into(), source })?;
        let file = IdentityFile {
            identity: identity.into(),
            renew_ms: joined.renew_ms,
            manager: Some(manager.to_owned()),
            joined: joined.watermark,
            node: Some(node.to_string()),
        };
        let failed = |source| NodeIdentityError::File { what: "write", path: path.into(), source };
        write(path, &file.text()).map_err(failed)?;
        drop(fs::remove_file(joining(path)));
        Ok(())
    }
}

/// Where the key of a node is kept that has asked to join and got no answer yet.
fn joining(path: &Path) -> PathBuf {
    path.with_extension("joining")
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

/// Replaces the file as a whole, in a folder of the daemon's own if there is none.
fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        make_folder(folder)?;
    }
    cxloe_private::write(path, text.as_bytes(), Existing::Replace)
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
    fn what_was_kept_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mn-a.identity");
        let key = TlsKey::kept_or_new(&path).unwrap();
        let authority = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let pem = |of: &KeyPair| rcgen::CertificateParams::default().self_signed(of).unwrap().pem();
        let seen = Watermark { term: 3, revision: 17, run: u64::MAX };
        let joined = Joined {
            certificate: pem(&key.0),
            authority: pem(&authority),
            renew_ms: 5,
            expires_ms: 6,
            manager: String::new(),
            watermark: seen,
        };
        let node = Party::MemoryNode("a".parse().unwrap());
        key.keep(&node, &joined, "https://m:1", &path).unwrap();
        let read = NodeIdentity::read(&path).unwrap();
        assert_eq!((read.joined(), read.manager(), read.renew_ms()), (seen, Some("https://m:1"), 5));
        assert_eq!(read.identity.public_key(), key.public(), "what the manager is asked to renew it for");
        let mut file = read.file.into_inner().unwrap();
        assert_eq!(file.node.as_deref(), Some("memory node a"));
        let newer = IdentityFile { renew_ms: 9, ..file.clone() }.text();
        assert!(file.follow(&newer).unwrap() && file.renew_ms == 9);
        assert!(!file.follow(&newer).unwrap(), "it is known already");
        let other = TlsKey::kept_or_new(&folder.path().join("mn-b.identity")).unwrap();
        let path = folder.path().join("mn-b.identity");
        let joined = Joined { certificate: pem(&other.0), renew_ms: 99, ..joined };
        other.keep(&node, &joined, "https://m:1", &path).unwrap();
        assert!(file.follow(&fs::read_to_string(&path).unwrap()).is_err(), "another node's");
    }
}
