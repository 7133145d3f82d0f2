//! Metrics of the memory node for Prometheus: counters of its workers and their sessions, as in `mn-server counters`
//! and `mn-server sessions`.
//!
//! Metrics have the label `worker`, with at most 64 values, or `compute_node`, with at most as many values as
//! `--max-sessions` allows.

use std::time::Duration;

use cxloe_daemon::metrics::{Definition, Sample, Scrape};
use cxloe_node::metrics::LinkMetrics;

use crate::admin::{NodeStatus, WorkerStatus};

/// Age of a report that marks a worker as stuck: a loaded one reports every half second.
const STUCK: Duration = Duration::from_secs(10);

static LINK: LinkMetrics = cxloe_node::link_metrics!("cxloe_mn", ["worker"]);

cxloe_daemon::metrics_table! {
    /// Always 1; the labels say which release this is, the node's name in the fabric and the interface it serves on.
    BUILD: Gauge "cxloe_mn_build_info" ["version", "node", "interface"];
    /// Bytes of the pool, lent and free.
    POOL: Gauge "cxloe_mn_pool_bytes" [];
    /// Bytes of clones and snapshots that are not copied yet.
    COPY_LEFT: Gauge "cxloe_mn_copy_bytes_left" [];
    /// Seconds since the last report of a worker; the worker's other figures are those of that report. A
    /// stuck worker's value grows.
    AGE: Gauge "cxloe_mn_worker_report_age_seconds" ["worker"];
    /// Requests executed.
    EXECUTED: Counter "cxloe_mn_requests_executed_total" ["worker"];
    /// Frames with several requests, executed and answered as one.
    MULTI_FRAMES: Counter "cxloe_mn_multi_frames_total" ["worker"];
    /// Requests in frames with several requests.
    MULTI_REQUESTS: Counter "cxloe_mn_multi_requests_total" ["worker"];
    /// Requests refused with a Fault frame.
    REFUSED: Counter "cxloe_mn_requests_refused_total" ["worker"];
    /// Requests that arrived before an earlier one, and waited for it.
    EARLY: Counter "cxloe_mn_requests_early_total" ["worker"];
    /// Requests that came again; each was executed once.
    DUPLICATE: Counter "cxloe_mn_requests_duplicate_total" ["worker"];
    /// SackNak frames sent; each states what has arrived and what is missing.
    SACKS: Counter "cxloe_mn_sack_naks_sent_total" ["worker"];
    /// SackNakAck frames sent.
    SACK_ACKS: Counter "cxloe_mn_sack_nak_acks_sent_total" ["worker"];
    /// Congestion frames sent to compute nodes.
    CONGESTION: Counter "cxloe_mn_congestion_frames_sent_total" ["worker"];
    /// 802.1Qbb (PFC) frames sent to the switch.
    PFC: Counter "cxloe_mn_pfc_frames_sent_total" ["worker"];
    /// Whether a worker's receive queue is longer than its congestion threshold.
    CONGESTED: Gauge "cxloe_mn_congested" ["worker"];
    /// Frames dropped by the session layer, by cause: length, trailer (damaged or of another session),
    /// window, full (no room), foreign (from a sender without a session).
    DROPPED: Counter "cxloe_mn_frames_dropped_total" ["worker", "cause"];
    /// Translations of CMem addresses, by whether the TLB had them: hit, miss.
    TRANSLATIONS: Counter "cxloe_mn_translations_total" ["worker", "result"];
    /// Sessions begun.
    STARTED: Counter "cxloe_mn_sessions_started_total" ["worker"];
    /// Number of sessions at present.
    SESSIONS: Gauge "cxloe_mn_sessions" ["worker"];
    /// Requests executed for a compute node in its present session.
    SESSION_EXECUTED: Counter "cxloe_mn_session_requests_executed_total" ["compute_node"];
    /// Requests of a compute node that came again.
    SESSION_DUPLICATE: Counter "cxloe_mn_session_requests_duplicate_total" ["compute_node"];
    /// Frames of a compute node dropped, for any cause.
    SESSION_DROPPED: Counter "cxloe_mn_session_frames_dropped_total" ["compute_node"];
    /// Requests of a compute node that wait for an earlier one.
    SESSION_WAITING: Gauge "cxloe_mn_session_requests_waiting" ["compute_node"];
    /// Seconds since the last frame of a compute node.
    SESSION_IDLE: Gauge "cxloe_mn_session_idle_seconds" ["compute_node"];
}

/// All metrics, in the order of the documentation.
pub fn all() -> Vec<&'static Definition> {
    ALL.iter().copied().chain(LINK.all()).collect()
}

