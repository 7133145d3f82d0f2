//! Waits with a time limit; Ctrl-C ends them early.

use std::thread;
use std::time::{Duration, Instant};

use cxloe_lab::Interrupt;

/// Interval at which the condition is checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

type Waited<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Waits until `done` returns true, for at most `limit`. `what` names the condition in the error.
///
/// # Errors
/// `limit` has passed, or a signal such as Ctrl-C has arrived.
pub fn eventually(
    what: &str,
    limit: Duration,
    interrupt: &Interrupt,
    done: impl FnMut() -> bool,
) -> Waited<()> {
    moment(what, LOOK_EVERY, limit, interrupt, done).map(drop)
}

/// Waits like [`eventually`], with checks at the interval `every`, and returns the moment at which `done` returned true.
///
/// # Errors
/// As [`eventually`].
pub fn moment(
    what: &str,
    every: Duration,
    limit: Duration,
    interrupt: &Interrupt,
    mut done: impl FnMut() -> bool,
) -> Waited<Instant> {
    let began = Instant::now();
    while !done() {
        interrupt.check()?;
        if began.elapsed() > limit {
            return Err(format!("not within {limit:?}: {what}").into());
        }
        thread::sleep(every);
    }
    Ok(Instant::now())
}

/// Sleeps for this time.
///
/// # Errors
/// A signal such as Ctrl-C has arrived.
pub fn pause(length: Duration, interrupt: &Interrupt) -> Waited<()> {
    let end = Instant::now() + length;
    while Instant::now() < end {
        interrupt.check()?;
        thread::sleep(LOOK_EVERY.min(end.saturating_duration_since(Instant::now())));
    }
    Ok(())
}
