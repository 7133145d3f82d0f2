//! Lists of regions and logical devices for `cn-agent list`, and log lines when logical devices are bound or
//! unbound.

use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use cxloe_fabric::api::VppbError;
use cxloe_fabric::model::{HdmDecoder, Leg, LogicalDevice, Region};

use super::view::{AttachedDecoder, AttachedDevice, AttachedLeg, AttachedRegion, Attaching};
use super::{Attachment, AttachmentPhase, Attachments, worker_of};
use crate::backing::Backing;

impl Attachments {
    /// The regions with addresses, sorted by HPA.
    pub fn list(&self) -> Vec<AttachedRegion> {
        let mut list: Vec<AttachedRegion> = self.by_name.values().map(|a| self.listed(a)).collect();
        list.sort_by_key(|region| region.hpa);
        list
    }

    fn listed(&self, attachment: &Attachment) -> AttachedRegion {
        let Attachment { region, hpa, window, backing } = attachment;
        AttachedRegion {
            region: region.name.to_string(),
            hpa: *hpa,
            size: region.size,
            uid: region.uid,
            created_ms: region.created_ms,
            sealed: region.sealed,
            epoch: region.epoch,
            state: region.state.to_string(),
            attachment: match self.phase(&region.name) {
                AttachmentPhase::Attached => Attaching::Attached,
                AttachmentPhase::Draining(_) => Attaching::Draining,
                AttachmentPhase::Detached | AttachmentPhase::Unknown if self.held => Attaching::InReset,
                AttachmentPhase::Unknown if *backing == Backing::Undecided => Attaching::Waiting,
                AttachmentPhase::Detached | AttachmentPhase::Unknown => Attaching::Detached,
            },
            worker: worker_of(*hpa, self.workers),
            served_by: backing.carrier(region),
            note: self.note(attachment),
            window: *window,
            beyond_window: attachment.beyond(),
            decoders: region.decoders.iter().map(|decoder| decoder_at(*hpa, decoder)).collect(),
            memory_nodes: region.legs.iter().map(|leg| leg_of(region, leg)).collect(),
        }
    }

    pub fn devices(&self) -> Vec<AttachedDevice> {
        self.devices.iter().map(device).collect()
    }

    /// Logs an error that was generated at a vPPB of this node, as a host logs the errors of its ports.
    pub fn log_vppb_error(&self, error: &VppbError) {
        let at =
            |ld: &&LogicalDevice| ld.binding.as_ref().and_then(|binding| binding.vppb) == Some(error.vppb);
        let device = self.devices.iter().find(at).map(|ld| format!("LD {} of {}", ld.id, ld.memory_node));
        let device = device.unwrap_or_else(|| "nothing".into());
        tracing::warn!(
            vppb = error.vppb, aer = format_args!("{:#010x}", error.aer), bound = %device,
            "a PCIe error (AER) was generated at a vPPB of this node through the FM API"
        );
    }

    /// Stores the logical devices bound to this node, and logs which ones were bound, unbound or are being
    /// unbound.
    pub fn follow_devices(&mut self, devices: &[LogicalDevice]) {
        let find = |all: &[LogicalDevice], ld: &LogicalDevice| {
            all.iter().find(|other| (&other.memory_node, other.id) == (&ld.memory_node, ld.id)).cloned()
        };
        let unbinding = |ld: &LogicalDevice| ld.binding.as_ref().and_then(|binding| binding.unbinding);
        for ld in devices {
            let known = find(&self.devices, ld);
            let AttachedDevice { memory_node, ld: id, vppb, region, .. } = device(ld);
            if known.is_none() {
                tracing::info!(%memory_node, ld = id, vppb, region, "hot-add: a logical device was bound to this node");
            }
            if let Some(how) = unbinding(ld)
                && known.as_ref().and_then(unbinding).is_none()
            {
                tracing::info!(%memory_node, ld = id, option = ?how.option, "hot-remove: the manager unbinds a logical device");
            }
        }
        for ld in self.devices.iter().filter(|ld| find(devices, ld).is_none()) {
            tracing::info!(memory_node = %ld.memory_node, ld = ld.id, "hot-remove: a logical device is no longer bound to this node");
        }
        self.devices = devices.to_vec();
    }
}

fn decoder_at(hpa: u64, decoder: &HdmDecoder) -> AttachedDecoder {
    AttachedDecoder {
        hpa: hpa + decoder.offset,
        size: decoder.size,
        interleave_ways: decoder.ways.count(),
        interleave_granularity: decoder.granularity.bytes(),
        committed: decoder.committed,
    }
}

fn leg_of(region: &Region, leg: &Leg) -> AttachedLeg {
    let decoder = region.decoders.get(leg.decoder as usize);
    AttachedLeg {
        memory_node: leg.memory_node.to_string(),
        mac: leg.mac().map_or_else(|| "unknown".into(), |mac| mac.to_string()),
        decoder: leg.decoder,
        position: leg.position,
        offset: decoder.map_or(0, |decoder| {
            decoder.offset + u64::from(leg.position) * u64::from(decoder.granularity.bytes())
        }),
        bytes: leg.bytes,
    }
}

fn device(ld: &LogicalDevice) -> AttachedDevice {
    let binding = ld.binding.as_ref();
    AttachedDevice {
        memory_node: ld.memory_node.to_string(),
        ld: ld.id,
        reserved: ld.reserved,
        vppb: binding.and_then(|binding| binding.vppb),
        region: binding.and_then(|binding| binding.region.as_ref()).map(ToString::to_string),
        unbinding: binding.and_then(|binding| binding.unbinding).map(|unbinding| unbinding.option),
    }
}
