//! System calls refused to programs with remote memory: those by which devices, other processes, or the
//! kernel itself change pages without using the page table. Calls that execute a program are not refused
//! here, but passed to the supervisor (module `executions`).
//!
//! A page is evicted in this order: it is write-protected, copied, sent, discarded. A device or process that
//! holds the page itself, as with direct I/O and registered buffers, continues to write into a page that is
//! about to be discarded, and no protection stops it. A call that only reads a page that way (direct writes,
//! zero-copy sends) gets the content that the page had when the call began, as always, and is permitted.

use std::ffi::{c_int, c_long};

use super::bpf::{ARCHITECTURE_AT, ARGUMENTS_AT, NUMBER_AT, done, jump, load, statement};
use super::trapped_calls::{self, WindowPlace};
use libc::{BPF_ALU, BPF_AND, BPF_JEQ, BPF_K, sock_filter};

/// `AUDIT_ARCH_X86_64` and `AUDIT_ARCH_AARCH64` of `linux/audit.h`.
const ARCHITECTURE: u32 = if cfg!(target_arch = "x86_64") { 0xC000_003E } else { 0xC000_00B7 };
/// `RDMA_VERBS_IOCTL` of `rdma/rdma_user_ioctl_cmds.h`, by which memory is registered with an RDMA device.
const RDMA_VERBS: u32 = 0xC018_1B01;
/// `VFIO_IOMMU_MAP_DMA` of `linux/vfio.h`, `IOMMU_IOAS_MAP` of `linux/iommufd.h`.
const VFIO_MAP: u32 = 0x3B71;
const IOMMU_MAP: u32 = 0x3B85;
/// `SG_IO` of `scsi/sg.h`.
const SCSI: u32 = 0x2285;
/// `NVME_IOCTL_ADMIN_CMD` to `NVME_IOCTL_IO64_CMD_VEC` of `linux/nvme_ioctl.h`, without size and direction.
const NVME: u32 = 0x4E40;
const NVME_MASK: u32 = 0xFFF0;

/// `PR_SET_MEMORY_MERGE` of `linux/prctl.h` (Linux 6.4).
const PR_SET_MEMORY_MERGE: c_int = 67;

/// Condition on an argument of a system call: the bits in `mask` equal `value`, or differ.
#[derive(Clone, Copy, Debug)]
struct ArgumentTest {
    argument: usize,
    mask: u32,
    value: u32,
    /// Whether the bits are to equal `value`, rather than differ.
    equal: bool,
}

const fn is(argument: usize, value: c_int) -> ArgumentTest {
    ArgumentTest { argument, mask: u32::MAX, value: value as u32, equal: true }
}

const fn has(argument: usize, flag: c_int) -> ArgumentTest {
    ArgumentTest { argument, mask: flag as u32, value: flag as u32, equal: true }
}

const fn is_not(argument: usize, value: c_int) -> ArgumentTest {
    ArgumentTest { argument, mask: u32::MAX, value: value as u32, equal: false }
}

/// Condition that files opened with the flags in this argument are readable.
const fn reads(argument: usize) -> ArgumentTest {
    ArgumentTest { argument, mask: libc::O_ACCMODE as u32, value: libc::O_WRONLY as u32, equal: false }
}

const fn ioctl(mask: u32, value: u32) -> ArgumentTest {
    ArgumentTest { argument: 1, mask, value, equal: true }
}

/// Operation that a rule refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleSubject {
    /// A file is opened for direct reads; the argument with this index is its path.
    Open(usize),
    OpenByHandle,
    /// A file is opened for direct I/O by `openat2`, whose flags are in memory; argument 1 is its path.
    Open2,
    /// An open file is switched to direct I/O.
    SetFlag,
    /// `io_uring`, by which files can be opened and buffers registered without a system call each.
    IoUring,
    /// Memory is registered with a network interface.
    Xdp,
    /// Memory is registered with a device, or given to one.
    Device,
    /// Another process's memory is written.
    OtherProcess,
    /// All memory of the process is to be merged with equal pages, which takes write protection away from pages. (The
    /// preloaded library answers `madvise(MADV_MERGEABLE)`.)
    Merging,
}

