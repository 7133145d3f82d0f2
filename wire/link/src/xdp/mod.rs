//! AF_XDP: the fastest link. Frames bypass the network stack: a small XDP program on the interface
//! (`program`) redirects ours, and only ours, into rings shared with this process (`ring`).
//!
//! In busy-poll mode the receiving thread runs the driver's receive path itself, inside a `recvfrom` on the
//! socket (`busy`), so that a frame needs no interrupt, no softirq on another core and no wake-up.
//!
//! The program is attached through a descriptor: it is gone as soon as the last link on the interface is,
//! however the process ends.

mod busy;
mod program;
mod ring;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use busy::BusyPoll;
use program::Program;
use ring::{Addresses, Descriptors, Ring, Umem};

use super::interface::{ETHERNET_HEADER, Interface, owned, poll_in, set_option};
use super::{Link, LinkConfig, LinkCounters, LinkError, LinkInfo, OnFrame};
use cxloe_wire::Transmit;
use cxloe_wire::frame::vlan;

const NEEDS: &str = "AF_XDP needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF in the initial user namespace: \
    run as root, or take `--link packet`";

/// Receive chunks, and entries of the fill and the receive ring.
const RX_CHUNKS: u32 = 1024;
/// Transmit chunks, and entries of the transmit and the completion ring.
const TX_CHUNKS: u32 = 512;
/// What the kernel keeps free before a received frame.
const XDP_HEADROOM: usize = 256;
/// How often, and after which pause, a queue is asked for that its last owner may have just left.
const RELEASE_TRIES: u32 = 25;
const RELEASE_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Frames one `sendto` takes at most, unless the kernel lets us raise it.
const KICK_BATCH: u32 = 32;

/// A link over an AF_XDP socket bound to one queue of an interface.
pub struct XdpLink {
    info: LinkInfo,
    interface: Interface,
    rx: Ring<Descriptors>,
    fill: Ring<Addresses>,
    tx: TxSide,
    busy: BusyPoll,
    kicks_max: u32,
    counters: LinkCounters,
    // Dropped in this order: the program lets go of the socket, the socket closes, the memory goes.
    _program: Arc<Program>,
    socket: OwnedFd,
    umem: Arc<Umem>,
}

struct TxSide {
    ring: Ring<Descriptors>,
    completion: Ring<Addresses>,
    /// Transmit chunks that are ours.
    free: Vec<u64>,
    umem: Arc<Umem>,
    lent: usize,
    tag: usize,
    priority: u8,
    max_frame: usize,
    queued: u32,
    frames: u64,
    bytes: u64,
    full: u64,
}

impl XdpLink {
    /// Opens a socket on queue `config.queue` of `config.interface` for frames of `config.ethertype`.
    pub fn open(config: &LinkConfig) -> Result<XdpLink, LinkError> {
        let interface = Interface::find(&config.interface)?;
        let fail = |what| {
            let interface = interface.clone();
            move |e: io::Error| match e.raw_os_error() {
                Some(libc::EBUSY) => LinkError::Unsupported {
                    backend: "xdp",
                    interface: interface.name.clone(),
                    why: format!(
                        "could not {what}: another program holds it (`ip link show {}` names an attached XDP program)",
                        interface.name
                    ),
                },
                Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP | libc::ENOSYS) => LinkError::Unsupported {
                    backend: "xdp",
                    interface: interface.name.clone(),
                    why: format!("could not {what}: this kernel or driver has no AF_XDP"),
                },
                _ => interface.error(what, NEEDS, e),
            }
        };
        // SAFETY: plain socket creation; the result is checked.
        let socket = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        let socket = owned(socket).map_err(fail("open an AF_XDP socket"))?;
        let tag = if config.priority.is_some() { vlan::TAG_LEN } else { 0 };
        let wanted = interface.mtu + ETHERNET_HEADER;
        // A chunk is a power of two of at most a page.
        let chunk = if wanted + vlan::TAG_LEN + XDP_HEADROOM <= 2048 { 2048 } else { 4096 };
        let max_frame = wanted.min(chunk - XDP_HEADROOM - vlan::TAG_LEN);

