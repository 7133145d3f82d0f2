//! The two threads that serve a process's membership beside the program's own.
//!
//! ```text
//!   program's threads            speaker                  listener                     agent
//!     announce: free, munmap --> Line::discard ------------------- DISCARD ----------->
//!     <------------------------- answered <-- Line -------------- DISCARDED -----------
//!     hint: madvise -----------> Line::hint ---------------- WILLREAD, COLD, PAGEOUT -->
//!                                                          <------- DROP --------------
//!                                                  madvise -------- DROPPED ---------->
//!     follow: setuid ... ------> takes on, rings ----> takes on
//!     retire: unshare ... -----> gives all back, ends; ends
//! ```
//!
//! They have a table of descriptors of their own, with the connection and what a successor of the agent needs and nothing
//! else: a program may close all descriptors it finds, or count them, and never meets these. They are no threads of the C
//! library's ([`thread`]), touch no paged memory, and what runs in them does not allocate.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};
use std::time::Duration;

use cxloe_member::helper::{Ended, Host, Member};
use cxloe_member::join::{Joined, Place};
use cxloe_member::line::Line;
use cxloe_member::socket::{Descriptors, receive_some, send_some};
use cxloe_member::wire::{Kind, Pages, RANGE};

use crate::credentials;
use crate::last_words;
use crate::lock::Lock;
use crate::loss::Losses;
use crate::sys::{self, Errno};
use crate::thread::{self, Entry, Room};

/// What the listener needs.
pub struct Membership {
    /// Where.
    pub place: Place,
    /// The connection.
    pub joined: Joined,
    /// This process's userfaultfd.
    pub uffd: OwnedFd,
    /// The space's shared state.
    pub shared_state: OwnedFd,
    /// How long to wait for a successor of the agent.
    pub wait: Duration,
}

/// Room for both helpers.
#[derive(Clone, Copy, Debug)]
pub struct Rooms {
    listener: Room,
    speaker: Room,
}

/// Given from the thread that starts the helpers to the listener.
struct Handover(UnsafeCell<Option<(Membership, Rooms)>>);

// SAFETY: it is written before the listener is started, and after that used by the listener only.
unsafe impl Sync for Handover {}

static HANDOVER: Handover = Handover(UnsafeCell::new(None));
static LINE: Line = Line::new();

/// How far the helpers are.
static PROGRESS: AtomicU32 = AtomicU32::new(STARTING);
const STARTING: u32 = 0;
const READY: u32 = 1;
const FAILED: u32 = 2;

/// Not 0 while they run.
static LISTENER: AtomicU32 = AtomicU32::new(0);
static SPEAKER: AtomicU32 = AtomicU32::new(0);

/// What the speaker is asked: one thing at a time, by whoever has the turn.
static TURN: Lock<()> = Lock::new(());
static QUESTION: AtomicU32 = AtomicU32::new(IDLE);
const IDLE: u32 = 0;
const DISCARD: u32 = 1;
const FOLLOW: u32 = 2;
const RETIRE: u32 = 3;
const ANSWERED: u32 = 4;
const END: u32 = 5;
/// What is behind it is a message's kind ([`hint`]).
const HINT: u32 = 0x100;
/// Pages that are discarded, or that something is said of.
static PAGES: AtomicU64 = AtomicU64::new(0);
/// A descriptor of the program's to give the helpers' back through.
static RETURN: AtomicI32 = AtomicI32::new(-1);
/// What helpers end with that nobody is left to ask.
static LAST_CODE: AtomicI32 = AtomicI32::new(0);
/// Descriptors of the helpers': of the userfaultfd, the shared state, and what the listener is woken by.
static UFFD: AtomicI32 = AtomicI32::new(-1);
static SHARED_STATE: AtomicI32 = AtomicI32::new(-1);
static BELL: AtomicI32 = AtomicI32::new(-1);
/// The process's view.
static VIEW: AtomicU32 = AtomicU32::new(0);
/// Whether the listener has taken on the rights that were noted.
static FOLLOWED: AtomicU32 = AtomicU32::new(0);

/// How often the listener looks whether the program's own threads have ended. A program whose threads end by the system
/// call `exit`, each for itself, says so to nobody, and the helpers keep its process.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// A helper could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotStarted;

/// What helpers that have ended have left behind.
pub struct Left {
    /// This process's userfaultfd.
    pub uffd: OwnedFd,
    /// The space's shared state.
    pub shared_state: OwnedFd,
    /// The view.
    pub view: u16,
}

