//! PCI identities of what the FM API shows: the switch, and memory nodes behind it.

/// PCI vendor in every identity: one that nobody was given and emulated devices use.
pub const VENDOR: u16 = 0x1234;
/// PCI device of the switch.
pub const DEVICE_SWITCH: u16 = 0xC105;
/// PCI device of a memory node.
pub const DEVICE_MEMORY: u16 = 0xC10E;
