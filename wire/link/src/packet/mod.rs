//! AF_PACKET: rings of frames shared with the kernel (TPACKET_V2), the link that works everywhere.
//!
//! The kernel copies each arriving frame into the next slot of the receive ring and flips its status word;
//! a spinning receiver sees that without a system call. A frame to be sent is written into a slot of the
//! transmit ring, and one `sendto` sends all that are marked. TPACKET_V3 is not used: it hands over whole
//! blocks, or waits for a timer.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use memmap2::MmapOptions;

mod receive;

pub(super) use receive::RxRing;

use super::interface::{ETHERNET_HEADER, Interface, owned, poll_in, set_option};
use super::{Link, LinkConfig, LinkCounters, LinkError, LinkInfo, OnFrame};
use cxloe_wire::Transmit;
use cxloe_wire::frame::vlan;

pub(super) const NEEDS: &str = "raw sockets need CAP_NET_RAW: run as root, give the binary the capability with \
    `setcap cap_net_raw+ep FILE`, or use a user namespace of your own";

/// Where frame data starts in a transmit slot: after the aligned `tpacket2_hdr`.
const TX_OFFSET: usize = 32;
/// Slots of the receive ring: two windows deep, so that only a receiver that stops loses frames, and small
/// enough to stay in the caches.
const RX_SLOTS: usize = 1024;
/// Slots of the transmit ring.
const TX_SLOTS: usize = 512;
/// What the kernel needs in a receive slot before the frame: header, address, alignment, a spare tag.
const RX_OVERHEAD: usize = 128;

/// A link over an AF_PACKET socket with mapped rings.
pub struct PacketLink {
    info: LinkInfo,
    interface: Interface,
    rx: RxRing,
    tx: TxRing,
    // The rings above are unmapped before the socket closes: fields drop in this order.
    socket: OwnedFd,
    counters: LinkCounters,
}

impl PacketLink {
    /// Opens a socket on `config.interface` for frames of `config.ethertype`.
    pub fn open(config: &LinkConfig) -> Result<PacketLink, LinkError> {
        let interface = Interface::find(&config.interface)?;
        let fail = |what| {
            let interface = interface.clone();
            move |e| interface.error(what, NEEDS, e)
        };
        let socket = open_socket().map_err(fail("open a packet socket"))?;
        let bypass = config.qdisc_bypass
            && set_option(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1).is_ok();
        attach_filter(&socket, &interface).map_err(fail("attach the address filter"))?;

        // A frame that the kernel refuses, as too long for an MTU that has just shrunk, is lost. Without this it would
        // stay at the head of the transmit ring, before all others.
        let _ = set_option(&socket, libc::SOL_PACKET, PACKET_LOSS, &1);

        let slot = (interface.mtu + ETHERNET_HEADER + RX_OVERHEAD).next_power_of_two().max(2048);
        receive_ring(&socket, slot, RX_SLOTS).map_err(fail("make the receive ring"))?;
        let tx_request = ring_request(slot, TX_SLOTS);
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_TX_RING, &tx_request)
            .map_err(fail("make the transmit ring"))?;
        let rx_bytes = slot * RX_SLOTS;
        let tx_bytes = slot * TX_SLOTS;
        let map = MmapOptions::new().len(rx_bytes + tx_bytes).populate().map_raw(&socket);
        let map = map.map_err(fail("map the rings"))?;
        let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at 0");

        bind(&socket, config.ethertype, interface.index).map_err(fail("bind a packet socket"))?;
        if config.queues > 1 {
            join_fanout(&socket, config, &interface).map_err(fail("join the fan-out group"))?;
        }

