//! The question that the supervisor is answering, in memory that its keeper can read. A question is a system
//! call that waits. The kernel passes each question once: if the supervisor is killed after it has received
//! one, the call would wait for an answer for ever.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use libc::{seccomp_data, seccomp_notif};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Number of words of a record: the question's number, the process, the system call and its six arguments.
const WORDS: usize = 9;
/// Maximum number of question numbers, after the recorded one, that may have been received. Numbers ascend by
/// one; questions of killed callers use up numbers as well, and are never received.
const LATER_MAX: u64 = 4096;

/// The question that was received last.
#[derive(Debug)]
pub(crate) struct OpenQuestion(File);

impl OpenQuestion {
    /// Creates the memory for the record, which holds no question yet.
    ///
    /// # Errors
    /// Errors of the system call.
    pub fn new() -> io::Result<OpenQuestion> {
        Ok(OpenQuestion(File::from(memfd_create(c"cxloe-question", MFdFlags::MFD_CLOEXEC)?)))
    }

    pub fn record(&self, question: &seccomp_notif) {
        let seccomp_data { nr, args: [first, second, third, fourth, fifth, sixth], .. } = question.data;
        let call = [question.id, question.pid.into(), nr as u64];
        let words: [u64; WORDS] = [call[0], call[1], call[2], first, second, third, fourth, fifth, sixth];
        // An error is ignored: it occurs only if no memory is left, and the question is answered even without its
        // record.
        let _ = self.0.write_all_at(words.map(u64::to_ne_bytes).as_flattened(), 0);
    }

    pub fn last(&self) -> Option<seccomp_notif> {
        let mut bytes = [[0; 8]; WORDS];
        self.0.read_exact_at(bytes.as_flattened_mut(), 0).ok()?;
        let [id, pid, call, args @ ..] = bytes.map(u64::from_ne_bytes);
        let data = seccomp_data { nr: call as i32, arch: 0, instruction_pointer: 0, args };
        Some(seccomp_notif { id, pid: pid as u32, flags: 0, data })
    }

    /// Numbers of questions that may have been received after the last one recorded: the supervisor may be killed before
    /// it records one.
    pub fn unrecorded(&self) -> impl Iterator<Item = u64> {
        let last = self.last().map(|question| question.id);
        last.into_iter().flat_map(|last| (1..=LATER_MAX).map(move |more| last.wrapping_add(more)))
    }
}

impl AsFd for OpenQuestion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_last_is_read() {
        let open = OpenQuestion::new().unwrap();
        assert!(open.last().is_none() && open.unrecorded().next().is_none());
        for id in [7, u64::MAX] {
            let args = [1, u64::MAX, 3, 4, 5, 6];
            let data = seccomp_data { nr: 59, arch: 0, instruction_pointer: 0, args };
            open.record(&seccomp_notif { id, pid: 4711, flags: 0, data });
            let last = open.last().unwrap();
            assert_eq!((last.id, last.pid, last.data.nr, last.data.args), (id, 4711, 59, args));
            assert_eq!(open.unrecorded().next(), Some(id.wrapping_add(1)));
        }
    }
}
