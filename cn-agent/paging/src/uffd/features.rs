//! Features of userfaultfd, modes of a registered range, and operations on it.

use bitflags::bitflags;

bitflags! {
    /// Features of userfaultfd (`UFFD_FEATURE_*`), each with the Linux version that brought it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Features: u64 {
        /// Linux 5.7: a write to a write-protected page of private anonymous memory is a fault.
        const WRITE_PROTECT = 1 << 0;
        /// Linux 4.11: forks are events, and the child's memory gets a userfaultfd of its own. Needs
        /// CAP_SYS_PTRACE.
        const EVENT_FORK = 1 << 1;
        /// Linux 4.11: `mremap(2)` is an event.
        const EVENT_REMAP = 1 << 2;
        /// Linux 4.11: `madvise(2)` with DONTNEED or REMOVE is an event.
        const EVENT_REMOVE = 1 << 3;
        /// Linux 4.11: absent pages of huge page files are faults.
        const MISSING_HUGETLBFS = 1 << 4;
        /// Linux 4.11: absent pages of shared memory are faults.
        const MISSING_SHMEM = 1 << 5;
        /// Linux 4.11: `munmap(2)` is an event.
        const EVENT_UNMAP = 1 << 6;
        /// Linux 4.14: a faulting thread gets SIGBUS, and there is no event.
        const SIGBUS = 1 << 7;
        /// Linux 4.14: events name the faulting thread.
        const THREAD_ID = 1 << 8;
        /// Linux 5.13: minor faults are reported for huge page files.
        const MINOR_HUGETLBFS = 1 << 9;
        /// Linux 5.14: minor faults are reported for shared memory: the page is present in the file, but
        /// absent from the mapping.
        const MINOR_SHMEM = 1 << 10;
        /// Linux 5.18: events give the accessed address, not only that of its page.
        const EXACT_ADDRESS = 1 << 11;
        /// Linux 5.19: write protection works for shared memory and huge page files.
        const WRITE_PROTECT_SHMEM = 1 << 12;
        /// Linux 6.4: absent pages can be write-protected too; without this feature they are skipped.
        const WRITE_PROTECT_UNPOPULATED = 1 << 13;
        /// Linux 6.6: the operation [`poison`](super::Uffd::poison).
        const POISON = 1 << 14;
        /// Linux 6.7: a write to a protected page only marks it as written ([`scan`](super::scan)), without a
        /// fault.
        const WRITE_PROTECT_ASYNC = 1 << 15;
        /// Linux 6.8: the operation [`move_`](super::Uffd::move_).
        const MOVE = 1 << 16;

        /// Features newer than this program.
        const _ = !0;
    }

    /// Kinds of access that are faults in a registered range (`UFFDIO_REGISTER_MODE_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Modes: u64 {
        /// An access to an absent page.
        const MISSING = 1 << 0;
        /// A write to a write-protected page.
        const WRITE_PROTECT = 1 << 1;
        /// An access to a page that is present in the memory file, but absent from the mapping.
        const MINOR = 1 << 2;
    }

    /// Operations on a registered range; the bits are the numbers of the ioctls.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Ioctls: u64 {
        const REGISTER = 1 << 0x00;
        const UNREGISTER = 1 << 0x01;
        const WAKE = 1 << 0x02;
        const COPY = 1 << 0x03;
        const ZERO = 1 << 0x04;
        const MOVE = 1 << 0x05;
        const WRITE_PROTECT = 1 << 0x06;
        const CONTINUE = 1 << 0x07;
        const POISON = 1 << 0x08;
        const HANDSHAKE = 1 << 0x3F;

        /// Operations newer than this program.
        const _ = !0;
    }
}

impl Features {
    /// Names of the features in the set, for messages.
    pub fn names(self) -> String {
        let names: Vec<&str> = self.iter_names().map(|(name, _)| name).collect();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    }

    /// Oldest Linux release that has all features of the set, as (major, minor).
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
