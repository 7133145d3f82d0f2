//! Assembly that switches from the signal stack to a stack of the pool and back, on x86-64.
//!
//! The kernel may have left not one byte of room on the signal stack, so nothing is pushed there. The code may
//! overwrite every register: the kernel has saved all registers and restores them when the handler returns. For the
//! same reason, the former handler, to which the code may jump, need not preserve them.

#![expect(unsafe_code, reason = "the handler switches stacks in assembly")]

use std::arch::naked_asm;
use std::mem::offset_of;

use libc::ucontext_t;

use super::decide;
use super::stacks::{FIRST, STACKS, STRIDE_BITS};

pub const HAS_STACKS: bool = true;

/// Entry point of the signal handler. In: signal, siginfo and context in rdi, rsi and rdx, the return address on the
/// stack.
///
/// # Safety
/// To be called by the kernel only, with SA_SIGINFO and every signal blocked, once [`FIRST`] has been set.
#[unsafe(naked)]
pub unsafe extern "C" fn enter() {
    naked_asm!(
        "mov r12, rsp",
        "mov r13d, edi",
        "mov r14, rsi",
        "mov r15, rdx",
        // The index of the first stack tried is a hash of the thread's stack address, so a thread mostly gets its last
        // stack again.
        "mov rbx, rsp",
        "shr rbx, 12",
        "imul ebx, ebx, -1640531535", // 2^32 over the golden ratio
        "shr ebx, {hash}",
        "2:",
        "mov ecx, {stacks}",
        "3:",
        "mov rbp, rbx",
        "shl rbp, {stride}",
        "add rbp, qword ptr [rip + {first}]",
        "cmp dword ptr [rbp], 0",
        "jne 4f",
        "mov eax, 1",
        "xchg dword ptr [rbp], eax",
        "test eax, eax",
        "jz 5f",
        "4:",
        "inc ebx",
        "and ebx, {last}",
        "dec ecx",
        "jnz 3b",
        // All stacks are taken: yield.
        "mov eax, {sched_yield}",
        "syscall",
        "jmp 2b",
        "5:",
        "mov rsp, rbp",
        "call {decide}",
        "mov rsp, r12",
        // Marks the stack as free. x86 keeps the order of stores, so other threads see this store after all earlier
        // ones.
        "mov dword ptr [rbp], 0",
        "test rax, rax",
        "jnz 6f",
        "ret",
        // Jump to the former handler, whose address is in rax. First, the system call sets the signal mask that
        // `decide` has put into the context for this handler. Then the mask of the interrupted thread, from rdx, goes
        // back into the context.
        "6:",
        "mov rbp, rax",
        "mov rbx, rdx",
        "mov edi, {set_mask}",
        "lea rsi, [r15 + {mask}]",
        "xor edx, edx",
        "mov r10d, 8",
        "mov eax, {sigprocmask}",
        "syscall",
        "mov qword ptr [r15 + {mask}], rbx",
        "mov edi, r13d",
        "mov rsi, r14",
        "mov rdx, r15",
        "jmp rbp",
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
