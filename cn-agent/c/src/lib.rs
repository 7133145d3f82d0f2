//! Mapped regions for C programs: the functions of `include/cxloe.h`, over [`cxloe_client::mapping`] and
//! [`cxloe_port::inline`].
//!
//! Everything that crosses from C is checked here: null pointers, texts that are none, numbers out of range. A panic
//! does not cross: it ends the program.
//!
//! | module | what it holds |
//! |---|---|
//! | `region` | a region, mapped by the agent or over a link of the program's own |
//! | `types` | the structures of the header |

// These end the process when nobody can be told.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod region;
mod types;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;

use cxloe_client::places::default_socket;
use region::Region;
use types::{Counters, Link, Message, Options};

/// A text from C.
///
/// # Safety
/// `pointer` is null, or points to a text that ends with a zero and that nobody changes while `'a` lasts.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, String> {
    if pointer.is_null() {
        return Err(format!("{what} is NULL"));
    }
    // SAFETY: it is not null, and the caller ensures the rest.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| format!("{what} is not UTF-8"))
}

/// What is behind a pointer that may be NULL.
///
/// # Safety
/// `pointer` is null, or points to a valid value that nobody changes while `'a` lasts.
unsafe fn given<'a, T>(pointer: *const T) -> Option<&'a T> {
    // SAFETY: the caller ensures what `as_ref` asks for.
    unsafe { pointer.as_ref() }
}

/// Says why something failed, if somebody wants to know.
///
/// # Safety
/// `error` is null, or points to a valid message that nobody else uses during the call.
unsafe fn say(error: *mut Message, what: &str) {
    // SAFETY: the caller ensures what `as_mut` asks for.
    if let Some(error) = unsafe { error.as_mut() } {
        error.set(what);
    }
}

/// # Safety
/// That of [`say`].
unsafe fn hand_over(region: Result<Region, String>, error: *mut Message) -> *mut Region {
    match region {
        Ok(region) => Box::into_raw(Box::new(region)),
        Err(why) => {
            // SAFETY: the caller ensures what `say` asks for.
            unsafe { say(error, &why) };
            std::ptr::null_mut()
        }
    }
}

/// # Safety
/// That of [`say`].
unsafe fn done(outcome: Result<(), String>, error: *mut Message) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(why) => {
            // SAFETY: the caller ensures what `say` asks for.
            unsafe { say(error, &why) };
            -1
        }
    }
}

/// # Safety
/// `region` is null, or was returned by `cxloe_map` or `cxloe_map_inline` and not unmapped; for `error`, that of [`say`].
unsafe fn with(
    region: *const Region,
    error: *mut Message,
    f: impl FnOnce(&Region) -> Result<(), String>,
) -> c_int {
    // SAFETY: a region that is not unmapped is a valid value, which only `cxloe_unmap` changes.
    let region = unsafe { given(region) }.ok_or_else(|| "the region is NULL".to_owned());
    // SAFETY: the caller ensures what `say` asks for.
    unsafe { done(region.and_then(f), error) }
}

/// Fills in what is usual.
///
/// # Safety
/// `options` is null, or points to room for the structure, which nobody else uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_options_init(options: *mut Options) {
    if !options.is_null() {
        // SAFETY: it is not null, and the caller ensures the rest.
        unsafe { options.write(Options::default()) };
    }
}

/// Fills in what is usual.
///
/// # Safety
/// `link` is null, or points to room for the structure, which nobody else uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_link_init(link: *mut Link) {
    if !link.is_null() {
        // SAFETY: it is not null, and the caller ensures the rest.
        unsafe { link.write(Link::default()) };
    }
}

/// Maps a region through the agent.
///
/// # Safety
/// `name`, and the texts in `options`, are null or texts that end with a zero; `options` and `error` are null or point to
/// such structures. Nobody changes them during the call, and nobody else uses `error`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_map(
    name: *const c_char,
    options: *const Options,
    error: *mut Message,
) -> *mut Region {
    let usual = Options::default();
    // SAFETY: the caller ensures what `given` asks for.
    let options = unsafe { given(options) }.unwrap_or(&usual);
    let map = || {
        // SAFETY: the caller ensures what `text` asks for.
        let name = unsafe { text(name, "the region's name") }?;
        let socket = if options.agent.is_null() {
            std::env::var_os("CXLOE_AGENT").map_or_else(default_socket, PathBuf::from)
        } else {
            // SAFETY: as the name.
            PathBuf::from(unsafe { text(options.agent, "the agent's socket") }?)
        };
        Region::by_agent(&socket, name, options)
    };
    // SAFETY: the caller ensures what `say` asks for.
    unsafe { hand_over(map(), error) }
}

