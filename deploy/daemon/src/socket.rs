//! Unix socket of a daemon: bound before anything else, so that a second daemon with the same socket does not start;
//! never present with more rights than intended; removed with the daemon.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::geteuid;

#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error(
        "another {daemon} is running and listens on {}; end it, or give this one a socket of its own with --socket",
        .path.display()
    )]
    Taken { daemon: &'static str, path: PathBuf },
    #[error("{} is there and is not a socket; remove it, or choose another path with --socket", .0.display())]
    NoSocket(PathBuf),
    #[error("cannot {what} {}: {source}; choose another path with --socket", .path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
}

impl SocketError {
    /// Converts the system's error of the operation `what` on `path`.
    pub fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SocketError + use<> {
        let path = path.to_path_buf();
        move |source| SocketError::Io { what, path, source }
    }
}

/// Bound non-blocking socket: clients wait until the daemon accepts. Dropping it removes the socket's file.
#[derive(Debug)]
pub struct Bound {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket: it is removed only if the path still leads to it.
    identity: (u64, u64),
}

impl Bound {
    /// Binds `path` with the rights `mode`, as in `0o600`, and creates its directory if there is none. A socket left by
    /// a dead daemon is replaced, the socket of a running daemon is not. `daemon` is the kind of daemon in messages.
    pub fn bind(path: &Path, mode: u32, daemon: &'static str) -> Result<Bound, SocketError> {
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            fs::create_dir_all(dir).map_err(SocketError::io("create the directory", dir))?;
        }
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => return Err(SocketError::NoSocket(path.into())),
            Ok(_) => match UnixStream::connect(path) {
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                    tracing::info!(path = %path.display(), "replacing the socket of a {daemon} that has ended");
                }
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                    // The socket of another user, whose daemon may be running, is left alone.
                    return Err(SocketError::io("connect to the listener on", path)(e));
                }
                _ => return Err(SocketError::Taken { daemon, path: path.into() }),
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(SocketError::io("look at", path)(e)),
        }
        // The socket is bound under a temporary name, given its mode and then renamed, so `path` never has another
        // mode.
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}", std::process::id()));
        let draft = PathBuf::from(draft);
        // An earlier process with the same id may have left a draft.
        let _ = fs::remove_file(&draft);
        let listener = UnixListener::bind(&draft).map_err(SocketError::io("listen on", path))?;
        let placed = fs::set_permissions(&draft, fs::Permissions::from_mode(mode))
            .and_then(|()| listener.set_nonblocking(true))
            .and_then(|()| fs::symlink_metadata(&draft))
            .and_then(|made| fs::rename(&draft, path).map(|()| (made.dev(), made.ino())));
        match placed {
            Ok(identity) => Ok(Bound { listener, path: path.into(), identity }),
            Err(source) => {
                let _ = fs::remove_file(&draft);
                Err(SocketError::io("listen on", path)(source))
            }
        }
    }

    /// True if the peer may connect: its user is this process's user, root, or the owner of the socket's file
    /// (`chown`). The peer's user is that at the time of connecting; the mode that the socket's file had at that time
    /// does not matter.
    pub fn admits(&self, stream: &UnixStream) -> bool {
        let Ok(peer) = getsockopt(stream, PeerCredentials) else { return false };
        let given = fs::symlink_metadata(&self.path).map(|found| found.uid());
        [0, geteuid().as_raw()].contains(&peer.uid()) || given.is_ok_and(|owner| owner == peer.uid())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Listener for blocking code; `accept` does not wait.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Listener for a Tokio runtime; the call must be made within one.
    ///
    /// # Errors
    /// [`SocketError::Io`] when there are no descriptors left.
    pub fn async_listener(&self) -> Result<tokio::net::UnixListener, SocketError> {
        let listener = self.listener.try_clone().and_then(tokio::net::UnixListener::from_std);
        listener.map_err(SocketError::io("listen on", &self.path))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // Another process may have put its own socket at this path.
        let ours = |found: fs::Metadata| (found.dev(), found.ino()) == self.identity;
        if fs::symlink_metadata(&self.path).is_ok_and(ours) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(path: &Path) -> Result<Bound, SocketError> {
        Bound::bind(path, 0o600, "memory node")
    }

    #[test]
    fn a_dead_daemons_socket_is_replaced_a_living_ones_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/node.sock");
        let living = bind(&path).unwrap();
        let error = bind(&path).unwrap_err();
        assert!(matches!(&error, SocketError::Taken { path: taken, .. } if *taken == path));
        let said = error.to_string();
        assert!(said.contains("another memory node") && said.contains("--socket"), "{said}");
        drop(living);
        assert!(!path.exists(), "the socket goes with its daemon");
        // After a daemon is killed, its socket remains, without a listener.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let bound = bind(&path).unwrap();
        UnixStream::connect(bound.path()).unwrap();
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn it_has_the_rights_it_is_to_have() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o600, 0o660] {
            let path = dir.path().join(format!("{mode:o}.sock"));
            let _bound = Bound::bind(&path, mode, "agent").unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
        }
    }

    #[test]
    fn the_socket_of_another_is_left_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.sock");
        let first = bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _second = bind(&path).unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        fs::write(&path, "mine").unwrap();
        assert!(matches!(bind(&path), Err(SocketError::NoSocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        assert!(matches!(bind(Path::new("/proc/no/node.sock")), Err(SocketError::Io { .. })));
    }

    #[tokio::test]
    async fn a_runtime_accepts_too() {
        let dir = tempfile::tempdir().unwrap();
        let bound = bind(&dir.path().join("node.sock")).unwrap();
        let listener = bound.async_listener().unwrap();
        let _waiting = UnixStream::connect(bound.path()).unwrap();
        listener.accept().await.unwrap();
    }
}
