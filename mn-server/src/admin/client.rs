//! Client of the administration socket: connects, and reads until the end of the answer.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::{ANSWER_MAX, NodeStatus, VERSION};

/// Maximum wait for the next part of the node's answer.
const SILENCE_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error(
        "no memory node at {}: {source}; start one with `mn-server run`, or name its socket with --socket",
        .path.display()
    )]
    NoNode { path: PathBuf, source: io::Error },
    #[error(
        "the memory node at {} runs as another user; query it as that user, or as root",
        .0.display()
    )]
    Forbidden(PathBuf),
    #[error(
        "the memory node at {} does not answer within {}s: it is loading its pool, or stuck; see its log",
        .0.display(),
        SILENCE_MAX.as_secs()
    )]
    Silent(PathBuf),
    #[error("the memory node at {} ended during the query: {source}", .path.display())]
    Broken { path: PathBuf, source: io::Error },
    #[error(
        "the memory node at {} is of another release, and its answer cannot be read: {reason}; use the `mn-server` it runs",
        .path.display()
    )]
    Version {
        path: PathBuf,
        /// Difference between the answer received and the form that this client expects.
        reason: String,
    },
}

/// Gets the status of the node that listens on `path`.
pub fn ask(path: &Path) -> Result<NodeStatus, AskError> {
    let at = || path.to_path_buf();
    let mut stream = UnixStream::connect(path).map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => AskError::Forbidden(at()),
        _ => AskError::NoNode { path: at(), source },
    })?;
    let broken = |source: io::Error| match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => AskError::Silent(at()),
        _ => AskError::Broken { path: at(), source },
    };
    stream.set_read_timeout(Some(SILENCE_MAX)).map_err(broken)?;
    let mut answer = Vec::new();
    stream.by_ref().take(ANSWER_MAX).read_to_end(&mut answer).map_err(broken)?;
    if answer.is_empty() {
        return Err(broken(io::ErrorKind::UnexpectedEof.into()));
    }
    decode(&answer).map_err(|reason| AskError::Version { path: at(), reason })
}

fn decode(answer: &[u8]) -> Result<NodeStatus, String> {
    // The part of an answer that is the same in all versions; other fields may differ.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    match serde_json::from_slice(answer) {
        Ok(Versioned { version: VERSION }) => {}
        Ok(Versioned { version }) => return Err(format!("it has version {version}, this program {VERSION}")),
        Err(error) => return Err(error.to_string()),
    }
    serde_json::from_slice(answer).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::server::{Server, bind};
    use super::super::{NodeStatus, WorkerStatus};
    use super::*;

    fn status(version: u32) -> NodeStatus {
        let worker = WorkerStatus { worker: 0, age_ns: Some(5), report: Default::default() };
        NodeStatus {
            version,
            name: "mn1".into(),
            interface: "eth9".into(),
            window: 256,
            link_down: None,
            link_reopened: 0,
            workers: vec![worker],
        }
    }

    #[test]
    fn who_asks_is_told_again_and_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mn.sock");
        let server = Server::start(bind(&path).unwrap(), || status(VERSION)).unwrap();
        // Clients that disconnect at once, or send data, do not disturb others.
        drop(UnixStream::connect(&path).unwrap());
        io::Write::write_all(&mut UnixStream::connect(&path).unwrap(), b"GET / HTTP/1.1\r\n\r\n").unwrap();
        for _ in 0..3 {
            let told = ask(&path).unwrap();
            assert_eq!((told.name.as_str(), told.workers[0].age_ns), ("mn1", Some(5)));
        }
        drop(server);
        assert!(!path.exists());
        assert!(matches!(ask(&path), Err(AskError::NoNode { .. })));
    }

    #[test]
    fn another_release_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mn.sock");
        let _server = Server::start(bind(&path).unwrap(), || status(VERSION + 1)).unwrap();
        let error = ask(&path).unwrap_err();
        assert!(matches!(&error, AskError::Version { .. }), "{error}");
        assert!(error.to_string().contains("version 2"), "{error}");
    }
}
