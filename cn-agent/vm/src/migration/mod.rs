//! Virtual machines that move to another compute node while they run, without their memory being copied: the
//! region that holds the memory is handed over, and QEMU's own migration carries the state of devices and
//! vCPUs alone (`x-ignore-shared`).
//!
//! | module | content |
//! |---|---|
//! | [`source`] | decisions at the source, where the machine runs |
//! | [`sender`] | carries the source's decisions out |
//! | [`target`] | decisions at the target, where the machine is to run |
//! | [`receiver`] | carries the target's decisions out |
//! | [`machine`] | a machine of this compute node that can move |
//! | [`message`] | messages between source and target |
//! | [`channel`] | the sealed connection between source and target |
//! | [`ticket`] | the secret by which source and target recognise each other |
//! | [`facts`] | facts of the two machines that have to agree |
//! | [`qmp`] | QEMU's machine protocol |

pub mod channel;
pub mod facts;
pub mod machine;
pub mod message;
pub mod qmp;
pub mod receiver;
pub mod sender;
pub mod source;
pub mod target;
pub mod ticket;

#[cfg(test)]
mod tests;
