//! The two helper threads of a process that is a member of a space, besides the program's own threads: the listener
//! carries out the agent's orders, the speaker makes the program's requests to the agent.
//!
//! ```text
//!   program's threads            speaker                  listener                     agent
//!     announce: free, munmap --> HelperLine::discard ------------------- DISCARD ----------->
//!     <------------------------- answered <-- HelperLine -------------- DISCARDED -----------
//!     hint: madvise -----------> HelperLine::hint ---------------- WILLREAD, COLD, PAGEOUT -->
//!                                                          <------- DROP --------------
//!                                                  madvise -------- DROPPED ---------->
//!     follow: setuid ... ------> sets rights, rings -> sets rights
//!     retire: unshare ... -----> returns all, ends;    ends
//! ```
//!
//! The helpers have a table of descriptors of their own, with only the connection and the descriptors that a
//! successor of the agent needs: a program that closes or counts all of its descriptors does not affect the
//! helpers' descriptors. The helpers are no threads of the C library ([`thread`]), touch no paged memory, and
//! allocate nothing.

#![expect(unsafe_code, reason = "helper threads share a static, and make bare system calls")]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};
use std::time::Duration;

use cxloe_member::helper::{HelperEnd, HelperHost, Member};
use cxloe_member::join::{Joined, MemberMemory};
use cxloe_member::line::HelperLine;
use cxloe_member::process_files::ProcessFiles;
use cxloe_member::socket::{Descriptors, receive_some, send_some};
use cxloe_member::wire::{MessageKind, Pages, RANGE};

use crate::credentials;
use crate::final_message;
use crate::lock::Lock;
use crate::loss::Losses;
use crate::sys::{self, Errno};
use crate::thread::{self, Entry, ThreadRoom};

/// Data that the listener (the helper thread that carries out the agent's orders) needs.
pub struct Membership {
    /// Address range of the paged memory, and its space.
    pub place: MemberMemory,
    /// Connection to the agent, with the agent's answer.
    pub joined: Joined,
    pub uffd: OwnedFd,
    pub shared_state: OwnedFd,
    /// Files through which the agent reads this process's memory, if the process may open them.
    pub files: Option<ProcessFiles>,
    /// Longest wait for a successor of the agent.
    pub wait: Duration,
}

/// Memory for the stacks and thread descriptors of both helpers.
#[derive(Clone, Copy, Debug)]
pub struct HelperRooms {
    listener: ThreadRoom,
    speaker: ThreadRoom,
}

/// Data passed from the thread that starts the helpers to the listener.
struct Handover(UnsafeCell<Option<(Membership, HelperRooms)>>);

// SAFETY: the value is written before the listener starts, and used only by the listener after that.
unsafe impl Sync for Handover {}

static HANDOVER: Handover = Handover(UnsafeCell::new(None));
static LINE: HelperLine = HelperLine::new();

/// Progress of the helpers' start.
static PROGRESS: AtomicU32 = AtomicU32::new(STARTING);
const STARTING: u32 = 0;
const READY: u32 = 1;
const FAILED: u32 = 2;

/// Thread id of the listener; 0 while the helpers do not run.
static LISTENER: AtomicU32 = AtomicU32::new(0);
static SPEAKER: AtomicU32 = AtomicU32::new(0);

/// Lock held by the thread that makes a request to the speaker: one request at a time.
static TURN: Lock<()> = Lock::new(());
static QUESTION: AtomicU32 = AtomicU32::new(IDLE);
const IDLE: u32 = 0;
const DISCARD: u32 = 1;
const FOLLOW: u32 = 2;
const RETIRE: u32 = 3;
const ANSWERED: u32 = 4;
const END: u32 = 5;
const GIVE_BACK: u32 = 6;
/// Smallest number of a request that stands for a kind of message; [`hint`] makes such requests.
const HINT: u32 = 0x100;
/// Pages of the request: first page in the upper half, number of pages in the lower half.
static PAGES: AtomicU64 = AtomicU64::new(0);
/// Descriptor, in the program's table, of the socket over which the helpers pass their descriptors back.
static RETURN: AtomicI32 = AtomicI32::new(-1);
/// Exit code with which the helpers end when none of the program's threads runs any more.
static LAST_CODE: AtomicI32 = AtomicI32::new(0);
/// Descriptors of the helpers: the userfaultfd, the shared state, the files of this process (-1 if it could not open
/// them), and the bell (an eventfd that wakes the listener).
static UFFD: AtomicI32 = AtomicI32::new(-1);
static SHARED_STATE: AtomicI32 = AtomicI32::new(-1);
static MEMORY: AtomicI32 = AtomicI32::new(-1);
static TABLE: AtomicI32 = AtomicI32::new(-1);
static BELL: AtomicI32 = AtomicI32::new(-1);
/// Number of the process's view.
static VIEW: AtomicU32 = AtomicU32::new(0);
/// Whether the listener has set the saved credentials.
static FOLLOWED: AtomicU32 = AtomicU32::new(0);

