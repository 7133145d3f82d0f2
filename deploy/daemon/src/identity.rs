//! Identity file of a node that has joined ([`IdentityFile`]): reading it, writing it so that only the daemon can
//! read it, and renewing its certificate after two thirds of its validity.

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
use cxloe_fabric::trust::{IdentityFile, Renewal, RenewalStep};
use cxloe_private::Existing;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};

/// User of a daemon that was installed as a package.
const DAEMON_USER: &str = "cxloe";

/// Failures in reading or writing an identity file, or in making a key.
#[derive(Debug, thiserror::Error)]
pub enum NodeIdentityError {
    #[error("cannot {what} {path}, by which this node is known to the manager: {source}; `join` makes it")]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{path}: {source}")]
    Content { path: PathBuf, source: IdentityError },
    #[error("cannot make a key: {0}")]
    Key(String),
}

/// Credentials that a node shows to the manager.
#[derive(Debug)]
pub struct NodeIdentity {
    path: PathBuf,
    /// Manager's URL in the file; a renewal does not change it.
    manager: Option<String>,
    joined: Watermark,
    identity: Arc<Identity>,
    file: Mutex<IdentityFile>,
}

impl NodeIdentity {
    /// Reads the identity at `path`.
    ///
    /// # Errors
    /// The file cannot be read, others may read it, or its content is no identity.
    pub fn read(path: &Path) -> Result<Self, NodeIdentityError> {
        let failed = |source| NodeIdentityError::File { what: "read", path: path.into(), source };
        let text = cxloe_private::read_to_string(path).map_err(failed)?;
        let content = |source| NodeIdentityError::Content { path: path.into(), source };
        let file = IdentityFile::parse(&text).map_err(content)?;
        let (manager, joined, identity) = (file.manager.clone(), file.joined, Arc::clone(&file.identity));
        Ok(Self { path: path.into(), manager, joined, identity, file: Mutex::new(file) })
    }

    /// Reads the identity at `path` and makes it the default credentials of this process; `None` without a path.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_if_given(path: Option<&Path>) -> Result<Option<Arc<Self>>, NodeIdentityError> {
        let identity = path.map(|path| Self::read(path).map(Arc::new)).transpose()?;
        if let Some(identity) = &identity {
            identity.credentials().take();
        }
        Ok(identity)
    }

    pub fn credentials(&self) -> Credentials {
        Credentials::of_node(Arc::clone(&self.identity))
    }

    /// URL of the manager that the node has joined, if the file has it.
    pub fn manager(&self) -> Option<&str> {
        self.manager.as_deref()
    }

    /// The manager's watermark (the progress of its store) when the node joined; the default if the file has none.
    pub fn joined(&self) -> Watermark {
        self.joined
    }

    /// Renews the certificate each time it is due, forever.
    pub(crate) async fn keep_renewed(&self, client: &Client) -> std::convert::Infallible {
        let mut renewal = Renewal::new(self.renew_ms());
        loop {
            let now_ms = now_ms();
            match renewal.step(now_ms) {
                RenewalStep::Wait(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
                RenewalStep::Renew => match self.renew(client).await {
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

    /// Renews the certificate if it is due, and logs the outcome.
    pub async fn renew_if_due(&self, client: &Client) {
        if Renewal::new(self.renew_ms()).step(now_ms()) != RenewalStep::Renew {
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
        // Another program of this node, with a link of its own, may have renewed the certificate already.
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

pub struct TlsKey(KeyPair);

impl TlsKey {
    /// Reads the key in the file at `path`, or generates one if there is no such file. A generated key is kept beside
    /// `path` until the manager has answered: a token is bound to the first key it is used with, so a node that lost
    /// the answer has to send the same key again.
    ///
    /// # Errors
    /// The files cannot be read or written, or no key can be generated.
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

    /// Public key in the encoding of the REST interface (base64).
    pub fn public(&self) -> String {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(self.0.public_key_raw())
    }

    /// Writes the key to `path`, with the answer that the manager at the URL `manager` gave for `node`, so
    /// that only the daemon can read the file.
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
        // The key is in the identity file now, and a draft that remains does no harm.
        drop(fs::remove_file(joining(path)));
        Ok(())
    }
}

/// Path of the key that a node has sent in a request to join that is not answered yet.
fn joining(path: &Path) -> PathBuf {
    path.with_extension("joining")
}

/// Creates the folder of a node's files if there is none, owned by the daemon's user.
pub(crate) fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.exists() {
        return Ok(());
    }
    fs::create_dir_all(folder)?;
    // Root runs `join`, while the daemon runs as this user.
    if let Ok(Some(user)) = nix::unistd::User::from_name(DAEMON_USER)
        && nix::unistd::geteuid().is_root()
    {
        chown(folder, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
    }
    Ok(())
}

/// Replaces the file at `path` atomically; creates its folder, owned by the daemon's user, if there is none.
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
