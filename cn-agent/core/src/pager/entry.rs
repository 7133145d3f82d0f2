//! What is known of one page, in 64 bits: its state, what happened to it meanwhile, its slot of CMem and its buffer.
//!
//! Entries lie in memory that outlives the agent, so that its successor can go on from them. They are therefore written
//! as wholes, before what they promise is done: a page is marked dirty before it is unprotected, and absent before it
//! is taken away.
//!
//! ```text
//!   bit 63     40    39     38        8 7      4 3     0
//!      +---------+---------+-----------+--------+-------+
//!      |  buffer | written |   slot    |  flags | state |
//!      +---------+---------+-----------+--------+-------+
//! ```
//!
//! *Written* is what is known of the page's past: when it was in memory last it was written to. It is kept through all
//! states, and means nothing but that it may pay to let whoever wants it next write at once.

use super::page_buffers::BufferId;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// In CMem only, or never written and so nowhere.
    Absent = 0,
    /// On its way from CMem into its buffer.
    Fetching = 1,
    /// In its buffer, not in memory: read ahead, or about to be installed.
    Staged = 2,
    /// Being installed writable.
    Installing = 3,
    /// In memory as in CMem, write-protected.
    Clean = 4,
    /// In memory and writable; its buffer, if any, is the twin: what CMem has.
    Dirty = 5,
    /// In memory, write-protected, its copy on its way to CMem; its buffer, if any, is the twin.
    Cleaning = 6,
    /// As in CMem, write-protected, and about to be taken away.
    Dropping = 7,
    /// Its data is lost.
    Lost = 8,
    /// Nowhere in memory and all zeros, which are on their way to CMem from its buffer; it has no slot until they are there.
    Zeroing = 9,
}

impl State {
    const ALL: [State; 10] = [
        State::Absent,
        State::Fetching,
        State::Staged,
        State::Installing,
        State::Clean,
        State::Dirty,
        State::Cleaning,
        State::Dropping,
        State::Lost,
        State::Zeroing,
    ];

    /// Whether the page takes up memory of its process.
    #[inline]
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
    /// Of a page that is [`RECENT`](Flags::RECENT): it was among those that had proved their worth.
    pub const PROVEN: Flags = Flags::LEAVING;

    /// All of them.
    #[inline]
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
const SLOT: u64 = (1 << 31) - 1;
const WRITTEN: u64 = 1 << 39;
const BUFFER_AT: u32 = 40;
const NO_BUFFER: u64 = (1 << 24) - 1;

/// No slot: the page was never written, and is all zeros. Slots are numbers below 2^31 - 1.
pub const NO_SLOT: u32 = u32::MAX;

impl Entry {
    /// Absent, its content in `slot` (or [`NO_SLOT`]).
    #[inline]
    pub const fn absent(slot: u32) -> Entry {
        Entry(NO_BUFFER << BUFFER_AT | (slot as u64 & SLOT) << SLOT_AT)
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
        let slot = self.0 >> SLOT_AT & SLOT;
        (slot != SLOT).then_some(slot as u32)
    }

    /// Its buffer, if it has one.
    #[inline]
    pub fn buffer(self) -> Option<BufferId> {
        let buffer = self.0 >> BUFFER_AT;
        (buffer != NO_BUFFER).then_some(BufferId(buffer as u32))
    }

    /// The same in another state, with no flags but [`Flags::RECENT`] as it was, and [`Flags::PROVEN`] with it; without these
    /// too once it is in memory.
    #[inline]
    #[must_use]
    pub fn to(self, state: State) -> Entry {
        let stays = if self.is(Flags::RECENT) && !state.is_resident() {
            Flags::RECENT.0 | Flags::PROVEN.0
        } else {
            0
        };
        let (stays, flags) = (u64::from(stays) << FLAGS_AT, 0xF << FLAGS_AT);
        Entry(self.0 & !STATE & !(flags & !stays) | state as u64)
    }

    /// Without what was remembered of it.
    #[inline]
    #[must_use]
    pub fn forgotten(self) -> Entry {
        if self.is(Flags::RECENT) { self.without(Flags::RECENT).without(Flags::PROVEN) } else { self }
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
        let slot = u64::from(slot.unwrap_or(NO_SLOT)) & SLOT;
        Entry(self.0 & !(SLOT << SLOT_AT) | slot << SLOT_AT)
    }

    /// Whether it was written to when it was in memory last, as far as that is known.
    #[inline]
    pub fn was_written(self) -> bool {
        self.0 & WRITTEN != 0
    }

    /// The same, and whether it was written to.
    #[inline]
    #[must_use]
    pub fn with_written(self, written: bool) -> Entry {
        Entry(if written { self.0 | WRITTEN } else { self.0 & !WRITTEN })
    }

    /// With another buffer.
    #[inline]
    #[must_use]
    pub fn with_buffer(self, buffer: Option<BufferId>) -> Entry {
        let buffer = buffer.map_or(NO_BUFFER, |buffer| u64::from(buffer.0) & NO_BUFFER);
        Entry(self.0 & !(NO_BUFFER << BUFFER_AT) | buffer << BUFFER_AT)
    }
}

impl core::fmt::Debug for Entry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}{:?} slot {:?} buffer {:?}", self.state(), self.flags(), self.slot(), self.buffer())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch_each_other() {
        let entry = Entry::absent(NO_SLOT);
        assert_eq!((entry.state(), entry.slot(), entry.buffer()), (State::Absent, None, None));
        assert!(!entry.was_written());
        let full = entry
            .with_slot(Some(0x6BCD_1234))
            .with_written(true)
            .with_buffer(Some(BufferId(0x12_3456)))
            .with(Flags::WANTED)
            .with(Flags::RECENT)
            .with(Flags::ZAPPED);
        for state in State::ALL {
            let entry = full.to(state);
            assert_eq!(
                (entry.state(), entry.slot(), entry.buffer()),
                (state, Some(0x6BCD_1234), Some(BufferId(0x12_3456)))
            );
            assert!(entry.was_written() && entry.with_slot(None).was_written());
            assert_eq!(entry.with_written(false).with_written(true), entry);
            assert_eq!(entry.is(Flags::RECENT), !state.is_resident());
            assert!(!entry.is(Flags::WANTED) && !entry.is(Flags::ZAPPED));
        }
        let left = full.forgotten().to(State::Absent).with(Flags::RECENT).with(Flags::PROVEN);
        assert!(left.to(State::Fetching).with(Flags::WANTED).is(Flags::PROVEN));
        assert!(!left.forgotten().is(Flags::RECENT) && !left.forgotten().is(Flags::PROVEN));
        let leaving = full.forgotten().to(State::Cleaning).with(Flags::LEAVING);
        assert!(leaving.forgotten().is(Flags::LEAVING) && !leaving.to(State::Dirty).is(Flags::LEAVING));
        assert_eq!(full.with_slot(None).slot(), None);
        assert_eq!(full.with_buffer(None).buffer(), None);
        assert!(!full.without(Flags::WANTED).is(Flags::WANTED));
        assert_eq!(Entry(0xF).state(), State::Lost, "what is no state is not taken for one");
    }
}
