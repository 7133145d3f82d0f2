//! Ways of holding more memory of a program than may be resident.

use serde::Serialize;

cxloe_wire::named! {
    /// Way in which a program's memory is held.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum MemoryBacking {
        /// All memory is local and resident.
        Local = "local",
        /// Memory beyond the limit is remote, under `cn-agent exec`.
        Exec = "exec",
        /// Memory beyond the limit is swapped to a region that `cn-agent nbd` serves as a block device.
        SwapNbd = "swap-nbd",
        /// Memory beyond the limit is swapped to compressed memory of this machine.
        SwapZram = "swap-zram",
        /// Memory beyond the limit is swapped to a file.
        SwapFile = "swap-file",
    }
}

impl MemoryBacking {
    /// Ways of holding memory that limit resident memory, in the order of reports.
    pub const LIMITED: [MemoryBacking; 4] =
        [MemoryBacking::Exec, MemoryBacking::SwapNbd, MemoryBacking::SwapZram, MemoryBacking::SwapFile];

    /// Description of this way of holding memory, for reports.
    pub fn what(self) -> &'static str {
        match self {
            MemoryBacking::Local => "memory of this machine, no limit",
            MemoryBacking::Exec => "remote memory under cn-agent exec, from a memory node over a veth pair",
            MemoryBacking::SwapNbd => {
                "swap on a region of the same memory node, as a block device of cn-agent nbd"
            }
            MemoryBacking::SwapZram => {
                "swap to compressed memory of this machine (zram), which comes on top of what may be resident"
            }
            MemoryBacking::SwapFile => "swap to a file on this machine's disk",
        }
    }
}

impl std::str::FromStr for MemoryBacking {
    type Err = String;

    fn from_str(text: &str) -> Result<MemoryBacking, String> {
        let names = || MemoryBacking::LIMITED.map(MemoryBacking::name).join(", ");
        let found = MemoryBacking::LIMITED.into_iter().find(|way| way.name() == text);
        found.ok_or_else(|| format!("there is no way called `{text}`; there are {}", names()))
    }
}
