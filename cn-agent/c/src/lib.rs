//! Mapped regions for C programs: the functions of `include/cxloe.h`, over [`cxloe_client::mapping`] and
//! [`cxloe_port::inline`].
//!
//! Every value that comes from C is checked here: null pointers, invalid texts, numbers out of range. A panic does not
//! reach the C program's code: it ends the process.
//!
//! | module | what it holds |
//! |---|---|
//! | `region` | a region, mapped by the agent or over a link of the program's own |
//! | `types` | the structures of the header |

#![expect(unsafe_code, reason = "C programs pass raw pointers, and call functions by name")]
#![warn(missing_docs)]
// The print macros panic when standard output or error is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

#[deny(unsafe_code)]
mod region;
#[deny(unsafe_code)]
mod types;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;

use cxloe_client::defaults::default_socket;
use region::Region;
use types::{Counters, ErrorText, Link, Options};

/// Borrows a text from C. NULL and invalid UTF-8 are errors, in which `what` names the text.
///
/// # Safety
/// `pointer` is null, or points to a zero-terminated text that is not modified during `'a`.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, String> {
    if pointer.is_null() {
        return Err(format!("{what} is NULL"));
    }
    // SAFETY: the pointer is not null; the caller ensures that it points to a zero-terminated text.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| format!("{what} is not UTF-8"))
}

/// Borrows the value behind a pointer that may be NULL.
///
/// # Safety
/// `pointer` is null, or points to a valid value that is not modified during `'a`.
unsafe fn given<'a, T>(pointer: *const T) -> Option<&'a T> {
    // SAFETY: the caller ensures what `as_ref` requires.
    unsafe { pointer.as_ref() }
}

/// Writes the reason of a failure into `error` unless it is null.
///
/// # Safety
/// `error` is null, or points to a valid message that nothing else uses during the call.
unsafe fn write_error(error: *mut ErrorText, what: &str) {
    // SAFETY: the caller ensures what `as_mut` requires.
    if let Some(error) = unsafe { error.as_mut() } {
        error.set(what);
    }
}

/// Returns the region to C as a pointer, or null with the reason in `error`.
///
/// # Safety
/// The condition of [`write_error`] holds.
unsafe fn hand_over(region: Result<Region, String>, error: *mut ErrorText) -> *mut Region {
    match region {
        Ok(region) => Box::into_raw(Box::new(region)),
        Err(why) => {
            // SAFETY: the caller ensures what `write_error` requires.
            unsafe { write_error(error, &why) };
            std::ptr::null_mut()
        }
    }
}

/// Returns 0 to C, or -1 with the reason in `error`.
///
/// # Safety
/// The condition of [`write_error`] holds.
unsafe fn done(outcome: Result<(), String>, error: *mut ErrorText) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(why) => {
            // SAFETY: the caller ensures what `write_error` requires.
            unsafe { write_error(error, &why) };
            -1
        }
    }
}

/// Calls `f` with the region. Returns 0 to C, or -1 with the reason in `error`.
///
/// # Safety
/// `region` is null, or was returned by `cxloe_map` or `cxloe_map_inline` and not unmapped; for `error`, the
/// condition of [`write_error`] holds.
unsafe fn with(
    region: *const Region,
    error: *mut ErrorText,
    f: impl FnOnce(&Region) -> Result<(), String>,
) -> c_int {
    // SAFETY: a region that is not unmapped is a valid value, which only `cxloe_unmap` changes.
    let region = unsafe { given(region) }.ok_or_else(|| "the region is NULL".to_owned());
    // SAFETY: the caller ensures what `write_error` requires.
    unsafe { done(region.and_then(f), error) }
}

/// Fills `options` with the defaults.
///
/// # Safety
/// `options` is null, or points to room for the structure, which nothing else uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_options_init(options: *mut Options) {
    if !options.is_null() {
        // SAFETY: the pointer is not null; the caller ensures that it points to room for the structure.
        unsafe { options.write(Options::default()) };
    }
}

/// Fills `link` with the defaults.
///
/// # Safety
/// `link` is null, or points to room for the structure, which nothing else uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_link_init(link: *mut Link) {
    if !link.is_null() {
        // SAFETY: the pointer is not null; the caller ensures that it points to room for the structure.
        unsafe { link.write(Link::default()) };
    }
}

/// Maps a region through the agent. Returns null on failure, with the reason in `error`.
///
/// # Safety
/// `name`, and the texts in `options`, are null or zero-terminated; `options` and `error` are null or point
/// to such structures. None of them changes during the call, and nothing else uses `error`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_map(
    name: *const c_char,
    options: *const Options,
    error: *mut ErrorText,
) -> *mut Region {
    let usual = Options::default();
    // SAFETY: the caller ensures what `given` requires.
    let options = unsafe { given(options) }.unwrap_or(&usual);
    let map = || {
        // SAFETY: the caller ensures what `text` requires.
        let name = unsafe { text(name, "the region's name") }?;
        let socket = if options.agent.is_null() {
            std::env::var_os("CXLOE_AGENT").map_or_else(default_socket, PathBuf::from)
        } else {
            // SAFETY: the caller ensures what `text` requires.
            PathBuf::from(unsafe { text(options.agent, "the agent's socket") }?)
        };
        Region::by_agent(&socket, name, options)
    };
    // SAFETY: the caller ensures what `write_error` requires.
    unsafe { hand_over(map(), error) }
}

