//! The functions that would have been called without this library.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{gid_t, uid_t};

/// One of them, found once.
struct Function(AtomicPtr<c_void>);

impl Function {
    const fn none() -> Function {
        Function(AtomicPtr::new(std::ptr::null_mut()))
    }

    fn find(&self, name: &CStr) {
        // SAFETY: a name that ends. What it allocates meanwhile comes from the boot arena.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
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

/// Finds them all.
pub fn find() {
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
