//! Building and opening of one session's frames: addresses, sequence number, trailer.

use alloc::sync::Arc;
use core::fmt;
use core::ops::Deref;

use crate::Transmit;
use crate::frame::{Axi, Direction, FrameView, Header, Mac, Message, Seal, Space, frame_len};

/// Secret key that an operator gives to both ends beforehand, at least 16 bytes. A session derives its own
/// keys from it.
#[derive(Clone)]
pub struct PreSharedKey(Arc<[u8]>);

impl From<Arc<[u8]>> for PreSharedKey {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self(bytes)
    }
}

impl From<&[u8]> for PreSharedKey {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl Deref for PreSharedKey {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for PreSharedKey {
    /// Omits the key, because configurations are logged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreSharedKey").finish_non_exhaustive()
    }
}

/// Received frame whose end of data is known, not yet verified.
pub(super) type Received<'a> = FrameView<&'a mut [u8]>;

/// Addresses of both ends of a session, and the EtherType.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// MAC address of this end.
    pub own: Mac,
    /// MAC address of the other end.
    pub peer: Mac,
    /// EtherType of the session's frames, the same at both ends.
    pub ethertype: u16,
}

/// Builds the frames that this end sends in one session, and opens those that it receives.
#[derive(Debug)]
pub(super) struct Framer {
    pub id: Identity,
    pub seal: Seal,
    out: Direction,
}

impl Framer {
    pub fn at_cn(id: Identity, seal: Seal) -> Self {
        Framer { id, seal, out: Direction::ToMn }
    }

    pub fn at_mn(id: Identity, seal: Seal) -> Self {
        Framer { id, seal, out: Direction::ToCn }
    }

    fn incoming(&self) -> Direction {
        match self.out {
            Direction::ToMn => Direction::ToCn,
            Direction::ToCn => Direction::ToMn,
        }
    }

    #[inline(always)]
    pub fn header(&self, command: u8, seq: u64, axi: Axi, addr: u64) -> Header {
        Header {
            dst: self.id.peer,
            src: self.id.own,
            ethertype: self.id.ethertype,
            command,
            // The frame has only the low 16 bits (R11).
            seq: seq as u16,
            axi,
            addr,
        }
    }

    /// Writes a frame and queues it. Returns `false` if the transmit ring is full.
    #[inline]
    pub fn send(
        &self,
        tx: &mut dyn Transmit,
        space: Space,
        seq: u64,
        axi: Axi,
        addr: u64,
        message: &Message<'_>,
    ) -> bool {
        self.send_padded(tx, space, seq, axi, addr, message, 0)
    }

    /// [`send`](Self::send) for a frame padded to at least `len` bytes.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the fields of a frame")]
    fn send_padded(
        &self,
        tx: &mut dyn Transmit,
        space: Space,
        seq: u64,
        axi: Axi,
        addr: u64,
        message: &Message<'_>,
        len: usize,
    ) -> bool {
        let body = message.body_len();
        let Some(slot) = tx.slot(frame_len(body, self.seal.len()).max(len)) else { return false };
        message.emit(&self.header(message.command() as u8, seq, axi, addr), slot);
        self.seal.seal(self.out, space, slot, body, seq);
        tx.commit();
        true
    }

    /// Queues a Hello or HelloAck of `len` bytes in all; `write` fills in the bytes after the CRC-32C.
    pub fn send_keyed(
        &self,
        tx: &mut dyn Transmit,
        message: &Message<'_>,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) {
        let body = message.body_len();
        let Some(slot) = tx.slot(len) else { return };
        message.emit(&self.header(message.command() as u8, 0, Axi { stream: 0, tag: 0 }, 0), slot);
        self.seal.seal(self.out, Space::Control, slot, body, 0);
        // The checksum does not cover these bytes, so that a node without keys can verify the frame.
        write(slot);
        tx.commit();
    }

    /// Writes the trailer of a frame whose body is already in the transmit slot.
    #[inline]
    pub fn finish(&self, slot: &mut [u8], body: usize, space: Space, seq: u64) {
        self.seal.seal(self.out, space, slot, body, seq);
    }

    /// Whether a frame is genuine: sent by the peer, in this session, and unchanged. Decrypts a sealed frame
    /// in place.
    #[inline(always)]
    pub fn open(&self, frame: &mut Received<'_>, space: Space, seq: u64) -> bool {
        frame.open(&self.seal, self.incoming(), space, seq)
    }

    /// Queues a control frame of the session, padded to at least `len` bytes.
    pub fn send_control(&self, tx: &mut dyn Transmit, seq: u64, message: &Message<'_>, len: usize) -> bool {
        self.send_padded(tx, Space::Control, seq, Axi { stream: 0, tag: 0 }, 0, message, len)
    }
}
