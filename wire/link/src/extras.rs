//! What may be put around a link from the command line: faults made on purpose, and a record of all frames.

use std::fs::OpenOptions;
use std::path::PathBuf;

use super::fault::{FaultInjector, FaultPlan};
use super::pcap::{PcapFile, PcapWriter};
use super::{Link, LinkConfig, LinkError, open};

/// Middlewares to put around a link.
#[derive(Clone, Debug, Default)]
pub struct Extras {
    /// Faults to make.
    pub faults: Option<FaultPlan>,
    /// Where to record frames, and after how many bytes to stop.
    pub pcap: Option<(PathBuf, u64)>,
}

impl Extras {
    /// Puts them around `link`. The record shows what passes between this program and the faults, not what passes
    /// between the faults and the wire.
    ///
    /// # Errors
    /// The file of the record.
    pub fn around(&self, mut link: Box<dyn Link>) -> Result<Box<dyn Link>, LinkError> {
        let interface = link.info().interface.clone();
        if let Some(plan) = &self.faults {
            tracing::warn!(%interface, ?plan, "making faults on purpose");
            link = Box::new(FaultInjector::new(link, plan));
        }
        if let Some((path, limit)) = &self.pcap {
            let what = |source| LinkError::Io {
                what: "create the frame record",
                interface: interface.clone(),
                source,
            };
            // Frames without a seal hold lines, and sealed ones say who talks to whom.
            let mut new = OpenOptions::new();
            new.write(true).create(true).truncate(true);
            let file = cxloe_private::open(path, &new).map_err(what)?;
            let file = PcapFile::new(file, *limit).map_err(what)?;
            link = Box::new(PcapWriter::new(link, file));
        }
        Ok(link)
    }
}

/// Opens the link that `config` asks for, with `extras` around it.
///
/// # Errors
/// Those of [`open()`] and of [`Extras::around`].
pub fn open_with(config: &LinkConfig, extras: &Extras) -> Result<Box<dyn Link>, LinkError> {
    extras.around(open(config)?)
}