/// Maps a region that threads of this process page, over a link of the program's own. Returns null on
/// failure, with the reason in `error`.
///
/// # Safety
/// `name`, and the texts in `link`, are null or zero-terminated; `link`, `options` and `error` are null or
/// point to such structures. None of them changes during the call, and nothing else uses `error`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_map_inline(
    name: *const c_char,
    link: *const Link,
    options: *const Options,
    error: *mut ErrorText,
) -> *mut Region {
    let usual = Options::default();
    // SAFETY: the caller ensures what `given` requires.
    let options = unsafe { given(options) }.unwrap_or(&usual);
    let map = || {
        // SAFETY: the caller ensures what `text` and `given` require.
        let (name, link) =
            unsafe { (text(name, "the region's name")?, given(link).ok_or("the link is NULL")?) };
        // SAFETY: the caller ensures what `text` requires.
        let interface = unsafe { text(link.interface_name, "the interface's name") }?;
        // SAFETY: the caller ensures what `text` requires.
        let manager = unsafe { text(link.manager, "the manager's URL") }?;
        let backend = match link.backend.is_null() {
            true => "auto",
            // SAFETY: the caller ensures what `text` requires.
            false => unsafe { text(link.backend, "the backend") }?,
        };
        Region::inline(interface, manager, backend, name, options)
    };
    // SAFETY: the caller ensures what `write_error` requires.
    unsafe { hand_over(map(), error) }
}

/// Address of the region's first byte; null for a null region.
///
/// # Safety
/// `region` is null, or was returned by `cxloe_map` or `cxloe_map_inline` and not unmapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_address(region: *const Region) -> *mut c_void {
    // SAFETY: a region that is not unmapped is a valid value, which only `cxloe_unmap` changes.
    unsafe { given(region) }.map_or(std::ptr::null_mut(), |region| region.address().cast())
}

/// Size of the region in bytes; 0 for a null region.
///
/// # Safety
/// `region` is null, or was returned by `cxloe_map` or `cxloe_map_inline` and not unmapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_size(region: *const Region) -> usize {
    // SAFETY: a region that is not unmapped is a valid value, which only `cxloe_unmap` changes.
    unsafe { given(region) }.map_or(0, Region::len)
}

/// Writes all dirty pages back, and waits until the memory nodes have them.
///
/// # Safety
/// `region` is null, or was returned by `cxloe_map` or `cxloe_map_inline` and not unmapped; `error` is null, or points
/// to a message that nothing else uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_flush(region: *mut Region, error: *mut ErrorText) -> c_int {
    // SAFETY: the caller ensures what `with` requires.
    unsafe { with(region, error, Region::flush) }
}

/// Changes the limit of resident bytes of a region. Fails for an inline region.
///
/// # Safety
/// The conditions of [`cxloe_flush`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_set_local(region: *mut Region, local: u64, error: *mut ErrorText) -> c_int {
    // SAFETY: the caller ensures what `with` requires.
    unsafe { with(region, error, |region| region.set_local(local)) }
}

/// Discards the content of a range, which reads as zeros afterwards. Fails for an inline region.
///
/// # Safety
/// The conditions of [`cxloe_flush`] hold, and no reference to these bytes exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_discard(
    region: *mut Region,
    offset: usize,
    bytes: usize,
    error: *mut ErrorText,
) -> c_int {
    // SAFETY: the caller ensures what `with` requires.
    unsafe { with(region, error, |region| region.discard(offset, bytes)) }
}

/// Announces the future use of a range to the pager. `hint` is a number that `cxloe.h` names.
///
/// # Safety
/// The conditions of [`cxloe_flush`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_hint(
    region: *mut Region,
    offset: usize,
    bytes: usize,
    hint: c_int,
    error: *mut ErrorText,
) -> c_int {
    // SAFETY: the caller ensures what `with` requires.
    unsafe { with(region, error, |region| region.hint(offset, bytes, hint)) }
}

/// Copies the region's counters to `counters`.
///
/// # Safety
/// The conditions of [`cxloe_flush`] hold; `counters` is null, or points to room for the structure, which
/// nothing else uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_count(
    region: *mut Region,
    counters: *mut Counters,
    error: *mut ErrorText,
) -> c_int {
    let count = |region: &Region| {
        if counters.is_null() {
            return Err("the counters are NULL".to_owned());
        }
        let counted = region.counters()?;
        // SAFETY: the pointer is not null; the caller ensures that it points to room for the structure.
        unsafe { counters.write(counted) };
        Ok(())
    };
    // SAFETY: the caller ensures what `with` requires.
    unsafe { with(region, error, count) }
}

/// Writes dirty pages back, unmaps a region and frees it, even if the write-back fails. Does nothing for
/// null.
///
/// # Safety
/// The conditions of [`cxloe_flush`] hold, and neither the region nor its memory is used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_unmap(region: *mut Region, error: *mut ErrorText) -> c_int {
    if region.is_null() {
        return 0;
    }
    // SAFETY: the region was made by `hand_over` from a box, and the caller ensures that it is not used afterwards.
    let region = unsafe { Box::from_raw(region) };
    // SAFETY: the caller ensures what `write_error` requires.
    unsafe { done(region.unmap(), error) }
}