impl RuleSubject {
    /// Error that the refused system call returns: that of a kernel or file system without the feature.
    pub fn errno(self) -> c_int {
        match self {
            RuleSubject::Open(_) | RuleSubject::OpenByHandle | RuleSubject::SetFlag => libc::EINVAL,
            // EINVAL is the error of a kernel without same-page merging, too.
            RuleSubject::Merging => libc::EINVAL,
            // On ENOSYS, callers fall back to `openat`.
            RuleSubject::Open2 => libc::ENOSYS,
            RuleSubject::IoUring | RuleSubject::Xdp | RuleSubject::Device | RuleSubject::OtherProcess => {
                libc::EPERM
            }
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            RuleSubject::Open(_) | RuleSubject::OpenByHandle | RuleSubject::Open2 | RuleSubject::SetFlag => {
                "direct I/O (O_DIRECT)"
            }
            RuleSubject::IoUring => "io_uring, which registers buffers and opens files unseen",
            RuleSubject::Xdp => "AF_XDP memory (XDP_UMEM_REG)",
            RuleSubject::Device => "memory for a device (RDMA, VFIO, SG_IO, NVMe)",
            RuleSubject::OtherProcess => "writing another process's memory (process_vm_writev)",
            RuleSubject::Merging => "same-page merging (PR_SET_MEMORY_MERGE)",
        }
    }

    /// Whether the call fails without a message, because programs continue without the feature.
    fn is_silent(self) -> bool {
        self == RuleSubject::Merging
    }
}

/// A rule: a system call is refused when it meets all tests.
#[derive(Debug)]
pub struct Rule {
    call: c_long,
    tests: &'static [ArgumentTest],
    pub what: RuleSubject,
}

const fn rule(call: c_long, tests: &'static [ArgumentTest], what: RuleSubject) -> Rule {
    Rule { call, tests, what }
}

pub(crate) const RULES: &[Rule] = &[
    #[cfg(target_arch = "x86_64")]
    rule(libc::SYS_open, &[has(1, libc::O_DIRECT), reads(1)], RuleSubject::Open(0)),
    rule(libc::SYS_openat, &[has(2, libc::O_DIRECT), reads(2)], RuleSubject::Open(1)),
    rule(libc::SYS_openat2, &[], RuleSubject::Open2),
    rule(libc::SYS_open_by_handle_at, &[has(2, libc::O_DIRECT), reads(2)], RuleSubject::OpenByHandle),
    rule(libc::SYS_fcntl, &[is(1, libc::F_SETFL), has(2, libc::O_DIRECT)], RuleSubject::SetFlag),
    rule(libc::SYS_io_uring_setup, &[], RuleSubject::IoUring),
    rule(libc::SYS_io_uring_register, &[], RuleSubject::IoUring),
    rule(libc::SYS_setsockopt, &[is(1, libc::SOL_XDP), is(2, libc::XDP_UMEM_REG)], RuleSubject::Xdp),
    rule(libc::SYS_ioctl, &[ioctl(u32::MAX, RDMA_VERBS)], RuleSubject::Device),
    rule(libc::SYS_ioctl, &[ioctl(u32::MAX, VFIO_MAP)], RuleSubject::Device),
    rule(libc::SYS_ioctl, &[ioctl(u32::MAX, IOMMU_MAP)], RuleSubject::Device),
    rule(libc::SYS_ioctl, &[ioctl(u32::MAX, SCSI)], RuleSubject::Device),
    rule(libc::SYS_ioctl, &[ioctl(NVME_MASK, NVME)], RuleSubject::Device),
    rule(libc::SYS_process_vm_writev, &[], RuleSubject::OtherProcess),
    rule(libc::SYS_prctl, &[is(0, PR_SET_MEMORY_MERGE), is_not(1, 0)], RuleSubject::Merging),
];

