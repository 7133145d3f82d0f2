//! From HPA to memory node: the compute node's HDM decoders, each a route.
//!
//! ```text
//!   HPA --find--> route --decoder--> position, DPA --target at that position--> peer, CMem = its base + DPA
//!         |
//!         +-- none: `local` memory has it, or a decode-miss policy says how the access is answered
//! ```
//!
//! A region has one route per decoder, one behind the other; a region of one memory node is a route of one way.

use alloc::vec;
use alloc::vec::Vec;
use cxloe_fabric::hdm::{Decoder, Granularity, Ways};

/// The memory of one memory node in a route: one position of its interleave set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Which peer of the engine.
    pub peer: usize,
    /// The CMem address of the first byte, a multiple of 4 KiB. The target has size / ways bytes from there on.
    pub cmem: u64,
    /// The incarnation of the memory node's content that the data belongs to; `None` until a session tells.
    pub incarnation: Option<u64>,
}

impl Target {
    /// As `incarnation`: one that no content has, for data of which the manager says that it is gone.
    pub const LOST: u64 = 0;

    /// Whether the data is gone, given the incarnation of the memory node's present content.
    #[inline]
    pub fn is_lost(&self, now: Option<u64>) -> bool {
        match (self.incarnation, now) {
            (Some(Self::LOST), _) => true,
            (Some(ours), Some(now)) => ours != now,
            _ => false,
        }
    }
}

/// A stretch of HPA and the memory nodes it is spread over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Range and interleave: base a multiple of 4 KiB, size of 4 KiB for each target and of whole turns.
    pub decoder: Decoder,
    /// By position, as many as ways.
    pub targets: Vec<Target>,
}

impl Route {
    /// A route without interleaving: `bytes` from `hpa` on are `target`'s.
    pub fn direct(hpa: u64, bytes: u64, target: Target) -> Route {
        let decoder = Decoder { base: hpa, size: bytes, ways: Ways::One, granularity: Granularity::PAGE };
        Route { decoder, targets: vec![target] }
    }

    /// First HPA.
    pub fn hpa(&self) -> u64 {
        self.decoder.base
    }

    #[inline]
    fn holds(&self, hpa: u64) -> bool {
        hpa.wrapping_sub(self.decoder.base) < self.decoder.size
    }

    /// The target of `hpa`, which the route holds, its position and the CMem address there.
    #[inline]
    pub(super) fn locate(&self, hpa: u64) -> (&Target, u32, u64) {
        let (position, dpa) = self.decoder.decode_offset(hpa.wrapping_sub(self.decoder.base));
        let target = &self.targets[position as usize];
        (target, position, target.cmem + dpa)
    }
}

/// Why a route or a decode-miss policy cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Not whole pages, nothing, or past the end of the address space.
    #[error("a stretch of {bytes:#x} bytes at HPA {hpa:#x} is not whole 4 KiB pages; align both")]
    Shape {
        /// First HPA.
        hpa: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// The memory nodes would not get as many whole pages and chunks each.
    #[error(
        "{bytes:#x} bytes at HPA {hpa:#x} over {ways} ways of {granularity} bytes are not whole pages and turns; make the size a multiple of {ways} x 16 KiB"
    )]
    Shares {
        /// First HPA.
        hpa: u64,
        /// Length in bytes.
        bytes: u64,
        /// Interleave ways.
        ways: Ways,
        /// Interleave granularity.
        granularity: Granularity,
    },
    /// Targets and ways differ in number.
    #[error("the route at HPA {hpa:#x} has {ways} ways and {targets} targets; name one target per way")]
    Targets {
        /// First HPA.
        hpa: u64,
        /// Interleave ways.
        ways: Ways,
        /// How many targets it has.
        targets: usize,
    },
    /// A target begins between pages.
    #[error("CMem {cmem:#x} of the route at HPA {hpa:#x} is not a multiple of 4 KiB; align it")]
    TargetUnaligned {
        /// First HPA.
        hpa: u64,
        /// The target's first CMem address.
        cmem: u64,
    },
    /// There is less memory of this machine than it was to serve.
    #[error(
        "{bytes:#x} bytes at HPA {hpa:#x} were to be served by local memory from its byte {offset:#x} on, which has {there:#x}"
    )]
    Memory {
        /// First HPA.
        hpa: u64,
        /// Length in bytes.
        bytes: u64,
        /// Where in the memory, a multiple of 64.
        offset: u64,
        /// Bytes of the memory.
        there: u64,
    },
    /// Another route, or another policy, holds some of these addresses.
    #[error("HPA {hpa:#x} already belongs to another region")]
    Overlap {
        /// First HPA.
        hpa: u64,
    },
    /// There are as many as there may be.
    #[error("no more than {0} routes are possible")]
    Full(usize),
}

/// Routes an engine can hold, and miss_policies.
pub const ROUTES_MAX: usize = 65_536;

/// A stretch of HPA: whole pages, not empty, within the address space.
pub(super) fn check_shape(hpa: u64, bytes: u64) -> Result<(), RouteError> {
    let page = |x: u64| x.is_multiple_of(4096);
    if bytes == 0 || !page(hpa) || !page(bytes) || hpa.checked_add(bytes).is_none() {
        return Err(RouteError::Shape { hpa, bytes });
    }
    Ok(())
}

/// All routes, in order of their HPA, none overlapping.
#[derive(Default)]
pub(super) struct Routes {
    sorted: Vec<Route>,
    /// The route of the last lookup.
    last: usize,
}

