//! # cxloe-sigbus: the handler of SIGBUS
//!
//! The handler serves all SIGBUS signals of the process: those of inline mappings (regions whose pages the program
//! fetches itself), of devices that are gone, and of other causes. A module whose memory may raise SIGBUS installs a
//! function that [serves](FaultServer) the fault; the handler calls these functions one after the other.
//!
//! Programs choose the size of their threads' signal stacks: 8 KiB in Rust, 32 KiB in Go, sometimes just the least size
//! that the kernel allows, which a CPU with AVX-512 or AMX fills with its registers. Serving a fault runs a network
//! protocol, so it never runs on the signal stack: the handler first switches to a stack of a pool (`stacks`), and does
//! not touch a byte of the signal stack below the kernel's frame (`enter_*.rs`, in assembly).
//!
//! ```text
//!   kernel --SIGBUS, on the thread's own stack--> enter --on a stack of the pool--> decide --> functions installed
//!                                                   |                                 |
//!                                                   +--- back on the thread's stack <-+
//!                                                   +--> return, or the handler that was there before
//! ```
//!
//! * **Nested signals.** All signals are blocked until the handler returns, so no other handler runs on a stack of the
//!   pool or can jump out of one. A fault of the handler itself ends the process: the kernel cannot deliver the blocked
//!   signal.
//! * **Other handlers.** A signal that no function serves goes to the handler that was installed before, on the signal
//!   stack, with the signal mask it was installed with: it may use `siglongjmp`, check its stack's address (as Go
//!   does), or fault again. The stack of the pool is free by then.
//! * **A stack too small for the kernel.** Where the kernel's own frame does not fit on the thread's signal stack, no
//!   handler runs: the kernel ends the process with SIGSEGV. `sigaltstack(2)` refuses such stacks (`AT_MINSIGSTKSZ` is
//!   the size of the frame on this CPU), so a thread with a stack of the least size allowed is served.
//! * **More threads than stacks.** A thread without a stack yields until one is free. A thread that has a stack never
//!   waits for one that has none, and threads serve each other's faults, so every wait ends.
//! * **Fork.** A child has no thread that was in the handler, so the pool is wiped in it: all stacks are free. Mappings
//!   with inline faults belong to the parent only: the child must not send over the parent's link.
//! * **Panics.** A panic ends the process at `decide`, which cannot unwind; no unwinder goes past `enter`.
//!
//! | module | content |
//! |---|---|
//! | `stacks` | the pool of stacks |
//! | `enter` | the switch to a stack of the pool and back, in assembly for each architecture |

#![expect(unsafe_code, reason = "a signal handler reads the kernel's siginfo and context")]

mod stacks;

#[cfg_attr(target_arch = "x86_64", path = "enter_x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "enter_aarch64.rs")]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "enter_elsewhere.rs")]
mod enter;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use libc::{c_int, c_void, siginfo_t, ucontext_t};

pub use stacks::{STACK_BYTES, STACKS, StackUse, used};
pub use stacks::{adopt, is_child};

/// Whether the handler runs on stacks of the pool on this architecture.
pub const HAS_STACKS: bool = enter::HAS_STACKS;

/// An access that ended in SIGBUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Address of the byte accessed.
    pub address: u64,
    /// Whether the access was a write; `true` where that is unknown.
    pub write: bool,
    /// `si_code`: `BUS_ADRERR` and others.
    pub code: c_int,
}

/// Serves a fault; returns whether the access can be repeated now. Runs in a signal handler.
pub type FaultServer = fn(&Fault) -> bool;

/// Maximum number of installed functions: one for each kind of memory in which an access may end in SIGBUS.
const SERVERS_MAX: usize = 4;

/// Functions that serve faults, in the order in which the handler calls them; filled from the front, each entry set
/// once.
static SERVERS: [OnceLock<FaultServer>; SERVERS_MAX] = [const { OnceLock::new() }; SERVERS_MAX];

/// Disposition of SIGBUS before [`install`].
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
/// Whether the former handler, installed to be called once (`SA_RESETHAND`), has been called.
static SPENT: AtomicBool = AtomicBool::new(false);

/// Installs the handler at the first call, and adds `serve` to the functions that the handler calls.
///
/// # Errors
/// Errors of the system calls; [`io::ErrorKind::OutOfMemory`] when four functions are installed already.
pub fn install(serve: FaultServer) -> io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    enlist(serve)?;
    if *installed {
        return Ok(());
    }
    if HAS_STACKS {
        stacks::make()?;
    }
    // SAFETY: an action of zeros has no flags and an empty mask; both calls get valid pointers, and the handler is made
    // for SA_SIGINFO. A mask of ones has every signal in it, including those of the C library, which `sigfillset`
    // leaves out.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut before: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = enter::enter as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        (&raw mut action.sa_mask).cast::<u8>().write_bytes(0xFF, size_of::<libc::sigset_t>());
        // The former disposition is stored before it is replaced: the handler may run right after the second call.
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