        let umem = Umem::register(&socket, chunk, RX_CHUNKS + TX_CHUNKS)
            .map_err(fail("register the frame memory"))?;
        let umem = Arc::new(umem);
        let offsets =
            ring::sizes_and_offsets(&socket, RX_CHUNKS, TX_CHUNKS).map_err(fail("size the rings"))?;
        let mut fill = Ring::map(&socket, &offsets.fr, RX_CHUNKS, libc::XDP_UMEM_PGOFF_FILL_RING)
            .map_err(fail("map the fill ring"))?;
        let completion = Ring::map(&socket, &offsets.cr, TX_CHUNKS, libc::XDP_UMEM_PGOFF_COMPLETION_RING)
            .map_err(fail("map the completion ring"))?;
        let rx = Ring::map(&socket, &offsets.rx, RX_CHUNKS, libc::XDP_PGOFF_RX_RING as u64)
            .map_err(fail("map the receive ring"))?;
        let tx = Ring::map(&socket, &offsets.tx, TX_CHUNKS, libc::XDP_PGOFF_TX_RING as u64)
            .map_err(fail("map the transmit ring"))?;
        for i in 0..RX_CHUNKS {
            fill.push(u64::from(i) * chunk as u64);
        }
        fill.publish();

        let program =
            Program::attach(&interface, config.ethertype).map_err(fail("attach the XDP program"))?;
        let zero_copy = bind(&socket, interface.index, config.queue).map_err(fail("bind to the queue"))?;
        let busy = BusyPoll::start(config.busy_poll, &socket, &interface.name);
        // Room for a full ring of frames the peer has not taken yet.
        let _ = set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &(64 << 20));
        program.redirect(config.queue, &socket).map_err(fail("redirect the queue to the socket"))?;

        let info = LinkInfo {
            backend: "xdp",
            detail: format!(
                "{}, {}, {busy}, queue {}, {chunk}-byte chunks",
                if program.native() { "native" } else { "generic" },
                if zero_copy { "zero copy" } else { "copy" },
                config.queue
            ),
            interface: interface.name.clone(),
            mac: interface.mac,
            mtu: interface.mtu,
            max_frame,
        };
        let tx = TxSide {
            ring: tx,
            completion,
            free: (0..TX_CHUNKS).map(|i| u64::from(RX_CHUNKS + i) * chunk as u64).collect(),
            umem: Arc::clone(&umem),
            lent: 0,
            tag,
            priority: config.priority.unwrap_or(0),
            max_frame,
            queued: 0,
            frames: 0,
            bytes: 0,
            full: 0,
        };
        Ok(XdpLink {
            info,
            interface,
            rx,
            fill,
            tx,
            busy,
            kicks_max: TX_CHUNKS / KICK_BATCH + 1,
            counters: LinkCounters::default(),
            _program: program,
            socket,
            umem,
        })
    }
}

impl Link for XdpLink {
    fn info(&self) -> &LinkInfo {
        &self.info
    }

    #[inline]
    fn receive(&mut self, budget: usize, on_frame: &mut OnFrame<'_>) -> Result<usize, LinkError> {
        let mut ready = self.rx.readable();
        if ready == 0 && self.busy.poll(&self.socket) {
            ready = self.rx.readable();
        }
        let count = (ready as usize).min(budget);
        for _ in 0..count {
            let d = self.rx.pop();
            if let Some(frame) = self.umem.slice(d.addr, d.len as usize) {
                // SAFETY: the receive ring has just handed us this chunk, and it goes back to the kernel
                // only by the push below: nobody else touches it meanwhile.
                let frame = unsafe { &mut *frame };
                self.counters.rx_frames += 1;
                self.counters.rx_bytes += frame.len() as u64;
                on_frame(vlan::strip(frame), &mut self.tx);
            }
            self.fill.push(d.addr & !(self.umem.chunk() as u64 - 1));
        }
        if count != 0 {
            self.rx.consume();
            self.fill.publish();
            self.busy.received(&self.socket);
        }
        Ok(count)
    }

    #[inline]
    fn peek(&mut self, budget: usize, look: &mut dyn FnMut(&[u8])) {
        let ready = self.rx.readable().min(budget as u32);
        for ahead in 0..ready {
            let d = self.rx.at(ahead);
            if let Some(frame) = self.umem.slice(d.addr, d.len as usize) {
                // SAFETY: the receive ring has handed us this chunk; nobody writes it until it is given back.
                look(unsafe { &*frame });
            }
        }
    }

