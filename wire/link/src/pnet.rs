//! pnet: the fallback for kernels without packet rings, with several system calls for each frame.
//!
//! A plain packet socket, driven by `pnet_datalink`. It needs only CAP_NET_RAW, and it is slow. A frame
//! received costs a `poll`, a `recvfrom` and a second copy (pnet lends its buffer read-only, and a receiver
//! may decrypt in place); a frame sent costs a `poll` and a `sendto`; nothing is batched. This crate makes
//! the socket and passes it to pnet, so that [`readiness`](Link::readiness) and [`wait`](Link::wait) can use
//! the socket itself. pnet binds it to every EtherType: frames of other protocols wake this link too and are
//! dropped here. A frame is sent at its commit; if the socket's queue is full, the frame waits in its slot.

#![expect(unsafe_code, reason = "socket returns a raw descriptor")]

use std::io;
use std::os::fd::{IntoRawFd, RawFd};
use std::time::Duration;

use pnet_datalink::{Channel, Config, DataLinkReceiver, DataLinkSender, MacAddr, NetworkInterface};

use super::interface::{ETHERNET_HEADER, Interface};
use super::link_detail::LinkDetail;
use super::socket::{get_option, owned, poll_in, set_option};
use super::{Link, LinkConfig, LinkCounters, LinkError, LinkInfo, OnFrame};
use cxloe_wire::Transmit;
use cxloe_wire::frame::{Mac, vlan};

const NEEDS: &str = "raw sockets need CAP_NET_RAW: run as root, give the binary the capability with \
    `setcap cap_net_raw+ep FILE`, or use a user namespace of your own";

/// Socket option of `linux/if_packet.h` since Linux 4.20, which the libc crate does not define.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// Length of the socket's receive queue in bytes; the kernel limits it to `net.core.rmem_max`.
const RECEIVE_BUFFER: libc::c_int = 4 << 20;

/// Link over a data link channel of pnet.
pub struct PnetLink {
    info: LinkInfo,
    interface: Interface,
    ethertype: u16,
    receiver: Box<dyn DataLinkReceiver>,
    frame: Box<[u8]>,
    sender: Sender,
    /// Socket of the channel; pnet closes it when `receiver` and `sender` are dropped.
    socket: RawFd,
    rx_frames: u64,
    rx_bytes: u64,
    /// Sum of the counts of lost frames, because the kernel resets its count at each read.
    rx_dropped: u64,
}

struct Sender {
    channel: Box<dyn DataLinkSender>,
    /// Buffer of a frame to send, with space for a tag in front.
    buffer: Box<[u8]>,
    priority: Option<u8>,
    max_frame: usize,
    lent: Option<usize>,
    /// Start and end in `buffer` of a committed frame that has not been sent.
    waiting: Option<(usize, usize)>,
    failed: Option<io::Error>,
    frames: u64,
    bytes: u64,
    full: u64,
    errors: u64,
}

impl PnetLink {
    /// Opens a channel on `config.interface` for frames of `config.ethertype`. A pnet link serves only one
    /// queue.
    pub fn open(config: &LinkConfig) -> Result<PnetLink, LinkError> {
        let interface = Interface::find(&config.interface)?;
        if config.queues > 1 {
            return Err(LinkError::Unsupported {
                backend: "pnet",
                interface: interface.name,
                why: format!(
                    "it serves one queue, {} were asked for; use the packet or xdp link",
                    config.queues
                ),
            });
        }
        let fail = |what| {
            let interface = interface.clone();
            move |e| interface.error(what, NEEDS, e)
        };
        // The protocol is 0, so that no frame arrives before pnet binds the socket.
        // SAFETY: creates a socket; the result is checked.
        let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        let socket = owned(socket).map_err(fail("open a packet socket"))?;
        // Errors of both options are ignored. Without the first one, sent frames come back and are dropped
        // because of their destination.
        let _ = set_option(&socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1);
        let _ = set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &RECEIVE_BUFFER);

