//! Membership of this process in the space, from its first instruction to its last: decides where its memory comes
//! from.
//!
//! ```text
//!   Early ---- environment is there ----> Starting ----> Remote   memory from the window
//!     |                                      |   ^          |
//!     memory from the boot arena             |   '-- fork --'     in the child only
//!                                            '--------> Local     as without this library
//! ```
//!
//! A child that cannot reach the agent, in a container or as another user, runs without helpers: the agent
//! nevertheless serves the child's faults, through the userfaultfd that the agent got at the fork, and does
//! not evict the child's pages.
//!
//! A process that ends because its memory is out of reach prints the reason with memory of the boot arena.
//!
//! In a child made without `fork(3)` (by `_Fork`, `clone` or the system call itself), no fork handlers are called: the
//! child detects this at its first allocation, by its mark, a word that the kernel wipes in every child.
//!
//! The membership starts in this library's constructor, or at the first allocation after the C library has
//! been set up, if that is earlier, in another library's constructor. Both are before `main`, and before any
//! thread is started.

#![expect(unsafe_code, reason = "the process's state is a static that one thread sets once")]

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};
use std::fmt::Display;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32};
use std::time::{Duration, Instant};

use cxloe_member::join::{JoinError, JoinKind, Joined, MemberMemory, SuccessorDescriptors, join};
use cxloe_member::local_report::LocalReport;
use cxloe_member::process_files::ProcessFiles;
use cxloe_member::uffd;
use cxloe_member::wire::{NO_VIEW, PROBE_BYTES, ProbePage};
use libc::MADV_DONTNEED;

use crate::heap::Heap;
use crate::helpers::{self, HelperRooms, Membership};
use crate::settings::PreloadSettings;
use crate::stage::{EARLY, LOCAL, REMOTE, STAGE, STARTING};
use crate::sys::{self, Errno, PAGE};
use crate::window::Window;
use crate::{final_message, loss, next_definition, thread};

/// Pause between two attempts of a forked child to join.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Longest time that a forked child tries to reach its parent's agent.
const AGENT_TIMEOUT: Duration = Duration::from_millis(200);

