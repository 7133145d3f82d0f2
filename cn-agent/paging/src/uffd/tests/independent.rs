//! Comparison with the crate `userfaultfd`, which shares no code with this module and takes its structures from the
//! headers of the build machine: either implementation can make a userfaultfd, and the other serve it.

#![expect(unsafe_code, reason = "the other crate takes a raw descriptor and raw pointers")]

use std::os::fd::{FromRawFd, IntoRawFd};
use std::thread;

use userfaultfd::{Event as TheirEvent, FaultKind, FeatureFlags, ReadWrite, RegisterMode, UffdBuilder};

use super::memory::Memory;
use super::*;

/// A userfaultfd opened and negotiated by the crate `userfaultfd`.
fn theirs(features: FeatureFlags) -> userfaultfd::Uffd {
    let make = |user_only| {
        let mut builder = UffdBuilder::new();
        builder.close_on_exec(true).non_blocking(true).user_mode_only(user_only);
        builder.require_features(features).create()
    };
    make(false).or_else(|_| make(true)).expect("any kernel has one")
}

#[test]
fn the_reference_client_works_with_our_server() {
    let theirs = theirs(FeatureFlags::PAGEFAULT_FLAG_WP);
    let memory = Memory::anonymous(4);
    let mode = RegisterMode::MISSING | RegisterMode::WRITE_PROTECT;
    let length = (memory.all().end - memory.all().start) as usize;
    theirs.register_with_mode(memory.all().start as *mut _, length, mode).unwrap();
    // The descriptor is duplicated, because version 0.9.0 of the crate closes the one that its `into_raw_fd` returns.
    let uffd = Uffd::from_fd(theirs.as_fd().try_clone_to_owned().unwrap()).unwrap();
    thread::scope(|scope| {
        let reader = scope.spawn(|| memory.read(3));
        expect_fault(&uffd, memory.at(3), false, false);
        assert_eq!(uffd.copy(memory.at(3), &page_of(9), Access::Protected), Ok(4096));
        assert_eq!(reader.join().unwrap(), 9);
        let writer = scope.spawn(|| memory.write(3, 10));
        expect_fault(&uffd, memory.at(3), true, true);
        uffd.unprotect(memory.page(3), true).unwrap();
        writer.join().unwrap();
    });
    assert_eq!(memory.read(3), 10);
}

#[test]
fn our_client_works_with_the_reference_server() {
    let Some(uffd) = uffd(Features::THREAD_ID | Features::WRITE_PROTECT) else { return };
    let memory = Memory::anonymous(4);
    register(&uffd, &memory, Modes::MISSING | Modes::WRITE_PROTECT);
    let waits = uffd.try_clone().unwrap();
    let fd = OwnedFd::from(uffd);
    // SAFETY: the descriptor was released by its owner, and nothing else owns it.
    let theirs = unsafe { userfaultfd::Uffd::from_raw_fd(fd.into_raw_fd()) };
    let event = || {
        let until = Instant::now() + LIMIT;
        while Instant::now() < until {
            if waits.wait(Duration::from_millis(100)).unwrap()
                && let Some(event) = theirs.read_event().unwrap()
            {
                return event;
            }
        }
        panic!("no event within {LIMIT:?}");
    };
    thread::scope(|scope| {
        let writer = scope.spawn(|| (memory.write(1, 5), nix::unistd::gettid().as_raw()));
        let TheirEvent::Pagefault { kind, rw, addr, thread_id } = event() else { panic!("no fault") };
        assert_eq!((kind, rw, addr as u64), (FaultKind::Missing, ReadWrite::Write, memory.at(1)));
        let page = page_of(4);
        // SAFETY: the destination is an absent page of this test, and the source is a live page.
        let copied = unsafe { theirs.copy(page.as_ptr().cast(), addr, page.len(), true) };
        assert_eq!(copied.unwrap(), page.len());
        assert_eq!(writer.join().unwrap().1, thread_id.as_raw());
    });
    assert_eq!(memory.read(1), 5);
}

/// Request numbers and sizes of structures equal those in the headers of this machine.
#[test]
fn numbers_and_structures_are_those_of_the_headers() {
    use userfaultfd_sys as headers;

    for (ours, theirs) in [
        (abi::API, headers::UFFDIO_API),
        (abi::REGISTER, headers::UFFDIO_REGISTER),
        (abi::UNREGISTER, headers::UFFDIO_UNREGISTER),
        (abi::WAKE, headers::UFFDIO_WAKE),
        (abi::COPY, headers::UFFDIO_COPY),
        (abi::ZEROPAGE, headers::UFFDIO_ZEROPAGE),
        (abi::WRITEPROTECT, headers::UFFDIO_WRITEPROTECT),
    ] {
        assert_eq!(ours, u64::from(theirs));
    }
    assert_eq!(abi::API_VERSION, headers::UFFD_API);
    for (ours, theirs) in [
        (size_of::<abi::Api>(), size_of::<headers::uffdio_api>()),
        (size_of::<abi::Span>(), size_of::<headers::uffdio_range>()),
        (size_of::<abi::Register>(), size_of::<headers::uffdio_register>()),
        (size_of::<abi::Copy>(), size_of::<headers::uffdio_copy>()),
        (size_of::<abi::Fill>(), size_of::<headers::uffdio_zeropage>()),
        (size_of::<abi::WriteProtect>(), size_of::<headers::uffdio_writeprotect>()),
        (size_of::<abi::Message>(), size_of::<headers::uffd_msg>()),
    ] {
        assert_eq!(ours, theirs);
    }
}
