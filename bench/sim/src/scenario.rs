//! What is to befall a simulated run, in a word.

use clap::ValueEnum;

/// A kind of run. Everything that it leaves open is drawn from the seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum)]
pub enum Scenario {
    /// Nothing goes wrong: how fast the simulation is
    Calm,
    /// Frames are lost one by one, 0.1 to 2 %; no operation may fail
    Lossy,
    /// Losses come in bursts of up to ten frames in the mean
    Bursty,
    /// Frames overtake each other and arrive twice; no operation may fail
    Reordering,
    /// Loss, bursts, reordering, duplication and corruption at once, now these, now others
    Hostile,
    /// Paths are cut, in one direction or both, and healed
    Partitions,
    /// Memory nodes restart with or without their pool, compute nodes are killed, regions replaced
    Restarts,
    /// Nodes stand still for a while, then go on with what has piled up
    Pauses,
    /// Several compute nodes and one slow memory node whose receive queue fills up
    Congested,
    /// Regions spread over 2 to 16 memory nodes, some of which are cut off, restarted or lose their pool
    Interleaved,
    /// Frames come once more after 65 536 others, when their sequence numbers are used again
    Late,
    /// Sessions without caches: small and large frames, sealed or not, hundreds of requests at once, through storms and
    /// long absences
    Sessions,
    /// Somebody at the network hears every frame of sealed sessions and sends forged ones, old ones, floods of Hellos, and
    /// calls under a key that nobody knows; keys are replaced every few milliseconds, and taken back
    Intruders,
    /// Regions are made, grown, disabled, bound and destroyed under load, while messages of the manager and to it are lost,
    /// repeated and delayed
    Control,
    /// The same, and the manager is killed at any point, cut off, and taken over from; nodes restart
    Managers,
    /// Programs have regions mapped: pages come and go by faults, forks and write-backs, while nodes restart and agents are
    /// killed in the midst of it
    Paging,
    /// One of the above, or everything at once, as the seed has it
    #[default]
    #[value(alias = "all")]
    Mixed,
}

impl Scenario {
    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether nothing in it can make an operation fail, whatever the seed: what is lost is sent again.
    pub(crate) fn is_harmless(self) -> bool {
        matches!(self, Self::Calm | Self::Lossy | Self::Reordering | Self::Late)
    }
}
