//! Tests of faults on absent pages, and of the operations that fill them.

#![expect(unsafe_code, reason = "UFFDIO_MOVE takes pages away from mapped memory")]

use std::thread;

use super::memory::Memory;
use super::*;

#[test]
fn a_missing_page_is_waited_for_and_filled() {
    let Some(uffd) = uffd(Features::THREAD_ID) else { return };
    let memory = Memory::anonymous(4);
    let ioctls = register(&uffd, &memory, Modes::MISSING);
    assert!(ioctls.contains(Ioctls::COPY | Ioctls::ZERO | Ioctls::WAKE));
    thread::scope(|scope| {
        let reader = scope.spawn(|| (nix::unistd::gettid().as_raw() as u32, memory.read(2)));
        let event = next(&uffd);
        let UffdEvent::Fault { address, write, wp, minor, thread } = event else { panic!("{event:?}") };
        assert_eq!((address, write, wp, minor), (memory.at(2), false, false, false));
        assert_eq!(uffd.copy(memory.at(2), &page_of(7), Access::Writable), Ok(4096));
        assert_eq!(reader.join().unwrap(), (thread, 7));
    });
    assert_eq!(uffd.copy(memory.at(2), &page_of(8), Access::Writable), Err(UffdError::Exists));
    assert_eq!(memory.read(2), 7, "what is there stays");
    expect_quiet(&uffd);
}

#[test]
fn the_address_is_exact_if_requested() {
    let Some(uffd) = uffd(Features::EXACT_ADDRESS) else { return };
    let memory = Memory::anonymous(1);
    register(&uffd, &memory, Modes::MISSING);
    thread::scope(|scope| {
        scope.spawn(|| memory.write(0, 1));
        let event = next(&uffd);
        let UffdEvent::Fault { address, write: true, thread: 0, .. } = event else { panic!("{event:?}") };
        assert_eq!(address, memory.at(0) + PAGE / 2);
        assert_eq!(uffd.zero(memory.page(0)), Ok(4096));
    });
    assert_eq!(memory.read(0), 1);
    assert_eq!(uffd.zero(memory.page(0)), Err(UffdError::Exists));
}

#[test]
fn a_shared_page_filled_in_one_mapping_is_there_in_the_other() {
    let Some(uffd) = uffd(Features::MISSING_SHMEM) else { return };
    let (memory, alias, _file) = Memory::shared(4);
    register(&uffd, &memory, Modes::MISSING);
    thread::scope(|scope| {
        scope.spawn(|| memory.write(1, 9));
        expect_fault(&uffd, memory.at(1), true, false);
        uffd.copy(memory.at(1), &page_of(3), Access::Writable).unwrap();
    });
    assert_eq!(alias.read(1), 9);
    // A copy of two pages stops at the second, which is present.
    assert_eq!(uffd.copy(memory.at(0), page_of(4).repeat(2).as_slice(), Access::Writable), Ok(4096));
    assert_eq!((memory.read(0), memory.read(1)), (4, 9));
    assert_eq!(uffd.copy(memory.at(2), page_of(5).repeat(2).as_slice(), Access::Writable), Ok(8192));
    assert_eq!((alias.read(2), alias.read(3)), (5, 5));
}

#[test]
fn a_minor_fault_is_answered_with_the_page_that_the_file_has() {
    let Some(uffd) = uffd(Features::MINOR_SHMEM) else { return };
    let (memory, alias, _file) = Memory::shared(2);
    let ioctls = register(&uffd, &memory, Modes::MINOR);
    assert!(ioctls.contains(Ioctls::CONTINUE));
    assert_eq!(uffd.continue_(memory.page(0), Access::Writable), Err(UffdError::NoPage));
    alias.write(0, 21);
    thread::scope(|scope| {
        let reader = scope.spawn(|| memory.read(0));
        let event = next(&uffd);
        let UffdEvent::Fault { address, write: false, wp: false, minor: true, .. } = event else {
            panic!("{event:?}")
        };
        assert_eq!(address, memory.at(0));
        assert_eq!(uffd.continue_(memory.page(0), Access::Writable), Ok(4096));
        assert_eq!(reader.join().unwrap(), 21);
    });
    memory.write(0, 22);
    assert_eq!(alias.read(0), 22);
    assert_eq!(uffd.continue_(memory.page(0), Access::Writable), Err(UffdError::Exists));
}

