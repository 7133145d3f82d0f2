//! Raw links with frames inside UDP, under IP headers built in user space. They are as fast as the raw link below, work
//! over any network that carries IP, and NICs spread them over queues like other UDP traffic. The bytes on the wire
//! equal those of the [`udp`](crate::udp) link, so one end may use this link and the other a `udp` link.
//!
//! ```text
//!   slot, commit --> Sender: header of the peer in front --> raw link (packet, xdp)
//!   receive <------- whole datagram? to us? from the address of this MAC? <-- raw link
//!
//!   flush, now and then --> NextHops: the kernel's routes and neighbours (never from frames)
//! ```
//!
//! | file | content |
//! |---|---|
//! | `header` | the outer headers, built and parsed |
//! | `next_hop` | the station on the network segment that packets for an address are sent to |

mod header;
mod next_hop;

use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use cxloe_wire::Transmit;
use cxloe_wire::frame::{Mac, source};

use crate::link_detail::LinkDetail;
use crate::outer::{Peer, Peers};
use crate::packet::PacketLink;
use crate::udp::{FRAME_MIN, frame_limit, station};
use crate::xdp::XdpLink;
use crate::{Backend, ETHERNET_HEADER, Encap, Link, LinkConfig, LinkCounters, LinkError, LinkInfo, OnFrame};
use header::{ETHERTYPE_IPV4, OUTER_LEN, Outer, parse};
use next_hop::{NextHop, NextHops};

/// Interval between look-ups of unknown next hops while frames wait for them.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Interval between look-ups of known next hops, because a gateway may have been replaced.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// Number of flushes between two readings of the clock, which would cost too much in each flush.
const FLUSHES: u32 = 1024;
/// Minimum interval between log messages about the network.
const TELL_INTERVAL: Duration = Duration::from_secs(5);

/// Outer address of a node, and the headers of packets to it.
struct Route {
    mac: Mac,
    address: SocketAddrV4,
    /// Outer headers; `None` while the next hop is unknown.
    outer: Option<Outer>,
}

/// State shared by the transmit sides: the routes, and the slot currently lent to the caller.
struct Sender {
    /// Sorted by MAC, for a binary search.
    routes: Vec<Route>,
    /// Index of the route used last. It is tried first, because the next frame probably goes to the same peer.
    last: usize,
    lent: usize,
    max_frame: usize,
    /// Peer whose path has an MTU too small for the longest frame, and that MTU.
    narrow: Option<(SocketAddrV4, usize)>,
    /// True if frames were dropped because their next hop is unknown.
    unresolved: bool,
    unknown: u64,
    frames: u64,
    bytes: u64,
}

impl Sender {
    #[inline]
    fn find(&mut self, mac: Mac) -> Option<usize> {
        if self.routes.get(self.last).is_none_or(|route| route.mac != mac) {
            self.last = self.routes.binary_search_by_key(&mac, |route| route.mac).ok()?;
        }
        Some(self.last)
    }

    #[inline]
    fn slot<'a>(&mut self, inner: &'a mut dyn Transmit, len: usize) -> Option<&'a mut [u8]> {
        if len > self.max_frame || len < ETHERNET_HEADER {
            return None;
        }
        let slot = inner.slot(OUTER_LEN + len)?;
        self.lent = len;
        slot.get_mut(OUTER_LEN..)
    }

    #[inline]
    fn commit(&mut self, inner: &mut dyn Transmit) {
        let len = std::mem::take(&mut self.lent);
        if len == 0 {
            return;
        }
        // The link below lends the same slot again, because it was not committed.
        let Some(slot) = inner.slot(OUTER_LEN + len) else { return };
        let Some(mac) = slot.get(OUTER_LEN..).and_then(|frame| frame.first_chunk()).map(|mac| Mac(*mac))
        else {
            return;
        };
        let route = self.find(mac).and_then(|at| self.routes.get(at));
        let Some(outer) = route.and_then(|route| route.outer.as_ref()) else {
            self.unresolved |= route.is_some();
            self.unknown += 1;
            return;
        };
        outer.write(len, slot);
        inner.commit();
        self.frames += 1;
        self.bytes += len as u64;
    }
}

/// Transmit side for frames sent during `receive`, which get outer headers too.
struct Answers<'a> {
    sender: &'a mut Sender,
    inner: &'a mut dyn Transmit,
}

impl Transmit for Answers<'_> {
    #[inline]
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        self.sender.slot(self.inner, len)
    }

    #[inline]
    fn hasten(&mut self) {
        self.inner.hasten();
    }

    #[inline]
    fn commit(&mut self) {
        self.sender.commit(self.inner);
    }
}

/// Link that sends its frames inside UDP over a raw link.
pub struct EncapLink {
    inner: Box<dyn Link>,
    info: LinkInfo,
    own: SocketAddrV4,
    /// MAC address of the interface: the source of outer frames.
    interface_mac: Mac,
    ethertype: [u8; 2],
    priority: Option<u8>,
    peers: Peers,
    version: u32,
    sender: Sender,
    next_hops: NextHops,
    looked_up: Instant,
    flushes: u32,
    told: Option<Instant>,
    counters: LinkCounters,
}

