//! Tests with other processes, and with faults as signals. A forked child does only what a signal handler may do, and
//! ends by `_exit`: that all operations work in such a child is part of the test.

#![expect(unsafe_code, reason = "children of fork and a signal handler touch mapped memory")]

use std::cell::UnsafeCell;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::thread;

use cxloe_closer::ClosedElsewhere;
use cxloe_cn_core::mapped::{MappingKind, SpaceOptions};
use cxloe_cn_core::pager::{MappingId, PageTable, PagerFull, VIEWS_MAX, ViewId};
use cxloe_cn_core::transfers::Transfers;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recv, recvmsg, sendmsg,
    socketpair,
};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::memory::Memory;
use super::*;
use crate::Space;
use crate::memory::{KernelMemory, Mapped, required_features};
use crate::space::events::EventReader;
use crate::space::testing::options;
use crate::spare_files::NO_FILE_LEFT;

/// Forks by the system call alone: `fork(3)` holds the locks of the allocator until the agent has read the event, and
/// here the agent is a thread of the same process, which allocates memory.
fn child(body: impl FnOnce() -> u8) -> Pid {
    // SAFETY: the child calls only functions that a signal handler may call.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid == 0 {
        let status = body();
        // SAFETY: the call ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(i32::from(status)) }
    }
    Pid::from_raw(pid as i32)
}

/// Exit statuses of a child that could not run its test.
const NO_FEATURE: u8 = 200;
const FAILED: u8 = 201;

fn exit_code(pid: Pid) -> u8 {
    match waitpid(pid, None).unwrap() {
        WaitStatus::Exited(_, code) => code as u8,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_poisoned_page_ends_in_sigbus() {
    if uffd(Features::POISON).is_none() {
        return;
    }
    let memory = Memory::anonymous(2);
    let touches = child(|| {
        // The default action replaces Rust's own handler of SIGBUS, which detects stack overflows.
        // SAFETY: no handler is installed, only the default action.
        let _ = unsafe {
            sigaction(Signal::SIGBUS, &SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty()))
        };
        let Ok(uffd) = Uffd::create_user_only() else { return FAILED };
        if uffd.handshake(Features::POISON).is_err() {
            return NO_FEATURE;
        }
        // SAFETY: the memory belongs to this test, which accesses it by address only.
        if unsafe { uffd.register(memory.all(), Modes::MISSING) }.is_err() {
            return FAILED;
        }
        if uffd.copy(memory.at(0), &page_of(1), Access::Writable) != Ok(4096)
            || uffd.poison(memory.page(1)) != Ok(4096)
            || uffd.poison(memory.page(0)) != Err(UffdError::Exists)
            || memory.read(0) != 1
        {
            return FAILED;
        }
        memory.read(1)
    });
    match waitpid(touches, None).unwrap() {
        WaitStatus::Signaled(_, Signal::SIGBUS, _) => {}
        other => panic!("{other:?}"),
    }
}

/// State for the signal handler below. Each child process installs one handler, and has its own copy.
static FD: AtomicU64 = AtomicU64::new(u64::MAX);
static SOURCE: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static SERVED: AtomicU64 = AtomicU64::new(0);
static UNPROTECTED: AtomicU64 = AtomicU64::new(0);

/// Serves a fault in the thread that caused it.
extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid record of the signal, which has an address for SIGBUS.
    let address = unsafe { (*info).si_addr() } as u64 & !(PAGE - 1);
    // SAFETY: the child keeps this descriptor open while faults can happen, and ManuallyDrop below prevents its closing
    // here.
    let fd = unsafe { OwnedFd::from_raw_fd(FD.load(Ordering::Relaxed) as RawFd) };
    let uffd = std::mem::ManuallyDrop::new(Uffd::new(fd));
    // SAFETY: `SOURCE` points to a static page, which outlives the child.
    let page = unsafe { std::slice::from_raw_parts(SOURCE.load(Ordering::Relaxed), PAGE as usize) };
    match uffd.copy(address, page, Access::Protected) {
        Ok(_) => SERVED.fetch_add(1, Ordering::Relaxed),
        Err(UffdError::Exists) => {
            // The page is present and write-protected: the access was a write.
            match uffd.unprotect(address..address + PAGE, false) {
                Ok(()) => UNPROTECTED.fetch_add(1, Ordering::Relaxed),
                // SAFETY: the call ends the process; a return would only raise the signal again.
                Err(_) => unsafe { libc::_exit(i32::from(FAILED)) },
            }
        }
        // SAFETY: the call ends the process; a return would only raise the signal again.
        Err(_) => unsafe { libc::_exit(i32::from(FAILED)) },
    };
}

