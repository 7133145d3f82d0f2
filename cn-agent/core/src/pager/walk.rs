//! Walks: work on a whole table, which may have millions of entries, in steps between which other spaces are served. A
//! forked child gets a copy of its parent's table, an ended view's pages are released, and a view whose pages cannot be
//! removed any more gives its twins back.
//!
//! A walk has the same effect as if it were done at once, in the call that begins it: until the last walk has ended,
//! nothing else happens to any page. Faults wait, ends of transfers and of removals are held, and nothing is evicted.
//! Walks are done one after another, so that each finds the result of those before it. The caller's part in this is at
//! [`Pager::is_walking`].
//!
//! ```text
//!   forked, end_view, set_droppable --> walks: a step in each turn
//!                                                    | none left
//!                                                    v
//!   fetched, written, dropped --------> held: some in each turn
//!   fault ----------------------------> waiting, and other work of a turn
//! ```

use super::*;

/// Number of entries that one step of a walk goes through: a step takes some 80 us if all pages have content.
const STEP: u32 = 2048;
/// Number of entries for which one step examines the purposes of a chunk of page buffers instead: those of 16 chunks
/// take as long as a few hundred entries.
const ENTRIES_OF_CHUNK: u32 = 128;
/// Maximum number of held inputs that are handled in one turn.
const HELD_STEP: usize = 64;

/// Work on a whole table that is not done yet.
#[derive(Debug)]
pub(super) enum Walk {
    /// A forked child's table is filled, from page `next` on, with what the child inherits from its parent.
    Fork { parent: ViewId, child: ViewId, next: u32 },
    /// The twins of a view are given back, from the buffers of chunk `chunk` on.
    Twins { view: ViewId, chunk: usize },
    /// A view ends: first its transfers are parted from it, from the buffers of chunk `chunk` on, then its pages are
    /// released, from page `next` on. Only the entries before page `end` are valid.
    End { view: ViewId, chunk: usize, next: u32, end: u32 },
}

/// An input that waits for the end of the walks.
#[derive(Debug)]
pub(super) enum HeldInput {
    Fetched(BufferId, Result<(), Lost>),
    Written(BufferId, Result<(), Lost>),
    Dropped(ViewId, Range<u32>),
}

/// Walks in the order in which they are done, and the inputs that wait for them.
#[derive(Debug)]
pub(super) struct Walks {
    walks: VecDeque<Walk>,
    pub held: VecDeque<HeldInput>,
    /// Number of entries that a step goes through.
    pub step: u32,
}

impl Walks {
    pub fn new() -> Walks {
        Walks { walks: VecDeque::new(), held: VecDeque::with_capacity(HELD_STEP), step: STEP }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.walks.is_empty()
    }

    /// Number of chunks of page buffers whose purposes a step examines.
    fn chunks(&self) -> usize {
        (self.step / ENTRIES_OF_CHUNK).max(1) as usize
    }

    /// Whether the table of `view` is not complete yet.
    fn is_copied_to(&self, view: ViewId) -> bool {
        self.walks.iter().any(|walk| matches!(walk, Walk::Fork { child, .. } if *child == view))
    }

    /// Whether `view` is ending.
    pub fn is_ending(&self, view: ViewId) -> bool {
        self.walks.iter().any(|walk| matches!(walk, Walk::End { view: of, .. } if *of == view))
    }

    /// Gives up the copy of a table to `child`, which has ended, and returns the number of entries that are valid.
    /// Returns `None` if there is no such copy, or if it is needed because the child has forked itself.
    pub fn give_up_copy(&mut self, child: ViewId) -> Option<u32> {
        let has_forked = |walk: &Walk| matches!(walk, Walk::Fork { parent, .. } if *parent == child);
        if self.walks.iter().any(has_forked) {
            return None;
        }
        let to_child = |walk: &Walk| matches!(walk, Walk::Fork { child: of, .. } if *of == child);
        let at = self.walks.iter().position(to_child)?;
        match self.walks.remove(at) {
            Some(Walk::Fork { next, .. }) => Some(next),
            _ => None,
        }
    }
}

