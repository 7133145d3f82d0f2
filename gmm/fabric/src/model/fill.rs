//! Order to a memory node to copy a part of a region that no compute node uses from another memory node, and the
//! progress with it. The orders in force are in each answer to a memory node; they are not numbered, because a copy that
//! is interrupted begins again.

use serde::{Deserialize, Serialize};

use super::{Mac, Mapping, Name, PublicKey};

/// Order to fill extents of a memory node with the content of another memory node's extents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FillCmem {
    /// The extents to fill. They are mapped for this memory node itself, whose CN id is the address of its first port.
    #[serde(flatten)]
    pub mapping: Mapping,
    /// Memory node that has the content, mapped for this memory node at the same CMem addresses.
    pub source: FillSource,
}

/// Memory node from which extents are filled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FillSource {
    /// Name of the memory node, for logs only.
    pub memory_node: Name,
    /// Address of the memory node's first port.
    pub mac: Mac,
    /// Public key of the memory node; none if it has no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    /// Incarnation of the pool that contains the content; nothing is copied from a pool of another incarnation.
    pub incarnation: u64,
}

/// Progress of a memory node with an order to fill extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FillProgress {
    /// First CMem byte address of the order's mapping.
    pub cmem_base: u64,
    /// Bytes copied so far. When all bytes of the mapping are copied, the memory node writes nothing there any more.
    pub done: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_of_an_order_is_flat() {
        let mapping = Mapping {
            cn: "02:00:00:00:02:01".parse().unwrap(),
            region: Name::new("r0").unwrap(),
            cmem_base: 4 << 20,
            extent_bytes: 2 << 20,
            extents: [3, 4].into_iter().collect(),
            sealed: false,
            cn_key: None,
        };
        let mac = "02:00:00:00:02:00".parse().unwrap();
        let source = FillSource { memory_node: Name::new("mn0").unwrap(), mac, key: None, incarnation: 7 };
        let order = FillCmem { mapping, source };
        let json = serde_json::to_value(&order).unwrap();
        assert_eq!(json["cmem_base"], 4 << 20);
        assert_eq!(json["source"]["mac"], "02:00:00:00:02:00");
        assert_eq!(serde_json::from_value::<FillCmem>(json).unwrap(), order);
    }
}