struct Page(UnsafeCell<[u8; PAGE as usize]>);

// SAFETY: the page is never written.
unsafe impl Sync for Page {}

static FULL_OF_NINES: Page = Page(UnsafeCell::new([9; PAGE as usize]));

#[test]
fn a_fault_is_served_by_the_faulting_thread_in_its_signal_handler() {
    if uffd(Features::SIGBUS | Features::WRITE_PROTECT).is_none() {
        return;
    }
    let memory = Memory::anonymous(3);
    let serves_itself = child(|| {
        let Ok(uffd) = Uffd::create_user_only() else { return FAILED };
        if uffd.handshake(Features::SIGBUS | Features::WRITE_PROTECT).is_err() {
            return NO_FEATURE;
        }
        // SAFETY: the memory belongs to this test, which accesses it by address only.
        if unsafe { uffd.register(memory.all(), Modes::MISSING | Modes::WRITE_PROTECT) }.is_err() {
            return FAILED;
        }
        FD.store(uffd.fd.as_raw_fd() as u64, Ordering::Relaxed);
        SOURCE.store(FULL_OF_NINES.0.get().cast(), Ordering::Relaxed);
        let action = SigAction::new(
            SigHandler::SigAction(on_sigbus),
            SaFlags::SA_SIGINFO | SaFlags::SA_NODEFER,
            SigSet::empty(),
        );
        // SAFETY: the handler calls only functions that a signal handler may call.
        if unsafe { sigaction(Signal::SIGBUS, &action) }.is_err() {
            return FAILED;
        }
        // The test reads page 0, writes to it, and writes to the absent page 1: two pages are installed, and both are
        // unprotected.
        if memory.read(0) != 9 {
            return 1;
        }
        memory.write(0, 4);
        memory.write(1, 5);
        if (memory.read(0), memory.read(1)) != (4, 5) {
            return 2;
        }
        if SERVED.load(Ordering::Relaxed) != 2 || UNPROTECTED.load(Ordering::Relaxed) != 2 {
            return 3;
        }
        // In a system call, the kernel's access to an absent page fails with EFAULT.
        let mut null = [0_i32; 2];
        // SAFETY: the array has room for two descriptors, and the kernel writes one byte within the mapping.
        let read = unsafe {
            libc::pipe(null.as_mut_ptr());
            libc::write(null[1], FULL_OF_NINES.0.get().cast(), 1);
            libc::read(null[0], memory.at(2) as *mut libc::c_void, 1)
        };
        if read == -1 && nix::errno::Errno::last() == nix::errno::Errno::EFAULT { 0 } else { 4 }
    });
    assert_eq!(exit_code(serves_itself), 0);
}

#[test]
fn system_calls_wait_for_pages_as_programs_do() {
    let Ok(uffd) = Uffd::create() else {
        eprintln!("not tested here: faults of the kernel need privilege");
        return;
    };
    uffd.handshake(Features::empty()).unwrap();
    let memory = Memory::anonymous(1);
    register(&uffd, &memory, Modes::MISSING);
    let (reading, writing) = nix::unistd::pipe().unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            // SAFETY: the bytes lie in the mapping, and only the kernel reads them.
            let page = unsafe { std::slice::from_raw_parts(memory.at(0) as *const u8, 16) };
            nix::unistd::write(&writing, page)
        });
        expect_fault(&uffd, memory.at(0), false, false);
        uffd.copy(memory.at(0), &page_of(77), Access::Writable).unwrap();
        assert_eq!(writer.join().unwrap(), Ok(16));
    });
    let mut bytes = [0; 16];
    nix::unistd::read(&reading, &mut bytes).unwrap();
    assert_eq!(bytes, [77; 16]);
}

