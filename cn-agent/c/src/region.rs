//! A region as C programs have it: mapped by the agent, or over a link of the program's own.

use std::ffi::c_int;
use std::path::Path;
use std::time::Duration;

use cxloe_client::mapping::{Hint, Mapping};
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, Extras, LinkConfig};
use cxloe_port::connect::{Access, ConnectOptions, Connected, Lease};
use cxloe_port::inline::InlineRegion;
use cxloe_port::rate_control::RateControl;

use super::types::{Counters, Options};

/// How long a session with the memory nodes may take to be there.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// `cxloe_region`
pub enum Region {
    /// The agent pages it.
    ByAgent(Mapping),
    /// Its threads do.
    Inline {
        region: Box<InlineRegion>,
        /// Gives this compute node's place back.
        lease: Lease,
    },
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

const BEYOND: &str = "the range goes beyond the region";
const NOT_INLINE: &str = "not for a region that was mapped inline";

/// The link of this name: one of the [`Backend`]s, `udp` with an address behind a colon if it is not the interface's.
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
            extras: Extras::default(),
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
        let Connected { port, region, hpa, lease, .. } = Connected::open(&connect).map_err(words)?;
        let region = InlineRegion::map(port, hpa, region.size, options.inline()).map_err(words)?;
        Ok(Region::Inline { region: Box::new(region), lease })
    }

    pub fn address(&self) -> *mut u8 {
        match self {
            Region::ByAgent(mapping) => mapping.as_ptr(),
            Region::Inline { region, .. } => region.as_ptr(),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Region::ByAgent(mapping) => mapping.len(),
            Region::Inline { region, .. } => region.len(),
        }
    }

    pub fn flush(&self) -> Result<(), String> {
        match self {
            Region::ByAgent(mapping) => mapping.flush().map_err(words),
            Region::Inline { region, .. } => region.flush().map_err(words),
        }
    }

    pub fn set_local(&self, local: u64) -> Result<(), String> {
        match self {
            Region::ByAgent(mapping) => mapping.set_limit(local).map_err(words),
            Region::Inline { .. } => Err(NOT_INLINE.into()),
        }
    }

    pub fn discard(&self, offset: usize, bytes: usize) -> Result<(), String> {
        let end = offset.checked_add(bytes).ok_or("the range has no end")?;
        match self {
            Region::ByAgent(mapping) => mapping.discard(offset..end).map_err(words),
            Region::Inline { .. } => Err(NOT_INLINE.into()),
        }
    }

    pub fn hint(&self, offset: usize, bytes: usize, hint: c_int) -> Result<(), String> {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.len()).ok_or(BEYOND)?;
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
            Region::ByAgent(mapping) => mapping.hint(offset..end, hint).map_err(words),
            Region::Inline { region, .. } => {
                region.hint(offset..end, hint);
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
            Region::Inline { region, .. } => Ok(Counters::new(&region.counters(), region.resident())),
        }
    }

    pub fn unmap(self) -> Result<(), String> {
        match self {
            Region::ByAgent(mapping) => {
                let flushed = mapping.flush().map_err(words);
                drop(mapping);
                flushed
            }
            Region::Inline { region, lease } => {
                let closed = region.close().map_err(words);
                let ended = lease.end().map_err(words);
                closed?.close().map_err(words)?;
                ended
            }
        }
    }
}
