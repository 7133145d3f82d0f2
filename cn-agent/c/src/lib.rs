//! Mapped regions for C programs: the functions of `include/cxloe.h`, over [`cxloe_client::mapping`] and
//! [`cxloe_port::inline`].
//!
//! Everything that crosses from C is checked here: null pointers, texts that are none, numbers out of range. A panic
//! does not cross: it ends the program.

// These end the process when nobody can be told.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod region;
mod types;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;

use region::Region;
use types::{Counters, Link, Message, Options};

/// A text from C.
fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, String> {
    if pointer.is_null() {
        return Err(format!("{what} is NULL"));
    }
    // SAFETY: the header asks for a text that ends with a zero and lives during the call.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| format!("{what} is not UTF-8"))
}

/// What is behind a pointer that may be NULL.
fn given<'a, T>(pointer: *const T) -> Option<&'a T> {
    // SAFETY: the header asks for NULL or a valid structure that lives during the call.
    unsafe { pointer.as_ref() }
}

/// Says why something failed, if somebody wants to know.
fn say(error: *mut Message, what: &str) {
    // SAFETY: as `given`, and nobody else uses it during the call.
    if let Some(error) = unsafe { error.as_mut() } {
        error.set(what);
    }
}

fn hand_over(region: Result<Region, String>, error: *mut Message) -> *mut Region {
    match region {
        Ok(region) => Box::into_raw(Box::new(region)),
        Err(why) => {
            say(error, &why);
            std::ptr::null_mut()
        }
    }
}

fn done(outcome: Result<(), String>, error: *mut Message) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(why) => {
            say(error, &why);
            -1
        }
    }
}

fn with(region: *const Region, error: *mut Message, f: impl FnOnce(&Region) -> Result<(), String>) -> c_int {
    let region = given(region).ok_or_else(|| "the region is NULL".to_owned());
    done(region.and_then(f), error)
}

#[unsafe(no_mangle)]
extern "C" fn cxloe_options_init(options: *mut Options) {
    // SAFETY: as `given`, and nobody else uses it during the call.
    if let Some(options) = unsafe { options.as_mut() } {
        *options = Options::default();
    }
}

#[unsafe(no_mangle)]
extern "C" fn cxloe_link_init(link: *mut Link) {
    // SAFETY: as `given`, and nobody else uses it during the call.
    if let Some(link) = unsafe { link.as_mut() } {
        *link = Link::default();
    }
}

#[unsafe(no_mangle)]
extern "C" fn cxloe_map(name: *const c_char, options: *const Options, error: *mut Message) -> *mut Region {
    let usual = Options::default();
    let options = given(options).unwrap_or(&usual);
    let mapped = text(name, "the region's name").and_then(|name| {
        let socket = match options.agent.is_null() {
            true => std::env::var_os("CXLOE_AGENT")
                .map_or_else(cxloe_client::places::default_socket, PathBuf::from),
            false => PathBuf::from(text(options.agent, "the agent's socket")?),
        };
        Region::by_agent(&socket, name, options)
    });
    hand_over(mapped, error)
}

#[unsafe(no_mangle)]
extern "C" fn cxloe_map_inline(
    name: *const c_char,
    link: *const Link,
    options: *const Options,
    error: *mut Message,
) -> *mut Region {
    let usual = Options::default();
    let options = given(options).unwrap_or(&usual);
    let mapped = text(name, "the region's name").and_then(|name| {
        let link = given(link).ok_or("the link is NULL")?;
        let interface = text(link.interface_name, "the interface's name")?;
        let manager = text(link.manager, "the manager's URL")?;
        let backend = if link.backend.is_null() { "auto" } else { text(link.backend, "the backend")? };
        Region::inline(interface, manager, backend, name, options)
    });
    hand_over(mapped, error)
}

#[unsafe(no_mangle)]
extern "C" fn cxloe_address(region: *const Region) -> *mut c_void {
    given(region).map_or(std::ptr::null_mut(), |region| region.address().cast())
}

#[unsafe(no_mangle)]
extern "C" fn cxloe_size(region: *const Region) -> usize {
    given(region).map_or(0, Region::len)
}

#[unsafe(no_mangle)]
extern "C" fn cxloe_flush(region: *mut Region, error: *mut Message) -> c_int {
    with(region, error, Region::flush)
}

#[unsafe(no_mangle)]
extern "C" fn cxloe_set_local(region: *mut Region, local: u64, error: *mut Message) -> c_int {
    with(region, error, |region| region.set_local(local))
}

#[unsafe(no_mangle)]
extern "C" fn cxloe_discard(region: *mut Region, offset: usize, bytes: usize, error: *mut Message) -> c_int {
    with(region, error, |region| region.discard(offset, bytes))
}

#[unsafe(no_mangle)]
extern "C" fn cxloe_count(region: *mut Region, counters: *mut Counters, error: *mut Message) -> c_int {
    with(region, error, |region| {
        // SAFETY: as `given`, and nobody else uses it during the call.
        let to = unsafe { counters.as_mut() }.ok_or("the counters are NULL")?;
        *to = region.counters()?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cxloe_unmap(region: *mut Region, error: *mut Message) -> c_int {
    if region.is_null() {
        return 0;
    }
    // SAFETY: the header asks for a region that was mapped and not unmapped, and that nobody uses any more.
    done(unsafe { Box::from_raw(region) }.unmap(), error)
}
