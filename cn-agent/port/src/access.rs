//! Credentials of a program that is a compute node itself, and the key of its sessions. Frames are sealed unless that
//! is switched off explicitly: a program that has no key, and cannot register one, gets no session.
//!
//! ```text
//!   --insecure ------------------------------------------------> no key of its own
//!   --node-key FILE -------------------------------------------> the key in FILE, made if there is none
//!   `cn-agent join` was run (--identity, or its usual place) --> the key beside the certificate
//!   --key-file FILE -------------------------------------------> no key of its own
//!   the manager is reached privately: Unix socket, or TLS ------> a key for this run, registered with the manager
//!   otherwise --------------------------------------------------> an error
//! ```
//!
//! As with the agent, the pre-shared key of `--key-file` seals sessions of which one end has no key of its own. Without
//! it, their frames carry a checksum.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cxloe_fabric::api::Party;
use cxloe_fabric::model::{CnId, Region};
use cxloe_fabric::trust::{Credentials, IdentityFile};
use cxloe_link::keys::{KeyFileError, PreSharedKeyError, SYSTEM, node_key, pre_shared_key};
use cxloe_wire::session::{NodeKey, PreSharedKey};
use nix::unistd::geteuid;

use crate::manager::is_private;

/// Sources of credentials and key, in the order of the diagram at the top of the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// File with the certificate of this compute node, as `cn-agent join` writes it; `None`: the file in `data_dir`, or
    /// if there is none, the credentials of the process, such as the token in `CXLOE_TOKEN`.
    pub identity: Option<PathBuf>,
    /// File with the key of this compute node, created if absent; `None`: as described in the module.
    pub node_key: Option<PathBuf>,
    /// File with the pre-shared key of the fabric; `None`: there is none.
    pub key_file: Option<PathBuf>,
    /// Folder in which `cn-agent join` has put certificate and key; `None`: `/var/lib/cxloe` for root; for other users
    /// `cxloe` in `$XDG_STATE_HOME`, by default `~/.local/state/cxloe`.
    pub data_dir: Option<PathBuf>,
    /// Whether the compute node uses no key of its own: without a pre-shared key, its frames carry a checksum only.
    pub insecure: bool,
}

/// Failure to obtain credentials and a key.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The key file cannot be used.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The file with the pre-shared key cannot be used.
    #[error(transparent)]
    PreShared(#[from] PreSharedKeyError),
    /// The certificate's file cannot be read.
    #[error(
        "cannot read {path}, by which this compute node is known to the manager: {reason}; `cn-agent join` makes it"
    )]
    Identity {
        /// Path of the certificate's file.
        path: PathBuf,
        /// Error of reading the file, as text.
        reason: String,
    },
    /// There is no key, and none can be registered.
    #[error(
        "this compute node has no key, so its frames would not be sealed: have it join (`cn-agent join {manager} -i {interface} --no-start`), \
         name the file with its key by --node-key (CXLOE_NODE_KEY) or with the fabric's pre-shared key by --key-file (CXLOE_KEY_FILE), \
         or go without by --insecure (CXLOE_INSECURE=1)"
    )]
    NoKey {
        /// URL of the manager, for the advice in the message.
        manager: String,
        /// Name of the interface, for the advice in the message.
        interface: String,
    },
    /// A memory node has no key.
    #[error(
        "memory node {memory_node} has no key, so the frames of region {region} would not be sealed: have it join (`mn-server join`), \
         start it with --node-key, name the pre-shared key that it has by --key-file (CXLOE_KEY_FILE), or go without by --insecure \
         (CXLOE_INSECURE=1)"
    )]
    PlainMemoryNode {
        /// Name of the memory node without a key.
        memory_node: String,
        /// Name of the region that uses the memory node.
        region: String,
    },
}

/// Credentials and key of a compute node.
#[derive(Debug)]
pub struct Opened {
    /// Credentials that calls to the manager present.
    pub credentials: Credentials,
    /// The certificate, if there is one, and its path.
    pub identity: Option<(PathBuf, IdentityFile)>,
    /// Key of the node's sessions; `None`: it has no key of its own.
    pub key: Option<Arc<NodeKey>>,
    /// Key of sessions of which one end has no key of its own; `None`: their frames are not sealed.
    pub pre_shared: Option<PreSharedKey>,
    /// Whether the key was generated for this run. The manager then replaces the node's former key by this one.
    pub is_new: bool,
}

/// Default folder of this user for the persistent state of nodes.
fn usual_folder() -> PathBuf {
    if geteuid().is_root() {
        return PathBuf::from("/var/lib/cxloe");
    }
    let home = || std::env::home_dir().unwrap_or_else(std::env::temp_dir).join(".local/state");
    std::env::var_os("XDG_STATE_HOME").map_or_else(home, PathBuf::from).join("cxloe")
}

impl Access {
    /// Options from the environment, for programs whose command line has none: `CXLOE_IDENTITY`, `CXLOE_NODE_KEY`,
    /// `CXLOE_KEY_FILE`, `CXLOE_DATA_DIR`, and `CXLOE_INSECURE` (`1` or `true`).
    pub fn of_environment() -> Access {
        let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Access {
            identity: path("CXLOE_IDENTITY"),
            node_key: path("CXLOE_NODE_KEY"),
            key_file: path("CXLOE_KEY_FILE"),
            data_dir: path("CXLOE_DATA_DIR"),
            insecure: std::env::var("CXLOE_INSECURE").is_ok_and(|value| value == "1" || value == "true"),
        }
    }

