//! Which of all there is is to be listed: the filters of the command line, applied to each thing with what belongs to it.

use cxloe_fabric::model::{CnId, Name};

use super::ListArgs;
use super::snapshot::Snapshot;

/// The filters.
#[derive(Debug)]
pub struct Scope {
    memdevs: Vec<Name>,
    /// Those meant; `None` stands for one that is not known, which nothing belongs to.
    compute_nodes: Vec<Option<CnId>>,
    regions: Vec<Name>,
    decoders: Vec<String>,
    idle: bool,
    /// Whether what nodes report of themselves is wanted.
    pub reports: bool,
    /// How many were left out for being idle.
    pub hidden: usize,
}

/// A thing with what belongs to it, or to which it belongs.
#[derive(Debug, Default)]
pub struct Thing<'a> {
    /// Memory nodes.
    pub memdevs: Vec<&'a Name>,
    /// Compute nodes.
    pub compute_nodes: Vec<CnId>,
    /// Regions.
    pub regions: Vec<&'a Name>,
    /// Its name as a decoder; `None`: it is none, and filters of decoders do not concern it.
    pub decoder: Option<&'a str>,
    /// Whether it is idle.
    pub idle: bool,
}

impl Scope {
    /// The scope that `args` give.
    pub fn new(args: &ListArgs, snapshot: &Snapshot) -> Self {
        Self {
            memdevs: args.memdev.clone(),
            compute_nodes: args.compute_node.iter().map(|owner| snapshot.find(owner)).collect(),
            regions: args.region.clone(),
            decoders: args.decoder.clone(),
            idle: args.idle || args.verbose > 1,
            reports: args.verbose > 2,
            hidden: 0,
        }
    }

    /// Whether a thing is to be listed.
    pub fn has(&mut self, thing: &Thing<'_>) -> bool {
        if !self.fits(thing) {
            return false;
        }
        let named = !(self.memdevs.is_empty()
            && self.compute_nodes.is_empty()
            && self.regions.is_empty()
            && self.decoders.is_empty());
        let shown = self.idle || named || !thing.idle;
        self.hidden += usize::from(!shown);
        shown
    }

    /// Whether a thing fits every filter.
    pub fn fits(&self, thing: &Thing<'_>) -> bool {
        let fits_memdev =
            self.memdevs.is_empty() || self.memdevs.iter().any(|name| thing.memdevs.contains(&name));
        let fits_node = self.compute_nodes.is_empty()
            || self.compute_nodes.iter().flatten().any(|cn| thing.compute_nodes.contains(cn));
        let fits_region =
            self.regions.is_empty() || self.regions.iter().any(|name| thing.regions.contains(&name));
        let fits_decoder = self.decoders.is_empty()
            || thing.decoder.is_none_or(|own| self.decoders.iter().any(|decoder| decoder == own));
        fits_memdev && fits_node && fits_region && fits_decoder
    }

    /// What to say of those left out.
    pub fn idle_hint(&self) -> String {
        match self.hidden {
            0 => String::new(),
            1 => "; -i shows the idle one".to_owned(),
            hidden => format!("; -i shows the {hidden} idle ones"),
        }
    }
}
