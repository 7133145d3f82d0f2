//! Dynamic capacity commands (56xxh), which reach a memory node through the tunnel: capacity is added to a
//! host and released while the host runs. A host is an LD here.

use super::bytes::{Payload, Reader, Writer, WrongLength, count_u8, count_u32, fields};

/// The unit of total capacity and decode lengths: 256 MiB.
pub const CAPACITY_UNIT: u64 = 256 << 20;
/// Maximum number of dynamic-capacity regions of a host.
pub const REGIONS_MAX: usize = 8;
pub(crate) const TAG_BYTES: usize = 16;

/// Tag of capacity: identifies the capacity that one request added.
pub type Tag = [u8; TAG_BYTES];

/// Response to Get DCD Info (5600h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DcdInfo {
    /// Maximum number of hosts that can have capacity.
    pub hosts: u8,
    /// Number of dynamic-capacity regions of each host.
    pub regions: u8,
    /// Supported policies for choosing capacity to add: bit n for policy n ([`selection`]).
    pub add_policies: u16,
    /// Supported policies for choosing capacity to release: bit n for policy n ([`removal`]).
    pub removal_policies: u16,
    /// Regions for which sanitizing on release can be turned on and off, one bit each.
    pub sanitize_mask: u8,
    /// Total capacity for hosts, in units of [`CAPACITY_UNIT`].
    pub capacity: u64,
    /// Possible block sizes of each region: bit n for 2^n bytes.
    pub block_sizes: [u64; REGIONS_MAX],
}

fields!(DcdInfo:
    hosts, regions + 2, add_policies + 2, removal_policies, sanitize_mask + 1, capacity, block_sizes
);

/// Request of Get Host DC Region Configuration (5601h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetHostRegions {
    /// LD-ID of the host.
    pub host: u16,
    /// Maximum number of regions to return.
    pub count: u8,
    /// Number of the first region to return.
    pub first: u8,
}

fields!(GetHostRegions: host, count, first);

/// Configuration of one dynamic-capacity region of a host, encoded in 40 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DcRegion {
    /// First device address of the region.
    pub base: u64,
    /// Size of the address range reserved for the region, in units of [`CAPACITY_UNIT`].
    pub decode_length: u64,
    /// Usable bytes of the region.
    pub length: u64,
    /// Unit in which the region's capacity is allocated, in bytes.
    pub block_size: u64,
    /// Attributes of the region: bit 2 non-volatile, 3 shareable, 4 hardware-managed coherency.
    pub flags: u8,
    /// Bit 0: capacity of the region is sanitized when it is released.
    pub sanitize: u8,
}

fields!(DcRegion: base, decode_length, length, block_size, flags + 3, sanitize + 3);

/// Response to Get Host DC Region Configuration (5601h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRegions {
    /// LD-ID of the host.
    pub host: u16,
    /// Number of the host's regions, including those not returned.
    pub total: u8,
    pub regions: Vec<DcRegion>,
    /// Maximum number of extents that the device supports.
    pub extents_max: u32,
    /// Number of extents that can still be added.
    pub extents_free: u32,
    /// Maximum number of tags that the device supports.
    pub tags_max: u32,
    /// Number of tags that can still be added.
    pub tags_free: u32,
}

impl Payload for HostRegions {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let host = reader.u16()?;
        let [total, count] = reader.array()?;
        Ok(Self {
            host,
            total,
            regions: reader.list(count.into())?,
            extents_max: reader.u32()?,
            extents_free: reader.u32()?,
            tags_max: reader.u32()?,
            tags_free: reader.u32()?,
        })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u16(self.host).u8(self.total).u8(count_u8(self.regions.len())).list(&self.regions);
        writer.u32(self.extents_max).u32(self.extents_free).u32(self.tags_max).u32(self.tags_free);
    }
}

/// Request of Set DC Region Configuration (5602h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetDcRegion {
    /// Number of the region, 0 to 7, the same for every host.
    pub region: u8,
    /// Block size of the region, in bytes.
    pub block_size: u64,
    /// Bit 0: sanitize released capacity.
    pub sanitize: u8,
}

fields!(SetDcRegion: region + 3, block_size, sanitize + 3);

/// Request of Get DC Region Extent Lists (5603h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetExtents {
    /// LD-ID of the host.
    pub host: u16,
    /// Maximum number of extents to return.
    pub count: u32,
    /// Index of the first extent to return.
    pub first: u32,
}

fields!(GetExtents: host + 2, count, first);

