//! Routes from HPA to memory node: the compute node's HDM decoders.
//!
//! ```text
//!   HPA --find--> route --decoder--> position, DPA --target at that position--> peer, CMem = its base + DPA
//!         |
//!         +-- none: `local` memory, or else the answer of a decode-miss policy
//! ```
//!
//! A region has one route per decoder, in sequence; a region of one memory node is a route of one way.

use alloc::vec;
use alloc::vec::Vec;
use cxloe_fabric::hdm::{Decoder, Granularity, Ways};

use super::location::Location;

/// The memory of one memory node in a route: one position of its interleave set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteTarget {
    /// Index of the peer in the engine.
    pub peer: usize,
    /// First CMem address of the target, a multiple of 4 KiB. From this address on, the target holds the route's size
    /// divided by its ways.
    pub cmem: u64,
    /// Incarnation of the memory node's content to which the data belongs; `None` until a session announces it.
    pub incarnation: Option<u64>,
    /// Number of the mirror of which this target is the leg to read from; `None` for a position with one leg.
    pub mirror: Option<u16>,
}

impl RouteTarget {
    /// Value of `incarnation` that no content has, for data that the manager reports as lost.
    pub const LOST: u64 = 0;

    /// Whether the target's data is lost, if the memory node's present content has incarnation `now`.
    #[inline]
    pub fn is_lost(&self, now: Option<u64>) -> bool {
        match (self.incarnation, now) {
            (Some(Self::LOST), _) => true,
            (Some(ours), Some(now)) => ours != now,
            _ => false,
        }
    }
}

/// A range of HPA and the memory nodes it is interleaved over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Range and interleaving. The base is a multiple of 4 KiB; the size is a whole number of interleave
    /// rounds, and a multiple of 4 KiB for each target.
    pub decoder: Decoder,
    /// Targets by position; their number equals the interleave ways.
    pub targets: Vec<RouteTarget>,
}

impl Route {
    /// A route without interleaving: `target` serves `bytes` from `hpa` on.
    pub fn direct(hpa: u64, bytes: u64, target: RouteTarget) -> Route {
        let decoder = Decoder { base: hpa, size: bytes, ways: Ways::One, granularity: Granularity::PAGE };
        Route { decoder, targets: vec![target] }
    }

    pub fn hpa(&self) -> u64 {
        self.decoder.base
    }

    #[inline]
    fn holds(&self, hpa: u64) -> bool {
        hpa.wrapping_sub(self.decoder.base) < self.decoder.size
    }
}

/// Reason why a route or a decode-miss policy cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The range is empty, not whole pages, or past the end of the address space.
    #[error("a stretch of {bytes:#x} bytes at HPA {hpa:#x} is not whole 4 KiB pages; align both")]
    Shape { hpa: u64, bytes: u64 },
    /// The memory nodes would not get equal numbers of whole pages and chunks.
    #[error(
        "{bytes:#x} bytes at HPA {hpa:#x} over {ways} ways of {granularity} bytes are not whole pages and turns; make the size a multiple of {ways} x 16 KiB"
    )]
    Shares { hpa: u64, bytes: u64, ways: Ways, granularity: Granularity },
    #[error("the route at HPA {hpa:#x} has {ways} ways and {targets} targets; name one target per way")]
    Targets { hpa: u64, ways: Ways, targets: usize },
    #[error("CMem {cmem:#x} of the route at HPA {hpa:#x} is not a multiple of 4 KiB; align it")]
    TargetUnaligned { hpa: u64, cmem: u64 },
    /// The local memory is smaller than the range to be served, or the offset in it is not a multiple of 64.
    #[error(
        "{bytes:#x} bytes at HPA {hpa:#x} were to be served by local memory from its byte {offset:#x} on, which has {there:#x}"
    )]
    Memory {
        hpa: u64,
        bytes: u64,
        /// Offset in the memory at which the range was to begin.
        offset: u64,
        /// Size of the memory in bytes.
        there: u64,
    },
    #[error("HPA {hpa:#x} already belongs to another region")]
    Overlap { hpa: u64 },
    #[error("no more than {0} routes are possible")]
    Full(usize),
    #[error("no more than {0} memory nodes are possible")]
    Peers(usize),
}

/// Maximum number of routes of an engine, and of decode-miss policies.
pub const ROUTES_MAX: usize = 65_536;

