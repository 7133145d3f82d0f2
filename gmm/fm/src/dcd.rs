//! Dynamic capacity commands (56xxh), which reach a memory node through the tunnel: capacity that is added to a host and
//! released while it runs. A host is an LD here.

use super::bytes::{Payload, Reader, Writer, WrongLength, count_u8, count_u32};

/// The unit of total capacity and decode lengths: 256 MiB.
pub const CAPACITY_UNIT: u64 = 256 << 20;
/// Most regions of a host.
pub const REGIONS_MAX: usize = 8;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;

/// Names capacity that was added at once.
pub type Tag = [u8; TAG_BYTES];

/// Response to Get DCD Info (5600h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DcdInfo {
    /// Hosts there can be.
    pub hosts: u8,
    /// Regions each of them has.
    pub regions: u8,
    /// Selection policies for adding: bit n for policy n ([`selection`]).
    pub add_policies: u16,
    /// Policies for releasing: bit n for policy n ([`removal`]).
    pub removal_policies: u16,
    /// Regions for which sanitizing on release can be turned on and off, one bit each.
    pub sanitize_mask: u8,
    /// Capacity that can be added to hosts, in units of [`CAPACITY_UNIT`].
    pub capacity: u64,
    /// Block sizes each region can have: bit n for 2^n bytes.
    pub block_sizes: [u64; REGIONS_MAX],
}

impl Payload for DcdInfo {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let [hosts, regions, ..] = reader.array::<4>()?;
        let add_policies = reader.u16()?;
        reader.skip(2)?;
        let removal_policies = reader.u16()?;
        let [sanitize_mask, _] = reader.array()?;
        let capacity = reader.u64()?;
        let mut block_sizes = [0; REGIONS_MAX];
        for mask in &mut block_sizes {
            *mask = reader.u64()?;
        }
        Ok(Self { hosts, regions, add_policies, removal_policies, sanitize_mask, capacity, block_sizes })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u8(self.hosts).u8(self.regions).reserved(2).u16(self.add_policies).reserved(2);
        writer.u16(self.removal_policies).u8(self.sanitize_mask).reserved(1).u64(self.capacity);
        for mask in &self.block_sizes {
            writer.u64(*mask);
        }
    }
}

/// Request of Get Host DC Region Configuration (5601h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetHostRegions {
    /// The host: an LD.
    pub host: u16,
    /// Most regions to tell of.
    pub count: u8,
    /// First region.
    pub first: u8,
}

impl Payload for GetHostRegions {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        Ok(Self { host: reader.u16()?, count: reader.u8()?, first: reader.u8()? })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u16(self.host).u8(self.count).u8(self.first);
    }
}

/// One region of a host: 40 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DcRegion {
    /// First device address.
    pub base: u64,
    /// Addresses set aside for it, in units of [`CAPACITY_UNIT`].
    pub decode_length: u64,
    /// Bytes that can be used.
    pub length: u64,
    /// Capacity comes in multiples of this, in bytes.
    pub block_size: u64,
    /// Attributes: bit 2 non-volatile, 3 shareable, 4 hardware-managed coherency.
    pub flags: u8,
    /// Bit 0: what is released is sanitized.
    pub sanitize: u8,
}

impl Payload for DcRegion {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let (base, decode_length, length, block_size) =
            (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
        let [flags, _, _, _, sanitize, ..] = reader.array::<8>()?;
        Ok(Self { base, decode_length, length, block_size, flags, sanitize })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u64(self.base).u64(self.decode_length).u64(self.length).u64(self.block_size);
        writer.u8(self.flags).reserved(3).u8(self.sanitize).reserved(3);
    }
}

/// Response to Get Host DC Region Configuration (5601h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRegions {
    /// The host.
    pub host: u16,
    /// Regions it has in all.
    pub total: u8,
    /// Those told of.
    pub regions: Vec<DcRegion>,
    /// Extents it can have.
    pub extents_max: u32,
    /// Extents it can have besides those it has.
    pub extents_free: u32,
    /// Tags it can have.
    pub tags_max: u32,
    /// Tags it can have besides those it has.
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
    /// Region of every host, 0 to 7.
    pub region: u8,
    /// Its block size in bytes.
    pub block_size: u64,
    /// Bit 0: sanitize what is released.
    pub sanitize: u8,
}

