//! Faults that a run injects into nodes and the network.

use std::time::Duration;

use cxloe_wire::random::Random;

/// A fault, which a run injects at one of its drawn times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The path between a compute node and a memory node is cut in one direction for a time, or a memory node
    /// is cut off.
    Cut,
    /// A memory node restarts as a new process with its pool.
    RestartKept,
    /// A memory node restarts as a new process with an empty pool.
    RestartLost,
    /// A compute node is killed and restarts with an empty cache.
    Kill,
    /// A node stops for a time, as on a suspended machine; frames accumulate in its receive queue.
    Pause,
    /// A region is destroyed and created again, despite modified lines and operations in flight.
    Replace,
    /// The network gets another profile: other delays, other probabilities of loss.
    NetworkProfile,
    /// The network gets a profile with more loss than any program could bear.
    Overload,
    /// A compute node is cut off for a time that may be longer than any time-out.
    CutOff,
    /// A memory node announces its end to its compute nodes, and restarts as a new process with its pool.
    Goodbye,
    /// The manager is killed: at once, before its next commit, or between the commit and the answer. Another
    /// one takes over.
    Manager,
    /// A node, or every node, cannot reach the manager for a time.
    ManagerAway,
    /// An unauthorised station sends forged frames with the addresses of both ends of sessions.
    Forgery,
    /// Recorded frames are replayed: handshakes, and frames of earlier sessions.
    Replay,
    /// A memory node is flooded with Hellos.
    Flood,
    /// An unauthorised station opens a session from a compute node's address with an unregistered key.
    Impostor,
    /// A compute node's key is revoked for a time.
    Revocation,
    /// For a time, the manager uses an empty store, or an older copy of its store.
    WrongManager,
}

/// Kinds of faults in runs without a manager; a frequent kind occurs several times.
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

/// Kinds of faults in runs with an intruder: the intruder's actions, and faults of nodes and network.
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

/// Kinds of faults in runs with a manager: those of nodes and network, and those of the manager.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    pub count: u64,
    /// Kinds from which each fault is drawn.
    pub kinds: &'static [Fault],
}

impl FaultPlan {
    pub const NONE: FaultPlan = FaultPlan { count: 0, kinds: &[] };

    /// Draws the kind of the next fault; `None` if the plan has no kinds.
    pub(crate) fn draw(self, random: &mut Random) -> Option<Fault> {
        pick_from(random, self.kinds)
    }
}

/// Draws one of several choices, of which there must be at least one.
pub(crate) fn pick<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.below(choices.len() as u64) as usize]
}

fn pick_from<T: Copy>(random: &mut Random, choices: &[T]) -> Option<T> {
    choices.get(random.below(choices.len() as u64) as usize).copied()
}

/// Draws the duration of a cut or a pause: from less than a time-out to more than the time after which a silent session
/// ends.
pub(crate) fn duration(random: &mut Random) -> Duration {
    Duration::from_micros(pick(random, &[50, 500, 20_000, 70_000, 100_000, 150_000]))
}

/// Draws the time from one fault to the next, including times shorter than a recovery.
pub(crate) fn interval(random: &mut Random) -> Duration {
    Duration::from_micros(pick(random, &[1_000, 5_000, 30_000]) + random.below(1_000))
}
