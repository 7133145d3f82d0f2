//! Extents that are filled with the content of others, page by page: a clone or a snapshot is served at once, and its
//! content is copied afterwards.
//!
//! ```text
//!   page of a copy:  absent --claimed by one thread--> being copied --> copied
//!
//!   a read or write of the target's page   copies that page first
//!   a write of the source's page           copies that page to each target first
//!   otherwise idle                         `PageTable::copy_pages` copies the rest
//! ```
//!
//! Source and copied pages are recorded in the pool, so that they outlive this process: the bit of a page is set after
//! its content is there. A page that was being copied when a process ended is copied again, because no request has used
//! it.
//!
//! Each worker has its own set of the copies, and renews it when it purges its TLB: if there are no copies, a request
//! costs only one more comparison. A target is mapped only after every worker has a set that contains its copy. Before
//! the target is mapped, only the worker that writes a source page copies that page; a page of a CN belongs to one
//! worker.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::claim::once;
use super::entry::mix;
use crate::pool::{MpAddr, MpExtent, PAGE_BYTES, Pool};

/// Flag in the first word of a record: the extent is filled from another one.
const RECORDED: u64 = 1 << 31;
/// Low bits of the first word: the number of the source.
const SOURCE: u64 = RECORDED - 1;

/// One extent that is filled from another.
#[derive(Debug)]
pub(crate) struct ExtentCopy {
    source: MpExtent,
    target: MpExtent,
    /// One bit for each page that a thread is copying.
    claimed: Box<[AtomicU64]>,
    /// Set when every worker has a set that contains this copy.
    known: AtomicBool,
    /// Set when all pages are copied, or the target is no longer needed.
    ended: AtomicBool,
}

impl ExtentCopy {
    fn new(pool: &Pool, source: MpExtent, target: MpExtent, known: bool) -> ExtentCopy {
        let words = pool.copy_record(target).len() - 1;
        let claimed = (0..words).map(|_| AtomicU64::new(0)).collect();
        ExtentCopy { source, target, claimed, known: AtomicBool::new(known), ended: AtomicBool::new(false) }
    }

    /// Copies a page unless that was done already. If another thread is copying the page, waits for about a
    /// microsecond.
    fn ensure(&self, pool: &Pool, page: u64) {
        let (word, bit) = (page as usize / 64, 1 << (page % 64));
        let copied = &pool.copy_record(self.target)[1 + word];
        let ended = || self.ended.load(Ordering::Acquire);
        let copy = || pool.copy_page(self.source, self.target, page);
        once(&self.claimed[word], copied, bit, ended, std::hint::spin_loop, copy);
    }

    /// Pages that are not copied yet, in order.
    fn absent<'a>(&'a self, pool: &'a Pool) -> impl Iterator<Item = u64> + 'a {
        let pages = pool.extent_bytes() / PAGE_BYTES;
        let words = (0..pages).step_by(64).zip(&pool.copy_record(self.target)[1..]);
        words.flat_map(move |(first, word)| {
            let copied = word.load(Ordering::Acquire);
            // Skips a word whose pages are all copied.
            let end = if copied == u64::MAX { first } else { (first + 64).min(pages) };
            (first..end).filter(move |page| copied >> (page % 64) & 1 == 0)
        })
    }

    /// Ends the copy: all pages are copied, or the target is not needed any more. A later process does not
    /// resume it.
    fn end(&self, pool: &Pool) {
        self.ended.store(true, Ordering::Release);
        pool.copy_record(self.target)[0].store(0, Ordering::Release);
    }
}

/// Copies under way at one moment, for a worker or the control thread.
#[derive(Debug, Default)]
pub(crate) struct CopySet {
    /// Sorted by target; a target has one copy only.
    by_target: Vec<Arc<ExtentCopy>>,
    by_source: Vec<Arc<ExtentCopy>>,
}

impl CopySet {
    fn new(copies: Vec<Arc<ExtentCopy>>) -> CopySet {
        let (mut by_target, mut by_source) = (copies.clone(), copies);
        by_target.sort_unstable_by_key(|copy| copy.target);
        by_source.sort_unstable_by_key(|copy| copy.source);
        CopySet { by_target, by_source }
    }

