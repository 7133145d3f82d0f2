//! File with a node's key: 44 characters of base64, as WireGuard writes keys, readable only by its owner.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use cxloe_private::{Existing, WideFile};
use cxloe_wire::frame::PublicKey;
use cxloe_wire::session::NodeKey;

use super::SYSTEM;

/// Reason why a node's key is not available; the message names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read or written.
    #[error("cannot {what} the node key {}: {source}; name another file with --node-key", .path.display())]
    Io {
        /// Operation that failed, as a part of a sentence.
        what: &'static str,
        /// Path of the key file, as configured.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// Users other than the owner may read the file.
    #[error("the node key: {0}")]
    Wide(WideFile),
    /// The content of the file is not a key.
    #[error("{} holds no node key (44 characters of base64): remove it to have one made", .path.display())]
    Content {
        /// Path of the key file, as configured.
        path: PathBuf,
    },
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeyFileError {
    move |source| match source.downcast::<WideFile>() {
        Ok(wide) => KeyFileError::Wide(wide),
        Err(source) => KeyFileError::Io { what, path: path.into(), source },
    }
}

/// Reads the key in the file at `path`, or generates a key and writes the file if there is none.
///
/// # Errors
/// Any [`KeyFileError`].
pub fn node_key(path: &Path) -> Result<NodeKey, KeyFileError> {
    match cxloe_private::open(path, OpenOptions::new().read(true)) {
        Ok(file) => read(file, path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(path),
        Err(error) => Err(io_error("read", path)(error)),
    }
}

fn read(mut file: File, path: &Path) -> Result<NodeKey, KeyFileError> {
    let mut text = String::new();
    // The read is limited to 128 bytes, because a longer file cannot be a key file.
    Read::by_ref(&mut file).take(128).read_to_string(&mut text).map_err(io_error("read", path))?;
    let bytes = text.trim().parse::<PublicKey>().map_err(|_| KeyFileError::Content { path: path.into() })?;
    Ok(NodeKey::from_bytes(bytes.0))
}

fn make(path: &Path) -> Result<NodeKey, KeyFileError> {
    let key = NodeKey::generate(SYSTEM);
    let text = format!("{}\n", PublicKey(key.to_bytes()));
    match cxloe_private::write(path, text.as_bytes(), Existing::Keep) {
        Ok(()) => Ok(key),
        // Another process has made the file since it was looked for, so the key in that file is used.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.exists() => node_key(path),
        Err(error) => Err(io_error("make", path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// Makes a temporary folder. Returns it and a path in a subfolder that does not exist yet.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deeper").join("node.key");
        (dir, path)
    }

    #[test]
    fn a_key_is_made_once_and_read_from_then_on() {
        let (_made, path) = place();
        let key = node_key(&path).unwrap();
        assert_eq!(node_key(&path).unwrap().to_bytes(), key.to_bytes());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let (_other, other) = place();
        assert_ne!(node_key(&other).unwrap().public(), key.public());
    }

    #[test]
    fn a_key_that_others_may_read_and_a_file_without_one_are_refused() {
        let (_refused, path) = place();
        node_key(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = node_key(&path).unwrap_err();
        assert!(matches!(error, KeyFileError::Wide(WideFile { mode: 0o640, .. })), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "something else\n").unwrap();
        assert!(matches!(node_key(&path).unwrap_err(), KeyFileError::Content { .. }));
    }
}
