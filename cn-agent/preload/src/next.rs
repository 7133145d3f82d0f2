//! The functions that would have been called without this library.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{gid_t, uid_t};

/// One of them, found once.
struct Function(AtomicPtr<c_void>);

impl Function {
    const fn none() -> Function {
        Function(AtomicPtr::new(std::ptr::null_mut()))
    }

    fn find(&self, name: &CStr) {
        // SAFETY: a constant of `dlsym`. What it allocates meanwhile comes from the boot arena.
        let found = unsafe { looked_up(libc::RTLD_NEXT, name) };
        self.0.store(found, Ordering::Release);
    }

    /// # Safety
    /// `F` is its type.
    unsafe fn get<F>(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let found = self.0.load(Ordering::Acquire);
        // SAFETY: the address of a function of this type, by the caller.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
    }
}

static MALLOC: Function = Function::none();
static CALLOC: Function = Function::none();
static REALLOC: Function = Function::none();
static FREE: Function = Function::none();
static MEMALIGN: Function = Function::none();
static USABLE_SIZE: Function = Function::none();

static SETUID: Function = Function::none();
static SETGID: Function = Function::none();
static SETEUID: Function = Function::none();
static SETEGID: Function = Function::none();
static SETREUID: Function = Function::none();
static SETREGID: Function = Function::none();
static SETRESUID: Function = Function::none();
static SETRESGID: Function = Function::none();
static SETGROUPS: Function = Function::none();

static DLOPEN: Function = Function::none();
static DLMOPEN: Function = Function::none();
static DLSYM: Function = Function::none();
/// Versions that `dlsym` has had in the C library, the newest first. The function without one is this library's own.
const DLSYM_VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.17", c"GLIBC_2.2.5"];

/// Finds them all.
pub fn find() {
    // SAFETY: names that end.
    let version =
        |version: &&CStr| unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
    let found = DLSYM_VERSIONS.iter().map(version).find(|found| !found.is_null());
    DLSYM.0.store(found.unwrap_or_default(), Ordering::Release);
    DLOPEN.find(c"dlopen");
    DLMOPEN.find(c"dlmopen");
    SETUID.find(c"setuid");
    SETGID.find(c"setgid");
    SETEUID.find(c"seteuid");
    SETEGID.find(c"setegid");
    SETREUID.find(c"setreuid");
    SETREGID.find(c"setregid");
    SETRESUID.find(c"setresuid");
    SETRESGID.find(c"setresgid");
    SETGROUPS.find(c"setgroups");
    MALLOC.find(c"malloc");
    CALLOC.find(c"calloc");
    REALLOC.find(c"realloc");
    FREE.find(c"free");
    MEMALIGN.find(c"memalign");
    USABLE_SIZE.find(c"malloc_usable_size");
}

type Sized = unsafe extern "C" fn(usize) -> *mut u8;
type Counted = unsafe extern "C" fn(usize, usize) -> *mut u8;
type Resized = unsafe extern "C" fn(*mut u8, usize) -> *mut u8;
type Freed = unsafe extern "C" fn(*mut u8);
type Measured = unsafe extern "C" fn(*mut u8) -> usize;
type LookedUp = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Finds them, if whoever asks came before the start.
pub fn find_if_needed() {
    if SETGROUPS.0.load(Ordering::Acquire).is_null() {
        find();
    }
}

macro_rules! rights {
    ($($(#[$about:meta])* $name:ident: $function:ident($($argument:ident: $type:ty),*)),* $(,)?) => {$(
        $(#[$about])*
        pub fn $name($($argument: $type),*) -> c_int {
            // SAFETY: this is the function's type; its arguments are plain values, and for `setgroups` a list that the kernel checks.
            unsafe {
                $function
                    .get::<unsafe extern "C" fn($($type),*) -> c_int>()
                    .map_or(-1, |function| function($($argument),*))
            }
        }
    )*};
}

rights! {
    /// `setuid`.
    setuid: SETUID(user: uid_t),
    /// `setgid`.
    setgid: SETGID(group: gid_t),
    /// `seteuid`.
    seteuid: SETEUID(user: uid_t),
    /// `setegid`.
    setegid: SETEGID(group: gid_t),
    /// `setreuid`.
    setreuid: SETREUID(user: uid_t, effective: uid_t),
    /// `setregid`.
    setregid: SETREGID(group: gid_t, effective: gid_t),
    /// `setresuid`.
    setresuid: SETRESUID(user: uid_t, effective: uid_t, saved: uid_t),
    /// `setresgid`.
    setresgid: SETRESGID(group: gid_t, effective: gid_t, saved: gid_t),
    /// `setgroups`.
    setgroups: SETGROUPS(count: usize, groups: *const gid_t),
}

/// Address of `dlopen`.
pub fn dlopen() -> *const c_void {
    DLOPEN.0.load(Ordering::Acquire)
}

/// Address of `dlsym`.
pub fn dlsym() -> *const c_void {
    DLSYM.0.load(Ordering::Acquire)
}

/// `dlsym`, called from this library.
///
/// # Safety
/// `handle` is one that `dlsym` takes.
pub unsafe fn looked_up(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: this is the function's type; the handle is the caller's, and the name ends.
    unsafe { DLSYM.get::<LookedUp>().map_or(std::ptr::null_mut(), |dlsym| dlsym(handle, name.as_ptr())) }
}

/// Address of `dlmopen`.
pub fn dlmopen() -> *const c_void {
    DLMOPEN.0.load(Ordering::Acquire)
}

/// `malloc`.
pub fn malloc(bytes: usize) -> *mut u8 {
    // SAFETY: its type; any size.
    unsafe { MALLOC.get::<Sized>().map_or(std::ptr::null_mut(), |malloc| malloc(bytes)) }
}

/// `calloc`.
pub fn calloc(count: usize, bytes: usize) -> *mut u8 {
    // SAFETY: its type; any size.
    unsafe { CALLOC.get::<Counted>().map_or(std::ptr::null_mut(), |calloc| calloc(count, bytes)) }
}

/// `memalign`.
pub fn memalign(align: usize, bytes: usize) -> *mut u8 {
    // SAFETY: its type; any size.
    unsafe { MEMALIGN.get::<Counted>().map_or(std::ptr::null_mut(), |memalign| memalign(align, bytes)) }
}

/// `realloc`.
///
/// # Safety
/// `block` is a live block of that allocator, and nobody uses it any more under its old address.
pub unsafe fn realloc(block: *mut u8, bytes: usize) -> *mut u8 {
    // SAFETY: this is the function's type, and the block is one of its allocator's, as the caller ensures.
    unsafe { REALLOC.get::<Resized>().map_or(std::ptr::null_mut(), |realloc| realloc(block, bytes)) }
}

/// `free`.
///
/// # Safety
/// `block` is a live block of that allocator, and nobody uses it any more.
pub unsafe fn free(block: *mut u8) {
    // SAFETY: this is the function's type, and the block is one of its allocator's, as the caller ensures.
    unsafe { FREE.get::<Freed>().into_iter().for_each(|free| free(block)) };
}

/// `malloc_usable_size`.
///
/// # Safety
/// `block` is a live block of that allocator.
pub unsafe fn usable(block: *mut u8) -> usize {
    // SAFETY: this is the function's type, and the block is one of its allocator's, as the caller ensures.
    unsafe { USABLE_SIZE.get::<Measured>().map_or(0, |usable| usable(block)) }
}
