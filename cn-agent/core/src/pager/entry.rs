//! State of one page in 64 bits: its phase, flags, its slot of CMem and its buffer.
//!
//! Entries lie in memory that outlives the agent, so that a successor can continue from them. Each entry is
//! therefore written atomically, before the action that it announces: a page is marked dirty before it is
//! unprotected, and absent before it is evicted.
//!
//! ```text
//!   bit 63     40    39     38        8 7      4 3     0
//!      +---------+---------+-----------+--------+-------+
//!      |  buffer | written |   slot    |  flags | state |
//!      +---------+---------+-----------+--------+-------+
//! ```
//!
//! *Written* records that the page was written to when it was last resident. The bit is kept through all
//! states, and only serves as a hint to install the page writable next time.

use super::page_buffers::BufferId;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PageState {
    /// The content is in CMem only. A page that was never written is all zeros, and has no content in CMem.
    Absent = 0,
    /// The content is being fetched from CMem into the page's buffer.
    Fetching = 1,
    /// The content is in the page's buffer and not resident: read ahead, or about to be installed.
    Staged = 2,
    /// The page is being installed writable.
    Installing = 3,
    /// Resident, equal to CMem, and write-protected.
    Clean = 4,
    /// Resident and writable; the page's buffer, if any, is its twin: the content in CMem.
    Dirty = 5,
    /// Resident and write-protected, while a copy is sent to CMem; the page's buffer, if any, is its twin.
    Cleaning = 6,
    /// Equal to CMem, write-protected, and about to be evicted.
    Dropping = 7,
    /// The page's content is lost: an access raises SIGBUS.
    Lost = 8,
    /// Not resident and all zeros, which are being sent to CMem from the page's buffer; the page has no slot until
    /// they have arrived.
    Zeroing = 9,
}

impl PageState {
    const ALL: [PageState; 10] = [
        PageState::Absent,
        PageState::Fetching,
        PageState::Staged,
        PageState::Installing,
        PageState::Clean,
        PageState::Dirty,
        PageState::Cleaning,
        PageState::Dropping,
        PageState::Lost,
        PageState::Zeroing,
    ];

    /// Whether the page takes up memory of its process or of the shared file.
    #[inline]
    pub(crate) fn is_resident(self) -> bool {
        matches!(self, PageState::Clean | PageState::Dirty | PageState::Cleaning | PageState::Dropping)
    }
}

/// Events of the page since its phase began, and its membership in queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    /// A thread waits for the page.
    pub const WANTED: Flags = Flags(1);
    /// The page's content was discarded during the phase.
    pub const ZAPPED: Flags = Flags(2);
    /// The page is being sent, and is evicted afterwards.
    pub(crate) const LEAVING: Flags = Flags(4);
    /// The page was evicted not long ago.
    pub const RECENT: Flags = Flags(8);
    /// For a [`RECENT`](Flags::RECENT) page: the page was in the queue of proven pages when it was evicted.
    pub const PROVEN: Flags = Flags::LEAVING;

    #[inline]
    pub fn contains(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }
}

