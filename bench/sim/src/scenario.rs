//! Kinds of simulated runs.

use crate::named::named;

named! {
    /// A kind of run. Everything that the kind does not determine is drawn from the seed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Scenario {
        /// No faults: measures the speed of the simulation
        Calm = "calm",
        /// Frames are lost one by one, 0.1 to 2 %; no operation may fail
        Lossy = "lossy",
        /// Frames are lost in bursts of up to ten frames on average
        Bursty = "bursty",
        /// Frames overtake each other and arrive twice; no operation may fail
        Reordering = "reordering",
        /// Varying combinations of loss, bursts, reordering, duplication and corruption
        Hostile = "hostile",
        /// Paths are cut, in one direction or both, and healed
        Partitions = "partitions",
        /// Memory nodes restart with or without their pool, compute nodes are killed, regions replaced
        Restarts = "restarts",
        /// Nodes are paused for a while, then process the frames that have accumulated
        Pauses = "pauses",
        /// Several compute nodes and one slow memory node whose receive queue fills up
        Congested = "congested",
        /// Regions spread over 2 to 16 memory nodes, some of which are cut off, restarted or lose their pool
        Interleaved = "interleaved",
        /// Copies of frames arrive after 65 536 others, when their sequence numbers are in use again
        Late = "late",
        /// Sessions without caches: small and large frames, sealed or not, hundreds of requests in flight, with overload
        /// and long outages
        Sessions = "sessions",
        /// An unauthorised station receives every frame of sealed sessions and sends forged ones, replayed ones, floods of
        /// Hellos, and session requests with an unregistered key; sessions rekey every few milliseconds, and keys are
        /// revoked
        Intruders = "intruders",
        /// Regions are made, grown, disabled, bound and destroyed under load, while messages from and to the manager are
        /// lost, duplicated and delayed
        Control = "control",
        /// Like control, and the manager is killed at any point, cut off, and replaced; nodes restart
        Managers = "managers",
        /// Programs with mapped regions: faults, forks, evictions and write-backs, while nodes restart and agents are
        /// killed in the middle of an action
        Paging = "paging",
        /// One of the above, or all faults at once, selected by the seed
        Mixed = "mixed",
    }
}

impl Scenario {
    /// Returns true if the scenario has no fault that can make an operation fail, whatever the seed. Lost
    /// frames are no such fault, since they are retransmitted.
    pub(crate) fn is_harmless(self) -> bool {
        matches!(self, Self::Calm | Self::Lossy | Self::Reordering | Self::Late)
    }
}
