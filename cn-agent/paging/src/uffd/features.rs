//! What a kernel can do with faults, what a range is registered for, and what may then be done to it.

use bitflags::bitflags;

bitflags! {
    /// Features of userfaultfd (`UFFD_FEATURE_*`), each with the Linux version that brought it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Features: u64 {
        /// 5.7: writes to protected pages of private anonymous memory are faults.
        const WRITE_PROTECT = 1 << 0;
        /// 4.11: forks are events, and the child's memory gets a userfaultfd of its own. Needs CAP_SYS_PTRACE.
        const EVENT_FORK = 1 << 1;
        /// 4.11: `mremap(2)` is an event.
        const EVENT_REMAP = 1 << 2;
        /// 4.11: `madvise(2)` with DONTNEED or REMOVE is an event.
        const EVENT_REMOVE = 1 << 3;
        /// 4.11: missing pages of huge page files.
        const MISSING_HUGETLBFS = 1 << 4;
        /// 4.11: missing pages of shared memory.
        const MISSING_SHMEM = 1 << 5;
        /// 4.11: `munmap(2)` is an event.
        const EVENT_UNMAP = 1 << 6;
        /// 4.14: the faulting thread gets SIGBUS, and no event is sent.
        const SIGBUS = 1 << 7;
        /// 4.14: events say which thread faulted.
        const THREAD_ID = 1 << 8;
        /// 5.13: minor faults of huge page files.
        const MINOR_HUGETLBFS = 1 << 9;
        /// 5.14: minor faults of shared memory: the file has the page, the mapping has not.
        const MINOR_SHMEM = 1 << 10;
        /// 5.18: events give the address itself and not that of its page.
        const EXACT_ADDRESS = 1 << 11;
        /// 5.19: write protection of shared memory and huge page files.
        const WRITE_PROTECT_SHMEM = 1 << 12;
        /// 6.4: absent pages can be write-protected too; before, protecting passes them over.
        const WRITE_PROTECT_UNPOPULATED = 1 << 13;
        /// 6.6: [`poison`](super::Uffd::poison).
        const POISON = 1 << 14;
        /// 6.7: a write to a protected page only marks it as written ([`scan`](super::scan)), without a fault.
        const WRITE_PROTECT_ASYNC = 1 << 15;
        /// 6.8: [`move_`](super::Uffd::move_).
        const MOVE = 1 << 16;

        /// Features newer than this program.
        const _ = !0;
    }

    /// What a range is registered for (`UFFDIO_REGISTER_MODE_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Modes: u64 {
        /// Touching a page that is not there.
        const MISSING = 1 << 0;
        /// Writing to a protected page.
        const WRITE_PROTECT = 1 << 1;
        /// Touching a page that the file has and the mapping has not.
        const MINOR = 1 << 2;
    }

    /// What may be done to a registered range; the bits are the numbers of the ioctls.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Ioctls: u64 {
        /// [`register`](super::Uffd::register).
        const REGISTER = 1 << 0x00;
        /// [`unregister`](super::Uffd::unregister).
        const UNREGISTER = 1 << 0x01;
        /// [`wake`](super::Uffd::wake).
        const WAKE = 1 << 0x02;
        /// [`copy`](super::Uffd::copy).
        const COPY = 1 << 0x03;
        /// [`zero`](super::Uffd::zero).
        const ZERO = 1 << 0x04;
        /// [`move_`](super::Uffd::move_).
        const MOVE = 1 << 0x05;
        /// [`protect`](super::Uffd::protect) and [`unprotect`](super::Uffd::unprotect).
        const WRITE_PROTECT = 1 << 0x06;
        /// [`continue_`](super::Uffd::continue_).
        const CONTINUE = 1 << 0x07;
        /// [`poison`](super::Uffd::poison).
        const POISON = 1 << 0x08;
        /// [`handshake`](super::Uffd::handshake).
        const HANDSHAKE = 1 << 0x3F;

        /// Others, newer than this program.
        const _ = !0;
    }
}

impl Features {
    /// The names of the features set, for people.
    pub fn names(self) -> String {
        let names: Vec<&str> = self.iter_names().map(|(name, _)| name).collect();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    }

    /// The oldest Linux release that has all of these, as (major, minor).
    pub fn since(self) -> (u32, u32) {
        const SINCE: [(Features, (u32, u32)); 8] = [
            (Features::MOVE, (6, 8)),
            (Features::WRITE_PROTECT_ASYNC, (6, 7)),
            (Features::POISON, (6, 6)),
            (Features::WRITE_PROTECT_UNPOPULATED, (6, 4)),
            (Features::WRITE_PROTECT_SHMEM, (5, 19)),
            (Features::EXACT_ADDRESS, (5, 18)),
            (Features::MINOR_SHMEM, (5, 14)),
            (Features::MINOR_HUGETLBFS, (5, 13)),
        ];
        let newest = SINCE.iter().find(|(feature, _)| self.contains(*feature));
        match newest {
            Some((_, version)) => *version,
            None if self.contains(Features::WRITE_PROTECT) => (5, 7),
            None => (4, 14),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Features;

    #[test]
    fn features_name_themselves_and_their_kernel() {
        let two = Features::POISON | Features::MISSING_SHMEM;
        assert_eq!(two.names(), "MISSING_SHMEM, POISON");
        assert_eq!(two.since(), (6, 6));
        assert_eq!((two | Features::MOVE).since(), (6, 8));
        assert_eq!(Features::WRITE_PROTECT.since(), (5, 7));
        assert_eq!(Features::SIGBUS.since(), (4, 14));
        assert_eq!(Features::empty().names(), "none");
    }
}
