//! Log of a daemon: lines on standard error, with a form and a filter set by options.
//!
//! ```text
//!   any thread --event--> Targets --> CallSites: limit per call site --> formatted --> queue --> log thread --> stderr
//! ```
//!
//! A thread that logs never waits and never fails: the `queue` is bounded, and only its own thread writes. Lines that
//! do not fit or cannot be written are dropped and counted, and the count is logged once writing works again.

mod call_sites;
mod journal;
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
use journal::LineWriter;
use queue::QUEUE;

/// Filter in effect without an option.
pub const FILTER_DEFAULT: &str = "info";
/// The default filter as a level, for a filter that cannot be read.
const LEVEL_DEFAULT: LevelFilter = LevelFilter::INFO;
/// Maximum wait for the last lines to be written when the process ends or panics.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// Form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Human-readable lines.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Log of this process. Dropping it writes the lines still queued, for at most a second.
#[derive(Debug)]
#[must_use = "the last lines are written when it is dropped"]
pub struct Log(());

impl Drop for Log {
    fn drop(&mut self) {
        SITES.report();
        QUEUE.flush(FLUSH_MAX);
    }
}

/// Starts the log of this process. `filter` is a level, or one per module, as in `info,cxloe_gmm=debug`; if
/// it is not valid, [`FILTER_DEFAULT`] applies, with a warning. Panics of any thread go to the log as well.
///
/// # Panics
/// If the process has a log already.
pub fn start(filter: &str, format: LogFormat) -> Log {
    let (parsed, wrong) = match filter.parse::<Targets>() {
        Ok(parsed) => (parsed, None),
        Err(error) => (Targets::new().with_default(LEVEL_DEFAULT), Some(error)),
    };
    let alone = QUEUE.start(|| SITES.report());
    let journal = journal::is_on_standard_error();
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(coloured())
        .log_internal_errors(false)
        .with_writer(LineWriter { with_priority: journal });
    let log = tracing_subscriber::registry().with(parsed).with(&SITES);
    match format {
        LogFormat::Json => log.with(lines.json()).init(),
        // The journal has the time of each line.
        LogFormat::Text if journal => log.with(lines.with_target(false).without_time()).init(),
        LogFormat::Text => log.with(lines.with_target(false)).init(),
    }
    std::panic::set_hook(Box::new(panicked));
    if let Some(error) = wrong {
        tracing::warn!(filter, %error, "not a log filter; logging at {FILTER_DEFAULT}");
    }
    if let Err(error) = alone {
        tracing::warn!(%error, "no thread to write the log: threads that log wait for standard error");
    }
    Log(())
}

/// True if lines on standard error may have colours: on a terminal that supports them, unless `NO_COLOR` is set.
pub fn coloured() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
    std::io::stderr().is_terminal() && !set("NO_COLOR") && !dumb
}

/// Logs a panic. The standard library's hook writes to standard error directly and may block.
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