impl Payload for SetDcRegion {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let [region, ..] = reader.array::<4>()?;
        let block_size = reader.u64()?;
        let [sanitize, ..] = reader.array::<4>()?;
        Ok(Self { region, block_size, sanitize })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u8(self.region).reserved(3).u64(self.block_size).u8(self.sanitize).reserved(3);
    }
}

/// Request of Get DC Region Extent Lists (5603h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetExtents {
    /// The host.
    pub host: u16,
    /// Most extents to tell of.
    pub count: u32,
    /// First extent.
    pub first: u32,
}

impl Payload for GetExtents {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let host = reader.u16()?;
        reader.skip(2)?;
        Ok(Self { host, count: reader.u32()?, first: reader.u32()? })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u16(self.host).reserved(2).u32(self.count).u32(self.first);
    }
}

/// Consecutive device addresses that a host was given: 40 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First device address.
    pub dpa: u64,
    /// Bytes.
    pub length: u64,
    /// What it was added as.
    pub tag: Tag,
    /// Place among the extents of shared capacity; 0 here, where nothing is shared.
    pub sequence: u16,
}

/// Bytes of an [`Extent`].
pub const EXTENT_BYTES: usize = 40;

impl Payload for Extent {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let (dpa, length) = (reader.u64()?, reader.u64()?);
        let (tag, sequence) = (reader.array()?, reader.u16()?);
        reader.skip(6)?;
        Ok(Self { dpa, length, tag, sequence })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u64(self.dpa).u64(self.length).bytes(&self.tag).u16(self.sequence).reserved(6);
    }
}

/// Response to Get DC Region Extent Lists (5603h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extents {
    /// The host.
    pub host: u16,
    /// First extent told of.
    pub first: u32,
    /// Extents it has in all.
    pub total: u32,
    /// Changes whenever the list does.
    pub generation: u32,
    /// From the first on.
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

/// How to choose what is added: values of [`InitiateAdd::policy`].
pub mod selection {
    /// Whatever is free.
    pub const FREE: u8 = 0;
    /// Whatever is free, in one piece.
    pub const CONTIGUOUS: u8 = 1;
    /// The extents given.
    pub const PRESCRIPTIVE: u8 = 2;
    /// What another host has under the tag.
    pub const SHARED: u8 = 3;
}

/// How to choose what is released: values of [`InitiateRelease::policy`].
pub mod removal {
    /// What has the tag.
    pub const TAG: u8 = 0;
    /// The extents given.
    pub const PRESCRIPTIVE: u8 = 1;
}

/// Request of Initiate Dynamic Capacity Add (5604h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitiateAdd {
    /// The host.
    pub host: u16,
    /// [`selection`]; bits 3:0.
    pub policy: u8,
    /// The region of the host.
    pub region: u8,
    /// Bytes.
    pub length: u64,
    /// What it is to be known as.
    pub tag: Tag,
    /// Which, if the policy is prescriptive. With others the list and its count may be missing.
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
    /// The host.
    pub host: u16,
    /// [`removal`]; bits 3:0 of the flags.
    pub policy: u8,
    /// Without asking the host; bit 4 of the flags.
    pub forced: bool,
    /// Bytes.
    pub length: u64,
    /// What it is known as.
    pub tag: Tag,
    /// Which, if the policy is prescriptive. With others the list and its count may be missing.
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

/// A list of extents behind its count, or nothing at all.
fn listed(reader: &mut Reader<'_>) -> Result<Vec<Extent>, WrongLength> {
    if reader.is_empty() {
        return Ok(Vec::new());
    }
    let count = usize::try_from(reader.u32()?).map_err(|_| WrongLength)?;
    reader.list(count)
}
