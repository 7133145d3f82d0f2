//! The next definitions of the functions that this library interposes: those that would be called without it.

#![expect(unsafe_code, reason = "functions that the dynamic linker finds are called by address")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{gid_t, uid_t};

/// Address of the next definition of one function, looked up once.
struct Function(AtomicPtr<c_void>);

impl Function {
    const fn none() -> Function {
        Function(AtomicPtr::new(std::ptr::null_mut()))
    }

    fn find(&self, name: &CStr) {
        // SAFETY: a constant of `dlsym`. During the call, allocations come from the boot arena.
        let found = unsafe { looked_up(libc::RTLD_NEXT, name) };
        self.0.store(found, Ordering::Release);
    }

    /// # Safety
    /// `F` is the type of the function.
    unsafe fn get<F>(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let found = self.0.load(Ordering::Acquire);
        // SAFETY: the address is that of a function of this type, as the caller ensures.
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

static SIGACTION: Function = Function::none();
static SIGNAL: Function = Function::none();
static SIGPROCMASK: Function = Function::none();
static PTHREAD_SIGMASK: Function = Function::none();

static PTHREAD_CREATE: Function = Function::none();

static DLOPEN: Function = Function::none();
static DLMOPEN: Function = Function::none();
static DLSYM: Function = Function::none();
/// Versions of `dlsym` in the C library, the newest first. The unversioned symbol is this library's own function.
const DLSYM_VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.17", c"GLIBC_2.2.5"];

/// Looks up the next definitions of all interposed functions.
pub fn find() {
    // SAFETY: the names are NUL-terminated.
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
    SIGACTION.find(c"sigaction");
    SIGNAL.find(c"signal");
    SIGPROCMASK.find(c"sigprocmask");
    PTHREAD_SIGMASK.find(c"pthread_sigmask");
    PTHREAD_CREATE.find(c"pthread_create");
    MALLOC.find(c"malloc");
    CALLOC.find(c"calloc");
    REALLOC.find(c"realloc");
    FREE.find(c"free");
    MEMALIGN.find(c"memalign");
    USABLE_SIZE.find(c"malloc_usable_size");
}

type SizedFn = unsafe extern "C" fn(usize) -> *mut u8;
type CountedFn = unsafe extern "C" fn(usize, usize) -> *mut u8;
type ResizeFn = unsafe extern "C" fn(*mut u8, usize) -> *mut u8;
type FreeFn = unsafe extern "C" fn(*mut u8);
type UsableSizeFn = unsafe extern "C" fn(*mut u8) -> usize;
type DlsymFn = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Looks up the next definitions of all interposed functions, if that was not done yet.
pub fn find_if_needed() {
    if SETGROUPS.0.load(Ordering::Acquire).is_null() {
        find();
    }
}

macro_rules! rights {
    ($($(#[$about:meta])* $name:ident: $function:ident($($argument:ident: $type:ty),*)),* $(,)?) => {$(
        $(#[$about])*
        pub fn $name($($argument: $type),*) -> c_int {
            // SAFETY: this is the function's type; the arguments are plain values, and for `setgroups` a list that the
            // kernel checks.
            unsafe {
                $function
                    .get::<unsafe extern "C" fn($($type),*) -> c_int>()
                    .map_or(-1, |function| function($($argument),*))
            }
        }
    )*};
}

rights! {
    setuid: SETUID(user: uid_t),
    setgid: SETGID(group: gid_t),
    seteuid: SETEUID(user: uid_t),
    setegid: SETEGID(group: gid_t),
    setreuid: SETREUID(user: uid_t, effective: uid_t),
    setregid: SETREGID(group: gid_t, effective: gid_t),
    setresuid: SETRESUID(user: uid_t, effective: uid_t, saved: uid_t),
    setresgid: SETRESGID(group: gid_t, effective: gid_t, saved: gid_t),
    setgroups: SETGROUPS(count: usize, groups: *const gid_t),
}

/// # Safety
/// As for the C library's function.
pub unsafe fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    // SAFETY: this is the function's type; the caller ensures the rest.
    unsafe { SIGACTION.get::<Sigaction>().map_or(-1, |function| function(signal, new, old)) }
}

/// # Safety
/// As for the C library's function.
pub unsafe fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    type Signal = unsafe extern "C" fn(c_int, libc::sighandler_t) -> libc::sighandler_t;
    // SAFETY: this is the function's type; the caller ensures the rest.
    unsafe { SIGNAL.get::<Signal>().map_or(libc::SIG_ERR, |function| function(signal, handler)) }
}

type SignalMaskFn = unsafe extern "C" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;

/// # Safety
/// As for the C library's function.
pub unsafe fn sigprocmask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    // SAFETY: this is the function's type; the caller ensures the rest.
    unsafe { SIGPROCMASK.get::<SignalMaskFn>().map_or(-1, |function| function(how, set, old)) }
}

/// # Safety
/// As for the C library's function.
pub unsafe fn pthread_sigmask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    // SAFETY: this is the function's type; the caller ensures the rest.
    unsafe { PTHREAD_SIGMASK.get::<SignalMaskFn>().map_or(libc::ENOSYS, |function| function(how, set, old)) }
}

