//! Answers of a switch: ports (51xxh), virtual switches and bindings (52xxh), and devices behind a port (53xxh).

use super::{CommandResponse, MessageTarget, RequestContext};
use crate::bytes::Payload;
use crate::config_space::ConfigSpace;
use crate::fabric::{
    DECODERS_MAX, Device, DeviceKind, HOSTS_MAX, Host, PORTS_MAX, Slot, Unbind, VPPBS_MAX, upstream_port,
};
use crate::header::{HEADER_BYTES, ReturnCode};
use crate::mld_port::{
    ConfigRequest, ConfigResponse, MEMORY_REQUEST_MAX, MemoryRequest, MemoryResponse, Tunnel, Tunnelled,
};
use crate::opcode::Opcode;
use crate::physical_switch::{
    DEVICE_MLD, DEVICE_SLD, GetPortState, LINK_PERST, LINK_PRESENT, LTSSM_DISABLED, LTSSM_L0, MODE_CXL_2,
    PortControl, PortState, PortStates, SwitchIdentity, VERSION_CXL_2, port_state,
};
use crate::registers;
use crate::virtual_switch::{
    BindVppb, GenerateAer, GetVirtualSwitches, NO_LD, UnbindVppb, VirtualSwitch, VirtualSwitches, Vppb,
    VppbStatus, WHOLE_DEVICE, vcs_state,
};

/// Maximum number of lanes of a link. The network ports of a memory node are shown as lanes.
const LANES_MAX: u8 = 16;
/// Bytes of a tunnelled response in addition to its message: size, reserved bytes, message type.
const TUNNEL_BYTES: usize = 5;
/// Port number in the entry of a vPPB whose device is on another switch.
const ELSEWHERE: u8 = 0xFF;