/// Maps a region over a link of the program's own.
///
/// # Safety
/// `name`, and the texts in `link`, are null or texts that end with a zero; `link`, `options` and `error` are null or
/// point to such structures. Nobody changes them during the call, and nobody else uses `error`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_map_inline(
    name: *const c_char,
    link: *const Link,
    options: *const Options,
    error: *mut Message,
) -> *mut Region {
    let usual = Options::default();
    // SAFETY: the caller ensures what `given` asks for.
    let options = unsafe { given(options) }.unwrap_or(&usual);
    let map = || {
        // SAFETY: the caller ensures what `text` and `given` ask for.
        let (name, link) =
            unsafe { (text(name, "the region's name")?, given(link).ok_or("the link is NULL")?) };
        // SAFETY: as the name.
        let interface = unsafe { text(link.interface_name, "the interface's name") }?;
        // SAFETY: as the name.
        let manager = unsafe { text(link.manager, "the manager's URL") }?;
        let backend = match link.backend.is_null() {
            true => "auto",
            // SAFETY: as the name.
            false => unsafe { text(link.backend, "the backend") }?,
        };
        Region::inline(interface, manager, backend, name, options)
    };
    // SAFETY: the caller ensures what `say` asks for.
    unsafe { hand_over(map(), error) }
}

/// The first byte; null for a null region.
///
/// # Safety
/// `region` is null, or was returned by `cxloe_map` or `cxloe_map_inline` and not unmapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_address(region: *const Region) -> *mut c_void {
    // SAFETY: a region that is not unmapped is a valid value, which only `cxloe_unmap` changes.
    unsafe { given(region) }.map_or(std::ptr::null_mut(), |region| region.address().cast())
}

/// Bytes; 0 for a null region.
///
/// # Safety
/// `region` is null, or was returned by `cxloe_map` or `cxloe_map_inline` and not unmapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_size(region: *const Region) -> usize {
    // SAFETY: a region that is not unmapped is a valid value, which only `cxloe_unmap` changes.
    unsafe { given(region) }.map_or(0, Region::len)
}

/// Writes back what is dirty.
///
/// # Safety
/// `region` is null, or was returned by `cxloe_map` or `cxloe_map_inline` and not unmapped; `error` is null, or points to
/// a message that nobody else uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_flush(region: *mut Region, error: *mut Message) -> c_int {
    // SAFETY: the caller ensures what `with` asks for.
    unsafe { with(region, error, Region::flush) }
}

/// Changes how many bytes may be resident.
///
/// # Safety
/// That of [`cxloe_flush`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_set_local(region: *mut Region, local: u64, error: *mut Message) -> c_int {
    // SAFETY: the caller ensures what `with` asks for.
    unsafe { with(region, error, |region| region.set_local(local)) }
}

/// Gives up the content of some bytes.
///
/// # Safety
/// That of [`cxloe_flush`]; and nobody holds references to these bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_discard(
    region: *mut Region,
    offset: usize,
    bytes: usize,
    error: *mut Message,
) -> c_int {
    // SAFETY: the caller ensures what `with` asks for.
    unsafe { with(region, error, |region| region.discard(offset, bytes)) }
}

/// Says what will be done with some bytes.
///
/// # Safety
/// That of [`cxloe_flush`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_hint(
    region: *mut Region,
    offset: usize,
    bytes: usize,
    hint: c_int,
    error: *mut Message,
) -> c_int {
    // SAFETY: the caller ensures what `with` asks for.
    unsafe { with(region, error, |region| region.hint(offset, bytes, hint)) }
}

/// Tells what was counted.
///
/// # Safety
/// That of [`cxloe_flush`]; and `counters` is null, or points to room for the structure, which nobody else uses during the
/// call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_count(
    region: *mut Region,
    counters: *mut Counters,
    error: *mut Message,
) -> c_int {
    let count = |region: &Region| {
        if counters.is_null() {
            return Err("the counters are NULL".to_owned());
        }
        let counted = region.counters()?;
        // SAFETY: it is not null, and the caller ensures the rest.
        unsafe { counters.write(counted) };
        Ok(())
    };
    // SAFETY: the caller ensures what `with` asks for.
    unsafe { with(region, error, count) }
}

/// Ends a mapping.
///
/// # Safety
/// That of [`cxloe_flush`]; and nobody uses the region or its memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxloe_unmap(region: *mut Region, error: *mut Message) -> c_int {
    if region.is_null() {
        return 0;
    }
    // SAFETY: it was made by `hand_over` from a box, and the caller ensures that nobody uses it any more.
    let region = unsafe { Box::from_raw(region) };
    // SAFETY: the caller ensures what `say` asks for.
    unsafe { done(region.unmap(), error) }
}
