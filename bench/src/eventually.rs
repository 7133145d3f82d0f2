//! Waits with a time limit; Ctrl-C ends them early.

use std::thread;
use std::time::{Duration, Instant};

use cxloe_lab::Interrupt;

/// Interval at which the condition is checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Waits until `done` returns true, for at most `limit`. `what` names the condition in the error.
///
/// # Errors
/// `limit` has passed, or a signal such as Ctrl-C has arrived.
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