/// State of one page as a 64-bit word; see the module for its layout.
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
    /// Returns the entry of an absent page with its content in `slot`, or in none if `slot` is [`NO_SLOT`].
    #[inline]
    pub const fn absent(slot: u32) -> Entry {
        Entry(NO_BUFFER << BUFFER_AT | (slot as u64 & SLOT) << SLOT_AT)
    }

    /// Returns the page's phase. An invalid value, which other processes can write, counts as lost.
    #[inline]
    pub fn state(self) -> PageState {
        *PageState::ALL.get((self.0 & STATE) as usize).unwrap_or(&PageState::Lost)
    }

    #[inline]
    pub fn flags(self) -> Flags {
        Flags((self.0 >> FLAGS_AT) as u8 & 0xF)
    }

    #[inline]
    pub fn is(self, flags: Flags) -> bool {
        self.flags().contains(flags)
    }

    /// Returns the slot with the page's content; `None` if the page has only zeros.
    #[inline]
    pub fn slot(self) -> Option<u32> {
        let slot = self.0 >> SLOT_AT & SLOT;
        (slot != SLOT).then_some(slot as u32)
    }

    #[inline]
    pub fn buffer(self) -> Option<BufferId> {
        let buffer = self.0 >> BUFFER_AT;
        (buffer != NO_BUFFER).then_some(BufferId(buffer as u32))
    }

    /// Returns this entry in another phase. All flags are cleared, except that a page that is not resident
    /// keeps [`Flags::RECENT`] and, with it, [`Flags::PROVEN`].
    #[inline]
    #[must_use]
    pub fn to(self, state: PageState) -> Entry {
        let stays = if self.is(Flags::RECENT) && !state.is_resident() {
            Flags::RECENT.0 | Flags::PROVEN.0
        } else {
            0
        };
        let (stays, flags) = (u64::from(stays) << FLAGS_AT, 0xF << FLAGS_AT);
        Entry(self.0 & !STATE & !(flags & !stays) | state as u64)
    }

    /// Returns this entry without [`Flags::RECENT`] and [`Flags::PROVEN`].
    #[inline]
    #[must_use]
    pub fn forgotten(self) -> Entry {
        if self.is(Flags::RECENT) { self.without(Flags::RECENT).without(Flags::PROVEN) } else { self }
    }

    #[inline]
    #[must_use]
    pub fn with(self, flags: Flags) -> Entry {
        Entry(self.0 | u64::from(flags.0) << FLAGS_AT)
    }

    #[inline]
    #[must_use]
    pub fn without(self, flags: Flags) -> Entry {
        Entry(self.0 & !(u64::from(flags.0) << FLAGS_AT))
    }

    #[inline]
    #[must_use]
    pub(crate) fn with_slot(self, slot: Option<u32>) -> Entry {
        let slot = u64::from(slot.unwrap_or(NO_SLOT)) & SLOT;
        Entry(self.0 & !(SLOT << SLOT_AT) | slot << SLOT_AT)
    }

    /// Whether the page was written to when it was last resident, as far as this was recorded.
    #[inline]
    pub fn was_written(self) -> bool {
        self.0 & WRITTEN != 0
    }

    #[inline]
    #[must_use]
    pub(crate) fn with_written(self, written: bool) -> Entry {
        Entry(if written { self.0 | WRITTEN } else { self.0 & !WRITTEN })
    }

    #[inline]
    #[must_use]
    pub(crate) fn with_buffer(self, buffer: Option<BufferId>) -> Entry {
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
        assert_eq!((entry.state(), entry.slot(), entry.buffer()), (PageState::Absent, None, None));
        assert!(!entry.was_written());
        let full = entry
            .with_slot(Some(0x6BCD_1234))
            .with_written(true)
            .with_buffer(Some(BufferId(0x12_3456)))
            .with(Flags::WANTED)
            .with(Flags::RECENT)
            .with(Flags::ZAPPED);
        for state in PageState::ALL {
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
        let left = full.forgotten().to(PageState::Absent).with(Flags::RECENT).with(Flags::PROVEN);
        assert!(left.to(PageState::Fetching).with(Flags::WANTED).is(Flags::PROVEN));
        assert!(!left.forgotten().is(Flags::RECENT) && !left.forgotten().is(Flags::PROVEN));
        let leaving = full.forgotten().to(PageState::Cleaning).with(Flags::LEAVING);
        assert!(leaving.forgotten().is(Flags::LEAVING) && !leaving.to(PageState::Dirty).is(Flags::LEAVING));
        assert_eq!(full.with_slot(None).slot(), None);
        assert_eq!(full.with_buffer(None).buffer(), None);
        assert!(!full.without(Flags::WANTED).is(Flags::WANTED));
        assert_eq!(Entry(0xF).state(), PageState::Lost, "what is no state is not taken for one");
    }
}
