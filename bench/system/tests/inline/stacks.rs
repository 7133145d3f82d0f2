//! Stacks of the signal handler: threads whose own signal stack has the kernel's minimum size, or is missing; more
//! threads at once than stacks; and the used depth of the stacks. Other handlers that touch mapped memory.

#![expect(unsafe_code, reason = "signal stacks and fork are calls of the C library")]

use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_cn_core::pager::Hint;
use cxloe_link::Backend;
use cxloe_port::inline::{InlineError, InlineOptions, InlineRegion};
use cxloe_sigbus::{STACK_BYTES, STACKS};
use cxloe_system::Failed;
use memmap2::{MmapOptions, MmapRaw};

use super::{BYTES, LOCAL, PAGE, Rig, WORDS, WORDS_PER_PAGE, in_copy, local};
use cxloe_system::{LIMIT, Outcome, ensure, eventually};

/// Entry of the auxiliary vector with the minimum size of a signal stack, which depends on the CPU's registers.
const AT_MINSIGSTKSZ: libc::c_ulong = 51;

/// A thread's signal stack above a guard page; unmapped on drop.
struct SignalStack {
    _memory: MmapRaw,
    before: libc::stack_t,
}

impl SignalStack {
    /// Makes the smallest stack on which the kernel can call a handler: the stack has room for the signal frame only.
    fn least() -> Result<SignalStack, Failed> {
        // SAFETY: reads a number.
        let least = (unsafe { libc::getauxval(AT_MINSIGSTKSZ) } as usize).max(libc::MINSIGSTKSZ);
        let memory = MmapOptions::new().len(PAGE + least.next_multiple_of(PAGE)).map_anon()?;
        let memory = MmapRaw::from(memory);
        // SAFETY: the range is the first page of memory that was just mapped.
        if unsafe { libc::mprotect(memory.as_mut_ptr().cast(), PAGE, libc::PROT_NONE) } != 0 {
            return Err(io::Error::last_os_error().into());
        }
        let start = memory.as_mut_ptr().wrapping_add(PAGE).cast();
        let before = set(&libc::stack_t { ss_sp: start, ss_flags: 0, ss_size: least })?;
        Ok(SignalStack { _memory: memory, before })
    }
}

impl Drop for SignalStack {
    fn drop(&mut self) {
        let _ = set(&self.before);
    }
}

/// Sets the calling thread's signal stack; returns the previous one.
fn set(stack: &libc::stack_t) -> Result<libc::stack_t, Failed> {
    let mut before = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: the memory lives until another stack is set, and has no other use.
    match unsafe { libc::sigaltstack(stack, &mut before) } {
        0 => Ok(before),
        _ => Err(io::Error::last_os_error().into()),
    }
}

const NONE: libc::stack_t =
    libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };

/// Adds one to the `own`th word of every page repeatedly, on more pages than may be resident.
fn add(region: &InlineRegion, own: usize) {
    for _ in 0..ROUNDS {
        for page in 0..WORDS / WORDS_PER_PAGE {
            region[page * WORDS_PER_PAGE + own].fetch_add(1, Ordering::Relaxed);
        }
    }
}

const ROUNDS: u64 = 2;

/// The handler uses less than a quarter of its stack, which leaves room for later versions of the handler.
pub fn well_below() -> Outcome {
    let used = cxloe_sigbus::used();
    ensure(used.deepest > 0 && used.deepest < STACK_BYTES / 4, format!("{used:?}"))
}

pub fn the_least_signal_stack_will_do() -> Outcome {
    let rig = Rig::new(Backend::Packet, None)?;
    let region = rig.map(local(LOCAL))?;
    // The threads have stacks of a few pages, which the handler does not overflow.
    let small = || thread::Builder::new().stack_size(32 << 10);
    thread::scope(|scope| -> Outcome {
        let least = small().spawn_scoped(scope, || -> Outcome {
            let _stack = SignalStack::least()?;
            add(&region, 0);
            Ok(())
        })?;
        let none = small().spawn_scoped(scope, || -> Outcome {
            let before = set(&NONE)?;
            add(&region, 1);
            set(&before).map(drop)
        })?;
        let usual = small().spawn_scoped(scope, || add(&region, 2))?;
        least.join().map_err(|_| "it panicked")??;
        none.join().map_err(|_| "it panicked")??;
        usual.join().map_err(|_| "it panicked".into())
    })?;
    for page in 0..WORDS / WORDS_PER_PAGE {
        for own in 0..3 {
            let found = region[page * WORDS_PER_PAGE + own].load(Ordering::Relaxed);
            ensure(found == ROUNDS, format!("page {page}, thread {own}: {found}"))?;
        }
    }
    ensure(region.counters().evicted > 0, "pages have left meanwhile")?;
    region.close()?;
    println!("{:?} of {STACK_BYTES} bytes", cxloe_sigbus::used());
    well_below()?;
    rig.end()
}