pub(crate) fn met(call: c_int, arguments: &[u64; 6]) -> Option<&'static Rule> {
    let meets =
        |test: &ArgumentTest| (arguments[test.argument] as u32 & test.mask == test.value) == test.equal;
    RULES.iter().find(|rule| rule.call == c_long::from(call) && rule.tests.iter().all(meets))
}

/// Indices of the arguments of a system call that executes a program; `None` for any other call.
pub(crate) fn execution(call: c_int) -> Option<ExecutionArguments> {
    match c_long::from(call) {
        libc::SYS_execve => Some(ExecutionArguments { folder: None, path: 0, environment: 2 }),
        libc::SYS_execveat => Some(ExecutionArguments { folder: Some(0), path: 1, environment: 3 }),
        _ => None,
    }
}

/// Indices of the arguments of `execve` or `execveat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExecutionArguments {
    /// Index of the descriptor of the folder at which a relative path begins.
    pub folder: Option<usize>,
    /// Index of the address of the path.
    pub path: usize,
    /// Index of the address of the array of variables.
    pub environment: usize,
}

/// Whether these flags of `openat2` request direct reads.
pub(crate) fn opens_direct(flags: u64) -> bool {
    let flags = flags as u32;
    flags & libc::O_DIRECT as u32 != 0 && flags & libc::O_ACCMODE as u32 != libc::O_WRONLY as u32
}

/// Action of the filter on a refused system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The call waits for the decision of the listener.
    Ask,
    /// The call fails in the kernel, without a message.
    Fail,
}

