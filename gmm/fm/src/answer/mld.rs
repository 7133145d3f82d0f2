//! Answers of a multi-logical device (54xxh): its LDs, the capacity reserved for them, quality of service.

use super::{CommandResponse, RequestContext, within};
use crate::bytes::Payload;
use crate::fabric::{Device, LDS_MAX, Qos};
use crate::header::ReturnCode;
use crate::mld_component::{
    ALLOCATION_UNIT, GetLdAllocations, GetQosFractions, LdAllocation, LdAllocations, LdInfo, QosControl,
    QosFractions, QosStatus, SetLdAllocations,
};
use crate::opcode::Opcode;

/// Encoding of the unit of allocations: 256 MB.
const GRANULARITY: u8 = 0;
/// Available controls: egress port congestion and temporary throughput reduction.
const QOS_ENABLES: u8 = 0b11;
const PERCENT_MAX: u8 = 100;

impl RequestContext<'_> {
    pub(super) fn mld_command(
        &mut self,
        device: &Device,
        opcode: Opcode,
        payload: &[u8],
    ) -> Result<CommandResponse, ReturnCode> {
        let port = device.port;
        match opcode {
            Opcode::GetLdInfo => {
                <()>::from_bytes(payload)?;
                let (memory_size, ld_count) = (device.pool_bytes, device.ld_count().into());
                Ok(LdInfo { memory_size, ld_count, qos: QOS_ENABLES }.into())
            }
            Opcode::GetLdAllocations => {
                let GetLdAllocations { first, limit } = GetLdAllocations::from_bytes(payload)?;
                if first >= LDS_MAX || limit == 0 {
                    return Err(ReturnCode::InvalidInput);
                }
                let allocations = allocations(device, first, limit.min(LDS_MAX - first))?;
                Ok(LdAllocations { total: LDS_MAX, granularity: GRANULARITY, first, allocations }.into())
            }
            Opcode::SetLdAllocations => self.set_allocations(port, &SetLdAllocations::from_bytes(payload)?),
            Opcode::GetQosControl => {
                <()>::from_bytes(payload)?;
                Ok(self.fabric.qos(port).control.into())
            }
            Opcode::SetQosControl => {
                let control = QosControl::from_bytes(payload)?;
                let ordered = control.moderate <= control.severe && control.severe <= PERCENT_MAX;
                if !ordered || control.enables & !QOS_ENABLES != 0 {
                    return Err(ReturnCode::InvalidInput);
                }
                let qos = self.fabric.qos(port);
                self.fabric.set_qos(port, Qos { control, ..qos })?;
                Ok(control.into())
            }
            Opcode::GetQosStatus => {
                <()>::from_bytes(payload)?;
                Ok(QosStatus { backpressure: device.backpressure.min(PERCENT_MAX) }.into())
            }
            Opcode::GetQosAllocated => fractions(&self.fabric.qos(port).allocated, payload),
            Opcode::GetQosLimit => fractions(&self.fabric.qos(port).limit, payload),
            Opcode::SetQosAllocated => {
                let mut qos = self.fabric.qos(port);
                let done = set_fractions(&mut qos.allocated, payload)?;
                // The sum of the fractions must not exceed the whole bandwidth, 256/256.
                if qos.allocated.iter().map(|part| u32::from(*part)).sum::<u32>() > 256 {
                    return Err(ReturnCode::InvalidInput);
                }
                self.fabric.set_qos(port, qos)?;
                Ok(done)
            }
            Opcode::SetQosLimit => {
                let mut qos = self.fabric.qos(port);
                let done = set_fractions(&mut qos.limit, payload)?;
                self.fabric.set_qos(port, qos)?;
                Ok(done)
            }
            _ => Err(ReturnCode::Unsupported),
        }
    }

    fn set_allocations(
        &mut self,
        port: u8,
        request: &SetLdAllocations,
    ) -> Result<CommandResponse, ReturnCode> {
        let count = request.allocations.len();
        within(request.first, count, LDS_MAX)?;
        // Devices have one kind of memory, so the second range of an LD must be empty.
        let bytes = |allocation: &LdAllocation| match allocation.range_2 {
            0 => allocation.range_1.checked_mul(ALLOCATION_UNIT),
            _ => None,
        };
        let bytes: Option<Vec<u64>> = request.allocations.iter().map(bytes).collect();
        let bytes = bytes.filter(|bytes| !bytes.is_empty()).ok_or(ReturnCode::InvalidInput)?;
        self.fabric.reserve(port, request.first, &bytes)?;
        let device = self.fabric.device(port).ok_or(ReturnCode::InternalError)?;
        let count = u8::try_from(count).map_err(|_| ReturnCode::InvalidInput)?;
        let allocations = allocations(&device, request.first, count)?;
        Ok(SetLdAllocations { first: request.first, allocations }.into())
    }
}

fn allocations(device: &Device, first: u8, count: u8) -> Result<Vec<LdAllocation>, ReturnCode> {
    let of = |id: u8| device.ld(id.into()).map(|ld| ld.reserved / ALLOCATION_UNIT);
    (first..first + count).map(|id| of(id).map(|range_1| LdAllocation { range_1, range_2: 0 })).collect()
}

/// Returns the entries of those requested LDs that exist. A client that requests all of them sends a count of
/// 255.
fn fractions(all: &[u8; LDS_MAX as usize], payload: &[u8]) -> Result<CommandResponse, ReturnCode> {
    let GetQosFractions { count, first } = GetQosFractions::from_bytes(payload)?;
    if first >= LDS_MAX || count == 0 {
        return Err(ReturnCode::InvalidInput);
    }
    let fractions = all[within(first, count.min(LDS_MAX - first).into(), LDS_MAX)?].to_vec();
    Ok(QosFractions { first, fractions }.into())
}

fn set_fractions(all: &mut [u8; LDS_MAX as usize], payload: &[u8]) -> Result<CommandResponse, ReturnCode> {
    let request = QosFractions::from_bytes(payload)?;
    let range = within(request.first, request.fractions.len(), LDS_MAX)?;
    all[range].copy_from_slice(&request.fractions);
    Ok(request.into())
}
