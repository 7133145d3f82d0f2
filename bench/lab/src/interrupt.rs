//! Orderly end of a process after Ctrl-C.
//!
//! The first SIGINT, SIGTERM or SIGHUP only sets a flag; loops check it with [`Interrupt::check`] and return, so every
//! guard is dropped. After the grace period, or at a second signal, the process exits at once; the kernel then removes
//! its namespaces, children and XDP programs.

use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::LabError;

/// Time within which a second signal counts as a duplicate of the first, forwarded by a shell or by make.
const SAME_WISH: Duration = Duration::from_millis(500);
/// Interval between checks of the deadline after a signal.
const POLL: Duration = Duration::from_millis(20);

/// Flag that is set when the process receives a signal to end. Clones share the flag.
#[derive(Debug, Clone)]
pub struct Interrupt {
    /// Number of the received signal, 0 for none.
    signal: Arc<AtomicI32>,
}

/// Error that a loop returns after a signal, so that its caller drops all guards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped by signal {signal} before the end; nothing is left behind")]
pub struct Interrupted {
    /// Number of the signal: 2 for SIGINT, 15 for SIGTERM, 1 for SIGHUP.
    pub signal: i32,
}

impl Interrupted {
    /// Exit code by the convention of shells: 128 and the signal's number, so 130 after Ctrl-C.
    pub fn exit_code(self) -> u8 {
        u8::try_from(128 + self.signal).unwrap_or(u8::MAX)
    }
}

impl Interrupt {
    /// Installs the handlers and starts the thread that waits for signals. After a signal, the process has `grace` to
    /// end in order.
    ///
    /// Call this once, and after [`become_private_user_namespace`](crate::become_private_user_namespace): a
    /// process with threads cannot change its user namespace.
    ///
    /// # Errors
    /// Returns [`LabError::Signals`] when the handlers cannot be installed.
    pub fn install(grace: Duration) -> Result<Self, LabError> {
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|source| LabError::Signals { source })?;
        let interrupt = Self { signal: Arc::default() };
        let flag = interrupt.signal.clone();
        thread::spawn(move || {
            let Some(first) = signals.forever().next() else { return };
            flag.store(first, Relaxed);
            let came = Instant::now();
            while came.elapsed() < grace {
                let again = signals.pending().next().is_some();
                // A terminal's Ctrl-C may arrive twice: from the terminal, and forwarded by make.
                if again && came.elapsed() > SAME_WISH {
                    break;
                }
                thread::sleep(POLL);
            }
            exit(i32::from(Interrupted { signal: first }.exit_code()));
        });
        Ok(interrupt)
    }

    /// Returns a flag that is never set, for work that cannot be interrupted.
    pub fn never() -> Self {
        Self { signal: Arc::default() }
    }

    /// Returns `Ok` until a signal has been received. Cheap enough for measuring loops: one relaxed load.
    ///
    /// # Errors
    /// Returns [`Interrupted`] after a signal.
    pub fn check(&self) -> Result<(), Interrupted> {
        match self.signal.load(Relaxed) {
            0 => Ok(()),
            signal => Err(Interrupted { signal }),
        }
    }
}
