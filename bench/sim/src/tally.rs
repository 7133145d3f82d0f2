//! Events in runs, counted, and latencies of operations in virtual time.

use std::time::Duration;

use cxloe_wire::session::RequesterCounters;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::service_rates::ServiceRates;

/// Declares [`Figures`] with a count for each name; each name has a doc comment.
macro_rules! figures {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// Counts of one run, or sums over many runs.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Figures {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl Figures {
            pub fn add(&mut self, other: &Figures) {
                $(self.$name += other.$name;)*
            }

            /// Returns each count with its name, in the order of declaration.
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
    /// Operations and parts of pages that ended at workers after the first.
    later_workers,
    /// Operations that each cover one piece of an address range over several memory nodes.
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
    /// Times that an operation was deferred because a line, a window or a ring was busy.
    busy,
    /// Operations in flight when their compute node was killed.
    abandoned,
    /// Maximum number of modified lines that waited for an unreachable memory node at one time, summed over
    /// runs.
    stranded,
    /// Modified cache lines written to memory nodes.
    write_backs,
    /// Write-backs refused because the memory was lost.
    write_backs_refused,
    /// Frames that nodes have sent, retransmissions included.
    frames,
    /// Frames lost by chance, not by a cut or a full queue.
    lost,
    /// Frames lost where a path was cut.
    cut,
    /// Frames lost because a receive queue was full.
    overflowed,
    /// Frames that arrived twice, or so late that their sequence numbers were in use again.
    repeated,
    /// Frames that the network held back until others had overtaken them.
    reordered,
    /// Frames in which the network flipped bits.
    corrupted,
    /// Frames with several requests each.
    multi_frames,
    /// Requests in frames with several requests.
    multi_requests,
    /// Requests sent again after a time-out or a selective acknowledgement.
    retransmitted,
    /// Selective acknowledgements that compute nodes have received.
    sacks,
    /// Time-outs of requests.
    timeouts,
    /// Congestion frames that compute nodes have received from memory nodes.
    congestion,
    /// Congestion frames that made a pacer slow down.
    slowdowns,
    /// Sessions that compute nodes have opened.
    sessions,
    /// Sessions ended because the memory node was silent.
    deaths,
    /// Cuts of the paths between two nodes, or of all paths of one node.
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
    /// Pauses of a node, in which frames accumulate in its receive queue.
    pauses,
    /// Regions destroyed and created again under load.
    replaced,
    /// Times the network got another profile.
    network_profiles,
    /// Messages sent on the control network.
    messages,
    /// Messages lost on the control network, by chance or by a cut.
    messages_lost,
    /// Calls to the manager that the control network delivered twice.
    messages_repeated,
    /// Kills of the manager's process, including those to give it another store for a time.
    managers_killed,
    /// Periods in which one node, or every node, could not reach the manager.
    managers_away,
    /// Orders to create a region that the manager has acknowledged.
    regions_made,
    /// Orders to grow a region that the manager has acknowledged.
    regions_grown,
    /// Acknowledged orders after which the owner of a region has to write it back and release it.
    regions_disabled,
    /// Orders to destroy a region that the manager has acknowledged.
    regions_destroyed,
    /// Regions that became usable again, empty, after their content was lost.
    regions_reset,
    /// Acknowledged orders to bind a memory node that is assigned as a whole.
    bindings,
    /// Acknowledged orders to unbind a logical device from its compute node.
    unbindings,
    /// Completed transfers of parts of pages.
    page_parts,
    /// Faults of programs on pages that were not in memory.
    faults,
    /// First writes of programs to pages that were in memory already.
    write_faults,
    /// Pages fetched before a program accessed them.
    pages_ahead,
    /// Pages removed from local memory to make room.
    pages_evicted,
    /// Modified pages written to memory nodes.
    pages_written_back,
    /// Pages whose data was lost; programs that access them get an error.
    pages_lost,
    /// Forks of programs with mapped memory that pagers have processed.
    forks,
    /// Pages that programs have discarded, which must read as zeros afterwards.
    discards,
    /// Pagers that took over the state of killed pagers.
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
    /// Revocations of a compute node's key, each for a time.
    revocations,
    /// Virtual duration of the runs, in nanoseconds.
    virtual_ns,
}

impl Figures {
    /// Returns the number of completed operations and transfers of pages, including those that the cache
    /// completed at once.
    pub fn ended(&self) -> u64 {
        self.operations + self.at_once + self.page_parts
    }

    /// Returns the number of operations that failed after submission.
    pub fn failed(&self) -> u64 {
        self.failed_session_dead + self.failed_data_lost + self.failed_limits + self.failed_taken_away
    }

    /// Returns the number of operations that were refused at submission.
    pub fn refused(&self) -> u64 {
        self.refused_not_connected + self.refused_data_lost + self.refused_limits + self.refused_withdrawn
    }

    /// Returns the names of the counts that are zero, since events that have not occurred are not tested.
    pub fn missing(&self) -> Vec<&'static str> {
        self.named().into_iter().filter(|(_, n)| *n == 0).map(|(name, _)| name).collect()
    }

    /// Adds the counters of a session when its requester ends.
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

/// Class of operations, with a histogram of latencies for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Read of a line from a memory node.
    Read,
    /// Write of a line to a memory node.
    Write,
    /// Read or write of several lines in one frame.
    Burst,
}

impl Class {
    /// All classes, in the order of [`Tally::latencies`].
    pub const ALL: [Class; 3] = [Class::Read, Class::Write, Class::Burst];

    pub fn name(self) -> &'static str {
        match self {
            Class::Read => "read",
            Class::Write => "write",
            Class::Burst => "burst",
        }
    }
}

/// Maximum recorded latency, in nanoseconds; longer ones count as this one.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// Counts and latencies of one run, or of many together.
#[derive(Clone)]
pub struct Tally {
    pub figures: Figures,
    /// Latencies of successful operations by [`Class`], in nanoseconds of virtual time from the first attempt
    /// to the end.
    pub latencies: [Histogram<u64>; 3],
    /// Observations of rate control; empty if no node has rate control.
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
    pub(crate) fn took(&mut self, class: Class, time: Duration) {
        self.latencies[class as usize].saturating_record(time.as_nanos() as u64);
    }

    pub fn add(&mut self, other: &Tally) {
        self.figures.add(&other.figures);
        for (sum, histogram) in self.latencies.iter_mut().zip(&other.latencies) {
            sum.add(histogram).expect("all have the same bounds");
        }
        self.paces.add(&other.paces);
    }
}
