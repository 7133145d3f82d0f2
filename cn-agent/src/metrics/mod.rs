//! The agent's metrics for Prometheus: the figures of `cn-agent list`, `sessions`, `counters` and `paging`.
//!
//! ```text
//!   metrics thread --Order::Report, Order::Paging--> each worker: copies its counters, between two rounds
//!                  --RegionListing--> regions, from the manager's last answer
//! ```
//!
//! Labels are the names of attached regions and the addresses of memory nodes that hold parts of them. Counters of a
//! program that serves its own faults ([`inline`](cxloe_port::inline)) are in that program, and not here.

mod table;

use std::time::Duration;

use cxloe_daemon::metrics::{Definition, Sample, Scrape};
use cxloe_wire::session::RequesterCounters;
use tokio::time::timeout;

use crate::region_controller::RegionListing;
use crate::worker::Workers;
use crate::worker::order::WorkerReport;
use crate::worker::workers::named;
use cxloe_client::message::{AttachedRegion, Attaching, Counters, PagingView, Session};
use cxloe_cn_core::fault_times::{BOUNDS_NS, Histogram};
use table::*;

/// Longest wait for the workers' reports.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// All states of a region in the manager's answer: values of a label, and one time series each.
const REGION_STATES: [&str; 8] =
    ["active", "exposed", "degraded", "creating", "lost", "releasing", "disabled", "draining"];
/// All states of a session, as values of a label.
const SESSION_STATES: [&str; 4] = ["open", "connecting", "suspect", "closed"];
/// All phases of the rate controller, as values of a label.
const PHASES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// All metrics, in the order of the documentation.
pub fn all() -> Vec<&'static Definition> {
    ALL.iter().copied().chain(LINK_METRICS.all()).collect()
}

/// Sources from which a scrape reads its figures.
#[derive(Clone, Debug)]
pub struct MetricsSource {
    /// The node's name in the fabric.
    pub name: String,
    /// Name of the interface that the node uses.
    pub interface: String,
    /// Shared view of the attached regions.
    pub listing: RegionListing,
    /// Senders of orders, by which the workers are asked for their reports.
    pub workers: Workers,
}

/// Collects the figures of one scrape. If a worker does not answer, the figures of all workers are missing.
pub async fn sample(source: MetricsSource) -> Sample {
    let mut scrape = Scrape::new();
    let node = source.listing.node();
    let release = env!("CARGO_PKG_VERSION");
    scrape.set(&BUILD, &[release, &source.name, &node.cn, &source.interface], true);
    scrape.set(&HELD, &[], node.held);
    source.listing.regions().iter().for_each(|region| of_region(&mut scrape, region));
    let asked = async {
        (source.workers.reports().await, source.workers.ask_all(|spaces| spaces.report(None)).await)
    };
    let (responding, unwell) = match timeout(ANSWER_MAX, asked).await {
        Ok((Some(reports), Some(views))) => {
            let mut sum = None;
            for (worker, WorkerReport { sessions, counters, .. }) in reports.into_iter().enumerate() {
                named(worker, sessions).iter().for_each(|session| of_session(&mut scrape, session));
                of_worker(&mut scrape, worker, &counters);
                sum = Some(sum.map_or_else(|| counters.clone(), |sum: Counters| sum.plus(&counters)));
            }
            let sum = sum.unwrap_or_default();
            of_counters(&mut scrape, &sum);
            views.iter().flatten().for_each(|view| of_mapping(&mut scrape, view));
            (true, sum.link_down.map(|down| format!("no link: {}", down.why)))
        }
        Ok(_) => (false, Some("a worker has ended, or takes no orders".to_owned())),
        Err(_) => (false, Some(format!("a worker has not answered within {}s", ANSWER_MAX.as_secs()))),
    };
    scrape.set(&RESPONDING, &[], responding);
    Sample { scrape, unwell }
}

fn of_region(scrape: &mut Scrape, region: &AttachedRegion) {
    let name = region.region.as_str();
    scrape.set(&REGION_BYTES, &[name, &region.served_by], region.size);
    scrape.set(&REGION_ATTACHED, &[name], region.attachment == Attaching::Attached);
    scrape.state(&REGION_STATE, &[name], &REGION_STATES, &region.state);
}