    /// Whether there is no copy, so that requests need not search the set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.by_target.is_empty()
    }

    fn to(&self, target: MpExtent) -> Option<&Arc<ExtentCopy>> {
        let at = self.by_target.binary_search_by_key(&target, |copy| copy.target).ok()?;
        self.by_target.get(at)
    }

    fn from(&self, source: MpExtent) -> &[Arc<ExtentCopy>] {
        let first = self.by_source.partition_point(|copy| copy.source < source);
        let count = self.by_source[first..].partition_point(|copy| copy.source == source);
        &self.by_source[first..first + count]
    }

    /// Copies the page at `mp` from its source, if that was not done yet; before a write, copies the page
    /// also to its clones. Call before the memory is accessed.
    #[cold]
    pub fn before(&self, pool: &Pool, mp: MpAddr, written: bool) {
        let shift = pool.extent_bytes().trailing_zeros();
        let (extent, page) =
            (MpExtent((mp.0 >> shift) as u32), (mp.0 & (pool.extent_bytes() - 1)) / PAGE_BYTES);
        if let Some(copy) = self.to(extent) {
            copy.ensure(pool, page);
        }
        if written {
            self.from(extent).iter().for_each(|copy| copy.ensure(pool, page));
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CopyStep {
    pub more: bool,
    /// Whether the last copy has ended.
    pub last_ended: bool,
}

/// All copies under way on this node, shared by the control thread and the workers.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    present: Mutex<Arc<CopySet>>,
    /// Locked while [`step`](Self::step) copies, so that no page is written to a target after
    /// [`give_up`](Self::give_up).
    step: Mutex<()>,
}

impl Copies {
    /// The present set of copies, for a worker that purges its TLB.
    pub fn current(&self) -> Arc<CopySet> {
        Arc::clone(&self.present())
    }

    fn present(&self) -> MutexGuard<'_, Arc<CopySet>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace(&self, change: impl FnOnce(Vec<Arc<ExtentCopy>>) -> Vec<Arc<ExtentCopy>>) {
        let mut present = self.present();
        let alive = present.by_target.iter().filter(|copy| !copy.ended.load(Ordering::Acquire));
        *present = Arc::new(CopySet::new(change(alive.cloned().collect())));
    }

    /// Finds the copies that an earlier process has recorded in the pool. Call before a worker starts.
    pub fn recover(&self, pool: &Pool) {
        let mut found = Vec::new();
        for target in (0..pool.extents()).map(MpExtent) {
            let head = &pool.copy_record(target)[0];
            let word = head.load(Ordering::Relaxed);
            let source = MpExtent((word & SOURCE) as u32);
            if word == 0 {
                continue;
            }
            if word != recorded(pool, source, target) || source.0 >= pool.extents() {
                // The record is damaged, or belongs to an earlier incarnation of the pool, whose content is lost.
                head.store(0, Ordering::Relaxed);
                continue;
            }
            found.push(Arc::new(ExtentCopy::new(pool, source, target, true)));
        }
        self.replace(|_| found);
    }

    /// Records a copy from the first to the second extent of each pair, with no page copied. The copies take effect for
    /// a worker when it passes the generation that the caller begins next.
    pub fn begin(&self, pool: &Pool, pairs: &[(MpExtent, MpExtent)]) {
        let mut new = Vec::new();
        for (source, target) in pairs {
            let record = pool.copy_record(*target);
            // Clears the bits of an earlier copy before the new source is recorded, so that a later process never finds
            // the source with old bits.
            record[1..].iter().for_each(|word| word.store(0, Ordering::Relaxed));
            record[0].store(recorded(pool, *source, *target), Ordering::Release);
            new.push(Arc::new(ExtentCopy::new(pool, *source, *target, false)));
        }
        self.replace(|mut copies| {
            copies.extend(new);
            copies
        });
    }

    /// Allows the background thread to fill these extents, because every worker now has their copies in its
    /// set.
    pub fn known(&self, targets: &[MpExtent]) {
        let present = self.current();
        targets
            .iter()
            .filter_map(|target| present.to(*target))
            .for_each(|copy| copy.known.store(true, Ordering::Release));
    }

    /// Ends the copies to these extents, whose content is no longer needed; returns whether there were any. A worker
    /// may still copy pages to the extents until it has passed the generation that the caller begins next.
    pub fn give_up(&self, pool: &Pool, targets: &[MpExtent]) -> bool {
        let present = self.current();
        let copies: Vec<_> = targets.iter().filter_map(|target| present.to(*target)).collect();
        let _copying = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        copies.iter().for_each(|copy| copy.end(pool));
        self.replace(|copies| copies);
        !copies.is_empty()
    }

    /// Copies up to `pages` pages of extents that are being filled. Call from a thread that serves no
    /// requests.
    pub(super) fn step(&self, pool: &Pool, pages: usize) -> CopyStep {
        if self.current().is_empty() {
            return CopyStep { more: false, last_ended: false };
        }
        let _copying = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        let present = self.current();
        let is_open = |copy: &&Arc<ExtentCopy>| {
            copy.known.load(Ordering::Acquire) && !copy.ended.load(Ordering::Acquire)
        };
        let Some(copy) = present.by_target.iter().find(is_open) else {
            return CopyStep { more: false, last_ended: false };
        };
        let mut left = pages;
        for page in copy.absent(pool) {
            if left == 0 {
                return CopyStep { more: true, last_ended: false };
            }
            copy.ensure(pool, page);
            left -= 1;
        }
        copy.end(pool);
        CopyStep { more: true, last_ended: self.drop_ended() }
    }

    /// Completes the copy to `extent`, if there is one; returns whether it was the last copy.
    pub fn complete_to(&self, pool: &Pool, extent: MpExtent) -> bool {
        let present = self.current();
        let Some(copy) = present.to(extent) else { return false };
        complete(pool, copy);
        self.drop_ended()
    }

    /// Completes all copies from `extent`, which is about to lose its content; returns whether they were the last.
    pub fn complete_from(&self, pool: &Pool, extent: MpExtent) -> bool {
        let present = self.current();
        let copies = present.from(extent);
        copies.iter().for_each(|copy| complete(pool, copy));
        !copies.is_empty() && self.drop_ended()
    }

    /// Drops copies that have ended; returns whether none is left.
    fn drop_ended(&self) -> bool {
        self.replace(|copies| copies);
        self.current().is_empty()
    }

    pub fn bytes_left(&self, pool: &Pool) -> u64 {
        let present = self.current();
        let left = |copy: &Arc<ExtentCopy>| match copy.ended.load(Ordering::Acquire) {
            true => 0,
            false => copy.absent(pool).count() as u64 * PAGE_BYTES,
        };
        present.by_target.iter().map(left).sum()
    }
}

fn complete(pool: &Pool, copy: &ExtentCopy) {
    if !copy.ended.load(Ordering::Acquire) {
        copy.absent(pool).for_each(|page| copy.ensure(pool, page));
        copy.end(pool);
    }
}

/// First word of the record of a copy: the source, and a checksum of both extents and the pool's incarnation.
fn recorded(pool: &Pool, source: MpExtent, target: MpExtent) -> u64 {
    let sum = mix(mix(pool.incarnation()) ^ u64::from(source.0) << 32 ^ u64::from(target.0));
    sum << 32 | RECORDED | u64::from(source.0)
}
