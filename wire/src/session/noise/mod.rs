//! Authentication of the peer, and keys that only the two ends have: the handshake of version 2. It is Noise
//! IK (revision 34 of the framework, `Noise_IK_25519_AESGCM_SHA256`), used as in WireGuard.
//!
//! ```text
//!   CN                                                                          MN
//!   Hello | CRC | message 1: e, es, s, ss, time stamp | mac1 | mac2   -------->   mac1 is verified first
//!              <--------   HelloAck | CRC | message 2: e, ee, se | mac
//!   both: HKDF(chaining keys, handshake hash; Hello, HelloAck) = the keys of the session
//! ```
//!
//! The state machines do no Diffie-Hellman themselves. They return a [`HandshakeJob`], which owns all its
//! data and is computed outside the worker thread, and take the [`HandshakeDone`] later. A job is a function
//! of its data: a repeated run has the same result.
//!
//! | file | |
//! |---|---|
//! | `key` | a node's key; the pair of keys of a session |
//! | `job` | computations outside the worker thread |
//! | `mac` | mac1, cookies and mac2; the mac of a HelloAck |
//! | `resolver` | the primitives that `snow` computes with |

mod job;
mod key;
mod mac;
mod resolver;

pub use job::{HandshakeDone, HandshakeError, HandshakeJob};
pub use key::{KeyPair, NodeKey};
pub use mac::HelloMac;
pub use resolver::Primitives;

pub(crate) use job::{Call, Concluded, JobOutcome, Respond, Secret, TimeStamp, Work, ack_mac, prologue};
pub(crate) use mac::{Cookies, equal, mac_of_cookie, open_cookie};

/// Protection of a session as status output shows it: `sealed`, `sealed (pre-shared)` or `insecure`.
pub(crate) const fn integrity_name(sealed: bool, keyed: bool) -> &'static str {
    match (sealed, keyed) {
        (true, true) => "sealed",
        (true, false) => "sealed (pre-shared)",
        (false, _) => "insecure",
    }
}
