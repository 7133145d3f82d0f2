//! Middlewares around a link by command-line options: injected faults, and a capture of all frames.

use std::fs::OpenOptions;
use std::path::PathBuf;

use super::fault::{FaultInjector, FaultPlan};
use super::pcap::{PcapFile, PcapWriter};
use super::{Link, LinkConfig, LinkError, open};

/// Middlewares around a link, as the command line asks for them.
#[derive(Clone, Debug, Default)]
pub struct Middlewares {
    /// Faults to inject; `None` for none.
    pub faults: Option<FaultPlan>,
    /// Path of the capture file and its size limit in bytes; `None` for no capture.
    pub pcap: Option<(PathBuf, u64)>,
}

impl Middlewares {
    /// Wraps `link`. The capture shows frames as this program sends and receives them, before faults on
    /// sending and after faults on receipt.
    ///
    /// # Errors
    /// The capture file cannot be written.
    pub fn around(&self, mut link: Box<dyn Link>) -> Result<Box<dyn Link>, LinkError> {
        let interface = link.info().interface.clone();
        if let Some(plan) = &self.faults {
            tracing::warn!(%interface, ?plan, "injecting faults");
            link = Box::new(FaultInjector::new(link, plan));
        }
        if let Some((path, limit)) = &self.pcap {
            let what = |source| LinkError::Io {
                what: "create the frame record",
                interface: interface.clone(),
                source,
            };
            // Readable only by the owner: unsealed frames have memory content in them, and sealed ones show
            // which nodes communicate.
            let mut new = OpenOptions::new();
            new.write(true).create(true).truncate(true);
            let file = cxloe_private::open(path, &new).map_err(what)?;
            let file = PcapFile::new(file, *limit).map_err(what)?;
            link = Box::new(PcapWriter::new(link, file));
        }
        Ok(link)
    }
}

/// Opens the link of `config` and wraps it in `extras`.
///
/// # Errors
/// Errors of [`open()`] and of [`Middlewares::around`].
pub fn open_with(config: &LinkConfig, extras: &Middlewares) -> Result<Box<dyn Link>, LinkError> {
    extras.around(open(config)?)
}
