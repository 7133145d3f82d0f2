//! Functions that may be called in a signal handler do not allocate: the test makes every operation on pages
//! and events, including refused ones, with a global allocator that counts allocations.

#![expect(unsafe_code, reason = "a counting allocator implements GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::Duration;

use cxloe_paging::uffd::scan::{Action, Categories, PageRun, Pagemap};
use cxloe_paging::uffd::{Access, EventBuffer, Features, Modes, PAGE, Uffd, UffdError};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the call is passed on to the system's allocator, which fulfils the trait's contract.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller ensures the trait's conditions, which are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the call is passed on to the system's allocator, which fulfils the trait's contract.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller ensures the trait's conditions, which are those of the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(body: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    body();
    COUNT.get() - before
}

#[test]
fn operations_on_pages_allocate_nothing() {
    assert_eq!(allocations(|| drop(black_box(vec![1_u8]))), 2, "it does count");

    let uffd = Uffd::create().or_else(|_| Uffd::create_user_only()).unwrap();
    uffd.handshake(Features::WRITE_PROTECT).unwrap();
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let bytes = NonZeroUsize::new(4 * PAGE as usize).unwrap();
    // SAFETY: the kernel makes a new mapping at an address that it chooses.
    let memory = unsafe { mmap_anonymous(None, bytes, protection, MapFlags::MAP_PRIVATE) }.unwrap();
    let at = |page: u64| memory.as_ptr() as u64 + page * PAGE;
    let page = [7; PAGE as usize];
    let (mut buffer, mut found) = (EventBuffer::new(), [PageRun::default(); 4]);
    let pagemap = Pagemap::own().unwrap();

    let counted = allocations(|| {
        // SAFETY: the mapping belongs to this test, which accesses it by address only.
        unsafe { uffd.register(at(0)..at(4), Modes::MISSING | Modes::WRITE_PROTECT) }.unwrap();
        uffd.copy(at(0), &page, Access::Protected).unwrap();
        assert_eq!(uffd.copy(at(0), &page, Access::Writable), Err(UffdError::Exists));
        uffd.zero(at(1)..at(2)).unwrap();
        uffd.protect(at(0)..at(2)).unwrap();
        uffd.unprotect(at(0)..at(1), true).unwrap();
        uffd.wake(at(0)..at(4)).unwrap();
        // Some kernels lack these operations; then their errors must not allocate either.
        let _ = uffd.poison(at(2)..at(3));
        let _ = uffd.continue_(at(3)..at(4), Access::Writable);
        // SAFETY: the mapping belongs to this test, which accesses it by address only.
        let _ = unsafe { uffd.move_(at(3), at(1), PAGE) };
        let _ = pagemap.scan(at(0)..at(4), Categories::PRESENT, Action::empty(), &mut found);
        assert_eq!(uffd.events(&mut buffer).unwrap().count(), 0);
        assert!(!uffd.wait(Duration::from_millis(1)).unwrap());
        uffd.unregister(at(0)..at(4)).unwrap();
    });
    assert_eq!(counted, 0);
}
