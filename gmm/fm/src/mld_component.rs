//! MLD component commands (54xxh), which reach a memory node through the tunnel: its LDs, the capacity
//! reserved for each, and its quality of service.

use super::bytes::{Payload, Reader, Writer, WrongLength, count_u8, fields};

/// The unit of LD allocations: 256 MiB (granularity 0).
pub const ALLOCATION_UNIT: u64 = 256 << 20;

/// Response to Get LD Info (5400h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LdInfo {
    /// Size of the device's memory in bytes.
    pub memory_size: u64,
    /// Maximum number of LDs of the device.
    pub ld_count: u16,
    /// Quality-of-service controls of the device: bit 0 egress port congestion, bit 1 temporary throughput reduction.
    pub qos: u8,
}

fields!(LdInfo: memory_size, ld_count, qos);

/// Request of Get LD Allocations (5401h): a range of LDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetLdAllocations {
    /// LD-ID of the first requested LD.
    pub first: u8,
    /// Maximum number of LDs to return.
    pub limit: u8,
}

fields!(GetLdAllocations: first, limit);

/// Capacity of one LD, in units of the response's granularity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LdAllocation {
    /// Capacity of range 1, in units of the granularity.
    pub range_1: u64,
    /// Capacity of range 2, in units of the granularity; 0 here.
    pub range_2: u64,
}

fields!(LdAllocation: range_1, range_2);

/// Response to Get LD Allocations (5401h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LdAllocations {
    /// Number of the device's LDs, including those not returned.
    pub total: u8,
    /// Unit of the capacities: 0 256 MB, 1 512 MB, 2 1 GB.
    pub granularity: u8,
    /// LD-ID of the first returned LD.
    pub first: u8,
    /// Capacities of consecutive LDs, from `first` on.
    pub allocations: Vec<LdAllocation>,
}

impl Payload for LdAllocations {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let [total, granularity, first, count] = reader.array()?;
        Ok(Self { total, granularity, first, allocations: reader.list(count.into())? })
    }

    fn write(&self, writer: &mut Writer) {
        writer.bytes(&[self.total, self.granularity, self.first, count_u8(self.allocations.len())]);
        writer.list(&self.allocations);
    }
}

/// Request of Set LD Allocations (5402h), and its response with the resulting allocations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetLdAllocations {
    /// LD-ID of the first LD to set.
    pub first: u8,
    /// Capacities of consecutive LDs, from `first` on.
    pub allocations: Vec<LdAllocation>,
}

impl Payload for SetLdAllocations {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let [count, first, ..] = reader.array::<4>()?;
        Ok(Self { first, allocations: reader.list(count.into())? })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u8(count_u8(self.allocations.len())).u8(self.first).reserved(2).list(&self.allocations);
    }
}

/// Response of Get QoS Control (5403h), request and response of Set QoS Control (5404h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QosControl {
    /// Enabled controls: bit 0 egress port congestion, bit 1 temporary throughput reduction.
    pub enables: u8,
    /// Percentage of egress port congestion that counts as moderate.
    pub moderate: u8,
    /// Percentage of egress port congestion that counts as severe.
    pub severe: u8,
    /// Sample interval, in units of the specification.
    pub interval: u8,
    /// RCBasis: estimated maximum of sustained requests and responses of the whole device, the basis of the fractions.
    pub request_basis: u16,
    /// Completion collection interval, in units of the specification.
    pub completion_interval: u8,
}

impl Default for QosControl {
    fn default() -> Self {
        let (moderate, severe, interval, completion_interval) = (10, 25, 8, 64);
        Self { enables: 0, moderate, severe, interval, request_basis: 0, completion_interval }
    }
}

fields!(QosControl: enables, moderate, severe, interval, request_basis, completion_interval);

/// Response to Get QoS Status (5405h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QosStatus {
    /// Average backpressure of the egress port, 0 to 100 percent.
    pub backpressure: u8,
}

fields!(QosStatus: backpressure);

/// Request of Get QoS Allocated Bandwidth (5406h) and Get QoS Bandwidth Limit (5408h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetQosFractions {
    /// Number of requested LDs.
    pub count: u8,
    /// LD-ID of the first requested LD.
    pub first: u8,
}

fields!(GetQosFractions: count, first);

/// Request of Set QoS Allocated Bandwidth (5407h) and Set QoS Bandwidth Limit (5409h), response of these and of 5406h and
/// 5408h.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QosFractions {
    /// LD-ID of the first LD in `fractions`.
    pub first: u8,
    /// Bandwidth of consecutive LDs from `first` on, in 256ths.
    pub fractions: Vec<u8>,
}

impl Payload for QosFractions {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let [count, first] = reader.array()?;
        Ok(Self { first, fractions: reader.take(count.into())?.to_vec() })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u8(count_u8(self.fractions.len())).u8(self.first).bytes(&self.fractions);
    }
}
