//! Target of a read or write: an HPA, or a region and an offset in it.

use std::str::FromStr;

use cxloe_client::message::{AttachedRegion, Attaching};
use cxloe_daemon::command_line::{Exit, Failure};
use cxloe_fabric::model::{ByteSize, Name};

/// Location in remote memory, as written on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryTarget {
    /// A host physical address.
    Hpa(u64),
    /// A region and an offset in bytes.
    Region(Name, u64),
}

impl FromStr for MemoryTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(hex) = text.strip_prefix("0x") {
            return u64::from_str_radix(hex, 16).map(MemoryTarget::Hpa).map_err(|e| format!("`{text}`: {e}"));
        }
        if text.bytes().all(|b| b.is_ascii_digit()) {
            return text.parse().map(MemoryTarget::Hpa).map_err(|e| format!("`{text}`: {e}"));
        }
        let (name, offset) = text.split_once('+').unwrap_or((text, "0"));
        let offset: ByteSize = offset.parse().map_err(|e| format!("{e}"))?;
        Ok(MemoryTarget::Region(name.parse().map_err(|e| format!("{e}"))?, offset.0))
    }
}

/// Whether the region `name` is among `regions` and attached.
pub fn is_attached(name: &Name, regions: &[AttachedRegion]) -> bool {
    let is_it = |region: &AttachedRegion| region.region == name.as_str();
    regions.iter().any(|region| is_it(region) && region.attachment != Attaching::Waiting)
}

/// HPA of byte `offset` of the region `name` in `regions`.
///
/// # Errors
/// The region is not among `regions`, or the offset is beyond its end.
pub fn hpa_in(name: &Name, offset: u64, regions: &[AttachedRegion]) -> Result<u64, Failure> {
    let region = regions.iter().find(|region| region.region == name.as_str()).ok_or_else(|| {
        Failure::new(
            Exit::NotFound,
            format!("no region {name} is attached; `cn-agent list` shows those that are"),
        )
    })?;
    if offset >= region.size {
        let size = region.size;
        return Err(Failure::new(
            Exit::NotFound,
            format!("offset {offset:#x} is beyond the end of region {name}, which has {size:#x} bytes"),
        ));
    }
    Ok(region.hpa + offset)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An attached region of 4 KiB.
    pub fn attached(name: &str) -> AttachedRegion {
        AttachedRegion {
            region: name.into(),
            hpa: 1 << 40,
            size: 4096,
            state: "active".into(),
            served_by: "ethernet".into(),
            window: 16 << 30,
            ..AttachedRegion::default()
        }
    }

    #[test]
    fn places_are_read() {
        assert_eq!("0x10000000040".parse(), Ok(MemoryTarget::Hpa(0x100_0000_0040)));
        assert_eq!("4096".parse(), Ok(MemoryTarget::Hpa(4096)));
        let scratch = || Name::new("scratch").unwrap();
        assert_eq!("scratch".parse(), Ok(MemoryTarget::Region(scratch(), 0)));
        assert_eq!("scratch+0x40".parse(), Ok(MemoryTarget::Region(scratch(), 64)));
        assert_eq!("scratch+2M".parse(), Ok(MemoryTarget::Region(scratch(), 2 << 20)));
        for bad in ["", "0x", "0xzz", "scratch+x", "a b+4"] {
            assert!(bad.parse::<MemoryTarget>().is_err(), "{bad}");
        }
    }

    #[test]
    fn regions_are_found_by_name() {
        let waiting = AttachedRegion { attachment: Attaching::Waiting, ..attached("later") };
        let listed = [attached("scratch"), waiting];
        let name = |text: &str| Name::new(text).unwrap();
        let is_attached = |text: &str| is_attached(&name(text), &listed);
        assert!(is_attached("scratch") && !is_attached("later") && !is_attached("other"));
        let hpa = |text: &str, offset| hpa_in(&name(text), offset, &listed);
        assert_eq!(hpa("scratch", 64).unwrap(), (1 << 40) + 64);
        assert_eq!(hpa("scratch", 4096).unwrap_err().exit, Exit::NotFound);
        assert!(hpa("other", 0).unwrap_err().message.contains("cn-agent list"));
    }
}
