//! Tests with real faults: each test has its own memory, a userfaultfd that it serves itself, and threads or
//! processes that touch the memory. An ordinary user's userfaultfd serves the faults of user mode, which suffices for
//! most tests.

mod events;
mod filling;
mod independent;
mod memory;
mod processes;
mod protection;
mod written;

use std::time::{Duration, Instant};

use memory::Memory;

use super::*;

/// Time after which a test that waits for an event fails.
const LIMIT: Duration = Duration::from_secs(20);

/// A userfaultfd with `features`, or `None` on a kernel without them.
fn uffd(features: Features) -> Option<Uffd> {
    let uffd = Uffd::create().or_else(|_| Uffd::create_user_only()).expect("any kernel has one");
    match uffd.handshake(features) {
        Ok(ioctls) => {
            assert!(ioctls.contains(Ioctls::REGISTER | Ioctls::UNREGISTER | Ioctls::HANDSHAKE));
            Some(uffd)
        }
        Err(error @ OpenError::Missing { missing, .. }) => {
            assert!(!probe().unwrap().features.intersects(missing));
            eprintln!("not tested here: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[expect(unsafe_code, reason = "registered memory must be accessed by address only")]
fn register(uffd: &Uffd, memory: &Memory, modes: Modes) -> Ioctls {
    // SAFETY: the memory belongs to this test, which accesses it by address only.
    unsafe { uffd.register(memory.all(), modes) }.unwrap()
}

/// The next event; the test fails if there is none within the limit.
fn next(uffd: &Uffd) -> UffdEvent {
    let until = Instant::now() + LIMIT;
    let mut buffer = EventBuffer::new();
    while Instant::now() < until {
        if uffd.wait(Duration::from_millis(100)).unwrap() {
            let mut events = uffd.events(&mut buffer).unwrap();
            if let Some(event) = events.next() {
                assert!(events.next().is_none(), "one at a time in these tests");
                return event;
            }
        }
    }
    panic!("no event within {LIMIT:?}");
}

/// Checks that the next event is a fault at page `at`, caused by a write if `writes`, on a present protected page if
/// `protected`.
fn expect_fault(uffd: &Uffd, at: u64, writes: bool, protected: bool) {
    match next(uffd) {
        UffdEvent::Fault { address, write, wp, minor: false, .. } => {
            assert_eq!((address & !(PAGE - 1), write, wp), (at, writes, protected));
        }
        other => panic!("expected a fault at {at:#x}, got {other:?}"),
    }
}

fn expect_quiet(uffd: &Uffd) {
    let mut buffer = EventBuffer::new();
    assert_eq!(uffd.events(&mut buffer).unwrap().count(), 0);
}

fn page_of(byte: u8) -> [u8; PAGE as usize] {
    [byte; PAGE as usize]
}

/// Repeats `operation` as long as the address space is changing.
fn when_quiet<T>(mut operation: impl FnMut() -> Result<T, UffdError>) -> Result<T, UffdError> {
    let until = Instant::now() + LIMIT;
    loop {
        match operation() {
            Err(UffdError::Again) if Instant::now() < until => std::thread::yield_now(),
            other => return other,
        }
    }
}

#[test]
fn the_probe_and_a_handshake_agree() {
    let probe = probe().unwrap();
    assert!(
        probe.features.contains(Features::WRITE_PROTECT | Features::SIGBUS),
        "{}",
        probe.features.names()
    );
    assert!(probe.ioctls.contains(Ioctls::REGISTER));
    assert_eq!(probe.limit.is_some(), probe.way == FaultScope::UserFaultsOnly);
    probe.require(Features::SIGBUS).unwrap();
    let unknown = Features::from_bits_retain(1 << 63);
    let refused = probe.require(unknown).unwrap_err();
    assert!(matches!(refused, OpenError::Missing { missing, .. } if missing == unknown));
    let uffd = uffd(probe.features - Features::EVENT_FORK).expect("the kernel says that it has them");
    assert!(matches!(uffd.handshake(Features::empty()), Err(OpenError::NotFresh(_))), "only once");
}

#[test]
fn a_feature_that_no_kernel_has_is_named_as_missing() {
    let uffd = Uffd::create_user_only().unwrap();
    match uffd.handshake(Features::from_bits_retain(1 << 62)) {
        Err(OpenError::Missing { missing, present }) => {
            assert_eq!(missing.bits(), 1 << 62);
            assert!(present.contains(Features::SIGBUS));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_device_node_gives_a_userfaultfd_by_its_permissions() {
    let Ok(device) = std::fs::File::open("/dev/userfaultfd") else {
        eprintln!("not tested here: /dev/userfaultfd cannot be opened");
        return;
    };
    let uffd = Uffd::create_from(device.as_fd()).unwrap();
    uffd.handshake(Features::empty()).unwrap();
    let memory = Memory::anonymous(1);
    register(&uffd, &memory, Modes::MISSING);
    assert_eq!(uffd.copy(memory.at(0), &page_of(5), Access::Writable), Ok(4096));
    assert_eq!(memory.read(0), 5);
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(matches!(Uffd::create_from(file.as_fd()), Err(OpenError::Os { .. })));
    assert!(matches!(Uffd::from_fd(file.into()), Err(OpenError::NotOne(what)) if what == "/dev/null"));
}

#[expect(unsafe_code, reason = "registered memory must be accessed by address only")]
#[test]
fn ranges_that_cannot_be_registered_are_refused() {
    let Some(first) = uffd(Features::empty()) else { return };
    let second = uffd(Features::empty()).unwrap();
    let memory = Memory::anonymous(2);
    register(&first, &memory, Modes::MISSING);
    // SAFETY: the range belongs to this test, or the kernel refuses it.
    let try_range = |uffd: &Uffd, range| unsafe { uffd.register(range, Modes::MISSING) };
    assert_eq!(try_range(&second, memory.all()), Err(UffdError::Busy));
    assert_eq!(try_range(&first, memory.at(0) + 1..memory.at(1)), Err(UffdError::NotMapped), "not a page");
    assert_eq!(try_range(&first, PAGE..2 * PAGE), Err(UffdError::NotMapped), "nothing there");
    first.unregister(memory.all()).unwrap();
    assert_eq!(first.copy(memory.at(0), &page_of(1), Access::Writable), Err(UffdError::NotMapped));
    assert!(try_range(&second, memory.all()).unwrap().contains(Ioctls::COPY | Ioctls::WAKE));
}
