//! A link's own copy of the table of peers, with addresses in the kernel's form, so that look-ups need no
//! lock.

use std::net::SocketAddr;

use cxloe_wire::frame::Mac;

use super::socket::RawAddress;
use crate::outer::{Peer, Peers};

#[derive(Clone, Copy)]
pub(super) struct Route {
    pub mac: Mac,
    pub address: SocketAddr,
    pub raw: RawAddress,
}

pub(super) struct Routes {
    table: Peers,
    version: u32,
    /// Sorted by MAC, for a binary search.
    routes: Vec<Route>,
    /// Index of the route used last. It is tried first, because the next frame probably goes to the same peer.
    last: usize,
}

impl Routes {
    pub fn new(table: &Peers) -> Routes {
        let mut routes = Routes { table: table.clone(), version: 0, routes: Vec::new(), last: 0 };
        routes.reload();
        routes
    }

    /// Copies the table if it has changed since the last call.
    #[inline]
    pub fn follow(&mut self) {
        if self.table.version() != self.version {
            self.reload();
        }
    }

    #[cold]
    fn reload(&mut self) {
        self.version = self.table.version();
        let route = |Peer { mac, address }: Peer| Route { mac, address, raw: RawAddress::from(address) };
        self.routes = self.table.list().into_iter().map(route).collect();
        self.last = 0;
    }

    #[inline]
    pub fn to(&mut self, mac: Mac) -> Option<&Route> {
        if self.routes.get(self.last).is_none_or(|route| route.mac != mac) {
            self.last = self.routes.binary_search_by_key(&mac, |route| route.mac).ok()?;
        }
        self.routes.get(self.last)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter()
    }
}
