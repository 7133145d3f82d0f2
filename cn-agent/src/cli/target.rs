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

/// HPA of byte `offset` of the region `name` in `regions`, from which on `bytes` bytes are to be used.
///
/// # Errors
/// The region is not among `regions`, or the bytes are beyond its end, or beyond its addresses.
pub fn hpa_in(name: &Name, offset: u64, bytes: u64, regions: &[AttachedRegion]) -> Result<u64, Failure> {
    let region = regions.iter().find(|region| region.region == name.as_str()).ok_or_else(|| {
        Failure::new(
            Exit::NotFound,
            format!("no region {name} is attached; `cn-agent list` shows those that are"),
        )
    })?;
    // The first byte has to be there even if no byte is used.
    let last = offset.saturating_add(bytes.saturating_sub(1));
    if last >= region.size {
        let size = region.size;
        return Err(Failure::new(
            Exit::NotFound,
            format!("offset {last:#x} is beyond the end of region {name}, which has {size:#x} bytes"),
        ));
    }
    if last >= region.addressable() {
        return Err(beyond_addresses(region));
    }
    Ok(region.hpa + offset)
}

/// Failure of a use of bytes that have no addresses, because the region has grown beyond its window.
pub fn beyond_addresses(region: &AttachedRegion) -> Failure {
    let (name, size, there) = (&region.region, ByteSize(region.size), ByteSize(region.addressable()));
    Failure::new(
        Exit::Refused,
        format!(
            "region {name} has grown beyond its addresses: of its {size}, only the first {there} can be used here"
        ),
    )
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
        let hpa = |text: &str, offset, bytes| hpa_in(&name(text), offset, bytes, &listed);
        assert_eq!(hpa("scratch", 64, 64).unwrap(), (1 << 40) + 64);
        assert_eq!(hpa("scratch", 0, 4096).unwrap(), 1 << 40);
        for (offset, bytes) in [(4096, 0), (4096, 64), (64, 4096), (64, u64::MAX), (u64::MAX, 64)] {
            assert_eq!(hpa("scratch", offset, bytes).unwrap_err().exit, Exit::NotFound, "{offset} {bytes}");
        }
        assert!(hpa("other", 0, 64).unwrap_err().message.contains("cn-agent list"));
    }

    #[test]
    fn addresses_behind_a_window_are_not_those_of_its_region() {
        const GIB: u64 = 1 << 30;
        let grown = AttachedRegion { size: 18 * GIB, beyond_window: 2 * GIB, ..attached("grown") };
        let next = AttachedRegion { hpa: grown.hpa + grown.window, ..attached("next") };
        let listed = [grown, next];
        let hpa = |offset, bytes| hpa_in(&Name::new("grown").unwrap(), offset, bytes, &listed);
        assert_eq!(hpa(16 * GIB - 64, 64).unwrap(), listed[1].hpa - 64);
        for (offset, bytes) in [(16 * GIB, 64), (16 * GIB - 64, 128), (0, 18 * GIB)] {
            let refused = hpa(offset, bytes).unwrap_err();
            assert_eq!(refused.exit, Exit::Refused, "{offset} {bytes}");
            assert!(refused.message.contains("beyond its addresses"), "{}", refused.message);
        }
        assert_eq!(hpa(18 * GIB, 64).unwrap_err().exit, Exit::NotFound);
    }
}
