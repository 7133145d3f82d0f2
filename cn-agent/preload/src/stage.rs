//! Stages of this process's membership, which decide where its memory comes from.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Release;

/// Present stage: one of the constants below.
pub static STAGE: AtomicU8 = AtomicU8::new(EARLY);
/// The C library has not been set up: memory comes from the boot arena.
pub const EARLY: u8 = 0;
/// The process is joining, or about to end: memory comes from the boot arena.
pub const STARTING: u8 = 1;
/// The process is a member: memory comes from its window.
pub const REMOTE: u8 = 2;
/// The process is no member: memory comes from the next allocator behind this library.
pub const LOCAL: u8 = 3;

/// Makes memory come from the boot arena again, because this process is about to end.
pub fn leave_window() {
    STAGE.store(STARTING, Release);
}