/// Checks a range of HPA: whole pages, not empty, within the address space.
pub(super) fn check_shape(hpa: u64, bytes: u64) -> Result<(), RouteError> {
    let page = |x: u64| x.is_multiple_of(4096);
    if bytes == 0 || !page(hpa) || !page(bytes) || hpa.checked_add(bytes).is_none() {
        return Err(RouteError::Shape { hpa, bytes });
    }
    Ok(())
}

/// All routes, in order of their HPA, not overlapping.
pub(super) struct Routes {
    sorted: Vec<Route>,
    /// Index of the route that the last lookup found, which the next lookup tries first.
    last: usize,
    /// Number of changes to `sorted` so far, plus one; see [`Location`].
    generation: u64,
    /// Number of addresses decoded so far, for tests.
    #[cfg(test)]
    pub decodes: u64,
}

impl Default for Routes {
    fn default() -> Self {
        Routes {
            sorted: Vec::new(),
            last: 0,
            generation: Location::UNDECODED.generation + 1,
            #[cfg(test)]
            decodes: 0,
        }
    }
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
        self.generation += 1;
        self.sorted.insert(at, route);
        Ok(())
    }

    pub fn remove(&mut self, hpa: u64) -> Option<Route> {
        let at = self.sorted.binary_search_by_key(&hpa, Route::hpa).ok()?;
        self.last = 0;
        self.generation += 1;
        Some(self.sorted.remove(at))
    }

    /// Returns the index of the route that contains `hpa`, if there is one.
    #[inline]
    fn find(&mut self, hpa: u64) -> Option<usize> {
        if self.sorted.get(self.last).is_some_and(|r| r.holds(hpa)) {
            return Some(self.last);
        }
        let at = self.sorted.partition_point(|r| r.hpa() <= hpa).checked_sub(1)?;
        if !self.sorted[at].holds(hpa) {
            return None;
        }
        self.last = at;
        Some(at)
    }

    /// Decodes `hpa`: finds its route, position and CMem address.
    #[inline]
    pub fn locate(&mut self, hpa: u64) -> Location {
        #[cfg(test)]
        {
            self.decodes += 1;
        }
        let unrouted = Location { generation: self.generation, ..Location::UNDECODED };
        let Some(at) = self.find(hpa) else { return unrouted };
        let Route { decoder, targets } = &self.sorted[at];
        let (position, dpa) = decoder.decode_offset(hpa.wrapping_sub(decoder.base));
        let cmem = targets[position as usize].cmem + dpa;
        Location { route: at as u32, position: position as u8, cmem, ..unrouted }
    }

    /// Whether `location` is still valid: no route was added or removed since it was decoded.
    #[inline]
    pub fn is_current(&self, location: &Location) -> bool {
        location.generation == self.generation
    }

    /// The route of a current location; `None` for an address without one.
    #[inline]
    pub fn route(&self, location: &Location) -> Option<&Route> {
        debug_assert!(self.is_current(location));
        self.sorted.get(location.route as usize)
    }

    /// Returns the location of another position and DPA in the route of a current location.
    #[inline]
    pub fn locate_beside(&self, location: &Location, position: u32, dpa: u64) -> Location {
        let target = self.route(location).and_then(|route| route.targets.get(position as usize));
        let cmem = target.map_or(0, |target| target.cmem + dpa);
        Location { position: position as u8, cmem, ..*location }
    }

    /// The target of a current location; `None` for an address without a route.
    #[inline]
    pub fn target(&self, location: &Location) -> Option<&RouteTarget> {
        self.route(location)?.targets.get(usize::from(location.position))
    }

    /// Start of the first route behind `hpa`, an address without a route.
    pub fn next_start(&self, hpa: u64) -> Option<u64> {
        self.sorted.get(self.sorted.partition_point(|r| r.hpa() <= hpa)).map(Route::hpa)
    }

    /// Whether a route contains any of the `bytes` bytes from `hpa` on. The range must be within the address
    /// space.
    pub fn overlap(&self, hpa: u64, bytes: u64) -> bool {
        let behind = self.sorted.partition_point(|r| r.hpa() < hpa.saturating_add(bytes));
        behind.checked_sub(1).is_some_and(|at| self.sorted[at].hpa() + self.sorted[at].decoder.size > hpa)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.sorted.iter()
    }

    /// Makes room for a total of `routes`, which are then added without allocation.
    pub fn reserve(&mut self, routes: usize) {
        self.sorted.reserve(routes.saturating_sub(self.sorted.len()));
    }

    /// Number of routes for which memory is reserved, including those that exist.
    pub fn room(&self) -> usize {
        self.sorted.capacity().min(ROUTES_MAX)
    }

    /// Removes the route with the highest HPA.
    pub fn pop(&mut self) -> Option<Route> {
        self.last = 0;
        self.generation += 1;
        self.sorted.pop()
    }

    /// Start of the first route at or behind `hpa`.
    pub fn first_from(&self, hpa: u64) -> Option<u64> {
        self.sorted.get(self.sorted.partition_point(|r| r.hpa() < hpa)).map(Route::hpa)
    }

    pub fn target_at(&self, hpa: u64, position: u8) -> Option<&RouteTarget> {
        let at = self.sorted.binary_search_by_key(&hpa, Route::hpa).ok()?;
        self.sorted[at].targets.get(usize::from(position))
    }

    /// Bytes of each target of the route that begins at `hpa`; 0 if there is no such route.
    pub fn bytes_of_targets(&self, hpa: u64) -> u64 {
        let at = self.sorted.binary_search_by_key(&hpa, Route::hpa);
        at.map_or(0, |at| self.sorted[at].decoder.size / self.sorted[at].targets.len().max(1) as u64)
    }

    /// Replaces the target at a position of the route that begins at `hpa`. All locations become stale.
    pub fn set_target(&mut self, hpa: u64, position: u8, target: RouteTarget) {
        let Ok(at) = self.sorted.binary_search_by_key(&hpa, Route::hpa) else { return };
        if let Some(known) = self.sorted[at].targets.get_mut(usize::from(position)) {
            *known = target;
            self.generation += 1;
        }
    }

    /// Decoders of all routes, each with its targets by position. Only values that no location contains, such
    /// as the incarnation, may be changed.
    pub fn targets_mut(&mut self) -> impl Iterator<Item = (&Decoder, &mut [RouteTarget])> {
        self.sorted.iter_mut().map(|route| (&route.decoder, &mut route.targets[..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(peer: usize, cmem: u64) -> RouteTarget {
        RouteTarget { peer, cmem, incarnation: None, mirror: None }
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
            let location = routes.locate(hpa);
            routes.target(&location).map(|target| (target.peer, location.cmem))
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
        let location = routes.locate(0x10_0523);
        assert_eq!((location.position, location.cmem), (2, 0x20_0123));
        assert_eq!(routes.target(&location).unwrap().peer, 2);
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
    #[test]
    fn a_location_is_current_until_a_route_is_added_or_removed() {
        let mut routes = Routes::default();
        assert!(!routes.is_current(&Location::UNDECODED));
        let unrouted = routes.locate(0x2000);
        assert!(routes.is_current(&unrouted) && routes.target(&unrouted).is_none());
        routes.add(Route::direct(0x2000, 0x1000, target(1, 0x5000))).unwrap();
        assert!(!routes.is_current(&unrouted));
        let routed = routes.locate(0x2040);
        assert_eq!((routes.target(&routed).unwrap().peer, routed.cmem), (1, 0x5040));
        routes.targets_mut().for_each(|(_, targets)| targets[0].incarnation = Some(7));
        assert!(routes.is_current(&routed));
        assert_eq!(routes.target(&routed).unwrap().incarnation, Some(7), "it is not kept in the location");
        routes.add(Route::direct(0, 0x1000, target(0, 0))).unwrap();
        assert!(!routes.is_current(&routed));
        let routed = routes.locate(0x2040);
        routes.remove(0).unwrap();
        assert!(!routes.is_current(&routed));
        let routed = routes.locate(0x2040);
        routes.pop().unwrap();
        assert!(!routes.is_current(&routed));
        let unrouted = routes.locate(0x2040);
        assert!(routes.target(&unrouted).is_none());
        assert!(routes.add(Route::direct(1, 1, target(0, 0))).is_err());
        let unrouted = routes.locate(0);
        assert!(routes.remove(0x8000).is_none() && routes.is_current(&unrouted), "nothing changed");
    }
}
