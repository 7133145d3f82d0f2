//! Pre-shared key of a fabric, in a file that only the daemon may read.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Minimum length of a key in bytes: 128 bits, as long as the cipher's own key.
pub(crate) const KEY_BYTES_MIN: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read, or others may read it.
    #[error("cannot read the key file {}: {source}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "the key in {} has {bytes} bytes; at least {KEY_BYTES_MIN} are needed: `openssl rand -hex 32` makes one",
        .path.display()
    )]
    Short { path: PathBuf, bytes: usize },
}

/// Reads the key in the file at `path`: its bytes without white space at both ends, such as a final line break.
///
/// # Errors
/// The file cannot be read, or the key is too short.
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
