//! Renewal of the certificate of a program that is a compute node itself. A thread requests a new certificate
//! from the manager after two thirds of the old one's lifetime, or uses the one that another process of this
//! node has obtained.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cxloe_fabric::ClientError;
use cxloe_fabric::trust::{Credentials, IdentityFile, Renewal, RenewalStep};
use cxloe_private::Existing;

use crate::manager::Manager;

/// A thread that renews a certificate until dropped.
#[derive(Debug)]
pub struct Renewer {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Renewer {
    /// Starts the thread for the certificate `file`, which was read from `path`. New connections present the current
    /// certificate.
    ///
    /// # Errors
    /// Failure to start the thread.
    pub fn start(path: PathBuf, mut file: IdentityFile, manager: String) -> io::Result<Renewer> {
        let (stop, stopped) = channel::<()>();
        let thread = thread::Builder::new().name("certificate".into()).spawn(move || {
            let mut renewal = Renewal::new(file.renew_ms);
            loop {
                let now_ms = now_ms();
                match renewal.step(now_ms) {
                    RenewalStep::Wait(ms) => match stopped.recv_timeout(Duration::from_millis(ms)) {
                        Err(RecvTimeoutError::Timeout) => {}
                        _ => return,
                    },
                    RenewalStep::Renew => match renew(&path, &mut file, &manager) {
                        Ok(()) => renewal.renewed(file.renew_ms),
                        Err(error) => {
                            tracing::warn!(%error, "the certificate could not be renewed; trying again");
                            renewal.failed(now_ms);
                        }
                    },
                }
            }
        })?;
        Ok(Renewer { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Renewer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reason why no new certificate was obtained or stored.
#[derive(Debug, thiserror::Error)]
enum RenewError {
    #[error(transparent)]
    Manager(#[from] ClientError),
    #[error(transparent)]
    Answer(#[from] cxloe_fabric::trust::IdentityError),
    /// The file keeps the old certificate, which is still valid for a while.
    #[error("cannot write {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
}

fn renew(path: &Path, file: &mut IdentityFile, manager: &str) -> Result<(), RenewError> {
    let written = cxloe_private::read_to_string(path).unwrap_or_default();
    // Another process of this node may have renewed the certificate already.
    if file.follow(&written).is_ok_and(|newer| newer) {
        return Ok(());
    }
    let credentials = Credentials::of_node(file.identity.clone());
    let joined = Manager::new(manager, &credentials)?.renew(file.identity.public_key())?;
    file.renewed(&joined)?;
    let failed = |source| RenewError::File { path: path.into(), source };
    cxloe_private::write(path, file.text().as_bytes(), Existing::Replace).map_err(failed)
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
