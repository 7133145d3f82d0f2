//! Single cases of the compute node's engine: one engine, with one memory node or with several over which a
//! region is interleaved. The network loses frames only while a path is cut.

mod mirror;
mod pair;
mod spread;

use std::time::Duration;

use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::{
    BurstRead, Direction, DrainReason, Engine, EngineError, Flush, Read, RequestId, Route, RouteError,
    RouteTarget, Segment, SegmentIter, Sink, Unmapped, Write,
};
use cxloe_fabric::hdm::{Decoder, Granularity, Ways};
use cxloe_net::Link;
use cxloe_net::sim::{PortConfig, SimLink, SimNetwork};
use cxloe_sim::register::{Origin, Shape, content};
use cxloe_sim::{EXTENT, Interleave, Layout, MemoryNode, TIMING};
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};
use cxloe_wire::machine::StateMachine;
use cxloe_wire::session::{Identity, RequesterConfig, ResponderConfig};
use cxloe_wire::time::Time;

const CN: Mac = Mac([2, 0, 0, 0, 0, 0]);
const MN: Mac = Mac([2, 0, 0, 0, 1, 0]);
const ID: RequestId = RequestId::Number(0);
const MS: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Ended {
    data: Vec<u8>,
    /// Data of each completed read, with its request id.
    reads: Vec<(RequestId, Vec<u8>)>,
    errors: Vec<EngineError>,
    ended: usize,
}

impl Sink for Ended {
    fn read(&mut self, id: RequestId, data: &[u8]) {
        self.data = data.to_vec();
        self.reads.push((id, data.to_vec()));
        self.ended += 1;
    }
    fn written(&mut self, _: RequestId) {
        self.ended += 1;
    }
    fn failed(&mut self, _: RequestId, error: EngineError) {
        self.errors.push(error);
        self.ended += 1;
    }
}

/// Returns a route from HPA 0 to an extent of memory node `peer`.
fn direct(peer: usize, cmem: u64) -> Route {
    Route::direct(0, EXTENT, RouteTarget { peer, cmem, incarnation: None, mirror: None })
}
