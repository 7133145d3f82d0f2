//! System calls on a program's remote memory that bypass the preloaded library's functions: allocators, language
//! runtimes and MPI libraries call the kernel directly. The kernel would then change pages without a change of the
//! agent's records of them.
//!
//! The filter sees the address in a call, but not whether it is remote memory of that process. So all processes of a
//! session have their windows (ranges of addresses for remote memory) at the same addresses, far from those that the
//! kernel chooses. A call on an address of a window is stopped before it runs: the kernel sends SIGSYS to the calling
//! thread, and the library's handler carries the call out. Calls with the library's mark ([`OWN_CALL`]) pass.

use std::ffi::{c_int, c_long};

use cxloe_member::own_calls::OWN_CALL;
use libc::{BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_K, SECCOMP_RET_TRAP, sock_filter};

use super::bpf::{ARGUMENTS_AT, NUMBER_AT, done, jump, load, statement};

/// Data of the trap, by which the library's handler distinguishes traps of this filter.
const TRAP_DATA: u32 = 0xC5;
/// Granularity of window addresses, 4 GiB: the filter compares only the upper 32 bits of an address.
const STEP: u64 = 1 << 32;
/// First address at which windows are placed. Addresses that programs choose at random are lower, for example
/// those of V8 (46 bits). Position-independent programs and the kernel's own choices lie above `LAST`.
const FIRST: u64 = 1 << 46;
const LAST: u64 = 0x5400_0000_0000;

/// Addresses of the windows (ranges of addresses for remote memory) of a session, in steps of 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowPlace {
    first: u32,
    last: u32,
}

impl WindowPlace {
    /// Selects a place for windows of `bytes` bytes by `random`; `None` if the range for windows is too
    /// small.
    pub fn select(bytes: u64, random: u64) -> Option<WindowPlace> {
        let steps = bytes.div_ceil(STEP).max(1);
        let choices = ((LAST - FIRST) / STEP).checked_sub(steps)? + 1;
        let first = FIRST / STEP + random % choices;
        Some(WindowPlace { first: first as u32, last: (first + steps - 1) as u32 })
    }

    /// First address of the windows.
    pub fn base(self) -> u64 {
        u64::from(self.first) * STEP
    }
}

#[derive(Clone, Copy, Debug)]
enum Half {
    Lower(usize),
    Upper(usize),
}

impl Half {
    /// Offset in `struct seccomp_data` on a little-endian machine.
    const fn offset(self) -> u32 {
        match self {
            Half::Lower(argument) => ARGUMENTS_AT + 8 * argument as u32,
            Half::Upper(argument) => ARGUMENTS_AT + 8 * argument as u32 + 4,
        }
    }
}

#[derive(Debug)]
struct TrappedCall {
    call: c_long,
    /// Index of the argument that is compared with the window; `None` if the filter cannot see the address.
    address: Option<usize>,
    /// Index of an argument, and a flag in it without which the call passes.
    flag: Option<(usize, c_int)>,
    /// Place of the mark by which the library's own calls pass.
    mark: Half,
}

const fn on(call: c_long, address: usize) -> TrappedCall {
    TrappedCall { call, address: Some(address), flag: None, mark: Half::Lower(5) }
}

const TRAPPED: &[TrappedCall] = &[
    on(libc::SYS_madvise, 0),
    on(libc::SYS_munmap, 0),
    on(libc::SYS_mprotect, 0),
    on(libc::SYS_pkey_mprotect, 0),
    on(libc::SYS_mremap, 0),
    TrappedCall { flag: Some((3, libc::MREMAP_FIXED)), ..on(libc::SYS_mremap, 4) },
    TrappedCall { flag: Some((3, libc::MAP_FIXED)), mark: Half::Upper(4), ..on(libc::SYS_mmap, 0) },
    TrappedCall { flag: Some((2, libc::SHM_REMAP)), ..on(libc::SYS_shmat, 1) },
    // This call's addresses are in memory, which a filter cannot read.
    TrappedCall { address: None, ..on(libc::SYS_process_madvise, 0) },
];

