//! The two threads that serve a process's membership beside the program's own.
//!
//! ```text
//!   program's threads            speaker                  listener                     agent
//!     announce: free, munmap --> Line::discard ------------------- DISCARD ----------->
//!     <------------------------- answered <-- Line -------------- DISCARDED -----------
//!                                                          <------- DROP --------------
//!                                                  madvise -------- DROPPED ---------->
//! ```
//!
//! They have a table of descriptors of their own, with the connection and what a successor of the agent needs and nothing
//! else: a program may close all descriptors it finds, or count them, and never meets these. They touch no paged memory:
//! their stacks and thread-local storage lie elsewhere ([`boot`](crate::boot)), and what runs in them does not allocate.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use cxloe_member::helper::{Ended, Member};
use cxloe_member::join::{Joined, Place};
use cxloe_member::line::Line;
use cxloe_member::wire::Pages;

use crate::last_words;
use crate::lock::Lock;
use crate::loss::Losses;
use crate::sys::{self, Errno};

/// Bytes of a helper's stack, most of them never touched.
const STACK: usize = 1 << 20;
const LISTENER: usize = 0;
const SPEAKER: usize = 1;

/// What the listener needs.
pub struct Membership {
    /// Where.
    pub place: Place,
    /// The connection.
    pub joined: Joined,
    /// This process's userfaultfd.
    pub uffd: OwnedFd,
    /// The space's ledger.
    pub ledger: OwnedFd,
    /// How long to wait for a successor of the agent.
    pub wait: Duration,
}

/// Given from the thread that starts the helpers to the listener.
struct Handover(UnsafeCell<Option<Membership>>);

// SAFETY: it is written before the listener is started, and after that used by the listener only.
unsafe impl Sync for Handover {}

static HANDOVER: Handover = Handover(UnsafeCell::new(None));
static LINE: Line = Line::new();

/// How far the helpers are.
static PROGRESS: AtomicU32 = AtomicU32::new(STARTING);
const STARTING: u32 = 0;
const READY: u32 = 1;
const FAILED: u32 = 2;

/// What the speaker is asked: one thing at a time, by whoever has the turn.
static TURN: Lock<()> = Lock::new(());
static PAGES: AtomicU64 = AtomicU64::new(0);
static QUESTION: AtomicU32 = AtomicU32::new(IDLE);
const IDLE: u32 = 0;
const ASKED: u32 = 1;
const ANSWERED: u32 = 2;

/// A helper could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotStarted;

/// Starts both, and returns when they serve. Nobody else starts threads or makes descriptors meanwhile.
///
/// # Errors
/// [`NotStarted`]; the connection is closed then.
pub fn start(membership: Membership, stacks: *mut c_void) -> Result<(), NotStarted> {
    let own = [
        membership.joined.socket.as_fd().as_raw_fd(),
        membership.uffd.as_raw_fd(),
        membership.ledger.as_raw_fd(),
    ];
    PROGRESS.store(STARTING, Relaxed);
    QUESTION.store(IDLE, Relaxed);
    // SAFETY: no helper runs, so nobody else looks at it.
    unsafe { *HANDOVER.0.get() = Some(membership) };
    let started = spawn(listen, stacks, LISTENER);
    if started.is_ok() {
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
    started.and(if PROGRESS.load(Acquire) == READY { Ok(()) } else { Err(NotStarted) })
}

/// Memory for the stacks of both helpers.
pub fn stacks() -> Option<*mut c_void> {
    sys::fresh(2 * STACK)
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
}

/// Tells the agent that pages are about to be discarded; returns when it knows.
pub fn announce(pages: Range<usize>) {
    let _errno = Errno::keep();
    let _turn = TURN.lock();
    PAGES.store((pages.start as u64) << 32 | pages.len() as u64, Relaxed);
    QUESTION.store(ASKED, Release);
    sys::futex_wake(&QUESTION);
    while QUESTION.load(Acquire) == ASKED {
        sys::futex_wait(&QUESTION, ASKED);
    }
    QUESTION.store(IDLE, Relaxed);
}

/// Starts a thread on its stack, with all signals blocked.
fn spawn(
    what: extern "C" fn(*mut c_void) -> *mut c_void,
    stacks: *mut c_void,
    which: usize,
) -> Result<(), NotStarted> {
    // SAFETY: the structures are this function's own; the stack is used by this thread alone, and stays.
    let error = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setstack(&mut attributes, stacks.byte_add(which * STACK), STACK);
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let mut thread: libc::pthread_t = 0;
        let error = libc::pthread_create(&mut thread, &attributes, what, stacks);
        libc::pthread_attr_destroy(&mut attributes);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, null_mut());
        error
    };
    if error == 0 { Ok(()) } else { Err(NotStarted) }
}

extern "C" fn listen(stacks: *mut c_void) -> *mut c_void {
    // SAFETY: it was put there for this thread, before it was started.
    let membership = unsafe { (*HANDOVER.0.get()).take() };
    let Some(Membership { place, joined, uffd, ledger, wait }) = membership else { return null_mut() };
    let mut own = [joined.socket.as_fd().as_raw_fd(), uffd.as_raw_fd(), ledger.as_raw_fd()];
    own.sort_unstable();
    name(c"cxloe-listener");
    let outcome = if stand_apart(own) { spawn(speak, stacks, SPEAKER) } else { Err(NotStarted) };
    let mut member = Member::new(place, joined, uffd, ledger, None, &LINE, wait);
    PROGRESS.store(if outcome.is_ok() { READY } else { FAILED }, Release);
    sys::futex_wake(&PROGRESS);
    if outcome.is_err() {
        return null_mut();
    }
    match member.run(&mut Losses::default()) {
        Ended::Left => null_mut(),
        Ended::Abandoned(error) => last_words::end_from_helper(format_args!(
            "the agent that has its memory has gone, and none took over within {wait:?}: {error}"
        )),
    }
}

extern "C" fn speak(_: *mut c_void) -> *mut c_void {
    name(c"cxloe-speaker");
    loop {
        while QUESTION.load(Acquire) != ASKED {
            let seen = QUESTION.load(Relaxed);
            if seen != ASKED {
                sys::futex_wait(&QUESTION, seen);
            }
        }
        let pages = PAGES.load(Relaxed);
        // Over: the listener is about to end the process.
        let _ = LINE.discard(Pages { first: (pages >> 32) as u32, count: pages as u32 });
        QUESTION.store(ANSWERED, Release);
        sys::futex_wake(&QUESTION);
    }
}

/// Gives this thread a table of descriptors and a working folder of its own, and closes all but `own`, in ascending
/// order, in it.
fn stand_apart(own: [c_int; 3]) -> bool {
    // SAFETY: plain values; what is closed is closed in this thread's table only.
    unsafe {
        if libc::unshare(libc::CLONE_FILES | libc::CLONE_FS) != 0 {
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
