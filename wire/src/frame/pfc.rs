//! Priority flow control (IEEE 802.1Qbb): the frames by which switches and NICs pause each other. No switch
//! forwards a PFC frame, so a memory node with a long receive queue sends the same content to its CNs in a
//! Congestion frame of the protocol. This module encodes and decodes both.

use super::Mac;

/// Destination of PFC frames: a group address that no bridge forwards.
pub const PFC_DESTINATION: Mac = Mac([0x01, 0x80, 0xC2, 0x00, 0x00, 0x01]);
/// EtherType of MAC control frames (IEEE 802.3, clause 31).
pub const ETHERTYPE_MAC_CONTROL: u16 = 0x8808;
/// MAC control opcode of PFC frames.
pub(crate) const PFC_OPCODE: u16 = 0x0101;
/// Length in bytes of a PFC frame without its frame check sequence.
pub(crate) const PFC_FRAME_LEN: usize = 60;

/// Content of a PFC frame: the pause of each of the eight traffic classes.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct PfcVector {
    /// Bit n set: `quanta[n]` is valid (zero in it ends a pause). On the wire the field has 16 bits; the
    /// upper eight are ignored.
    pub enabled: u8,
    /// Pause of each class, in quanta of 512 bit times of the link.
    pub quanta: [u16; 8],
}

impl PfcVector {
    /// Length in bytes: the class-enable field and eight pauses.
    pub const LEN: usize = 18;

    /// Returns the pause of `class` (0 to 7) in quanta, or `None` if the class's bit is not set.
    #[inline]
    pub const fn pause(&self, class: u8) -> Option<u16> {
        if class < 8 && self.enabled >> class & 1 == 1 { Some(self.quanta[class as usize]) } else { None }
    }

    /// Decodes a vector, without any check of the values.
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let mut quanta = [0; 8];
        for (class, pause) in quanta.iter_mut().enumerate() {
            *pause = u16::from_be_bytes([bytes[2 + 2 * class], bytes[3 + 2 * class]]);
        }
        Self { enabled: bytes[1], quanta }
    }

    /// Encodes the vector as a PFC or Congestion frame has it.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[1] = self.enabled;
        for (pause, out) in self.quanta.iter().zip(bytes[2..].chunks_exact_mut(2)) {
            out.copy_from_slice(&pause.to_be_bytes());
        }
        bytes
    }

    /// Decodes a whole PFC frame. Returns the sender and the vector, or `None` if `frame` is not a PFC frame.
    pub fn parse_frame(frame: &[u8]) -> Option<(Mac, Self)> {
        let (head, rest) = frame.split_first_chunk::<16>()?;
        let is_pfc = head[..6] == PFC_DESTINATION.0
            && head[12..14] == ETHERTYPE_MAC_CONTROL.to_be_bytes()
            && head[14..16] == PFC_OPCODE.to_be_bytes();
        if !is_pfc {
            return None;
        }
        let source = Mac([head[6], head[7], head[8], head[9], head[10], head[11]]);
        Some((source, Self::parse(rest.first_chunk()?)))
    }

    /// Encodes a whole PFC frame from `source`.
    pub fn frame(&self, source: Mac) -> [u8; PFC_FRAME_LEN] {
        let mut frame = [0; PFC_FRAME_LEN];
        frame[..6].copy_from_slice(&PFC_DESTINATION.0);
        frame[6..12].copy_from_slice(&source.0);
        frame[12..14].copy_from_slice(&ETHERTYPE_MAC_CONTROL.to_be_bytes());
        frame[14..16].copy_from_slice(&PFC_OPCODE.to_be_bytes());
        frame[16..16 + Self::LEN].copy_from_slice(&self.to_bytes());
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Mac = Mac([2, 0, 0, 0, 0, 9]);

    #[rustfmt::skip]
    const FRAME: [u8; PFC_FRAME_LEN] = [
        0x01, 0x80, 0xC2, 0, 0, 0x01,
        0x02, 0, 0, 0, 0, 0x09,
        0x88, 0x08,
        0x01, 0x01,
        0x00, 0x88,
        0, 0, 0, 0, 0, 0, 0x12, 0x34,
        0, 0, 0, 0, 0, 0, 0xff, 0xff,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];

    const VECTOR: PfcVector = PfcVector { enabled: 0x88, quanta: [0, 0, 0, 0x1234, 0, 0, 0, 0xffff] };

    #[test]
    fn literal_bytes() {
        assert_eq!(PfcVector::parse_frame(&FRAME), Some((SOURCE, VECTOR)));
        assert_eq!(VECTOR.frame(SOURCE), FRAME);
        assert_eq!(VECTOR.pause(3), Some(0x1234));
        assert_eq!(VECTOR.pause(2), None);
        assert_eq!(VECTOR.pause(200), None);
    }

    #[test]
    fn reserved_bits_and_padding_are_ignored() {
        let mut frame = FRAME;
        frame[16] = 0xff;
        frame[59] = 0xff;
        assert_eq!(PfcVector::parse_frame(&frame), Some((SOURCE, VECTOR)));
        assert_eq!(PfcVector::parse_frame(&FRAME[..34]), Some((SOURCE, VECTOR)));
    }

    #[test]
    fn anything_else() {
        for len in 0..34 {
            assert_eq!(PfcVector::parse_frame(&FRAME[..len]), None);
        }
        // Each of these changes makes the frame invalid: another destination, another EtherType, the opcode of the
        // older PAUSE (1).
        for (at, value) in [(5, 0), (12, 0x87), (14, 0)] {
            let mut frame = FRAME;
            frame[at] = value;
            assert_eq!(PfcVector::parse_frame(&frame), None);
        }
    }
}
