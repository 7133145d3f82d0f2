//! # cxloe-sigbus: the handler of SIGBUS
//!
//! Faults of inline mappings, devices that are gone, and what becomes of signals that are not ours. Whoever has memory whose
//! accesses may end in SIGBUS installs a function that [serves](Serve) them; the handler asks each.
//!
//! Threads of programs have signal stacks of their own choosing: 8 KiB in Rust, 32 KiB in Go, sometimes just what the
//! kernel asks for, which a CPU with AVX-512 or AMX then fills with its registers. What is done here runs a network
//! protocol, so it never runs there: the handler goes to a stack of its own first, from a pool (`stacks`), and does not
//! touch a byte of the stack it was called on below what the kernel has put there (`enter_*.rs`, in assembly).
//!
//! ```text
//!   kernel --SIGBUS, on the thread's own stack--> enter --on a stack of the pool--> decide --> whoever was installed
//!                                                   |                                 |
//!                                                   +--- back on the thread's stack <-+
//!                                                   +--> return, or the handler that was there before
//! ```
//!
//! * **Nested signals.** All are blocked until the handler returns, so no other handler runs on a stack of the pool, and
//!   none can jump out of one. A fault of the handler's own ends the process: the kernel does not deliver a blocked one.
//! * **Other handlers.** What is not ours goes to the handler that was there before, called on the stack that the kernel
//!   chose, with the signals blocked that it asked for: it may use `siglongjmp`, look where its stack is (Go does), or
//!   fault again. The stack of the pool is free by then.
//! * **A stack too small for the kernel.** Where what the kernel itself puts on the thread's signal stack does not fit, no
//!   handler runs: the kernel ends the process with SIGSEGV. `sigaltstack(2)` refuses such stacks (`AT_MINSIGSTKSZ` says how
//!   much the registers of this CPU take), so a thread that has one of the least size allowed is served.
//! * **More threads than stacks.** They wait for one, letting others run. Threads that have one wait for none that has not,
//!   and serve each other's faults, so this ends.
//! * **Fork.** A child has none of the threads that were inside, so the pool is wiped there: all stacks are free. Mappings
//!   with inline faults stay the parent's: the child must not speak over its link.
//! * **Panics.** They end the process at `decide`, which cannot unwind; no unwinder goes past `enter`.
//!
//! | module | what it holds |
//! |---|---|
//! | `stacks` | the pool of stacks |
//! | `enter` | the way onto a stack of the pool and back, in assembly for each architecture |

mod stacks;

#[cfg_attr(target_arch = "x86_64", path = "enter_x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "enter_aarch64.rs")]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "enter_elsewhere.rs")]
mod enter;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use libc::{c_int, c_void, siginfo_t, ucontext_t};

pub use stacks::{STACK_BYTES, STACKS, Used, used};
pub use stacks::{adopt, is_child};

/// Whether the handler has stacks of its own on this architecture.
pub const HAS_STACKS: bool = enter::HAS_STACKS;

/// An access that ended in SIGBUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The byte.
    pub address: u64,
    /// Whether it was a write; `true` where that is not known.
    pub write: bool,
    /// What the kernel calls it: `BUS_ADRERR` and others.
    pub code: c_int,
}

/// Says of an access whether it can be made again now. Runs in a signal handler.
pub type Serve = fn(&Fault) -> bool;

/// Kinds of memory whose accesses may end in SIGBUS, at most.
const SERVERS_MAX: usize = 4;

/// Who serves faults, in this order: the first ones of these, each set once.
static SERVERS: [OnceLock<Serve>; SERVERS_MAX] = [const { OnceLock::new() }; SERVERS_MAX];

/// What SIGBUS did before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
/// The handler before asked to be called once (`SA_RESETHAND`), and was.
static SPENT: AtomicBool = AtomicBool::new(false);

/// Puts the handler in place, once, and has `serve` asked about every fault from now on.
///
/// # Errors
/// What the kernel says to memory for its stacks, or to a handler; [`io::ErrorKind::OutOfMemory`] when four others are
/// asked already.
pub fn install(serve: Serve) -> io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    enlist(serve)?;
    if *installed {
        return Ok(());
    }
    if HAS_STACKS {
        stacks::make()?;
    }
    // SAFETY: an action of zeros is one without flags and with an empty mask; both calls get valid pointers, and the
    // handler is made for SA_SIGINFO. A mask of ones has every signal in it, those of the C library's own as well, which
    // `sigfillset` leaves out.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut before: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = enter::enter as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        (&raw mut action.sa_mask).cast::<u8>().write_bytes(0xFF, size_of::<libc::sigset_t>());
        // First known, then replaced: a signal in between still finds what was.
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before) != 0 {
            return Err(io::Error::last_os_error());
        }
        let _ = BEFORE.set(before);
        if libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    *installed = true;
    Ok(())
}

