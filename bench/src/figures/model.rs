//! What the simulated link is made of, in numbers.

use std::time::Duration;

use cxloe_cc::{BitsPerSecond, Config, GBIT};
use serde::Serialize;

use super::time::Ps;

/// The numbers of the simulated link. [`Model::default`] is the one the figures are drawn with; the module's
/// documentation says where each number is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Model {
    /// The link's rate in bits per second.
    pub link: BitsPerSecond,
    /// Bytes of the wire, and so of tokens, that one entry of the FIFO takes.
    pub slot_bytes: u64,
    /// From the FIFO's passing its threshold to the controller's hearing of it.
    #[serde(serialize_with = "nanoseconds", rename = "feedback_ns")]
    pub feedback: Duration,
    /// While the FIFO stays above its threshold, a PFC frame follows the last one after this time.
    #[serde(serialize_with = "nanoseconds", rename = "repeat_ns")]
    pub repeat: Duration,
    /// The reader takes one entry in this time.
    #[serde(serialize_with = "nanoseconds", rename = "read_ns")]
    pub read: Duration,
    /// The reader takes an entry once this many have come after it ...
    pub window: u32,
    /// ... or once it has waited this long.
    #[serde(serialize_with = "nanoseconds", rename = "patience_ns")]
    pub patience: Duration,
    /// The reader stands still for this long ...
    #[serde(serialize_with = "nanoseconds", rename = "stall_ns")]
    pub stall: Duration,
    /// ... at times this far apart at least, start to start ...
    #[serde(serialize_with = "nanoseconds", rename = "stall_gap_min_ns")]
    pub stall_gap_min: Duration,
    /// ... and at most, all between being equally likely.
    #[serde(serialize_with = "nanoseconds", rename = "stall_gap_max_ns")]
    pub stall_gap_max: Duration,
}

impl Default for Model {
    fn default() -> Model {
        let ns = Duration::from_nanos;
        Model {
            link: 100 * GBIT,
            slot_bytes: 113,
            feedback: ns(1000),
            repeat: ns(1000),
            read: ns(4),
            window: 11,
            patience: ns(1000),
            stall: ns(820),
            stall_gap_min: ns(8_000),
            stall_gap_max: ns(30_000),
        }
    }
}

impl Model {
    /// The controller's configuration: the paper's times on this link.
    pub fn controller(&self) -> Config {
        Config::for_link(self.link)
    }

    /// How long one slot occupies the wire.
    pub(super) fn slot(&self) -> Ps {
        Ps((u128::from(self.slot_bytes) * 8 * 1_000_000_000_000 / u128::from(self.link)) as u64)
    }
}

fn nanoseconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.as_nanos() as u64)
}
