//! Supported commands of the FM API: opcodes, names, effects (Command Effects Log) and components.

use std::fmt;

use super::bytes::{Payload, Reader, Writer, WrongLength};

/// Effects of a command, as in the Command Effects Log (CXL 3.1, 8.2.9.5.2.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effects(pub u16);

impl Effects {
    pub const NONE: Self = Self(0);
    /// The configuration changes after a cold reset.
    pub(crate) const CONFIG_AFTER_RESET: Self = Self(1 << 0);
    /// The configuration changes immediately.
    pub(crate) const CONFIG: Self = Self(1 << 1);
    /// Data changes immediately.
    pub const DATA: Self = Self(1 << 2);
    /// A policy changes immediately.
    pub const POLICY: Self = Self(1 << 3);
    /// A log changes immediately.
    pub const LOG: Self = Self(1 << 4);
    /// The security state changes.
    pub(crate) const SECURITY: Self = Self(1 << 5);
    /// The command continues as a background operation.
    pub const BACKGROUND: Self = Self(1 << 6);
    /// The background operation can be aborted (0005h).
    pub(crate) const ABORTABLE: Self = Self(1 << 8);

    const NAMES: [(Self, &'static str); 8] = [
        (Self::CONFIG_AFTER_RESET, "configuration after reset"),
        (Self::CONFIG, "configuration"),
        (Self::DATA, "data"),
        (Self::POLICY, "policy"),
        (Self::LOG, "log"),
        (Self::SECURITY, "security"),
        (Self::BACKGROUND, "background"),
        (Self::ABORTABLE, "can be aborted"),
    ];

    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if all effects of `other` are in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Display for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMES.iter().filter(|(effect, _)| self.contains(*effect)).map(|(_, name)| *name);
        f.write_str(&names.collect::<Vec<_>>().join(", "))
    }
}

/// Component that a command is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Component {
    /// The switch that a connection leads to.
    Switch,
    /// A multi-logical device behind a port, through the tunnel.
    Mld,
    /// A single logical device behind a port, through the tunnel.
    Sld,
}

#[derive(Clone, Copy)]
enum CommandComponents {
    Every,
    Switch,
    Mld,
    Device,
}

macro_rules! opcodes {
    ($($name:ident = $number:literal, $text:literal, $home:ident, $($effect:ident)&+;)+) => {
        /// A command of the component command interface (CCI) or the FM API.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Opcode {
            $(
                #[doc = concat!($text, " (", stringify!($number), ")")]
                $name = $number,
            )+
        }

        impl Opcode {
            /// Every command, by ascending number.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Name of the command in the specification.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }

            /// Effects that the Command Effects Log gives for the command.
            pub fn effects(self) -> Effects {
                match self { $(Self::$name => Effects::NONE$(.and(Effects::$effect))+),+ }
            }

            fn home(self) -> CommandComponents {
                match self { $(Self::$name => CommandComponents::$home),+ }
            }
        }
    };
}

