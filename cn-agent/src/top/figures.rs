//! What happened between two snapshots of an agent: rates, hit rates, fault times, by region and by memory node.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::Snapshot;
use cxloe_client::message::{Attaching, PagingView, Session};
use cxloe_cn_core::fault_times::Histogram;

/// What an agent is doing. Rates are per second, over the time between two snapshots; shares are 0 to 1, and missing
/// when there was nothing to share.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// When, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// The time that rates are of, in nanoseconds; 0 when there was one snapshot only, so that there are no rates.
    pub interval_ns: u64,
    /// The CN id.
    pub cn: String,
    /// The compute node's name.
    pub name: String,
    /// The manager.
    pub manager: String,
    /// Whether the node is held in reset.
    pub held: bool,
    /// What carries the frames.
    pub backend: String,
    /// Line reads.
    pub reads_per_s: f64,
    /// Of these, answered by the line cache.
    pub read_hits: Option<f64>,
    /// Line writes.
    pub writes_per_s: f64,
    /// Of these, taken in place by the line cache.
    pub write_hits: Option<f64>,
    /// Burst reads.
    pub burst_reads_per_s: f64,
    /// Burst writes.
    pub burst_writes_per_s: f64,
    /// Operations that failed.
    pub failures_per_s: f64,
    /// Operations on their way.
    pub in_flight: usize,
    /// Modified lines that wait for their memory node.
    pub stranded: usize,
    /// Ports that programs have open.
    pub ports: usize,
    /// Page faults.
    pub faults: Faults,
    /// Pages and frames.
    pub traffic: Traffic,
    /// Regions, by name.
    pub regions: Vec<RegionFigures>,
    /// Sessions, by memory node.
    pub sessions: Vec<SessionFigures>,
}

/// Page faults of all mapped regions.
#[derive(Clone, Debug, Serialize)]
pub struct Faults {
    /// Faults on absent pages.
    pub per_s: f64,
    /// Of these, found here: zeros, or fetched ahead.
    pub hits: Option<f64>,
    /// Half of them took at most so long, in nanoseconds; from the agent's reading of them to the page in place.
    pub p50_ns: Option<u64>,
    /// 99 % of them.
    pub p99_ns: Option<u64>,
    /// How many took how long, by the agent's buckets.
    pub times: Histogram,
    /// Pages fetched ahead.
    pub ahead_per_s: f64,
    /// Of these, wanted.
    pub ahead_hits: Option<f64>,
    /// Pages taken out of memory.
    pub evicted_per_s: f64,
    /// Pages written back.
    pub written_back_per_s: f64,
    /// Waits because no more may be resident.
    pub room_waits_per_s: f64,
}

/// Frames on the link.
#[derive(Clone, Debug, Serialize)]
pub struct Traffic {
    /// Bytes received.
    pub rx_bytes_per_s: f64,
    /// Bytes sent.
    pub tx_bytes_per_s: f64,
    /// Frames received.
    pub rx_frames_per_s: f64,
    /// Frames sent.
    pub tx_frames_per_s: f64,
    /// Frames that the kernel dropped.
    pub rx_dropped_per_s: f64,
}

/// A region.
#[derive(Clone, Debug, Serialize)]
pub struct RegionFigures {
    /// Its name.
    pub region: String,
    /// Bytes.
    pub size: u64,
    /// Its state, and what stands in the way of its use.
    pub state: String,
    /// What serves it.
    pub served_by: String,
    /// How many memory nodes hold it.
    pub memory_nodes: usize,
    /// Bytes in memory here, if it is mapped.
    pub resident: Option<u64>,
    /// Bytes that may be.
    pub limit: Option<u64>,
    /// Processes that have it mapped.
    pub processes: usize,
    /// Faults on absent pages.
    pub faults_per_s: f64,
    /// Of these, found here.
    pub fault_hits: Option<f64>,
}

/// A session.
#[derive(Clone, Debug, Serialize)]
pub struct SessionFigures {
    /// The memory node's address.
    pub peer: String,
    /// The memory node's name, if a region that is attached lies on it.
    pub memory_node: Option<String>,
    /// Its state.
    pub state: String,
    /// Round-trip time in nanoseconds; 0 before the first sample.
    pub rtt_ns: u64,
    /// Requests in flight.
    pub in_flight: usize,
    /// Requests sent.
    pub requests_per_s: f64,
    /// Requests sent again.
    pub resent_per_s: f64,
    /// Requests sent again since the session's requester began.
    pub resent: u64,
    /// Time-outs.
    pub timeouts_per_s: f64,
    /// Frames dropped, for any cause.
    pub dropped_per_s: f64,
    /// The rate controller's phase, if there is one.
    pub phase: Option<char>,
    /// The rate that requests may have, in bits per second.
    pub rate: Option<u64>,
    /// Pause signals.
    pub pauses_per_s: f64,
    /// Why the memory node refuses.
    pub refusal: Option<String>,
    /// How frames are protected: `sealed`, `sealed (pre-shared)` or `insecure`.
    pub integrity: String,
}

/// Counts per second between two snapshots.
struct Rates(f64);

impl Rates {
    fn per_s(&self, before: u64, now: u64) -> f64 {
        // An agent that has begun anew counts from 0.
        if self.0 > 0.0 { now.saturating_sub(before) as f64 / self.0 } else { 0.0 }
    }
}

/// The share of `part` in what grew from `before` to `now`, both given as (part, whole).
fn share(before: (u64, u64), now: (u64, u64)) -> Option<f64> {
    let (part, whole) = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl Figures {
    /// What happened from `before` to `now`. Without an earlier snapshot there are no rates; shares and times are then
    /// those since the agent began.
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

impl SessionFigures {
    /// What the memory node is called: its name, or its address while that is not known.
    pub fn label(&self) -> &str {
        self.memory_node.as_ref().unwrap_or(&self.peer)
    }
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
        SessionFigures {
            peer: s.peer.clone(),
            memory_node: names.get(s.peer.as_str()).map(|name| (*name).to_owned()),
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
