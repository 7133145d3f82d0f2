//! Answers of a device to dynamic capacity commands (56xxh). The hosts of a device are its LDs. Each host has
//! one dynamic-capacity region: the CMem addresses of its compute node. Every extent there belongs to one
//! region of the fabric, whose name the extent's tag encodes.

use std::collections::BTreeSet;

use super::{CommandResponse, RequestContext};
use crate::bytes::{Payload, count_u32};
use crate::dcd::{
    CAPACITY_UNIT, DcRegion, DcdInfo, EXTENT_BYTES, Extent, Extents, GetExtents, GetHostRegions, HostRegions,
    InitiateAdd, InitiateRelease, REGIONS_MAX, SetDcRegion, Tag, removal, selection,
};
use crate::fabric::{Capacity, Device, EXTENTS_MAX, LogicalDevice};
use crate::header::ReturnCode;
use crate::opcode::Opcode;
use cxloe_fabric::model::CMEM_LIMIT;

/// Number of dynamic-capacity regions of each host.
const REGIONS: u8 = 1;
/// Bit of [`DcRegion::sanitize`] and [`SetDcRegion::sanitize`]: released memory is zeroed before its next
/// use. Memory nodes always do that.
const SANITIZE: u8 = 1;

impl RequestContext<'_> {
    pub(super) fn dynamic_capacity_command(
        &mut self,
        device: &Device,
        opcode: Opcode,
        payload: &[u8],
        room: usize,
    ) -> Result<CommandResponse, ReturnCode> {
        match opcode {
            Opcode::GetDcdInfo => {
                <()>::from_bytes(payload)?;
                Ok(info(device).into())
            }
            Opcode::GetHostDcRegions => host_regions(device, GetHostRegions::from_bytes(payload)?),
            Opcode::SetDcRegion => set_region(device, SetDcRegion::from_bytes(payload)?),
            Opcode::GetDcExtents => extents(device, GetExtents::from_bytes(payload)?, room),
            Opcode::InitiateDcAdd => self.add(device, &InitiateAdd::from_bytes(payload)?),
            Opcode::InitiateDcRelease => self.release(device, &InitiateRelease::from_bytes(payload)?),
            _ => Err(ReturnCode::Unsupported),
        }
    }

    fn add(&mut self, device: &Device, request: &InitiateAdd) -> Result<CommandResponse, ReturnCode> {
        let ld = device.ld(request.host)?;
        // The free and the contiguous policy have the same result: the manager gives a region consecutive device
        // addresses, so its capacity is always contiguous.
        let chosen_here = matches!(request.policy, selection::FREE | selection::CONTIGUOUS);
        let blocks = request.length > 0 && request.length.is_multiple_of(device.block_bytes);
        let tag_taken = ld.capacity.iter().any(|capacity| capacity.tag == request.tag);
        if !chosen_here || request.region >= REGIONS || !blocks || tag_taken {
            return Err(ReturnCode::InvalidInput);
        }
        // An LD that is not bound has no host yet.
        if !ld.bound {
            return Err(ReturnCode::RetryRequired);
        }
        self.fabric.add_capacity(device.port, ld.id, request.length, request.tag)?;
        Ok(().into())
    }

    fn release(&mut self, device: &Device, request: &InitiateRelease) -> Result<CommandResponse, ReturnCode> {
        let ld = device.ld(request.host)?;
        let tags = match request.policy {
            removal::TAG => tagged(&ld, request)?,
            removal::PRESCRIPTIVE => listed(&ld, &request.extents)?,
            _ => return Err(ReturnCode::InvalidInput),
        };
        for tag in tags {
            self.fabric.release_capacity(device.port, ld.id, tag, request.forced)?;
        }
        Ok(().into())
    }
}

fn info(device: &Device) -> DcdInfo {
    let mut block_sizes = [0; REGIONS_MAX];
    block_sizes[0] = device.block_bytes;
    DcdInfo {
        hosts: device.ld_count(),
        regions: REGIONS,
        add_policies: 1 << selection::FREE | 1 << selection::CONTIGUOUS,
        removal_policies: 1 << removal::TAG | 1 << removal::PRESCRIPTIVE,
        sanitize_mask: 0,
        capacity: device.pool_bytes / CAPACITY_UNIT,
        block_sizes,
    }
}