/// Interval at which the listener checks whether the program's own threads have ended. Threads that each end by the
/// system call `exit` leave no sign, and the helpers would keep the process alive.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Error: a helper thread could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelperNotStarted;

/// State that the helpers return when they end.
pub struct RetiredHelpers {
    pub uffd: OwnedFd,
    pub shared_state: OwnedFd,
    /// Files through which the agent reads this process's memory, if the process could open them.
    pub files: Option<ProcessFiles>,
    pub view: u16,
}

/// Starts both helpers, and returns when they serve. During the call, no other thread may start and no descriptor may
/// be opened.
///
/// # Errors
/// [`HelperNotStarted`]; then the connection is closed.
pub fn start(membership: Membership, rooms: HelperRooms) -> Result<(), HelperNotStarted> {
    let own = own_descriptors(&membership);
    PROGRESS.store(STARTING, Relaxed);
    QUESTION.store(IDLE, Relaxed);
    VIEW.store(u32::from(membership.joined.welcome.view), Relaxed);
    // SAFETY: no helper runs, so this thread is the only user.
    unsafe { *HANDOVER.0.get() = Some((membership, rooms)) };
    let started = thread::spawn(rooms.listener, run_listener as Entry, null_mut(), &LISTENER);
    if started {
        while PROGRESS.load(Acquire) == STARTING {
            sys::futex_wait(&PROGRESS, STARTING);
        }
    }
    // The listener's own table contains copies of these descriptors by now.
    for descriptor in own.into_iter().filter(|descriptor| *descriptor >= 0) {
        // SAFETY: the descriptors are in this thread's table; their owned values moved to the listener, in whose table
        // they stay open.
        unsafe { libc::syscall(libc::SYS_close, descriptor) };
    }
    if started && PROGRESS.load(Acquire) == READY { Ok(()) } else { Err(HelperNotStarted) }
}

/// Number of descriptors that the helpers keep in their own table.
const OWN: usize = 5;

/// Descriptors that the helpers keep in their own table; -1 for each that does not exist.
fn own_descriptors(membership: &Membership) -> [c_int; OWN] {
    let Membership { joined, uffd, shared_state, files, .. } = membership;
    let [memory, table] = numbers(files.as_ref());
    [joined.socket.as_fd().as_raw_fd(), uffd.as_raw_fd(), shared_state.as_raw_fd(), memory, table]
}

/// Descriptors of the memory and the page table; -1 for each that does not exist.
fn numbers(files: Option<&ProcessFiles>) -> [c_int; 2] {
    let [memory, table] = [files.and_then(ProcessFiles::memory), files.map(ProcessFiles::table)];
    [memory, table].map(|file| file.map_or(-1, |file| file.as_raw_fd()))
}

/// Allocates memory for both helpers; `None` if the kernel has none.
pub fn rooms() -> Option<HelperRooms> {
    Some(HelperRooms { listener: ThreadRoom::new()?, speaker: ThreadRoom::new()? })
}

/// Takes the turn before a fork, so that no announcement is in progress.
pub fn lock_before_fork() {
    TURN.lock_before_fork();
}

/// Releases the turn after a fork, in the parent.
pub fn unlock_after_fork() {
    TURN.unlock_after_fork();
}

/// Resets the state after a fork, in the child, which has no helpers yet.
pub fn reset() {
    TURN.reset();
    LINE.reset();
    LISTENER.store(0, Relaxed);
    SPEAKER.store(0, Relaxed);
}

/// Makes a request to the speaker (the helper thread for requests to the agent), and waits for its answer. The calling
/// thread holds [`TURN`].
fn ask(question: u32) {
    QUESTION.store(question, Release);
    sys::futex_wake(&QUESTION);
    while QUESTION.load(Acquire) != ANSWERED {
        sys::futex_wait(&QUESTION, question);
    }
    QUESTION.store(IDLE, Relaxed);
}

/// Announces to the agent that pages are about to be discarded; returns when the agent has acknowledged. `false` if no
/// helpers run.
pub fn announce(pages: Range<usize>) -> bool {
    if LISTENER.load(Relaxed) == 0 {
        return false;
    }
    let _errno = Errno::keep();
    let _turn = TURN.lock();
    PAGES.store((pages.start as u64) << 32 | pages.len() as u64, Relaxed);
    ask(DISCARD);
    true
}

/// Announces to the agent the future use of pages, if helpers run.
pub fn hint(kind: MessageKind, pages: Range<usize>) {
    if LISTENER.load(Relaxed) == 0 {
        return;
    }
    let _errno = Errno::keep();
    let _turn = TURN.lock();
    PAGES.store((pages.start as u64) << 32 | pages.len() as u64, Relaxed);
    ask(kind as u32);
}