/// Source of the process's memory at present.
pub enum MemorySource {
    Boot,
    Remote(&'static Process),
    /// The allocator that the program would use without this library.
    Local,
}

pub struct Process {
    pub window: &'static Window,
    pub heap: Heap,
    place: MemberMemory,
    wait: Duration,
    rooms: HelperRooms,
}

/// A static value that is set once, before other threads can read it.
struct SetOnce<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: one thread writes the value in the stage Starting; it is read only after that.
unsafe impl<T> Sync for SetOnce<T> {}

impl<T> SetOnce<T> {
    const fn new() -> SetOnce<T> {
        SetOnce(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// # Safety
    /// The stage is Starting, and the value has not been set before.
    unsafe fn set(&self, value: T) -> &T {
        // SAFETY: in the stage Starting only one thread calls this function, and no other thread reads the value yet.
        unsafe { (*self.0.get()).write(value) }
    }

    /// # Safety
    /// The value has been set.
    unsafe fn get(&self) -> &T {
        // SAFETY: the value has been set, and does not change after that.
        unsafe { (*self.0.get()).assume_init_ref() }
    }
}

static WINDOW: SetOnce<Window> = SetOnce::new();
static PROCESS: SetOnce<Process> = SetOnce::new();
/// 1 when [`PROCESS`] is set; never reset to 0.
static MEMBER: AtomicU8 = AtomicU8::new(0);
/// Address of a word that is 1 in a member, and 0 in a member's child that has not joined yet; null if the kernel
/// cannot wipe memory in children.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// Process id of the member. A child that shares the member's memory (`vfork`) has another one.
static OWN: AtomicU32 = AtomicU32::new(0);
/// Whether a fork is in progress by the C library's `fork`, which calls the fork handlers.
static FORKING: AtomicBool = AtomicBool::new(false);
/// `MADV_WIPEONFORK` of `linux/mman.h`.
const WIPE_ON_FORK: c_int = 18;

unsafe extern "C" {
    /// Environment of the C library; null until the library is set up.
    static environ: *const *const c_char;
}

/// Present source of memory. Starts the membership if that has not been done and the C library is set up.
#[inline]
pub fn source() -> MemorySource {
    match STAGE.load(Acquire) {
        REMOTE => {
            // SAFETY: `PROCESS` was set before the stage became Remote.
            let process = unsafe { PROCESS.get() };
            if is_child() {
                in_child();
            }
            MemorySource::Remote(process)
        }
        LOCAL => MemorySource::Local,
        EARLY => early(),
        _ => MemorySource::Boot,
    }
}

/// State of this process if it is, or has been, a member of the space. Even then, blocks of its heap must be returned
/// to that heap.
#[inline]
pub fn member() -> Option<&'static Process> {
    if MEMBER.load(Acquire) == 0 {
        return None;
    }
    if is_child() {
        in_child();
    }
    // SAFETY: `PROCESS` was set before `MEMBER` became 1.
    Some(unsafe { PROCESS.get() })
}

fn holds(address: usize) -> bool {
    member().is_some_and(|process| process.window.holds(address))
}

/// Whether this process is a member's child that has not joined yet.
#[inline]
fn is_child() -> bool {
    let mark = MARK.load(Relaxed);
    // SAFETY: the word is never unmapped.
    !mark.is_null() && unsafe { &*mark }.load(Relaxed) == 0
}

/// Whether the calling thread belongs to the member itself, and not to a child that shares the member's memory
/// (`vfork`) or has not joined.
pub fn is_own() -> bool {
    // SAFETY: the call has no arguments and cannot fail.
    let own = unsafe { libc::syscall(libc::SYS_getpid) } as u32;
    STAGE.load(Acquire) == REMOTE && !is_child() && OWN.load(Relaxed) == own && helpers::are_running()
}

fn note_self() {
    // SAFETY: the call has no arguments and cannot fail.
    OWN.store(unsafe { libc::syscall(libc::SYS_getpid) } as u32, Relaxed);
    let mark = MARK.load(Relaxed);
    if !mark.is_null() {
        // SAFETY: the word is never unmapped.
        unsafe { &*mark }.store(1, Relaxed);
    }
}

/// Allocates the word that the kernel wipes in children.
fn make_fork_mark() {
    let Some(page) = sys::fresh(PAGE) else { return };
    // SAFETY: new memory, which stays mapped.
    if unsafe { sys::madvise(page, PAGE, WIPE_ON_FORK) } == 0 {
        MARK.store(page.cast(), Relaxed);
    }
}

#[cold]
fn early() -> MemorySource {
    // SAFETY: reads a word of the C library.
    if unsafe { (&raw const environ).read_volatile() }.is_null() {
        return MemorySource::Boot;
    }
    start();
    source()
}

/// Starts the membership, once.
pub fn start() {
    if STAGE.compare_exchange(EARLY, STARTING, Acquire, Relaxed).is_err() {
        return;
    }
    let _errno = Errno::keep();
    next_definition::find();
    let stage = match PreloadSettings::read() {
        None => LOCAL,
        Some(settings) => match enter(&settings) {
            Ok(()) => REMOTE,
            // The program runs with local memory, and is not ended: `cn-agent exec` reports the filter to the user.
            Err(NotMemberReason::Filtered) => LOCAL,
            Err(why) if settings.foremost => final_message::end(why),
            // This program was started by the requested program, perhaps long after the start of that program, so a
            // failure is no reason to end it: it runs with local memory, unless the user requires remote memory.
            Err(why) => match why.report() {
                Some(report) if sys::execution_error(report.path()) == libc::EPERM => final_message::end(why),
                _ => LOCAL,
            },
        },
    };
    STAGE.store(stage, Release);
}

enum NotMemberReason {
    Filtered,
    Valgrind,
    Addresses(usize),
    Userfaultfd(std::io::Error),
    Files(std::io::Error),
    Join(JoinError),
    Helpers,
}

impl NotMemberReason {
    /// The report to `cn-agent exec`; `None` if that has seen the reason itself.
    fn report(&self) -> Option<LocalReport> {
        Some(match self {
            NotMemberReason::Filtered => return None,
            NotMemberReason::Valgrind => LocalReport::Valgrind,
            NotMemberReason::Addresses(_) => LocalReport::Addresses,
            NotMemberReason::Userfaultfd(_) => LocalReport::Userfaultfd,
            NotMemberReason::Files(_) => LocalReport::OwnMemory,
            NotMemberReason::Join(_) => LocalReport::Agent,
            NotMemberReason::Helpers => LocalReport::Threads,
        })
    }
}

impl Display for NotMemberReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NotMemberReason::Filtered => f.write_str("a system call filter (seccomp) was set for it"),
            NotMemberReason::Valgrind => f.write_str(
                "it runs under valgrind, which checks memory of its own making; run valgrind without `cn-agent exec`",
            ),
            NotMemberReason::Addresses(bytes) => {
                write!(
                    f,
                    "no room for {bytes} bytes of addresses; look at `ulimit -v` and vm.overcommit_memory"
                )
            }
            NotMemberReason::Userfaultfd(error) => write!(
                f,
                "no userfaultfd: {error}; run it as root, set vm.unprivileged_userfaultfd=1, or give this user \
                 /dev/userfaultfd"
            ),
            NotMemberReason::Files(error) => write!(
                f,
                "it may not open its own memory (/proc/self/mem: {error}), which the agent pages through it: a program that \
                 this user may execute but not read keeps its memory local; let the user read it (chmod +r), or run it as \
                 root"
            ),
            NotMemberReason::Join(error) => write!(f, "it cannot have remote memory: {error}"),
            NotMemberReason::Helpers => {
                f.write_str("its helper threads could not be started; look at `ulimit -u`")
            }
        }
    }
}

