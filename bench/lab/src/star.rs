//! A star: memory nodes and compute nodes, each in a namespace of its own, around one switch.
//!
//! ```text
//!   mn0 --- port-mn0 \                / port-cn0 --- cn0
//!   mn1 --- port-mn1 -- switch: br0 --- port-cn1 --- cn1
//!    .                                                .
//! ```
//!
//! Namespaces and the interfaces in them have the same names; MAC addresses are derived from the numbers, so that a
//! test or a configuration file can refer to a node before the network exists.

use crate::{Builder, Lab};

/// Maximum number of nodes of one kind. A node's number is one byte of its MAC address and of its IP address.
pub const STAR_NODES_MAX: usize = 200;
/// Name of the namespace that contains the bridge and the other end of each node's cable.
const SWITCH: &str = "switch";

/// Returns the MAC address of memory node number `index` of a star, which is that of the interface
/// `mn<index>`.
pub fn memory_node_mac(index: usize) -> String {
    format!("02:00:00:00:02:{index:02x}")
}

/// Returns the MAC address of compute node number `index` of a star: that of the interface `cn<index>`, and
/// its CN id.
pub fn compute_node_mac(index: usize) -> String {
    format!("02:00:00:00:01:{index:02x}")
}

impl Lab {
    /// Describes a star of `memory_nodes` (`mn0`, `mn1`, …) and `compute_nodes` (`cn0`, …), at most
    /// [`STAR_NODES_MAX`] of each. The caller can extend the returned builder, by an MTU for example.
    pub fn star(memory_nodes: usize, compute_nodes: usize) -> Builder {
        let macs: [fn(usize) -> String; 2] = [memory_node_mac, compute_node_mac];
        let kinds = [("mn", memory_nodes), ("cn", compute_nodes)];
        let nodes = kinds.into_iter().zip(macs).flat_map(|((kind, count), mac)| {
            (0..count.min(STAR_NODES_MAX)).map(move |index| (format!("{kind}{index}"), mac(index)))
        });
        let (mut builder, mut ports) = (Lab::builder().namespace(SWITCH), Vec::new());
        for (node, mac) in nodes {
            let port = format!("port-{node}");
            builder = builder.namespace(&node).veth(&node, &node, SWITCH, &port).mac(&node, &mac);
            ports.push(port);
        }
        let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
        builder.bridge(SWITCH, "br0", &ports)
    }
}
