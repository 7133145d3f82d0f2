//! `malloc` and its kin.
//!
//! A block is given back to where it lies, whatever the stage: the window, the boot arena, or else whoever would have had
//! it without this library.

use std::ffi::c_int;
use std::ptr::null_mut;

use crate::process::{NO_MEMORY, Source, member, source};
use crate::sys::{Errno, PAGE};
use crate::{boot, next};

/// What `malloc` aligns to.
const ALIGN: usize = 16;

fn or_no_memory(block: *mut u8) -> *mut u8 {
    if block.is_null() {
        Errno::set(NO_MEMORY);
    }
    block
}

fn allocate(bytes: usize, align: usize) -> *mut u8 {
    match source() {
        Source::Remote(process) => or_no_memory(process.heap.allocate(bytes, align)),
        Source::Local if align <= ALIGN => next::malloc(bytes),
        Source::Local => next::memalign(align, bytes),
        Source::Boot => or_no_memory(boot::take(bytes, align)),
    }
}

/// `malloc(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(bytes: usize) -> *mut u8 {
    allocate(bytes, ALIGN)
}

/// `calloc(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, bytes: usize) -> *mut u8 {
    let Some(all) = count.checked_mul(bytes) else { return or_no_memory(null_mut()) };
    match source() {
        Source::Remote(process) => or_no_memory(process.heap.allocate_zeroed(all)),
        Source::Local => next::calloc(count, bytes),
        Source::Boot => or_no_memory(boot::take(all, ALIGN)),
    }
}

/// `free(3)`.
///
/// # Safety
/// `block` is null, or a block that `malloc` or its kin returned, was not freed since, and that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut u8) {
    if block.is_null() || boot::holds(block) {
        return;
    }
    match member().filter(|process| process.window.holds(block as usize)) {
        // SAFETY: `block` is a live block of the allocator that has it, and nobody uses it any more.
        Some(process) => unsafe { process.heap.free(block) },
        // SAFETY: `block` is a live block of the allocator that has it, and nobody uses it any more.
        None => unsafe { next::free(block) },
    }
}

/// `realloc(3)`. As the C library's, it frees a block that is to have 0 bytes.
///
/// # Safety
/// `block` is null, or a block that `malloc` or its kin returned, was not freed since, and that nobody uses any more under its old address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut u8, bytes: usize) -> *mut u8 {
    if block.is_null() {
        return malloc(bytes);
    }
    if boot::holds(block) {
        let moved = malloc(bytes);
        if !moved.is_null() {
            // SAFETY: two blocks of at least so many bytes.
            unsafe { moved.copy_from_nonoverlapping(block, boot::size(block).min(bytes)) };
        }
        return moved;
    }
    match member().filter(|process| process.window.holds(block as usize)) {
        Some(_) if bytes == 0 => {
            // SAFETY: `block` is a live block of the allocator that has it, and nobody uses it under its old address any more.
            unsafe { free(block) };
            null_mut()
        }
        // SAFETY: `block` is a live block of the allocator that has it, and nobody uses it under its old address any more.
        Some(process) => or_no_memory(unsafe { process.heap.reallocate(block, bytes) }),
        // SAFETY: `block` is a live block of the allocator that has it, and nobody uses it under its old address any more.
        None => unsafe { next::realloc(block, bytes) },
    }
}

/// `reallocarray(3)`.
///
/// # Safety
/// `block` is null, or a block that `malloc` or its kin returned, was not freed since, and that nobody uses any more under its old address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(block: *mut u8, count: usize, bytes: usize) -> *mut u8 {
    match count.checked_mul(bytes) {
        // SAFETY: what `realloc` asks for is asked of the caller here.
        Some(all) => unsafe { realloc(block, all) },
        None => or_no_memory(null_mut()),
    }
}

/// `memalign(3)`. As the C library's, it takes the next power of two.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, bytes: usize) -> *mut u8 {
    match align.max(ALIGN).checked_next_power_of_two() {
        Some(align) => allocate(bytes, align),
        None => {
            Errno::set(libc::EINVAL);
            null_mut()
        }
    }
}

/// `aligned_alloc(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, bytes: usize) -> *mut u8 {
    memalign(align, bytes)
}

/// `posix_memalign(3)`.
///
/// # Safety
/// `place` may be written as a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(place: *mut *mut u8, align: usize, bytes: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut u8>()) {
        return libc::EINVAL;
    }
    let _errno = Errno::keep();
    let block = allocate(bytes, align);
    if block.is_null() {
        return NO_MEMORY;
    }
    // SAFETY: `place` may be written as a pointer.
    unsafe { place.write(block) };
    0
}

/// `valloc(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(bytes: usize) -> *mut u8 {
    allocate(bytes, PAGE)
}

/// `pvalloc(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(bytes: usize) -> *mut u8 {
    bytes
        .checked_next_multiple_of(PAGE)
        .map_or_else(|| or_no_memory(null_mut()), |bytes| allocate(bytes, PAGE))
}

/// `malloc_usable_size(3)`.
///
/// # Safety
/// `block` is null, or a block that `malloc` or its kin returned and that was not freed since.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut u8) -> usize {
    if block.is_null() {
        return 0;
    }
    if boot::holds(block) {
        // SAFETY: `block` is a live block of the allocator that has it.
        return unsafe { boot::size(block) };
    }
    match member().filter(|process| process.window.holds(block as usize)) {
        // SAFETY: `block` is a live block of the allocator that has it.
        Some(process) => unsafe { process.heap.usable(block) },
        // SAFETY: `block` is a live block of the allocator that has it.
        None => unsafe { next::usable(block) },
    }
}
