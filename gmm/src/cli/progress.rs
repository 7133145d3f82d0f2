//! What is shown while a command waits: a bar or a moving sign on standard error, only on a terminal, gone when it ends.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often a sign moves.
const TICK: Duration = Duration::from_millis(100);

/// A wait that is shown. Ends when dropped.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// A wait of which nothing is known but what for.
    pub fn waiting(what: impl Into<String>) -> Self {
        let bar = ProgressBar::new_spinner().with_message(what.into());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// A wait whose percentage is known.
    pub fn percent(what: impl Into<String>) -> Self {
        let bar = ProgressBar::new(100).with_message(what.into());
        if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {percent} % ({elapsed})") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// So far it has come, in percent.
    pub fn at(&self, percent: u8) {
        self.0.set_position(u64::from(percent));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
