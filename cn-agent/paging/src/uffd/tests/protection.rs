//! Tests of write-protected pages: reads continue, the first write waits.

use std::thread;

use super::memory::Memory;
use super::*;

const BOTH: Modes = Modes::MISSING.union(Modes::WRITE_PROTECT);

/// Checks a page installed write-protected: a read is no fault, a write is one, and `unprotect` lets the
/// writer continue.
fn filled_protected(uffd: &Uffd, memory: &Memory) {
    assert!(register(uffd, memory, BOTH).contains(Ioctls::WRITE_PROTECT));
    uffd.copy(memory.at(0), &page_of(1), Access::Protected).unwrap();
    assert_eq!(memory.read(0), 1);
    expect_quiet(uffd);
    thread::scope(|scope| {
        let writer = scope.spawn(|| memory.write(0, 2));
        expect_fault(uffd, memory.at(0), true, true);
        assert_eq!(memory.read(0), 1, "the write waits");
        uffd.unprotect(memory.page(0), true).unwrap();
        writer.join().unwrap();
    });
    assert_eq!(memory.read(0), 2);
    memory.write(0, 3);
    expect_quiet(uffd);
    // The page is protected again, as before a write-back; this time `wake` wakes the writer.
    uffd.protect(memory.page(0)).unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| memory.write(0, 4));
        expect_fault(uffd, memory.at(0), true, true);
        uffd.unprotect(memory.page(0), false).unwrap();
        uffd.wake(memory.page(0)).unwrap();
        writer.join().unwrap();
    });
    assert_eq!(memory.read(0), 4);
}

#[test]
fn the_first_write_to_a_private_page_filled_protected_waits() {
    let Some(uffd) = uffd(Features::WRITE_PROTECT) else { return };
    filled_protected(&uffd, &Memory::anonymous(1));
}

#[test]
fn the_first_write_to_a_shared_page_filled_protected_waits() {
    let Some(uffd) = uffd(Features::WRITE_PROTECT_SHMEM | Features::MISSING_SHMEM) else { return };
    let (memory, alias, _file) = Memory::shared(1);
    filled_protected(&uffd, &memory);
    uffd.protect(memory.page(0)).unwrap();
    alias.write(0, 5);
    assert_eq!(memory.read(0), 5, "protection is a mapping's, not the file's");
}

#[test]
fn a_page_continued_protected_waits_at_the_first_write() {
    let Some(uffd) = uffd(Features::MINOR_SHMEM | Features::WRITE_PROTECT_UNPOPULATED) else { return };
    let (memory, alias, _file) = Memory::shared(1);
    register(&uffd, &memory, Modes::MINOR | Modes::WRITE_PROTECT);
    alias.write(0, 6);
    uffd.continue_(memory.page(0), Access::Protected).unwrap();
    assert_eq!(memory.read(0), 6);
    expect_quiet(&uffd);
    thread::scope(|scope| {
        let writer = scope.spawn(|| memory.write(0, 7));
        expect_fault(&uffd, memory.at(0), true, true);
        uffd.unprotect(memory.page(0), true).unwrap();
        writer.join().unwrap();
    });
    assert_eq!(alias.read(0), 7);
}

#[test]
fn absent_pages_can_be_protected_where_the_kernel_has_it() {
    let Some(uffd) = uffd(Features::WRITE_PROTECT_UNPOPULATED) else { return };
    let memory = Memory::anonymous(2);
    register(&uffd, &memory, BOTH);
    uffd.protect(memory.all()).unwrap();
    assert_eq!(
        uffd.zero(memory.page(1)),
        Err(UffdError::Exists),
        "a protected absent page takes a copy only"
    );
    uffd.copy(memory.at(0), page_of(0).repeat(2).as_slice(), Access::Protected).unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| memory.write(1, 8));
        expect_fault(&uffd, memory.at(1), true, true);
        uffd.unprotect(memory.page(1), true).unwrap();
        writer.join().unwrap();
    });
    assert_eq!((memory.read(0), memory.read(1)), (0, 8));
}

#[test]
fn a_range_not_registered_for_it_is_not_protected() {
    let Some(uffd) = uffd(Features::WRITE_PROTECT) else { return };
    let memory = Memory::anonymous(1);
    assert_eq!(uffd.protect(memory.page(0)), Err(UffdError::NotMapped));
    register(&uffd, &memory, Modes::MISSING);
    assert_eq!(uffd.protect(memory.page(0)), Err(UffdError::NotMapped));
}
