//! AF_PACKET: rings of frames shared with the kernel (TPACKET_V2), the link that works everywhere.
//!
//! The kernel copies each arriving frame into the next slot of the receive ring and changes the slot's status
//! word. A spinning receiver sees that without a system call (`receive`). A frame to be sent is written into
//! a slot of the transmit ring. Up to 64 frames are sent by plain `send` or `sendmmsg`; if there are more,
//! one `sendto` sends all slots that are marked (`transmit`). TPACKET_V3 is not used: it passes on whole
//! blocks, or waits for a timer.

mod filter;
mod receive;
mod transmit;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};

use filter::{accept_address, attach_filter, join_fanout};
pub(super) use receive::RxRing;
use transmit::TxRing;

use super::interface::{ETHERNET_HEADER, Interface};
use super::link_detail::LinkDetail;
use super::socket::{self, get_option, owned, poll_in, set_option};
use super::{Link, LinkConfig, LinkCounters, LinkError, LinkInfo, OnFrame};
use cxloe_wire::Transmit;
use cxloe_wire::frame::vlan;
use cxloe_wire::session::HelloSieve;

pub(super) const NEEDS: &str = "raw sockets need CAP_NET_RAW: run as root, give the binary the capability with \
    `setcap cap_net_raw+ep FILE`, or use a user namespace of your own";

/// Number of slots of the receive ring: room for two windows, so that frames are lost only if the receiver stops, but
/// few enough that the ring stays in the caches.
const RX_SLOTS: usize = 1024;
const TX_SLOTS: usize = 512;
/// Number of bytes in a receive slot before the frame: header, address, alignment, a spare tag.
const RX_OVERHEAD: usize = 128;

/// Link over an AF_PACKET socket with mapped rings.
pub struct PacketLink {
    info: LinkInfo,
    interface: Interface,
    tx: TxRing,
    // Fields drop in this order: the ring is unmapped before the socket closes.
    rx: RxRing,
    socket: OwnedFd,
    /// True if frames are sent directly on Ethernet, not inside datagrams.
    bare: bool,
    counters: LinkCounters,
}

impl PacketLink {
    /// Opens a socket on `config.interface` for frames of `config.ethertype`.
    pub fn open(config: &LinkConfig) -> Result<PacketLink, LinkError> {
        PacketLink::open_at(config, None)
    }

    /// [`open`](Self::open), but if a port is given, only for IPv4 datagrams to that port, spread over queues
    /// by their inner source address.
    pub(crate) fn open_at(config: &LinkConfig, port: Option<u16>) -> Result<PacketLink, LinkError> {
        let mut interface = Interface::find(&config.interface)?;
        interface.mac = interface.mac.shard(config.shard());
        let fail = |what| {
            let interface = interface.clone();
            move |e| interface.error(what, NEEDS, e)
        };
        let socket = open_socket().map_err(fail("open a packet socket"))?;
        attach_filter(&socket, &interface, port, None).map_err(fail("attach the address filter"))?;
        let slot = (interface.mtu + ETHERNET_HEADER + RX_OVERHEAD).next_power_of_two().max(2048);
        receive_ring(&socket, slot, RX_SLOTS).map_err(fail("make the receive ring"))?;
        let rx = map_ring(&socket, slot * RX_SLOTS).map_err(fail("map the receive ring"))?;

        // A socket with a transmit ring sends only from the ring, so plain `send` needs a second socket.
        let sender = open_socket().map_err(fail("open a packet socket for sending"))?;
        let bypass = config.qdisc_bypass && [&socket, &sender].into_iter().all(bypass_qdisc);
        // With this option, the kernel discards a frame that it refuses, for example because the MTU has just shrunk.
        // Without the option, the frame would stay at the head of the transmit ring and block all others.
        let _ = set_option(&sender, libc::SOL_PACKET, PACKET_LOSS, &1);
        set_option(&sender, libc::SOL_PACKET, libc::PACKET_TX_RING, &ring_request(slot, TX_SLOTS))
            .map_err(fail("make the transmit ring"))?;
        let tx = map_ring(&sender, slot * TX_SLOTS).map_err(fail("map the transmit ring"))?;
        // The socket is bound to no EtherType, so that it receives no frames.
        bind(&sender, 0, interface.index).map_err(fail("bind a packet socket for sending"))?;

        bind(&socket, config.ethertype, interface.index).map_err(fail("bind a packet socket"))?;
        let plain = socket.try_clone().map_err(fail("share a packet socket"))?;
        if config.shard() > 0 {
            accept_address(&socket, &interface).map_err(fail("accept frames for the address of a shard"))?;
        }
        if config.sharers() > 1 {
            join_fanout(&socket, config, &interface, port.is_some())
                .map_err(fail("join the fan-out group"))?;
        }

        let max_frame = interface.mtu + ETHERNET_HEADER;
        let info = LinkInfo {
            backend: "packet",
            detail: format!(
                "TPACKET_V2, {RX_SLOTS}+{TX_SLOTS} slots of {slot} bytes{}",
                if bypass { ", queueing discipline bypassed" } else { "" }
            ),
            interface: interface.name.clone(),
            mac: interface.mac,
            mtu: interface.mtu,
            max_frame,
        };
        Ok(PacketLink {
            info,
            interface,
            rx: RxRing::new(rx, slot, RX_SLOTS),
            tx: TxRing::new((tx, sender), plain, (slot, TX_SLOTS), max_frame, config.priority),
            socket,
            bare: port.is_none(),
            counters: LinkCounters::default(),
        })
    }
}

