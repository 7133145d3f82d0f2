//! Single cases of the compute node's engine: one engine, one memory node or several over which a region is spread, a
//! perfect network that is cut and healed.

mod pair;
mod spread;

use std::time::Duration;

use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::{
    BurstRead, Direction, DrainReason, Engine, EngineError, Flush, Read, Route, RouteError, Segment,
    SegmentIter, Sink, Target, Unmapped, Write,
};
use cxloe_fabric::hdm::{Decoder, Granularity, Ways};
use cxloe_link::Link;
use cxloe_link::sim::{PortConfig, SimLink, SimNetwork};
use cxloe_sim::register::{Origin, Shape, content};
use cxloe_sim::{EXTENT, Interleave, Layout, MemoryNode, TIMING};
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};
use cxloe_wire::session::{Identity, RequesterConfig, ResponderConfig};
use cxloe_wire::time::Time;

const CN: Mac = Mac([2, 0, 0, 0, 0, 0]);
const MN: Mac = Mac([2, 0, 0, 0, 1, 0]);
const MS: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Ended {
    data: Vec<u8>,
    /// What each read has brought, by its user value.
    reads: Vec<(u64, Vec<u8>)>,
    errors: Vec<EngineError>,
    ended: usize,
}

impl Sink for Ended {
    fn read(&mut self, user: u64, data: &[u8]) {
        self.data = data.to_vec();
        self.reads.push((user, data.to_vec()));
        self.ended += 1;
    }
    fn written(&mut self, _user: u64) {
        self.ended += 1;
    }
    fn failed(&mut self, _user: u64, error: EngineError) {
        self.errors.push(error);
        self.ended += 1;
    }
}

/// An extent of the memory node at HPA 0.
fn direct(peer: usize, cmem: u64) -> Route {
    Route::direct(0, EXTENT, Target { peer, cmem, incarnation: None })
}