/// Metrics of a node with this status, a pool of `pool_bytes`, and `copy_left` bytes still to be copied to clones.
pub fn sample(status: &NodeStatus, pool_bytes: u64, copy_left: u64) -> Sample {
    let mut scrape = Scrape::new();
    scrape.set(&BUILD, &[env!("CARGO_PKG_VERSION"), &status.name, &status.interface], true);
    scrape.set(&POOL, &[], pool_bytes);
    scrape.set(&COPY_LEFT, &[], copy_left);
    LINK.state(&mut scrape, status.link_down.is_none(), status.link_reopened);
    status.workers.iter().for_each(|worker| fill(&mut scrape, worker));
    let no_link = status.link_down.as_ref().map(|down| format!("no link: {}", down.why));
    let stuck = status.workers.iter().find_map(|worker| match worker.age_ns.map(Duration::from_nanos) {
        Some(age) if age <= STUCK => None,
        Some(age) => Some(format!("worker {} has not reported for {}s", worker.worker, age.as_secs())),
        None => Some(format!("worker {} has not reported yet", worker.worker)),
    });
    Sample { scrape, unwell: stuck.or(no_link) }
}

fn fill(scrape: &mut Scrape, status: &WorkerStatus) {
    let name = status.worker.to_string();
    let worker: &[&str] = &[&name];
    // A worker that has not reported yet gets no values, because zeros would be wrong.
    let Some(age) = status.age_ns.map(Duration::from_nanos) else { return };
    let report = &status.report;
    let requests = &report.requests;
    scrape.set(&AGE, worker, age);
    LINK.count(scrape, worker, &report.link);
    for (metric, count) in [
        (&EXECUTED, requests.executed),
        (&MULTI_FRAMES, requests.multi_frames),
        (&MULTI_REQUESTS, requests.multi_requests),
        (&REFUSED, requests.faults),
        (&EARLY, requests.early),
        (&DUPLICATE, requests.duplicates),
        (&SACKS, requests.sacks),
        (&SACK_ACKS, requests.sack_acks),
        (&CONGESTION, requests.congestion),
        (&PFC, report.pfc_frames),
        (&STARTED, requests.sessions),
    ] {
        scrape.set(metric, worker, count);
    }
    scrape.set(&CONGESTED, worker, report.congested);
    scrape.set(&SESSIONS, worker, report.sessions.len());
    for (metric, label, count) in [
        (&DROPPED, "length", requests.dropped_length),
        (&DROPPED, "trailer", requests.dropped_trailer),
        (&DROPPED, "window", requests.dropped_window),
        (&DROPPED, "full", requests.dropped_full),
        (&DROPPED, "foreign", requests.dropped_foreign),
        (&TRANSLATIONS, "hit", report.tlb_hits),
        (&TRANSLATIONS, "miss", report.tlb_misses),
    ] {
        scrape.set(metric, &[&name, label], count);
    }
    for session in &report.sessions {
        let (cn, c): (&[&str], _) = (&[&session.cn], &session.counters);
        let dropped =
            c.dropped_length + c.dropped_trailer + c.dropped_window + c.dropped_full + c.dropped_foreign;
        scrape.set(&SESSION_EXECUTED, cn, c.executed);
        scrape.set(&SESSION_DUPLICATE, cn, c.duplicates);
        scrape.set(&SESSION_DROPPED, cn, dropped);
        scrape.set(&SESSION_WAITING, cn, session.waiting);
        scrape.set(&SESSION_IDLE, cn, Duration::from_nanos(session.idle_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::VERSION;
    use crate::worker::WorkerReport;
    use cxloe_link::LinkDown;

    fn node(age: Option<Duration>) -> NodeStatus {
        let report = WorkerReport { tlb_hits: 5, ..WorkerReport::default() };
        let worker = WorkerStatus { worker: 3, age_ns: age.map(|age| age.as_nanos() as u64), report };
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

    #[test]
    fn figures_of_a_worker_carry_its_number() {
        let sample = sample(&node(Some(Duration::from_millis(1500))), 1 << 30, 4096);
        assert_eq!(sample.unwell, None);
        let text = sample.scrape.encode().unwrap();
        for line in [
            "cxloe_mn_translations_total{worker=\"3\",result=\"hit\"} 5",
            "cxloe_mn_worker_report_age_seconds{worker=\"3\"} 1.5",
            "cxloe_mn_pool_bytes 1073741824",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn a_node_without_a_link_is_unwell_and_says_why() {
        let mut status = node(Some(Duration::ZERO));
        status.link_down = Some(LinkDown { why: "interface `mn0` is down".into(), for_ns: 5 });
        status.link_reopened = 2;
        let sample = sample(&status, 0, 0);
        assert!(sample.unwell.unwrap().contains("`mn0` is down"));
        let text = sample.scrape.encode().unwrap();
        for line in ["cxloe_mn_link_up 0", "cxloe_mn_link_reopened_total 2"] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn a_worker_that_does_not_report_makes_the_node_unwell_and_has_no_zeros() {
        let stuck = sample(&node(Some(STUCK + Duration::from_secs(1))), 0, 0).unwell.unwrap();
        assert!(stuck.contains("worker 3") && stuck.contains("11s"), "{stuck}");
        let new = sample(&node(None), 0, 0);
        assert!(new.unwell.unwrap().contains("not reported yet"));
        assert!(!new.scrape.encode().unwrap().contains("cxloe_mn_requests_executed_total"));
    }
}
