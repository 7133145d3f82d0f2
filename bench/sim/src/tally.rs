//! Counts of events in runs, and latencies of operations in virtual time.

use std::time::Duration;

use cxloe_wire::session::RequesterCounters;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::service_rates::ServiceRates;

/// Declares [`Figures`]: counts that are summed over runs.
macro_rules! figures {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// Counts of one run, or sums over many runs.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Figures {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl Figures {
            /// Adds the counts of another run.
            pub fn add(&mut self, other: &Figures) {
                $(self.$name += other.$name;)*
            }

            /// Every count with its name, in order of declaration.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

figures! {
    /// Operations that went to a memory node and ended.
    operations,
    /// Operations that the cache completed at once.
    at_once,
    /// Operations on pieces of ranges that extend over several memory nodes.
    shared_parts,
    /// Flushes that wrote back all modified lines.
    flushes,
    /// Operations that failed because the session with the memory node ended.
    failed_session_dead,
    /// Operations that failed because the memory node had lost its content.
    failed_data_lost,
    /// Operations that failed because the limits of the next session were smaller.
    failed_limits,
    /// Operations that failed because the manager had withdrawn their region.
    failed_taken_away,
    /// Operations refused because there was no session.
    refused_not_connected,
    /// Operations refused because the loss of the region's data had been reported.
    refused_data_lost,
    /// Operations refused because they were larger than a frame of the session.
    refused_limits,
    /// Operations refused because the manager was withdrawing the region.
    refused_withdrawn,
    /// Times an operation was deferred because a line, a window or a ring was busy.
    busy,
    /// Operations in flight when their compute node was killed.
    abandoned,
    /// Largest number of modified lines that waited for an unreachable memory node at one time, summed over runs.
    stranded,
    /// Modified cache lines written to memory nodes.
    write_backs,
    /// Write-backs refused because the memory was lost.
    write_backs_refused,
    /// Frames that nodes have sent, retransmissions included.
    frames,
    /// Frames lost by faults of the network.
    lost,
    /// Frames lost where a path was cut.
    cut,
    /// Frames lost because a receive queue was full.
    overflowed,
    /// Frames that arrived twice, or a cycle of the sequence numbers late.
    repeated,
    /// Frames held back and overtaken.
    reordered,
    /// Frames in which the network flipped bits.
    corrupted,
    /// Frames that carried many requests.
    multi_frames,
    /// Requests carried by frames of many requests.
    multi_requests,
    /// Requests sent again after a time-out or a selective acknowledgement.
    retransmitted,
    /// Selective acknowledgements received.
    sacks,
    /// Requests whose time-out has passed.
    timeouts,
    /// Congestion frames received.
    congestion,
    /// Congestion frames that made a pacer slow down.
    slowdowns,
    /// Sessions that compute nodes have opened.
    sessions,
    /// Sessions ended because the memory node was silent.
    deaths,
    /// Times the path between two nodes was cut.
    cuts,
    /// Memory nodes restarted with their pool.
    restarts_kept,
    /// Memory nodes restarted without their pool.
    restarts_lost,
    /// Memory nodes that announced their end, and restarted with their pool.
    goodbyes,
    /// Times a session reported the loss of the memory node's content.
    losses_told,
    /// Compute nodes killed and restarted.
    kills,
    /// Times a node was paused.
    pauses,
    /// Regions destroyed and created again under load.
    replaced,
    /// Times the network got another profile.
    network_profiles,
    /// Messages sent on the control network.
    messages,
    /// Messages that the control network lost.
    messages_lost,
    /// Calls to the manager that the control network delivered twice.
    messages_repeated,
    /// Managers killed and restarted.
    managers_killed,
    /// Times nodes could not reach the manager.
    managers_away,
    /// Regions created by the manager.
    regions_made,
    /// Regions grown under load.
    regions_grown,
    /// Regions disabled, which their owners had to release.
    regions_disabled,
    /// Regions destroyed by the operator.
    regions_destroyed,
    /// Regions whose data was lost and that became usable again, empty.
    regions_reset,
    /// Logical devices bound to compute nodes.
    bindings,
    /// Logical devices unbound from compute nodes.
    unbindings,
    /// Completed transfers of parts of pages.
    page_parts,
    /// Faults of programs on pages that were not in memory.
    faults,
    /// First writes of programs to pages in memory.
    write_faults,
    /// Pages fetched before a program accessed them.
    pages_ahead,
    /// Pages removed from local memory to make room.
    pages_evicted,
    /// Modified pages written to memory nodes.
    pages_written_back,
    /// Pages whose data was lost; programs that access them get an error.
    pages_lost,
    /// Processes that programs have forked.
    forks,
    /// Pages that programs discarded.
    discards,
    /// Pagers that took over the state of killed ones.
    successions,
    /// Forged frames that an intruder sent.
    forged,
    /// Recorded frames that an intruder replayed.
    replayed,
    /// Hellos that an intruder flooded memory nodes with.
    flooded,
    /// Times an intruder requested a session with an unregistered key.
    impostors,
    /// Times a memory node demanded a cookie before a handshake.
    cookies,
    /// Times a compute node's key was revoked.
    revocations,
    /// Virtual duration of the runs, in nanoseconds.
    virtual_ns,
}

impl Figures {
    /// All completed operations, including those that the cache completed at once.
    pub fn ended(&self) -> u64 {
        self.operations + self.at_once + self.page_parts
    }

    /// Operations that failed after submission.
    pub fn failed(&self) -> u64 {
        self.failed_session_dead + self.failed_data_lost + self.failed_limits + self.failed_taken_away
    }

    /// Operations that were refused at submission.
    pub fn refused(&self) -> u64 {
        self.refused_not_connected + self.refused_data_lost + self.refused_limits + self.refused_withdrawn
    }

    /// Names of counts that are zero: events that have not occurred are not tested.
    pub fn missing(&self) -> Vec<&'static str> {
        self.named().into_iter().filter(|(_, n)| *n == 0).map(|(name, _)| name).collect()
    }

    /// Adds the counters of a requester.
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

/// Kind of operations whose latencies share a histogram.
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
    /// All classes, in the order of their histograms.
    pub const ALL: [Class; 3] = [Class::Read, Class::Write, Class::Burst];

    /// Name of the class in tables.
    pub fn name(self) -> &'static str {
        match self {
            Class::Read => "read",
            Class::Write => "write",
            Class::Burst => "burst",
        }
    }
}

