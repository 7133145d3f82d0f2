//! A process's way into the space: what its memory comes from, from its first instruction to its last.
//!
//! ```text
//!   Early ---- environment is there ----> Starting ----> Remote   memory from the window
//!     |                                      |   ^          |
//!     memory from the boot arena             |   '-- fork --'     in the child only
//!                                            '--------> Local     as without this library
//! ```
//!
//! A child that cannot reach the agent, in a container or as another user, does without helpers: its faults are served
//! all the same, by the userfaultfd that the agent got when it was forked, and its pages stay where they are.
//!
//! Who ends for want of its memory says so with memory of the boot arena.
//!
//! A child that was made past `fork(3)` (by `_Fork`, `clone` or the system call itself) has had none of this done for it:
//! it notices by its mark, a word that the kernel wipes in every child, when it asks for memory for the first time.
//!
//! The first of two moments makes the start: this library's constructor, or the first allocation after the C library has
//! been set up, by another library's constructor. Both are before `main` and before any thread.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};
use std::fmt::Display;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32};
use std::time::{Duration, Instant};

use cxloe_member::helper::allow_reading;
use cxloe_member::join::{As, JoinError, Joined, Keepsakes, Place, join, probed};
use cxloe_member::uffd;
use libc::MADV_DONTNEED;

use crate::heap::Heap;
use crate::helpers::{self, Membership, Rooms};
use crate::settings::Settings;
use crate::stage::{EARLY, LOCAL, REMOTE, STAGE, STARTING};
use crate::sys::{self, Errno, PAGE};
use crate::window::Window;
use crate::{last_words, loss, next, thread};

/// The pause between two attempts of a forked child to join.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// How long a forked child looks for an agent that its parent had.
const AGENT_TIMEOUT: Duration = Duration::from_millis(200);

