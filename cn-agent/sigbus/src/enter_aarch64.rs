//! Assembly that switches from the signal stack to a stack of the pool and back, on aarch64.
//!
//! The kernel may have left not one byte of room on the signal stack, so nothing is stored there. The code may
//! overwrite every register: the kernel has saved all registers and restores them when the handler returns. For the
//! same reason, the former handler, to which the code may jump, need not preserve them.

#![expect(unsafe_code, reason = "the handler switches stacks in assembly")]

use std::arch::naked_asm;
use std::mem::offset_of;

use libc::ucontext_t;

use super::decide;
use super::stacks::{FIRST, STACKS, STRIDE_BITS};

pub const HAS_STACKS: bool = true;

/// Entry point of the signal handler. In: signal, siginfo and context in x0, x1 and x2, the return address in x30.
///
/// # Safety
/// To be called by the kernel only, with SA_SIGINFO and every signal blocked, once [`FIRST`] has been set.
#[unsafe(naked)]
pub unsafe extern "C" fn enter() {
    naked_asm!(
        // With branch target identification, the kernel's jump must land on this instruction (bti c).
        "hint #34",
        "mov x19, sp",
        "mov w20, w0",
        "mov x21, x1",
        "mov x22, x2",
        "mov x23, x30",
        // The index of the first stack tried is a hash of the thread's stack address, so a thread mostly gets its last
        // stack again.
        "lsr x24, x19, #12",
        "mov w9, #0x79b1", // 2^32 over the golden ratio
        "movk w9, #0x9e37, lsl #16",
        "mul w24, w24, w9",
        "lsr w24, w24, #{hash}",
        "adrp x26, {first}",
        "ldr x26, [x26, :lo12:{first}]",
        "2:",
        "mov w9, #{stacks}",
        "3:",
        "add x25, x26, x24, lsl #{stride}",
        "4:",
        "ldaxr w10, [x25]",
        "cbnz w10, 5f",
        "mov w10, #1",
        "stxr w11, w10, [x25]",
        "cbnz w11, 4b",
        "b 6f",
        "5:",
        "clrex",
        "add w24, w24, #1",
        "and w24, w24, #{last}",
        "subs w9, w9, #1",
        "b.ne 3b",
        // All stacks are taken: yield. The result of the call is ignored.
        "mov x8, #{sched_yield}",
        "svc #0",
        "mov w0, w20",
        "b 2b",
        "6:",
        "mov sp, x25",
        "mov x29, #0",
        "bl {decide}",
        "mov sp, x19",
        "stlr wzr, [x25]",
        "cbnz x0, 7f",
        "ret x23",
        // Jump to the former handler, whose address is in x0. First, the system call sets the signal mask that `decide`
        // has put into the context for this handler. Then the mask of the interrupted thread, from x1, goes back into
        // the context.
        "7:",
        "mov x24, x0",
        "mov x26, x1",
        "mov x0, #{set_mask}",
        "add x1, x22, #{mask}",
        "mov x2, #0",
        "mov x3, #8",
        "mov x8, #{sigprocmask}",
        "svc #0",
        "str x26, [x22, #{mask}]",
        "mov w0, w20",
        "mov x1, x21",
        "mov x2, x22",
        "mov x30, x23",
        "mov x16, x24",
        "br x16",
        hash = const 32 - STACKS.ilog2(),
        stacks = const STACKS,
        last = const STACKS - 1,
        stride = const STRIDE_BITS,
        first = sym FIRST,
        decide = sym decide,
        mask = const offset_of!(ucontext_t, uc_sigmask),
        set_mask = const libc::SIG_SETMASK,
        sched_yield = const libc::SYS_sched_yield,
        sigprocmask = const libc::SYS_rt_sigprocmask,
    )
}
