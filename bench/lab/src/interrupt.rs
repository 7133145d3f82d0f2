//! Ctrl-C as an ordinary way to end.
//!
//! The first SIGINT, SIGTERM or SIGHUP only raises a flag; loops look at it with [`Interrupt::check`] and return, so
//! every guard on the way out is dropped. If that takes longer than the grace period, or a second signal shows
//! impatience, the process exits at once; what it held in the kernel (namespaces, children, XDP programs) goes
//! with it.

use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::LabError;

/// A second signal this soon after the first is the same wish, passed on by a shell or by make as well.
const SAME_WISH: Duration = Duration::from_millis(500);
/// How often the deadline is looked at once a signal has come.
const POLL: Duration = Duration::from_millis(20);

/// Tells whether the process has been asked to end. Clones share the same flag.
#[derive(Debug, Clone)]
pub struct Interrupt {
    /// The signal that came, 0 for none.
    signal: Arc<AtomicI32>,
}

/// The process has been asked to end by a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped by signal {signal} before the end; nothing is left behind")]
pub struct Interrupted {
    /// The signal's number: 2 for SIGINT, 15 for SIGTERM, 1 for SIGHUP.
    pub signal: i32,
}

impl Interrupted {
    /// What the process should exit with, as shells report it: 128 and the signal's number, so 130 after Ctrl-C.
    pub fn exit_code(self) -> u8 {
        u8::try_from(128 + self.signal).unwrap_or(u8::MAX)
    }
}

impl Interrupt {
    /// Installs the handlers and starts the thread that listens. Once a signal has come, the process has `grace` to end
    /// in order.
    ///
    /// Call it once, and after [`become_private_user_namespace`](crate::become_private_user_namespace).
    ///
    /// # Errors
    /// [`LabError::Signals`] when the handlers cannot be installed.
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
                if again && came.elapsed() > SAME_WISH {
                    break;
                }
                thread::sleep(POLL);
            }
            exit(i32::from(Interrupted { signal: first }.exit_code()));
        });
        Ok(interrupt)
    }

    /// One that nobody raises, for work that nothing can interrupt.
    pub fn never() -> Self {
        Self { signal: Arc::default() }
    }

    /// Ok while nobody has asked the process to end. Costs one relaxed load: fit for measuring loops.
    ///
    /// # Errors
    /// [`Interrupted`] once a signal has come.
    pub fn check(&self) -> Result<(), Interrupted> {
        match self.signal.load(Relaxed) {
            0 => Ok(()),
            signal => Err(Interrupted { signal }),
        }
    }
}
