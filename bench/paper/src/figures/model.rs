//! Parameters of the simulated link.

use std::time::Duration;

use cxloe_cc::{BitsPerSecond, Config, GBIT};
use serde::Serialize;

use super::time::Ps;

/// Parameters of the simulated link. The figures are drawn with [`Model::default`]; the documentation of this
/// module gives the source of each value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Model {
    /// Rate of the link in bits per second, for all bytes of a slot.
    pub link: BitsPerSecond,
    /// Number of bytes that one entry of the FIFO takes on the wire, and removes from the token bucket.
    pub slot_bytes: u64,
    /// Delay from the moment the threshold is exceeded until the controller receives the PFC frame.
    #[serde(serialize_with = "nanoseconds", rename = "feedback_ns")]
    pub feedback: Duration,
    /// Interval between PFC frames while the number of entries stays above the threshold.
    #[serde(serialize_with = "nanoseconds", rename = "repeat_ns")]
    pub repeat: Duration,
    /// Time that the reader takes for one entry.
    #[serde(serialize_with = "nanoseconds", rename = "read_ns")]
    pub read: Duration,
    /// Number of entries that must arrive after an entry before the reader takes it; see `patience`.
    pub window: u32,
    /// Time after which the reader takes an entry without a full window.
    #[serde(serialize_with = "nanoseconds", rename = "patience_ns")]
    pub patience: Duration,
    /// Length of each stall of the reader.
    #[serde(serialize_with = "nanoseconds", rename = "stall_ns")]
    pub stall: Duration,
    /// Shortest time from the start of one stall to the start of the next.
    #[serde(serialize_with = "nanoseconds", rename = "stall_gap_min_ns")]
    pub stall_gap_min: Duration,
    /// Longest time from the start of one stall to the start of the next; the times are uniformly
    /// distributed.
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
    /// Returns the configuration of the controller for this link, with the paper's times.
    pub fn controller(&self) -> Config {
        Config::for_link(self.link)
    }

    /// Returns the time for which one slot occupies the wire.
    pub(super) fn slot(&self) -> Ps {
        Ps((u128::from(self.slot_bytes) * 8 * 1_000_000_000_000 / u128::from(self.link)) as u64)
    }
}

fn nanoseconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.as_nanos() as u64)
}
