//! The `udp` link: opening, the checks of each frame, and errors with their remedies.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use cxloe_wire::Transmit;
use cxloe_wire::frame::{Mac, source};

use super::address::station;
use super::mtu::{FRAME_MIN, frame_limit, headers, path_mtu};
use super::receive::{MESSAGES, Receiver};
use super::routes::{Route, Routes};
use super::socket;
use super::transmit::{SendResult, Transmitter};
use crate::interface::Interface;
use crate::link_detail::LinkDetail;
use crate::outer::UdpAddress;
use crate::socket::poll;
use crate::{ETHERNET_HEADER, Link, LinkConfig, LinkCounters, LinkError, LinkInfo, OnFrame};

const NEEDS: &str =
    "a firewall or a security module of this machine forbids it: let UDP at this port through";

/// Minimum interval between log messages about the network; the counters include every frame.
const TELL_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of system calls in one `receive`. A further call is made only if the one before filled all buffers.
const FILLS_MAX: u32 = 4;

/// Link over a UDP socket, which needs no rights.
pub struct UdpLink {
    info: LinkInfo,
    interface: Interface,
    own: SocketAddr,
    ethertype: [u8; 2],
    socket: OwnedFd,
    rx: Receiver,
    pub(super) tx: Transmitter,
    counters: LinkCounters,
    told: Option<Instant>,
}

impl UdpLink {
    /// Opens a socket at the address of `config.udp` for frames of `config.ethertype`. Needs no rights.
    ///
    /// # Errors
    /// The interface does not exist or has no address, the address is in use, or the MTU is too small for a
    /// line.
    pub fn open(config: &LinkConfig) -> Result<UdpLink, LinkError> {
        let (interface, own) = station(config)?;
        let fail = |what| {
            let interface = interface.clone();
            move |e| interface.error(what, NEEDS, e)
        };
        let socket = socket::new(own).map_err(fail("open a UDP socket"))?;
        let able = socket::prepare(&socket, own, config.priority, config.sharers() > 1)
            .map_err(fail("set up a UDP socket"))?;
        socket::bind(&socket, own).map_err(|e| match e.raw_os_error() {
            Some(libc::EADDRINUSE) => {
                LinkError::AddressInUse { interface: interface.name.clone(), address: own }
            }
            _ => fail("bind a UDP socket to its address")(e),
        })?;
        let routes = Routes::new(&config.udp.peers);
        let mut max_frame = frame_limit(interface.mtu, own);
        for Route { mac, address, .. } in
            routes.iter().filter(|route| route.address.is_ipv4() == own.is_ipv4())
        {
            // A peer without a route has no known path MTU, so it does not limit the frames.
            let Ok(mtu) = path_mtu(*address) else { continue };
            let limit = frame_limit(mtu, own);
            if limit < max_frame && limit >= FRAME_MIN {
                tracing::warn!(
                    peer = %mac, %address, path_mtu = mtu, interface = %interface.name, interface_mtu = interface.mtu,
                    "the path to a peer is narrower than the interface: frames are kept to {limit} bytes for all"
                );
                max_frame = limit;
            }
        }
        if max_frame < FRAME_MIN {
            return Err(LinkError::MtuTooSmall {
                interface: interface.name,
                mtu: interface.mtu,
                needed: FRAME_MIN + headers(own),
            });
        }
        let yes = |able, word| if able { word } else { "" };
        let info = LinkInfo {
            backend: "udp",
            detail: format!(
                "{own}{}{}, receive queue of {} KiB",
                yes(able.segments, ", UDP_SEGMENT"),
                yes(able.joins, ", UDP_GRO"),
                able.receive_queue >> 10
            ),
            interface: interface.name.clone(),
            mac: interface.mac,
            mtu: max_frame - ETHERNET_HEADER,
            max_frame,
        };
        Ok(UdpLink {
            info,
            own,
            ethertype: config.ethertype.to_be_bytes(),
            socket,
            rx: Receiver::new(),
            tx: Transmitter::new(routes, max_frame, able.segments),
            counters: LinkCounters::default(),
            interface,
            told: None,
        })
    }

    /// Outer address of the link, which the node registers with the manager.
    pub fn address(&self) -> UdpAddress {
        UdpAddress { ip: Some(self.own.ip()), port: self.own.port() }
    }