/// All stacks are used by threads that wait for a memory node; other threads wait for a stack, and all are served in
/// the end.
pub fn more_threads_than_stacks() -> Outcome {
    const THREADS: usize = STACKS + 32;
    let rig = Rig::new(Backend::Packet, None)?;
    let region = rig.map(local(BYTES))?;
    let node = rig.node.as_ref().ok_or("it runs")?;
    node.pause()?;
    thread::scope(|scope| -> Outcome {
        for own in 0..THREADS {
            let word = &region[own * WORDS_PER_PAGE];
            let small = thread::Builder::new().stack_size(32 << 10);
            small.spawn_scoped(scope, move || word.fetch_add(own as u64 + 1, Ordering::Relaxed))?;
        }
        // Each thread waits in the handler until the memory node continues, so all stacks are in use at the same time.
        let taken = eventually("every stack has a thread", || cxloe_sigbus::used().stacks == STACKS);
        node.resume()?;
        taken
    })?;
    for own in 0..THREADS {
        let found = region[own * WORDS_PER_PAGE].load(Ordering::Relaxed);
        ensure(found == own as u64 + 1, format!("thread {own}: {found}"))?;
    }
    region.close()?;
    well_below()?;
    rig.end()
}

/// Role: maps a region and forks; writes of the child do not change the parent's memory. Returns the number of the
/// failed step, or 0.
pub fn has_a_child() -> ExitCode {
    let Some(region) = in_copy(local(LOCAL)) else { return ExitCode::from(4) };
    add(&region, 0);
    // SAFETY: the child uses the inherited region, which is under test, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // A thread of the parent may have had the port's lock at the fork.
        let nothing = region.counters().faults == 0 && region.resident() == 0;
        let refused = nothing && matches!(region.flush(), Err(InlineError::Inherited));
        drop(region);
        // SAFETY: exits the child, without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let until = Instant::now() + LIMIT;
    let mut status = 0;
    // SAFETY: waits for the child made above.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        if Instant::now() > until {
            return ExitCode::from(5);
        }
        thread::sleep(Duration::from_millis(5));
    }
    if !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != 0 {
        return ExitCode::from(6);
    }
    add(&region, 0);
    let wrong = (0..WORDS / WORDS_PER_PAGE)
        .find(|page| region[page * WORDS_PER_PAGE].load(Ordering::Relaxed) != 2 * ROUNDS);
    if wrong.is_some() {
        return ExitCode::from(7);
    }
    if region.close().is_ok() { ExitCode::SUCCESS } else { ExitCode::from(8) }
}

/// Address of a mapping, and number of times that the handler of a timer has touched it.
static START: AtomicUsize = AtomicUsize::new(0);
static TOUCHES: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_timer(_: libc::c_int) {
    let count = TOUCHES.load(Ordering::Relaxed);
    let page = count * 97 % (WORDS / WORDS_PER_PAGE);
    let word = (START.load(Ordering::Relaxed) + page * PAGE) as *const u64;
    // SAFETY: the word lies in a mapping that lives as long as the timer.
    unsafe { word.read_volatile() };
    TOUCHES.store(count + 1, Ordering::Relaxed);
}

/// Role: maps a region and calls its functions, while the handler of a timer touches absent pages.
pub fn is_interrupted() -> ExitCode {
    const INTERRUPTIONS: usize = 300;
    let Some(region) = in_copy(local(LOCAL)) else { return ExitCode::from(4) };
    START.store(region.as_ptr() as usize, Ordering::Relaxed);
    let interval = |microseconds| libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: microseconds },
        it_value: libc::timeval { tv_sec: 0, tv_usec: microseconds },
    };
    // SAFETY: the handler is a function of this file; the kernel reads a live value.
    unsafe {
        libc::signal(libc::SIGALRM, on_timer as *const () as usize);
        libc::setitimer(libc::ITIMER_REAL, &interval(500), std::ptr::null_mut());
    }
    while TOUCHES.load(Ordering::Relaxed) < INTERRUPTIONS {
        region.hint(0..PAGE, Hint::Cold);
        if region.flush().is_err() {
            return ExitCode::from(5);
        }
    }
    // SAFETY: the kernel reads a live value.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &interval(0), std::ptr::null_mut()) };
    if region.close().is_ok() { ExitCode::SUCCESS } else { ExitCode::from(6) }
}

/// Role: maps a region, and receives a SIGBUS that no memory access has caused.
pub fn is_told_to_end() -> ExitCode {
    // SAFETY: sets the default action, in place of the handler of Rust's runtime, which detects stack overflows.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    let Some(region) = in_copy(InlineOptions::default()) else { return ExitCode::from(4) };
    region[0].store(1, Ordering::Relaxed);
    // SAFETY: sends this process a signal.
    unsafe { libc::kill(libc::getpid(), libc::SIGBUS) };
    thread::sleep(LIMIT.min(Duration::from_secs(10)));
    ExitCode::from(5)
}
