//! What is known of one page, in 64 bits: its state, what happened to it meanwhile, its slot of CMem and its frame.
//!
//! Entries lie in memory that outlives the agent, so that its successor can go on from them. They are therefore written
//! as wholes, before what they promise is done: a page is marked dirty before it is unprotected, and absent before it
//! is taken away.
//!
//! ```text
//!   bit 63     40 39        8 7      4 3     0
//!      +---------+-----------+--------+-------+
//!      |  frame  |   slot    |  flags | state |
//!      +---------+-----------+--------+-------+
//! ```

use super::frames::FrameId;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// In CMem only, or never written and so nowhere.
    Absent = 0,
    /// On its way from CMem into its frame.
    Fetching = 1,
    /// In its frame, not in memory: read ahead, or about to be installed.
    Held = 2,
    /// Being installed writable.
    Installing = 3,
    /// In memory as in CMem, write-protected.
    Clean = 4,
    /// In memory and writable; its frame, if any, is the twin: what CMem has.
    Dirty = 5,
    /// In memory, write-protected, its copy on its way to CMem; its frame, if any, is the twin.
    Cleaning = 6,
    /// As in CMem, write-protected, and about to be taken away.
    Dropping = 7,
    /// Its data is lost.
    Lost = 8,
}

impl State {
    const ALL: [State; 9] = [
        State::Absent,
        State::Fetching,
        State::Held,
        State::Installing,
        State::Clean,
        State::Dirty,
        State::Cleaning,
        State::Dropping,
        State::Lost,
    ];

    /// Whether the page takes up memory of its process.
    pub fn is_resident(self) -> bool {
        matches!(self, State::Clean | State::Dirty | State::Cleaning | State::Dropping)
    }
}

/// What happened meanwhile, and where it is queued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    /// Somebody waits for it.
    pub const WANTED: Flags = Flags(1);
    /// Its content was discarded meanwhile.
    pub const ZAPPED: Flags = Flags(2);
    /// Being sent, to be taken away afterwards.
    pub const LEAVING: Flags = Flags(4);
    /// It has left memory not long ago.
    pub const RECENT: Flags = Flags(8);

    /// All of them.
    pub fn contains(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }
}

/// An entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry(pub u64);

const STATE: u64 = 0xF;
const FLAGS_AT: u32 = 4;
const SLOT_AT: u32 = 8;
const FRAME_AT: u32 = 40;
const NO_FRAME: u64 = (1 << 24) - 1;

/// No slot: the page was never written, and is all zeros.
pub const NO_SLOT: u32 = u32::MAX;

impl Entry {
    /// Absent, its content in `slot` (or [`NO_SLOT`]).
    pub const fn absent(slot: u32) -> Entry {
        Entry(NO_FRAME << FRAME_AT | (slot as u64) << SLOT_AT)
    }

    /// Where the page is.
    ///
    /// What is no state reads as lost: entries lie where other processes can write.
    #[inline]
    pub fn state(self) -> State {
        *State::ALL.get((self.0 & STATE) as usize).unwrap_or(&State::Lost)
    }

    /// What happened meanwhile.
    #[inline]
    pub fn flags(self) -> Flags {
        Flags((self.0 >> FLAGS_AT) as u8 & 0xF)
    }

    /// Whether all of `flags` are set.
    #[inline]
    pub fn is(self, flags: Flags) -> bool {
        self.flags().contains(flags)
    }

    /// Its slot, if it has one.
    #[inline]
    pub fn slot(self) -> Option<u32> {
        Some((self.0 >> SLOT_AT) as u32).filter(|slot| *slot != NO_SLOT)
    }

    /// Its frame, if it has one.
    #[inline]
    pub fn frame(self) -> Option<FrameId> {
        let frame = self.0 >> FRAME_AT;
        (frame != NO_FRAME).then_some(FrameId(frame as u32))
    }

    /// The same in another state, with no flags but [`Flags::RECENT`] as it was.
    #[inline]
    #[must_use]
    pub fn to(self, state: State) -> Entry {
        let recent = u64::from(Flags::RECENT.0) << FLAGS_AT;
        let flags = 0xF << FLAGS_AT;
        Entry(self.0 & !STATE & !(flags & !recent) | state as u64)
    }

    /// With these flags too.
    #[inline]
    #[must_use]
    pub fn with(self, flags: Flags) -> Entry {
        Entry(self.0 | u64::from(flags.0) << FLAGS_AT)
    }

    /// Without these flags.
    #[inline]
    #[must_use]
    pub fn without(self, flags: Flags) -> Entry {
        Entry(self.0 & !(u64::from(flags.0) << FLAGS_AT))
    }

    /// With another slot.
    #[inline]
    #[must_use]
    pub fn with_slot(self, slot: Option<u32>) -> Entry {
        let slot = u64::from(slot.unwrap_or(NO_SLOT));
        Entry(self.0 & !(u64::from(u32::MAX) << SLOT_AT) | slot << SLOT_AT)
    }

    /// With another frame.
    #[inline]
    #[must_use]
    pub fn with_frame(self, frame: Option<FrameId>) -> Entry {
        let frame = frame.map_or(NO_FRAME, |frame| u64::from(frame.0) & NO_FRAME);
        Entry(self.0 & !(NO_FRAME << FRAME_AT) | frame << FRAME_AT)
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}{:?} slot {:?} frame {:?}", self.state(), self.flags(), self.slot(), self.frame())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch_each_other() {
        let entry = Entry::absent(NO_SLOT);
        assert_eq!((entry.state(), entry.slot(), entry.frame()), (State::Absent, None, None));
        let full = entry
            .with_slot(Some(0xABCD_1234))
            .with_frame(Some(FrameId(0x12_3456)))
            .with(Flags::WANTED)
            .with(Flags::RECENT)
            .with(Flags::ZAPPED);
        for state in State::ALL {
            let entry = full.to(state);
            assert_eq!(
                (entry.state(), entry.slot(), entry.frame()),
                (state, Some(0xABCD_1234), Some(FrameId(0x12_3456)))
            );
            assert!(entry.is(Flags::RECENT) && !entry.is(Flags::WANTED) && !entry.is(Flags::ZAPPED));
        }
        assert_eq!(full.with_slot(None).slot(), None);
        assert_eq!(full.with_frame(None).frame(), None);
        assert!(!full.without(Flags::WANTED).is(Flags::WANTED));
        assert_eq!(Entry(0xF).state(), State::Lost, "what is no state is not taken for one");
    }
}
