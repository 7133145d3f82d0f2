//! The little this node has to remember across restarts: how far the manager had come that it obeyed last. A
//! manager that has not come as far, because it was deposed or runs on an old copy of its store, is then
//! recognised even by a node that has just started.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cxloe_gmm::model::Watermark;

/// Where the watermark is kept; written whole and renamed into place, so that it is never half there.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
}

/// What can go wrong with the state file.
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
    /// It holds something else.
    #[error("{} is not a state file of this program ({reason}); restore it, or remove it to join a fabric anew", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl StateFile {
    /// The state file at `path`; its directory is created if need be.
    pub fn at(path: impl Into<PathBuf>) -> Result<StateFile, StateError> {
        let path = path.into();
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(failed("create the directory", dir))?;
        }
        Ok(StateFile { path })
    }

    /// What was kept last; zeros if nothing was.
    pub fn load(&self) -> Result<Watermark, StateError> {
        match fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| StateError::Content { path: self.path.clone(), reason: error.to_string() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Watermark::default()),
            Err(error) => Err(failed("read", &self.path)(error)),
        }
    }

    /// Keeps `seen`; on disk when this returns.
    pub fn store(&self, seen: Watermark) -> Result<(), StateError> {
        let new = self.path.with_extension("new");
        let write = || -> io::Result<()> {
            let mut file = File::create(&new)?;
            serde_json::to_writer(&mut file, &seen)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&new, &self.path)?;
            match self.path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
                Some(dir) => File::open(dir)?.sync_all(),
                None => File::open(".")?.sync_all(),
            }
        };
        write().map_err(failed("write", &self.path))
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_path_buf();
    move |source| StateError::Io { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_it_is_given() {
        let dir = tempfile::tempdir().unwrap();
        let file = StateFile::at(dir.path().join("deep/mn.state")).unwrap();
        assert_eq!(file.load().unwrap(), Watermark::default());
        let seen = Watermark { term: 3, revision: 17 };
        file.store(seen).unwrap();
        assert_eq!(file.load().unwrap(), seen);
        assert_eq!(fs::read_dir(dir.path().join("deep")).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn damage_is_an_error_not_a_fresh_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mn.state");
        fs::write(&path, "{\"term\": 3").unwrap();
        let error = StateFile::at(&path).unwrap().load().unwrap_err().to_string();
        assert!(error.contains("mn.state") && error.contains("remove it"), "{error}");
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let error = StateFile::at("/proc/cxloe/mn.state").unwrap_err().to_string();
        assert!(error.contains("/proc/cxloe") && error.contains("--data-dir"), "{error}");
    }
}
