//! The ways in which a program gets more memory than may be resident.

use std::fmt;

use serde::Serialize;

/// Where a program's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// All of it in this machine.
    Local,
    /// Remote, under `cn-agent exec`.
    Exec,
    /// Swapped to a region that `cn-agent nbd` serves as a block device.
    SwapNbd,
    /// Swapped to compressed memory of this machine.
    SwapZram,
    /// Swapped to a file.
    SwapFile,
}

impl Way {
    /// Those that limit what is resident, in the order of reports.
    pub const LIMITED: [Way; 4] = [Way::Exec, Way::SwapNbd, Way::SwapZram, Way::SwapFile];

    /// Its name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Way::Local => "local",
            Way::Exec => "exec",
            Way::SwapNbd => "swap-nbd",
            Way::SwapZram => "swap-zram",
            Way::SwapFile => "swap-file",
        }
    }

    /// What it is.
    pub fn what(self) -> &'static str {
        match self {
            Way::Local => "memory of this machine, no limit",
            Way::Exec => "remote memory under cn-agent exec, from a memory node over a veth pair",
            Way::SwapNbd => "swap on a region of the same memory node, as a block device of cn-agent nbd",
            Way::SwapZram => {
                "swap to compressed memory of this machine (zram), which comes on top of what may be resident"
            }
            Way::SwapFile => "swap to a file on this machine's disk",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Way, String> {
        let names = || Way::LIMITED.map(Way::name).join(", ");
        let found = Way::LIMITED.into_iter().find(|way| way.name() == text);
        found.ok_or_else(|| format!("there is no way called `{text}`; there are {}", names()))
    }
}