/// Adds a function to [`SERVERS`], unless the list contains it.
fn enlist(serve: FaultServer) -> io::Result<()> {
    for place in &SERVERS {
        if std::ptr::fn_addr_eq(*place.get_or_init(|| serve), serve) {
            return Ok(());
        }
    }
    Err(io::ErrorKind::OutOfMemory.into())
}

/// Next step of `enter` after the switch back to the signal stack.
#[repr(C)]
#[allow(dead_code, reason = "read in assembly")]
struct ReturnAction {
    /// Address of the handler to jump to. 0: return, so that the interrupted instruction is repeated.
    handler: usize,
    /// Signal mask of the interrupted thread. The context first contains the mask for the former handler; `enter` sets
    /// that mask, puts this one back into the context, and jumps to the handler.
    mask: u64,
}

const RETURN: ReturnAction = ReturnAction { handler: 0, mask: 0 };

/// Serves the signal, on a stack of the pool; returns what `enter` is to do next.
extern "C" fn decide(signal: c_int, info: *mut siginfo_t, context: *mut c_void) -> ReturnAction {
    // SAFETY: errno belongs to this thread.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a siginfo to every handler with SA_SIGINFO; for SIGBUS it contains an address.
    let (address, code) = unsafe { ((*info).si_addr() as u64, (*info).si_code) };
    let fault = Fault { address, write: is_write(context), code };
    let served = is_access(code) && SERVERS.iter().map_while(OnceLock::get).any(|serve| serve(&fault));
    let next = if served { RETURN } else { pass_on(signal, info, code, context.cast()) };
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() = errno };
    next
}

/// Whether the signal was raised by an access of this thread, which is repeated when the handler returns.
fn is_access(code: c_int) -> bool {
    matches!(code, libc::BUS_ADRALN | libc::BUS_ADRERR | libc::BUS_OBJERR | libc::BUS_MCEERR_AR)
}

#[inline]
fn is_write(context: *mut c_void) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the kernel passes a ucontext to every handler with SA_SIGINFO; bit 1 of the page fault's error code
        // is set for a write.
        let code = unsafe { (*context.cast::<ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] };
        code & 2 != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // On this architecture the kind of access is unknown, so each counts as a write. A page that was only read is
        // therefore compared with its unchanged copy when it is evicted.
        let _ = context;
        true
    }
}

/// Decides the next step for a signal that no installed function serves, from the disposition of SIGBUS before
/// [`install`].
#[cold]
fn pass_on(signal: c_int, info: *mut siginfo_t, code: c_int, context: *mut ucontext_t) -> ReturnAction {
    let before = BEFORE.get();
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    let flags = before.map_or(0, |before| before.sa_flags);
    let spent = flags & libc::SA_RESETHAND != 0 && SPENT.swap(true, Ordering::AcqRel);
    match before {
        // A signal that was sent by `kill` or the like stays ignored if it was ignored before [`install`].
        Some(_) if handler == libc::SIG_IGN && !is_access(code) => RETURN,
        Some(before) if handler != libc::SIG_DFL && handler != libc::SIG_IGN && !spent => {
            let own = if flags & libc::SA_NODEFER == 0 { 1 << (signal - 1) } else { 0 };
            // SAFETY: the kernel's own signal sets, in the action and in the context that it passes to a handler, hold
            // 64 signals; both sets here begin with such a set.
            unsafe {
                let asked = (&raw const before.sa_mask).cast::<u64>().read_unaligned();
                let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
                let interrupted = mask.read_unaligned();
                mask.write_unaligned(interrupted | asked | own);
                ReturnAction { handler, mask: interrupted }
            }
        }
        _ => {
            end(signal, info, code);
            RETURN
        }
    }
}

/// Makes the signal end the process, as it does in a process without a handler.
fn end(signal: c_int, info: *mut siginfo_t, code: c_int) {
    // SAFETY: restores the default action. An access is then repeated, and ends the process; a signal that was sent is
    // sent once more, unchanged, to this thread, and ends the process when this handler has returned.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &action, std::ptr::null_mut());
        if !is_access(code) {
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), libc::gettid(), signal, info);
        }
    }
}
