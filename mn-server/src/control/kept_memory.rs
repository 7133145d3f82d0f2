//! Memory whose content is kept although no manager lists it, stored on disk: the page table no longer has its mappings,
//! and after a restart the node would give it away as free.

use cxloe_daemon::NodeState;
use cxloe_mn_core::mappings::Mappings;
use cxloe_mn_core::translation::Translation;
use serde::{Deserialize, Serialize};

use crate::pool::MpExtent;

/// Content of the state file: mappings that are not served, by extent of the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptMemory {
    /// Incarnation of the pool; another one no longer has the content.
    incarnation: u64,
    runs: Vec<KeptRun>,
}

/// Adjacent extents of the pool that were mapped to adjacent extents of a compute node's CMem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptRun {
    cn: u64,
    cmem_extent: u64,
    mp_extent: u32,
    count: u32,
    sealed: bool,
}

impl KeptMemory {
    pub fn of(mappings: &Mappings) -> KeptMemory {
        let mut runs: Vec<KeptRun> = Vec::new();
        for (MpExtent(mp_extent), t) in mappings.kept() {
            let follows = |run: &&mut KeptRun| {
                (run.cn, run.sealed) == (t.cn, t.sealed)
                    && run.mp_extent + run.count == mp_extent
                    && run.cmem_extent + u64::from(run.count) == t.cmem_extent
            };
            match runs.last_mut().filter(follows) {
                Some(run) => run.count += 1,
                None => runs.push(KeptRun {
                    cn: t.cn,
                    cmem_extent: t.cmem_extent,
                    mp_extent,
                    count: 1,
                    sealed: t.sealed,
                }),
            }
        }
        // Without memory to keep, the file says nothing about a pool.
        let incarnation = if runs.is_empty() { 0 } else { mappings.table().pool().incarnation() };
        KeptMemory { incarnation, runs }
    }

    /// Returns the mappings if the pool has still `incarnation`, and so their content.
    pub fn translations(&self, incarnation: u64) -> impl Iterator<Item = Translation> + '_ {
        let runs = self.runs.iter().filter(move |_| self.incarnation == incarnation);
        runs.flat_map(|run| {
            (0..run.count).map(move |at| Translation {
                cn: run.cn,
                cmem_extent: run.cmem_extent.saturating_add(at.into()),
                mp_extent: MpExtent(run.mp_extent.saturating_add(at)),
                sealed: run.sealed,
            })
        })
    }
}

impl NodeState for KeptMemory {
    const REMEDY: &str =
        "restore it, or remove it if memory that the manager does not list may be given away";
}
