//! Filters of the command line. A filter applies to an object and to the objects related to it.

use cxloe_fabric::model::{CnId, LabelSelector, Labels, Name};

use super::ListArgs;
use super::snapshot::Snapshot;

/// Filters of one command, with the names of compute nodes resolved to CN ids.
#[derive(Debug)]
pub struct Scope {
    memdevs: Vec<Name>,
    /// Compute nodes to list; `None` for a name that no compute node has, so that nothing passes this filter.
    compute_nodes: Vec<Option<CnId>>,
    regions: Vec<Name>,
    labels: Option<LabelSelector>,
    decoders: Vec<String>,
    idle: bool,
    /// True if the reports of nodes are listed.
    pub reports: bool,
    /// Number of idle objects that were left out.
    pub hidden: usize,
}

/// An object to be filtered: its own name, and the names of the objects that it contains or belongs to.
#[derive(Debug, Default)]
pub struct FilteredObject<'a> {
    pub memdevs: Vec<&'a Name>,
    pub compute_nodes: Vec<CnId>,
    pub regions: Vec<&'a Name>,
    /// Labels of the object's region; `None` if it belongs to no single region: filters by label do not apply to it.
    pub labels: Option<&'a Labels>,
    /// Name of the object if it is a decoder; `None` for other objects, to which filters for decoders do not
    /// apply.
    pub decoder: Option<&'a str>,
    /// True if the object is left out unless idle objects are requested.
    pub idle: bool,
}

impl Scope {
    /// Takes the filters from the command line. With `-vv` or more, idle objects are listed; with `-vvv` or
    /// more, reports of nodes, too.
    pub fn new(args: &ListArgs, snapshot: &Snapshot) -> Self {
        Self {
            memdevs: args.memdev.clone(),
            compute_nodes: args.compute_node.iter().map(|owner| snapshot.find(owner)).collect(),
            regions: args.region.clone(),
            labels: args.label.clone(),
            decoders: args.decoder.clone(),
            idle: args.idle || args.verbose > 1,
            reports: args.verbose > 2,
            hidden: 0,
        }
    }

    /// True if the object is to be listed; counts idle objects that are left out.
    pub fn has(&mut self, thing: &FilteredObject<'_>) -> bool {
        if !self.fits(thing) {
            return false;
        }
        // If the command line has a filter, idle objects that pass it are listed, too.
        let named = !(self.memdevs.is_empty()
            && self.compute_nodes.is_empty()
            && self.regions.is_empty()
            && self.labels.is_none()
            && self.decoders.is_empty());
        let shown = self.idle || named || !thing.idle;
        self.hidden += usize::from(!shown);
        shown
    }

    /// True if the object passes every filter.
    pub fn fits(&self, thing: &FilteredObject<'_>) -> bool {
        let fits_memdev =
            self.memdevs.is_empty() || self.memdevs.iter().any(|name| thing.memdevs.contains(&name));
        let fits_node = self.compute_nodes.is_empty()
            || self.compute_nodes.iter().flatten().any(|cn| thing.compute_nodes.contains(cn));
        let fits_region =
            self.regions.is_empty() || self.regions.iter().any(|name| thing.regions.contains(&name));
        let fits_decoder = self.decoders.is_empty()
            || thing.decoder.is_none_or(|own| self.decoders.iter().any(|decoder| decoder == own));
        let fits_labels = self
            .labels
            .as_ref()
            .is_none_or(|selector| thing.labels.is_none_or(|labels| selector.selects(labels)));
        fits_memdev && fits_node && fits_region && fits_decoder && fits_labels
    }

    /// Text that says how many idle objects were left out.
    pub fn idle_hint(&self) -> String {
        match self.hidden {
            0 => String::new(),
            1 => "; -i shows the idle one".to_owned(),
            hidden => format!("; -i shows the {hidden} idle ones"),
        }
    }
}
