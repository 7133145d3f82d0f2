//! Option `--link` of a quickstart: a link through the kernel, or shared memory by DPDK.

use std::str::FromStr;

use cxloe_link::Backend;

/// Link of a quickstart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuickstartLink {
    /// A link of the kernel's interfaces.
    Kernel(Backend),
    /// Memory that the processes share, by DPDK's driver `net_memif`.
    Dpdk,
}

impl QuickstartLink {
    /// Values of the option, separated by `|`.
    pub const VALUES: &str = "auto|auto:latency|auto:throughput|xdp|packet|pnet|udp|dpdk";

    /// Kind of link at the kernel's interfaces; `None` without them.
    pub fn backend(self) -> Option<Backend> {
        match self {
            QuickstartLink::Kernel(backend) => Some(backend),
            QuickstartLink::Dpdk => None,
        }
    }
}

impl FromStr for QuickstartLink {
    type Err = String;
    fn from_str(text: &str) -> Result<QuickstartLink, String> {
        match text {
            "dpdk" => Ok(QuickstartLink::Dpdk),
            _ => text.parse().map(QuickstartLink::Kernel).map_err(|error| format!("{error}; or dpdk")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_a_link() {
        for name in QuickstartLink::VALUES.split('|') {
            let link: QuickstartLink = name.parse().unwrap();
            let backend = link.backend().map_or_else(|| "dpdk".to_owned(), |backend| backend.to_string());
            assert_eq!(backend, name);
        }
        let known = format!("{}|dpdk", Backend::VALUES);
        assert_eq!(QuickstartLink::VALUES, known, "each kind of link at an interface is one of a quickstart");
        let error = "memif".parse::<QuickstartLink>().unwrap_err();
        assert!(error.contains("packet") && error.ends_with("or dpdk"), "{error}");
    }
}
