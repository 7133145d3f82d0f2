//! State of a node across restarts: one value in one file, as JSON, replaced atomically.

use std::fs;
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use cxloe_fabric::model::Watermark;
use cxloe_private::{Existing, WideFile};

/// State that a node keeps. Its default is the state of a node that has never been part of a fabric.
pub trait NodeState: Serialize + DeserializeOwned + Default {
    /// Advice for a damaged file, as the end of the sentence "… is not a state file of this program".
    const REMEDY: &str;
}

/// Watermark (term and revision) of the manager whose commands the memory node executed last. With this file, even a
/// node that has just started recognises a manager with a lower watermark, which was superseded or runs on an old copy
/// of its store.
impl NodeState for Watermark {
    const REMEDY: &str =
        "restore it, or remove it if this node's manager is certain to run over its newest store";
}

/// File that holds a `T`. Each write goes to another name that is then renamed, so that the file is never incomplete.
#[derive(Clone, Debug)]
pub struct StateFile<T> {
    path: PathBuf,
    holds: PhantomData<fn() -> T>,
}

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("cannot {what} {}: {source}; choose a directory this user may write with --data-dir", .path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    /// Other users may read or write the file.
    #[error(transparent)]
    Wide(#[from] WideFile),
    #[error("{} is not a state file of this program ({reason}); {remedy}", .path.display())]
    Content {
        path: PathBuf,
        reason: String,
        /// Advice to the operator, from [`NodeState`].
        remedy: &'static str,
    },
}

impl StateError {
    /// Converts the system's error of the operation `what` on `path`.
    pub fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError + use<> {
        let path = path.to_path_buf();
        move |source| match source.downcast::<WideFile>() {
            Ok(wide) => StateError::Wide(wide),
            Err(source) => StateError::Io { what, path, source },
        }
    }
}

impl<T: NodeState> StateFile<T> {
    /// Names the state file at `path`; creates its directory if there is none.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn at(path: impl Into<PathBuf>) -> Result<StateFile<T>, StateError> {
        let path = path.into();
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(StateError::io("create the directory", dir))?;
        }
        Ok(StateFile { path, holds: PhantomData })
    }

    /// Reads the value stored last; the default if there is none.
    ///
    /// # Errors
    /// The file cannot be read, other users may read it, or its content is damaged.
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

    /// Writes `state`, which is on disk when the call returns.
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

    type WatermarkFile = StateFile<Watermark>;

    #[test]
    fn keeps_what_it_is_given() {
        let dir = tempfile::tempdir().unwrap();
        let file = WatermarkFile::at(dir.path().join("deep/mn.state")).unwrap();
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
        let error = WatermarkFile::at(&path).unwrap().load().unwrap_err().to_string();
        assert!(error.contains("mn.state") && error.contains("remove it"), "{error}");
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let error = WatermarkFile::at("/proc/cxloe/mn.state").unwrap_err().to_string();
        assert!(error.contains("/proc/cxloe") && error.contains("--data-dir"), "{error}");
    }
}