fn of_session(scrape: &mut Scrape, session: &Session) {
    let (s, c) = (&session.status, &session.status.counters);
    let peer: &[&str] = &[&s.peer];
    scrape.state(&SESSION_STATE, peer, &SESSION_STATES, &s.state);
    scrape.set(&SESSION_REFUSED, peer, session.refusal.is_some());
    // Before the first round-trip sample the metric is left out, because 0 would be taken for a measurement.
    for (metric, ns) in [(&RTT, s.rtt_ns), (&RTT_VARIATION, s.rtt_variation_ns), (&TIMEOUT, s.timeout_ns)] {
        if ns > 0 {
            scrape.set(metric, peer, Duration::from_nanos(ns));
        }
    }
    scrape.set(&SESSION_IN_FLIGHT, peer, s.unanswered);
    for (metric, count) in session_counters(c) {
        scrape.set(metric, peer, count);
    }
    for (cause, count) in [
        ("length", c.dropped_length),
        ("trailer", c.dropped_trailer),
        ("window", c.dropped_window),
        ("unmatched", c.dropped_unmatched),
        ("full", c.dropped_full),
        ("foreign", c.dropped_foreign),
    ] {
        scrape.set(&DROPPED, &[&s.peer, cause], count);
    }
    let Some(pace) = &session.pace else { return };
    scrape.state(&PHASE, peer, &PHASES, pace.phase.encode_utf8(&mut [0; 4]));
    scrape.set(&RATE, peer, pace.rate as f64 / 8.0);
    scrape.set(&TARGET, peer, pace.target as f64 / 8.0);
    scrape.set(&PAUSES, peer, pace.pauses);
    scrape.set(&PAUSES_DUPLICATE, peer, pace.duplicates);
    scrape.set(&PACE_WAITS, peer, pace.delayed);
}

fn of_worker(scrape: &mut Scrape, worker: usize, counters: &Counters) {
    let worker: &[&str] = &[&worker.to_string()];
    scrape.set(&WORKER_PORTS, worker, counters.clients);
    scrape.set(&WORKER_FAULTS, worker, counters.paging.faults);
    scrape.set(&WORKER_FRAMES_IN, worker, counters.link.rx_frames);
    scrape.set(&WORKER_FRAMES_OUT, worker, counters.link.tx_frames);
}