/// Where memory comes from at this moment.
pub enum Source {
    /// The boot arena.
    Boot,
    /// The window.
    Remote(&'static Process),
    /// Whatever it would be without this library.
    Local,
}

/// A process that is a member.
pub struct Process {
    /// Its window.
    pub window: &'static Window,
    /// Its heap, in the window.
    pub heap: Heap,
    place: Place,
    wait: Duration,
    rooms: Rooms,
}

/// Something that is set once, before anybody else can look at it, and stays where it is.
struct Once<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: it is written in the stage Starting by one thread, and read after that.
unsafe impl<T> Sync for Once<T> {}

impl<T> Once<T> {
    const fn new() -> Once<T> {
        Once(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// # Safety
    /// The stage is Starting, and this is the only time.
    unsafe fn set(&self, value: T) -> &T {
        // SAFETY: in the stage Starting one thread alone comes here, and nobody else looks at the value yet.
        unsafe { (*self.0.get()).write(value) }
    }

    /// # Safety
    /// It has been set.
    unsafe fn get(&self) -> &T {
        // SAFETY: it has been set, and is not changed after that.
        unsafe { (*self.0.get()).assume_init_ref() }
    }
}

static WINDOW: Once<Window> = Once::new();
static PROCESS: Once<Process> = Once::new();
/// The agent's process, as far as is known.
static AGENT: AtomicU32 = AtomicU32::new(0);
/// Set when [`PROCESS`] is, and never taken back.
static MEMBER: AtomicU8 = AtomicU8::new(0);
/// A word that is 1 in a member, and 0 in a child of one that has not joined yet; null where the kernel wipes nothing.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// The member's process.
static OWN: AtomicU32 = AtomicU32::new(0);
/// Whether a fork is under way that the C library has told us of.
static FORKING: AtomicBool = AtomicBool::new(false);
/// `MADV_WIPEONFORK` of `linux/mman.h`.
const WIPE_ON_FORK: c_int = 18;

unsafe extern "C" {
    /// The C library's environment; null until it has set itself up.
    static environ: *const *const c_char;
}

/// Where memory comes from; the start, if it is time for it.
#[inline]
pub fn source() -> Source {
    match STAGE.load(Acquire) {
        REMOTE => {
            // SAFETY: it is set in this stage.
            let process = unsafe { PROCESS.get() };
            if is_child() {
                in_child();
            }
            Source::Remote(process)
        }
        LOCAL => Source::Local,
        EARLY => early(),
        _ => Source::Boot,
    }
}

/// This process, if it is a member: whatever the stage, its blocks are its blocks.
#[inline]
pub fn member() -> Option<&'static Process> {
    if MEMBER.load(Acquire) == 0 {
        return None;
    }
    if is_child() {
        in_child();
    }
    // SAFETY: it is set by then.
    Some(unsafe { PROCESS.get() })
}

/// Whether an address is of this process's window.
fn holds(address: usize) -> bool {
    member().is_some_and(|process| process.window.holds(address))
}

/// Whether this is a child of a member that has not joined yet.
#[inline]
fn is_child() -> bool {
    let mark = MARK.load(Relaxed);
    // SAFETY: it is never unmapped.
    !mark.is_null() && unsafe { &*mark }.load(Relaxed) == 0
}

/// Whether the calling thread is one of the member's, and not of a child that shares its memory (`vfork`) or has not
/// joined.
pub fn is_own() -> bool {
    // SAFETY: cannot fail.
    let own = unsafe { libc::syscall(libc::SYS_getpid) } as u32;
    STAGE.load(Acquire) == REMOTE && !is_child() && OWN.load(Relaxed) == own && helpers::are_there()
}

fn note_self() {
    // SAFETY: cannot fail.
    OWN.store(unsafe { libc::syscall(libc::SYS_getpid) } as u32, Relaxed);
    let mark = MARK.load(Relaxed);
    if !mark.is_null() {
        // SAFETY: it is never unmapped.
        unsafe { &*mark }.store(1, Relaxed);
    }
}

/// Has the kernel wipe a word in children.
fn make_mark() {
    let Some(page) = sys::fresh(PAGE) else { return };
    // SAFETY: fresh memory, which stays.
    if unsafe { sys::madvise(page, PAGE, WIPE_ON_FORK) } == 0 {
        MARK.store(page.cast(), Relaxed);
    }
}

#[cold]
fn early() -> Source {
    // SAFETY: a word of the C library's.
    if unsafe { (&raw const environ).read_volatile() }.is_null() {
        return Source::Boot;
    }
    start();
    source()
}

/// The start, once.
pub fn start() {
    if STAGE.compare_exchange(EARLY, STARTING, Acquire, Relaxed).is_err() {
        return;
    }
    let _errno = Errno::keep();
    next::find();
    let stage = match Settings::read() {
        None => LOCAL,
        Some(settings) => match enter(&settings) {
            Ok(()) => REMOTE,
            Err(why) if settings.foremost => last_words::end(why),
            // Started by the program it was asked for, perhaps long after: it runs with memory of this machine.
            Err(_) => LOCAL,
        },
    };
    STAGE.store(stage, Release);
}

/// Why a process is no member.
enum Refused {
    Addresses(usize),
    Userfaultfd(std::io::Error),
    Join(JoinError),
    Helpers,
}

impl Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::Addresses(bytes) => {
                write!(
                    f,
                    "no room for {bytes} bytes of addresses; look at `ulimit -v` and vm.overcommit_memory"
                )
            }
            Refused::Userfaultfd(error) => write!(
                f,
                "no userfaultfd: {error}; run it as root, set vm.unprivileged_userfaultfd=1, or give this user \
                 /dev/userfaultfd"
            ),
            Refused::Join(error) => write!(f, "it cannot have remote memory: {error}"),
            Refused::Helpers => f.write_str("its helper threads could not be started; look at `ulimit -u`"),
        }
    }
}

fn enter(settings: &Settings) -> Result<(), Refused> {
    let addresses = || Refused::Addresses(settings.window);
    let window = Window::reserve(settings.bytes, settings.window, helpers::announce).ok_or_else(addresses)?;
    let rooms = helpers::rooms().ok_or_else(addresses)?;
    // SAFETY: the number was given to us as that of an open descriptor; if it is not, what is done with it fails.
    let device = settings.device.map(|number| unsafe { BorrowedFd::borrow_raw(number) });
    let uffd = uffd::create(device).map_err(Refused::Userfaultfd)?;
    let (address, bytes) = (window.base() as u64, window.bytes() as u64);
    let place = Place { agent: settings.agent, space: settings.space, address, bytes, offset: 0 };
    let mut joined = join(&place, As::New(uffd.as_fd())).map_err(Refused::Join)?;
    AGENT.store(joined.welcome.agent, Relaxed);
    allow_reading(joined.welcome.agent);
    make_mark();
    note_self();
    let shared_state = joined.shared_state.take().ok_or(Refused::Join(JoinError::Protocol))?;
    helpers::start(Membership { place, joined, uffd, shared_state, wait: settings.wait }, rooms)
        .map_err(|_| Refused::Helpers)?;
    // SAFETY: the stage is Starting, which it is once in the life of a program.
    unsafe {
        let window = WINDOW.set(window);
        let heap = Heap::new(window);
        PROCESS.set(Process { window, heap, place, wait: settings.wait, rooms });
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child));
    }
    MEMBER.store(1, Release);
    loss::explain(holds);
    Ok(())
}

