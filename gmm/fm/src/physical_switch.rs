//! Physical switch commands (51xxh): what the switch is, how its ports are, and their reset.

use super::bytes::{Payload, Reader, Writer, WrongLength, count_u8};

/// Bytes of a bitmap with one bit for each port or VCS.
pub const BITMAP_BYTES: usize = 32;

/// One bit for each of 256 ids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bitmap(pub [u8; BITMAP_BYTES]);

impl Bitmap {
    /// Whether `id` is among them.
    pub fn contains(&self, id: u8) -> bool {
        self.0[usize::from(id / 8)] & 1 << (id % 8) != 0
    }

    /// The ids, ascending.
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

/// Response to Identify Switch Device (5100h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchIdentity {
    /// Port this request came in by.
    pub ingress_port: u8,
    /// How many physical ports.
    pub ports: u8,
    /// How many virtual switches.
    pub virtual_switches: u8,
    /// Ports with something behind them.
    pub active_ports: Bitmap,
    /// Virtual switches with a host.
    pub active_virtual_switches: Bitmap,
    /// vPPBs of all virtual switches.
    pub vppbs: u16,
    /// How many of them are bound.
    pub bound_vppbs: u16,
    /// HDM decoders of each upstream port.
    pub decoders: u8,
}

impl Payload for SwitchIdentity {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let ingress_port = reader.u8()?;
        reader.skip(1)?;
        Ok(Self {
            ingress_port,
            ports: reader.u8()?,
            virtual_switches: reader.u8()?,
            active_ports: Bitmap(reader.array()?),
            active_virtual_switches: Bitmap(reader.array()?),
            vppbs: reader.u16()?,
            bound_vppbs: reader.u16()?,
            decoders: reader.u8()?,
        })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u8(self.ingress_port).reserved(1).u8(self.ports).u8(self.virtual_switches);
        writer.bytes(&self.active_ports.0).bytes(&self.active_virtual_switches.0);
        writer.u16(self.vppbs).u16(self.bound_vppbs).u8(self.decoders);
    }
}

/// Request of Get Physical Port State (5101h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetPortState {
    /// The ports asked about.
    pub ports: Vec<u8>,
}

impl Payload for GetPortState {
    /// Bytes behind the last port do not matter: one client always sends room for 255 of them.
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

/// How a port is used: the values of [`PortState::state`].
pub mod port_state {
    /// Nothing goes on there.
    pub const DISABLED: u8 = 0;
    /// Being bound.
    pub const BINDING: u8 = 1;
    /// Being unbound.
    pub const UNBINDING: u8 = 2;
    /// Downstream: a device is behind it.
    pub const DOWNSTREAM: u8 = 3;
    /// Upstream: a host is behind it.
    pub const UPSTREAM: u8 = 4;
}

/// One port of [`PortStates`]: 16 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortState {
    /// The port.
    pub port: u8,
    /// How it is used ([`port_state`]); bits 3:0.
    pub state: u8,
    /// How the connected device works: 0 none, 2 CXL 2.0; bits 3:0.
    pub device_mode: u8,
    /// What is connected: 0 none, 4 type 3 SLD, 5 type 3 MLD.
    pub device_type: u8,
    /// CXL versions the port knows; bit 1: 2.0.
    pub versions: u8,
    /// Most lanes.
    pub width_max: u8,
    /// Lanes in use.
    pub width: u8,
    /// Link speeds the port knows, as PCIe's Supported Link Speeds Vector.
    pub speeds: u8,
    /// The highest, as PCIe's Max Link Speed.
    pub speed_max: u8,
    /// The one in use, as PCIe's Current Link Speed.
    pub speed: u8,
    /// Link training state: 4 L0, 8 disabled.
    pub ltssm: u8,
    /// Lowest lane in use.
    pub first_lane: u8,
    /// Bit 0: lanes reversed; 1: PERST# asserted; 2: something is present; 3: power control.
    pub link_flags: u16,
    /// LDs behind it at most; 0 where there is no MLD.
    pub ld_count: u8,
}

/// LTSSM: the link works.
pub const LTSSM_L0: u8 = 4;
/// LTSSM: the link is disabled.
pub const LTSSM_DISABLED: u8 = 8;
/// Link flag: the port is held in reset.
pub const LINK_PERST: u16 = 1 << 1;
/// Link flag: something is present.
pub const LINK_PRESENT: u16 = 1 << 2;
/// Device type: type 3 SLD.
pub const DEVICE_SLD: u8 = 4;
/// Device type: type 3 MLD.
pub const DEVICE_MLD: u8 = 5;
/// Device mode: CXL 2.0.
pub const MODE_CXL_2: u8 = 2;
/// Version bit: CXL 2.0.
pub const VERSION_CXL_2: u8 = 1 << 1;

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
    /// The ports asked about that there are.
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
    /// The port.
    pub port: u8,
    /// [`PortControl::ASSERT_PERST`] and the others.
    pub operation: u8,
}

impl PortControl {
    /// Hold what is behind the port in reset.
    pub const ASSERT_PERST: u8 = 0;
    /// Release it.
    pub const DEASSERT_PERST: u8 = 1;
    /// Reset the port's bridge.
    pub const RESET_PPB: u8 = 2;
}

impl Payload for PortControl {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        Ok(Self { port: reader.u8()?, operation: reader.u8()? })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u8(self.port).u8(self.operation);
    }
}
