//! Keys of simulated nodes, derived from their MAC addresses, so that no run needs a source of randomness for
//! them.

use std::sync::Arc;

use cxloe_mn_core::keys::AdmittedKeys;
use cxloe_wire::frame::{Mac, PublicKey};
use cxloe_wire::session::{KeyPair, NodeKey};

/// Wall-clock time at the start of virtual time, in nanoseconds since the Unix epoch.
pub const EPOCH_NS: u64 = 1_700_000_000_000_000_000;

pub fn key_of(mac: Mac) -> Arc<NodeKey> {
    let mut bytes = [0x5a; NodeKey::LEN];
    bytes[..6].copy_from_slice(&mac.0);
    Arc::new(NodeKey::from_bytes(bytes))
}

/// Returns a key that no node has registered.
pub fn unknown() -> Arc<NodeKey> {
    Arc::new(NodeKey::from_bytes([0x77; NodeKey::LEN]))
}

/// Returns the keys of a session of the compute node at `own` with the memory node at `peer`.
pub fn pair_of(own: Mac, peer: Mac) -> KeyPair {
    KeyPair { own: key_of(own), peer: key_of(peer).public(), epoch_ns: EPOCH_NS }
}

/// Returns the registered keys of a memory node that serves these compute nodes.
pub fn admitted(cns: &[Mac]) -> Arc<AdmittedKeys> {
    let keys = AdmittedKeys::default();
    keys.set_admitted(of(cns));
    Arc::new(keys)
}

/// Returns each of these compute nodes with its public key.
pub fn of(cns: &[Mac]) -> impl Iterator<Item = (Mac, PublicKey)> + '_ {
    cns.iter().map(|cn| (*cn, key_of(*cn).public()))
}
