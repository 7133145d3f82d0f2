//! Figures of each worker, for an agent that has several: the CPU that it runs on, and its part of the work.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Rates;
use crate::top::Snapshot;
use cxloe_client::message::{Counters, WorkerCounters};

/// Activity of one worker between two snapshots.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerFigures {
    /// Number of the worker, from 0.
    pub worker: usize,
    /// CPU on which the worker ran at the later snapshot; `None` if unknown.
    pub cpu: Option<u32>,
    /// Share of the time for which the worker ran, polling included; for the rest it slept, or waited for a CPU.
    pub awake: Option<f64>,
    /// Line reads and writes by programs.
    pub lines_per_s: f64,
    /// Page faults on absent pages.
    pub faults_per_s: f64,
    pub rx_frames_per_s: f64,
    pub tx_frames_per_s: f64,
    /// Number of attached regions that the worker serves.
    pub regions: usize,
    /// Number of ports that programs have open at the worker.
    pub ports: usize,
    /// Number of operations that have begun and are not complete.
    pub in_flight: usize,
}

/// Figures of all workers, by number; none for an agent with one worker.
pub(super) fn workers(before: &Snapshot, now: &Snapshot, rates: &Rates) -> Vec<WorkerFigures> {
    let earlier: BTreeMap<usize, &WorkerCounters> = before.workers.iter().map(|of| (of.worker, of)).collect();
    let none = WorkerCounters::default();
    let figures = |of: &WorkerCounters| {
        let known = earlier.get(&of.worker).copied().unwrap_or(&none);
        let (b, c) = (&known.counters, &of.counters);
        let ran = rates.per_s(known.cpu_time_ns, of.cpu_time_ns) / 1e9;
        WorkerFigures {
            worker: of.worker,
            cpu: of.cpu,
            awake: rates.is_known().then_some(ran.min(1.0)),
            lines_per_s: rates.per_s(lines(b), lines(c)),
            faults_per_s: rates.per_s(b.paging.faults, c.paging.faults),
            rx_frames_per_s: rates.per_s(b.link.rx_frames, c.link.rx_frames),
            tx_frames_per_s: rates.per_s(b.link.tx_frames, c.link.tx_frames),
            regions: now.regions.iter().filter(|region| region.worker == of.worker).count(),
            ports: c.clients,
            in_flight: c.in_flight,
        }
    };
    now.workers.iter().map(figures).collect()
}

/// Number of lines that programs have read and written.
fn lines(counters: &Counters) -> u64 {
    let e = &counters.engine;
    e.read_hits + e.read_misses + e.write_hits + e.write_misses
}