impl RequestContext<'_> {
    pub(super) fn switch_command(
        &mut self,
        opcode: Opcode,
        payload: &[u8],
        room: usize,
    ) -> Result<CommandResponse, ReturnCode> {
        match opcode {
            Opcode::RequestAbort => {
                <()>::from_bytes(payload)?;
                self.fabric.abort()?;
                Ok(().into())
            }
            Opcode::IdentifySwitch => {
                <()>::from_bytes(payload)?;
                Ok(self.switch_identity().into())
            }
            Opcode::GetPhysicalPortState => {
                let request = GetPortState::from_bytes(payload)?;
                let fit = room.saturating_sub(4) / 16;
                let ports = request.ports.into_iter().filter_map(|port| self.port_state(port)).take(fit);
                Ok(PortStates { ports: ports.collect() }.into())
            }
            Opcode::PhysicalPortControl => self.control_port(PortControl::from_bytes(payload)?),
            Opcode::GetVirtualSwitchInfo => {
                Ok(self.virtual_switches(&GetVirtualSwitches::from_bytes(payload)?, room))
            }
            Opcode::BindVppb => self.bind(BindVppb::from_bytes(payload)?),
            Opcode::UnbindVppb => self.unbind(UnbindVppb::from_bytes(payload)?),
            Opcode::GenerateAer => self.generate_aer(GenerateAer::from_bytes(payload)?),
            Opcode::Tunnel => {
                let request = Tunnel::from_bytes(payload, self.session.dialect)?;
                self.tunnel(&request, room)
            }
            Opcode::LdConfigRequest => self.access_configuration(ConfigRequest::from_bytes(payload)?),
            Opcode::LdMemoryRequest => self.access_registers(&MemoryRequest::from_bytes(payload)?, room),
            _ => Err(ReturnCode::Unsupported),
        }
    }

    fn switch_identity(&self) -> SwitchIdentity {
        let (hosts, devices) = (self.fabric.hosts(), self.fabric.devices());
        let upstream = hosts.iter().map(|host| upstream_port(host.vcs));
        let bound = hosts.iter().map(|host| host.slots.len()).sum::<usize>();
        SwitchIdentity {
            // Requests arrive over the network, not at a port of the switch.
            ingress_port: 0,
            ports: PORTS_MAX,
            virtual_switches: HOSTS_MAX,
            active_ports: devices.into_iter().chain(upstream).collect(),
            active_virtual_switches: hosts.iter().map(|host| host.vcs).collect(),
            vppbs: u16::from(HOSTS_MAX) * u16::from(VPPBS_MAX),
            bound_vppbs: u16::try_from(bound).unwrap_or(u16::MAX),
            decoders: DECODERS_MAX,
        }
    }

    /// Returns the state of a port; `None` if the port has neither device nor host.
    fn port_state(&self, port: u8) -> Option<PortState> {
        match port.checked_sub(upstream_port(0)) {
            Some(vcs) => self.fabric.host(vcs).map(|host| host_port(&host)),
            None => self.fabric.device(port).map(|device| device_port(&device)),
        }
    }

    fn device_at(&self, port: u8) -> Result<Device, ReturnCode> {
        self.fabric.device(port).ok_or_else(|| self.fabric.no_device(port))
    }

    fn host_of(&self, vcs: u8) -> Result<Host, ReturnCode> {
        self.fabric.host(vcs).ok_or_else(|| self.fabric.no_host(vcs))
    }

    fn control_port(&mut self, request: PortControl) -> Result<CommandResponse, ReturnCode> {
        let held = match request.operation {
            PortControl::ASSERT_PERST => Some(true),
            PortControl::DEASSERT_PERST => Some(false),
            PortControl::RESET_PPB => None,
            _ => return Err(ReturnCode::InvalidInput),
        };
        let vcs = request.port.checked_sub(upstream_port(0));
        match vcs {
            Some(vcs) => drop(self.host_of(vcs)?),
            None => drop(self.device_at(request.port)?),
        }
        // Only a host's port can be held in reset. A memory node's port cannot, because hosts share its link; a reset
        // of a bridge is refused, because bridges have no state.
        self.fabric.hold(vcs.ok_or(ReturnCode::Unsupported)?, held.ok_or(ReturnCode::Unsupported)?)?;
        Ok(().into())
    }

    fn virtual_switches(&self, request: &GetVirtualSwitches, room: usize) -> CommandResponse {
        let mut room = room.saturating_sub(4);
        let mut switches = Vec::new();
        for &id in &request.ids {
            let switch = self.virtual_switch(request, id);
            let bytes = 4 + 4 * switch.vppbs.len();
            if bytes > room {
                break;
            }
            room -= bytes;
            switches.push(switch);
        }
        CommandResponse::Now(VirtualSwitches { switches }.to_bytes())
    }

    fn virtual_switch(&self, request: &GetVirtualSwitches, id: u8) -> VirtualSwitch {
        let Some(host) = self.fabric.host(id) else {
            let (state, usp, vppbs) = (vcs_state::INVALID, ELSEWHERE, Vec::new());
            return VirtualSwitch { id, state, usp, vppb_total: 0, vppbs };
        };
        let up = host.reachable && !host.held;
        let count = VirtualSwitches::vppb_count(request, VPPBS_MAX);
        let vppb = |index| host.slot(request.first_vppb + index).map_or(Vppb::UNBOUND, bound_vppb);
        VirtualSwitch {
            id,
            state: if up { vcs_state::ENABLED } else { vcs_state::DISABLED },
            usp: upstream_port(id),
            vppb_total: VPPBS_MAX,
            vppbs: (0..count).map(vppb).collect(),
        }
    }

    /// Returns the binding of an existing vPPB; `None` if the vPPB is free.
    fn vppb(&self, vcs: u8, vppb: u8) -> Result<Option<Slot>, ReturnCode> {
        let host = self.host_of(vcs)?;
        if vppb < VPPBS_MAX { Ok(host.slot(vppb).copied()) } else { Err(ReturnCode::InvalidInput) }
    }

    /// Refuses a background operation while another one is under way.
    fn not_busy(&self) -> Result<(), ReturnCode> {
        match self.fabric.operation() {
            Some(operation) if operation.outcome.is_none() => Err(ReturnCode::Busy),
            _ => Ok(()),
        }
    }

    fn bind(&mut self, request: BindVppb) -> Result<CommandResponse, ReturnCode> {
        let slot = self.vppb(request.vcs, request.vppb)?;
        let device = self.device_at(request.port)?;
        let ld = match (device.kind, request.ld) {
            (DeviceKind::Sld, WHOLE_DEVICE) => None,
            (DeviceKind::Mld, ld) => Some(device.ld(ld)?),
            (DeviceKind::Sld, _) => return Err(ReturnCode::InvalidInput),
        };
        self.not_busy()?;
        let taken = match &ld {
            Some(ld) => ld.bound,
            None => device.ld(WHOLE_DEVICE)?.bound,
        };
        if slot.is_some() || taken {
            return Err(ReturnCode::InvalidInput);
        }
        self.fabric.bind(request.vcs, request.vppb, request.port, ld.map(|ld| ld.id))?;
        Ok(CommandResponse::InBackground)
    }

    fn unbind(&mut self, request: UnbindVppb) -> Result<CommandResponse, ReturnCode> {
        let how = match request.option {
            0 => Unbind::WaitLinkDown,
            1 => Unbind::Managed,
            2 => Unbind::Surprise,
            _ => return Err(ReturnCode::InvalidInput),
        };
        let slot = self.vppb(request.vcs, request.vppb)?;
        self.not_busy()?;
        slot.ok_or(ReturnCode::InvalidInput)?;
        self.fabric.unbind(request.vcs, request.vppb, how)?;
        Ok(CommandResponse::InBackground)
    }

    /// Generates an AER event at a vPPB with a bound LD. Other vPPBs are refused, because their links report errors
    /// themselves.
    fn generate_aer(&mut self, request: GenerateAer) -> Result<CommandResponse, ReturnCode> {
        let slot = self.vppb(request.vcs, request.vppb)?;
        slot.and_then(|slot| slot.ld).ok_or(ReturnCode::InvalidInput)?;
        self.fabric.generate_aer(request.vcs, request.vppb, request.error)?;
        Ok(().into())
    }

    fn tunnel(&mut self, request: &Tunnel, room: usize) -> Result<CommandResponse, ReturnCode> {
        let device = self.device_at(request.port)?;
        // The size field of the tunnelled message has 16 bits.
        let room = room.saturating_sub(TUNNEL_BYTES).min(usize::from(u16::MAX) - 1).max(HEADER_BYTES);
        let inner = self.respond(&MessageTarget::Device(device), &request.message, room);
        let message = inner.ok_or(ReturnCode::InvalidInput)?;
        Ok(CommandResponse::Now(Tunnelled { message }.to_bytes(self.session.dialect)))
    }

    fn access_configuration(&mut self, request: ConfigRequest) -> Result<CommandResponse, ReturnCode> {
        let device = self.device_at(request.port)?;
        let ld = device.ld(request.ld)?;
        let command = self.fabric.command_register(request.port, ld.id);
        let mut space = ConfigSpace::new(&device, &ld, command);
        if !request.write {
            let data = space.read(request.offset, request.byte_enables).ok_or(ReturnCode::InvalidInput)?;
            return Ok(ConfigResponse { data }.into());
        }
        space.write(request.offset, request.byte_enables, request.data)?;
        self.fabric.set_command_register(request.port, ld.id, space.command());
        Ok(ConfigResponse { data: [0; 4] }.into())
    }

    fn access_registers(
        &mut self,
        request: &MemoryRequest,
        room: usize,
    ) -> Result<CommandResponse, ReturnCode> {
        let device = self.device_at(request.port)?;
        let ld = device.ld(request.ld)?;
        if request.write {
            return Err(ReturnCode::Unsupported);
        }
        let length = usize::from(request.length);
        if request.length > MEMORY_REQUEST_MAX || length + 4 > room {
            return Err(ReturnCode::InvalidInput);
        }
        let data = registers::read(&ld.decoders, request.offset, length).ok_or(ReturnCode::InvalidInput)?;
        Ok(MemoryResponse { data }.into())
    }
}

