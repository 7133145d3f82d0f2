//! The decoders of one component (a device, a switch port, a host bridge), and their permitted transitions.
//!
//! ```text
//!            program                commit, in ascending order
//!   Free -------------> Programmed ----------------------------> Committed --lock--> Locked
//!                        ^      ^                                    |
//!                        +------+ program       uncommit, in descending order
//!                        +-------------------------------------------+
//! ```

use super::control::{Control, TargetType};
use super::{Decoder, DecoderError};

/// Settings of a decoder: range, interleaving, skip and targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program<T> {
    /// Range of HPA and its interleaving.
    pub decoder: Decoder,
    /// Bytes of DPA skipped before this decoder's share.
    pub skip: u64,
    /// Targets by position: one per way, all different.
    pub targets: Vec<T>,
}

/// State of a decoder, which determines the permitted transitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlotState {
    /// Never programmed, or reset.
    Free,
    /// Programmed, but claims no addresses yet.
    Programmed,
    /// Claims the addresses of its range.
    Committed,
    /// Claims the addresses of its range until the component is reset.
    Locked,
}

/// Decoder, position and target that an HPA decodes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit<'a, T> {
    /// Number of the decoder that claims the address.
    pub index: usize,
    /// Position of the target in the decoder's interleave set.
    pub position: u32,
    /// Target at this position.
    pub target: &'a T,
    /// DPA within the decoder's own share; a device adds [`DecoderSet::dpa_base`].
    pub dpa: u64,
}

#[derive(Debug, Clone)]
struct Slot<T> {
    program: Option<Program<T>>,
    committed: bool,
    locked: bool,
    /// True if the last commit was refused: the register's bit for a commit error.
    refused: bool,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Slot { program: None, committed: false, locked: false, refused: false }
    }
}

/// The decoders of one component; `T` identifies a target.
#[derive(Debug, Clone)]
pub struct DecoderSet<T> {
    slots: Vec<Slot<T>>,
    unit: u64,
}

impl<T: PartialEq> DecoderSet<T> {
    /// Creates `count` free decoders whose bases and sizes are multiples of `unit` bytes.
    ///
    /// # Errors
    /// [`DecoderError::ZeroUnit`] if `unit` is 0.
    pub fn new(count: usize, unit: u64) -> Result<DecoderSet<T>, DecoderError> {
        if unit == 0 {
            return Err(DecoderError::ZeroUnit);
        }
        Ok(DecoderSet { slots: (0..count).map(|_| Slot::default()).collect(), unit })
    }

    /// Programs decoder `index`, in place of an earlier program. The program is checked when it is committed.
    ///
    /// # Errors
    /// [`DecoderError::NoSuchDecoder`], [`DecoderError::Locked`], [`DecoderError::Committed`].
    pub fn program(&mut self, index: usize, program: Program<T>) -> Result<(), DecoderError> {
        let slot = self.slot_mut(index)?;
        if slot.locked {
            return Err(DecoderError::Locked { index });
        }
        if slot.committed {
            return Err(DecoderError::Committed { index });
        }
        slot.program = Some(program);
        slot.refused = false;
        Ok(())
    }

    /// Commits decoder `index`, which then claims its range. No change if it is committed already.
    ///
    /// # Errors
    /// The first rule that the program violates; the decoder then has a commit error until it is programmed again or
    /// committed.
    pub fn commit(&mut self, index: usize) -> Result<(), DecoderError> {
        let checked = self.check(index);
        let slot = self.slot_mut(index)?;
        slot.committed |= checked.is_ok();
        slot.refused = checked.is_err();
        checked
    }

    /// Uncommits decoder `index`, which keeps its program.
    ///
    /// # Errors
    /// [`DecoderError::NoSuchDecoder`], [`DecoderError::NotCommitted`], [`DecoderError::Locked`],
    /// [`DecoderError::HigherCommitted`].
    #[cfg(test)]
    pub(crate) fn uncommit(&mut self, index: usize) -> Result<(), DecoderError> {
        let slot = self.slot(index)?;
        if slot.locked {
            return Err(DecoderError::Locked { index });
        }
        if !slot.committed {
            return Err(DecoderError::NotCommitted { index });
        }
        // Uncommitting is in descending order, so the highest committed decoder has to be uncommitted first.
        if let Some(higher) = (index + 1..self.slots.len()).rfind(|i| self.slots[*i].committed) {
            return Err(DecoderError::HigherCommitted { index, higher });
        }
        self.slot_mut(index)?.committed = false;
        Ok(())
    }

    /// Locks the committed decoder `index`, so that only [`reset`](Self::reset) uncommits it.
    ///
    /// # Errors
    /// [`DecoderError::NoSuchDecoder`], [`DecoderError::NotCommitted`].
    pub fn lock(&mut self, index: usize) -> Result<(), DecoderError> {
        let slot = self.slot_mut(index)?;
        if !slot.committed {
            return Err(DecoderError::NotCommitted { index });
        }
        slot.locked = true;
        Ok(())
    }

