//! `gmm monitor`: events as they happen, one JSON object per line. While the manager is unreachable, the command waits;
//! afterwards it continues after the last printed event, so that none is omitted or repeated.

use std::time::Duration;

use clap::Args;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_daemon::to_stderr;
use cxloe_fabric::Client;
use cxloe_fabric::api::{EventsQuery, Owner};
use cxloe_fabric::model::{Event, Name};
use serde_json::Value;

use super::since::Since;

/// Maximum wait of one request for an event, in milliseconds.
const WAIT_MS: u64 = 30_000;
/// Pause before an unreachable manager is asked again.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gmm monitor                           what happens from now on
  gmm monitor --after 0                 everything the log still has, then what happens
  gmm monitor --since 10m -u            the last ten minutes, then what happens, as text for people
  gmm monitor -r heap --count 1         wait until something happens to heap
  gmm monitor -n mn0                    what concerns one node
  gmm monitor -k ld_bound,ld_unbound    what is bound and unbound")]
pub struct MonitorArgs {
    /// Begin after the event with this number instead of now
    #[arg(long, value_name = "SEQ")]
    after: Option<u64>,
    /// Begin at this time instead of now: a time (2026-05-01T12:00:00Z) or how long ago (10m, 2h, 1d)
    #[arg(long, value_name = "TIME", conflicts_with = "after")]
    since: Option<Since>,
    /// Only these kinds of events, as in region_changed
    #[arg(short, long, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<String>,
    /// Only events about this node: a memory node's name, or a compute node's name or CN id
    #[arg(short, long, value_name = "NODE")]
    node: Option<Owner>,
    /// Only events caused by this caller, as in "token 1a2b3c4d", "uid 0", "memory node mn0"
    #[arg(long, value_name = "WHO")]
    who: Option<String>,
    /// Only events about this region
    #[arg(short, long, value_name = "NAME")]
    region: Option<Name>,
    /// End after this number of events
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print human-readable lines instead of JSON
    #[arg(short = 'u', long)]
    human: bool,
}

/// Prints events as they happen, until the requested number is reached or the command is interrupted.
///
/// # Errors
/// If the manager cannot be reached at first or refuses, or standard output is closed.
pub async fn run(client: &Client, args: MonitorArgs) -> Result<(), Failure> {
    let after = match (args.after, args.since) {
        (Some(after), _) => after,
        (None, Some(_)) => 0,
        (None, None) => client.events(EventsQuery { limit: Some(0), ..EventsQuery::default() }).await?.newest,
    };
    // Events that were removed before this command began are reported as missing only if `--after` is given.
    let mut reported = args.after.is_none();
    let mut query = EventsQuery {
        after,
        wait_ms: WAIT_MS,
        since_ms: args.since.map(Since::unix_ms),
        kind: (!args.kind.is_empty()).then(|| args.kind.join(",")),
        node: args.node.clone(),
        who: args.who.clone(),
        region: args.region.clone(),
        limit: None,
    };
    let (mut left, mut away, mut asked_before) =
        (args.count.unwrap_or(u64::MAX), false, args.after.is_none() && args.since.is_none());
    while left > 0 {
        query.limit = Some(left);
        let page = match client.events(query.clone()).await {
            Ok(page) => page,
            // The command waits only for a manager that has answered before, because at the start the URL may be wrong.
            Err(error) if asked_before && error.is_passing() => {
                if !std::mem::replace(&mut away, true) {
                    to_stderr!("Warning: {error}; waiting for it");
                }
                tokio::time::sleep(RETRY).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        asked_before = true;
        if std::mem::take(&mut away) {
            to_stderr!("the manager is back");
        }
        // A log that ends before the last printed event belongs to another store, or to a restored one.
        if page.newest < query.after {
            let (newest, after) = (page.newest, query.after);
            to_stderr!(
                "Warning: the manager's log ends at {newest}, before {after}; going on from its start"
            );
            query.after = 0;
            continue;
        }
        if page.oldest > query.after + 1 && !std::mem::take(&mut reported) {
            to_stderr!("Warning: events {} to {} are no longer kept", query.after + 1, page.oldest - 1);
        }
        reported = false;
        query.after = page.through;
        for event in page.events {
            left -= 1;
            output::line(&line(&event, args.human)?)?;
        }
    }
    Ok(())
}

fn line(event: &Event, human: bool) -> Result<String, Failure> {
    let value = output::value(event)?;
    if !human {
        return Ok(value.to_string());
    }
    let value = cxloe_daemon::command_line::for_people(value);
    if output::json_asked() {
        return Ok(value.to_string());
    }
    let fields = value.as_object().into_iter().flatten();
    let details = fields.filter(|(key, _)| !["seq", "time_ms", "event"].contains(&key.as_str()));
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let details: Vec<String> = details.map(|(key, value)| format!("{key}={}", text(value))).collect();
    Ok(format!("{} {} {} {}", text(&value["time_ms"]), event.seq, event.kind.label(), details.join(" ")))
}

#[cfg(test)]
mod tests {
    use cxloe_fabric::model::EventKind;

    use super::*;

    #[test]
    fn a_line_for_people_has_the_time_and_what_happened() {
        let kind = EventKind::MemoryNodeUnreachable { memory_node: Name::new("mn0").unwrap() };
        let event = Event { seq: 7, time_ms: 86_400_000, who: None, kind };
        assert_eq!(
            line(&event, true).unwrap(),
            "1970-01-02T00:00:00.000Z 7 memory_node_unreachable memory_node=mn0"
        );
        assert_eq!(line(&event, false).unwrap(), serde_json::to_value(&event).unwrap().to_string());
    }
}
