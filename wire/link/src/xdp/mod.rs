//! AF_XDP: the fastest link. Frames bypass the network stack: a small XDP program on the interface
//! (`program`) redirects the frames of this protocol, and only these, into rings shared with this process
//! (`ring`).
//!
//! With busy polling the receiving thread executes the driver's receive path, inside a `recvfrom` on the
//! socket (`busy`). So a frame needs no interrupt, no softirq on another core and no wake-up.
//!
//! The program is attached through a descriptor. So it is detached when the last link on the interface is
//! closed, in whatever way the process ends.

#![expect(unsafe_code, reason = "frames lie in memory shared with the kernel")]

mod busy;
mod parts;
mod program;
mod ring;
mod transmit;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use busy::BusyPoll;
use parts::{HAS_MORE, frame_at};
use program::Program;
use ring::{Addresses, Descriptors, Ring, Umem};
use transmit::TxSide;

use super::interface::{ETHERNET_HEADER, Interface};
use super::link_detail::LinkDetail;
use super::socket::{self, kick, owned, poll_in, set_option};
use super::{Link, LinkConfig, LinkCounters, LinkError, LinkInfo, OnFrame};
use cxloe_wire::Transmit;
use cxloe_wire::frame::vlan;

pub(super) const NEEDS: &str = "AF_XDP needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF in the initial user namespace: \
    run as root, or take `--link packet`";

/// Maximum number of frames received and not yet released. Each has chunks for the longest frame, and as many
/// entries in the fill ring and in the receive ring.
const RX_FRAMES: u32 = 1024;
/// Maximum number of frames queued and not yet sent. Each has chunks for the longest frame, and as many
/// entries in the transmit ring and in the completion ring.
const TX_FRAMES: u32 = 512;
/// Maximum number of chunks of a frame: a page with header and trailer, the longest frame of the protocol,
/// needs two.
const PARTS_MAX: u32 = 2;
/// Number of bytes that the kernel leaves free before a received frame.
const XDP_HEADROOM: usize = 256;
/// Number of further attempts to bind a queue, and the pause between two attempts: the last user of the queue may have
/// closed it only just now.
const RELEASE_TRIES: u32 = 25;
const RELEASE_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of frames that one `sendto` sends, unless the kernel permits more.
const KICK_BATCH: u32 = 32;

/// Link over an AF_XDP socket bound to one queue of an interface.
pub struct XdpLink {
    info: LinkInfo,
    interface: Interface,
    rx: Ring<Descriptors>,
    fill: Ring<Addresses>,
    tx: TxSide,
    busy: BusyPoll,
    /// Number of chunks that the longest frame needs.
    parts: u32,
    /// Buffer in which a frame is assembled if its chunks are not adjacent.
    scratch: Box<[u8]>,
    kicks_max: u32,
    counters: LinkCounters,
    // Fields drop in this order: the program releases the socket, the socket closes, the memory is freed.
    _program: Arc<Program>,
    socket: OwnedFd,
    umem: Arc<Umem>,
}

impl XdpLink {
    /// Opens a socket on queue `config.queue` of `config.interface` for frames of `config.ethertype`.
    pub fn open(config: &LinkConfig) -> Result<XdpLink, LinkError> {
        XdpLink::open_at(config, None)
    }