        let max_frame = interface.mtu + ETHERNET_HEADER;
        let frame_bytes = max_frame + vlan::TAG_LEN;
        let [a, b, c, d, e, f] = interface.mac.0;
        let device = NetworkInterface {
            name: interface.name.clone(),
            description: String::new(),
            index: interface.index,
            mac: Some(MacAddr(a, b, c, d, e, f)),
            ips: Vec::new(),
            flags: 0,
        };
        let socket = socket.into_raw_fd();
        let channel = Config {
            read_buffer_size: frame_bytes,
            // Frames to send are written into this link's own buffer.
            write_buffer_size: 0,
            read_timeout: Some(Duration::ZERO),
            write_timeout: Some(Duration::ZERO),
            promiscuous: false,
            // pnet owns the socket after this call, and closes it even if the call fails.
            socket_fd: Some(socket),
            ..Config::default()
        };
        let (channel, receiver) = match pnet_datalink::channel(&device, channel) {
            Ok(Channel::Ethernet(tx, rx)) => (tx, rx),
            Ok(_) => {
                return Err(LinkError::Unsupported {
                    backend: "pnet",
                    interface: interface.name,
                    why: "pnet opened something else than an Ethernet channel".to_owned(),
                });
            }
            Err(e) => return Err(fail("open a pnet channel")(e)),
        };
        let info = LinkInfo {
            backend: "pnet",
            detail: "packet socket, two system calls and a copy per frame".to_owned(),
            interface: interface.name.clone(),
            mac: interface.mac,
            mtu: interface.mtu,
            max_frame,
        };
        let sender = Sender {
            channel,
            buffer: vec![0; frame_bytes].into_boxed_slice(),
            priority: config.priority,
            max_frame,
            lent: None,
            waiting: None,
            failed: None,
            frames: 0,
            bytes: 0,
            full: 0,
            errors: 0,
        };
        Ok(PnetLink {
            info,
            interface,
            ethertype: config.ethertype,
            receiver,
            frame: vec![0; frame_bytes].into_boxed_slice(),
            sender,
            socket,
            rx_frames: 0,
            rx_bytes: 0,
            rx_dropped: 0,
        })
    }

    /// Converts the error of a failed call; `None` if the error is temporary. pnet replaces an error that is
    /// pending on the socket by its own, so the pending one is read from the socket.
    fn serious(&self, what: &'static str, error: io::Error) -> Option<LinkError> {
        if is_transient(&error) {
            return None;
        }
        let error = match error.raw_os_error() {
            Some(_) => error,
            None => match get_option::<libc::c_int>(&self.socket, libc::SOL_SOCKET, libc::SO_ERROR) {
                Ok(0) => return None,
                Ok(code) => io::Error::from_raw_os_error(code),
                Err(e) => e,
            },
        };
        (!is_transient(&error)).then(|| self.interface.error(what, NEEDS, error))
    }
}

/// Whether a received frame has this protocol's EtherType and this station's address.
fn is_ours(frame: &[u8], ethertype: u16, mac: Mac) -> bool {
    frame.len() >= ETHERNET_HEADER && frame[12..14] == ethertype.to_be_bytes() && frame[..6] == mac.0
}

/// Whether a later attempt may succeed: no frame, no space in the queue, or the interface is down for now.
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), TimedOut | WouldBlock | Interrupted)
        || matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENETDOWN))
}

impl Sender {
    /// Sends the waiting frame, if any. Returns `true` if no frame waits any more.
    fn drain(&mut self) -> bool {
        let Some((start, end)) = self.waiting else { return true };
        match self.channel.send_to(&self.buffer[start..end], None) {
            Some(Err(e)) if is_transient(&e) => return false,
            // The frame is too long for an MTU that has just shrunk, so it is lost.
            Some(Err(e)) if e.raw_os_error() == Some(libc::EMSGSIZE) => self.errors += 1,
            Some(Err(e)) => {
                self.errors += 1;
                self.failed = Some(e);
            }
            Some(Ok(())) | None => {}
        }
        self.waiting = None;
        true
    }
}

