//! Progress display of a waiting command: a bar or a spinner on standard error, only on a terminal, removed when the
//! command ends.

use std::time::Duration;

use cxloe_daemon::to_stderr;
use indicatif::{ProgressBar, ProgressStyle};

/// Interval at which the spinner and the elapsed time are updated.
const TICK: Duration = Duration::from_millis(100);

/// Progress display on a terminal. Dropping it removes the display.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// A spinner, for a wait whose progress is unknown.
    pub fn waiting(what: impl Into<String>) -> Self {
        let bar = ProgressBar::new_spinner().with_message(what.into());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// A bar, for a wait whose progress is known.
    pub fn percent(what: impl Into<String>) -> Self {
        let bar = ProgressBar::new(100).with_message(what.into());
        if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {percent} % ({elapsed})") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// Prints a line on standard error, above the display.
    pub fn say(&self, line: &str) {
        self.0.suspend(|| to_stderr!("{line}"));
    }

    /// Sets the progress, in percent.
    pub fn at(&self, percent: u8) {
        self.0.set_position(u64::from(percent));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