extern "C" fn before_fork() {
    if let Some(process) = member() {
        process.heap.hold();
        helpers::hold();
        FORKING.store(true, Relaxed);
    }
}

extern "C" fn after_fork() {
    if let Some(process) = member() {
        FORKING.store(false, Relaxed);
        helpers::let_go();
        process.heap.let_go();
    }
}

/// The child has its parent's memory as it was, and none of its threads: it joins as a view of its own before it does
/// anything else with it.
#[cold]
extern "C" fn in_child() {
    // Where there is no mark, only `fork(3)` leads here, once; elsewhere whoever comes first.
    if MEMBER.load(Acquire) == 0 || (!MARK.load(Relaxed).is_null() && !is_child()) {
        return;
    }
    note_self();
    // SAFETY: it is set by then.
    let process = unsafe { PROCESS.get() };
    let _errno = Errno::keep();
    STAGE.store(STARTING, Release);
    helpers::reset();
    // Made past `fork(3)`, a child of several threads has arenas that one of them may have been about to change: these
    // stay locked, as the C library's own would.
    if FORKING.swap(false, Relaxed) {
        process.heap.reset();
    }
    allow_reading(AGENT.load(Relaxed));
    let Some(view) = own_view(process.window) else {
        last_words::end("the agent that has its memory died while it was being forked")
    };
    let mut joined = match join_as_child(process, view) {
        Ok(joined) => joined,
        Err(JoinError::NoAgent { .. }) => {
            STAGE.store(REMOTE, Release);
            return;
        }
        Err(error) => {
            last_words::end(format_args!("a forked child cannot have its parent's memory: {error}"))
        }
    };
    AGENT.store(joined.welcome.agent, Relaxed);
    allow_reading(joined.welcome.agent);
    let (Some(uffd), Some(shared_state)) = (joined.uffd.take(), joined.shared_state.take()) else {
        last_words::end(Refused::Join(JoinError::Protocol))
    };
    let membership = Membership { place: process.place, joined, uffd, shared_state, wait: process.wait };
    if helpers::start(membership, process.rooms).is_err() {
        last_words::end(Refused::Helpers);
    }
    STAGE.store(REMOTE, Release);
}

/// Does what only a process of one thread may, without the helpers. Joins again after it.
pub fn alone(act: impl FnOnce() -> c_int) -> c_int {
    let Some(process) = member() else { return act() };
    before_fork();
    FORKING.store(false, Relaxed);
    let done = match helpers::retire() {
        None => act(),
        Some(left) => {
            thread::wait_alone();
            let done = act();
            let _errno = Errno::keep();
            come_back(process, left);
            done
        }
    };
    let _errno = Errno::keep();
    after_fork();
    done
}

/// Joins again, as the member that it was.
fn come_back(process: &Process, left: helpers::Left) {
    let helpers::Left { uffd, shared_state, view } = left;
    let keepsakes = Keepsakes { uffd: uffd.as_fd(), shared_state: shared_state.as_fd(), memory: None, view };
    let joined = match join_patiently(process, As::Before(keepsakes), process.wait) {
        Ok(joined) => joined,
        Err(error) => last_words::end(format_args!("it cannot have its memory again: {error}")),
    };
    let membership = Membership { place: process.place, joined, uffd, shared_state, wait: process.wait };
    if helpers::start(membership, process.rooms).is_err() {
        last_words::end(Refused::Helpers);
    }
}

fn join_as_child(process: &Process, view: u16) -> Result<Joined, JoinError> {
    // The agent has just said which view this is: who does not find it now is out of its reach.
    match join(&process.place, As::Child(view)) {
        Err(JoinError::NoAgent { .. }) => join_patiently(process, As::Child(view), AGENT_TIMEOUT),
        Err(error) if error.may_pass() => join_patiently(process, As::Child(view), process.wait),
        outcome => outcome,
    }
}

fn join_patiently(process: &Process, who: As<'_>, wait: Duration) -> Result<Joined, JoinError> {
    let until = Instant::now() + wait;
    loop {
        match join(&process.place, who) {
            Err(error) if error.may_pass() && Instant::now() < until => std::thread::sleep(RETRY_INTERVAL),
            outcome => return outcome,
        }
    }
}

/// Which view the agent made of this process when it was forked: it says so in the probe page, which it fills by this
/// process's own userfaultfd.
fn own_view(window: &Window) -> Option<u16> {
    let page = window.base() as *mut [u8; 16];
    // SAFETY: the probe page is mapped and nobody's.
    unsafe {
        let content = page.read_volatile();
        sys::madvise(page.cast(), PAGE, MADV_DONTNEED);
        probed(&content)
    }
}

/// The errno of what cannot be had.
pub const NO_MEMORY: c_int = libc::ENOMEM;
