//! Faults that a run injects into nodes and network.

use std::time::Duration;

use cxloe_wire::random::Random;

/// A fault that a run injects at one of its drawn times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The path between a compute node and a memory node is cut for a time, in one direction; or a memory node is cut
    /// off.
    Cut,
    /// A memory node restarts as a new process with its pool.
    RestartKept,
    /// A memory node restarts as a new process with an empty pool.
    RestartLost,
    /// A compute node is killed and restarts with an empty cache.
    Kill,
    /// A node stops for a time, while frames accumulate in its receive queue.
    Pause,
    /// A region is destroyed and created again, despite modified lines and operations in flight.
    Replace,
    /// The network gets another profile: other delays, other probabilities of loss.
    NetworkProfile,
    /// The network gets a profile with more loss than programs can tolerate.
    Overload,
    /// A compute node is cut off for a time, possibly longer than any time-out.
    CutOff,
    /// A memory node announces its end to its compute nodes, and restarts as a new process with its pool.
    Goodbye,
    /// The manager is killed: at once, before its next commit, or between that and its answer; another takes over.
    Manager,
    /// A node, or all of them, cannot reach the manager for a time.
    ManagerAway,
    /// An unauthorised station sends forged frames with the addresses of both ends.
    Forgery,
    /// Recorded frames are replayed: handshakes, and frames of earlier sessions.
    Replay,
    /// A memory node is flooded with Hellos.
    Flood,
    /// An unauthorised station opens a session from a compute node's address with an unregistered key.
    Impostor,
    /// A compute node's key is revoked for a time.
    Revocation,
    /// For a time the manager runs over an empty store, or over an older copy of its own.
    WrongManager,
}

/// All kinds of faults in runs without a manager; frequent kinds occur several times.
pub(crate) const ALL: &[Fault] = &[
    Fault::Cut,
    Fault::Cut,
    Fault::Cut,
    Fault::RestartKept,
    Fault::RestartKept,
    Fault::RestartLost,
    Fault::Kill,
    Fault::Pause,
    Fault::Pause,
    Fault::Replace,
    Fault::Replace,
    Fault::NetworkProfile,
];

/// Faults of a run with an intruder in the network: the intruder's, and those of nodes and network.
pub(crate) const INTRUDED: &[Fault] = &[
    Fault::Forgery,
    Fault::Forgery,
    Fault::Replay,
    Fault::Replay,
    Fault::Flood,
    Fault::Flood,
    Fault::Impostor,
    Fault::Impostor,
    Fault::Impostor,
    Fault::Revocation,
    Fault::Revocation,
    Fault::Kill,
    Fault::RestartKept,
    Fault::Cut,
    Fault::NetworkProfile,
];

/// Faults of a run with a manager: those of nodes, and the manager's.
pub(crate) const MANAGED: &[Fault] = &[
    Fault::Manager,
    Fault::Manager,
    Fault::Manager,
    Fault::ManagerAway,
    Fault::ManagerAway,
    Fault::WrongManager,
    Fault::WrongManager,
    Fault::Cut,
    Fault::RestartKept,
    Fault::RestartKept,
    Fault::RestartLost,
    Fault::Kill,
    Fault::Pause,
    Fault::NetworkProfile,
];

/// Number and kinds of a run's faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    /// Number of faults in the run.
    pub count: u64,
    /// Kinds from which the faults are drawn.
    pub kinds: &'static [Fault],
}

impl FaultPlan {
    /// Plan of a run without faults.
    pub const NONE: FaultPlan = FaultPlan { count: 0, kinds: &[] };

    /// Draws the kind of the next fault; `None` if there are no kinds.
    pub(crate) fn draw(self, random: &mut Random) -> Option<Fault> {
        pick_from(random, self.kinds)
    }
}

/// Draws one of several choices.
pub(crate) fn pick<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.below(choices.len() as u64) as usize]
}

fn pick_from<T: Copy>(random: &mut Random, choices: &[T]) -> Option<T> {
    choices.get(random.below(choices.len() as u64) as usize).copied()
}

/// Draws the length of a cut or a pause: from less than a time-out to more than a session's lifetime.
pub(crate) fn duration(random: &mut Random) -> Duration {
    Duration::from_micros(pick(random, &[50, 500, 20_000, 70_000, 100_000, 150_000]))
}

/// Draws the time from one fault to the next.
pub(crate) fn interval(random: &mut Random) -> Duration {
    Duration::from_micros(pick(random, &[1_000, 5_000, 30_000]) + random.below(1_000))
}
