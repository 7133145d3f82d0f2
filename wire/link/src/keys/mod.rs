//! What sessions between keys need of the machine: random bytes, the clock of the wall, a file for the node's key, and a
//! thread for Diffie-Hellman, which no worker waits for.
//!
//! ```text
//!   worker: requester, responder --HandshakeJob--> Handshaker's thread
//!                                <--HandshakeDone--
//! ```

mod file;
mod handshaker;
mod peer;
mod turns;

use std::time::{SystemTime, UNIX_EPOCH};

pub use file::{KeyFileError, node_key};
pub use handshaker::Handshaker;
pub use peer::{PeerKey, PeerKeyError};

use cxloe_wire::session::Entropy;

use crate::Clock;

/// The operating system's generator.
pub const SYSTEM: Entropy = Entropy::System(fill);

/// Fills `out` from the operating system's generator.
fn fill(out: &mut [u8]) {
    // It fails on kernels without the call, and those have nothing else that is needed here.
    getrandom::fill(out).expect("the kernel gives random bytes");
}

/// What the clock of the wall showed when `clock` showed 0, in nanoseconds since the Unix epoch.
pub fn epoch_ns(clock: &Clock) -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    wall.saturating_sub(clock.now().0)
}
