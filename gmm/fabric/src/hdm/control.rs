//! A decoder's control register (CXL 3.1, 8.2.4.20.7), which tools and fabric managers read.

use super::{DecoderError, Granularity, Ways};

const IG: u32 = 0xF;
const IW_SHIFT: u32 = 4;
const IW: u32 = 0xF << IW_SHIFT;
const LOCK: u32 = 1 << 8;
const COMMIT: u32 = 1 << 9;
const COMMITTED: u32 = 1 << 10;
const COMMIT_ERROR: u32 = 1 << 11;
const TARGET_TYPE: u32 = 1 << 12;

/// The party that keeps the memory behind a decoder coherent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum TargetType {
    /// The device and the host (HDM-D, HDM-DB): target type bit clear.
    Device,
    /// The host alone (HDM-H), as with a memory expander: target type bit set.
    #[default]
    HostOnly,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Control {
    /// Interleave granularity, bits 3:0 (IG).
    pub granularity: Granularity,
    /// Interleave ways, bits 7:4 (IW).
    pub ways: Ways,
    /// True if the decoder cannot be changed once committed, bit 8.
    pub lock: bool,
    /// True if a commit is requested, bit 9.
    pub commit: bool,
    /// True if the decoder claims its range, bit 10.
    pub committed: bool,
    /// True if the last commit was refused, bit 11.
    pub commit_error: bool,
    /// Coherence of the target, bit 12.
    pub target_type: TargetType,
}

impl Control {
    pub fn bits(self) -> u32 {
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        u32::from(self.granularity.ig())
            | u32::from(self.ways.iw()) << IW_SHIFT
            | flag(self.lock, LOCK)
            | flag(self.commit, COMMIT)
            | flag(self.committed, COMMITTED)
            | flag(self.commit_error, COMMIT_ERROR)
            | flag(self.target_type == TargetType::HostOnly, TARGET_TYPE)
    }

    /// Decodes the register; ignores bits other than those above.
    ///
    /// # Errors
    /// [`DecoderError::Ways`] or [`DecoderError::Granularity`] for reserved encodings.
    pub fn from_bits(bits: u32) -> Result<Control, DecoderError> {
        let set = |bit: u32| bits & bit != 0;
        Ok(Control {
            granularity: Granularity::from_ig((bits & IG) as u8)?,
            ways: Ways::from_iw(((bits & IW) >> IW_SHIFT) as u8)?,
            lock: set(LOCK),
            commit: set(COMMIT),
            committed: set(COMMITTED),
            commit_error: set(COMMIT_ERROR),
            target_type: if set(TARGET_TYPE) { TargetType::HostOnly } else { TargetType::Device },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{GranularityError, WaysError};
    use super::*;

    #[test]
    fn fields_have_their_places() {
        let control = Control {
            granularity: Granularity::from_ig(2).unwrap(),
            ways: Ways::Four,
            lock: true,
            commit: true,
            committed: true,
            commit_error: false,
            target_type: TargetType::HostOnly,
        };
        assert_eq!(control.bits(), 0x1722);
        let refused = Control {
            granularity: Granularity::MAX,
            ways: Ways::Twelve,
            lock: false,
            commit: true,
            committed: false,
            commit_error: true,
            target_type: TargetType::Device,
        };
        assert_eq!(refused.bits(), 0x0AA6);
    }

    #[test]
    fn every_value_is_read_or_refused_by_name() {
        for bits in 0..1 << 13 {
            let (ig, iw) = ((bits & 0xF) as u8, (bits >> 4 & 0xF) as u8);
            match Control::from_bits(bits) {
                Ok(control) => assert_eq!(control.bits(), bits),
                Err(DecoderError::Granularity(GranularityError::Encoding(e))) => assert!(e == ig && ig > 6),
                Err(DecoderError::Ways(WaysError::Encoding(e))) => {
                    assert!(e == iw && !matches!(iw, 0..=4 | 8..=10))
                }
                Err(error) => panic!("{bits:#x}: {error}"),
            }
        }
        assert_eq!(Control::from_bits(0xFFFF_E000).unwrap().bits(), 0);
    }
}