    /// Frees all decoders, locked ones included, as the reset of the component does.
    pub fn reset(&mut self) {
        self.slots.fill_with(Slot::default);
    }

    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// Returns the state of decoder `index`.
    ///
    /// # Errors
    /// [`DecoderError::NoSuchDecoder`].
    pub fn state(&self, index: usize) -> Result<SlotState, DecoderError> {
        let slot = self.slot(index)?;
        Ok(match slot {
            Slot { locked: true, .. } => SlotState::Locked,
            Slot { committed: true, .. } => SlotState::Committed,
            Slot { program: Some(_), .. } => SlotState::Programmed,
            _ => SlotState::Free,
        })
    }

    /// Returns the program of decoder `index`; `None` while it is free.
    ///
    /// # Errors
    /// [`DecoderError::NoSuchDecoder`].
    pub fn get(&self, index: usize) -> Result<Option<&Program<T>>, DecoderError> {
        Ok(self.slot(index)?.program.as_ref())
    }

    /// Returns the control register of decoder `index`; `None` while it is free.
    ///
    /// # Errors
    /// [`DecoderError::NoSuchDecoder`].
    pub fn control(&self, index: usize) -> Result<Option<Control>, DecoderError> {
        let slot = self.slot(index)?;
        Ok(slot.program.as_ref().map(|program| Control {
            granularity: program.decoder.granularity,
            ways: program.decoder.ways,
            lock: slot.locked,
            commit: slot.committed || slot.refused,
            committed: slot.committed,
            commit_error: slot.refused,
            target_type: TargetType::HostOnly,
        }))
    }

    /// Returns the first DPA of the share of decoder `index` in its device: the sum of the shares and skips
    /// of all lower decoders and of its own skip.
    ///
    /// # Errors
    /// [`DecoderError::NoSuchDecoder`], [`DecoderError::NotProgrammed`] for this one or a lower one,
    /// [`DecoderError::DpaWraps`].
    pub fn dpa_base(&self, index: usize) -> Result<u64, DecoderError> {
        self.slot(index)?;
        let mut base = 0_u64;
        for (at, slot) in self.slots[..=index].iter().enumerate() {
            let program = slot.program.as_ref().ok_or(DecoderError::NotProgrammed { index: at })?;
            let share = if at == index { 0 } else { program.decoder.share() };
            let next = base.checked_add(program.skip).and_then(|sum| sum.checked_add(share));
            base = next.ok_or(DecoderError::DpaWraps { index: at })?;
        }
        Ok(base)
    }

    /// Returns target and DPA of the byte at `hpa`; `None` if no committed decoder claims the address.
    pub fn decode(&self, hpa: u64) -> Option<Hit<'_, T>> {
        // Committed decoders come first in the list, ordered by base.
        let committed = self.slots.iter().take_while(|slot| slot.committed);
        committed.enumerate().find_map(|(index, slot)| {
            let program = slot.program.as_ref()?;
            let (position, dpa) = program.decoder.decode(hpa)?;
            Some(Hit { index, position, target: program.targets.get(position as usize)?, dpa })
        })
    }

    fn check(&self, index: usize) -> Result<(), DecoderError> {
        let slot = self.slot(index)?;
        let program = slot.program.as_ref().ok_or(DecoderError::NotProgrammed { index })?;
        let lower = index.checked_sub(1);
        if let Some(lower) = lower
            && !self.slots[lower].committed
        {
            // The lowest uncommitted decoder has to be committed first.
            let lower = self.slots.iter().position(|slot| !slot.committed).unwrap_or(lower);
            return Err(DecoderError::LowerNotCommitted { index, lower });
        }
        let decoder = &program.decoder;
        decoder.check(index, self.unit)?;
        if let Some((lower, below)) = lower.and_then(|at| Some((at, self.slots[at].program.as_ref()?))) {
            let lower_last = below.decoder.base + (below.decoder.size - 1);
            if decoder.base <= lower_last {
                return Err(DecoderError::BelowPrevious { index, base: decoder.base, lower, lower_last });
            }
        }
        let targets = &program.targets;
        if targets.len() != decoder.ways.count() as usize {
            return Err(DecoderError::TargetCount { index, ways: decoder.ways, targets: targets.len() });
        }
        for (second, target) in targets.iter().enumerate() {
            if let Some(first) = targets[..second].iter().position(|earlier| earlier == target) {
                return Err(DecoderError::TargetRepeated { index, first, second });
            }
        }
        if !program.skip.is_multiple_of(self.unit) {
            return Err(DecoderError::SkipUnaligned { index, skip: program.skip, unit: self.unit });
        }
        let ends = self.dpa_base(index)?.checked_add(decoder.share());
        ends.map(drop).ok_or(DecoderError::DpaWraps { index })
    }

    fn slot(&self, index: usize) -> Result<&Slot<T>, DecoderError> {
        self.slots.get(index).ok_or(DecoderError::NoSuchDecoder { index, count: self.slots.len() })
    }

    fn slot_mut(&mut self, index: usize) -> Result<&mut Slot<T>, DecoderError> {
        let count = self.slots.len();
        self.slots.get_mut(index).ok_or(DecoderError::NoSuchDecoder { index, count })
    }
}
