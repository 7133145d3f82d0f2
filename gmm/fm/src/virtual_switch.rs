//! Virtual switch commands (52xxh): information about virtual CXL switches (VCS) and their virtual PCI-to-PCI
//! bridges (vPPB), and bindings.

use super::bytes::{Payload, Reader, Writer, WrongLength, count_u8, fields};

/// LD-ID given for a vPPB that is not bound, or is bound to a port without LDs.
pub const NO_LD: u8 = 0xFF;
/// LD-ID in Bind vPPB for a device without LDs.
pub const WHOLE_DEVICE: u16 = 0xFFFF;

/// Request of Get Virtual CXL Switch Info (5200h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetVirtualSwitches {
    /// Number of the first vPPB to return for each VCS.
    pub first_vppb: u8,
    /// Maximum number of vPPBs to return for each VCS.
    pub vppb_limit: u8,
    /// Numbers of the requested VCSs.
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

/// Status of a vPPB (CXL 3.1, 7.6.7.2.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum VppbStatus {
    /// 0: not bound.
    #[default]
    Unbound,
    /// 1: being bound or unbound.
    InProgress,
    /// 2: bound to a port with one device behind it.
    BoundPort,
    /// 3: bound to one LD of a multi-logical device.
    BoundLd,
    /// Any other number, which is undefined.
    Other(u8),
}

impl VppbStatus {
    pub fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Unbound,
            1 => Self::InProgress,
            2 => Self::BoundPort,
            3 => Self::BoundLd,
            other => Self::Other(other),
        }
    }

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

impl Payload for VppbStatus {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        reader.u8().map(Self::from_number)
    }

    fn write(&self, writer: &mut Writer) {
        writer.u8(self.number());
    }
}

/// Status and binding of one virtual PCI-to-PCI bridge (vPPB) of a [`VirtualSwitch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vppb {
    /// Status of the vPPB: free, bound or changing.
    pub status: VppbStatus,
    /// Number of the port that the vPPB is bound to; FFh: the port is on another switch, or there is none.
    pub port: u8,
    /// LD-ID of the LD that the vPPB is bound to, or [`NO_LD`].
    pub ld: u8,
}

impl Vppb {
    /// Entry of a free vPPB.
    pub const UNBOUND: Self = Self { status: VppbStatus::Unbound, port: 0, ld: NO_LD };
}

fields!(Vppb: status, port, ld + 1);

/// States of a VCS: values of [`VirtualSwitch::state`].
pub mod vcs_state {
    /// The VCS's host is held in reset or unreachable.
    pub const DISABLED: u8 = 0;
    /// The VCS's host is running.
    pub const ENABLED: u8 = 1;
    /// No VCS has this number.
    pub const INVALID: u8 = 0xFF;
}

/// A virtual CXL switch (VCS): its state, and a range of its virtual PCI-to-PCI bridges (vPPB).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualSwitch {
    /// Number of the VCS: 0 to 126.
    pub id: u8,
    /// State of the VCS: a value of [`vcs_state`].
    pub state: u8,
    /// Number of the VCS's upstream physical port.
    pub usp: u8,
    /// Number of the VCS's vPPBs, including those not returned.
    pub vppb_total: u8,
    /// The requested range of vPPBs.
    pub vppbs: Vec<Vppb>,
}

/// Response to Get Virtual CXL Switch Info (5200h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualSwitches {
    /// One entry per requested VCS, in the order of the request.
    pub switches: Vec<VirtualSwitch>,
}

impl VirtualSwitches {
    /// Returns the number of returned vPPBs per VCS. It is not in the response, but follows from the request.
    pub fn vppb_count(request: &GetVirtualSwitches, vppb_total: u8) -> u8 {
        request.vppb_limit.min(vppb_total.saturating_sub(request.first_vppb))
    }

    /// Decodes the response to `request`.
    ///
    /// # Errors
    /// [`WrongLength`] if `bytes` do not have the length that follows from the request.
    pub fn from_bytes(bytes: &[u8], request: &GetVirtualSwitches) -> Result<Self, WrongLength> {
        let mut reader = Reader::new(bytes);
        let count = reader.u8()?;
        reader.skip(3)?;
        let switch = |reader: &mut Reader<'_>| {
            let [id, state, usp, vppb_total] = reader.array()?;
            let vppbs = reader.list(Self::vppb_count(request, vppb_total).into())?;
            Ok(VirtualSwitch { id, state, usp, vppb_total, vppbs })
        };
        let switches = (0..count).map(|_| switch(&mut reader)).collect::<Result<_, _>>()?;
        if reader.is_empty() { Ok(Self { switches }) } else { Err(WrongLength) }
    }

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
    /// Number of the VCS: 0 to 126.
    pub vcs: u8,
    /// Number of the VCS's vPPB to bind: 0 to 126.
    pub vppb: u8,
    /// Number of the physical port.
    pub port: u8,
    /// LD-ID of the LD behind the port, or [`WHOLE_DEVICE`].
    pub ld: u16,
}

fields!(BindVppb: vcs, vppb, port + 1, ld);

/// Request of Unbind vPPB (5202h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnbindVppb {
    /// Number of the VCS: 0 to 126.
    pub vcs: u8,
    /// Number of the VCS's vPPB to unbind: 0 to 126.
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
    /// Number of the VCS: 0 to 126.
    pub vcs: u8,
    /// Number of the VCS's vPPB: 0 to 126.
    pub vppb: u8,
    /// The error, as PCIe's Advanced Error Reporting encodes it.
    pub error: u32,
    /// Header of the failed transaction, as in the AER header log.
    pub header: [u8; 32],
}

fields!(GenerateAer: vcs, vppb + 2, error, header);