/// Largest recorded latency, in nanoseconds; longer ones are clamped to it.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// Counts and latencies of one run, or of many together.
#[derive(Clone)]
pub struct Tally {
    /// Counts of events and operations.
    pub figures: Figures,
    /// Latencies of successful operations by [`Class`], from the first attempt to the end, in nanoseconds of virtual
    /// time.
    pub latencies: [Histogram<u64>; 3],
    /// Observations of rate control; empty if no node had it.
    pub paces: ServiceRates,
}

impl Default for Tally {
    fn default() -> Self {
        let histogram = || Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("these bounds are sound");
        Tally {
            figures: Figures::default(),
            latencies: [histogram(), histogram(), histogram()],
            paces: ServiceRates::default(),
        }
    }
}

impl Tally {
    /// Records the latency of a successful operation.
    pub(crate) fn took(&mut self, class: Class, time: Duration) {
        self.latencies[class as usize].saturating_record(time.as_nanos() as u64);
    }

    /// Adds the counts and latencies of another run.
    pub fn add(&mut self, other: &Tally) {
        self.figures.add(&other.figures);
        for (sum, histogram) in self.latencies.iter_mut().zip(&other.latencies) {
            sum.add(histogram).expect("all have the same bounds");
        }
        self.paces.add(&other.paces);
    }
}
