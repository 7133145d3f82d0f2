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
//! The two differ in whose the memory is. QEMU's is the region: pages go back to memory nodes and leave this machine when
//! more than the limit are resident. The memory of a monitor that hands over a userfaultfd is its own, filled from the
//! region as it is touched; nothing is written back, as Firecracker means it: the region is a snapshot.
//!
//! | module | what it holds |
//! |---|---|
//! | [`launch`] | QEMU's arguments and the library it is started with |
//! | [`snapshot`] | a file of guest memory into a region |
//! | [`handover`] | what a monitor hands over: its memory's pieces, its userfaultfd, its process |
//! | [`pieces`] | a member of the agent's space for each piece |
//! | [`guard`] | ends the machine when this process dies |

pub mod guard;
pub mod handover;
pub mod launch;
pub mod pieces;
pub mod snapshot;
