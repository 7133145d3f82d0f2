//! Renewing the certificate of a program that is a compute node of its own, while it runs: a thread that asks the manager
//! two thirds through the certificate's time, or takes what somebody else of this node has got meanwhile.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cxloe_fabric::ClientError;
use cxloe_fabric::trust::{Credentials, IdentityFile, Renewal, Step};
use cxloe_private::Existing;

use crate::manager::Manager;

/// Keeps a certificate valid until it is dropped.
#[derive(Debug)]
pub struct Renewer {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Renewer {
    /// Starts the thread for the certificate in `file`, which was read from `path`. The connections that show it take the
    /// one there is.
    ///
    /// # Errors
    /// No thread.
    pub fn start(path: PathBuf, mut file: IdentityFile, manager: String) -> io::Result<Renewer> {
        let (stop, stopped) = channel::<()>();
        let thread = thread::Builder::new().name("certificate".into()).spawn(move || {
            let mut renewal = Renewal::new(file.renew_ms);
            loop {
                let now_ms = now_ms();
                match renewal.step(now_ms) {
                    Step::Wait(ms) => match stopped.recv_timeout(Duration::from_millis(ms)) {
                        Err(RecvTimeoutError::Timeout) => {}
                        _ => return,
                    },
                    Step::Renew => match renew(&path, &mut file, &manager) {
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

/// Why there is no new certificate.
#[derive(Debug, thiserror::Error)]
enum RenewError {
    #[error(transparent)]
    Manager(#[from] ClientError),
    #[error(transparent)]
    Answer(#[from] cxloe_fabric::trust::IdentityError),
    /// The next one who reads the file finds the old one, which is valid for a while yet.
    #[error("cannot write {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
}

fn renew(path: &Path, file: &mut IdentityFile, manager: &str) -> Result<(), RenewError> {
    let written = cxloe_private::read_to_string(path).unwrap_or_default();
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
