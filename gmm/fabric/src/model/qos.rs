//! The quality-of-service telemetry controls of a memory node (CXL 2.0, 7.6.7.4: Get and Set QoS Control, QoS Allocated
//! Bandwidth, QoS Bandwidth Limit). The manager keeps and shows them.

use serde::{Deserialize, Serialize};

use super::{LDS_MAX, Name};

/// Quality-of-service controls of one memory node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Qos {
    /// Name of the memory node that has the controls.
    pub memory_node: Name,
    /// Enabled controls: bit 0 egress port congestion, bit 1 temporary throughput reduction.
    pub enables: u8,
    /// Percentage of egress port congestion that counts as moderate.
    pub moderate: u8,
    /// Percentage of egress port congestion that counts as severe.
    pub severe: u8,
    /// Sample interval of egress port congestion, in units of the CXL specification.
    pub interval: u8,
    /// RCBasis: estimated maximum of sustained requests and responses of the whole device, the basis of the fractions.
    pub request_basis: u16,
    /// Completion collection interval, in units of the CXL specification.
    pub completion_interval: u8,
    /// Bandwidth allocated to each LD, in 256ths.
    pub allocated: [u8; LDS_MAX as usize],
    /// Bandwidth limit of each LD, in 256ths; 0: none.
    pub limit: [u8; LDS_MAX as usize],
}

impl Qos {
    /// Returns the default controls, for a memory node for which none were set.
    pub fn new(memory_node: Name) -> Self {
        Self {
            memory_node,
            enables: 0,
            moderate: 10,
            severe: 25,
            interval: 8,
            request_basis: 0,
            completion_interval: 64,
            allocated: [0; LDS_MAX as usize],
            limit: [0; LDS_MAX as usize],
        }
    }
}