/// Adds to those who are asked, unless it is among them.
fn enlist(serve: Serve) -> io::Result<()> {
    for place in &SERVERS {
        if std::ptr::fn_addr_eq(*place.get_or_init(|| serve), serve) {
            return Ok(());
        }
    }
    Err(io::ErrorKind::OutOfMemory.into())
}

/// What `enter` does once it is back on the stack that the kernel chose.
#[repr(C)]
#[allow(dead_code, reason = "read in assembly")]
struct Next {
    /// The handler to go to; 0: none, the access is made again.
    handler: usize,
    /// The interrupted thread's signal mask: it stands in the context again before that handler runs, after the mask that
    /// stood in its place has been put into effect.
    mask: u64,
}

const RETURN: Next = Next { handler: 0, mask: 0 };

/// The handler proper, on a stack of the pool.
extern "C" fn decide(signal: c_int, info: *mut siginfo_t, context: *mut c_void) -> Next {
    // SAFETY: errno is the thread's own.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel hands a siginfo to every handler with SA_SIGINFO, and for SIGBUS it has an address.
    let (address, code) = unsafe { ((*info).si_addr() as u64, (*info).si_code) };
    let fault = Fault { address, write: is_write(context), code };
    let served = is_access(code) && SERVERS.iter().map_while(OnceLock::get).any(|serve| serve(&fault));
    let next = if served { RETURN } else { pass_on(signal, info, code, context.cast()) };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    next
}

/// Whether a signal is about an access of this thread, which the kernel makes again when the handler returns.
fn is_access(code: c_int) -> bool {
    matches!(code, libc::BUS_ADRALN | libc::BUS_ADRERR | libc::BUS_OBJERR | libc::BUS_MCEERR_AR)
}

/// Whether the access that ended in this signal was a write.
#[inline]
fn is_write(context: *mut c_void) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the kernel hands a ucontext to every handler with SA_SIGINFO; bit 1 of the page fault's error code
        // says that it was a write.
        let code = unsafe { (*context.cast::<ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] };
        code & 2 != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // Not known here: a page that was only read counts as written, and is compared with its twin when it leaves.
        let _ = context;
        true
    }
}

/// A signal that is not ours goes where it would have gone.
#[cold]
fn pass_on(signal: c_int, info: *mut siginfo_t, code: c_int, context: *mut ucontext_t) -> Next {
    let before = BEFORE.get();
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    let flags = before.map_or(0, |before| before.sa_flags);
    let spent = flags & libc::SA_RESETHAND != 0 && SPENT.swap(true, Ordering::AcqRel);
    match before {
        // Somebody sent it, to whom it did not matter.
        Some(_) if handler == libc::SIG_IGN && !is_access(code) => RETURN,
        Some(before) if handler != libc::SIG_DFL && handler != libc::SIG_IGN && !spent => {
            let own = if flags & libc::SA_NODEFER == 0 { 1 << (signal - 1) } else { 0 };
            // SAFETY: the kernel's own signal sets, in the action as in the context it hands to a handler, are of 64
            // signals; both sets here begin with them.
            unsafe {
                let asked = (&raw const before.sa_mask).cast::<u64>().read_unaligned();
                let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
                let interrupted = mask.read_unaligned();
                mask.write_unaligned(interrupted | asked | own);
                Next { handler, mask: interrupted }
            }
        }
        _ => {
            end(signal, info, code);
            RETURN
        }
    }
}

/// Has the signal end the process, as the kernel does by itself.
fn end(signal: c_int, info: *mut siginfo_t, code: c_int) {
    // SAFETY: restores the default action. An access is made again then, and ends the process; a signal that was sent is
    // sent once more, to this thread, as it was, and ends it when this handler has returned.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &action, std::ptr::null_mut());
        if !is_access(code) {
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), libc::gettid(), signal, info);
        }
    }
}