    /// [`open`](Self::open), but if `ports` (the first one and their number) are given, only for IPv4
    /// datagrams to them.
    pub(crate) fn open_at(config: &LinkConfig, ports: Option<(u16, u16)>) -> Result<XdpLink, LinkError> {
        let mut interface = Interface::find(&config.interface)?;
        let addresses = config.addresses(interface.mac);
        interface.mac = interface.mac.shard(config.shard());
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
        // SAFETY: creates a socket; the result is checked.
        let socket = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        let socket = owned(socket).map_err(fail("open an AF_XDP socket"))?;
        let wanted = interface.mtu + ETHERNET_HEADER;
        // The kernel requires a power of two of at most a page.
        let chunk = if wanted + vlan::TAG_LEN + XDP_HEADROOM <= 2048 { 2048 } else { 4096 };
        let payload = chunk - XDP_HEADROOM;
        let parts = ((wanted + vlan::TAG_LEN).div_ceil(payload) as u32).min(PARTS_MAX);
        let (rx_chunks, tx_chunks) = (RX_FRAMES * parts, TX_FRAMES * parts);

        let umem = Umem::register(&socket, chunk, rx_chunks + tx_chunks)
            .map_err(fail("register the frame memory"))?;
        let umem = Arc::new(umem);
        let offsets =
            ring::sizes_and_offsets(&socket, rx_chunks, tx_chunks).map_err(fail("size the rings"))?;
        let mut fill = Ring::map(&socket, &offsets.fr, rx_chunks, libc::XDP_UMEM_PGOFF_FILL_RING)
            .map_err(fail("map the fill ring"))?;
        let completion = Ring::map(&socket, &offsets.cr, tx_chunks, libc::XDP_UMEM_PGOFF_COMPLETION_RING)
            .map_err(fail("map the completion ring"))?;
        let rx = Ring::map(&socket, &offsets.rx, rx_chunks, libc::XDP_PGOFF_RX_RING as u64)
            .map_err(fail("map the receive ring"))?;
        let tx = Ring::map(&socket, &offsets.tx, tx_chunks, libc::XDP_PGOFF_TX_RING as u64)
            .map_err(fail("map the transmit ring"))?;
        for i in 0..rx_chunks {
            fill.push(u64::from(i) * chunk as u64);
        }
        fill.publish();

        let program = Program::attach(&interface, &addresses, config.ethertype, ports)
            .map_err(fail("attach the XDP program"))?;
        let Bound { zero_copy, parts: carried } =
            bind(&socket, interface.index, config.queue, parts).map_err(fail("bind to the queue"))?;
        let max_frame = wanted.min(carried as usize * payload - vlan::TAG_LEN);
        let busy = BusyPoll::start(config.busy_poll, &socket, &interface.name);
        // Makes the socket's send buffer large enough for a full ring of frames that the receiver has not taken yet.
        // This is optional, so an error is ignored.
        let _ = set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &(64 << 20));
        program.redirect(config.queue, &socket).map_err(fail("redirect the queue to the socket"))?;

        let info = LinkInfo {
            backend: "xdp",
            detail: format!(
                "{}, {}, {busy}, queue {}, {chunk}-byte chunks{}",
                if program.native() { "native" } else { "generic" },
                if zero_copy { "zero copy" } else { "copy" },
                config.queue,
                match (carried, parts) {
                    (1, 1) => "",
                    (1, _) => ", one per frame: this kernel or driver has no more",
                    _ => ", two per frame",
                }
            ),
            interface: interface.name.clone(),
            mac: interface.mac,
            mtu: interface.mtu,
            max_frame,
        };
        let tx =
            TxSide::new((tx, completion), Arc::clone(&umem), (rx_chunks, parts), max_frame, config.priority);
        Ok(XdpLink {
            info,
            interface,
            rx,
            fill,
            tx,
            busy,
            parts,
            scratch: vec![0; PARTS_MAX as usize * chunk].into_boxed_slice(),
            kicks_max: tx_chunks / KICK_BATCH + 1,
            counters: LinkCounters::default(),
            _program: program,
            socket,
            umem,
        })
    }
}

impl LinkDetail for XdpLink {
    fn detail(&mut self) -> &mut String {
        &mut self.info.detail
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
        let mut received = 0;
        while received < budget && ready > 0 {
            let taken = match self.rx.at(0) {
                d if d.options & HAS_MORE == 0 => {
                    if let Some(frame) = self.umem.slice(d.addr, d.len as usize) {
                        // SAFETY: the receive ring has just passed this chunk to this process, and it returns
                        // to the kernel only by the push below. No other code accesses it in between.
                        let frame = unsafe { &mut *frame };
                        self.counters.rx_frames += 1;
                        self.counters.rx_bytes += frame.len() as u64;
                        on_frame(vlan::strip(frame), &mut self.tx);
                    }
                    1
                }
                _ => {
                    let (taken, frame) = frame_at(&self.rx, ready, &self.umem, &mut self.scratch);
                    if let Some(frame) = frame {
                        self.counters.rx_frames += 1;
                        self.counters.rx_bytes += frame.len() as u64;
                        on_frame(vlan::strip(frame), &mut self.tx);
                    } else if taken > 0 {
                        self.counters.rx_dropped += 1;
                    }
                    taken
                }
            };
            if taken == 0 {
                // The other parts of this frame have not arrived yet.
                break;
            }
            for _ in 0..taken {
                let d = self.rx.pop();
                self.fill.push(d.addr & !(self.umem.chunk() as u64 - 1));
            }
            ready -= taken;
            received += 1;
        }
        if received != 0 {
            self.rx.consume();
            self.fill.publish();
            self.busy.received(&self.socket);
        }
        Ok(received)
    }

