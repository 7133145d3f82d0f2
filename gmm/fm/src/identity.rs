//! PCI identities of the FM API's components: the switch, and memory nodes behind it.

/// PCI vendor in every identity: a number that is not assigned, and that emulated devices use.
pub(crate) const VENDOR: u16 = 0x1234;
/// PCI device id of the switch.
pub(crate) const DEVICE_SWITCH: u16 = 0xC105;
/// PCI device id of a memory node.
pub(crate) const DEVICE_MEMORY: u16 = 0xC10E;
