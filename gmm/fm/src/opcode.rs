//! The commands there are: their opcodes, names, effects (Command Effects Log) and which component carries them out.

use std::fmt;

use super::bytes::{Payload, Reader, Writer, WrongLength};

/// What a command may do besides answering, as the Command Effects Log says it (CXL 3.1, 8.2.9.5.2.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effects(pub u16);

impl Effects {
    /// None.
    pub const NONE: Self = Self(0);
    /// The configuration is another one after a cold reset.
    pub const CONFIG_AFTER_RESET: Self = Self(1 << 0);
    /// The configuration is another one at once.
    pub const CONFIG: Self = Self(1 << 1);
    /// Data is another at once.
    pub const DATA: Self = Self(1 << 2);
    /// What is done from now on is another.
    pub const POLICY: Self = Self(1 << 3);
    /// A log is another.
    pub const LOG: Self = Self(1 << 4);
    /// The security state is another.
    pub const SECURITY: Self = Self(1 << 5);
    /// It goes on in the background.
    pub const BACKGROUND: Self = Self(1 << 6);
    /// While it goes on, it can be aborted (0005h).
    pub const ABORTABLE: Self = Self(1 << 8);

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

    /// Both.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are among these.
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

/// Who carries a command out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Component {
    /// The switch a connection is to.
    Switch,
    /// A device in slices behind a port, through the tunnel.
    Mld,
    /// A device that is given away whole, through the tunnel.
    Sld,
}

/// Where a command is at home.
#[derive(Clone, Copy)]
enum Home {
    Every,
    Switch,
    Mld,
    Device,
}

macro_rules! opcodes {
    ($($name:ident = $number:literal, $text:literal, $home:ident, $($effect:ident)&+;)+) => {
        /// A command.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Opcode {
            $(
                #[doc = concat!($text, " (", stringify!($number), ")")]
                $name = $number,
            )+
        }

        impl Opcode {
            /// All of them, ascending.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// What people call it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }

            /// What it may do besides answering.
            pub fn effects(self) -> Effects {
                match self { $(Self::$name => Effects::NONE$(.and(Effects::$effect))+),+ }
            }

            fn home(self) -> Home {
                match self { $(Self::$name => Home::$home),+ }
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
    /// The command of this number, if there is one.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|opcode| opcode.number() == number)
    }

    /// Its number: low byte the command, high byte its set.
    pub fn number(self) -> u16 {
        self as u16
    }

    /// Whether `component` carries it out.
    pub fn is_of(self, component: Component) -> bool {
        matches!(
            (self.home(), component),
            (Home::Every, _)
                | (Home::Switch, Component::Switch)
                | (Home::Mld, Component::Mld)
                | (Home::Device, Component::Mld | Component::Sld)
        )
    }
}

/// One entry of a Command Effects Log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandEffect {
    /// The command.
    pub opcode: u16,
    /// What it may do.
    pub effects: Effects,
}

impl CommandEffect {
    /// The log of a component: an entry for every command it carries out.
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