opcodes! {
    Identify = 0x0001, "Identify", Every, NONE;
    BackgroundStatus = 0x0002, "Background Operation Status", Every, NONE;
    GetResponseLimit = 0x0003, "Get Response Message Limit", Every, NONE;
    SetResponseLimit = 0x0004, "Set Response Message Limit", Every, CONFIG;
    RequestAbort = 0x0005, "Request Abort Background Operation", Switch, NONE;
    GetEventRecords = 0x0100, "Get Event Records", Every, NONE;
    ClearEventRecords = 0x0101, "Clear Event Records", Every, LOG;
    GetSupportedLogs = 0x0400, "Get Supported Logs", Every, NONE;
    GetLog = 0x0401, "Get Log", Every, NONE;
    IdentifySwitch = 0x5100, "Identify Switch Device", Switch, NONE;
    GetPhysicalPortState = 0x5101, "Get Physical Port State", Switch, NONE;
    PhysicalPortControl = 0x5102, "Physical Port Control", Switch, CONFIG;
    GetVirtualSwitchInfo = 0x5200, "Get Virtual CXL Switch Info", Switch, NONE;
    BindVppb = 0x5201, "Bind vPPB", Switch, CONFIG & BACKGROUND & ABORTABLE;
    UnbindVppb = 0x5202, "Unbind vPPB", Switch, CONFIG & DATA & BACKGROUND & ABORTABLE;
    GenerateAer = 0x5203, "Generate AER Event", Switch, LOG;
    Tunnel = 0x5300, "Tunnel Management Command", Switch, NONE;
    LdConfigRequest = 0x5301, "Send LD CXL.io Configuration Request", Switch, CONFIG;
    LdMemoryRequest = 0x5302, "Send LD CXL.io Memory Request", Switch, NONE;
    GetLdInfo = 0x5400, "Get LD Info", Mld, NONE;
    GetLdAllocations = 0x5401, "Get LD Allocations", Mld, NONE;
    SetLdAllocations = 0x5402, "Set LD Allocations", Mld, CONFIG_AFTER_RESET & CONFIG & DATA;
    GetQosControl = 0x5403, "Get QoS Control", Mld, NONE;
    SetQosControl = 0x5404, "Set QoS Control", Mld, CONFIG_AFTER_RESET & CONFIG & POLICY;
    GetQosStatus = 0x5405, "Get QoS Status", Mld, NONE;
    GetQosAllocated = 0x5406, "Get QoS Allocated Bandwidth", Mld, NONE;
    SetQosAllocated = 0x5407, "Set QoS Allocated Bandwidth", Mld, CONFIG_AFTER_RESET & CONFIG & POLICY;
    GetQosLimit = 0x5408, "Get QoS Bandwidth Limit", Mld, NONE;
    SetQosLimit = 0x5409, "Set QoS Bandwidth Limit", Mld, CONFIG_AFTER_RESET & CONFIG & POLICY;
    GetDcdInfo = 0x5600, "Get DCD Info", Device, NONE;
    GetHostDcRegions = 0x5601, "Get Host DC Region Configuration", Device, NONE;
    SetDcRegion = 0x5602, "Set DC Region Configuration", Device, CONFIG_AFTER_RESET & CONFIG & DATA;
    GetDcExtents = 0x5603, "Get DC Region Extent Lists", Device, NONE;
    InitiateDcAdd = 0x5604, "Initiate Dynamic Capacity Add", Device, CONFIG_AFTER_RESET & CONFIG & DATA;
    InitiateDcRelease = 0x5605, "Initiate Dynamic Capacity Release", Device, CONFIG_AFTER_RESET & CONFIG & DATA;
}

impl Opcode {
    /// Returns the command with this number; `None` if it is not supported.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|opcode| opcode.number() == number)
    }

    /// Number of the command: low byte the command, high byte its set.
    pub fn number(self) -> u16 {
        self as u16
    }

    pub fn is_of(self, component: Component) -> bool {
        matches!(
            (self.home(), component),
            (CommandComponents::Every, _)
                | (CommandComponents::Switch, Component::Switch)
                | (CommandComponents::Mld, Component::Mld)
                | (CommandComponents::Device, Component::Mld | Component::Sld)
        )
    }
}

/// One entry of a Command Effects Log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandEffect {
    pub opcode: u16,
    pub effects: Effects,
}

impl CommandEffect {
    /// Returns the Command Effects Log of a component: an entry for every command that it supports.
    pub fn log_of(component: Component) -> Vec<Self> {
        let carried_out = Opcode::ALL.iter().filter(|opcode| opcode.is_of(component));
        carried_out.map(|opcode| Self { opcode: opcode.number(), effects: opcode.effects() }).collect()
    }
}

impl Payload for CommandEffect {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        Ok(Self { opcode: reader.u16()?, effects: Effects(reader.u16()?) })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u16(self.opcode).u16(self.effects.0);
    }
}
