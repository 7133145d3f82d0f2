//! Where to read or write: an HPA, or a region and an offset in it.

use std::str::FromStr;

use cxloe_client::message::{AttachedRegion, Attaching};
use cxloe_daemon::command_line::{Exit, Failure};
use cxloe_fabric::model::{ByteSize, Name};

/// A place in remote memory, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A host physical address.
    Hpa(u64),
    /// A region and an offset in bytes.
    Region(Name, u64),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(hex) = text.strip_prefix("0x") {
            return u64::from_str_radix(hex, 16).map(Target::Hpa).map_err(|e| format!("`{text}`: {e}"));
        }
        if text.bytes().all(|b| b.is_ascii_digit()) {
            return text.parse().map(Target::Hpa).map_err(|e| format!("`{text}`: {e}"));
        }
        let (name, offset) = text.split_once('+').unwrap_or((text, "0"));
        let offset: ByteSize = offset.parse().map_err(|e| format!("{e}"))?;
        Ok(Target::Region(name.parse().map_err(|e| format!("{e}"))?, offset.0))
    }
}

impl Target {
    /// Whether `regions` has what it names; an HPA is there, or not, whatever the regions are.
    pub fn is_among(&self, regions: &[AttachedRegion]) -> bool {
        match self {
            Target::Hpa(_) => true,
            Target::Region(name, _) => regions
                .iter()
                .any(|region| region.region == name.as_str() && region.attachment != Attaching::Waiting),
        }
    }

    /// Its HPA, with `regions` attached.
    ///
    /// # Errors
    /// No such region, or an offset beyond its end.
    pub fn hpa(
        &self,
        regions: impl FnOnce() -> Result<Vec<AttachedRegion>, Failure>,
    ) -> Result<u64, Failure> {
        let (name, offset) = match self {
            Target::Hpa(hpa) => return Ok(*hpa),
            Target::Region(name, offset) => (name, *offset),
        };
        let regions = regions()?;
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        assert_eq!("0x10000000040".parse(), Ok(Target::Hpa(0x100_0000_0040)));
        assert_eq!("4096".parse(), Ok(Target::Hpa(4096)));
        let scratch = || Name::new("scratch").unwrap();
        assert_eq!("scratch".parse(), Ok(Target::Region(scratch(), 0)));
        assert_eq!("scratch+0x40".parse(), Ok(Target::Region(scratch(), 64)));
        assert_eq!("scratch+2M".parse(), Ok(Target::Region(scratch(), 2 << 20)));
        for bad in ["", "0x", "0xzz", "scratch+x", "a b+4"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }

    #[test]
    fn regions_are_found_by_name() {
        let listed = AttachedRegion {
            region: "scratch".into(),
            hpa: 1 << 40,
            size: 4096,
            uid: None,
            created_ms: 0,
            state: "active".into(),
            attachment: Attaching::Attached,
            served_by: "ethernet".into(),
            note: None,
            window: 16 << 30,
            beyond_window: 0,
            decoders: Vec::new(),
            memory_nodes: Vec::new(),
        };
        let hpa = |text: &str| text.parse::<Target>().unwrap().hpa(|| Ok(vec![listed.clone()]));
        assert_eq!(hpa("scratch+64").unwrap(), (1 << 40) + 64);
        assert_eq!(hpa("scratch+4096").unwrap_err().exit, Exit::NotFound);
        assert!(hpa("other").unwrap_err().message.contains("cn-agent list"));
    }
}
