//! # cxloe-vmm: virtual machines whose memory lies in memory nodes
//!
//! ```text
//!   cn-agent vm          QEMU maps a file of the agent; a library in QEMU makes the mapping a member of the space
//!     launch: arguments, library  -->  exec::session: starts it, passes signals on, waits
//!
//!   cn-agent serve-uffd  a monitor that hands over a userfaultfd, as Firecracker does when it loads a snapshot
//!     snapshot: FILE --> region
//!     handover: socket --> pieces of memory, userfaultfd, process
//!     pieces:   a member for each piece  -->  agent
//!     guard:    ends the machine if this process dies
//! ```
//!
//! The two commands differ in the owner of the memory. With `vm`, the region is QEMU's memory: pages are written back
//! to memory nodes, and evicted when more than the limit are resident. With `serve-uffd`, the monitor has memory of its
//! own, whose pages are filled from the region when they are first touched. Nothing is written back, because the region
//! is a snapshot; Firecracker expects that.
//!
//! | module | content |
//! |---|---|
//! | [`launch`] | QEMU's arguments and the library it is started with |
//! | [`snapshot`] | copies a file of guest memory into a region |
//! | [`handover`] | what a monitor hands over: the pieces of its memory, its userfaultfd, its process |
//! | [`served_memory`] | a member of the agent's space for each piece |
//! | [`migration`] | machines that move to another compute node |
//! | [`guard`] | ends the machine when this process dies |

pub mod guard;
pub mod handover;
pub mod launch;
pub mod migration;
pub mod served_memory;
pub mod snapshot;
