//! Waits with a time limit; Ctrl-C ends them early.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cxloe_client::client::{Client, regions};
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

/// Waits until the agent at `socket` can read a region, and returns the region's HPA.
///
/// # Errors
/// As [`eventually`].
pub fn readable(socket: &Path, region: &str, limit: Duration, interrupt: &Interrupt) -> Waited<u64> {
    let mut found = 0;
    eventually(&format!("the agent can read region {region}"), limit, interrupt, || {
        let all = regions(socket).unwrap_or_default();
        // The agent may list a region before it can answer reads, so a read is tried.
        all.iter().find(|one| one.region == region).is_some_and(|one| {
            found = one.hpa;
            Client::connect(socket).and_then(|mut client| client.read(found)).is_ok()
        })
    })?;
    Ok(found)
}
