//! One program in one way: what it took, and what the agent counted meanwhile.

use cxloe_cn_core::pager::PagerCounters;
use serde::Serialize;

use super::Way;

/// One program in one way over all trials.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The program.
    pub program: String,
    /// Where its memory was.
    pub way: Way,
    /// How much of it might be resident, as it was asked for: `50%`.
    pub resident: String,
    /// The same in bytes.
    pub local_bytes: u64,
    /// Bytes that it takes in all.
    pub footprint_bytes: u64,
    /// Seconds of its work, the median over trials; `None` if it did not end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Seconds from its start to its end, where that is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole_seconds: Option<f64>,
    /// Nanoseconds of one operation, of programs that count them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation_ns: Option<f64>,
    /// Its seconds over those in local memory: the median over trials of the ratio within a trial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown: Option<f64>,
    /// The least and the most of these over trials, of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown_spread: Option<[f64; 2]>,
    /// The least and the most seconds over trials, of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_spread: Option<[f64; 2]>,
    /// What paging counted, in the last trial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paging: Option<Paging>,
    /// Pages that the machine swapped in meanwhile, in the last trial, of ways that swap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swapped_in: Option<u64>,
    /// Trials that came to their end.
    pub trials: usize,
    /// Why there is none that did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missed: Option<String>,
}

/// What paging counted of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Paging {
    /// Faults on pages that were not resident.
    pub faults: u64,
    /// Of these, first touches of fresh memory.
    pub zero_fills: u64,
    /// Of these, of pages that had just left.
    pub second_chances: u64,
    /// Pages fetched because somebody waited.
    pub fetched: u64,
    /// Pages fetched ahead, and how many of them were wanted.
    pub prefetched: u64,
    /// See above.
    pub prefetch_hits: u64,
    /// Pages that left.
    pub evicted: u64,
    /// Pages that were sent before they left.
    pub written_back: u64,
}

impl Paging {
    /// From the agent's counters.
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
