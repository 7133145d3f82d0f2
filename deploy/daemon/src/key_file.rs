//! The pre-shared key of a fabric, which operators put into a file that only the daemon may read.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The shortest key in bytes: with less, guessing it is easier than breaking the cipher.
pub const KEY_BYTES_MIN: usize = 16;

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read, or others may read it.
    #[error("cannot read the key file {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// It is too easily guessed.
    #[error(
        "the key in {} has {bytes} bytes; at least {KEY_BYTES_MIN} are needed: `openssl rand -hex 32` makes one",
        .path.display()
    )]
    Short {
        /// The file.
        path: PathBuf,
        /// What it has, in bytes.
        bytes: usize,
    },
}

/// Reads the key in the file at `path`: its bytes without white space at both ends, so that an editor's last line break
/// is no part of the key.
///
/// # Errors
/// Any [`KeyError`].
pub fn read_key(path: &Path) -> Result<Arc<[u8]>, KeyError> {
    let bytes = cxloe_private::read(path).map_err(|source| KeyError::Read { path: path.into(), source })?;
    match bytes.trim_ascii() {
        key if key.len() < KEY_BYTES_MIN => Err(KeyError::Short { path: path.into(), bytes: key.len() }),
        key => Ok(Arc::from(key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxloe_private::Existing;

    #[test]
    fn a_key_is_what_stands_between_white_space() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        cxloe_private::write(&path, b" 0123456789abcdef\n", Existing::Keep).unwrap();
        assert_eq!(*read_key(&path).unwrap(), *b"0123456789abcdef");
    }

    #[test]
    fn short_and_missing_keys_are_refused_with_advice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let missing = read_key(&path).unwrap_err();
        assert!(matches!(missing, KeyError::Read { .. }) && missing.to_string().contains("key"), "{missing}");
        cxloe_private::write(&path, b"0123456789abcde\n\n", Existing::Keep).unwrap();
        let short = read_key(&path).unwrap_err().to_string();
        assert!(short.contains("15 bytes") && short.contains("openssl rand"), "{short}");
    }
}
