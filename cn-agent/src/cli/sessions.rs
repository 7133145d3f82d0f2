//! `cn-agent sessions`: the memory nodes and the state of their sessions. Printed as tables, because a session has more
//! figures than fit a line of a terminal; `--json` prints all figures.

use std::time::Duration;

use clap::Args;
use cxloe_client::client;
use cxloe_client::message::Session;
use cxloe_daemon::command_line::{Failure, breakdown, new_table, output};
use cxloe_wire::session::RequesterCounters;

use super::SocketArgs;
use super::failure::of_agent;

#[derive(Debug, Args)]
pub struct SessionsArgs {
    #[command(flatten)]
    socket: SocketArgs,
    /// JSON for programs: times in nanoseconds, rates in bits per second
    #[arg(long)]
    json: bool,
    /// With --json: human-readable times
    #[arg(short = 'u', long)]
    human: bool,
}

/// Prints the sessions, as tables or as JSON.
///
/// # Errors
/// When the agent cannot be asked, or standard output is closed.
pub fn run(args: &SessionsArgs) -> Result<(), Failure> {
    let sessions = client::sessions(&args.socket.path()).map_err(of_agent)?;
    if args.json {
        return output::print(output::value(sessions)?, args.human);
    }
    output::write(text(&sessions).as_bytes())
}

/// Tables of state, counters, and rate control, and then the reasons of memory nodes that refuse a session. With several
/// workers, each table has a column for the worker.
fn text(sessions: &[Session]) -> String {
    if sessions.is_empty() {
        return "no sessions: no attached region lies in a memory node\n".into();
    }
    let several = sessions.iter().any(|session| session.worker.is_some());
    let table = |columns: &[&'static str]| {
        let first = ["memory node"].into_iter().chain(several.then_some("worker"));
        new_table(first.chain(columns.iter().copied()))
    };
    let mut state = table(&[
        "state",
        "frames are",
        "streams",
        "window",
        "frame",
        "in flight",
        "buffered",
        "RTT",
        "variation",
        "time-out",
    ]);
    let mut counted =
        table(&["requests", "sent again", "SACKs", "early", "duplicates", "time-outs", "faults", "dropped"]);
    let mut pace = table(&["phase", "rate", "target", "pauses", "duplicates", "Congestion", "waited"]);
    let mut remarks = String::new();
    let time = |ns: u64| if ns == 0 { "-".into() } else { format!("{:.1?}", Duration::from_nanos(ns)) };
    for session in sessions {
        let (s, c) = (&session.status, &session.status.counters);
        let first = || {
            let worker = session.worker.map(|worker| worker.to_string());
            std::iter::once(session.peer().to_owned()).chain(worker)
        };
        let cells = [
            s.state.clone(),
            s.integrity.clone(),
            s.streams.to_string(),
            s.window.to_string(),
            format!("{} B", s.max_frame),
            s.unanswered.to_string(),
            s.buffered.to_string(),
            time(s.rtt_ns),
            time(s.rtt_variation_ns),
            time(s.timeout_ns),
        ];
        state.add_row(first().chain(cells).collect::<Vec<_>>());
        let numbers = [c.requests, c.retransmitted, c.sacks, c.early, c.duplicates, c.timeouts, c.faults];
        let row = first().chain(numbers.map(|n| n.to_string())).chain([drops(c)]);
        counted.add_row(row.collect::<Vec<_>>());
        if let Some(p) = &session.pace {
            let rates = [p.rate, p.target].map(|rate| format!("{:.2} Gbit/s", rate as f64 / 1e9));
            let numbers = [p.pauses, p.duplicates, c.congestion, p.delayed].map(|n| n.to_string());
            let row = first().chain([p.phase.to_string()]).chain(rates).chain(numbers);
            pace.add_row(row.collect::<Vec<_>>());
        }
        if let Some(lost) = s.path_loses {
            remarks += &format!("{}: {}\n", s.peer, cxloe_cn_core::events::narrow_path(lost, s.max_frame));
        }
        if let Some(refusal) = &session.refusal {
            remarks += &format!("{}: {refusal}\n", s.peer);
        }
    }
    let tables = [state, counted, pace].into_iter().filter(|table| table.row_count() > 0);
    tables.map(|table| format!("{table}\n")).collect::<String>() + &remarks
}