impl EncapLink {
    /// Opens the raw link of `config`, with the outer address of `config.udp`.
    ///
    /// # Errors
    /// The raw link's errors; the interface has no IPv4 address, or another process uses the address.
    pub fn open(config: &LinkConfig, backend: Backend) -> Result<EncapLink, LinkError> {
        let (interface, own) = station(config)?;
        let unsupported = |why: String| LinkError::Unsupported {
            backend: "--encap udp",
            interface: interface.name.clone(),
            why,
        };
        let SocketAddr::V4(own) = own else {
            return Err(unsupported(format!("{own} is an IPv6 address; `--link udp` takes one")));
        };
        // Each shard (link of one queue) has its own port, but all shards have the address of the interface.
        let count = config.addresses(interface.mac).len() as u16;
        let Some(first) =
            own.port().checked_sub(config.shard().into()).filter(|first| first.checked_add(count).is_some())
        else {
            return Err(unsupported(format!("{count} ports up to {} are none in a row", own.port())));
        };
        let raw = LinkConfig {
            ethertype: ETHERTYPE_IPV4,
            priority: None,
            sharded: false,
            queues: config.sharers(),
            encap: Encap::None,
            ..config.clone()
        };
        let inner: Box<dyn Link> = match backend {
            Backend::Xdp => Box::new(XdpLink::open_at(&raw, Some((first, count)))?),
            Backend::Packet => Box::new(PacketLink::open_at(&raw, Some(own.port()))?),
            _ => return Err(unsupported(format!("the {backend} link carries none; take packet or xdp"))),
        };
        let next_hops = NextHops::open(&interface.name, own, config.sharers() > 1).map_err(|source| {
            match source.raw_os_error() {
                Some(libc::EADDRINUSE) => {
                    LinkError::AddressInUse { interface: interface.name.clone(), address: own.into() }
                }
                _ => LinkError::Io {
                    what: "open sockets for the way to peers",
                    interface: interface.name.clone(),
                    source,
                },
            }
        })?;
        let room = inner.info().max_frame.saturating_sub(OUTER_LEN);
        let max_frame = frame_limit(interface.mtu, own.into()).min(room);
        let info = LinkInfo {
            detail: format!("{}; inside UDP from {own}", inner.info().detail),
            mac: interface.mac,
            mtu: max_frame - ETHERNET_HEADER,
            max_frame,
            ..inner.info().clone()
        };
        let sender = Sender {
            routes: Vec::new(),
            last: 0,
            lent: 0,
            max_frame,
            narrow: None,
            unresolved: false,
            unknown: 0,
            frames: 0,
            bytes: 0,
        };
        let mut link = EncapLink {
            interface_mac: inner.info().mac,
            inner,
            info,
            own,
            ethertype: config.ethertype.to_be_bytes(),
            priority: config.priority,
            peers: config.udp.peers.clone(),
            version: 0,
            sender,
            next_hops,
            looked_up: Instant::now(),
            flushes: 0,
            told: None,
            counters: LinkCounters::default(),
        };
        link.reload();
        if let Some((peer, path)) = link.sender.narrow.take() {
            let limit = frame_limit(path, peer.into());
            tracing::warn!(
                %peer, path_mtu = path, interface = %interface.name, interface_mtu = interface.mtu,
                "the path to a peer is narrower than the interface: frames are kept to {limit} bytes for all"
            );
            if limit < FRAME_MIN {
                return Err(LinkError::MtuTooSmall {
                    interface: interface.name,
                    mtu: path,
                    needed: FRAME_MIN + 28,
                });
            }
            link.sender.max_frame = limit;
            (link.info.max_frame, link.info.mtu) = (limit, limit - ETHERNET_HEADER);
        }
        Ok(link)
    }

    /// Copies the table of peers after a change.
    #[cold]
    fn reload(&mut self) {
        self.version = self.peers.version();
        let route = |Peer { mac, address }: Peer| match address {
            SocketAddr::V4(address) => Some(Route { mac, address, outer: None }),
            SocketAddr::V6(_) => None,
        };
        self.sender.routes = self.peers.list().into_iter().filter_map(route).collect();
        self.sender.last = 0;
        self.look_up(true);
    }

