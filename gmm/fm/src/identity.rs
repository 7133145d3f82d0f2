//! PCI identities of the FM API's components: the switch, and memory nodes behind it.

/// PCI vendor in every identity: one that is not assigned, as emulated devices use it.
pub(crate) const VENDOR: u16 = 0x1234;
/// PCI device of the switch.
pub(crate) const DEVICE_SWITCH: u16 = 0xC105;
/// PCI device of a memory node.
pub(crate) const DEVICE_MEMORY: u16 = 0xC10E;
