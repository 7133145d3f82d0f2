//! Tests of the events that report changes which a process makes to its own mappings.

#![expect(unsafe_code, reason = "mremap moves mapped memory")]

use std::thread;

use nix::sys::mman::MmapAdvise;

use super::memory::Memory;
use super::*;

#[test]
fn dropped_pages_are_told_before_they_go_and_nothing_is_filled_meanwhile() {
    let Some(uffd) = uffd(Features::EVENT_REMOVE) else { return };
    let memory = Memory::anonymous(4);
    register(&uffd, &memory, Modes::MISSING);
    uffd.copy(memory.at(0), page_of(1).repeat(4).as_slice(), Access::Writable).unwrap();
    thread::scope(|scope| {
        let dropper = scope.spawn(|| memory.advise(1, 2, MmapAdvise::MADV_DONTNEED));
        assert!(uffd.wait(LIMIT).unwrap());
        assert_eq!(uffd.copy(memory.at(1), &page_of(2), Access::Writable), Err(UffdError::Again));
        assert_eq!(uffd.zero(memory.page(1)), Err(UffdError::Again));
        let event = next(&uffd);
        let UffdEvent::Remove { start, end } = event else { panic!("{event:?}") };
        assert_eq!((start, end), (memory.at(1), memory.at(3)));
        dropper.join().unwrap();
    });
    when_quiet(|| uffd.copy(memory.at(1), &page_of(3), Access::Writable)).unwrap();
    assert_eq!((memory.read(0), memory.read(1), memory.read(3)), (1, 3, 1));
}

#[test]
fn a_hole_punched_in_the_file_is_reported_by_its_mapping() {
    let Some(uffd) = uffd(Features::EVENT_REMOVE | Features::MISSING_SHMEM) else { return };
    let (memory, _alias, _file) = Memory::shared(2);
    register(&uffd, &memory, Modes::MISSING);
    uffd.copy(memory.at(0), page_of(1).repeat(2).as_slice(), Access::Writable).unwrap();
    thread::scope(|scope| {
        let dropper = scope.spawn(|| memory.advise(0, 1, MmapAdvise::MADV_REMOVE));
        let event = next(&uffd);
        let UffdEvent::Remove { start, end } = event else { panic!("{event:?}") };
        assert_eq!((start, end), (memory.at(0), memory.at(1)));
        dropper.join().unwrap();
    });
    thread::scope(|scope| {
        let reader = scope.spawn(|| memory.read(0));
        expect_fault(&uffd, memory.at(0), false, false);
        uffd.copy(memory.at(0), &page_of(2), Access::Writable).unwrap();
        assert_eq!(reader.join().unwrap(), 2);
    });
}

#[test]
fn unmapping_and_moving_a_mapping_are_reported() {
    let Some(uffd) = uffd(Features::EVENT_UNMAP | Features::EVENT_REMAP) else { return };
    let mut memory = Memory::anonymous(4);
    register(&uffd, &memory, Modes::MISSING);
    let (third, end) = (memory.at(3), memory.at(4));
    thread::scope(|scope| {
        scope.spawn(|| memory.shorten(3));
        let event = next(&uffd);
        let UffdEvent::Unmap { start, end: told } = event else { panic!("{event:?}") };
        assert_eq!((start, told), (third, end));
    });
    when_quiet(|| uffd.copy(memory.at(2), &page_of(6), Access::Writable)).unwrap();
    let room = Memory::anonymous(8);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (old, new) = (memory.at(2) as *mut libc::c_void, room.at(5) as *mut libc::c_void);
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: both pages belong to this test, which accesses them by address only.
            let moved = unsafe { libc::mremap(old, PAGE as usize, PAGE as usize, flags, new) };
            assert_eq!(moved, new);
        });
        // The page at the destination is unmapped first. It is not registered, so it depends on the kernel
        // whether this unmapping is an event.
        let event = next(&uffd);
        let UffdEvent::Remap { from, to, len } = event else { panic!("{event:?}") };
        assert_eq!((from, to, len), (memory.at(2), room.at(5), PAGE));
        // Some kernels then report another event, that the old address was unmapped; it is read and ignored.
        let mut buffer = EventBuffer::new();
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            if uffd.wait(Duration::from_millis(20)).unwrap() {
                uffd.events(&mut buffer).unwrap().for_each(drop);
            }
        }
    });
    assert_eq!(room.read(5), 6);
    // The page is registered at its new address as well: closing the userfaultfd ensures that no thread waits for it.
    drop(uffd);
    memory.shorten(2);
}
