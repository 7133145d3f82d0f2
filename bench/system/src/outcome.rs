//! What a test returns, and the ways to fail: something does not hold, or does not come to hold in time.

use std::thread;
use std::time::{Duration, Instant};

pub use libtest_mimic::Failed;

/// What a test, or a step of one, comes to.
pub type Outcome<T = ()> = Result<T, Failed>;

/// Bound of every wait for something that should happen soon.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// What a look for something finds: `true`, or `Some` of it.
pub trait Found {
    /// What is found.
    type Item;

    /// It, if it was found.
    fn found(self) -> Option<Self::Item>;
}

impl Found for bool {
    type Item = ();

    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Found for Option<T> {
    type Item = T;

    fn found(self) -> Option<T> {
        self
    }
}

/// Fails with `otherwise` unless this holds.
///
/// # Errors
/// `otherwise`.
pub fn ensure(holds: bool, otherwise: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(otherwise.into().into()) }
}

/// Waits until `look` gives true or something, at most [`LIMIT`].
///
/// # Errors
/// That `what` did not happen.
pub fn eventually<F: Found>(what: &str, look: impl FnMut() -> F) -> Outcome<F::Item> {
    within(LIMIT, what, look)
}

/// The same, at most `limit`.
///
/// # Errors
/// That `what` did not happen.
pub fn within<F: Found>(limit: Duration, what: &str, mut look: impl FnMut() -> F) -> Outcome<F::Item> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look().found() {
            return Ok(found);
        }
        ensure(Instant::now() < deadline, format!("did not happen within {limit:?}: {what}"))?;
        thread::sleep(PAUSE);
    }
}
