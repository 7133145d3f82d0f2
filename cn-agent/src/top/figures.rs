//! Activity between two snapshots of an agent: rates, hit rates, fault times, by region, by memory node and by worker.

mod workers;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::Snapshot;
use cxloe_client::message::{Attaching, PagingView, Session};
use cxloe_cn_core::fault_times::Histogram;
pub use workers::WorkerFigures;

/// Activity of an agent between two snapshots. Rates are per second over the time between the snapshots; shares are 0
/// to 1, and `None` if nothing was counted.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Time of the later snapshot in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// Interval of the rates in nanoseconds; 0 if there is only one snapshot, and so no rate.
    pub interval_ns: u64,
    /// CN id of the compute node: the address of its link.
    pub cn: String,
    /// Name of the compute node in the fabric.
    pub name: String,
    /// URL of the manager.
    pub manager: String,
    /// Whether the manager has suspended the node.
    pub held: bool,
    /// Backend of the link: `xdp`, `packet` or `pnet`.
    pub backend: String,
    /// Line reads by programs.
    pub reads_per_s: f64,
    /// Share of the line reads that the line cache answered.
    pub read_hits: Option<f64>,
    /// Line writes by programs.
    pub writes_per_s: f64,
    /// Share of the line writes that went to the line cache.
    pub write_hits: Option<f64>,
    pub burst_reads_per_s: f64,
    pub burst_writes_per_s: f64,
    /// Operations that failed, of all kinds.
    pub failures_per_s: f64,
    pub in_flight: usize,
    /// Number of dirty lines that are kept until their memory node answers again.
    pub stranded: usize,
    /// Number of ports that programs have open.
    pub ports: usize,
    pub faults: Faults,
    pub traffic: Traffic,
    /// Figures of the workers, by number; empty if the agent has one worker.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerFigures>,
    /// Figures of the regions, sorted by name.
    pub regions: Vec<RegionFigures>,
    /// Figures of the sessions, sorted by the memory node's address.
    pub sessions: Vec<SessionFigures>,
}

/// Page faults and paging of all mapped regions.
#[derive(Clone, Debug, Serialize)]
pub struct Faults {
    /// Faults on absent pages.
    pub per_s: f64,
    /// Share of these faults that was served locally: by zeros, or by pages fetched ahead.
    pub hits: Option<f64>,
    /// Median duration in nanoseconds, from the agent's reading of the fault to the page in place.
    pub p50_ns: Option<u64>,
    /// 99th percentile of the durations in nanoseconds.
    pub p99_ns: Option<u64>,
    /// Distribution of durations in the agent's buckets.
    pub times: Histogram,
    /// Pages fetched ahead.
    pub ahead_per_s: f64,
    /// Share of the pages fetched ahead that was used.
    pub ahead_hits: Option<f64>,
    /// Pages evicted from this machine's memory.
    pub evicted_per_s: f64,
    /// Changed pages written back to memory nodes.
    pub written_back_per_s: f64,
    /// Faults that had to wait because the limit of resident bytes was reached.
    pub room_waits_per_s: f64,
}