/// Numbers of dropped frames by cause; causes with zero frames are left out.
fn drops(c: &RequesterCounters) -> String {
    breakdown(&[
        ("length", c.dropped_length),
        ("trailer", c.dropped_trailer),
        ("window", c.dropped_window),
        ("unmatched", c.dropped_unmatched),
        ("full", c.dropped_full),
        ("foreign", c.dropped_foreign),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxloe_client::message::SessionPace;
    use cxloe_wire::session::RequesterStatus;

    fn session() -> Session {
        Session {
            status: RequesterStatus {
                peer: "02:00:00:00:00:02".into(),
                state: "open".into(),
                streams: 4,
                window: 256,
                max_frame: 1514,
                integrity: "insecure".into(),
                unanswered: 7,
                buffered: 3,
                rtt_ns: 12_340,
                rtt_variation_ns: 560,
                timeout_ns: 2_000_000,
                counters: RequesterCounters {
                    requests: 1000,
                    retransmitted: 12,
                    sacks: 5,
                    congestion: 8,
                    dropped_trailer: 2,
                    dropped_full: 1,
                    ..RequesterCounters::default()
                },
                ..RequesterStatus::default()
            },
            ..Session::default()
        }
    }

    fn rows(shown: &str) -> Vec<Vec<&str>> {
        let cells = |line| str::split(line, "  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        shown.lines().filter(|line| line.starts_with("02:") && line.contains("  ")).map(cells).collect()
    }

    #[test]
    fn a_session_is_a_row_in_each_table() {
        let shown = text(&[session()]);
        let found = rows(&shown);
        assert_eq!(found.len(), 2, "{shown}");
        assert_eq!(
            found[0][1..],
            ["open", "insecure", "4", "256", "1514 B", "7", "3", "12.3µs", "560.0ns", "2.0ms"]
        );
        assert_eq!(found[1][1..], ["1000", "12", "5", "0", "0", "0", "0", "trailer 2, full 1"]);
        assert!(!shown.contains("worker"), "one worker is not named: {shown}");
    }

    #[test]
    fn several_workers_have_a_column() {
        let of = |worker, peer: &str| {
            let session = session();
            let status = RequesterStatus { peer: peer.into(), ..session.status };
            Session { status, worker: Some(worker), ..session }
        };
        let shown = text(&[of(0, "02:00:00:00:00:02"), of(1, "02:00:00:00:00:02 worker 1")]);
        let found = rows(&shown);
        assert_eq!(found.len(), 4, "{shown}");
        for (row, worker) in found.iter().zip(["0", "1", "0", "1"]) {
            assert_eq!(row[..2], ["02:00:00:00:00:02", worker], "{shown}");
        }
        assert_eq!(shown.lines().filter(|line| line.starts_with("memory node  ")).count(), 2, "{shown}");
        assert!(shown.lines().next().is_some_and(|head| head.contains("worker")), "{shown}");
    }

    #[test]
    fn pace_and_refusal_are_shown_where_there_is_one() {
        let pace = SessionPace {
            phase: 'c',
            rate: 7_500_000_000,
            target: 10_000_000_000,
            pauses: 3,
            duplicates: 2,
            delayed: 9,
        };
        let refusal = "the memory node refuses; upgrade it".to_owned();
        let shown = text(&[Session { pace: Some(pace), refusal: Some(refusal), ..session() }]);
        assert_eq!(rows(&shown)[2][1..], ["c", "7.50 Gbit/s", "10.00 Gbit/s", "3", "2", "8", "9"]);
        assert!(shown.ends_with("02:00:00:00:00:02: the memory node refuses; upgrade it\n"), "{shown}");
        assert!(text(&[]).starts_with("no sessions"));
    }
}
