//! Physical switch commands (51xxh): identity of the switch, state of its ports, and their reset.

use super::bytes::{Payload, Reader, Writer, WrongLength, count_u8, fields};

/// Length in bytes of a bitmap with one bit for each port or VCS.
pub(crate) const BITMAP_BYTES: usize = 32;

/// Set of ids from 0 to 255, one bit each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bitmap(pub [u8; BITMAP_BYTES]);

impl Bitmap {
    pub fn contains(&self, id: u8) -> bool {
        self.0[usize::from(id / 8)] & 1 << (id % 8) != 0
    }

    /// Returns the ids whose bits are set, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        (0..=u8::MAX).filter(|id| self.contains(*id))
    }
}

impl FromIterator<u8> for Bitmap {
    fn from_iter<I: IntoIterator<Item = u8>>(ids: I) -> Self {
        let mut bitmap = Self::default();
        ids.into_iter().for_each(|id| bitmap.0[usize::from(id / 8)] |= 1 << (id % 8));
        bitmap
    }
}

impl Payload for Bitmap {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        reader.array().map(Self)
    }

    fn write(&self, writer: &mut Writer) {
        writer.bytes(&self.0);
    }
}

/// Response to Identify Switch Device (5100h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchIdentity {
    /// Number of the port at which the request arrived.
    pub ingress_port: u8,
    /// Number of physical ports.
    pub ports: u8,
    /// Number of virtual switches (VCSs), one per host.
    pub virtual_switches: u8,
    /// Ports that have a device or host.
    pub active_ports: Bitmap,
    /// The virtual switches that have a host, by VCS number.
    pub active_virtual_switches: Bitmap,
    /// Total number of vPPBs of all virtual switches.
    pub vppbs: u16,
    /// Number of vPPBs that are bound to a port or LD.
    pub bound_vppbs: u16,
    /// Number of HDM decoders of each upstream port.
    pub decoders: u8,
}

fields!(SwitchIdentity:
    ingress_port + 1, ports, virtual_switches, active_ports, active_virtual_switches, vppbs, bound_vppbs,
    decoders
);

/// Request of Get Physical Port State (5101h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetPortState {
    /// Numbers of the ports whose state is requested.
    pub ports: Vec<u8>,
}

impl Payload for GetPortState {
    /// Decodes a request. Bytes after the last port are ignored, because one client always sends room for 255
    /// ports.
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let count = reader.u8()?;
        let ports = reader.take(count.into())?.to_vec();
        reader.rest();
        Ok(Self { ports })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u8(count_u8(self.ports.len())).bytes(&self.ports);
    }
}

/// Present use of a port: values of [`PortState::state`].
pub mod port_state {
    /// The port is not in use.
    pub const DISABLED: u8 = 0;
    /// The port is being bound.
    pub const BINDING: u8 = 1;
    /// The port is being unbound.
    pub const UNBINDING: u8 = 2;
    /// Downstream port, with a device behind it.
    pub const DOWNSTREAM: u8 = 3;
    /// Upstream port, with a host behind it.
    pub const UPSTREAM: u8 = 4;
}

/// State of one physical port in [`PortStates`], encoded in 16 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortState {
    /// Number of the physical port.
    pub port: u8,
    /// Present use of the port ([`port_state`]); bits 3:0.
    pub state: u8,
    /// Mode of the connected device: 0 none, 2 CXL 2.0; bits 3:0.
    pub device_mode: u8,
    /// Type of the connected device: 0 none, 4 type 3 SLD, 5 type 3 MLD.
    pub device_type: u8,
    /// CXL versions supported by the port; bit 1: 2.0.
    pub versions: u8,
    /// Maximum number of lanes.
    pub width_max: u8,
    /// Number of lanes in use.
    pub width: u8,
    /// Link speeds supported by the port, encoded like PCIe's Supported Link Speeds Vector.
    pub speeds: u8,
    /// The highest supported speed, encoded like PCIe's Max Link Speed.
    pub speed_max: u8,
    /// The present speed, encoded like PCIe's Current Link Speed.
    pub speed: u8,
    /// Link training state: 4 L0, 8 disabled.
    pub ltssm: u8,
    /// Number of the lowest lane in use.
    pub first_lane: u8,
    /// Bit 0: lanes reversed; 1: PERST# asserted; 2: device present; 3: power control.
    pub link_flags: u16,
    /// Maximum number of LDs of the device behind the port; 0 without an MLD.
    pub ld_count: u8,
}

/// Value of [`PortState::ltssm`]: the link is up.
pub const LTSSM_L0: u8 = 4;
/// Value of [`PortState::ltssm`]: the link is down.
pub const LTSSM_DISABLED: u8 = 8;
/// Link flag: the port is held in reset.
pub const LINK_PERST: u16 = 1 << 1;
/// Link flag: device present.
pub(crate) const LINK_PRESENT: u16 = 1 << 2;
/// Device type: type 3 SLD.
pub const DEVICE_SLD: u8 = 4;
/// Device type: type 3 MLD.
pub const DEVICE_MLD: u8 = 5;
/// Device mode: CXL 2.0.
pub(crate) const MODE_CXL_2: u8 = 2;
/// Version bit: CXL 2.0.
pub(crate) const VERSION_CXL_2: u8 = 1 << 1;

impl Payload for PortState {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let [port, state, device_mode, _, device_type, versions, width_max, width] = reader.array()?;
        let [speeds, speed_max, speed, ltssm, first_lane] = reader.array()?;
        Ok(Self {
            port,
            state: state & 0xF,
            device_mode: device_mode & 0xF,
            device_type,
            versions,
            width_max,
            width,
            speeds,
            speed_max,
            speed,
            ltssm,
            first_lane,
            link_flags: reader.u16()?,
            ld_count: reader.u8()?,
        })
    }

    fn write(&self, writer: &mut Writer) {
        writer.bytes(&[self.port, self.state, self.device_mode, 0, self.device_type, self.versions]);
        writer.bytes(&[self.width_max, self.width, self.speeds, self.speed_max, self.speed, self.ltssm]);
        writer.u8(self.first_lane).u16(self.link_flags).u8(self.ld_count);
    }
}

/// Response to Get Physical Port State (5101h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortStates {
    /// State of those requested ports that exist.
    pub ports: Vec<PortState>,
}

impl Payload for PortStates {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let count = reader.u8()?;
        reader.skip(3)?;
        Ok(Self { ports: reader.list(count.into())? })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u8(count_u8(self.ports.len())).reserved(3).list(&self.ports);
    }
}

/// Request of Physical Port Control (5102h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortControl {
    /// Number of the physical port.
    pub port: u8,
    /// Operation to carry out, such as [`PortControl::ASSERT_PERST`].
    pub operation: u8,
}

impl PortControl {
    /// Operation: hold the device or host behind the port in reset.
    pub const ASSERT_PERST: u8 = 0;
    /// Operation: release the device or host behind the port from reset.
    pub const DEASSERT_PERST: u8 = 1;
    /// Operation: reset the port's bridge.
    pub const RESET_PPB: u8 = 2;
}

fields!(PortControl: port, operation);