/// Frames on the link, with their bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Traffic {
    pub rx_bytes_per_s: f64,
    pub tx_bytes_per_s: f64,
    pub rx_frames_per_s: f64,
    pub tx_frames_per_s: f64,
    /// Received frames that the kernel dropped.
    pub rx_dropped_per_s: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct RegionFigures {
    pub region: String,
    /// Size of the region in bytes.
    pub size: u64,
    /// State of the region, with the obstacle to its use, if any.
    pub state: String,
    /// Backend that serves the region: Ethernet or a device.
    pub served_by: String,
    /// Number of the worker that serves the region; `None` if the agent has one worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<usize>,
    /// Number of memory nodes that hold parts of the region.
    pub memory_nodes: usize,
    /// Resident bytes; `None` if the region is not mapped.
    pub resident: Option<u64>,
    /// Limit of resident bytes; `None` if the region is not mapped.
    pub limit: Option<u64>,
    /// Number of processes that map the region.
    pub processes: usize,
    /// Faults on absent pages of the region.
    pub faults_per_s: f64,
    /// Share of these faults that was served locally.
    pub fault_hits: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct SessionFigures {
    /// Address of the memory node.
    pub peer: String,
    /// Name of the memory node, if it holds a part of an attached region.
    pub memory_node: Option<String>,
    /// Name of the memory node, or its address while the name is unknown; and, with several queues, the queue.
    #[serde(skip)]
    pub label: String,
    /// Number of the worker that has the session; `None` if the agent has one worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<usize>,
    pub state: String,
    /// Round-trip time in nanoseconds; 0 before the first sample.
    pub rtt_ns: u64,
    pub in_flight: usize,
    /// Requests sent, without retransmissions.
    pub requests_per_s: f64,
    pub resent_per_s: f64,
    /// Number of retransmitted requests since the start of the requester.
    pub resent: u64,
    pub timeouts_per_s: f64,
    /// Frames dropped, for any cause.
    pub dropped_per_s: f64,
    /// Phase of the rate controller, `a` to `f`; `None` without rate control.
    pub phase: Option<char>,
    /// Permitted rate of requests, in bits per second.
    pub rate: Option<u64>,
    /// Pause signals that were applied.
    pub pauses_per_s: f64,
    /// Reason for which the memory node refuses the session.
    pub refusal: Option<String>,
    /// Protection of frames: `sealed`, `sealed (pre-shared)` or `insecure`.
    pub integrity: String,
}

/// Converts two counts to a rate; the field is the time between the snapshots in seconds.
struct Rates(f64);

impl Rates {
    fn per_s(&self, before: u64, now: u64) -> f64 {
        // After a restart of the agent, counters begin at 0: the difference counts as 0 then.
        if self.is_known() { now.saturating_sub(before) as f64 / self.0 } else { 0.0 }
    }

    /// Whether there are two snapshots, and so rates.
    fn is_known(&self) -> bool {
        self.0 > 0.0
    }
}

/// Increase of the part divided by the increase of the whole between two snapshots, each given as (part,
/// whole).
fn share(before: (u64, u64), now: (u64, u64)) -> Option<f64> {
    let (part, whole) = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl Figures {
    /// Activity from `before` to `now`. Without an earlier snapshot there are no rates, and shares and durations count
    /// from the start of the agent.
    pub fn between(before: Option<&Snapshot>, now: &Snapshot) -> Figures {
        let interval = before.map_or(Duration::ZERO, |before| now.at.since(before.at));
        let rates = Rates(interval.as_secs_f64());
        let none = Snapshot::default();
        let before = before.unwrap_or(&none);
        let (e, f) = (&before.counters.engine, &now.counters.engine);
        let (l, m) = (&before.counters.link, &now.counters.link);
        let (p, q) = (&before.counters.paging, &now.counters.paging);
        let times = now.counters.fault_times.all().since(&before.counters.fault_times.all());
        let ns = |share| times.quantile(share).map(|time| time.as_nanos() as u64);
        Figures {
            unix_ms: now.unix_ms,
            interval_ns: interval.as_nanos() as u64,
            cn: now.node.cn.clone(),
            name: now.node.name.clone(),
            manager: now.node.manager.clone(),
            held: now.node.held,
            backend: now.counters.backend.clone(),
            reads_per_s: rates.per_s(e.read_hits + e.read_misses, f.read_hits + f.read_misses),
            read_hits: share(
                (e.read_hits, e.read_hits + e.read_misses),
                (f.read_hits, f.read_hits + f.read_misses),
            ),
            writes_per_s: rates.per_s(e.write_hits + e.write_misses, f.write_hits + f.write_misses),
            write_hits: share(
                (e.write_hits, e.write_hits + e.write_misses),
                (f.write_hits, f.write_hits + f.write_misses),
            ),
            burst_reads_per_s: rates.per_s(e.burst_reads, f.burst_reads),
            burst_writes_per_s: rates.per_s(e.burst_writes, f.burst_writes),
            failures_per_s: rates.per_s(e.failures, f.failures),
            in_flight: now.counters.in_flight,
            stranded: now.counters.stranded,
            ports: now.counters.clients,
            faults: Faults {
                per_s: rates.per_s(p.faults, q.faults),
                hits: share((p.local_faults(), p.faults), (q.local_faults(), q.faults)),
                p50_ns: ns(0.5),
                p99_ns: ns(0.99),
                ahead_per_s: rates.per_s(p.prefetched, q.prefetched),
                ahead_hits: share(
                    (p.prefetch_hits, p.prefetch_hits + p.prefetch_wasted),
                    (q.prefetch_hits, q.prefetch_hits + q.prefetch_wasted),
                ),
                evicted_per_s: rates.per_s(p.evicted, q.evicted),
                written_back_per_s: rates.per_s(p.written_back, q.written_back),
                room_waits_per_s: rates.per_s(p.waits_for_room, q.waits_for_room),
                times,
            },
            traffic: Traffic {
                rx_bytes_per_s: rates.per_s(l.rx_bytes, m.rx_bytes),
                tx_bytes_per_s: rates.per_s(l.tx_bytes, m.tx_bytes),
                rx_frames_per_s: rates.per_s(l.rx_frames, m.rx_frames),
                tx_frames_per_s: rates.per_s(l.tx_frames, m.tx_frames),
                rx_dropped_per_s: rates.per_s(l.rx_dropped, m.rx_dropped),
            },
            workers: workers::workers(before, now, &rates),
            regions: regions(before, now, &rates),
            sessions: sessions(before, now, &rates),
        }
    }
}

fn regions(before: &Snapshot, now: &Snapshot, rates: &Rates) -> Vec<RegionFigures> {
    let earlier: BTreeMap<u64, &PagingView> = before.mappings.iter().map(|view| (view.space, view)).collect();
    let mapped: BTreeMap<&str, &PagingView> =
        now.mappings.iter().map(|view| (view.region.as_str(), view)).collect();
    let figures = |region: &cxloe_client::message::AttachedRegion| {
        let view = mapped.get(region.region.as_str()).copied();
        let counters = view.map(|view| view.counters).unwrap_or_default();
        let known = view.and_then(|view| earlier.get(&view.space)).map(|view| view.counters);
        let known = known.unwrap_or_default();
        let nodes: std::collections::BTreeSet<&str> =
            region.memory_nodes.iter().map(|leg| leg.mac.as_str()).collect();
        let standing = match region.attachment {
            Attaching::Attached => None,
            Attaching::Connecting => Some("connecting"),
            Attaching::Draining => Some("letting go"),
            Attaching::Detached => Some("detached"),
            Attaching::InReset => Some("held"),
            Attaching::Waiting => Some("waiting"),
        };
        RegionFigures {
            region: region.region.clone(),
            size: region.size,
            state: standing.map_or_else(|| region.state.clone(), |how| format!("{}, {how}", region.state)),
            served_by: region.served_by.clone(),
            worker: (!now.workers.is_empty()).then_some(region.worker),
            memory_nodes: nodes.len(),
            resident: view.map(|view| view.resident),
            limit: view.map(|view| view.limit),
            processes: view.map_or(0, |view| view.members.len()),
            faults_per_s: rates.per_s(known.faults, counters.faults),
            fault_hits: share(
                (known.local_faults(), known.faults),
                (counters.local_faults(), counters.faults),
            ),
        }
    };
    now.regions.iter().map(figures).collect()
}

fn sessions(before: &Snapshot, now: &Snapshot, rates: &Rates) -> Vec<SessionFigures> {
    let legs = now.regions.iter().flat_map(|region| &region.memory_nodes);
    let names: BTreeMap<&str, &str> = legs.map(|leg| (leg.mac.as_str(), leg.memory_node.as_str())).collect();
    let earlier: BTreeMap<&str, &Session> =
        before.sessions.iter().map(|session| (session.status.peer.as_str(), session)).collect();
    let figures = |session: &Session| {
        let (s, c) = (&session.status, &session.status.counters);
        let known = earlier.get(s.peer.as_str()).copied();
        let b = known.map(|session| session.status.counters).unwrap_or_default();
        let dropped = |c: &cxloe_wire::session::RequesterCounters| {
            c.dropped_length
                + c.dropped_trailer
                + c.dropped_window
                + c.dropped_unmatched
                + c.dropped_full
                + c.dropped_foreign
        };
        let pauses = |session: &Session| session.pace.as_ref().map_or(0, |pace| pace.pauses);
        let (address, queue) = session.peer().split_once(' ').unwrap_or((session.peer(), ""));
        let name = names.get(address).copied();
        SessionFigures {
            peer: s.peer.clone(),
            memory_node: name.map(str::to_owned),
            label: format!("{} {queue}", name.unwrap_or(address)).trim_end().to_owned(),
            worker: session.worker,
            state: s.state.clone(),
            rtt_ns: s.rtt_ns,
            in_flight: s.unanswered,
            requests_per_s: rates.per_s(b.requests, c.requests),
            resent_per_s: rates.per_s(b.retransmitted, c.retransmitted),
            resent: c.retransmitted,
            timeouts_per_s: rates.per_s(b.timeouts, c.timeouts),
            dropped_per_s: rates.per_s(dropped(&b), dropped(c)),
            phase: session.pace.as_ref().map(|pace| pace.phase),
            rate: session.pace.as_ref().map(|pace| pace.rate),
            pauses_per_s: rates.per_s(known.map_or(0, pauses), pauses(session)),
            refusal: session.refusal.clone(),
            integrity: s.integrity.clone(),
        }
    };
    now.sessions.iter().map(figures).collect()
}
