//! The little a node has to remember across restarts: one value in one file, as JSON, that is there whole or not at all.

use std::fs;
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use cxloe_fabric::model::Watermark;
use cxloe_private::{Existing, WideFile};

/// What a node remembers. Its default is what a node knows that has never been part of a fabric.
pub trait Remembered: Serialize + DeserializeOwned + Default {
    /// What to do about a damaged file; ends the sentence "… is not a state file of this program".
    const REMEDY: &str;
}

/// How far the manager had come that a memory node obeyed last. A manager that has not come as far, because it was
/// deposed or runs on an old copy of its store, is then recognised even by a node that has just started.
impl Remembered for Watermark {
    const REMEDY: &str =
        "restore it, or remove it if this node's manager is certain to run over its newest store";
}

/// Where a `T` is kept; written whole and renamed into place, so that it is never half there.
#[derive(Clone, Debug)]
pub struct StateFile<T> {
    path: PathBuf,
    holds: PhantomData<fn() -> T>,
}

/// What can go wrong with a state file.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It cannot be read or written.
    #[error("cannot {what} {}: {source}; choose a directory this user may write with --data-dir", .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Others may read it.
    #[error(transparent)]
    Wide(#[from] WideFile),
    /// It holds something else.
    #[error("{} is not a state file of this program ({reason}); {remedy}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
        /// What to do about it.
        remedy: &'static str,
    },
}

impl StateError {
    /// What becomes of the system's answer to having tried `what` on `path`.
    pub fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError + use<> {
        let path = path.to_path_buf();
        move |source| match source.downcast::<WideFile>() {
            Ok(wide) => StateError::Wide(wide),
            Err(source) => StateError::Io { what, path, source },
        }
    }
}

impl<T: Remembered> StateFile<T> {
    /// The state file at `path`; its directory is created if need be.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn at(path: impl Into<PathBuf>) -> Result<StateFile<T>, StateError> {
        let path = path.into();
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(StateError::io("create the directory", dir))?;
        }
        Ok(StateFile { path, holds: PhantomData })
    }

    /// What was kept last; the default if nothing was.
    ///
    /// # Errors
    /// [`StateError::Io`] and [`StateError::Content`].
    pub fn load(&self) -> Result<T, StateError> {
        match cxloe_private::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| StateError::Content {
                path: self.path.clone(),
                reason: error.to_string(),
                remedy: T::REMEDY,
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
            Err(error) => Err(StateError::io("read", &self.path)(error)),
        }
    }

    /// Keeps `state`; on disk when this returns.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn store(&self, state: &T) -> Result<(), StateError> {
        let write = || -> io::Result<()> {
            let mut text = serde_json::to_vec(state)?;
            text.push(b'\n');
            cxloe_private::write(&self.path, &text, Existing::Replace)
        };
        write().map_err(StateError::io("write", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Kept = StateFile<Watermark>;

    #[test]
    fn keeps_what_it_is_given() {
        let dir = tempfile::tempdir().unwrap();
        let file = Kept::at(dir.path().join("deep/mn.state")).unwrap();
        assert_eq!(file.load().unwrap(), Watermark::default());
        let seen = Watermark { term: 3, revision: 17, run: 5 };
        file.store(&seen).unwrap();
        assert_eq!(file.load().unwrap(), seen);
        assert_eq!(fs::read_dir(dir.path().join("deep")).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn damage_is_an_error_not_a_fresh_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mn.state");
        cxloe_private::write(&path, b"{\"term\": 3", Existing::Keep).unwrap();
        let error = Kept::at(&path).unwrap().load().unwrap_err().to_string();
        assert!(error.contains("mn.state") && error.contains("remove it"), "{error}");
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let error = Kept::at("/proc/cxloe/mn.state").unwrap_err().to_string();
        assert!(error.contains("/proc/cxloe") && error.contains("--data-dir"), "{error}");
    }
}