        let tag = if config.priority.is_some() { vlan::TAG_LEN } else { 0 };
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
            rx: RxRing::new(map, slot, RX_SLOTS),
            tx: TxRing {
                // SAFETY: the transmit ring starts right behind the receive ring in the same mapping.
                base: unsafe { base.add(rx_bytes) },
                slot,
                next: 0,
                lent: 0,
                queued: 0,
                tag,
                priority: config.priority.unwrap_or(0),
                max_frame,
                frames: 0,
                bytes: 0,
                full: 0,
            },
            socket,
            counters: LinkCounters::default(),
        })
    }

    fn refresh_drops(&self) -> u64 {
        #[repr(C)]
        #[derive(Default)]
        struct Stats {
            packets: u32,
            drops: u32,
        }
        let mut stats = Stats::default();
        let mut len = size_of::<Stats>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes into `stats`; both outlive the call.
        let rc = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                std::ptr::from_mut(&mut stats).cast(),
                &mut len,
            )
        };
        if rc == 0 { u64::from(stats.drops) } else { 0 }
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
        if self.tx.queued == 0 {
            return Ok(());
        }
        self.tx.queued = 0;
        // SAFETY: no buffer is passed: the kernel takes the slots marked in the mapped ring.
        let rc = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                std::ptr::null(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null(),
                0,
            )
        };
        if rc >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // A full device queue, or an interface that is down for now: the marked slots stay marked and leave
            // with the next kick, which must come even if there is no room to mark another.
            Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR | libc::ENETDOWN | libc::ENETUNREACH) => {
                self.tx.queued = 1;
                self.counters.tx_errors += 1;
                Ok(())
            }
            // Frames that were refused are lost, and others wait behind them.
            Some(libc::EMSGSIZE) => {
                self.tx.queued = 1;
                self.counters.tx_errors += 1;
                Ok(())
            }
            _ => Err(self.interface.error("send frames", NEEDS, error)),
        }
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        poll_in(&self.socket, timeout).map_err(|e| self.interface.error("wait for frames", NEEDS, e))
    }

    fn readiness(&self) -> Option<RawFd> {
        Some(self.socket.as_raw_fd())
    }

    fn counters(&mut self) -> LinkCounters {
        self.counters.rx_dropped += self.refresh_drops();
        LinkCounters {
            tx_frames: self.tx.frames,
            tx_bytes: self.tx.bytes,
            tx_full: self.tx.full,
            ..self.counters
        }
    }
}

struct TxRing {
    base: NonNull<u8>,
    slot: usize,
    next: usize,
    /// Length of the slot lent and not yet committed, 0 if none.
    lent: usize,
    queued: usize,
    tag: usize,
    priority: u8,
    max_frame: usize,
    frames: u64,
    bytes: u64,
    full: u64,
}

// SAFETY: as for RxRing; the mapping lives in the RxRing of the same link.
unsafe impl Send for TxRing {}

impl TxRing {
    #[inline]
    fn header(&mut self) -> &mut libc::tpacket2_hdr {
        // SAFETY: `next` is below TX_SLOTS; the slot starts with a tpacket2_hdr, any bytes are valid for it.
        unsafe { self.base.add(self.next * self.slot).cast::<libc::tpacket2_hdr>().as_mut() }
    }

    #[inline]
    fn status(&self) -> &AtomicU32 {
        // SAFETY: as for RxRing::status.
        unsafe { self.base.add(self.next * self.slot).cast::<AtomicU32>().as_ref() }
    }

    #[inline]
    fn data(&mut self) -> *mut u8 {
        // SAFETY: TX_OFFSET lies inside every slot.
        unsafe { self.base.as_ptr().add(self.next * self.slot + TX_OFFSET) }
    }
}

impl Transmit for TxRing {
    #[inline]
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.max_frame || len == 0 {
            return None;
        }
        let status = self.status().load(Ordering::Acquire);
        if status & (libc::TP_STATUS_SEND_REQUEST | libc::TP_STATUS_SENDING) != 0 {
            self.full += 1;
            return None;
        }
        self.lent = len;
        let tag = self.tag;
        // SAFETY: the status word says the slot is ours; max_frame plus a tag fits a slot by construction.
        Some(unsafe { std::slice::from_raw_parts_mut(self.data().add(tag), len) })
    }

    #[inline]
    fn commit(&mut self) {
        if self.lent == 0 {
            return;
        }
        let len = self.lent + self.tag;
        self.lent = 0;
        if self.tag != 0 {
            // SAFETY: the slot is ours and `len` bytes from its data offset lie in it.
            let frame = unsafe { std::slice::from_raw_parts_mut(self.data(), len) };
            vlan::insert(frame, self.priority);
        }
        self.header().tp_len = len as u32;
        self.status().store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
        self.next = (self.next + 1) % TX_SLOTS;
        self.queued += 1;
        self.frames += 1;
        self.bytes += len as u64;
    }
}