/// Starts both, and returns when they serve. Nobody else starts threads or makes descriptors meanwhile.
///
/// # Errors
/// [`NotStarted`]; the connection is closed then.
pub fn start(membership: Membership, rooms: Rooms) -> Result<(), NotStarted> {
    let own = [
        membership.joined.socket.as_fd().as_raw_fd(),
        membership.uffd.as_raw_fd(),
        membership.shared_state.as_raw_fd(),
    ];
    PROGRESS.store(STARTING, Relaxed);
    QUESTION.store(IDLE, Relaxed);
    VIEW.store(u32::from(membership.joined.welcome.view), Relaxed);
    // SAFETY: no helper runs, so nobody else looks at it.
    unsafe { *HANDOVER.0.get() = Some((membership, rooms)) };
    let started = thread::spawn(rooms.listener, listen as Entry, null_mut(), &LISTENER);
    if started {
        while PROGRESS.load(Acquire) == STARTING {
            sys::futex_wait(&PROGRESS, STARTING);
        }
    }
    // The listener has copies of them in a table of its own by now.
    for descriptor in own {
        // SAFETY: they were this thread's to close; what owns them in this program's eyes is the listener, in whose table
        // they stay open.
        unsafe { libc::syscall(libc::SYS_close, descriptor) };
    }
    if started && PROGRESS.load(Acquire) == READY { Ok(()) } else { Err(NotStarted) }
}

/// Room for both helpers.
pub fn rooms() -> Option<Rooms> {
    Some(Rooms { listener: Room::new()?, speaker: Room::new()? })
}

/// Before a fork: no announcement is under way.
pub fn hold() {
    TURN.hold();
}

/// After a fork, in the parent.
pub fn let_go() {
    TURN.let_go();
}

/// After a fork, in the child, which has no helpers yet.
pub fn reset() {
    TURN.reset();
    LINE.reset();
    LISTENER.store(0, Relaxed);
    SPEAKER.store(0, Relaxed);
}

/// Asks the speaker, and returns when it has answered. The turn is this thread's.
fn ask(question: u32) {
    QUESTION.store(question, Release);
    sys::futex_wake(&QUESTION);
    while QUESTION.load(Acquire) != ANSWERED {
        sys::futex_wait(&QUESTION, question);
    }
    QUESTION.store(IDLE, Relaxed);
}

/// Tells the agent that pages are about to be discarded; returns when it knows. `false`: there are no helpers that could.
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

/// Tells the agent what the program will do with pages, if there are helpers.
pub fn hint(kind: Kind, pages: Range<usize>) {
    if LISTENER.load(Relaxed) == 0 {
        return;
    }
    let _errno = Errno::keep();
    let _turn = TURN.lock();
    PAGES.store((pages.start as u64) << 32 | pages.len() as u64, Relaxed);
    ask(kind as u32);
}

/// The calling thread has changed its rights: the helpers take them on.
pub fn follow() {
    let _errno = Errno::keep();
    let _turn = TURN.lock();
    // SAFETY: it is this thread's turn.
    unsafe { credentials::note() };
    FOLLOWED.store(0, Relaxed);
    ask(FOLLOW);
}