    /// Looks up the next hops of all nodes, or only of the nodes whose next hop is unknown.
    #[cold]
    fn look_up(&mut self, all: bool) {
        self.looked_up = Instant::now();
        self.sender.unresolved = false;
        let (own, interface, priority) = (self.own, self.interface_mac, self.priority);
        let mut why = None;
        // Nodes with the same IP address, such as shards, have the same next hop, so it is looked up only once.
        let mut known: Option<(SocketAddrV4, Result<NextHop, String>)> = None;
        for route in self.sender.routes.iter_mut().filter(|route| all || route.outer.is_none()) {
            let same = known.take().filter(|(address, _)| address.ip() == route.address.ip());
            let (_, next) =
                known.insert(same.unwrap_or_else(|| (route.address, self.next_hops.find(route.address))));
            match next {
                Ok(NextHop { mac, mtu }) => {
                    route.outer = Some(Outer::new(interface, *mac, own, route.address, priority));
                    let least = self.sender.narrow.map_or(usize::MAX, |(_, mtu)| mtu);
                    if let Some(mtu) = mtu.filter(|mtu| *mtu < least)
                        && frame_limit(mtu, own.into()) < self.sender.max_frame
                    {
                        self.sender.narrow = Some((route.address, mtu));
                    }
                }
                Err(error) => why = Some(format!("{} at {}: {error}", route.mac, route.address)),
            }
        }
        if let Some(why) = why
            && self.told.is_none_or(|told| told.elapsed() > TELL_INTERVAL)
            && self.sender.unknown > 0
        {
            self.told = Some(Instant::now());
            tracing::warn!(lost = self.sender.unknown, "no route to a peer: {why}");
        }
    }

    /// Error for a path to a peer with an MTU too small for the longest frame.
    #[cold]
    fn too_long(&self, peer: SocketAddrV4, path: usize) -> LinkError {
        LinkError::PathMtu {
            interface: self.info.interface.clone(),
            mtu: self.inner.info().mtu,
            peer: peer.into(),
            path,
            packet: self.sender.max_frame + 28,
        }
    }

    /// Makes the look-ups that are due. It reads the clock, so it is called only every [`FLUSHES`] flushes,
    /// or while next hops are unknown.
    #[cold]
    fn refresh_routes(&mut self) {
        self.flushes = 0;
        let since = self.looked_up.elapsed();
        if self.sender.unresolved && since >= RETRY_INTERVAL {
            self.look_up(false);
        } else if since >= REFRESH_INTERVAL {
            self.look_up(true);
        }
    }
}

impl LinkDetail for EncapLink {
    fn detail(&mut self) -> &mut String {
        &mut self.info.detail
    }
}

impl Transmit for EncapLink {
    #[inline]
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        self.sender.slot(self.inner.transmit(), len)
    }

    #[inline]
    fn hasten(&mut self) {
        self.inner.transmit().hasten();
    }

    #[inline]
    fn commit(&mut self) {
        self.sender.commit(self.inner.transmit());
    }
}

impl Link for EncapLink {
    fn info(&self) -> &LinkInfo {
        &self.info
    }

    #[inline]
    fn receive(&mut self, budget: usize, on_frame: &mut OnFrame<'_>) -> Result<usize, LinkError> {
        if self.peers.version() != self.version {
            self.reload();
        }
        let EncapLink { inner, sender, counters, info, own, ethertype, .. } = self;
        let mut handed = 0;
        inner.receive(budget, &mut |outer, tx| {
            let Some(datagram) = parse(outer).filter(|datagram| datagram.to == *own) else {
                counters.rx_foreign += 1;
                return;
            };
            let Some(frame) = outer.get_mut(datagram.inner) else { return };
            let ours =
                frame.len() >= ETHERNET_HEADER && frame[..6] == info.mac.0 && frame[12..14] == *ethertype;
            let Some(mac) = source(frame).filter(|_| ours) else {
                counters.rx_foreign += 1;
                return;
            };
            // Only the registered outer address may send for this source MAC, so that no node can pose as
            // another.
            let speaks = sender.find(mac).is_some_and(|at| sender.routes[at].address == datagram.from);
            if !speaks {
                counters.rx_forged += 1;
                return;
            }
            handed += 1;
            counters.rx_frames += 1;
            counters.rx_bytes += frame.len() as u64;
            on_frame(frame, &mut Answers { sender, inner: tx });
        })
    }

    fn holds(&mut self, count: usize) -> bool {
        self.inner.holds(count)
    }

    fn transmit(&mut self) -> &mut dyn Transmit {
        self
    }

    #[inline]
    fn flush(&mut self) -> Result<(), LinkError> {
        self.flushes += 1;
        if self.sender.unresolved || self.flushes >= FLUSHES {
            self.refresh_routes();
        }
        if let Some((peer, path)) = self.sender.narrow.take() {
            return Err(self.too_long(peer, path));
        }
        self.inner.flush()
    }

    fn has_unsent(&mut self) -> bool {
        self.inner.has_unsent()
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        self.inner.wait(timeout)
    }

    fn readiness(&self) -> Option<RawFd> {
        self.inner.readiness()
    }

    fn counters(&mut self) -> LinkCounters {
        let inner = self.inner.counters();
        LinkCounters {
            tx_frames: self.sender.frames,
            tx_bytes: self.sender.bytes,
            tx_unknown: self.sender.unknown,
            rx_frames: self.counters.rx_frames,
            rx_bytes: self.counters.rx_bytes,
            rx_foreign: self.counters.rx_foreign,
            rx_forged: self.counters.rx_forged,
            ..inner
        }
    }
}
