//! Inline faults: the thread that touches an absent page fetches the page itself.
//!
//! A program that owns a link maps a region so that userfaultfd raises SIGBUS instead of notifying another thread. The
//! handler of that signal drives the pager, the engine and the link on the interrupted thread, installs the page and
//! returns: no thread is put to sleep or woken.
//!
//! ```text
//!   thread --SIGBUS--> handler: counter.ask --+                     +--> region: pager --> transfers --+--> engine --> link
//!   thread --SIGBUS--> handler: counter.ask --+--> holder of        |        +--> UFFDIO_COPY, WRITEPROTECT
//!   keeper (eviction, sessions) --------------+    the lock: Core --+--> region: ...                   +
//! ```
//!
//! Threads that fault at once store their requests in slots (`counter.rs`); one of them holds the lock and serves
//! all.
//!
//! One port serves several regions ([`InlinePort`]). They share the link, the engine and its sessions, the request
//! slots, the lock and the keeper. Each region has its own pager and transfers, so that a region whose memory node is
//! absent takes no room of the others. An interface of this process is opened with its first region and closed after
//! its last (`interface.rs`, [`InlineRegion::open`]): for the manager and memory nodes it is one compute node, with
//! one session for each memory node.
//!
//! # Why the handler may run anywhere
//!
//! * The handler takes only one lock, a spin lock, whose holder never touches mapped memory: all data that the holder
//!   works on was allocated before the mapping was made ([`Pager::reserve`](cxloe_cn_core::pager::Pager::reserve)).
//!   Further regions are added and removed in one step, prepared before and freed after it
//!   ([`Engine::adopt`](cxloe_cn_core::engine::Engine::adopt)). The handler runs with every signal blocked, so that
//!   no other handler interrupts it, and on a stack of its own ([`sigbus`](cxloe_sigbus)), however small the thread's
//!   is.
//! * Signals wait while a thread has the lock outside of the handler, in a call of this module: a handler of the
//!   program may touch mapped memory.
//! * The handler does not allocate. The test `inline_faults` runs under an allocator that ends the program if it is
//!   called within the handler, and faults while a thread holds the allocator's own lock.
//! * The handler's system calls are ioctls on the userfaultfd, the copy of an evicted page, and those of the link for
//!   sending and polling: each is safe in a signal handler, and none waits long. `errno` is restored.
//!
//! # Accesses that the handler cannot serve
//!
//! The kernel's own accesses to absent pages (`read(2)` into them), and its writes to present write-protected ones,
//! fail with EFAULT; they raise no signal. Touch and write such a buffer first, or map the region with
//! `cxloe_client::mapping::Mapping`, whose faults another process serves. A child after a fork does not inherit the
//! mapping.
//!
//! Opening a session with keys allocates. If that becomes necessary while a thread faults with the lock of the
//! program's allocator held, the fault waits for the session and the session for the lock, until
//! [`lost_wait`](InlineOptions::lost_wait) ends the access. An allocator that keeps its own data in a region needs a
//! lock of its own for that, or sessions without keys.

mod core;
mod counter;
mod handler;
mod interface;
mod lock;
mod masks;
mod port;
mod region;
mod shared;
mod space;

use std::io;
use std::time::Duration;

pub use port::InlinePort;
pub use region::InlineRegion;
pub use space::SPACES_MAX;

use crate::connect::ConnectError;
use crate::port::PortError;
use cxloe_paging::uffd::{OpenError, UffdError};

/// Options of a mapping with inline faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineOptions {
    /// Maximum number of resident bytes; at least 64 KiB.
    pub local: u64,
    /// Whether pages are read ahead for readers in constant strides.
    pub prefetch: bool,
    /// Whether the region was never written: pages are filled with zeros, without a fetch, until they are written.
    pub fresh: bool,
    /// Longest outage of memory nodes before a page counts as lost.
    pub lost_wait: Duration,
}

impl Default for InlineOptions {
    fn default() -> InlineOptions {
        InlineOptions { local: 64 << 20, prefetch: true, fresh: false, lost_wait: Duration::from_secs(30) }
    }
}

/// Failure to map a region or to write it back.
#[derive(Debug, thiserror::Error)]
pub enum InlineError {
    /// The size is not a number of whole pages, or has more pages than can be counted.
    #[error("a mapping has whole pages of 4096 bytes, up to 16 TiB; {0} bytes are not")]
    Size(u64),
    /// The limit of mapped regions is reached.
    #[error("{0} regions are mapped with inline faults already, as many as a process can have")]
    Full(usize),
    /// Regions are still mapped over the port.
    #[error("regions are mapped over this port: close them first")]
    InUse,
    /// The connection to the manager or the region failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// There is no alternate signal stack for the handler on this architecture.
    #[error("inline faults are for x86_64 and aarch64, not for {0}; map the region through the agent")]
    Architecture(&'static str),
    /// userfaultfd cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The memory cannot be registered with userfaultfd.
    #[error("the mapping cannot be registered: {0}")]
    Register(#[from] UffdError),
    /// A system call for memory, threads or signals failed.
    #[error("{what}: {source}")]
    System {
        /// Purpose of the call, for the message.
        what: &'static str,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// The port failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// Returned in a child process after a fork; the parent may go on using the region.
    #[error("the region belongs to the parent process, which mapped it before the fork")]
    Inherited,
    /// Memory nodes did not take all dirty pages in time.
    #[error(
        "not everything written could be brought to the memory nodes within {0:?}; it is lost with this mapping"
    )]
    NotWrittenBack(Duration),
}

fn system(what: &'static str) -> impl Fn(io::Error) -> InlineError {
    move |source| InlineError::System { what, source }
}