/// Has both end, and takes back what they have; the turn is this thread's ([`hold`]). `None`: they go on.
pub fn retire() -> Option<Left> {
    let mut pair = [-1; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: the kernel writes two live words.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the kernel has just made them for us.
    let [here, there] = pair.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    RETURN.store(there.as_raw_fd(), Relaxed);
    ask(RETIRE);
    let mut came = Descriptors::new();
    receive_some(here.as_fd(), &mut [0], &mut came, libc::MSG_DONTWAIT).ok()?;
    let (uffd, shared_state) = (came.take()?, came.take()?);
    if !thread::ended(&SPEAKER) || !thread::ended(&LISTENER) {
        last_words::end("its helper threads do not end, which other namespaces ask for");
    }
    LINE.reset();
    Some(Left { uffd, shared_state, view: VIEW.load(Relaxed) as u16 })
}

/// Whether they run.
pub fn are_there() -> bool {
    LISTENER.load(Relaxed) != 0
}

/// The code that the program's first thread ended with, if none of them runs any more. The first one is counted until the
/// process ends.
fn left_alone() -> Option<c_int> {
    thread::leader_ended().filter(|_| thread::count() == Some(3))
}

/// Whether this process has one thread besides the helpers.
pub fn are_the_only_others() -> bool {
    thread::count().is_none_or(|count| count == 3)
}

/// What the listener does besides.
#[derive(Default)]
struct Follower {
    losses: Losses,
}

impl Host for Follower {
    fn why(&mut self, words: &mut dyn Iterator<Item = [u8; RANGE]>) {
        self.losses.why(words);
    }

    fn lost(&mut self, pages: Pages) {
        self.losses.lost(pages);
    }

    fn full(&mut self) {
        last_words::end_from_helper(
            "its remote memory is full: pages that processes have changed since a fork need room for each of them; give \
             it more with --size, or more of them may stay with --local",
        )
    }

    fn look_interval(&self) -> Option<Duration> {
        Some(LOOK_INTERVAL)
    }

    /// The helpers end as the program's first thread did, so that the process does.
    fn look(&mut self) {
        if let Some(code) = left_alone() {
            LAST_CODE.store(code, Relaxed);
            QUESTION.store(END, Release);
            sys::futex_wake(&QUESTION);
            thread::end(code);
        }
    }

    fn rung(&mut self) {
        if FOLLOWED.load(Acquire) == 0 {
            // SAFETY: it was noted before the bell was rung.
            unsafe { credentials::take_on() };
            FOLLOWED.store(1, Release);
            sys::futex_wake(&FOLLOWED);
        }
    }
}

extern "C" fn listen(_: *mut c_void) -> ! {
    // SAFETY: it was put there for this thread, before it was started.
    let handed = unsafe { (*HANDOVER.0.get()).take() };
    let Some((Membership { place, joined, uffd, shared_state, wait }, rooms)) = handed else {
        thread::end(0)
    };
    let mut own = [joined.socket.as_fd().as_raw_fd(), uffd.as_raw_fd(), shared_state.as_raw_fd()];
    own.sort_unstable();
    name(c"cxloe-listener");
    credentials::gain_none();
    let bell = if stand_apart(own) { bell() } else { None };
    UFFD.store(uffd.as_raw_fd(), Relaxed);
    SHARED_STATE.store(shared_state.as_raw_fd(), Relaxed);
    BELL.store(bell.as_ref().map_or(-1, AsRawFd::as_raw_fd), Relaxed);
    let started = bell.is_some() && thread::spawn(rooms.speaker, speak as Entry, null_mut(), &SPEAKER);
    let mut member = Member::new(place, joined, uffd, shared_state, None, &LINE, wait);
    if let Some(bell) = bell {
        member = member.with_bell(bell);
    }
    PROGRESS.store(if started { READY } else { FAILED }, Release);
    sys::futex_wake(&PROGRESS);
    if !started {
        thread::end(0);
    }
    match member.run(&mut Follower::default()) {
        Ended::Left => thread::end(0),
        Ended::Abandoned(error) => last_words::end_from_helper(format_args!(
            "the agent that has its memory has gone, and none took over within {wait:?}: {}",
            last_words::Plain(&error)
        )),
    }
}

extern "C" fn speak(_: *mut c_void) -> ! {
    name(c"cxloe-speaker");
    loop {
        let question = QUESTION.load(Acquire);
        match question {
            DISCARD => {
                let pages = PAGES.load(Relaxed);
                // Over: the listener is about to end the process.
                let _ = LINE.discard(Pages { first: (pages >> 32) as u32, count: pages as u32 });
            }
            hint if hint > HINT => {
                let pages = PAGES.load(Relaxed);
                let kinds = [Kind::WillRead, Kind::WillWrite, Kind::Cold, Kind::PageOut];
                if let Some(kind) = kinds.into_iter().find(|kind| *kind as u32 == hint) {
                    LINE.hint(kind, Pages { first: (pages >> 32) as u32, count: pages as u32 });
                }
            }
            FOLLOW => {
                // SAFETY: whoever asked has noted it.
                unsafe { credentials::take_on() };
                ring();
                while FOLLOWED.load(Acquire) == 0 {
                    sys::futex_wait(&FOLLOWED, 0);
                }
            }
            RETIRE if give_back() => {
                LINE.retire();
                answer();
                thread::end(0);
            }
            RETIRE => {}
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
    // SAFETY: plain values.
    let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    // SAFETY: the kernel has just made this descriptor for us.
    (bell >= 0).then(|| unsafe { OwnedFd::from_raw_fd(bell) })
}

fn ring() {
    let one = 1_u64;
    // SAFETY: the kernel reads a live word.
    unsafe { libc::write(BELL.load(Relaxed), (&raw const one).cast(), 8) };
}

/// Gives what the helpers have back to the program's table of descriptors; whether that could be.
fn give_back() -> bool {
    let Some(socket) = last_words::of_program(RETURN.load(Relaxed)) else { return false };
    let kept = [&UFFD, &SHARED_STATE].map(|number| {
        // SAFETY: the listener keeps both open as long as it runs.
        unsafe { std::os::fd::BorrowedFd::borrow_raw(number.load(Relaxed)) }
    });
    send_some(socket.as_fd(), &[0], &kept, libc::MSG_DONTWAIT).is_ok()
}

/// Gives this thread a table of descriptors and a working folder of its own, and closes all but `own`, in ascending
/// order, in it.
fn stand_apart(own: [c_int; 3]) -> bool {
    // SAFETY: plain values; what is closed is closed in this thread's table only.
    unsafe {
        // By its number: the function of this name is ours.
        if libc::syscall(libc::SYS_unshare, libc::CLONE_FILES | libc::CLONE_FS) != 0 {
            return false;
        }
        libc::chdir(c"/".as_ptr());
        let mut first: c_int = 0;
        for descriptor in own {
            if first < descriptor {
                libc::syscall(libc::SYS_close_range, first, descriptor - 1, 0);
            }
            first = descriptor + 1;
        }
        libc::syscall(libc::SYS_close_range, first, c_int::MAX, 0) == 0
    }
}

fn name(name: &std::ffi::CStr) {
    // SAFETY: the kernel reads a name that ends.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), null::<u8>()) };
}