impl Pager {
    /// Whether the pager goes through a whole table, a part of it in each turn, and lets all else wait. Discards
    /// ([`discarded`](Self::discarded)) have to wait at the caller. The caller should not report forks either, which
    /// would begin another walk before faults are served.
    #[inline]
    pub fn is_walking(&self) -> bool {
        !self.walks.is_empty()
    }

    /// Whether the table of a forked child is not complete yet. Until it is, a successor of the agent must not take it
    /// over.
    pub fn is_copying(&self, child: ViewId) -> bool {
        self.walks.is_copied_to(child)
    }

    /// Sets the number of entries that a step of a walk goes through; for tests and simulations with small tables.
    pub fn set_walk_step(&mut self, entries: u32) {
        self.walks.step = entries.max(1);
    }

    /// Adds a walk. Its first step is done at once, unless others have to end before it, so that a small table needs no
    /// turn.
    pub(super) fn begin_walk(&mut self, walk: Walk) {
        self.walks.walks.push_back(walk);
        if self.walks.walks.len() == 1 {
            self.walk();
        }
    }

    /// Does a step of the first walk; returns the amount of work.
    pub(super) fn walk(&mut self) -> usize {
        let Some(walk) = self.walks.walks.pop_front() else { return 0 };
        let rest = match walk {
            Walk::Fork { parent, child, next } => {
                let next = self.copy_some(parent, child, next);
                next.map(|next| Walk::Fork { parent, child, next })
            }
            Walk::Twins { view, chunk } => {
                let chunk = self.give_some_twins(view, chunk);
                chunk.map(|chunk| Walk::Twins { view, chunk })
            }
            Walk::End { view, chunk, next, end } if chunk < self.buffers.chunks() => {
                let until = self.buffers.chunks().min(chunk + self.walks.chunks());
                self.part_transfers(view, chunk..until);
                if until < self.buffers.chunks() {
                    Some(Walk::End { view, chunk: until, next, end })
                } else {
                    let next = self.release_some(view, next, end);
                    next.map(|next| Walk::End { view, chunk: until, next, end })
                }
            }
            Walk::End { view, chunk, next, end } => {
                let next = self.release_some(view, next, end);
                next.map(|next| Walk::End { view, chunk, next, end })
            }
        };
        if let Some(rest) = rest {
            self.walks.walks.push_front(rest);
        }
        1
    }

    /// Handles some of the inputs that were held; returns the amount of work.
    pub(super) fn take_held(&mut self, io: &mut Io<'_>) -> usize {
        let mut work = 0;
        while work < HELD_STEP
            && let Some(input) = self.walks.held.pop_front()
        {
            work += 1;
            match input {
                HeldInput::Fetched(buffer, outcome) => self.fetched(buffer, outcome, io),
                HeldInput::Written(buffer, outcome) => self.written(buffer, outcome, io),
                HeldInput::Dropped(view, pages) => self.dropped(view, pages, io),
            }
        }
        work
    }

    /// Frees the next twins of a view, because page buffers are only provided for pages that the limit bounds. Without
    /// a twin, a page is sent whole. Twins are found by their buffers, whose number the limit bounds, too. Returns the
    /// chunk of buffers at which to continue.
    fn give_some_twins(&mut self, view: ViewId, chunk: usize) -> Option<usize> {
        // Pages that can be removed again keep their twins.
        self.view(view).filter(|of| !of.droppable)?;
        let until = self.buffers.chunks().min(chunk + self.walks.chunks());
        for buffer in self.buffers.ids(chunk..until) {
            let page = match self.buffers.purpose(buffer) {
                BufferUse::Twin { view: of, page } if of == view => page,
                _ => continue,
            };
            let entry = self.entry(view, page);
            if (entry.state(), entry.buffer()) == (PageState::Dirty, Some(buffer)) {
                self.buffers.give(buffer);
                self.set(view, page, entry.with_buffer(None));
            }
        }
        (until < self.buffers.chunks()).then_some(until)
    }
}