    /// Whether the minimum interval since the last log message has passed.
    fn may_log(&mut self) -> bool {
        let due = self.told.is_none_or(|told| told.elapsed() > TELL_INTERVAL);
        if due {
            self.told = Some(Instant::now());
        }
        due
    }

    /// Logs that frames were not sent because their destination MAC has no registered address.
    #[cold]
    fn log_unknown(&mut self, mac: Mac) {
        if self.may_log() {
            let error = LinkError::NoPeerAddress(mac);
            tracing::warn!(lost = self.tx.unknown_count, "{error}");
        }
    }

    #[cold]
    fn log_lost(&mut self, error: std::io::Error) {
        if self.may_log() {
            tracing::warn!(%error, own = %self.own, lost = self.tx.errors, "frames cannot be sent");
        }
    }

    /// Error for a frame of `frame` bytes that is too long for the path to a peer.
    #[cold]
    fn too_long(&mut self, route: &Route, frame: usize) -> LinkError {
        LinkError::PathMtu {
            interface: self.info.interface.clone(),
            mtu: self.interface.mtu,
            peer: route.address,
            path: path_mtu(route.address).unwrap_or(0),
            packet: frame + headers(self.own),
        }
    }
}

impl LinkDetail for UdpLink {
    fn detail(&mut self) -> &mut String {
        &mut self.info.detail
    }
}

impl Link for UdpLink {
    fn info(&self) -> &LinkInfo {
        &self.info
    }

    /// Frames that were dropped do not count in the result, so that 0 means an empty queue. The number of system calls
    /// is limited instead.
    #[inline]
    fn receive(&mut self, budget: usize, on_frame: &mut OnFrame<'_>) -> Result<usize, LinkError> {
        self.tx.routes.follow();
        let (mut handed, mut fills) = (0, FILLS_MAX);
        while handed < budget {
            let Some((frame, from)) = self.rx.next() else {
                if fills == 0 {
                    break;
                }
                let filled = self.rx.fill(&self.socket);
                let filled = filled.map_err(|e| self.interface.error("receive datagrams", NEEDS, e))?;
                fills = if filled == MESSAGES { fills - 1 } else { 0 };
                continue;
            };
            let ours = frame.len() >= ETHERNET_HEADER
                && frame[..6] == self.info.mac.0
                && frame[12..14] == self.ethertype;
            let Some(mac) = source(frame).filter(|_| ours) else {
                self.counters.rx_foreign += 1;
                continue;
            };
            // Only the registered outer address may send for this source MAC, so that no node can pose as
            // another.
            if self.tx.routes.to(mac).is_none_or(|route| Some(route.address) != from) {
                self.counters.rx_forged += 1;
                continue;
            }
            handed += 1;
            self.counters.rx_bytes += frame.len() as u64;
            on_frame(frame, &mut self.tx);
        }
        self.counters.rx_frames += handed as u64;
        Ok(handed)
    }

    fn holds(&mut self, count: usize) -> bool {
        self.rx.waiting(count) >= count
    }

    fn transmit(&mut self) -> &mut dyn Transmit {
        &mut self.tx
    }

    #[inline]
    fn flush(&mut self) -> Result<(), LinkError> {
        if let Some(mac) = self.tx.unknown.take() {
            self.log_unknown(mac);
        }
        if self.tx.is_empty() {
            return Ok(());
        }
        match self.tx.send(&self.socket) {
            SendResult::All | SendResult::Waits => Ok(()),
            SendResult::TooLong(route, frame) => Err(self.too_long(&route, frame)),
            SendResult::Lost(error) => {
                self.log_lost(error);
                Ok(())
            }
        }
    }

    fn has_unsent(&mut self) -> bool {
        !self.tx.is_empty()
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        let out = if self.tx.is_empty() { 0 } else { libc::POLLOUT };
        poll(&self.socket, libc::POLLIN | out, timeout)
            .map_err(|e| self.interface.error("wait for datagrams", NEEDS, e))
    }

    fn readiness(&self) -> Option<RawFd> {
        Some(self.socket.as_raw_fd())
    }

    fn counters(&mut self) -> LinkCounters {
        LinkCounters {
            tx_frames: self.tx.frames,
            tx_bytes: self.tx.bytes,
            tx_full: self.tx.full,
            tx_errors: self.tx.errors,
            tx_unknown: self.tx.unknown_count,
            rx_dropped: socket::dropped(&self.socket),
            rx_foreign: self.counters.rx_foreign + self.rx.cut,
            ..self.counters
        }
    }
}