/// Program of the filter: tests each rule in turn, unless `direct` permits all of them, and permits a call that meets
/// none. Executions are passed to a listener that decides. Calls on the window, if there is one, are trapped. Calls of
/// another architecture (32-bit ones) are permitted: a program with remote memory makes none.
pub fn filter(verdict: Verdict, direct: bool, window: Option<WindowPlace>) -> Vec<sock_filter> {
    let mut program =
        vec![load(ARCHITECTURE_AT), jump(BPF_JEQ, ARCHITECTURE, 1, 0), done(libc::SECCOMP_RET_ALLOW)];
    for Rule { call, tests, what } in if direct { &[] } else { RULES } {
        // Each test takes three instructions; the verdict follows the last test.
        let rest = |tests_left: usize| 3 * tests_left + 1;
        program.push(load(NUMBER_AT));
        program.push(jump(BPF_JEQ, *call as u32, 0, rest(tests.len())));
        for (index, test) in tests.iter().enumerate() {
            let skip = rest(tests.len() - index - 1);
            let (jt, jf) = if test.equal { (0, skip) } else { (skip, 0) };
            // On these little-endian machines, the low half of the argument comes first.
            program.push(load(ARGUMENTS_AT + 8 * test.argument as u32));
            program.push(statement(BPF_ALU | BPF_AND | BPF_K, test.mask));
            program.push(jump(BPF_JEQ, test.value, jt, jf));
        }
        program.push(done(match verdict {
            Verdict::Ask if !what.is_silent() => libc::SECCOMP_RET_USER_NOTIF,
            _ => libc::SECCOMP_RET_ERRNO | what.errno() as u32,
        }));
    }
    if verdict == Verdict::Ask {
        program.push(load(NUMBER_AT));
        program.push(jump(BPF_JEQ, libc::SYS_execve as u32, 1, 0));
        program.push(jump(BPF_JEQ, libc::SYS_execveat as u32, 0, 1));
        program.push(done(libc::SECCOMP_RET_USER_NOTIF));
    }
    program.extend(window.into_iter().flat_map(trapped_calls::instructions));
    program.push(done(libc::SECCOMP_RET_ALLOW));
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::tests::run;

    #[test]
    fn the_filter_refuses_what_the_rules_name_and_nothing_else() {
        let window = WindowPlace::select(1 << 30, 0);
        let (ask, fail) = (filter(Verdict::Ask, false, window), filter(Verdict::Fail, false, window));
        let direct = libc::O_DIRECT as u64;
        let both = libc::O_RDWR as u64 | direct;
        let writes = libc::O_WRONLY as u64 | direct;
        let set = libc::F_SETFL as u64;
        let xdp = libc::SOL_XDP as u64;
        let calls: [(c_long, [u64; 6], bool); 19] = [
            (libc::SYS_openat, [u64::MAX, 77, direct, 0, 0, 0], true),
            (libc::SYS_openat, [u64::MAX, 77, both | 0xFF00_0000_0000, 0, 0, 0], true),
            (libc::SYS_openat, [u64::MAX, 77, writes, 0, 0, 0], false),
            (libc::SYS_openat, [u64::MAX, direct, libc::O_RDWR as u64, direct, 0, 0], false),
            (libc::SYS_openat2, [0; 6], true),
            (libc::SYS_fcntl, [3, set, both, 0, 0, 0], true),
            (libc::SYS_fcntl, [3, set, 0, 0, 0, 0], false),
            (libc::SYS_fcntl, [3, libc::F_SETFD as u64, both, 0, 0, 0], false),
            (libc::SYS_io_uring_setup, [0; 6], true),
            (libc::SYS_setsockopt, [3, xdp, libc::XDP_UMEM_REG as u64, 0, 0, 0], true),
            (libc::SYS_setsockopt, [3, 1, libc::XDP_UMEM_REG as u64, 0, 0, 0], false),
            (libc::SYS_ioctl, [3, 0xC048_4E43, 0, 0, 0, 0], true),
            (libc::SYS_ioctl, [3, u64::from(SCSI), 0, 0, 0, 0], true),
            (libc::SYS_ioctl, [3, 0x5401, 0, 0, 0, 0], false),
            (libc::SYS_process_vm_writev, [0; 6], true),
            (libc::SYS_prctl, [67, 1, 0, 0, 0, 0], true),
            (libc::SYS_prctl, [67, 0, 0, 0, 0, 0], false),
            (libc::SYS_prctl, [68, 1, 0, 0, 0, 0], false),
            (libc::SYS_read, [direct; 6], false),
        ];
        for (call, arguments, refused) in calls {
            let rule = met(call as c_int, &arguments);
            assert_eq!(rule.is_some(), refused, "call {call} {arguments:x?}");
            let verdict = |program: &[sock_filter]| run(program, ARCHITECTURE, call, &arguments);
            let error = |rule: &Rule| libc::SECCOMP_RET_ERRNO | rule.what.errno() as u32;
            let wanted = rule.map_or(libc::SECCOMP_RET_ALLOW, |rule| match rule.what {
                RuleSubject::Merging => error(rule),
                _ => libc::SECCOMP_RET_USER_NOTIF,
            });
            assert_eq!(verdict(&ask), wanted, "call {call} {arguments:x?}");
            assert_eq!(verdict(&fail), rule.map_or(libc::SECCOMP_RET_ALLOW, error));
            assert_eq!(run(&ask, 0x4000_0003, call, &arguments), libc::SECCOMP_RET_ALLOW);
        }
        let watching = filter(Verdict::Ask, true, None);
        for (call, asked) in
            [(libc::SYS_execve, true), (libc::SYS_execveat, true), (libc::SYS_io_uring_setup, false)]
        {
            let wanted = if asked { libc::SECCOMP_RET_USER_NOTIF } else { libc::SECCOMP_RET_ALLOW };
            assert_eq!(run(&watching, ARCHITECTURE, call, &[0; 6]), wanted);
            assert_eq!(execution(call as c_int).is_some(), asked);
            if asked {
                assert_eq!(run(&ask, ARCHITECTURE, call, &[0; 6]), wanted);
                assert_eq!(run(&fail, ARCHITECTURE, call, &[0; 6]), libc::SECCOMP_RET_ALLOW);
            }
        }
        assert!(ask.len() <= 4096 && opens_direct(both) && !opens_direct(writes));
    }
}
