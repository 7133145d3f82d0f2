//! From HPA to memory node: which peer holds an address, and at which CMem address.

/// A stretch of HPA served by one memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// First HPA, a multiple of 4 KiB.
    pub hpa: u64,
    /// Length in bytes, a multiple of 4 KiB.
    pub bytes: u64,
    /// Which peer of the engine.
    pub peer: usize,
    /// The CMem address of the first byte.
    pub cmem: u64,
    /// The incarnation of the memory node's content that the data belongs to; `None` until a session tells.
    pub incarnation: Option<u64>,
}

impl Route {
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

/// Why a route cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Not whole pages, nothing, or past the end of the address space.
    #[error("a route of {bytes:#x} bytes at HPA {hpa:#x} is not a stretch of whole 4 KiB pages")]
    Shape {
        /// First HPA.
        hpa: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// Another route holds some of these addresses.
    #[error("HPA {hpa:#x} already belongs to another region")]
    Overlap {
        /// First HPA.
        hpa: u64,
    },
    /// There are as many as there may be.
    #[error("no more than {0} routes are possible")]
    Full(usize),
}

/// Routes an engine can hold.
pub const ROUTES_MAX: usize = 65_536;

/// All routes, in order of their HPA, none overlapping.
#[derive(Default)]
pub(super) struct Routes {
    sorted: Vec<Route>,
    /// The route of the last lookup.
    last: usize,
}

impl Routes {
    pub fn add(&mut self, route: Route) -> Result<(), RouteError> {
        let Route { hpa, bytes, cmem, .. } = route;
        let page = |x: u64| x.is_multiple_of(4096);
        let end = hpa.checked_add(bytes);
        if bytes == 0 || !page(hpa) || !page(bytes) || !page(cmem) || end.is_none() {
            return Err(RouteError::Shape { hpa, bytes });
        }
        if self.sorted.len() == ROUTES_MAX {
            return Err(RouteError::Full(ROUTES_MAX));
        }
        let at = self.sorted.partition_point(|r| r.hpa < hpa);
        let clear_before = at == 0 || self.sorted[at - 1].hpa + self.sorted[at - 1].bytes <= hpa;
        let clear_behind = at == self.sorted.len() || hpa + bytes <= self.sorted[at].hpa;
        if !clear_before || !clear_behind {
            return Err(RouteError::Overlap { hpa });
        }
        self.sorted.insert(at, route);
        Ok(())
    }

    /// Removes the route that starts at `hpa`.
    pub fn remove(&mut self, hpa: u64) -> Option<Route> {
        let at = self.sorted.binary_search_by_key(&hpa, |r| r.hpa).ok()?;
        self.last = 0;
        Some(self.sorted.remove(at))
    }

    /// The route that holds `hpa`.
    #[inline]
    pub fn find(&mut self, hpa: u64) -> Option<&Route> {
        if self.sorted.get(self.last).is_some_and(|r| hpa.wrapping_sub(r.hpa) < r.bytes) {
            return self.sorted.get(self.last);
        }
        let at = self.sorted.partition_point(|r| r.hpa <= hpa).checked_sub(1)?;
        let r = self.sorted[at];
        if hpa - r.hpa >= r.bytes {
            return None;
        }
        self.last = at;
        self.sorted.get(at)
    }

    /// The routes to one peer.
    pub fn of_peer_mut(&mut self, peer: usize) -> impl Iterator<Item = &mut Route> {
        self.sorted.iter_mut().filter(move |r| r.peer == peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_and_refuses() {
        let mut routes = Routes::default();
        routes
            .add(Route { hpa: 0x2000, bytes: 0x2000, peer: 1, cmem: 0x10_0000, incarnation: None })
            .unwrap();
        routes.add(Route { hpa: 0, bytes: 0x1000, peer: 0, cmem: 0, incarnation: None }).unwrap();
        let overlap = Route { hpa: 0x3000, bytes: 0x1000, peer: 0, cmem: 0, incarnation: None };
        assert_eq!(routes.add(overlap), Err(RouteError::Overlap { hpa: 0x3000 }));
        let odd = Route { hpa: 0x8001, bytes: 0x1000, peer: 0, cmem: 0, incarnation: None };
        assert!(matches!(routes.add(odd), Err(RouteError::Shape { .. })));
        assert_eq!(routes.find(0x3FC0).map(|r| (r.peer, r.cmem)), Some((1, 0x10_0000)));
        assert_eq!(routes.find(0xFC0).map(|r| r.peer), Some(0));
        assert_eq!(routes.find(0x1000), None);
        assert_eq!(routes.find(0x4000), None);
        assert!(routes.remove(0x2000).is_some());
        assert_eq!(routes.find(0x2000), None);
    }
}