fn session_counters(c: &RequesterCounters) -> [(&'static Definition, u64); 14] {
    [
        (&REQUESTS, c.requests),
        (&MULTI_FRAMES, c.multi_frames),
        (&MULTI_REQUESTS, c.multi_requests),
        (&ANSWERED, c.answered),
        (&RETRANSMITTED, c.retransmitted),
        (&RETRANSMITTED_BYTES, c.retransmitted_bytes),
        (&SACKS, c.sacks),
        (&PROBES, c.probes),
        (&TIMEOUTS, c.timeouts),
        (&EARLY, c.early),
        (&DUPLICATES, c.duplicates),
        (&FAULTS, c.faults),
        (&CONGESTION, c.congestion),
        (&SESSIONS_OPENED, c.sessions),
    ]
}

fn of_counters(scrape: &mut Scrape, counters: &Counters) {
    let (e, p) = (&counters.engine, &counters.paging);
    scrape.set(&LINK, &[&counters.backend], true);
    LINK_METRICS.state(scrape, counters.link_down.is_none(), counters.link_reopened);
    LINK_METRICS.count(scrape, &[], &counters.link);
    for (metric, label, count) in [
        (&LINE_READS, "hit", e.read_hits),
        (&LINE_READS, "miss", e.read_misses),
        (&LINE_WRITES, "hit", e.write_hits),
        (&LINE_WRITES, "miss", e.write_misses),
        (&BURSTS, "read", e.burst_reads),
        (&BURSTS, "write", e.burst_writes),
        (&LOCAL, "read", e.local_reads),
        (&LOCAL, "write", e.local_writes),
        (&UNMAPPED, "error", e.unmapped_errors),
        (&UNMAPPED, "poison", e.unmapped_poisoned),
        (&UNMAPPED, "ones", e.unmapped_ones),
        (&UNMAPPED, "dropped", e.unmapped_dropped),
        (&PAUSE_SIGNALS, "link", e.pauses_link),
        (&PAUSE_SIGNALS, "nic", e.pauses_nic),
        (&PAUSE_SIGNALS, "memory_node", e.pauses_mn),
        (&PAGES_FETCHED, "demand", p.fetched),
        (&PAGES_FETCHED, "ahead", p.prefetched),
        (&PREFETCHED, "hit", p.prefetch_hits),
        (&PREFETCHED, "wasted", p.prefetch_wasted),
    ] {
        scrape.set(metric, &[label], count);
    }
    for (metric, count) in [
        (&WRITE_BACKS, e.write_backs),
        (&FAILURES, e.failures),
        (&PORTS_BROKEN, counters.broken_clients),
        (&PAGE_FAULTS, p.faults),
        (&PAGE_FAULTS_ZERO, p.zero_fills),
        (&PAGE_WRITE_FAULTS, p.write_faults),
        (&ROOM_WAITS, p.waits_for_room),
        (&EVICTED, p.evicted),
        (&REFAULTED, p.refaulted),
        (&WRITTEN_BACK, p.written_back),
        (&LINES_WRITTEN_BACK, p.lines_written_back),
        (&CANCELLED, p.cancelled),
        (&DISCARDED, p.discarded),
        (&LOST, p.lost),
        (&WRITE_BACK_FAILURES, p.write_back_failures),
        (&FORKS, p.forks),
    ] {
        scrape.set(metric, &[], count);
    }
    scrape.set(&PORTS, &[], counters.clients);
    scrape.set(&IN_FLIGHT, &[], counters.in_flight);
    scrape.set(&STRANDED, &[], counters.stranded);
    let bounds = BOUNDS_NS.map(Duration::from_nanos);
    let times = &counters.fault_times;
    for (kind, seen) in [("local", &times.local), ("fetch", &times.fetch), ("room", &times.room)] {
        let Histogram { counts, sum_ns } = seen;
        scrape.histogram(&FAULT_TIME, &[kind], &bounds, counts, Duration::from_nanos(*sum_ns));
    }
}

fn of_mapping(scrape: &mut Scrape, view: &PagingView) {
    let region: &[&str] = &[&view.region];
    scrape.set(&RESIDENT, region, view.resident);
    scrape.set(&LIMIT, region, view.limit);
    scrape.set(&MEMBERS, region, view.members.len());
    scrape.set(&MAPPING_FAULTS, region, view.counters.faults);
    scrape.set(&MAPPING_LOST, region, view.counters.lost);
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxloe_cn_core::fault_times::FaultTimes;

    #[test]
    fn counters_and_times_become_text() {
        let mut times = FaultTimes::default();
        times.fetch.record(Duration::from_micros(16));
        let counters = Counters { fault_times: times, backend: "xdp".into(), ..Counters::default() };
        let mut scrape = Scrape::new();
        of_counters(&mut scrape, &counters);
        let text = scrape.encode().unwrap();
        for line in [
            "cxloe_cn_page_fault_duration_seconds_bucket{kind=\"fetch\",le=\"0.00002\"} 1",
            "cxloe_cn_page_fault_duration_seconds_bucket{kind=\"fetch\",le=\"0.000015\"} 0",
            "cxloe_cn_page_fault_duration_seconds_sum{kind=\"fetch\"} 0.000016",
            "cxloe_cn_line_reads_total{result=\"hit\"} 0",
            "cxloe_cn_link_info{backend=\"xdp\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn states_of_the_manager_are_parsed() {
        use cxloe_fabric::model::RegionState::*;
        let all = [Active, Exposed, Degraded, Creating, Lost, Releasing, Disabled, Draining];
        assert_eq!(all.map(|state| state.to_string()), REGION_STATES);
    }
}
