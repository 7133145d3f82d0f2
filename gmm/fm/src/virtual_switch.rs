//! Virtual switch commands (52xxh): the virtual CXL switches (VCS), what their vPPBs are bound to, and binding.

use super::bytes::{Payload, Reader, Writer, WrongLength, count_u8};

/// LD id of a vPPB that is bound to a port without LDs, or not bound.
pub const NO_LD: u8 = 0xFF;
/// LD id of Bind vPPB for a device without LDs.
pub const WHOLE_DEVICE: u16 = 0xFFFF;

/// Request of Get Virtual CXL Switch Info (5200h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetVirtualSwitches {
    /// First vPPB to tell of in each.
    pub first_vppb: u8,
    /// Most vPPBs to tell of in each.
    pub vppb_limit: u8,
    /// The VCSs asked about.
    pub ids: Vec<u8>,
}

impl Payload for GetVirtualSwitches {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let [first_vppb, vppb_limit, count] = reader.array()?;
        Ok(Self { first_vppb, vppb_limit, ids: reader.take(count.into())?.to_vec() })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u8(self.first_vppb).u8(self.vppb_limit).u8(count_u8(self.ids.len())).bytes(&self.ids);
    }
}

/// Where a vPPB stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum VppbStatus {
    /// 0: not bound.
    #[default]
    Unbound,
    /// 1: being bound or unbound.
    InProgress,
    /// 2: bound to a port with one device behind it.
    BoundPort,
    /// 3: bound to an LD.
    BoundLd,
    /// Any other.
    Other(u8),
}

impl VppbStatus {
    /// From its number.
    pub fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Unbound,
            1 => Self::InProgress,
            2 => Self::BoundPort,
            3 => Self::BoundLd,
            other => Self::Other(other),
        }
    }

    /// Its number.
    pub fn number(self) -> u8 {
        match self {
            Self::Unbound => 0,
            Self::InProgress => 1,
            Self::BoundPort => 2,
            Self::BoundLd => 3,
            Self::Other(other) => other,
        }
    }
}

/// One vPPB of [`VirtualSwitch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vppb {
    /// Where it stands.
    pub status: VppbStatus,
    /// Port it is bound to. FFh: one of another switch, or none.
    pub port: u8,
    /// LD it is bound to, or [`NO_LD`].
    pub ld: u8,
}

impl Vppb {
    /// Not bound.
    pub const UNBOUND: Self = Self { status: VppbStatus::Unbound, port: 0, ld: NO_LD };
}

impl Payload for Vppb {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let [status, port, ld, _] = reader.array()?;
        Ok(Self { status: VppbStatus::from_number(status), port, ld })
    }

    fn write(&self, writer: &mut Writer) {
        writer.bytes(&[self.status.number(), self.port, self.ld, 0]);
    }
}

/// VCS states.
pub mod vcs_state {
    /// Its host is held in reset or cannot be reached.
    pub const DISABLED: u8 = 0;
    /// Its host is up.
    pub const ENABLED: u8 = 1;
    /// There is no such VCS.
    pub const INVALID: u8 = 0xFF;
}

/// One VCS of [`VirtualSwitches`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualSwitch {
    /// Its id.
    pub id: u8,
    /// [`vcs_state`].
    pub state: u8,
    /// Its upstream physical port.
    pub usp: u8,
    /// How many vPPBs it has.
    pub vppb_total: u8,
    /// Those asked about.
    pub vppbs: Vec<Vppb>,
}

/// Response to Get Virtual CXL Switch Info (5200h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualSwitches {
    /// The VCSs.
    pub switches: Vec<VirtualSwitch>,
}

impl VirtualSwitches {
    /// How many vPPBs each VCS has in the response to `request`: the wire does not say.
    pub fn told(request: &GetVirtualSwitches, vppb_total: u8) -> u8 {
        request.vppb_limit.min(vppb_total.saturating_sub(request.first_vppb))
    }

    /// Reads the response to `request`.
    ///
    /// # Errors
    /// [`WrongLength`].
    pub fn from_bytes(bytes: &[u8], request: &GetVirtualSwitches) -> Result<Self, WrongLength> {
        let mut reader = Reader::new(bytes);
        let count = reader.u8()?;
        reader.skip(3)?;
        let switch = |reader: &mut Reader<'_>| {
            let [id, state, usp, vppb_total] = reader.array()?;
            let vppbs = reader.list(Self::told(request, vppb_total).into())?;
            Ok(VirtualSwitch { id, state, usp, vppb_total, vppbs })
        };
        let switches = (0..count).map(|_| switch(&mut reader)).collect::<Result<_, _>>()?;
        if reader.is_empty() { Ok(Self { switches }) } else { Err(WrongLength) }
    }

    /// As bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u8(count_u8(self.switches.len())).reserved(3);
        for switch in &self.switches {
            writer.bytes(&[switch.id, switch.state, switch.usp, switch.vppb_total]).list(&switch.vppbs);
        }
        writer.finish()
    }
}

/// Request of Bind vPPB (5201h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BindVppb {
    /// The VCS.
    pub vcs: u8,
    /// Its vPPB.
    pub vppb: u8,
    /// The physical port.
    pub port: u8,
    /// The LD behind it, or [`WHOLE_DEVICE`].
    pub ld: u16,
}

impl Payload for BindVppb {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let [vcs, vppb, port, _] = reader.array()?;
        Ok(Self { vcs, vppb, port, ld: reader.u16()? })
    }

    fn write(&self, writer: &mut Writer) {
        writer.bytes(&[self.vcs, self.vppb, self.port, 0]).u16(self.ld);
    }
}

/// Request of Unbind vPPB (5202h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnbindVppb {
    /// The VCS.
    pub vcs: u8,
    /// Its vPPB.
    pub vppb: u8,
    /// 0: wait for the link to go down; 1: managed hot-remove; 2: surprise.
    pub option: u8,
}

impl Payload for UnbindVppb {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let [vcs, vppb, option] = reader.array()?;
        Ok(Self { vcs, vppb, option: option & 0xF })
    }

    fn write(&self, writer: &mut Writer) {
        writer.bytes(&[self.vcs, self.vppb, self.option]);
    }
}

/// Request of Generate AER Event (5203h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GenerateAer {
    /// The VCS.
    pub vcs: u8,
    /// Its vPPB.
    pub vppb: u8,
    /// The error, as PCIe's Advanced Error Reporting encodes it.
    pub error: u32,
    /// Header of the transaction it is about.
    pub header: [u8; 32],
}

impl Payload for GenerateAer {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let [vcs, vppb, ..] = reader.array::<4>()?;
        Ok(Self { vcs, vppb, error: reader.u32()?, header: reader.array()? })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u8(self.vcs).u8(self.vppb).reserved(2).u32(self.error).bytes(&self.header);
    }
}
