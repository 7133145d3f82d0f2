//! A region behind the C interface: paged by the agent, or by the program over a link of its own.

use std::ffi::c_int;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use cxloe_client::mapping::{Hint, Mapping};
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, LinkConfig, Middlewares};
use cxloe_port::connect::{Access, ConnectOptions};
use cxloe_port::inline::InlineRegion;
use cxloe_port::rate_control::RateControl;

use super::types::{Counters, Options};

/// Longest wait for sessions with all memory nodes of a region to open.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// `struct cxloe_region` of the header.
pub enum Region {
    /// Paged by the agent.
    ByAgent(Mapping),
    /// Paged by threads of this process.
    Inline(Box<InlineRegion>),
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

const LIMIT_IS_FIXED: &str = "the limit of an inline mapping cannot be changed: name it when the region is \
                              mapped (cxloe_options.local), or map the region through the agent (cxloe_map)";
const DISCARDS_ITSELF: &str = "cxloe_discard is for regions that are mapped through the agent (cxloe_map): \
                               discard pages of an inline mapping by madvise(MADV_DONTNEED)";

/// Returns the configuration of a link over `interface`. `name` is the name of a [`Backend`]; `udp` may be
/// followed by a colon and a local address, if that differs from the interface's.
fn link(interface: &str, name: &str) -> Result<LinkConfig, String> {
    let mut config = LinkConfig::new(interface);
    match name.strip_prefix("udp:") {
        Some(address) => {
            config.backend = Backend::Udp;
            config.udp.address = address.parse().map_err(words)?;
        }
        None => config.backend = name.parse().map_err(words)?,
    }
    Ok(config)
}

impl Region {
    pub fn by_agent(socket: &Path, name: &str, options: &Options) -> Result<Region, String> {
        Mapping::open(socket, name, options.mapping()).map(Region::ByAgent).map_err(words)
    }

    pub fn inline(
        interface: &str,
        manager: &str,
        backend: &str,
        name: &str,
        options: &Options,
    ) -> Result<Region, String> {
        let link = link(interface, backend)?;
        let connect = ConnectOptions {
            name: "inline".into(),
            link,
            extras: Middlewares::default(),
            wait: WaitStyle::Busy,
            manager: manager.into(),
            access: Access::of_environment(),
            region: Some(name.into()),
            size: 0,
            ways: Ways::One,
            granularity: Granularity::PAGE,
            timeout: CONNECT_MAX,
            rate_control: Some(RateControl::default()),
        };
        let region = InlineRegion::open(&connect, options.inline()).map_err(words)?;
        Ok(Region::Inline(Box::new(region)))
    }

    pub fn address(&self) -> *mut u8 {
        match self {
            Region::ByAgent(mapping) => mapping.as_ptr(),
            Region::Inline(region) => region.as_ptr(),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Region::ByAgent(mapping) => mapping.len(),
            Region::Inline(region) => region.len(),
        }
    }

    pub fn flush(&self) -> Result<(), String> {
        match self {
            Region::ByAgent(mapping) => mapping.flush().map_err(words),
            Region::Inline(region) => region.flush().map_err(words),
        }
    }

    pub fn set_local(&self, local: u64) -> Result<(), String> {
        match self {
            Region::ByAgent(mapping) => mapping.set_limit(local).map_err(words),
            Region::Inline(_) => Err(LIMIT_IS_FIXED.into()),
        }
    }

    pub fn discard(&self, offset: usize, bytes: usize) -> Result<(), String> {
        let range = self.range(offset, bytes)?;
        match self {
            Region::ByAgent(mapping) => mapping.discard(range).map_err(words),
            Region::Inline(_) => Err(DISCARDS_ITSELF.into()),
        }
    }

    /// Bytes `offset..offset + bytes` of the region.
    fn range(&self, offset: usize, bytes: usize) -> Result<Range<usize>, String> {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.len());
        end.map(|end| offset..end).ok_or_else(|| {
            let size = self.len();
            format!(
                "{bytes} bytes at offset {offset} go beyond the region, which has {size} bytes (cxloe_size)"
            )
        })
    }

    pub fn hint(&self, offset: usize, bytes: usize, hint: c_int) -> Result<(), String> {
        let range = self.range(offset, bytes)?;
        let hint = match hint {
            0 => Hint::WillRead,
            1 => Hint::WillWrite,
            2 => Hint::Cold,
            3 => Hint::PageOut,
            other => {
                return Err(format!("there is no hint of number {other}; cxloe.h names those there are"));
            }
        };
        match self {
            Region::ByAgent(mapping) => mapping.hint(range, hint).map_err(words),
            Region::Inline(region) => {
                region.hint(range, hint);
                Ok(())
            }
        }
    }

    pub fn counters(&self) -> Result<Counters, String> {
        match self {
            Region::ByAgent(mapping) => {
                let view = mapping.paging().map_err(words)?;
                Ok(Counters::new(&view.counters, view.resident))
            }
            Region::Inline(region) => Ok(Counters::new(&region.counters(), region.resident())),
        }
    }

    pub fn unmap(self) -> Result<(), String> {
        match self {
            Region::ByAgent(mapping) => {
                let flushed = mapping.flush().map_err(words);
                // The region is unmapped even after a failed flush; the flush's error is returned.
                drop(mapping);
                flushed
            }
            Region::Inline(region) => region.close().map_err(words),
        }
    }
}
