//! Figures of one program with one way of holding its memory: its times, and the agent's counters.

use cxloe_cn_core::pager::PagerCounters;
use serde::Serialize;

use super::MemoryBacking;

/// Result of one program with one way of holding its memory, over all trials.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Name of the program, as on the command line.
    pub program: String,
    /// Way of holding the program's memory.
    pub way: MemoryBacking,
    /// Limit of resident memory as requested, such as `50%`.
    pub resident: String,
    /// Limit of resident memory in bytes.
    pub local_bytes: u64,
    /// Memory that the program needs, in bytes.
    pub footprint_bytes: u64,
    /// Seconds of the program's work, the median over trials; `None` if no trial completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Seconds from the start of the program to its end, if that is longer than its work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole_seconds: Option<f64>,
    /// Nanoseconds per operation, for programs that count operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation_ns: Option<f64>,
    /// Time as a multiple of that with local memory: the median over trials of the ratio within a trial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown: Option<f64>,
    /// Minimum and maximum slowdown, if there were several trials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown_spread: Option<[f64; 2]>,
    /// Minimum and maximum seconds, if there were several trials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_spread: Option<[f64; 2]>,
    /// Counters of paging in the last trial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paging: Option<Paging>,
    /// Pages that the machine swapped in during the last trial; `None` for ways of holding memory that do not swap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swapped_in: Option<u64>,
    pub trials: usize,
    /// Reason why no trial completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missed: Option<String>,
}

/// Counters of paging in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Paging {
    /// Number of faults on pages that were not resident.
    pub faults: u64,
    /// Number of faults that were first touches of fresh memory.
    pub zero_fills: u64,
    /// Number of faults on pages whose eviction was still in progress.
    pub second_chances: u64,
    /// Number of pages fetched because of a fault.
    pub fetched: u64,
    /// Number of pages fetched before a fault.
    pub prefetched: u64,
    /// Number of prefetched pages that the program used.
    pub prefetch_hits: u64,
    /// Number of pages evicted.
    pub evicted: u64,
    /// Number of pages written back before their eviction.
    pub written_back: u64,
}

impl Paging {
    /// Takes the reported counters from those of the agent.
    pub(super) fn of(count: &PagerCounters) -> Paging {
        Paging {
            faults: count.faults,
            zero_fills: count.zero_fills,
            second_chances: count.second_chances,
            fetched: count.fetched,
            prefetched: count.prefetched,
            prefetch_hits: count.prefetch_hits,
            evicted: count.evicted,
            written_back: count.written_back,
        }
    }
}