    #[inline]
    fn holds(&mut self, count: usize) -> bool {
        self.rx.readable() as usize >= count.min(RX_CHUNKS as usize)
    }

    fn transmit(&mut self) -> &mut dyn Transmit {
        &mut self.tx
    }

    #[inline]
    fn flush(&mut self) -> Result<(), LinkError> {
        if self.tx.queued == 0 {
            return Ok(());
        }
        self.tx.ring.publish();
        self.tx.queued = 0;
        for _ in 0..self.kicks_max {
            // SAFETY: no buffer: the kernel takes what the transmit ring describes.
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
                // More than one batch was queued: again, for the rest.
                Some(libc::EAGAIN) if !self.tx.ring.is_drained() => {}
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR | libc::ENETDOWN) => {
                    self.counters.tx_errors += 1;
                    break;
                }
                _ => return Err(self.interface.error("send frames", NEEDS, error)),
            }
        }
        // What the kernel has not taken yet goes with the next kick.
        self.tx.queued = u32::from(!self.tx.ring.is_drained());
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        poll_in(&self.socket, timeout).map_err(|e| self.interface.error("wait for frames", NEEDS, e))
    }

    fn readiness(&self) -> Option<RawFd> {
        Some(self.socket.as_raw_fd())
    }

    fn counters(&mut self) -> LinkCounters {
        LinkCounters {
            tx_frames: self.tx.frames,
            tx_bytes: self.tx.bytes,
            tx_full: self.tx.full,
            rx_dropped: ring::dropped(&self.socket),
            ..self.counters
        }
    }
}

impl Transmit for TxSide {
    #[inline]
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.max_frame || len == 0 {
            return None;
        }
        if self.free.is_empty() {
            let done = self.completion.readable();
            for _ in 0..done {
                let chunk = self.completion.pop();
                self.free.push(chunk);
            }
            self.completion.consume();
        }
        let Some(&chunk) = self.free.last() else {
            self.full += 1;
            return None;
        };
        self.lent = len;
        let slot = self.umem.slice(chunk + self.tag as u64, len)?;
        // SAFETY: the chunk is on our free list: the kernel does not touch it until commit() hands it over.
        Some(unsafe { &mut *slot })
    }

    #[inline]
    fn commit(&mut self) {
        if self.lent == 0 {
            return;
        }
        let len = self.lent + self.tag;
        self.lent = 0;
        let Some(chunk) = self.free.pop() else { return };
        if self.tag != 0
            && let Some(frame) = self.umem.slice(chunk, len)
        {
            // SAFETY: as in slot(): the chunk is still ours.
            vlan::insert(unsafe { &mut *frame }, self.priority);
        }
        self.ring.push(libc::xdp_desc { addr: chunk, len: len as u32, options: 0 });
        self.queued += 1;
        self.frames += 1;
        self.bytes += len as u64;
    }
}

/// Binds to a queue, zero copy where the driver has it; returns whether it does.
fn bind(socket: &OwnedFd, index: u32, queue: u32) -> io::Result<bool> {
    let try_bind = |flags: u16| {
        // SAFETY: sockaddr_xdp is plain data for which all zeros is valid.
        let mut address: libc::sockaddr_xdp = unsafe { std::mem::zeroed() };
        address.sxdp_family = libc::AF_XDP as u16;
        address.sxdp_flags = flags;
        address.sxdp_ifindex = index;
        address.sxdp_queue_id = queue;
        // SAFETY: the pointer and length describe `address`, which outlives the call.
        let rc = unsafe {
            libc::bind(
                socket.as_raw_fd(),
                std::ptr::from_ref(&address).cast(),
                size_of::<libc::sockaddr_xdp>() as libc::socklen_t,
            )
        };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    let mut tries = 0;
    loop {
        let bound = match try_bind(libc::XDP_ZEROCOPY | libc::XDP_USE_NEED_WAKEUP) {
            Ok(()) => Ok(true),
            Err(_) => try_bind(libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP).map(|()| false),
        };
        match bound {
            // The kernel lets go of a closed socket's queue some time after the socket is gone.
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && tries < RELEASE_TRIES => {
                tries += 1;
                std::thread::sleep(RELEASE_RETRY_INTERVAL);
            }
            bound => return bound,
        }
    }
}
