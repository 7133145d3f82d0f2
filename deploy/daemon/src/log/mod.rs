//! The log of a daemon: lines on standard error, of which the operator chooses form and filter.
//!
//! ```text
//!   any thread --event--> Targets --> CallSites: so many from one place --> formatted --> queue --> log thread --> stderr
//! ```
//!
//! Whoever logs never waits and never fails: the `queue` is bounded, and only its own thread writes. What does not fit
//! or cannot be written is dropped and counted, and the log says how much that was once it can be written again.

mod call_sites;
mod queue;

use std::any::Any;
use std::io::IsTerminal;
use std::panic::PanicHookInfo;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use call_sites::SITES;
use queue::QUEUE;

/// What is logged unless told otherwise.
pub const FILTER_DEFAULT: &str = "info";
/// The same as a level.
const LEVEL_DEFAULT: LevelFilter = LevelFilter::INFO;
/// How long the end of a process, or of a thread that panicked, waits for its last lines to be written.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// The log of this process; when it is dropped, what has been logged is written, as far as that goes within a second.
#[derive(Debug)]
#[must_use = "the last lines are written when it is dropped"]
pub struct Log(());

impl Drop for Log {
    fn drop(&mut self) {
        SITES.report();
        QUEUE.flush(FLUSH_MAX);
    }
}

/// Starts the log of this process. `filter` is a level, or one per module, as in `info,cxloe_gmm=debug`; one that cannot
/// be read is named in the log, which then has [`FILTER_DEFAULT`]. Panics of any thread go to the log as well.
///
/// # Panics
/// If the process has a log already.
pub fn start(filter: &str, format: LogFormat) -> Log {
    let (parsed, wrong) = match filter.parse::<Targets>() {
        Ok(parsed) => (parsed, None),
        Err(error) => (Targets::new().with_default(LEVEL_DEFAULT), Some(error)),
    };
    let alone = QUEUE.start(|| SITES.report());
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(coloured())
        .log_internal_errors(false)
        .with_writer(|| &QUEUE);
    let log = tracing_subscriber::registry().with(parsed).with(&SITES);
    match format {
        LogFormat::Json => log.with(lines.json()).init(),
        LogFormat::Text => log.with(lines.with_target(false)).init(),
    }
    std::panic::set_hook(Box::new(panicked));
    if let Some(error) = wrong {
        tracing::warn!(filter, %error, "not a log filter; logging at {FILTER_DEFAULT}");
    }
    if let Err(error) = alone {
        tracing::warn!(%error, "no thread to write the log: whoever logs waits for standard error");
    }
    Log(())
}

/// Whether lines on standard error may have colours: on a terminal that knows them, unless `NO_COLOR` says otherwise.
pub fn coloured() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
    std::io::stderr().is_terminal() && !set("NO_COLOR") && !dumb
}

/// Logs a panic. The hook of the standard library writes to standard error itself, and would wait for it.
fn panicked(panic: &PanicHookInfo<'_>) {
    let backtrace = std::backtrace::Backtrace::capture();
    let backtrace = match backtrace.status() {
        std::backtrace::BacktraceStatus::Captured => format!("\n{backtrace}"),
        _ => String::new(),
    };
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let place = panic.location().map_or_else(|| "an unknown place".into(), ToString::to_string);
    tracing::error!("thread '{thread}' panicked at {place}: {}{backtrace}", why(panic.payload()));
    QUEUE.flush(FLUSH_MAX);
}

fn why(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("for no reason in words")
}