impl LinkDetail for PacketLink {
    fn detail(&mut self) -> &mut String {
        &mut self.info.detail
    }
}

impl Link for PacketLink {
    fn info(&self) -> &LinkInfo {
        &self.info
    }

    #[inline]
    fn receive(&mut self, budget: usize, on_frame: &mut OnFrame<'_>) -> Result<usize, LinkError> {
        let mut received = 0;
        while received < budget {
            let Some(frame) = self.rx.front() else { break };
            if let Some(frame) = frame {
                self.counters.rx_frames += 1;
                self.counters.rx_bytes += frame.len() as u64;
                on_frame(vlan::strip(frame), &mut self.tx);
            }
            self.rx.release();
            received += 1;
        }
        Ok(received)
    }

    #[inline]
    fn peek(&mut self, budget: usize, look: &mut dyn FnMut(&[u8])) {
        for ahead in 0..budget.min(RX_SLOTS) {
            match self.rx.ahead(ahead) {
                Some(Some(frame)) => look(frame),
                Some(None) => {}
                None => return,
            }
        }
    }

    #[inline]
    fn holds(&mut self, count: usize) -> bool {
        self.rx.holds(count)
    }

    fn transmit(&mut self) -> &mut dyn Transmit {
        &mut self.tx
    }

    #[inline]
    fn flush(&mut self) -> Result<(), LinkError> {
        if self.tx.is_empty() {
            return Ok(());
        }
        self.tx.send().map_err(|e| self.interface.error("send frames", NEEDS, e))
    }

    fn has_unsent(&mut self) -> bool {
        !self.tx.is_empty()
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        poll_in(&self.socket, timeout).map_err(|e| self.interface.error("wait for frames", NEEDS, e))
    }

    fn readiness(&self) -> Option<RawFd> {
        Some(self.socket.as_raw_fd())
    }

    fn sift(&mut self, sieve: Option<&HelloSieve>) -> Result<bool, LinkError> {
        if !self.bare {
            return Ok(false);
        }
        let attached = attach_filter(&self.socket, &self.interface, None, sieve);
        attached.map_err(|e| self.interface.error("attach the filter of Hellos", NEEDS, e)).map(|()| true)
    }

    fn counters(&mut self) -> LinkCounters {
        // tpacket_stats: frames seen and frames dropped since the last call.
        if let Ok([_, dropped]) =
            get_option::<[u32; 2]>(&self.socket, libc::SOL_PACKET, libc::PACKET_STATISTICS)
        {
            self.counters.rx_dropped += u64::from(dropped);
        }
        LinkCounters {
            tx_frames: self.tx.frames,
            tx_bytes: self.tx.bytes,
            tx_full: self.tx.full,
            tx_errors: self.tx.errors,
            ..self.counters
        }
    }
}

/// Makes a TPACKET_V2 socket. It receives no frames before [`bind`] sets the EtherType.
#[expect(unsafe_code, reason = "socket returns a raw descriptor")]
pub(super) fn open_socket() -> io::Result<OwnedFd> {
    // SAFETY: creates a socket; the result is checked.
    let socket = owned(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
    // Since Linux 4.20. Earlier kernels return sent frames, which are then dropped because of their
    // destination.
    let _ = set_option(&socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1);
    Ok(socket)
}

/// Adds a receive ring to `socket`; the caller must map it.
pub(super) fn receive_ring(socket: &OwnedFd, slot: usize, slots: usize) -> io::Result<()> {
    set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &ring_request(slot, slots))
}

/// Binds to frames of `ethertype` on the interface with this index.
#[expect(unsafe_code, reason = "an address in the kernel's form is made from zeros")]
pub(super) fn bind(socket: &OwnedFd, ethertype: u16, index: u32) -> io::Result<()> {
    // SAFETY: sockaddr_ll is plain data for which all zeros is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ethertype.to_be();
    address.sll_ifindex = index as i32;
    socket::bind(socket, &address)
}

/// Maps the only ring of `socket`, which has `bytes` bytes.
fn map_ring(socket: &OwnedFd, bytes: usize) -> io::Result<MmapRaw> {
    MmapOptions::new().len(bytes).populate().map_raw(socket)
}

/// Makes the socket pass frames directly to the driver. Returns whether the kernel supports that.
fn bypass_qdisc(socket: &OwnedFd) -> bool {
    set_option(socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1).is_ok()
}

const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
const PACKET_LOSS: libc::c_int = 14;

fn ring_request(slot: usize, slots: usize) -> libc::tpacket_req {
    let block = slot.max(1 << 16).min(slot * slots);
    libc::tpacket_req {
        tp_block_size: block as u32,
        tp_block_nr: (slot * slots / block) as u32,
        tp_frame_size: slot as u32,
        tp_frame_nr: slots as u32,
    }
}