/// # Safety
/// As for the C library's function.
pub unsafe fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    function: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    type Create = unsafe extern "C" fn(
        *mut libc::pthread_t,
        *const libc::pthread_attr_t,
        extern "C" fn(*mut c_void) -> *mut c_void,
        *mut c_void,
    ) -> c_int;
    // SAFETY: this is the function's type; the caller ensures the rest.
    unsafe {
        PTHREAD_CREATE
            .get::<Create>()
            .map_or(libc::EAGAIN, |create| create(thread, attributes, function, argument))
    }
}

pub fn dlopen() -> *const c_void {
    DLOPEN.0.load(Ordering::Acquire)
}

pub fn dlsym() -> *const c_void {
    DLSYM.0.load(Ordering::Acquire)
}

/// Calls the C library's `dlsym`.
///
/// # Safety
/// `dlsym` accepts `handle`.
pub unsafe fn looked_up(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: this is the function's type; the caller ensures the handle, and the name is NUL-terminated.
    unsafe { DLSYM.get::<DlsymFn>().map_or(std::ptr::null_mut(), |dlsym| dlsym(handle, name.as_ptr())) }
}

pub fn dlmopen() -> *const c_void {
    DLMOPEN.0.load(Ordering::Acquire)
}

pub fn malloc(bytes: usize) -> *mut u8 {
    // SAFETY: this is the function's type; any size is valid.
    unsafe { MALLOC.get::<SizedFn>().map_or(std::ptr::null_mut(), |malloc| malloc(bytes)) }
}

pub fn calloc(count: usize, bytes: usize) -> *mut u8 {
    // SAFETY: this is the function's type; any size is valid.
    unsafe { CALLOC.get::<CountedFn>().map_or(std::ptr::null_mut(), |calloc| calloc(count, bytes)) }
}

pub fn memalign(align: usize, bytes: usize) -> *mut u8 {
    // SAFETY: this is the function's type; any size is valid.
    unsafe { MEMALIGN.get::<CountedFn>().map_or(std::ptr::null_mut(), |memalign| memalign(align, bytes)) }
}

/// # Safety
/// `block` is a live block of the next allocator, and is not used any more under its old address.
pub unsafe fn realloc(block: *mut u8, bytes: usize) -> *mut u8 {
    // SAFETY: this is the function's type, and the block is one of its allocator's, as the caller ensures.
    unsafe { REALLOC.get::<ResizeFn>().map_or(std::ptr::null_mut(), |realloc| realloc(block, bytes)) }
}

/// # Safety
/// `block` is a live block of the next allocator, and is not used any more.
pub unsafe fn free(block: *mut u8) {
    // SAFETY: this is the function's type, and the block is one of its allocator's, as the caller ensures.
    unsafe { FREE.get::<FreeFn>().into_iter().for_each(|free| free(block)) };
}

/// # Safety
/// `block` is a live block of the next allocator.
pub unsafe fn usable(block: *mut u8) -> usize {
    // SAFETY: this is the function's type, and the block is one of its allocator's, as the caller ensures.
    unsafe { USABLE_SIZE.get::<UsableSizeFn>().map_or(0, |usable| usable(block)) }
}