impl Routes {
    pub fn add(&mut self, route: Route) -> Result<(), RouteError> {
        let Decoder { base: hpa, size: bytes, ways, granularity } = route.decoder;
        check_shape(hpa, bytes)?;
        let (turn, pages) = (ways.count() * granularity.bytes(), ways.count() * 4096);
        if !bytes.is_multiple_of(turn.into()) || !bytes.is_multiple_of(pages.into()) {
            return Err(RouteError::Shares { hpa, bytes, ways, granularity });
        }
        if route.targets.len() != ways.count() as usize {
            return Err(RouteError::Targets { hpa, ways, targets: route.targets.len() });
        }
        if let Some(odd) = route.targets.iter().find(|target| !target.cmem.is_multiple_of(4096)) {
            return Err(RouteError::TargetUnaligned { hpa, cmem: odd.cmem });
        }
        if self.sorted.len() == ROUTES_MAX {
            return Err(RouteError::Full(ROUTES_MAX));
        }
        let at = self.sorted.partition_point(|r| r.hpa() < hpa);
        let clear_before = at == 0 || !self.sorted[at - 1].holds(hpa);
        let clear_behind = at == self.sorted.len() || hpa + bytes <= self.sorted[at].hpa();
        if !clear_before || !clear_behind {
            return Err(RouteError::Overlap { hpa });
        }
        self.sorted.insert(at, route);
        Ok(())
    }

    /// Removes the route that starts at `hpa`.
    pub fn remove(&mut self, hpa: u64) -> Option<Route> {
        let at = self.sorted.binary_search_by_key(&hpa, Route::hpa).ok()?;
        self.last = 0;
        Some(self.sorted.remove(at))
    }

    /// The route that holds `hpa`.
    #[inline]
    pub fn find(&mut self, hpa: u64) -> Option<&Route> {
        if self.sorted.get(self.last).is_some_and(|r| r.holds(hpa)) {
            return self.sorted.get(self.last);
        }
        let at = self.sorted.partition_point(|r| r.hpa() <= hpa).checked_sub(1)?;
        if !self.sorted[at].holds(hpa) {
            return None;
        }
        self.last = at;
        self.sorted.get(at)
    }

    /// Where the next route behind `hpa`, which none holds, begins.
    pub fn next_start(&self, hpa: u64) -> Option<u64> {
        self.sorted.get(self.sorted.partition_point(|r| r.hpa() <= hpa)).map(Route::hpa)
    }

    /// Whether a route holds any of the `bytes` bytes from `hpa` on, which are within the address space.
    pub fn overlap(&self, hpa: u64, bytes: u64) -> bool {
        let behind = self.sorted.partition_point(|r| r.hpa() < hpa.saturating_add(bytes));
        behind.checked_sub(1).is_some_and(|at| self.sorted[at].hpa() + self.sorted[at].decoder.size > hpa)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.sorted.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Route> {
        self.sorted.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(peer: usize, cmem: u64) -> Target {
        Target { peer, cmem, incarnation: None }
    }

    fn spread(hpa: u64, bytes: u64, ways: u32, granularity: u32) -> Route {
        let ways = Ways::try_from(ways).unwrap();
        let granularity = Granularity::try_from(granularity).unwrap();
        let targets = (0..ways.count()).map(|i| target(i as usize, 0x10_0000 * u64::from(i))).collect();
        Route { decoder: Decoder { base: hpa, size: bytes, ways, granularity }, targets }
    }

    #[test]
    fn finds_and_refuses() {
        let mut routes = Routes::default();
        routes.add(Route::direct(0x2000, 0x2000, target(1, 0x10_0000))).unwrap();
        routes.add(Route::direct(0, 0x1000, target(0, 0))).unwrap();
        let overlap = Route::direct(0x3000, 0x1000, target(0, 0));
        assert_eq!(routes.add(overlap), Err(RouteError::Overlap { hpa: 0x3000 }));
        let odd = Route::direct(0x8001, 0x1000, target(0, 0));
        assert!(matches!(routes.add(odd), Err(RouteError::Shape { .. })));
        let find = |routes: &mut Routes, hpa| {
            routes.find(hpa).map(|r| r.locate(hpa)).map(|(target, _, cmem)| (target.peer, cmem))
        };
        assert_eq!(find(&mut routes, 0x3FC0), Some((1, 0x10_1FC0)));
        assert_eq!(find(&mut routes, 0xFC0), Some((0, 0xFC0)));
        assert_eq!(find(&mut routes, 0x1000), None);
        assert_eq!(find(&mut routes, 0x4000), None);
        assert_eq!((routes.next_start(0x1000), routes.next_start(0x4000)), (Some(0x2000), None));
        assert!(routes.remove(0x2000).is_some());
        assert_eq!(find(&mut routes, 0x2000), None);
    }

    #[test]
    fn an_interleave_set_is_shared_out_evenly_or_refused() {
        let mut routes = Routes::default();
        routes.add(spread(0x10_0000, 0xC000, 3, 256)).unwrap();
        let (target, position, cmem) = routes.find(0x10_0523).unwrap().locate(0x10_0523);
        assert_eq!((target.peer, position, cmem), (2, 2, 0x20_0123));
        for (bytes, ways, granularity) in [(0x4000, 3, 256), (0x8000, 16, 256), (0x8000, 4, 16 << 10)] {
            let refused = routes.add(spread(0, bytes, ways, granularity));
            assert!(matches!(refused, Err(RouteError::Shares { .. })), "{refused:?}");
        }
        let mut few = spread(0, 0x4000, 4, 256);
        few.targets.pop();
        let ways = Ways::Four;
        assert_eq!(routes.add(few), Err(RouteError::Targets { hpa: 0, ways, targets: 3 }));
        let mut odd = spread(0, 0x4000, 4, 256);
        odd.targets[2].cmem += 64;
        assert_eq!(routes.add(odd), Err(RouteError::TargetUnaligned { hpa: 0, cmem: 0x20_0040 }));
    }
}