    /// Opens credentials and key of the compute node `own` on `interface`, for the managers at the URLs `manager`.
    ///
    /// # Errors
    /// Any [`AccessError`].
    pub fn open(&self, own: CnId, interface: &str, manager: &str) -> Result<Opened, AccessError> {
        let identity = match &self.identity {
            Some(path) => Some(read(path)?),
            None => self.find(own),
        };
        let credentials = match &identity {
            Some((_, file)) => Credentials::of_node(Arc::clone(&file.identity)),
            None => Credentials::of_process(),
        };
        let beside =
            identity.as_ref().map(|(path, _)| path.with_extension("key")).filter(|path| path.exists());
        let pre_shared = self.key_file.as_deref().map(pre_shared_key).transpose()?;
        let (key, is_new) = match self.node_key.as_ref().or(beside.as_ref()) {
            _ if self.insecure => (None, false),
            Some(path) => (Some(node_key(path)?), false),
            None if pre_shared.is_some() => (None, false),
            // A node that has joined may use only the key that it joined with.
            None if identity.is_none() && is_private(manager) => (Some(NodeKey::generate(SYSTEM)), true),
            None => {
                let (manager, interface) = (manager.to_owned(), interface.to_owned());
                return Err(AccessError::NoKey { manager, interface });
            }
        };
        Ok(Opened { credentials, identity, key: key.map(Arc::new), pre_shared, is_new })
    }

    /// Returns the identity of `own` in the folder of identities, if there is one that this user can read.
    fn find(&self, own: CnId) -> Option<(PathBuf, IdentityFile)> {
        let folder = self.data_dir.clone().unwrap_or_else(usual_folder);
        let node = Party::ComputeNode(own).to_string();
        let files = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let mut files: Vec<PathBuf> =
            files.filter(|path| path.extension().is_some_and(|kind| kind == "identity")).collect();
        files.sort();
        let mut read = files.iter().filter_map(|path| read(path).ok());
        read.find(|(_, file)| file.node.as_ref() == Some(&node))
    }
}

/// Checks that every memory node of `region` has a key, so that all sessions of a compute node with a key are sealed.
///
/// # Errors
/// [`AccessError::PlainMemoryNode`].
pub(crate) fn check_sealed(region: &Region) -> Result<(), AccessError> {
    match region.legs.iter().find(|leg| leg.mn_key.is_none()) {
        None => Ok(()),
        Some(leg) => Err(AccessError::PlainMemoryNode {
            memory_node: leg.memory_node.to_string(),
            region: region.name.to_string(),
        }),
    }
}

fn read(path: &Path) -> Result<(PathBuf, IdentityFile), AccessError> {
    let failed = |reason: String| AccessError::Identity { path: path.into(), reason };
    let text = cxloe_private::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let file = IdentityFile::parse(&text).map_err(|error| failed(error.to_string()))?;
    Ok((path.into(), file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(access: &Access, manager: &str) -> Result<Opened, AccessError> {
        access.open("02:00:00:00:00:01".parse().unwrap(), "eth0", manager)
    }

    fn nowhere(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("cxloe-access-{name}-{}", std::process::id()))
    }

    #[test]
    fn who_says_nothing_is_sealed_or_refused() {
        let bare = Access { data_dir: Some(nowhere("none")), ..Access::default() };
        let by_socket = open(&bare, "unix:/run/gmm.sock").unwrap();
        assert!(by_socket.key.is_some() && by_socket.is_new && by_socket.identity.is_none());
        let again = open(&bare, "https://a:1,https://b:1").unwrap();
        assert_ne!(again.key.unwrap().public(), by_socket.key.unwrap().public(), "one for each run");
        for manager in ["http://a:1", "https://a:1,http://b:1"] {
            let error = open(&bare, manager).unwrap_err().to_string();
            for way in ["--node-key", "cn-agent join", "--key-file", "--insecure", "-i eth0"] {
                assert!(error.contains(way), "{way}: {error}");
            }
        }
    }

    #[test]
    fn what_is_said_is_done() {
        let file = nowhere("key").join("own.key");
        let with = |insecure| Access {
            node_key: Some(file.clone()),
            data_dir: Some(nowhere("none")),
            insecure,
            ..Access::default()
        };
        let opened = open(&with(false), "http://a:1").unwrap();
        assert!(!opened.is_new, "another key than the one that is known is not asked for");
        let again = open(&with(false), "unix:/x").unwrap();
        assert_eq!(again.key.unwrap().public(), opened.key.unwrap().public());
        assert!(open(&with(true), "http://a:1").unwrap().key.is_none());
        let shared = nowhere("key").join("shared.key");
        cxloe_private::write(&shared, b"sixteen bytes, or more\n", cxloe_private::Existing::Keep).unwrap();
        for insecure in [false, true] {
            let pre_shared = Access { key_file: Some(shared.clone()), node_key: None, ..with(insecure) };
            let opened = open(&pre_shared, "http://a:1").unwrap();
            assert!(opened.key.is_none() && !opened.is_new, "no key of its own is made beside it");
            assert_eq!(opened.pre_shared.as_deref(), Some(&b"sixteen bytes, or more"[..]));
            // As with an agent, a key of its own goes first unless it is switched off.
            let both = open(&Access { node_key: Some(file.clone()), ..pre_shared }, "http://a:1").unwrap();
            assert_eq!((both.key.is_none(), both.pre_shared.is_some()), (insecure, true));
        }
        let absent = Access { key_file: Some(nowhere("none").join("shared.key")), ..with(true) };
        assert!(matches!(open(&absent, "unix:/x"), Err(AccessError::PreShared(_))));
        let lost = Access { identity: Some(nowhere("none").join("x.identity")), ..Access::default() };
        assert!(matches!(open(&lost, "unix:/x"), Err(AccessError::Identity { .. })));
        std::fs::remove_dir_all(nowhere("key")).unwrap();
    }
}
