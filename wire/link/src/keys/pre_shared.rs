//! Pre-shared key of a fabric, in a file that only its owner may read.

use std::io;
use std::path::{Path, PathBuf};

use cxloe_wire::frame::Aead;
use cxloe_wire::session::PreSharedKey;

/// Minimum length of a key in bytes: 128 bits, as long as the cipher's own key.
const KEY_BYTES_MIN: usize = Aead::KEY_LEN_MIN;

/// Reason why the pre-shared key is not available.
#[derive(Debug, thiserror::Error)]
pub enum PreSharedKeyError {
    /// The file cannot be read, or others may read it.
    #[error("cannot read the key file {}: {source}", .path.display())]
    Read {
        /// Path of the key file, as configured.
        path: PathBuf,
        /// Error of the system call, or the mode that the file needs.
        source: io::Error,
    },
    /// The key protects nothing.
    #[error(
        "the key in {} has {bytes} bytes; at least {KEY_BYTES_MIN} are needed: `openssl rand -hex 32` makes one",
        .path.display()
    )]
    Short {
        /// Path of the key file, as configured.
        path: PathBuf,
        /// Length of the key in bytes.
        bytes: usize,
    },
}

/// Reads the key in the file at `path`: its bytes without white space at both ends, such as a final line break.
///
/// # Errors
/// The file cannot be read, or the key is too short.
pub fn pre_shared_key(path: &Path) -> Result<PreSharedKey, PreSharedKeyError> {
    let bytes =
        cxloe_private::read(path).map_err(|source| PreSharedKeyError::Read { path: path.into(), source })?;
    match bytes.trim_ascii() {
        key if key.len() < KEY_BYTES_MIN => {
            Err(PreSharedKeyError::Short { path: path.into(), bytes: key.len() })
        }
        key => Ok(PreSharedKey::from(key)),
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
        assert_eq!(*pre_shared_key(&path).unwrap(), *b"0123456789abcdef");
    }

    #[test]
    fn short_and_missing_keys_are_refused_with_advice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let missing = pre_shared_key(&path).unwrap_err();
        assert!(
            matches!(missing, PreSharedKeyError::Read { .. }) && missing.to_string().contains("key"),
            "{missing}"
        );
        cxloe_private::write(&path, b"0123456789abcde\n\n", Existing::Keep).unwrap();
        let short = pre_shared_key(&path).unwrap_err().to_string();
        assert!(short.contains("15 bytes") && short.contains("openssl rand"), "{short}");
    }
}