    #[inline]
    fn peek(&mut self, budget: usize, look: &mut dyn FnMut(&[u8])) {
        let ready = self.rx.readable().min(budget as u32);
        let mut within = false;
        for ahead in 0..ready {
            let d = self.rx.at(ahead);
            // If a frame has several parts, only the first part is passed to `look`.
            if !std::mem::replace(&mut within, d.options & HAS_MORE != 0)
                && let Some(frame) = self.umem.slice(d.addr, d.len as usize)
            {
                // SAFETY: the receive ring has passed this chunk to this process; nothing writes it before it
                // is returned.
                look(unsafe { &*frame });
            }
        }
    }

    #[inline]
    fn holds(&mut self, count: usize) -> bool {
        // Each frame may have the maximum number of parts, so `count` frames are certain only with that many parts
        // each.
        self.rx.readable() as usize >= count.min(RX_FRAMES as usize) * self.parts as usize
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
            let Err(error) = kick(&self.socket) else { return Ok(()) };
            match error.raw_os_error() {
                // More than one batch was queued, so the kernel is kicked again.
                Some(libc::EAGAIN) if !self.tx.ring.is_drained() => {}
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR | libc::ENETDOWN) => {
                    self.counters.tx_errors += 1;
                    break;
                }
                _ => return Err(self.interface.error("send frames", NEEDS, error)),
            }
        }
        // Frames that the kernel has not taken yet are sent at the next kick.
        self.tx.queued = u32::from(!self.tx.ring.is_drained());
        Ok(())
    }

    fn has_unsent(&mut self) -> bool {
        self.tx.queued > 0
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
            rx_dropped: self.counters.rx_dropped + ring::dropped(&self.socket),
            ..self.counters
        }
    }
}

struct Bound {
    /// True if the driver reads and writes the chunks without a copy.
    zero_copy: bool,
    /// Maximum number of chunks of a frame.
    parts: u32,
}

/// Binds to a queue for frames of `parts` parts. Uses zero copy if the driver supports it, and several parts
/// if `parts` is above one and the kernel supports that (since 6.6).
fn bind(socket: &OwnedFd, index: u32, queue: u32, parts: u32) -> io::Result<Bound> {
    let several_or_one = [parts, 1];
    let choices = if parts > 1 { &several_or_one[..] } else { &several_or_one[1..] };
    let mut tries = 0;
    let mut last = io::Error::from_raw_os_error(libc::EINVAL);
    loop {
        for zero_copy in [true, false] {
            for parts in choices {
                let mode = if zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
                let several = if *parts > 1 { USE_SEVERAL } else { 0 };
                match bind_as(socket, index, queue, mode | several | libc::XDP_USE_NEED_WAKEUP) {
                    Ok(()) => return Ok(Bound { zero_copy, parts: *parts }),
                    Err(error) => last = error,
                }
            }
        }
        // The kernel frees the queue of a closed socket only some time after the close, so the bind is tried again.
        if last.raw_os_error() != Some(libc::EBUSY) || tries == RELEASE_TRIES {
            return Err(last);
        }
        tries += 1;
        std::thread::sleep(RELEASE_RETRY_INTERVAL);
    }
}

/// XDP_USE_SG: a frame may have several chunks.
const USE_SEVERAL: u16 = 1 << 4;

fn bind_as(socket: &OwnedFd, index: u32, queue: u32, flags: u16) -> io::Result<()> {
    // SAFETY: sockaddr_xdp is plain data for which all zeros is valid.
    let mut address: libc::sockaddr_xdp = unsafe { std::mem::zeroed() };
    address.sxdp_family = libc::AF_XDP as u16;
    address.sxdp_flags = flags;
    address.sxdp_ifindex = index;
    address.sxdp_queue_id = queue;
    socket::bind(socket, &address)
}

/// Whether the driver of `config`'s interface passes frames to an AF_XDP socket without a copy. To find out,
/// a socket is bound to the queue for a moment, without a program, so that no frame is diverted.
pub(super) fn is_zero_copy(config: &LinkConfig) -> bool {
    const ENTRIES: u32 = 64;
    let probe = || -> io::Result<()> {
        let interface = Interface::find(&config.interface).map_err(|_| io::ErrorKind::NotFound)?;
        // SAFETY: creates a socket; the result is checked.
        let socket = owned(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
        let _umem = Umem::register(&socket, 4096, 2 * ENTRIES)?;
        ring::sizes_and_offsets(&socket, ENTRIES, ENTRIES)?;
        bind_as(&socket, interface.index, config.queue, libc::XDP_ZEROCOPY | libc::XDP_USE_NEED_WAKEUP)
    };
    probe().is_ok()
}
