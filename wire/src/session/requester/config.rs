//! Configuration of a requester: addresses, keys, limits of the link, timing.

use core::time::Duration;

use crate::session::{Entropy, Identity, KeyPair, PreSharedKey};

/// Time limits and intervals of a session at the CN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time for which an answer may be due without any answer arriving; after it the session is dead and its requests
    /// fail (R8).
    pub dead_after: Duration,
    /// Time without any frame while an answer is due, after which the CN asks for another session. The old
    /// session may still answer.
    pub suspect_after: Duration,
    /// Interval of Pings while no frame comes.
    pub ping_every: Duration,
    /// First interval between two Hellos. Each further interval is longer by an eighth, up to
    /// [`hello_max`](Timing::hello_max).
    pub hello_first: Duration,
    /// Longest interval between two Hellos; also the interval after a refusal.
    pub hello_max: Duration,
    /// Time-out of a request before the first round trip is measured.
    pub timeout_initial: Duration,
    /// Shortest time-out of a request (R8).
    pub timeout_min: Duration,
    /// Longest time-out of a request (R8).
    pub timeout_max: Duration,
    /// Age at which a session of version 2 is replaced by one with new keys.
    pub rekey_every: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            dead_after: Duration::from_secs(5),
            suspect_after: Duration::from_millis(250),
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

/// Configuration of a requester, for one memory node.
#[derive(Clone, Debug)]
pub struct RequesterConfig {
    /// MAC addresses of both ends, and the EtherType.
    pub identity: Identity,
    /// Longest frame that this end's link carries, in bytes from the destination MAC to the end of the
    /// trailer.
    pub max_frame: usize,
    /// Number of streams to request, 1 to [`STREAMS_MAX`](crate::session::STREAMS_MAX).
    pub streams: u8,
    /// Random number drawn when the agent starts; it distinguishes two agents with the same MAC address.
    pub instance: u64,
    /// Pre-shared key for sealed frames; `None` gives the plain trailer.
    pub key: Option<PreSharedKey>,
    /// Keys of both nodes. If present, only sessions between these keys are accepted.
    pub keys: Option<KeyPair>,
    /// Time limits and intervals of the session.
    pub timing: Timing,
    /// Source of nonces and ephemeral keys.
    pub seed: Entropy,
}