/// Sets the credentials of the helpers to those of the calling thread.
pub fn follow() {
    let _errno = Errno::keep();
    let _turn = TURN.lock();
    // SAFETY: this thread holds the turn.
    unsafe { credentials::save() };
    FOLLOWED.store(0, Relaxed);
    ask(FOLLOW);
}

/// Ends both helpers, and returns their state; `None` if they could not be ended. The calling thread holds the lock for
/// requests ([`lock_before_fork`]).
pub fn retire() -> Option<RetiredHelpers> {
    let mut pair = [-1; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: the kernel writes two live words.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the kernel has just made these descriptors, and nothing else owns them.
    let [here, there] = pair.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    RETURN.store(there.as_raw_fd(), Relaxed);
    ask(GIVE_BACK);
    let mut came = Descriptors::new();
    receive_some(here.as_fd(), &mut [0], &mut came, libc::MSG_DONTWAIT).ok()?;
    let (uffd, shared_state) = (came.take()?, came.take()?);
    let files = came.take().zip(came.take());
    // The program's table may have no room for all descriptors: the helpers go on then.
    if files.is_none() && TABLE.load(Relaxed) >= 0 {
        return None;
    }
    let files = files.map(|(memory, table)| ProcessFiles::from_descriptors(Some(memory), table));
    ask(RETIRE);
    if !thread::ended(&SPEAKER) || !thread::ended(&LISTENER) {
        final_message::end("its helper threads do not end, which other namespaces ask for");
    }
    LINE.reset();
    Some(RetiredHelpers { uffd, shared_state, files, view: VIEW.load(Relaxed) as u16 })
}

pub fn are_running() -> bool {
    LISTENER.load(Relaxed) != 0
}

/// Exit code of the program's first thread, if none of the program's threads runs any more. The kernel counts the first
/// thread until the process ends.
fn sole_exit_code() -> Option<c_int> {
    // The three threads that the kernel counts are the first thread, although it has ended, and the two helpers.
    thread::leader_ended().filter(|_| thread::count() == Some(3))
}

/// Whether this process has one thread in addition to the helpers.
pub fn are_only_other_threads() -> bool {
    thread::count().is_none_or(|count| count == 3)
}

/// The program's side of the listener: reacts to the agent's messages and to the bell (an eventfd of this process).
#[derive(Default)]
struct Follower {
    losses: Losses,
}

impl HelperHost for Follower {
    fn why(&mut self, words: &mut dyn Iterator<Item = [u8; RANGE]>) {
        self.losses.why(words);
    }

    fn lost(&mut self, pages: Pages) {
        self.losses.lost(pages);
    }

    fn full(&mut self) {
        final_message::end_from_helper(
            "its remote memory is full: pages that processes have changed since a fork need room for each of them; give \
             it more with --size, or more of them may stay with --local",
        )
    }

    fn look_interval(&self) -> Option<Duration> {
        Some(LOOK_INTERVAL)
    }

    /// Ends the helpers with the exit code of the program's first thread, so that the process ends, once none of the
    /// program's threads runs any more.
    fn on_interval(&mut self) {
        if let Some(code) = sole_exit_code() {
            LAST_CODE.store(code, Relaxed);
            QUESTION.store(END, Release);
            sys::futex_wake(&QUESTION);
            thread::end(code);
        }
    }

    fn on_bell(&mut self) {
        if FOLLOWED.load(Acquire) == 0 {
            // SAFETY: the credentials were saved before the bell was rung.
            unsafe { credentials::apply_saved() };
            FOLLOWED.store(1, Release);
            sys::futex_wake(&FOLLOWED);
        }
    }
}

extern "C" fn run_listener(_: *mut c_void) -> ! {
    // SAFETY: the value was written for this thread, before the thread was started.
    let handed = unsafe { (*HANDOVER.0.get()).take() };
    let Some((membership, rooms)) = handed else { thread::end(0) };
    let mut own = own_descriptors(&membership);
    let Membership { place, joined, uffd, shared_state, files, wait } = membership;
    own.sort_unstable();
    name(c"cxloe-listener");
    credentials::set_no_new_privs();
    let bell = if detach_descriptors(own) { bell() } else { None };
    UFFD.store(uffd.as_raw_fd(), Relaxed);
    SHARED_STATE.store(shared_state.as_raw_fd(), Relaxed);
    let [memory, table] = numbers(files.as_ref());
    MEMORY.store(memory, Relaxed);
    TABLE.store(table, Relaxed);
    BELL.store(bell.as_ref().map_or(-1, AsRawFd::as_raw_fd), Relaxed);
    let started = bell.is_some() && thread::spawn(rooms.speaker, run_speaker as Entry, null_mut(), &SPEAKER);
    let mut member = Member::new(place, joined, uffd, shared_state, None, &LINE, wait).with_files(files);
    if let Some(bell) = bell {
        member = member.with_bell(bell);
    }
    PROGRESS.store(if started { READY } else { FAILED }, Release);
    sys::futex_wake(&PROGRESS);
    if !started {
        thread::end(0);
    }
    match member.run(&mut Follower::default()) {
        HelperEnd::Left => thread::end(0),
        HelperEnd::Abandoned(error) => final_message::end_from_helper(format_args!(
            "the agent that serves its memory has ended, and no successor took over within {wait:?}: {}",
            final_message::PlainError(&error)
        )),
    }
}

extern "C" fn run_speaker(_: *mut c_void) -> ! {
    name(c"cxloe-speaker");
    loop {
        let question = QUESTION.load(Acquire);
        match question {
            DISCARD => {
                let pages = PAGES.load(Relaxed);
                // The result is ignored: if the call fails, the listener is about to end the process.
                let _ = LINE.discard(Pages { first: (pages >> 32) as u32, count: pages as u32 });
            }
            hint if hint > HINT => {
                let pages = PAGES.load(Relaxed);
                let kinds =
                    [MessageKind::WillRead, MessageKind::WillWrite, MessageKind::Cold, MessageKind::PageOut];
                if let Some(kind) = kinds.into_iter().find(|kind| *kind as u32 == hint) {
                    LINE.hint(kind, Pages { first: (pages >> 32) as u32, count: pages as u32 });
                }
            }
            FOLLOW => {
                // SAFETY: the thread that made the request has saved the credentials.
                unsafe { credentials::apply_saved() };
                ring();
                while FOLLOWED.load(Acquire) == 0 {
                    sys::futex_wait(&FOLLOWED, 0);
                }
            }
            GIVE_BACK => return_descriptors(),
            RETIRE => {
                LINE.retire();
                answer();
                thread::end(0);
            }
            END => thread::end(LAST_CODE.load(Relaxed)),
            _ => {
                sys::futex_wait(&QUESTION, question);
                continue;
            }
        }
        answer();
    }
}

fn answer() {
    QUESTION.store(ANSWERED, Release);
    sys::futex_wake(&QUESTION);
}

fn bell() -> Option<OwnedFd> {
    // SAFETY: the call takes only integers.
    let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    (bell >= 0).then(|| unsafe { OwnedFd::from_raw_fd(bell) })
}

fn ring() {
    let one = 1_u64;
    // SAFETY: the kernel reads a live word.
    unsafe { libc::write(BELL.load(Relaxed), (&raw const one).cast(), 8) };
}

/// Passes copies of the helpers' descriptors back to the program's table of descriptors. If that fails, nothing
/// arrives.
fn return_descriptors() {
    let Some(socket) = final_message::of_program(RETURN.load(Relaxed)) else { return };
    let numbers = [&UFFD, &SHARED_STATE, &MEMORY, &TABLE].map(|number| number.load(Relaxed));
    // `MEMORY` and `TABLE` are either both valid or both -1, so the valid descriptors come first.
    let count = numbers.iter().filter(|number| **number >= 0).count();
    let kept = numbers.map(|number| {
        // SAFETY: the listener keeps the descriptors open as long as it runs; the number 0 in place of a
        // missing one is not used.
        unsafe { std::os::fd::BorrowedFd::borrow_raw(number.max(0)) }
    });
    let _ = send_some(socket.as_fd(), &[0], &kept[..count], libc::MSG_DONTWAIT);
}

/// Gives this thread its own table of descriptors and its own working folder, and closes all descriptors in that table
/// except `own`. The numbers in `own` ascend; negative ones are ignored.
fn detach_descriptors(own: [c_int; OWN]) -> bool {
    // SAFETY: the calls take integers and a NUL-terminated path; descriptors are closed in this thread's table only.
    unsafe {
        // `unshare` is called by its number, because this library interposes the function of that name.
        if libc::syscall(libc::SYS_unshare, libc::CLONE_FILES | libc::CLONE_FS) != 0 {
            return false;
        }
        libc::chdir(c"/".as_ptr());
        let mut first: c_int = 0;
        for descriptor in own.into_iter().filter(|descriptor| *descriptor >= 0) {
            if first < descriptor {
                libc::syscall(libc::SYS_close_range, first, descriptor - 1, 0);
            }
            first = descriptor + 1;
        }
        libc::syscall(libc::SYS_close_range, first, c_int::MAX, 0) == 0
    }
}

fn name(name: &std::ffi::CStr) {
    // SAFETY: the kernel reads a NUL-terminated name.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), null::<u8>()) };
}