#[test]
fn a_page_moves_with_its_bytes_and_leaves_its_place_absent() {
    let Some(uffd) = uffd(Features::MOVE) else { return };
    let (memory, staging) = (Memory::anonymous(2), Memory::anonymous(2));
    register(&uffd, &memory, Modes::MISSING);
    register(&uffd, &staging, Modes::MISSING);
    uffd.copy(memory.at(0), page_of(31).repeat(2).as_slice(), Access::Writable).unwrap();
    // SAFETY: both ranges belong to this test, which accesses them by address only.
    let move_ = |dst, src, len| unsafe { uffd.move_(dst, src, len) };
    assert_eq!(move_(staging.at(0), memory.at(0), 2 * PAGE), Ok(8192));
    assert_eq!((staging.read(0), staging.read(1)), (31, 31));
    thread::scope(|scope| {
        let reader = scope.spawn(|| memory.read(1));
        expect_fault(&uffd, memory.at(1), false, false);
        assert_eq!(move_(memory.at(1), staging.at(1), PAGE), Ok(4096));
        assert_eq!(reader.join().unwrap(), 31, "moved back to who waits for it");
    });
    assert_eq!(move_(memory.at(1), staging.at(0), PAGE), Err(UffdError::Exists));
    let (shared, _alias, _file) = Memory::shared(1);
    register(&uffd, &shared, Modes::MISSING);
    assert_eq!(move_(shared.at(0), staging.at(0), PAGE), Err(UffdError::NotMapped), "private memory only");
}

#[test]
fn arguments_that_are_not_whole_pages_are_refused() {
    let Some(uffd) = uffd(Features::empty()) else { return };
    let memory = Memory::anonymous(2);
    register(&uffd, &memory, Modes::MISSING);
    let page = page_of(1);
    assert_eq!(uffd.copy(memory.at(0), &page[..64], Access::Writable), Err(UffdError::NotMapped));
    assert_eq!(uffd.copy(memory.at(0) + 64, &page, Access::Writable), Err(UffdError::NotMapped));
    assert_eq!(uffd.copy(memory.at(0), &[], Access::Writable), Err(UffdError::NotMapped));
    assert_eq!(uffd.copy(memory.at(0), &page, Access::Protected), Err(UffdError::NotMapped), "not for WP");
    let backwards = memory.at(1)..memory.at(0);
    assert_eq!(uffd.zero(backwards.clone()), Err(UffdError::NotMapped));
    assert_eq!(uffd.wake(backwards), Err(UffdError::NotMapped));
}

#[test]
fn many_threads_wait_at_once() {
    let Some(uffd) = uffd(Features::empty()) else { return };
    let memory = Memory::anonymous(8);
    register(&uffd, &memory, Modes::MISSING);
    thread::scope(|scope| {
        let memory = &memory;
        let readers: Vec<_> = (0..24_u64).map(|n| scope.spawn(move || (n % 8, memory.read(n % 8)))).collect();
        let until = Instant::now() + LIMIT;
        let mut buffer = EventBuffer::new();
        let mut filled = 0;
        while filled < 8 {
            assert!(Instant::now() < until, "only {filled} pages were asked for");
            uffd.wait(Duration::from_millis(100)).unwrap();
            for event in uffd.events(&mut buffer).unwrap() {
                let UffdEvent::Fault { address, .. } = event else { panic!("{event:?}") };
                let number = ((address - memory.at(0)) / PAGE) as u8;
                match uffd.copy(address, &page_of(number + 1), Access::Writable) {
                    Ok(_) => filled += 1,
                    // An earlier fault on the same page has been served already: threads that still wait for the page
                    // are woken.
                    Err(UffdError::Exists) => uffd.wake(address..address + PAGE).unwrap(),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        for reader in readers {
            let (page, byte) = reader.join().unwrap();
            assert_eq!(u64::from(byte), page + 1);
        }
    });
}