fn bound_vppb(slot: &Slot) -> Vppb {
    let status = match (slot.in_progress, slot.ld) {
        (true, _) => VppbStatus::InProgress,
        (false, Some(_)) => VppbStatus::BoundLd,
        (false, None) => VppbStatus::BoundPort,
    };
    Vppb { status, port: slot.port.unwrap_or(ELSEWHERE), ld: slot.ld.unwrap_or(NO_LD) }
}

/// Returns the state of a device's port. Its lanes are network ports, for whose speeds PCIe has no encoding.
pub fn device_port(device: &Device) -> PortState {
    let (device_type, ld_count) = match device.kind {
        DeviceKind::Mld => (DEVICE_MLD, device.ld_count()),
        DeviceKind::Sld => (DEVICE_SLD, 0),
    };
    PortState {
        port: device.port,
        state: port_state::DOWNSTREAM,
        device_mode: MODE_CXL_2,
        device_type,
        ld_count,
        ..link(device.reachable, device.lanes)
    }
}

/// Returns the state of a host's port, whose link is down while the host is held in reset.
pub fn host_port(host: &Host) -> PortState {
    let link = link(host.reachable && !host.held, 1);
    let perst = if host.held { LINK_PERST } else { 0 };
    PortState {
        port: upstream_port(host.vcs),
        state: port_state::UPSTREAM,
        device_mode: MODE_CXL_2,
        link_flags: link.link_flags | perst,
        ..link
    }
}

fn link(up: bool, lanes: u8) -> PortState {
    PortState {
        versions: VERSION_CXL_2,
        width_max: LANES_MAX,
        width: if up { lanes.min(LANES_MAX) } else { 0 },
        ltssm: if up { LTSSM_L0 } else { LTSSM_DISABLED },
        link_flags: if up { LINK_PRESENT } else { 0 },
        ..PortState::default()
    }
}
