//! What has happened in runs: counts, and how long operations took in virtual time.

use std::time::Duration;

use cxloe_wire::session::RequesterCounters;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::paces::Paces;

/// Declares [`Figures`]: counts that are summed over runs.
macro_rules! figures {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// Counts of one run, or of many together.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Figures {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl Figures {
            /// Adds what happened elsewhere.
            pub fn add(&mut self, other: &Figures) {
                $(self.$name += other.$name;)*
            }

            /// Every count with its name, in the order of this page.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

figures! {
    /// Operations that went to a memory node and ended.
    operations,
    /// Operations that the cache did at once.
    at_once,
    /// Operations on parts of ranges that several memory nodes share.
    shared_parts,
    /// Flushes that brought everything to the memory nodes.
    flushes,
    /// Operations that failed because their session died.
    failed_session_dead,
    /// Operations that failed because the memory node had lost its content.
    failed_data_lost,
    /// Operations that failed because the next session has other limits.
    failed_limits,
    /// Operations that failed because the manager had taken their region away.
    failed_taken_away,
    /// Operations not taken: no session.
    refused_not_connected,
    /// Operations not taken: the region's data was known to be lost.
    refused_data_lost,
    /// Operations not taken: larger than a frame of the session.
    refused_limits,
    /// Operations not taken: the manager wants the region back.
    refused_withdrawn,
    /// Times an operation was put off because a line, a window or a ring was busy.
    busy,
    /// Operations on their way when their compute node was killed.
    abandoned,
    /// Modified lines kept for a memory node that was away, the most at once of each run.
    stranded,
    /// Modified lines written back.
    write_backs,
    /// Write-backs refused because the memory was lost.
    write_backs_refused,
    /// Frames sent by nodes.
    frames,
    /// Frames that faults of the network lost.
    lost,
    /// Frames lost where a path was cut.
    cut,
    /// Frames lost because a receive queue was full.
    overflowed,
    /// Frames that arrived twice, or a turn of the sequence numbers late.
    repeated,
    /// Frames held back and overtaken.
    reordered,
    /// Frames damaged.
    corrupted,
    /// Frames that were sent as many requests.
    multi_frames,
    /// Requests in them.
    multi_requests,
    /// Requests sent again.
    retransmitted,
    /// Selective acknowledgements received.
    sacks,
    /// Time-outs.
    timeouts,
    /// Congestion frames received.
    congestion,
    /// Congestion frames that made a pacer slow down.
    slowdowns,
    /// Sessions opened.
    sessions,
    /// Sessions given up after silence.
    deaths,
    /// Times a path was cut.
    cuts,
    /// Memory nodes restarted with their pool.
    restarts_kept,
    /// Memory nodes restarted without their pool.
    restarts_lost,
    /// Memory nodes that said goodbye, and came back with their pool.
    goodbyes,
    /// Times a session told that the memory node's content was lost.
    losses_told,
    /// Compute nodes killed and started anew.
    kills,
    /// Times a node stood still.
    pauses,
    /// Regions replaced.
    replaced,
    /// Times the network became another.
    weather,
    /// Messages of the control plane.
    messages,
    /// Messages of the control plane that never arrived.
    messages_lost,
    /// Calls to the manager that arrived twice.
    messages_repeated,
    /// Managers killed, and taken over from.
    managers_killed,
    /// Times the manager could not be reached.
    managers_away,
    /// Regions made by the manager.
    regions_made,
    /// Regions grown under load.
    regions_grown,
    /// Regions that their owners were made to let go of.
    regions_disabled,
    /// Regions taken down.
    regions_destroyed,
    /// Lost regions given back empty.
    regions_reset,
    /// Logical devices bound.
    bindings,
    /// Logical devices unbound.
    unbindings,
    /// Parts of pages that went to a memory node or came from one, and ended.
    page_parts,
    /// Faults of programs on pages that were not in memory.
    faults,
    /// First writes of programs to pages in memory.
    write_faults,
    /// Pages fetched before anybody wanted them.
    pages_ahead,
    /// Pages taken out of memory.
    pages_evicted,
    /// Pages written back.
    pages_written_back,
    /// Pages whose data was lost, and whose programs were told.
    pages_lost,
    /// Processes forked.
    forks,
    /// Pages that programs discarded.
    discards,
    /// Pagers that went on where killed ones had left.
    successions,
    /// Forged frames that an intruder sent.
    forged,
    /// Frames of the past that an intruder sent.
    replayed,
    /// Hellos that an intruder flooded memory nodes with.
    flooded,
    /// Times an intruder called under a key that nobody knows.
    impostors,
    /// Times a memory node asked for a cookie.
    cookies,
    /// Times a compute node's key was taken back.
    revocations,
    /// Virtual time, in nanoseconds.
    virtual_ns,
}

impl Figures {
    /// Operations that ended, wherever.
    pub fn ended(&self) -> u64 {
        self.operations + self.at_once + self.page_parts
    }

    /// Operations that failed on their way.
    pub fn failed(&self) -> u64 {
        self.failed_session_dead + self.failed_data_lost + self.failed_limits + self.failed_taken_away
    }

    /// Operations that were not taken.
    pub fn refused(&self) -> u64 {
        self.refused_not_connected + self.refused_data_lost + self.refused_limits + self.refused_withdrawn
    }

    /// The names of what never happened: runs in which nothing goes wrong prove nothing.
    pub fn missing(&self) -> Vec<&'static str> {
        self.named().into_iter().filter(|(_, n)| *n == 0).map(|(name, _)| name).collect()
    }

    /// Adds what a requester has counted.
    pub(crate) fn add_requester(&mut self, counters: &RequesterCounters) {
        self.multi_frames += counters.multi_frames;
        self.multi_requests += counters.multi_requests;
        self.retransmitted += counters.retransmitted;
        self.sacks += counters.sacks;
        self.timeouts += counters.timeouts;
        self.congestion += counters.congestion;
        self.sessions += counters.sessions;
    }
}

/// Which latencies are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A line read from a memory node.
    Read,
    /// A line written to a memory node.
    Write,
    /// Several lines in one frame, either way.
    Burst,
}

impl Class {
    /// All of them, in the order of their histograms.
    pub const ALL: [Class; 3] = [Class::Read, Class::Write, Class::Burst];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Class::Read => "read",
            Class::Write => "write",
            Class::Burst => "burst",
        }
    }
}

/// The longest latency told apart, in nanoseconds; longer ones count as this.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// Counts and latencies.
#[derive(Clone)]
pub struct Tally {
    /// The counts.
    pub figures: Figures,
    /// By [`Class`], in nanoseconds of virtual time, from the first attempt to the end, successful operations only.
    pub latencies: [Histogram<u64>; 3],
    /// Rate control, where there was any.
    pub paces: Paces,
}

impl Default for Tally {
    fn default() -> Self {
        let histogram = || Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("these bounds are sound");
        Tally {
            figures: Figures::default(),
            latencies: [histogram(), histogram(), histogram()],
            paces: Paces::default(),
        }
    }
}

impl Tally {
    /// Notes how long an operation took.
    pub(crate) fn took(&mut self, class: Class, time: Duration) {
        self.latencies[class as usize].saturating_record(time.as_nanos() as u64);
    }

    /// Adds what happened elsewhere.
    pub fn add(&mut self, other: &Tally) {
        self.figures.add(&other.figures);
        for (sum, histogram) in self.latencies.iter_mut().zip(&other.latencies) {
            sum.add(histogram).expect("all have the same bounds");
        }
        self.paces.add(&other.paces);
    }
}