/// Filter instructions that trap calls on these addresses; for other calls the filter continues behind them.
pub(crate) fn instructions(place: WindowPlace) -> Vec<sock_filter> {
    let mut program = Vec::new();
    for TrappedCall { call, address, flag, mark } in TRAPPED {
        // A failing test skips the remaining instructions for this call. These are the numbers of
        // instructions of the three tests.
        let (of_flag, of_address, of_mark) =
            (if flag.is_some() { 3 } else { 0 }, if address.is_some() { 3 } else { 0 }, 3);
        program.push(load(NUMBER_AT));
        program.push(jump(BPF_JEQ, *call as u32, 0, of_flag + of_address + of_mark));
        if let Some((argument, flag)) = flag {
            program.push(load(Half::Lower(*argument).offset()));
            program.push(statement(BPF_ALU | BPF_AND | BPF_K, *flag as u32));
            program.push(jump(BPF_JEQ, *flag as u32, 0, of_address + of_mark));
        }
        if let Some(address) = address {
            program.push(load(Half::Upper(*address).offset()));
            program.push(jump(BPF_JGE, place.first, 0, 1 + of_mark));
            program.push(jump(BPF_JGT, place.last, of_mark, 0));
        }
        program.push(load(mark.offset()));
        program.push(jump(BPF_JEQ, OWN_CALL, 1, 0));
        program.push(done(SECCOMP_RET_TRAP | TRAP_DATA));
    }
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::tests::run;

    #[test]
    fn windows_lie_apart_from_the_kernels_choices() {
        for (bytes, random) in [(1, 0), (STEP, 5), (STEP + 1, u64::MAX), (16 << 40, 7 << 50)] {
            let place = WindowPlace::select(bytes, random).unwrap();
            assert!(place.base() >= FIRST && place.base() + bytes <= LAST);
            assert!((u64::from(place.last) + 1) * STEP - place.base() >= bytes);
        }
        assert_eq!(WindowPlace::select(LAST, 0), None);
    }

    #[test]
    fn calls_on_the_window_are_trapped_unless_they_are_the_librarys() {
        let place = WindowPlace::select(2 * STEP, 3).unwrap();
        let mut program = instructions(place);
        program.push(done(libc::SECCOMP_RET_ALLOW));
        let (inside, mark) = (place.base() + STEP + 4096, u64::from(OWN_CALL));
        let last = place.base() + 2 * STEP - 4096;
        let behind = place.base() + 2 * STEP;
        let fixed = libc::MAP_FIXED as u64;
        let moved = libc::MREMAP_FIXED as u64;
        let remap = libc::SHM_REMAP as u64;
        for (call, arguments, trapped) in [
            (libc::SYS_madvise, [inside, 4096, 4, 0, 0, 0], true),
            (libc::SYS_madvise, [inside, 4096, 4, 0, 0, mark], false),
            (libc::SYS_madvise, [place.base() - 1, 4096, 4, 0, 0, 0], false),
            (libc::SYS_madvise, [behind, 4096, 4, 0, 0, 0], false),
            (libc::SYS_munmap, [last, 4096, 0, 0, 0, 0], true),
            (libc::SYS_munmap, [place.base(), 4096, 0, 0, mark, 0], true),
            (libc::SYS_munmap, [0x7000_0000_0000, 4096, 0, 0, 0, 0], false),
            (libc::SYS_mprotect, [inside, 4096, 3, 0, 0, 0], true),
            (libc::SYS_pkey_mprotect, [inside, 4096, 3, 1, 0, 0], true),
            (libc::SYS_mremap, [inside, 4096, 8192, 1, 0, 0], true),
            (libc::SYS_mremap, [4096, 4096, 8192, moved | 1, inside, 0], true),
            (libc::SYS_mremap, [4096, 4096, 8192, 1, inside, 0], false),
            (libc::SYS_mremap, [inside, 4096, 8192, moved | 1, inside, mark], false),
            (libc::SYS_mmap, [inside, 4096, 3, fixed | 0x22, u64::MAX, 0], true),
            (libc::SYS_mmap, [inside, 4096, 3, 0x22, u64::MAX, 0], false),
            (libc::SYS_mmap, [inside, 4096, 3, fixed | 0x22, mark << 32 | 0xFFFF_FFFF, 0], false),
            (libc::SYS_mmap, [4096, 4096, 3, fixed | 0x22, 3, 0], false),
            (libc::SYS_shmat, [1, inside, remap, 0, 0, 0], true),
            (libc::SYS_shmat, [1, inside, 0, 0, 0, 0], false),
            (libc::SYS_process_madvise, [3, 0, 1, 4, 0, 0], true),
            (libc::SYS_process_madvise, [3, 0, 1, 4, 0, mark], false),
            (libc::SYS_read, [inside; 6], false),
        ] {
            let wanted = if trapped { SECCOMP_RET_TRAP | TRAP_DATA } else { libc::SECCOMP_RET_ALLOW };
            assert_eq!(run(&program, 0, call, &arguments), wanted, "call {call} {arguments:x?}");
        }
    }
}