/// A packet socket that speaks TPACKET_V2 and gets no frames yet: it has no EtherType before [`bind`].
pub(super) fn open_socket() -> io::Result<OwnedFd> {
    // SAFETY: plain socket creation; the result is checked.
    let socket = owned(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
    // Since 4.20; without it our own frames come back, and are dropped for their destination.
    let _ = set_option(&socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1);
    Ok(socket)
}

/// Gives `socket` a receive ring, to be mapped.
pub(super) fn receive_ring(socket: &OwnedFd, slot: usize, slots: usize) -> io::Result<()> {
    set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &ring_request(slot, slots))
}

/// Lets frames of `ethertype` on the interface `index` in.
pub(super) fn bind(socket: &OwnedFd, ethertype: u16, index: u32) -> io::Result<()> {
    // SAFETY: sockaddr_ll is plain data for which all zeros is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ethertype.to_be();
    address.sll_ifindex = index as i32;
    // SAFETY: the pointer and length describe `address`, which outlives the call.
    let rc = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            std::ptr::from_ref(&address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
const PACKET_LOSS: libc::c_int = 14;
const PACKET_FANOUT_CBPF: libc::c_int = 6;
const PACKET_FANOUT_DATA: libc::c_int = 22;

fn ring_request(slot: usize, slots: usize) -> libc::tpacket_req {
    let block = slot.max(1 << 16).min(slot * slots);
    libc::tpacket_req {
        tp_block_size: block as u32,
        tp_block_nr: (slot * slots / block) as u32,
        tp_frame_size: slot as u32,
        tp_frame_nr: slots as u32,
    }
}

const fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

const fn jump(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Lets only frames addressed to the interface itself through, so that a promiscuous neighbour's traffic
/// never reaches the ring.
fn attach_filter(socket: &OwnedFd, interface: &Interface) -> io::Result<()> {
    let mac = interface.mac.0;
    let high = u32::from_be_bytes([mac[0], mac[1], mac[2], mac[3]]);
    let low = u32::from(u16::from_be_bytes([mac[4], mac[5]]));
    let program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        jump(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, high, 0, 3),
        statement(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 4),
        jump(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, low, 0, 1),
        statement(libc::BPF_RET | libc::BPF_K, u32::MAX),
        statement(libc::BPF_RET | libc::BPF_K, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

/// Spreads the nodes that talk to this interface over its queues: all frames of one source address go to
/// one worker, so that a session never changes hands.
fn join_fanout(socket: &OwnedFd, config: &LinkConfig, interface: &Interface) -> io::Result<()> {
    // A group id is shared by the sockets of one process on one interface and EtherType.
    let group = (std::process::id() ^ (interface.index << 8) ^ u32::from(config.ethertype)) & 0xFFFF;
    let argument = (group as i32) | (PACKET_FANOUT_CBPF << 16);
    set_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &argument)?;
    // The last two bytes of the source address, modulo the number of queues. At this point the kernel's
    // packet data starts behind the Ethernet header, which SKF_LL_OFF reaches.
    let link_layer = libc::SKF_LL_OFF as u32;
    let program = [
        statement(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, link_layer.wrapping_add(10)),
        statement(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, config.queues),
        statement(libc::BPF_RET | BPF_A, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    set_option(socket, libc::SOL_PACKET, PACKET_FANOUT_DATA, &filter)
}

const BPF_A: u32 = 0x10;
