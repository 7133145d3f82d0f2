//! Memory nodes and compute nodes of the measured fabric: names, addresses, sizes.

use cxloe_fabric::api::{RegisterComputeNode, RegisterMemoryNode};
use cxloe_fabric::model::{CnId, DeviceKind, Mac, Name, Watermark};

/// Bytes of an extent, the unit in which a pool is allocated.
pub const EXTENT: u64 = 2 << 20;
/// Bytes of a memory node's pool.
const POOL: u64 = 1 << 40;

pub fn memory_node(index: u32) -> RegisterMemoryNode {
    RegisterMemoryNode {
        name: name("mn", index),
        kind: DeviceKind::Mld,
        macs: vec![Mac::from(octets(2, index))],
        udp: None,
        key: None,
        rack: None,
        pool_bytes: POOL,
        extent_bytes: EXTENT,
        incarnation: 1,
        instance_id: 1 + u64::from(index),
        started_ms: 0,
        mtu: 1500,
        seen: Watermark::default(),
    }
}

pub fn compute_node(index: u32) -> RegisterComputeNode {
    let (cn_id, name, instance_id) = (cn_id(index), name("cn", index), 1 + u64::from(index));
    let (key, new_key) = (None, false);
    RegisterComputeNode { cn_id, name, udp: None, key, new_key, instance_id, seen: Watermark::default() }
}

pub fn cn_id(index: u32) -> CnId {
    CnId::new(octets(1, index)).expect("a unicast address")
}

pub fn name(kind: &str, index: u32) -> Name {
    Name::new(format!("{kind}{index}")).expect("letters and digits")
}

fn octets(kind: u8, index: u32) -> [u8; 6] {
    let [a, b, c, d] = index.to_be_bytes();
    [2, kind, a, b, c, d]
}
