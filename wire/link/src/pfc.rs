//! Separate socket for 802.1Qbb frames: receives those from the other end of the cable, and sends this end's.
//!
//! PFC frames have their own EtherType and group address and no 802.1Q tag, so no [`Link`](super::Link) receives them.
//! They arrive in a small receive ring, so that a check for a frame costs one load from memory, but no system call.
//! Many NICs do not pass these frames on but only count them ([`ethtool`](super::ethtool)); then this socket receives
//! nothing.

use std::io;
use std::os::fd::OwnedFd;

use memmap2::MmapOptions;

use super::LinkError;
use super::interface::Interface;
use super::packet::{NEEDS, RxRing, bind, open_socket, receive_ring};
use super::socket::{send, set_option};
use cxloe_wire::frame::{ETHERTYPE_MAC_CONTROL, Mac, PFC_DESTINATION, PfcVector};

/// Number of slots of the ring, and their length in bytes: the kernel's header and a frame of 60 bytes. The
/// ring takes one page.
const SLOTS: usize = 16;
const SLOT: usize = 256;

/// Receives and sends PFC frames on one interface.
pub struct PfcSocket {
    rx: RxRing,
    // Fields drop in this order: the ring is unmapped before the socket closes.
    socket: OwnedFd,
    interface: Interface,
    sent: u64,
}

impl PfcSocket {
    /// Opens a socket on `interface`, in this thread's network namespace.
    ///
    /// # Errors
    /// As for a [`PacketLink`](super::packet::PacketLink): no such interface, interface down, no permission.
    pub fn open(interface: &str) -> Result<PfcSocket, LinkError> {
        let interface = Interface::find(interface)?;
        let fail = |what| {
            let interface = interface.clone();
            move |e| interface.error(what, NEEDS, e)
        };
        let socket = open_socket().map_err(fail("open a packet socket for PFC frames"))?;
        receive_ring(&socket, SLOT, SLOTS).map_err(fail("make the ring for PFC frames"))?;
        let map = MmapOptions::new().len(SLOT * SLOTS).populate().map_raw(&socket);
        let map = map.map_err(fail("map the ring for PFC frames"))?;
        join_group(&socket, interface.index).map_err(fail("listen to the group address of PFC frames"))?;
        bind(&socket, ETHERTYPE_MAC_CONTROL, interface.index)
            .map_err(fail("bind a socket for PFC frames"))?;
        Ok(PfcSocket { rx: RxRing::new(map, SLOT, SLOTS), socket, interface, sent: 0 })
    }

    /// Opens the socket again after the interface was unavailable; the interface may have another name now. The count
    /// of frames sent continues.
    ///
    /// # Errors
    /// As for [`open`](Self::open); the old socket then remains.
    pub fn reopen(&mut self, interface: &str) -> Result<(), LinkError> {
        *self = PfcSocket { sent: self.sent, ..PfcSocket::open(interface)? };
        Ok(())
    }

    /// Removes and returns the oldest PFC frame received, with its sender.
    #[inline]
    pub fn receive(&mut self) -> Option<(Mac, PfcVector)> {
        if !self.rx.holds(1) { None } else { self.take() }
    }

    #[cold]
    fn take(&mut self) -> Option<(Mac, PfcVector)> {
        // Other MAC control frames, such as the older PAUSE, are skipped.
        while let Some(frame) = self.rx.front() {
            let pfc = frame.and_then(|frame| PfcVector::parse_frame(frame));
            self.rx.release();
            if pfc.is_some() {
                return pfc;
            }
        }
        None
    }

    /// Sends a PFC frame to the other end of the cable. If the queue has no room, the frame is lost.
    ///
    /// # Errors
    /// [`LinkError`] for every error except a full queue and an interface that is down for now.
    pub fn send(&mut self, vector: &PfcVector) -> Result<(), LinkError> {
        let frame = vector.frame(self.interface.mac);
        let Err(error) = send(&self.socket, &frame) else {
            self.sent += 1;
            return Ok(());
        };
        // A lost PFC frame does no harm: the signal is repeated while the queue is long.
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR | libc::ENETDOWN | libc::ENXIO) => Ok(()),
            _ => Err(self.interface.error("send a PFC frame", NEEDS, error)),
        }
    }

    /// Number of PFC frames that the kernel has taken for sending.
    pub fn sent(&self) -> u64 {
        self.sent
    }
}

/// Makes the interface accept the group address of PFC frames.
fn join_group(socket: &OwnedFd, index: u32) -> io::Result<()> {
    let mut address = [0; 8];
    address[..6].copy_from_slice(&PFC_DESTINATION.0);
    let request = libc::packet_mreq {
        mr_ifindex: index as i32,
        mr_type: libc::PACKET_MR_MULTICAST as u16,
        mr_alen: 6,
        mr_address: address,
    };
    set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}
