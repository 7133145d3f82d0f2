//! A socket of its own for 802.1Qbb frames: what the other end of the cable says about pausing, and what this end
//! says.
//!
//! PFC frames have an EtherType and a group address of their own and never carry an 802.1Q tag, so they do not come
//! through a [`Link`](super::Link). They lie in a small receive ring: looking whether there is one costs a load
//! from memory, no system call. Many NICs keep these frames to themselves and only count them
//! ([`ethtool`](super::ethtool)); where they do, this socket stays silent.

use std::io;
use std::os::fd::OwnedFd;

use memmap2::MmapOptions;

use super::LinkError;
use super::interface::Interface;
use super::packet::{NEEDS, RxRing, bind, open_socket, receive_ring};
use super::socket::{send, set_option};
use cxloe_wire::frame::{ETHERTYPE_MAC_CONTROL, Mac, PFC_DESTINATION, PfcVector};

/// Slots of the ring, and their size: the header the kernel needs and a frame of 60 bytes. One page.
const SLOTS: usize = 16;
const SLOT: usize = 256;

/// Receives and sends PFC frames on one interface.
pub struct PfcSocket {
    rx: RxRing,
    // The ring is unmapped before the socket closes: fields drop in this order.
    socket: OwnedFd,
    interface: Interface,
    sent: u64,
}

impl PfcSocket {
    /// Opens a socket on `interface`, in this thread's network namespace.
    ///
    /// # Errors
    /// As for a [`PacketLink`](super::packet::PacketLink): no such interface, down, no permission.
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

    /// Opens the socket again, on an interface that was away and may be called otherwise now; what was sent is counted
    /// on.
    ///
    /// # Errors
    /// As for [`open`](Self::open); the socket stays as it was then.
    pub fn reopen(&mut self, interface: &str) -> Result<(), LinkError> {
        *self = PfcSocket { sent: self.sent, ..PfcSocket::open(interface)? };
        Ok(())
    }

    /// The oldest PFC frame not yet taken, and who sent it.
    #[inline]
    pub fn receive(&mut self) -> Option<(Mac, PfcVector)> {
        if !self.rx.holds(1) { None } else { self.take() }
    }

    #[cold]
    fn take(&mut self) -> Option<(Mac, PfcVector)> {
        // Other MAC control frames (the older PAUSE) are of no use here.
        while let Some(frame) = self.rx.front() {
            let pfc = frame.and_then(|frame| PfcVector::parse_frame(frame));
            self.rx.release();
            if pfc.is_some() {
                return pfc;
            }
        }
        None
    }

    /// Sends a PFC frame to whoever is at the other end of the cable. A full queue loses it.
    ///
    /// # Errors
    /// [`LinkError`] for everything but a full queue and an interface that is down for now.
    pub fn send(&mut self, vector: &PfcVector) -> Result<(), LinkError> {
        let frame = vector.frame(self.interface.mac);
        let Err(error) = send(&self.socket, &frame) else {
            self.sent += 1;
            return Ok(());
        };
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR | libc::ENETDOWN | libc::ENXIO) => Ok(()),
            _ => Err(self.interface.error("send a PFC frame", NEEDS, error)),
        }
    }

    /// PFC frames sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }
}

/// Has the interface let the group address of PFC frames through.
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