/// A userfaultfd that reports forks, or `None` without the right to that.
fn following_forks() -> Option<Uffd> {
    let uffd = Uffd::create().or_else(|_| Uffd::create_user_only()).unwrap();
    match uffd.handshake(Features::EVENT_FORK) {
        Ok(_) => Some(uffd),
        Err(error @ OpenError::ForkNeedsPtrace) => {
            eprintln!("not tested here: {error}");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_forked_child_faults_on_its_own_userfaultfd() {
    let Some(uffd) = following_forks() else { return };
    let memory = Memory::anonymous(3);
    register(&uffd, &memory, Modes::MISSING);
    uffd.copy(memory.at(0), &page_of(1), Access::Writable).unwrap();
    thread::scope(|scope| {
        let forker = scope.spawn(|| {
            exit_code(child(|| {
                let inherited = memory.read(0);
                memory.write(0, 50);
                inherited + memory.read(1) + memory.read(0)
            }))
        });
        let event = next(&uffd);
        let UffdEvent::Fork(fd) = event else { panic!("{event:?}") };
        let theirs = Uffd::from_fd(fd).unwrap();
        expect_fault(&theirs, memory.at(1), false, false);
        theirs.copy(memory.at(1), &page_of(100), Access::Writable).unwrap();
        assert_eq!(forker.join().unwrap(), 1 + 100 + 50);
        assert_eq!(theirs.copy(memory.at(2), &page_of(1), Access::Writable), Err(UffdError::Gone));
        assert_eq!(theirs.unprotect(memory.page(2), true), Err(UffdError::Gone));
    });
    assert_eq!(memory.read(0), 1, "the child wrote to a copy");
    uffd.copy(memory.at(1), &page_of(2), Access::Writable).unwrap();
    assert_eq!(memory.read(1), 2, "the parent's absent page is its own");
}

/// Options of a space for processes with `pages` pages each.
fn options_of(pages: u32) -> SpaceOptions {
    SpaceOptions { pages, view_pages: pages, prefetch: false, ..options(MappingKind::Private) }
}

/// A space of private memory, `pages` pages of this process, and the process's mapping.
fn space_of(uffd: Uffd, memory: &Memory, pages: u32) -> (Space, MappingId) {
    let mut space = Space::create(options_of(pages)).unwrap();
    let view = space.pager.add_view(PageTable::local(pages), true).unwrap();
    let mapping = space.pager.add_mapping(view).unwrap();
    let KernelMemory::Private(private) = &mut space.memory else { unreachable!("it is private") };
    private.add(view, mapping, Mapped::new(uffd, memory.at(0), 0, pages, 0, None));
    (space, mapping)
}

/// Tests that a child has no record, and is not served, before it has a complete table; that forks wait meanwhile; and
/// that a copy is given up when its child has ended.
#[test]
fn a_forked_child_is_served_once_its_table_is_complete() {
    const PAGES: u32 = 64;
    let Some(uffd) = following_forks() else { return };
    let memory = Memory::anonymous(u64::from(PAGES));
    register(&uffd, &memory, Modes::MISSING);
    let (mut space, parent) = space_of(uffd, &memory, PAGES);
    space.pager.set_walk_step(1);
    let (mut reader, mut transfers) = (EventReader::new(), Transfers::new(0));
    let wait = |space: &Space, mapping| {
        assert!(space.memory.mappings().get(mapping).unwrap().uffd.wait(LIMIT).unwrap());
    };
    let served = |space: &Space| space.memory.mappings().ids().collect::<Vec<MappingId>>();
    let forker = |body: fn(&Memory) -> u8| {
        let memory = &memory;
        move || exit_code(child(|| body(memory)))
    };
    thread::scope(|scope| {
        let lasting = scope.spawn(forker(|memory| {
            memory.write(1, 7);
            memory.read(1)
        }));
        wait(&space, parent);
        assert_eq!(space.read_events(parent, &mut reader, &mut transfers), 1);
        space.turn(&mut transfers);
        let short = scope.spawn(forker(|_| 5));
        wait(&space, parent);
        assert_eq!(space.processes(), 2, "it counts already");
        let mut turns = 1;
        while !space.children.is_empty() {
            assert_eq!(space.read_events(parent, &mut reader, &mut transfers), 0, "the fork waits");
            assert_eq!((served(&space), space.shared_state.records().len()), (vec![parent], 0));
            space.turn(&mut transfers);
            turns += 1;
        }
        assert_eq!(turns, PAGES - 1);
        let views = |space: &Space| {
            space.shared_state.records().iter().map(|record| record.view).collect::<Vec<u16>>()
        };
        assert_eq!((served(&space).len(), views(&space)), (2, vec![1]));
        let of_lasting = served(&space)[1];
        // The second child ends before it has its table. The first one's fault waits for that.
        assert_eq!(space.read_events(parent, &mut reader, &mut transfers), 1);
        // On a busy machine, it has ended before the first look at it.
        assert!(space.children.len() <= 1);
        assert_eq!(short.join().unwrap(), 5);
        wait(&space, of_lasting);
        assert_eq!(space.read_events(of_lasting, &mut reader, &mut transfers), 1);
        let mut turns = 0;
        while !space.children.is_empty() {
            space.turn(&mut transfers);
            turns += 1;
        }
        assert!(turns < PAGES / 2, "{turns}");
        while space.pager.is_walking() {
            space.turn(&mut transfers);
        }
        assert_eq!((space.pager.next_view(), views(&space)), (Some(ViewId(2)), vec![1]));
        assert_eq!(lasting.join().unwrap(), 7);
    });
}

/// Set for the process of its own in which the next test runs.
const ALONE: &str = "CXLOE_TEST_ALONE";

/// Runs in a process of its own, because it takes all descriptors.
#[test]
fn a_parent_is_served_on_although_no_descriptor_is_left_for_its_child() {
    if std::env::var_os(ALONE).is_none() {
        let name =
            "uffd::tests::processes::a_parent_is_served_on_although_no_descriptor_is_left_for_its_child";
        let mut alone = Command::new(std::env::current_exe().unwrap());
        assert!(alone.args(["--exact", name, "--nocapture"]).env(ALONE, "1").status().unwrap().success());
        return;
    }
    let Some(uffd) = following_forks() else { return };
    let memory = Memory::anonymous(3);
    register(&uffd, &memory, Modes::MISSING);
    let (mut space, mapping) = space_of(uffd, &memory, 3);
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let (keeper, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
    space.keep_with(ClosedElsewhere::new(theirs));
    let (mut reader, mut transfers) = (EventReader::new(), Transfers::new(0));
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(256), hard).unwrap();
    let held: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // The child reads its first page, which is how it detects whether it is served.
    let forker = thread::spawn(move || exit_code(child(|| memory.read(0) + 7)));
    assert!(space.memory.mappings().get(mapping).unwrap().uffd.wait(LIMIT).unwrap());
    space.read_events(mapping, &mut reader, &mut transfers);
    assert!(space.memory.mappings().get(mapping).is_some(), "its memory would be lost");
    let kept = recv(keeper.as_raw_fd(), &mut [0; 64], MsgFlags::MSG_DONTWAIT);
    drop(keeper);
    assert_eq!((space.denied.as_deref(), forker.join().unwrap()), (Some(NO_FILE_LEFT), 7));
    assert_eq!(kept, Err(Errno::EAGAIN), "its faults would wait for ever");
    drop(held);
}

/// More children than a region can have tables for.
#[test]
fn a_child_without_a_table_is_refused_for_its_reason() {
    let Some(uffd) = following_forks() else { return };
    let memory = Memory::anonymous(3);
    register(&uffd, &memory, Modes::MISSING);
    let mut space = Space::create(options_of(3)).unwrap();
    let views: Vec<_> = (0..VIEWS_MAX).map(|_| space.pager.add_view(PageTable::local(1), true)).collect();
    let mapping = space.pager.add_mapping(views[0].unwrap()).unwrap();
    let KernelMemory::Private(private) = &mut space.memory else { unreachable!("it is private") };
    private.add(views[0].unwrap(), mapping, Mapped::new(uffd, memory.at(0), 0, 3, 0, None));
    let (mut reader, mut transfers) = (EventReader::new(), Transfers::new(0));
    let forker = thread::spawn(move || exit_code(child(|| memory.read(0) + 7)));
    assert!(space.memory.mappings().get(mapping).unwrap().uffd.wait(LIMIT).unwrap());
    space.read_events(mapping, &mut reader, &mut transfers);
    assert_eq!(forker.join().unwrap(), 7);
    assert_eq!(space.denied, Some(PagerFull { limit: VIEWS_MAX }.to_string()));
}

#[test]
fn a_page_shared_with_a_forked_child_does_not_move() {
    let Some(uffd) = uffd(Features::MOVE) else { return };
    let (memory, staging) = (Memory::anonymous(1), Memory::anonymous(1));
    memory.write(0, 3);
    register(&uffd, &staging, Modes::MISSING);
    assert_eq!(exit_code(child(|| memory.read(0))), 3);
    // SAFETY: both ranges belong to this test, which accesses them by address only.
    let moved = unsafe { uffd.move_(staging.at(0), memory.at(0), PAGE) };
    assert_eq!(moved, Err(UffdError::Busy));
    assert_eq!(memory.read(0), 3);
}

fn send_fd(socket: RawFd, fd: RawFd) -> nix::Result<usize> {
    let fds = [fd];
    let message = [ControlMessage::ScmRights(&fds)];
    sendmsg::<()>(socket, &[IoSlice::new(b"u")], &message, MsgFlags::empty(), None)
}

fn receive_fd(socket: RawFd) -> OwnedFd {
    let (mut byte, mut room) = ([0], cmsg_space!([RawFd; 1]));
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let received = recvmsg::<()>(socket, &mut bytes, Some(&mut room), MsgFlags::MSG_CMSG_CLOEXEC).unwrap();
    for message in received.cmsgs().unwrap() {
        if let ControlMessageOwned::ScmRights(fds) = message {
            // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
            return unsafe { OwnedFd::from_raw_fd(fds[0]) };
        }
    }
    panic!("no descriptor came");
}

#[test]
fn another_process_is_paged_through_the_descriptor_that_it_handed_over() {
    let memory = Memory::anonymous(2);
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC).unwrap();
    let paged = child(|| {
        let Ok(uffd) = Uffd::create_user_only() else { return FAILED };
        // The userfaultfd is made blocking, so that the receiver has to set it non-blocking again.
        // SAFETY: only integers are passed, and this process owns the descriptor.
        let set = unsafe { libc::fcntl(uffd.fd.as_raw_fd(), libc::F_SETFL, libc::O_RDONLY) };
        if set != 0 || send_fd(theirs.as_raw_fd(), uffd.fd.as_raw_fd()).is_err() {
            return FAILED;
        }
        let mut go = [0];
        match nix::unistd::read(&theirs, &mut go) {
            Ok(1) => memory.read(1),
            _ => FAILED,
        }
    });
    let uffd = Uffd::from_fd(receive_fd(ours.as_raw_fd())).unwrap();
    uffd.handshake(Features::empty()).unwrap();
    register(&uffd, &memory, Modes::MISSING);
    assert_eq!(nix::unistd::write(&ours, &[1]), Ok(1));
    expect_fault(&uffd, memory.at(1), false, false);
    uffd.copy(memory.at(1), &page_of(66), Access::Writable).unwrap();
    assert_eq!(exit_code(paged), 66);
    assert_eq!(uffd.copy(memory.at(0), &page_of(1), Access::Writable), Err(UffdError::Gone));
    assert_eq!(memory.read(1), 0, "this process's own memory was never touched");
}

/// Tests that a process that maps shared memory and executes another program does not count as a user of the memory as
/// long as that program runs.
#[test]
fn a_process_that_executes_another_program_leaves_its_shared_memory() {
    let (features, modes) = required_features(MappingKind::Shared);
    if uffd(features).is_none() {
        return;
    }
    let (memory, _, _file) = Memory::shared(3);
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC).unwrap();
    let arguments = [c"sleep".as_ptr(), c"600".as_ptr(), std::ptr::null()];
    let member = child(|| {
        let Ok(uffd) = Uffd::create_user_only() else { return FAILED };
        if uffd.handshake(features).is_err() {
            return NO_FEATURE;
        }
        // SAFETY: the memory belongs to this test, which accesses it by address only.
        if unsafe { uffd.register(memory.all(), modes) }.is_err()
            || send_fd(theirs.as_raw_fd(), uffd.fd.as_raw_fd()).is_err()
            || nix::unistd::read(&theirs, &mut [0]) != Ok(1)
        {
            return FAILED;
        }
        // SAFETY: the array has the addresses of static strings, and ends with a null pointer.
        unsafe { libc::execvp(arguments[0], arguments.as_ptr()) };
        FAILED
    });
    let uffd = Uffd::from_fd(receive_fd(ours.as_raw_fd())).unwrap();
    let mut space = Space::create(options(MappingKind::Shared)).unwrap();
    let mapping = space.pager.add_mapping(ViewId(0)).unwrap();
    let mapped = Mapped::new(uffd, memory.at(0), 0, 3, member.as_raw() as u32, None);
    space.memory.mappings_mut().add(mapping, mapped);
    let is_member = |space: &mut Space| {
        space.remove_ended();
        space.memory.mappings().get(mapping).is_some()
    };
    assert!(is_member(&mut space), "its connection alone has ended");
    assert_eq!(nix::unistd::write(&ours, &[1]), Ok(1));
    let until = Instant::now() + LIMIT;
    let mut left = false;
    while !left && Instant::now() < until {
        left = !is_member(&mut space);
        thread::yield_now();
    }
    kill(member, Signal::SIGKILL).unwrap();
    let ended = waitpid(member, None).unwrap();
    assert!(left && ended == WaitStatus::Signaled(member, Signal::SIGKILL, false), "{left} {ended:?}");
}
