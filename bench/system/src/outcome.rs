//! Result of a test, and its failures: a condition that is false, or that does not become true in time.

use std::thread;
use std::time::{Duration, Instant};

pub use libtest_mimic::Failed;

/// Result of a test or of one of its steps; the error is the message of the failed test.
pub type Outcome<T = ()> = Result<T, Failed>;

/// Limit on every wait for an expected event.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Pause between two polls of [`within`].
const PAUSE: Duration = Duration::from_millis(5);

/// Result of a poll: a `bool`, or an `Option`.
pub trait PollResult {
    /// Value that a successful poll yields; `()` for a `bool`.
    type Item;

    fn found(self) -> Option<Self::Item>;
}

impl PollResult for bool {
    type Item = ();

    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> PollResult for Option<T> {
    type Item = T;

    fn found(self) -> Option<T> {
        self
    }
}

/// Fails with `otherwise` unless `holds`.
///
/// # Errors
/// Returns `otherwise`.
pub fn ensure(holds: bool, otherwise: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(otherwise.into().into()) }
}

/// Polls until `look` returns true or a value, for at most [`LIMIT`].
///
/// # Errors
/// Returns an error that `what` did not happen.
pub fn eventually<F: PollResult>(what: &str, look: impl FnMut() -> F) -> Outcome<F::Item> {
    within(LIMIT, what, look)
}

/// Like [`eventually`], for at most `limit`.
///
/// # Errors
/// Returns an error that `what` did not happen.
pub fn within<F: PollResult>(limit: Duration, what: &str, mut look: impl FnMut() -> F) -> Outcome<F::Item> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look().found() {
            return Ok(found);
        }
        ensure(Instant::now() < deadline, format!("did not happen within {limit:?}: {what}"))?;
        thread::sleep(PAUSE);
    }
}
