//! What can befall the nodes and the network in the course of a run.

use std::time::Duration;

use cxloe_wire::random::Random;

/// A kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The path between a compute node and a memory node is cut for a time, one way; or a memory node is cut off.
    Cut,
    /// A memory node comes back as a new process with its pool.
    RestartKept,
    /// A memory node comes back as a new process with an empty pool.
    RestartLost,
    /// A compute node is killed and starts anew, its cache empty.
    Kill,
    /// A node does nothing for a time, while frames pile up in its receive queue.
    Pause,
    /// A region is destroyed and created anew, what is modified and what is on its way notwithstanding.
    Replace,
    /// The faults of the network change.
    Weather,
    /// They change, to more than any program could bear.
    Storm,
    /// A compute node is cut off for a time, perhaps for longer than anybody waits.
    CutOff,
    /// A memory node tells its compute nodes that it goes away, and comes back as a new process with its pool.
    Goodbye,
    /// The manager is killed: at once, before its next commit, or between that and its answer; another takes over.
    Manager,
    /// A node, or everybody, cannot reach the manager for a time.
    ManagerAway,
    /// Somebody without any right sends forged frames in the names of both ends.
    Forgery,
    /// Frames that somebody has recorded come again: handshakes, and frames of earlier sessions.
    Replay,
    /// A memory node is flooded with Hellos.
    Flood,
    /// Somebody calls a memory node in a compute node's name, and shows a key that nobody knows.
    Impostor,
    /// A compute node's key is taken back for a time.
    Revocation,
    /// For a time the manager runs over an empty store, or over an older copy of its own.
    WrongManager,
}

/// Everything, the more frequent ones several times.
pub(crate) const ALL: &[Trouble] = &[
    Trouble::Cut,
    Trouble::Cut,
    Trouble::Cut,
    Trouble::RestartKept,
    Trouble::RestartKept,
    Trouble::RestartLost,
    Trouble::Kill,
    Trouble::Pause,
    Trouble::Pause,
    Trouble::Replace,
    Trouble::Replace,
    Trouble::Weather,
];

/// What befalls a run with somebody at the network who means harm, and what nodes and network do anyway.
pub(crate) const INTRUDED: &[Trouble] = &[
    Trouble::Forgery,
    Trouble::Forgery,
    Trouble::Replay,
    Trouble::Replay,
    Trouble::Flood,
    Trouble::Flood,
    Trouble::Impostor,
    Trouble::Impostor,
    Trouble::Impostor,
    Trouble::Revocation,
    Trouble::Revocation,
    Trouble::Kill,
    Trouble::RestartKept,
    Trouble::Cut,
    Trouble::Weather,
];

/// What can befall a run with a manager: all that can befall nodes, and the manager.
pub(crate) const MANAGED: &[Trouble] = &[
    Trouble::Manager,
    Trouble::Manager,
    Trouble::Manager,
    Trouble::ManagerAway,
    Trouble::ManagerAway,
    Trouble::WrongManager,
    Trouble::WrongManager,
    Trouble::Cut,
    Trouble::RestartKept,
    Trouble::RestartKept,
    Trouble::RestartLost,
    Trouble::Kill,
    Trouble::Pause,
    Trouble::Weather,
];

/// Troubles of a run: how many, of which kinds, and how close to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Troubles {
    /// How many.
    pub count: u64,
    /// Drawn from these.
    pub kinds: &'static [Trouble],
}

impl Troubles {
    /// No trouble at all.
    pub const NONE: Troubles = Troubles { count: 0, kinds: &[] };

    /// The kind of the next one.
    pub(crate) fn draw(self, random: &mut Random) -> Option<Trouble> {
        pick_from(random, self.kinds)
    }
}

/// One of several choices.
pub(crate) fn pick<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.below(choices.len() as u64) as usize]
}

fn pick_from<T: Copy>(random: &mut Random, choices: &[T]) -> Option<T> {
    choices.get(random.below(choices.len() as u64) as usize).copied()
}

/// How long a cut or a pause lasts: shorter than a time-out, longer than a session lives, and between.
pub(crate) fn duration(random: &mut Random) -> Duration {
    Duration::from_micros(pick(random, &[50, 500, 20_000, 70_000, 100_000, 150_000]))
}

/// From one trouble to the next.
pub(crate) fn interval(random: &mut Random) -> Duration {
    Duration::from_micros(pick(random, &[1_000, 5_000, 30_000]) + random.below(1_000))
}
