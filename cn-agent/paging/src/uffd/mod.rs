//! Userfaultfd: page faults of a range of memory answered by a program instead of the kernel.
//!
//! A [`Uffd`] is made for the memory of the process that makes it ([`Uffd::create`]), or passed by another process
//! ([`Uffd::from_fd`]); then it acts on the memory of that process. After the [`handshake`](Uffd::handshake), which
//! negotiates [`Features`], ranges are [registered](Uffd::register), and from then on faults are served:
//!
//! ```text
//!   a thread touches an absent page, or writes to a protected one
//!        |                                          or, with Features::SIGBUS, gets the signal itself
//!        v
//!   Uffd::wait, Uffd::events -> UffdEvent::Fault        copy, continue_, zero, move_, poison: the page is present
//!        |                                          unprotect: the page may be written
//!        `--> the server calls one of  ---------->  and the thread continues (wake, if none of these did it)
//! ```
//!
//! All functions except the set-up (`create`, `probe`) may run in a signal handler: no call allocates or takes a
//! lock, and each is one system call on a descriptor and values of the caller. The handler has to save and restore
//! `errno`, as always.
//!
//! The structures and request numbers of the kernel are in the module `abi`, up to those of Linux 6.8, so that the
//! available operations depend on the running kernel and not on the headers of the build machine. (The crate
//! `userfaultfd` takes them from the build machine's headers through libclang, and has no write-protecting copy, no
//! move and no poison. The tests compare this module with it.) [`probe`](probe()) queries the kernel's support at run
//! time.

mod abi;
mod error;
mod event;
mod features;
mod open;
pub mod pagemap;
mod pages;
mod probe;
pub mod scan;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;

pub use error::{OpenError, UffdError};
pub use event::{EVENTS_MAX, EventBuffer, Events, UffdEvent};
pub use features::{Features, Ioctls, Modes};
pub use pages::Access;
pub use probe::{FaultScope, Probe, probe};

/// Page size in bytes. All addresses and lengths in this module are multiples of it.
pub const PAGE: u64 = 4096;

/// One userfaultfd. When its last duplicate in any process is closed, its ranges are unregistered, and their
/// absent pages silently read as zeros: a program that stores the data of these pages elsewhere must keep a
/// duplicate open.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    /// Whether the kernel supports reads with a flag that prevents waiting. Otherwise the descriptor's own flag
    /// decides, which every process with a duplicate can change.
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
