//! The interposed functions `malloc`, `free` and the like. In every stage, a block is returned to the
//! allocator that it came from: the window's heap, the boot arena, or the next allocator behind this library.

#![expect(unsafe_code, reason = "malloc and the like are exported by name, and take raw pointers")]

use std::ffi::c_int;
use std::ptr::null_mut;

use crate::process::{MemorySource, NO_MEMORY, member, source};
use crate::sys::{Errno, PAGE};
use crate::{boot, next_definition};

/// Alignment of blocks from `malloc`, in bytes.
const ALIGN: usize = 16;

fn or_no_memory(block: *mut u8) -> *mut u8 {
    if block.is_null() {
        Errno::set(NO_MEMORY);
    }
    block
}

fn allocate(bytes: usize, align: usize) -> *mut u8 {
    match source() {
        MemorySource::Remote(process) => or_no_memory(process.heap.allocate(bytes, align)),
        MemorySource::Local if align <= ALIGN => next_definition::malloc(bytes),
        MemorySource::Local => next_definition::memalign(align, bytes),
        MemorySource::Boot => or_no_memory(boot::take(bytes, align)),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn malloc(bytes: usize) -> *mut u8 {
    allocate(bytes, ALIGN)
}

#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, bytes: usize) -> *mut u8 {
    let Some(all) = count.checked_mul(bytes) else { return or_no_memory(null_mut()) };
    match source() {
        MemorySource::Remote(process) => or_no_memory(process.heap.allocate_zeroed(all)),
        MemorySource::Local => next_definition::calloc(count, bytes),
        MemorySource::Boot => or_no_memory(boot::take(all, ALIGN)),
    }
}

/// Frees a block of any of the three allocators.
///
/// # Safety
/// `block` is null, or a block that a function of this module returned, was not freed since, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut u8) {
    // Blocks of the boot arena are never freed.
    if block.is_null() || boot::holds(block) {
        return;
    }
    match member().filter(|process| process.window.holds(block as usize)) {
        // SAFETY: `block` is a live block of this allocator, and is not used any more.
        Some(process) => unsafe { process.heap.free(block) },
        // SAFETY: `block` is a live block of this allocator, and is not used any more.
        None => unsafe { next_definition::free(block) },
    }
}

/// Changes the size of a block. With 0 bytes, frees the block, as the C library's function does.
///
/// # Safety
/// `block` is null, or a block that a function of this module returned, was not freed since, and is not used any more
/// under its old address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut u8, bytes: usize) -> *mut u8 {
    if block.is_null() {
        return malloc(bytes);
    }
    if boot::holds(block) {
        let moved = malloc(bytes);
        if !moved.is_null() {
            // SAFETY: both blocks are live, and at least as long as the bytes that are copied.
            unsafe { moved.copy_from_nonoverlapping(block, boot::size(block).min(bytes)) };
        }
        return moved;
    }
    match member().filter(|process| process.window.holds(block as usize)) {
        Some(_) if bytes == 0 => {
            // SAFETY: `block` is a live block of this allocator, and is not used under its old address any more.
            unsafe { free(block) };
            null_mut()
        }
        // SAFETY: `block` is a live block of this allocator, and is not used under its old address any more.
        Some(process) => or_no_memory(unsafe { process.heap.reallocate(block, bytes) }),
        // SAFETY: `block` is a live block of this allocator, and is not used under its old address any more.
        None => unsafe { next_definition::realloc(block, bytes) },
    }
}

/// Fails if the product of `count` and `bytes` overflows.
///
/// # Safety
/// `block` is null, or a block that a function of this module returned, was not freed since, and is not used any more
/// under its old address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(block: *mut u8, count: usize, bytes: usize) -> *mut u8 {
    match count.checked_mul(bytes) {
        // SAFETY: the caller keeps the conditions of `realloc`.
        Some(all) => unsafe { realloc(block, all) },
        None => or_no_memory(null_mut()),
    }
}

/// Rounds `align` up to a power of two, as the C library's function does.
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

#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, bytes: usize) -> *mut u8 {
    memalign(align, bytes)
}

/// Writes the address of the block to `place`; returns an error number.
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

/// Allocates a block that is aligned to a page.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(bytes: usize) -> *mut u8 {
    allocate(bytes, PAGE)
}

/// Allocates whole pages.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(bytes: usize) -> *mut u8 {
    bytes
        .checked_next_multiple_of(PAGE)
        .map_or_else(|| or_no_memory(null_mut()), |bytes| allocate(bytes, PAGE))
}

/// Size of a block of any of the three allocators, in bytes.
///
/// # Safety
/// `block` is null, or a block that a function of this module returned and that was not freed since.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut u8) -> usize {
    if block.is_null() {
        return 0;
    }
    if boot::holds(block) {
        // SAFETY: `block` is a live block of the boot arena.
        return unsafe { boot::size(block) };
    }
    match member().filter(|process| process.window.holds(block as usize)) {
        // SAFETY: `block` is a live block of this heap.
        Some(process) => unsafe { process.heap.usable(block) },
        // SAFETY: `block` is a live block of the next allocator.
        None => unsafe { next_definition::usable(block) },
    }
}
