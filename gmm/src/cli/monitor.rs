//! `gmm monitor`: events as they happen, one JSON object a line. A manager that goes away is waited for.

use std::time::Duration;

use clap::Args;
use cxloe_gmm::api::EventsQuery;
use cxloe_gmm::command_line::{Failure, output};
use cxloe_gmm::{Client, ClientError};

/// How long one request waits for an event, in milliseconds.
const WAIT_MS: u64 = 30_000;
/// Pause before an unreachable manager is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// Arguments of `gmm monitor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gmm monitor                 what happens from now on
  gmm monitor --after 0       everything the log still has, then what happens
  gmm monitor --count 1       wait for one event")]
pub struct MonitorArgs {
    /// Begin after the event of this number instead of now
    #[arg(long, value_name = "SEQ")]
    after: Option<u64>,
    /// End after so many events
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

/// Follows events.
///
/// # Errors
/// When the manager cannot be reached at first, refuses, or standard output is closed.
pub async fn run(client: &Client, args: MonitorArgs) -> Result<(), Failure> {
    let mut after = match args.after {
        Some(after) => after,
        None => client.events(EventsQuery { limit: Some(1), ..EventsQuery::default() }).await?.newest,
    };
    let (mut left, mut away, mut asked_before) =
        (args.count.unwrap_or(u64::MAX), false, args.after.is_none());
    while left > 0 {
        let page = match client.events(EventsQuery { after, limit: Some(left), wait_ms: WAIT_MS }).await {
            Ok(page) => page,
            Err(error @ ClientError::Unreachable { .. }) if asked_before => {
                if !std::mem::replace(&mut away, true) {
                    eprintln!("Warning: {error}; waiting for it");
                }
                tokio::time::sleep(RETRY).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        asked_before = true;
        if std::mem::take(&mut away) {
            eprintln!("the manager is back");
        }
        if page.oldest > after + 1 {
            eprintln!("Warning: events {} to {} are no longer kept", after + 1, page.oldest - 1);
        }
        if page.newest < after {
            eprintln!(
                "Warning: the manager's log ends at {}, before {after}; going on from its start",
                page.newest
            );
            after = 0;
        }
        for event in page.events {
            after = event.seq;
            left -= 1;
            let text = serde_json::to_string(&event);
            output::line(&text.map_err(|error| Failure::failed(format!("cannot show an event: {error}")))?)?;
        }
    }
    Ok(())
}
