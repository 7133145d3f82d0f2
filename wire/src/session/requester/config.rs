//! What a requester is told once: who it is, what its link carries, how long it waits for what.

use core::time::Duration;

use crate::session::{Entropy, Identity, KeyPair, PreSharedKey};

/// When a session waits how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A session without any sign of life for this long is dead, and its requests fail (R8).
    pub dead_after: Duration,
    /// After this long without a sign of life a new session is offered, while the old one may still answer.
    pub suspect_after: Duration,
    /// An idle session is asked for a sign of life this often.
    pub ping_every: Duration,
    /// First interval between two Hellos; doubled up to [`hello_max`](Timing::hello_max).
    pub hello_first: Duration,
    /// Longest interval between two Hellos.
    pub hello_max: Duration,
    /// Time-out of a request before there is a sample.
    pub timeout_initial: Duration,
    /// Shortest time-out of a request.
    pub timeout_min: Duration,
    /// Longest time-out of a request.
    pub timeout_max: Duration,
    /// A session between keys gets new ones this often.
    pub rekey_every: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            dead_after: Duration::from_secs(5),
            suspect_after: Duration::from_secs(1),
            ping_every: Duration::from_secs(1),
            hello_first: Duration::from_millis(20),
            hello_max: Duration::from_secs(1),
            timeout_initial: Duration::from_millis(20),
            timeout_min: Duration::from_millis(1),
            timeout_max: Duration::from_millis(500),
            rekey_every: Duration::from_secs(120),
        }
    }
}

/// What a requester needs to know.
#[derive(Clone, Debug)]
pub struct RequesterConfig {
    /// Who talks to whom.
    pub identity: Identity,
    /// The largest frame this end's link carries.
    pub max_frame: usize,
    /// Streams to ask for, 1 to [`STREAMS_MAX`](crate::session::STREAMS_MAX).
    pub streams: u8,
    /// This agent's instance id: random at its start.
    pub instance: u64,
    /// Pre-shared key for sealed frames; `None` for the plain trailer.
    pub key: Option<PreSharedKey>,
    /// The keys of both nodes: the session is sealed under keys of its own, or there is none.
    pub keys: Option<KeyPair>,
    /// How long to wait for what.
    pub timing: Timing,
    /// Where nonces and ephemeral keys come from.
    pub seed: Entropy,
}
