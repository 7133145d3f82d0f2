//! Waits with a limit, which Ctrl-C ends.

use std::thread;
use std::time::{Duration, Instant};

use cxloe_lab::Interrupt;

/// Interval at which the condition is checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Waits until `done` returns true, for at most `limit`. `what` names the condition in the error.
///
/// # Errors
/// The limit is over, or a signal came.
pub fn eventually(
    what: &str,
    limit: Duration,
    interrupt: &Interrupt,
    mut done: impl FnMut() -> bool,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let began = Instant::now();
    while !done() {
        interrupt.check()?;
        if began.elapsed() > limit {
            return Err(format!("not within {limit:?}: {what}").into());
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
