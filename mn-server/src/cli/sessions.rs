//! `mn-server sessions`: the sessions with compute nodes, their state and counters.

use std::time::Duration;

use cxloe_daemon::command_line::{Failure, breakdown, new_table, output};
use cxloe_mn::admin::NodeStatus;
use cxloe_wire::session::{ResponderCounters, SessionStatus};
use serde::Serialize;
use serde_json::Value;

/// Line below the tables that names the command for the figures that only compute nodes record.
const ELSEWHERE: &str = "Round-trip times, time-outs and retransmissions are recorded by the compute node: `cn-agent sessions` there.\n";

/// A session in JSON output, with data of its worker.
#[derive(Serialize)]
struct Row<'s> {
    worker: usize,
    /// Age of the worker's report in nanoseconds.
    age_ns: Option<u64>,
    /// Maximum number of unanswered reads of a stream, and of unanswered writes.
    window: usize,
    #[serde(flatten)]
    session: &'s SessionStatus,
}

fn rows(status: &NodeStatus) -> impl Iterator<Item = Row<'_>> {
    let window = status.window;
    status.workers.iter().flat_map(move |worker| {
        let (worker, age_ns, sessions) = (worker.worker, worker.age_ns, &worker.report.sessions);
        sessions.iter().map(move |session| Row { worker, age_ns, window, session })
    })
}

/// Sessions of all workers as JSON.
///
/// # Errors
/// A node's answer always has a JSON form, so that no error occurs.
pub fn json(status: &NodeStatus) -> Result<Value, Failure> {
    output::value(rows(status).collect::<Vec<_>>())
}

/// Sessions of all workers as two tables: state, then counters.
pub fn text(status: &NodeStatus) -> String {
    if rows(status).next().is_none() {
        return "no sessions: no compute node is connected\n".into();
    }
    let mut state = new_table([
        "compute node",
        "frames are",
        "worker",
        "streams",
        "window",
        "frame",
        "waiting",
        "buffered",
        "idle",
    ]);
    let mut counted = new_table([
        "compute node",
        "executed",
        "early",
        "duplicates",
        "SackNak",
        "SackNakAck",
        "Congestion",
        "faults",
        "dropped",
    ]);
    for Row { worker, window, session: s, .. } in rows(status) {
        state.add_row([
            s.cn.clone(),
            s.integrity.clone(),
            worker.to_string(),
            s.streams.to_string(),
            window.to_string(),
            format!("{} B", s.max_frame),
            s.waiting.to_string(),
            s.buffered.to_string(),
            format!("{:.1?}", Duration::from_nanos(s.idle_ns)),
        ]);
        let c = &s.counters;
        let numbers = [c.executed, c.early, c.duplicates, c.sacks, c.sack_acks, c.congestion, c.faults];
        let row = std::iter::once(s.cn.clone()).chain(numbers.map(|n| n.to_string())).chain([drops(c)]);
        counted.add_row(row.collect::<Vec<_>>());
    }
    format!("{state}\n{counted}\n{ELSEWHERE}")
}

/// Text of the frames dropped, by cause; causes without a frame are left out.
fn drops(c: &ResponderCounters) -> String {
    breakdown(&[
        ("length", c.dropped_length),
        ("trailer", c.dropped_trailer),
        ("window", c.dropped_window),
        ("full", c.dropped_full),
        ("foreign", c.dropped_foreign),
        ("mac", c.dropped_mac),
        ("handshake", c.dropped_handshake),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxloe_mn::admin::{VERSION, WorkerStatus};
    use cxloe_mn::worker::WorkerReport;

    fn node(sessions: Vec<SessionStatus>) -> NodeStatus {
        let report = WorkerReport { sessions, ..WorkerReport::default() };
        let worker = WorkerStatus { worker: 3, age_ns: Some(1), report };
        NodeStatus {
            version: VERSION,
            name: "mn1".into(),
            interface: "mn0".into(),
            window: 256,
            link_down: None,
            link_reopened: 0,
            workers: vec![worker],
        }
    }

    fn session() -> SessionStatus {
        SessionStatus {
            integrity: "insecure".into(),
            cn: "02:00:00:00:00:01".into(),
            streams: 4,
            max_frame: 1514,
            waiting: 5,
            buffered: 6,
            idle_ns: 1_500_000,
            counters: ResponderCounters {
                executed: 70,
                sacks: 8,
                sack_acks: 9,
                dropped_trailer: 2,
                dropped_foreign: 1,
                ..ResponderCounters::default()
            },
        }
    }

    #[test]
    fn a_session_is_a_row_in_both_tables() {
        let shown = text(&node(vec![session()]));
        let rows: Vec<Vec<&str>> = shown
            .lines()
            .filter(|line| line.contains("02:00"))
            .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
            .collect();
        assert_eq!(rows[0], ["02:00:00:00:00:01", "insecure", "3", "4", "256", "1514 B", "5", "6", "1.5ms"]);
        assert_eq!(rows[1][1..], ["70", "0", "0", "8", "9", "0", "0", "trailer 2, foreign 1"]);
        assert!(shown.contains("cn-agent sessions"));
    }

    #[test]
    fn json_names_worker_and_window_beside_the_session() {
        let value = json(&node(vec![session()])).unwrap();
        assert_eq!((&value[0]["worker"], &value[0]["window"]), (&3.into(), &256.into()));
        assert_eq!(value[0]["counters"]["sack_acks"], 9);
        assert_eq!(json(&node(vec![])).unwrap(), serde_json::json!([]));
        assert!(text(&node(vec![])).starts_with("no sessions"));
    }
}
