//! Virtual machines that move to another compute node while they run, without their memory being copied: the region that
//! is the memory is handed over, and QEMU's own migration carries the state of devices and vCPUs alone
//! (`x-ignore-shared`).
//!
//! | module | content |
//! |---|---|
//! | [`source`] | decisions where the machine runs |
//! | [`sender`] | their shell |
//! | [`target`] | decisions where it is to run |
//! | [`receiver`] | their shell |
//! | [`machine`] | a machine of this compute node that can move |
//! | [`message`] | messages between both |
//! | [`channel`] | the sealed connection between both |
//! | [`ticket`] | the secret by which both recognise each other |
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