/// Extent: consecutive device addresses of a host's capacity, encoded in 40 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First device address of the extent.
    pub dpa: u64,
    /// Length of the extent in bytes.
    pub length: u64,
    /// Tag of the request that added the extent.
    pub tag: Tag,
    /// Position among the extents of shared capacity; 0, because no capacity is shared.
    pub sequence: u16,
}

pub(crate) const EXTENT_BYTES: usize = 40;

fields!(Extent: dpa, length, tag, sequence + 6);

/// Response to Get DC Region Extent Lists (5603h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extents {
    /// LD-ID of the host.
    pub host: u16,
    /// Index of the first returned extent.
    pub first: u32,
    /// Number of the host's extents, including those not returned.
    pub total: u32,
    /// Number that changes with each change of the list.
    pub generation: u32,
    /// The returned extents, from `first` on.
    pub extents: Vec<Extent>,
}

impl Payload for Extents {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let host = reader.u16()?;
        reader.skip(2)?;
        let (first, count, total, generation) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
        reader.skip(4)?;
        let count = usize::try_from(count).map_err(|_| WrongLength)?;
        Ok(Self { host, first, total, generation, extents: reader.list(count)? })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u16(self.host).reserved(2).u32(self.first).u32(count_u32(self.extents.len()));
        writer.u32(self.total).u32(self.generation).reserved(4).list(&self.extents);
    }
}

/// Policies for choosing capacity to add: values of [`InitiateAdd::policy`].
pub mod selection {
    /// Any free capacity.
    pub const FREE: u8 = 0;
    /// Any free capacity, contiguous.
    pub const CONTIGUOUS: u8 = 1;
    /// The extents that the request lists.
    pub const PRESCRIPTIVE: u8 = 2;
    /// Capacity that another host already has with the same tag: both hosts share it.
    pub const SHARED: u8 = 3;
}

/// Policies for choosing capacity to release: values of [`InitiateRelease::policy`].
pub mod removal {
    /// All capacity with the tag.
    pub const TAG: u8 = 0;
    /// The extents that the request lists.
    pub const PRESCRIPTIVE: u8 = 1;
}

/// Request of Initiate Dynamic Capacity Add (5604h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitiateAdd {
    /// LD-ID of the host.
    pub host: u16,
    /// Selection policy, bits 3:0: a value of [`selection`].
    pub policy: u8,
    /// Number of the host's region that the capacity is added to.
    pub region: u8,
    /// Capacity to add, in bytes.
    pub length: u64,
    /// Tag that the added capacity gets.
    pub tag: Tag,
    /// Extents to add, for the prescriptive policy. With other policies, the list and its count may be missing.
    pub extents: Vec<Extent>,
}

impl Payload for InitiateAdd {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let host = reader.u16()?;
        let [policy, region] = reader.array()?;
        let (length, tag) = (reader.u64()?, reader.array()?);
        Ok(Self { host, policy: policy & 0xF, region, length, tag, extents: listed(reader)? })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u16(self.host).u8(self.policy).u8(self.region).u64(self.length).bytes(&self.tag);
        writer.u32(count_u32(self.extents.len())).list(&self.extents);
    }
}

/// Request of Initiate Dynamic Capacity Release (5605h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitiateRelease {
    /// LD-ID of the host.
    pub host: u16,
    /// Removal policy, bits 3:0 of the flags: a value of [`removal`].
    pub policy: u8,
    /// True to release the capacity without waiting for the host; bit 4 of the flags.
    pub forced: bool,
    /// Capacity to release, in bytes.
    pub length: u64,
    /// Tag of the capacity to release.
    pub tag: Tag,
    /// Extents to release, for the prescriptive policy. With other policies, the list and its count may be missing.
    pub extents: Vec<Extent>,
}

impl Payload for InitiateRelease {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let host = reader.u16()?;
        let [flags, _] = reader.array()?;
        let (length, tag) = (reader.u64()?, reader.array()?);
        let (policy, forced) = (flags & 0xF, flags & 0x10 != 0);
        Ok(Self { host, policy, forced, length, tag, extents: listed(reader)? })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u16(self.host).u8(self.policy & 0xF | u8::from(self.forced) << 4).reserved(1);
        writer.u64(self.length).bytes(&self.tag).u32(count_u32(self.extents.len())).list(&self.extents);
    }
}

/// Reads a list of extents after its count; both may be missing.
fn listed(reader: &mut Reader<'_>) -> Result<Vec<Extent>, WrongLength> {
    if reader.is_empty() {
        return Ok(Vec::new());
    }
    let count = usize::try_from(reader.u32()?).map_err(|_| WrongLength)?;
    reader.list(count)
}
