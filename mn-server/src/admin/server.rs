//! The node's end of the socket: bound before anything else, so that of two nodes with one socket the second does not
//! start; served by one thread, one connection after the other, each within a bounded time.

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::NodeStatus;

/// How long who asked may take to read the answer.
const WRITE_MAX: Duration = Duration::from_secs(2);
/// The pause after a failed accept, most likely for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the node cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Somebody answers there.
    #[error(
        "another memory node is running and listens on {}; end it, or give this one a socket of its own with --socket",
        .0.display()
    )]
    Taken(PathBuf),
    /// Something else is there.
    #[error("{} is there and is not a socket; remove it, or choose another path with --socket", .0.display())]
    NoSocket(PathBuf),
    /// The system refuses.
    #[error("cannot {what} {}: {source}; choose another path with --socket", .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// The socket, bound: who connects waits until it is [served](Self::serve). It is removed when this is dropped.
#[derive(Debug)]
pub struct Bound {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket, by which it is known to be ours.
    identity: (u64, u64),
}

impl Bound {
    /// Binds `path` (mode 0600). The socket that a dead node left is replaced, that of a living one is not.
    ///
    /// # Errors
    /// Any [`SocketError`].
    pub fn bind(path: &Path) -> Result<Bound, SocketError> {
        let failed = |what, at: &Path| {
            let path = at.to_path_buf();
            move |source| SocketError::Io { what, path, source }
        };
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            fs::create_dir_all(dir).map_err(failed("create the directory", dir))?;
        }
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => return Err(SocketError::NoSocket(path.into())),
            Ok(_) => match UnixStream::connect(path) {
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                    tracing::info!(path = %path.display(), "replacing the socket of a memory node that has ended");
                }
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(failed("connect to the memory node at", path)(e));
                }
                _ => return Err(SocketError::Taken(path.into())),
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed("look at", path)(e)),
        }
        // Made beside its place and moved there, so that it is never there with other rights.
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}", std::process::id()));
        let draft = PathBuf::from(draft);
        let _ = fs::remove_file(&draft);
        let listener = UnixListener::bind(&draft).map_err(failed("listen on", path))?;
        let placed = fs::set_permissions(&draft, fs::Permissions::from_mode(0o600))
            .and_then(|()| listener.set_nonblocking(true))
            .and_then(|()| fs::symlink_metadata(&draft))
            .and_then(|made| fs::rename(&draft, path).map(|()| (made.dev(), made.ino())));
        match placed {
            Ok(identity) => Ok(Bound { listener, path: path.into(), identity }),
            Err(source) => {
                let _ = fs::remove_file(&draft);
                Err(failed("listen on", path)(source))
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts telling whoever connects what `status` says.
    ///
    /// # Errors
    /// [`SocketError::Io`] when there is no thread.
    pub fn serve(self, status: impl Fn() -> NodeStatus + Send + 'static) -> Result<Server, SocketError> {
        let path = self.path.clone();
        let failed = |source| SocketError::Io { what: "start the thread that serves", path, source };
        let (stop, stopped) = match UnixStream::pair() {
            Ok(pair) => pair,
            Err(source) => return Err(failed(source)),
        };
        let thread =
            thread::Builder::new().name("admin".into()).spawn(move || answer(&self, &stopped, status));
        Ok(Server { stop: Some(stop), thread: Some(thread.map_err(failed)?) })
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // Unless somebody has put another one there meanwhile.
        let ours = |found: fs::Metadata| (found.dev(), found.ino()) == self.identity;
        if fs::symlink_metadata(&self.path).is_ok_and(ours) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The running server; ends when dropped, and its socket with it.
#[derive(Debug)]
pub struct Server {
    /// Closing it tells the thread to end.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers until the other end of `stopped` is closed.
fn answer(bound: &Bound, stopped: &UnixStream, status: impl Fn() -> NodeStatus) {
    loop {
        let mut ready = [
            PollFd::new(bound.listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
        ];
        if let Err(error) = poll(&mut ready, PollTimeout::NONE)
            && error != nix::errno::Errno::EINTR
        {
            tracing::error!(%error, "cannot wait for connections; `mn-server sessions` gets no answer from here on");
            return;
        }
        if ready[1].any() == Some(true) {
            return;
        }
        match bound.listener.accept() {
            Ok((mut stream, _)) => {
                if let Err(error) = tell(&mut stream, &status()) {
                    tracing::debug!(%error, "who asked did not wait for the answer");
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the node's socket");
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn tell(stream: &mut UnixStream, status: &NodeStatus) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(WRITE_MAX))?;
    stream.write_all(&serde_json::to_vec(status)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_nodes_socket_is_replaced_a_living_ones_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/mn.sock");
        let living = Bound::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = Bound::bind(&path).unwrap_err();
        assert!(matches!(&error, SocketError::Taken(taken) if *taken == path));
        assert!(error.to_string().contains("--socket"));
        drop(living);
        assert!(!path.exists(), "the socket goes with its node");
        // What a killed node leaves: a socket nobody listens on.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let bound = Bound::bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
        drop(bound);
    }

    #[test]
    fn the_socket_of_another_is_left_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mn.sock");
        let first = Bound::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _second = Bound::bind(&path).unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        fs::write(&path, "mine").unwrap();
        assert!(matches!(Bound::bind(&path), Err(SocketError::NoSocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        assert!(matches!(Bound::bind(Path::new("/proc/no/mn.sock")), Err(SocketError::Io { .. })));
    }
}