fn enter(settings: &PreloadSettings) -> Result<(), NotMemberReason> {
    if settings.valgrind {
        return Err(NotMemberReason::Valgrind);
    }
    // With an additional system call filter, the process does not become a member: the filter may end it at the first
    // system call that the filter does not list.
    if settings.filters.zip(sys::filters()).is_some_and(|(usual, own)| own > usual) {
        return Err(NotMemberReason::Filtered);
    }
    let addresses = || NotMemberReason::Addresses(settings.window);
    let window = Window::reserve(settings.bytes, settings.window, settings.base, helpers::announce)
        .ok_or_else(addresses)?;
    if settings.base == Some(window.base()) {
        crate::placed();
    }
    let rooms = helpers::rooms().ok_or_else(addresses)?;
    // SAFETY: the number was passed as that of an open descriptor; if it is none, calls on it fail.
    let device = settings.device.map(|number| unsafe { BorrowedFd::borrow_raw(number) });
    let uffd = uffd::create(device).map_err(NotMemberReason::Userfaultfd)?;
    let (address, bytes) = (window.base() as u64, window.bytes() as u64);
    let place = MemberMemory { agent: settings.agent, space: settings.space, address, bytes, offset: 0 };
    let files = ProcessFiles::own().map_err(NotMemberReason::Files)?;
    let who = JoinKind::New { uffd: uffd.as_fd(), files: Some(&files) };
    let mut joined = join(&place, who).map_err(NotMemberReason::Join)?;
    make_fork_mark();
    note_self();
    let shared_state = joined.shared_state.take().ok_or(NotMemberReason::Join(JoinError::Protocol))?;
    let (files, wait) = (Some(files), settings.wait);
    helpers::start(Membership { place, joined, uffd, shared_state, files, wait }, rooms)
        .map_err(|_| NotMemberReason::Helpers)?;
    // SAFETY: the stage is Starting, which happens once in the life of a program.
    unsafe {
        let window = WINDOW.set(window);
        let heap = Heap::new(window);
        PROCESS.set(Process { window, heap, place, wait: settings.wait, rooms });
        crate::robust_locks::watch();
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child));
    }
    MEMBER.store(1, Release);
    loss::explain(holds);
    Ok(())
}

extern "C" fn before_fork() {
    if let Some(process) = member() {
        process.heap.lock_before_fork();
        helpers::lock_before_fork();
        FORKING.store(true, Relaxed);
    }
}

extern "C" fn after_fork() {
    if let Some(process) = member() {
        FORKING.store(false, Relaxed);
        helpers::unlock_after_fork();
        process.heap.unlock_after_fork();
    }
}

