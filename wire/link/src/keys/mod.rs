//! The parts of sessions with keys that need the machine: random bytes, the real-time clock, files with the node's key
//! and with a pre-shared one, and a thread for Diffie-Hellman, so that no worker waits for it.
//!
//! ```text
//!   worker: requester, responder --HandshakeJob--> Handshaker's thread
//!                                <--HandshakeDone--
//! ```

mod file;
mod handshaker;
mod peer;
mod pre_shared;
mod turns;

use std::time::{SystemTime, UNIX_EPOCH};

pub use file::{KeyFileError, node_key};
pub use handshaker::Handshaker;
pub use peer::{PeerKey, PeerKeyError};
pub use pre_shared::{PreSharedKeyError, pre_shared_key};

use cxloe_wire::session::Entropy;

use crate::Clock;

/// Source of random bytes: the operating system's generator.
pub const SYSTEM: Entropy = Entropy::System(fill);

fn fill(out: &mut [u8]) {
    // The call fails only on kernels without a random generator, which also lack other features that this project
    // needs.
    getrandom::fill(out).expect("the kernel gives random bytes");
}

/// Returns the real time at which `clock` reads 0, in nanoseconds since the Unix epoch.
pub fn epoch_ns(clock: &Clock) -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    wall.saturating_sub(clock.now().0)
}