impl Transmit for Sender {
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.max_frame {
            return None;
        }
        if !self.drain() {
            self.full += 1;
            return None;
        }
        self.lent = Some(len);
        Some(&mut self.buffer[vlan::TAG_LEN..vlan::TAG_LEN + len])
    }

    fn commit(&mut self) {
        let Some(len) = self.lent.take() else { return };
        let end = vlan::TAG_LEN + len;
        let start = match self.priority {
            Some(priority) => {
                vlan::insert(&mut self.buffer[..end], priority);
                0
            }
            None => vlan::TAG_LEN,
        };
        self.frames += 1;
        self.bytes += len as u64;
        self.waiting = Some((start, end));
        self.drain();
    }
}

impl LinkDetail for PnetLink {
    fn detail(&mut self) -> &mut String {
        &mut self.info.detail
    }
}

impl Link for PnetLink {
    fn info(&self) -> &LinkInfo {
        &self.info
    }

    /// Reads at most `budget` frames, including those of other protocols, which are dropped.
    fn receive(&mut self, budget: usize, on_frame: &mut OnFrame<'_>) -> Result<usize, LinkError> {
        let mut received = 0;
        for _ in 0..budget {
            let len = match self.receiver.next() {
                Ok(frame) => {
                    self.frame[..frame.len()].copy_from_slice(frame);
                    frame.len()
                }
                Err(e) => match self.serious("receive", e) {
                    Some(error) => return Err(error),
                    None => break,
                },
            };
            let frame = vlan::strip(&mut self.frame[..len]);
            if is_ours(frame, self.ethertype, self.info.mac) {
                self.rx_frames += 1;
                self.rx_bytes += frame.len() as u64;
                received += 1;
                on_frame(frame, &mut self.sender);
            }
        }
        Ok(received)
    }

    fn transmit(&mut self) -> &mut dyn Transmit {
        &mut self.sender
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.sender.drain();
        match self.sender.failed.take() {
            Some(e) => self.serious("send", e).map_or(Ok(()), Err),
            None => Ok(()),
        }
    }

    fn has_unsent(&mut self) -> bool {
        self.sender.waiting.is_some()
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        poll_in(&self.socket, timeout).map_err(|e| self.interface.error("wait for frames", NEEDS, e))
    }

    fn readiness(&self) -> Option<RawFd> {
        Some(self.socket)
    }

    fn counters(&mut self) -> LinkCounters {
        // tpacket_stats: frames seen and frames dropped since the last call.
        if let Ok([_, dropped]) =
            get_option::<[u32; 2]>(&self.socket, libc::SOL_PACKET, libc::PACKET_STATISTICS)
        {
            self.rx_dropped += u64::from(dropped);
        }
        LinkCounters {
            rx_frames: self.rx_frames,
            rx_bytes: self.rx_bytes,
            tx_frames: self.sender.frames,
            tx_bytes: self.sender.bytes,
            rx_dropped: self.rx_dropped,
            tx_full: self.sender.full,
            tx_errors: self.sender.errors,
            ..LinkCounters::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_frames_of_the_protocol() {
        let me = Mac([2, 0, 0, 0, 0, 1]);
        let frame = |dst: [u8; 6], ethertype: u16| {
            let mut frame = vec![0u8; 60];
            frame[..6].copy_from_slice(&dst);
            frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
            frame
        };
        assert!(is_ours(&frame(me.0, 0x88b5), 0x88b5, me));
        assert!(!is_ours(&frame([0xff; 6], 0x88b5), 0x88b5, me));
        assert!(!is_ours(&frame(me.0, 0x0800), 0x88b5, me));
        assert!(!is_ours(&frame([2, 0, 0, 0, 0, 2], 0x88b5), 0x88b5, me));
        assert!(!is_ours(&frame(me.0, 0x88b5)[..13], 0x88b5, me));
    }
}