/// Makes a forked child, which has its parent's memory and none of its threads, a member with a view of its own, before
/// the child uses the memory in any other way.
#[cold]
extern "C" fn in_child() {
    // Without a mark, `fork(3)` calls this function once. With a mark, several threads of the child may call it, and
    // only the first one continues.
    if MEMBER.load(Acquire) == 0 || (!MARK.load(Relaxed).is_null() && !is_child()) {
        return;
    }
    note_self();
    // SAFETY: `PROCESS` was set before `MEMBER` became 1.
    let process = unsafe { PROCESS.get() };
    let _errno = Errno::keep();
    STAGE.store(STARTING, Release);
    helpers::reset();
    // In a child not made by `fork(3)`, no fork handler ran. The locks are then not reset: an arena that another thread
    // of the parent was changing stays locked, like an allocator lock of the C library in this case.
    if FORKING.swap(false, Relaxed) {
        process.heap.reset();
    }
    let Some(probe) = probe_page(process.window) else {
        // An agent that answers gives the reason why it does not serve this child.
        let probe = ProbePage { view: NO_VIEW, proof: 0 };
        match join(&process.place, JoinKind::Child { probe, files: None }) {
            Err(JoinError::NoAgent { .. }) | Ok(_) => {
                final_message::end("the agent that serves its memory ended during the fork")
            }
            Err(error) => {
                final_message::end(format_args!("a forked child cannot have its parent's memory: {error}"))
            }
        }
    };
    // If the process may not open the files of its own memory, none of its pages are evicted.
    let files = ProcessFiles::own().ok();
    let mut joined = match join_as_child(process, probe, files.as_ref()) {
        Ok(joined) => joined,
        // This process cannot reach the agent, but the agent serves the process's faults all the same.
        Err(JoinError::NoAgent { .. }) => {
            STAGE.store(REMOTE, Release);
            return;
        }
        Err(error) => {
            final_message::end(format_args!("a forked child cannot have its parent's memory: {error}"))
        }
    };
    let (Some(uffd), Some(shared_state)) = (joined.uffd.take(), joined.shared_state.take()) else {
        final_message::end(NotMemberReason::Join(JoinError::Protocol))
    };
    let Process { place, wait, .. } = *process;
    let membership = Membership { place, joined, uffd, shared_state, files, wait };
    if helpers::start(membership, process.rooms).is_err() {
        final_message::end(NotMemberReason::Helpers);
    }
    STAGE.store(REMOTE, Release);
}

/// Runs a call that the kernel permits only to processes of one thread: ends the helpers before, and rejoins after it.
pub fn run_single_threaded(act: impl FnOnce() -> c_int) -> c_int {
    let Some(process) = member() else { return act() };
    before_fork();
    FORKING.store(false, Relaxed);
    let done = match helpers::retire() {
        None => act(),
        Some(left) => {
            thread::wait_alone();
            let done = act();
            let _errno = Errno::keep();
            rejoin(process, left);
            done
        }
    };
    let _errno = Errno::keep();
    after_fork();
    done
}

/// Rejoins the space as the same member, with the state that the helpers returned.
fn rejoin(process: &Process, left: helpers::RetiredHelpers) {
    let helpers::RetiredHelpers { uffd, shared_state, files, view } = left;
    let successor_descriptors = SuccessorDescriptors {
        uffd: uffd.as_fd(),
        shared_state: shared_state.as_fd(),
        memory: None,
        files: files.as_ref(),
        view,
    };
    let joined = match join_with_retries(process, JoinKind::Before(successor_descriptors), process.wait) {
        Ok(joined) => joined,
        Err(error) => final_message::end(format_args!("it cannot have its memory again: {error}")),
    };
    let Process { place, wait, .. } = *process;
    let membership = Membership { place, joined, uffd, shared_state, files, wait };
    if helpers::start(membership, process.rooms).is_err() {
        final_message::end(NotMemberReason::Helpers);
    }
}

fn join_as_child(
    process: &Process,
    probe: ProbePage,
    files: Option<&ProcessFiles>,
) -> Result<Joined, JoinError> {
    let who = JoinKind::Child { probe, files };
    // The agent has assigned this view just now. If no agent answers, this process cannot reach the agent, and a short
    // wait suffices.
    match join(&process.place, who) {
        Err(JoinError::NoAgent { .. }) => join_with_retries(process, who, AGENT_TIMEOUT),
        Err(error) if error.is_transient() => join_with_retries(process, who, process.wait),
        outcome => outcome,
    }
}

fn join_with_retries(process: &Process, who: JoinKind<'_>, wait: Duration) -> Result<Joined, JoinError> {
    let until = Instant::now() + wait;
    loop {
        match join(&process.place, who) {
            Err(error) if error.is_transient() && Instant::now() < until => {
                std::thread::sleep(RETRY_INTERVAL)
            }
            outcome => return outcome,
        }
    }
}

/// The view that the agent gave this process at the fork. It is read from the probe page, which the agent fills through
/// this process's own userfaultfd; the content that the parent's page has is dropped first.
fn probe_page(window: &Window) -> Option<ProbePage> {
    let page = window.base() as *mut [u8; PROBE_BYTES];
    // SAFETY: the probe page is mapped and has no other user.
    unsafe {
        sys::madvise(page.cast(), PAGE, MADV_DONTNEED);
        let content = page.read_volatile();
        sys::madvise(page.cast(), PAGE, MADV_DONTNEED);
        ProbePage::decode(&content)
    }
}

/// Value of errno when there is no memory or no address range.
pub const NO_MEMORY: c_int = libc::ENOMEM;
