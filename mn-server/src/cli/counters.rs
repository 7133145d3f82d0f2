//! `mn-server counters`: counters of the workers, one column per worker.

use cxloe_daemon::command_line::{Failure, new_table, output};
use cxloe_mn::admin::NodeStatus;
use cxloe_mn::worker::WorkerReport;
use serde_json::Value;

type CounterColumn = (&'static str, fn(&WorkerReport) -> u64);

const LINES: &[CounterColumn] = &[
    ("requests executed", |r| r.requests.executed),
    ("requests refused (Fault)", |r| r.requests.faults),
    ("requests early", |r| r.requests.early),
    ("requests duplicate", |r| r.requests.duplicates),
    ("SackNak sent", |r| r.requests.sacks),
    ("SackNakAck sent", |r| r.requests.sack_acks),
    ("Congestion sent", |r| r.requests.congestion),
    ("PFC frames sent", |r| r.pfc_frames),
    ("sessions started", |r| r.requests.sessions),
    ("dropped: length", |r| r.requests.dropped_length),
    ("dropped: trailer", |r| r.requests.dropped_trailer),
    ("dropped: window", |r| r.requests.dropped_window),
    ("dropped: no room", |r| r.requests.dropped_full),
    ("dropped: foreign", |r| r.requests.dropped_foreign),
    ("frames received", |r| r.link.rx_frames),
    ("bytes received", |r| r.link.rx_bytes),
    ("frames sent", |r| r.link.tx_frames),
    ("bytes sent", |r| r.link.tx_bytes),
    ("dropped by the kernel", |r| r.link.rx_dropped),
    ("no slot to send", |r| r.link.tx_full),
    ("sending failed", |r| r.link.tx_errors),
    ("outer address forged", |r| r.link.rx_forged),
    ("datagrams without a frame", |r| r.link.rx_foreign),
    ("no address to send to", |r| r.link.tx_unknown),
    ("TLB hits", |r| r.tlb_hits),
    ("TLB misses", |r| r.tlb_misses),
];

/// Reports of the workers as JSON, without their sessions, which `mn-server sessions` shows.
///
/// # Errors
/// A node's answer always has a JSON form, so that no error occurs.
pub fn json(status: &NodeStatus) -> Result<Value, Failure> {
    let mut workers = output::value(&status.workers)?;
    for worker in workers.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        worker.remove("sessions");
    }
    Ok(workers)
}

/// Reports of the workers as a table; with several workers, their sums first.
pub fn text(status: &NodeStatus) -> String {
    let workers = &status.workers;
    let several = workers.len() > 1;
    let names = workers.iter().map(|worker| format!("worker {}", worker.worker));
    let mut table =
        new_table(["counter".to_owned()].into_iter().chain(several.then(|| "all".into())).chain(names));
    for (name, number) in LINES {
        let numbers: Vec<u64> = workers.iter().map(|worker| number(&worker.report)).collect();
        let sum = several.then(|| numbers.iter().sum::<u64>());
        let cells = sum.into_iter().chain(numbers).map(|n| n.to_string());
        table.add_row(std::iter::once((*name).to_owned()).chain(cells).collect::<Vec<_>>());
    }
    format!("{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxloe_mn::admin::{VERSION, WorkerStatus};

    #[test]
    fn workers_are_columns_and_their_sum_comes_first() {
        let worker = |worker: usize, hits| WorkerStatus {
            worker,
            age_ns: Some(1),
            report: WorkerReport { tlb_hits: hits, ..WorkerReport::default() },
        };
        let mut node = NodeStatus {
            version: VERSION,
            name: "mn1".into(),
            interface: "mn0".into(),
            window: 256,
            link_down: None,
            link_reopened: 0,
            workers: vec![worker(0, 5), worker(1, 7)],
        };
        let row = |shown: &str| -> Vec<String> {
            let line = shown.lines().find(|line| line.contains("TLB hits")).unwrap();
            line.split("  ").map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
        };
        assert_eq!(row(&text(&node)), ["TLB hits", "12", "5", "7"]);
        let value = json(&node).unwrap();
        assert_eq!((&value[1]["worker"], &value[1]["tlb_hits"]), (&1.into(), &7.into()));
        assert!(value[1].get("sessions").is_none());
        node.workers.pop();
        assert_eq!(row(&text(&node)), ["TLB hits", "5"]);
    }
}
