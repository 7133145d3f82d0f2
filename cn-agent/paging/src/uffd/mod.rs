//! Userfaultfd: page faults of a range of memory answered by a program instead of the kernel.
//!
//! A [`Uffd`] is made for the memory of the process that makes it ([`Uffd::create`]), or comes from another process
//! that handed over its own ([`Uffd::from_fd`]): it goes on acting on that other process's memory. After the
//! [`handshake`](Uffd::handshake) that names the [`Features`] wanted, ranges are [registered](Uffd::register), and
//! from then on
//!
//! ```text
//!   a thread touches an absent page, or writes to a protected one
//!        |                                          or, with Features::SIGBUS, gets the signal itself
//!        v
//!   Uffd::wait, Uffd::events -> Event::Fault        copy, continue_, zero, move_, poison: the page is there
//!        |                                          unprotect: the page may be written
//!        `--> whoever serves it calls one of  --->  and the thread goes on (wake, if none of these did it)
//! ```
//!
//! Everything but the set-up (`create`, `probe`) may run in a signal handler: no call allocates or takes a lock, each
//! is one system call on a descriptor and values of the caller. A handler saves `errno` and puts it back, as always.
//!
//! The structures and request numbers of the kernel stand in the module `abi`, up to those of Linux 6.8, so that what
//! this program can do depends on the kernel it runs on and not on the headers of the machine that built it. (The
//! crate `userfaultfd` takes them from the build machine's headers through libclang, and has no write-protecting copy,
//! no move and no poison. The tests hold this module against it.) Which of it a kernel has is asked at run time: [`probe`](probe()).

mod abi;
mod error;
mod event;
mod features;
mod open;
mod pages;
mod probe;
pub mod scan;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;

pub use error::{OpenError, UffdError};
pub use event::{EVENTS_MAX, Event, EventBuffer, Events};
pub use features::{Features, Ioctls, Modes};
pub use pages::Access;
pub use probe::{Probe, Way, probe};

/// Size in bytes of the pages that all addresses and lengths here are multiples of.
pub const PAGE: u64 = 4096;

/// One userfaultfd. When its last duplicate is closed, in whatever process, its ranges are no longer registered, and
/// absent pages there read as zeros without a word: whoever holds data elsewhere keeps a duplicate.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    /// Whether the kernel reads it without waiting when the call says so. It may wait by the descriptor's own flag, which
    /// every process that has a duplicate can change.
    reads_nowait: AtomicBool,
}

impl Uffd {
    fn new(fd: OwnedFd) -> Uffd {
        Uffd { fd, reads_nowait: AtomicBool::new(true) }
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Uffd> for OwnedFd {
    fn from(uffd: Uffd) -> OwnedFd {
        uffd.fd
    }
}
