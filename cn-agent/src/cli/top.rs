//! `cn-agent top`: a live view of the agent's activity; for scripts, text about one interval, or JSON.

use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use clap::Args;
use cxloe_cn::top::terminal::{INTERVAL_MAX, INTERVAL_MIN, live};
use cxloe_cn::top::view::{self, KEYS, Sort, View};
use cxloe_cn::top::{Figures, Snapshot};
use cxloe_daemon::Span;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_link::Clock;

use super::SocketArgs;
use super::failure::of_agent;

/// Width of the text that `--once` prints, in columns.
const WIDTH: u16 = 130;

#[derive(Debug, Args)]
#[command(after_help = format!("\
Rates are those of the last interval; `hit` is the share that needed no memory node. Fault times are the agent's: from
reading that a thread has stopped to having its page in place. An agent with several workers has a row for each: `awake`
is the share of the time for which the worker ran, polling included; `in/s` and `out/s` are frames.

Keys:
{KEYS}

Examples:
  cn-agent top                     live; goes on when the agent was restarted
  cn-agent top --once              one interval, as text
  cn-agent top --json | jq -c .faults.p99_ns
                                   one object a second, for programs"))]
pub struct TopArgs {
    #[command(flatten)]
    socket: SocketArgs,
    /// Interval of snapshots, 100ms to 60s
    #[arg(short, long, value_name = "TIME", default_value = "1s")]
    interval: Span,
    /// Order of regions and sessions
    #[arg(short, long, value_name = "KEY", default_value = "rate")]
    sort: Sort,
    /// Show one interval as text, and end
    #[arg(long)]
    once: bool,
    /// One JSON object per interval, on a line each: times in nanoseconds, rates per second
    #[arg(long)]
    json: bool,
}

/// Shows the agent's activity live on a terminal, or prints it with `--once` or `--json`.
///
/// # Errors
/// When the first request to the agent fails, or the terminal does.
pub fn run(args: &TopArgs) -> Result<(), Failure> {
    let path = args.socket.path();
    let Span(interval) = args.interval;
    if !(INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) {
        return Err(Failure::usage("the interval is 100ms to 60s, as in --interval 2s"));
    }
    let view = View { sort: args.sort, interval, socket: path.display().to_string(), ..View::default() };
    if args.once || args.json {
        return print(args, &path, &view);
    }
    let clock = Clock::new();
    // If no agent runs at the start, the command fails. If the agent ends later, the live view waits for the next one.
    Snapshot::take(&path, &clock).map_err(of_agent)?;
    let take = move || Snapshot::take(&path, &clock).map_err(|error| error.to_string());
    live(take, view).map_err(|error| match error.kind() {
        io::ErrorKind::Unsupported => Failure::usage(error),
        _ => Failure::failed(format!("the terminal fails: {error}")),
    })
}

/// Prints one interval (`--once`), or intervals until standard output closes or the agent ends.
fn print(args: &TopArgs, path: &Path, view: &View) -> Result<(), Failure> {
    let clock = Clock::new();
    let mut before = Snapshot::take(path, &clock).map_err(of_agent)?;
    loop {
        let due = before.at + view.interval;
        thread::sleep(due.since(clock.now()).max(Duration::from_millis(1)));
        let now = Snapshot::take(path, &clock).map_err(of_agent)?;
        let figures = Figures::between(Some(&before), &now);
        if args.json {
            let line = serde_json::to_string(&figures).map_err(Failure::failed)?;
            output::line(&line)?;
            let _ = io::stdout().flush();
        } else {
            output::line(&view::text(&figures, view, WIDTH))?;
        }
        if args.once {
            return Ok(());
        }
        before = now;
    }
}