fn host_regions(device: &Device, request: GetHostRegions) -> Result<CommandResponse, ReturnCode> {
    let ld = device.ld(request.host)?;
    if request.first >= REGIONS {
        return Err(ReturnCode::InvalidInput);
    }
    let region = DcRegion {
        base: 0,
        decode_length: CMEM_LIMIT / CAPACITY_UNIT,
        length: CMEM_LIMIT,
        block_size: device.block_bytes,
        flags: 0,
        sanitize: SANITIZE,
    };
    let tags = ld.capacity.iter().map(|capacity| capacity.tag).collect::<BTreeSet<_>>();
    Ok(HostRegions {
        host: request.host,
        total: REGIONS,
        regions: vec![region; request.count.min(REGIONS).into()],
        extents_max: EXTENTS_MAX,
        extents_free: EXTENTS_MAX.saturating_sub(count_u32(ld.capacity.len())),
        tags_max: EXTENTS_MAX,
        tags_free: EXTENTS_MAX.saturating_sub(count_u32(tags.len())),
    }
    .into())
}

/// Accepts the present configuration (blocks of the device's size, zeroed on release) while no host has capacity.
/// Refuses everything else, because a region cannot be reconfigured.
fn set_region(device: &Device, request: SetDcRegion) -> Result<CommandResponse, ReturnCode> {
    if request.region >= REGIONS || request.block_size != device.block_bytes {
        return Err(ReturnCode::InvalidInput);
    }
    let in_use = device.lds.iter().any(|ld| !ld.capacity.is_empty());
    if in_use || request.sanitize & SANITIZE == 0 {
        return Err(ReturnCode::Unsupported);
    }
    Ok(().into())
}

fn extents(device: &Device, request: GetExtents, room: usize) -> Result<CommandResponse, ReturnCode> {
    let ld = device.ld(request.host)?;
    let total = count_u32(ld.capacity.len());
    if request.first > total {
        return Err(ReturnCode::InvalidInput);
    }
    // The response has 24 bytes before its extents.
    let fit = room.saturating_sub(24) / EXTENT_BYTES;
    let count = usize::try_from(request.count).unwrap_or(usize::MAX).min(fit);
    let from = ld.capacity.iter().skip(usize::try_from(request.first).unwrap_or(usize::MAX));
    let extents = from.take(count).map(extent).collect();
    Ok(Extents { host: request.host, first: request.first, total, generation: ld.generation, extents }.into())
}

/// Encodes capacity as an extent. Capacity is never shared between hosts, so the sequence is 0.
pub fn extent(capacity: &Capacity) -> Extent {
    Extent { dpa: capacity.dpa, length: capacity.bytes, tag: capacity.tag, sequence: 0 }
}

/// Returns the tag in the request, if the request releases all capacity with this tag: its length is 0, or the length
/// of that capacity.
fn tagged(ld: &LogicalDevice, request: &InitiateRelease) -> Result<BTreeSet<Tag>, ReturnCode> {
    let of_tag = ld.capacity.iter().filter(|capacity| capacity.tag == request.tag);
    let bytes: u64 = of_tag.map(|capacity| capacity.bytes).sum();
    let whole = request.length == 0 || request.length == bytes;
    if bytes > 0 && whole { Ok(BTreeSet::from([request.tag])) } else { Err(ReturnCode::InvalidInput) }
}

/// Returns the tags of the listed extents, if these extents belong to this LD and include every extent of the LD with
/// these tags.
fn listed(ld: &LogicalDevice, extents: &[Extent]) -> Result<BTreeSet<Tag>, ReturnCode> {
    let asked: BTreeSet<(u64, u64)> = extents.iter().map(|extent| (extent.dpa, extent.length)).collect();
    let is_asked = |capacity: &&Capacity| asked.contains(&(capacity.dpa, capacity.bytes));
    let found: Vec<&Capacity> = ld.capacity.iter().filter(is_asked).collect();
    let tags: BTreeSet<Tag> = found.iter().map(|capacity| capacity.tag).collect();
    let of_tags = ld.capacity.iter().filter(|capacity| tags.contains(&capacity.tag)).count();
    let whole = !found.is_empty() && found.len() == asked.len() && found.len() == of_tags;
    if whole { Ok(tags) } else { Err(ReturnCode::InvalidInput) }
}
