//! Robust locks that a thread holds when it ends. The kernel releases them (`set_robust_list(2)`), but does
//! not wait for a page on behalf of a thread that is ending: a lock in an evicted page would never be
//! released. So each thread releases its locks itself, just before its end.

#![expect(unsafe_code, reason = "the kernel's list of robust locks consists of raw pointers")]

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicUsize};

/// Maximum number of locks that are released, the same as the kernel's (`ROBUST_LIST_LIMIT` of
/// `linux/futex.h`): a list may be a circle.
const LOCKS_MAX: usize = 2048;
/// Bit in an entry for a lock with priority inheritance.
const PRIORITY: usize = 1;
/// Number of the last round of destructors of thread-specific data (`PTHREAD_DESTRUCTOR_ITERATIONS` of
/// glibc).
const LAST_ROUND: usize = 4;

/// Key of thread-specific data whose destructor releases the locks, plus 1; 0: there is none.
static KEY: AtomicUsize = AtomicUsize::new(0);

/// `struct robust_list_head` of `linux/futex.h`.
#[repr(C)]
struct Head {
    next: usize,
    /// Distance in bytes of a lock's word from the lock's list entry.
    offset: isize,
    /// Entry of a lock that is being taken or released.
    pending: usize,
}

/// Creates the key whose destructor releases the locks of threads that end.
pub fn watch() {
    let mut key = 0;
    // SAFETY: the destructor has the type required, and stays loaded.
    if KEY.load(Relaxed) == 0 && unsafe { libc::pthread_key_create(&raw mut key, Some(at_end)) } == 0 {
        KEY.store(key as usize + 1, Release);
    }
}

/// Makes the calling thread release its robust locks when it ends.
pub fn watch_thread() {
    set_round(1);
}

fn set_round(round: usize) {
    if let Some(key) = KEY.load(Acquire).checked_sub(1) {
        // SAFETY: the key was created, and the value is no address.
        unsafe { libc::pthread_setspecific(key as libc::pthread_key_t, round as *const c_void) };
    }
}

/// Destructor of thread-specific data. It waits for the last round, because destructors of the program, which
/// run in the rounds before, may release locks.
extern "C" fn at_end(round: *mut c_void) {
    match round as usize {
        LAST_ROUND.. => release(),
        round => set_round(round + 1),
    }
}

/// Reads a word of this process's memory; `None` if there is no memory at `address`. The system call that reads the
/// word waits until an evicted page has been fetched.
fn word(address: usize) -> Option<usize> {
    let mut word = 0_usize;
    let mut here = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: size_of::<usize>() };
    let there = libc::iovec { iov_base: address as *mut c_void, iov_len: size_of::<usize>() };
    // SAFETY: the kernel writes a live word, and checks the other address.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw mut here, 1, &raw const there, 1, 0) };
    (read == size_of::<usize>() as isize).then_some(word)
}

/// Releases the locks that this thread holds, as the kernel does (`exit_robust_list` of `kernel/futex/core.c`).
fn release() {
    let (mut head, mut bytes) = (null_mut::<Head>(), 0_usize);
    // SAFETY: the kernel writes two live words.
    let found = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut bytes) };
    if found != 0 || head.is_null() || bytes != size_of::<Head>() {
        return;
    }
    // SAFETY: the head is the C library's own, in the descriptor of this thread.
    let (mut entry, offset, pending) = unsafe { ((*head).next, (*head).offset, (*head).pending) };
    // SAFETY: the call has no arguments and cannot fail.
    let own = unsafe { libc::gettid() } as u32;
    for _ in 0..LOCKS_MAX {
        let at = entry & !PRIORITY;
        if at == head as usize || at == 0 {
            break;
        }
        let Some(next) = word(at) else { return };
        if entry != pending && word(at.wrapping_add_signed(offset)).is_some() {
            release_one(at.wrapping_add_signed(offset), own, entry & PRIORITY != 0);
        }
        entry = next;
    }
}

/// Marks the lock at `address` as one whose owner has died, and wakes a thread that waits for it. The kernel
/// then finds that this thread does not own the lock, and leaves it unchanged.
fn release_one(address: usize, own: u32, priority: bool) {
    if !address.is_multiple_of(align_of::<AtomicU32>()) {
        return;
    }
    // SAFETY: the word is readable and, as it is a lock, written with atomic instructions alone.
    let lock = unsafe { AtomicU32::from_ptr(address as *mut u32) };
    let mut seen = lock.load(SeqCst);
    // The kernel itself wakes threads that wait for a lock with priority inheritance.
    while seen & libc::FUTEX_TID_MASK == own && !(priority && seen & libc::FUTEX_WAITERS != 0) {
        let died = seen & libc::FUTEX_WAITERS | libc::FUTEX_OWNER_DIED;
        match lock.compare_exchange(seen, died, SeqCst, SeqCst) {
            Ok(_) => {
                if seen & libc::FUTEX_WAITERS != 0 {
                    // SAFETY: the kernel only uses the address. The futex is not a private one, because processes may
                    // share the lock.
                    unsafe { libc::syscall(libc::SYS_futex, address, libc::FUTEX_WAKE, 1) };
                }
                return;
            }
            Err(now) => seen = now,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    static HELD: AtomicBool = AtomicBool::new(false);

    #[test]
    fn locks_of_a_thread_that_ends_are_marked_and_others_kept() {
        // `release` is called here before the kernel does the same, and must have the same effect.
        watch();
        let mutex = Box::leak(Box::new(MaybeUninit::<libc::pthread_mutex_t>::uninit()));
        let at = mutex.as_mut_ptr() as usize;
        // SAFETY: the attributes and the mutex are initialized before they are used.
        unsafe {
            let mut kind = MaybeUninit::uninit();
            libc::pthread_mutexattr_init(kind.as_mut_ptr());
            libc::pthread_mutexattr_setrobust(kind.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(at as *mut _, kind.as_ptr());
        }
        let holder = thread::spawn(move || {
            watch_thread();
            // SAFETY: the mutex is initialized and never freed.
            assert_eq!(unsafe { libc::pthread_mutex_lock(at as *mut _) }, 0);
            release();
            // SAFETY: the first word of a mutex is the lock's.
            let word = unsafe { (*(at as *const AtomicU32)).load(SeqCst) };
            HELD.store(word & libc::FUTEX_OWNER_DIED != 0, SeqCst);
        });
        holder.join().unwrap();
        assert!(HELD.load(SeqCst), "the lock is marked");
        // SAFETY: the mutex is initialized and never freed.
        assert_eq!(unsafe { libc::pthread_mutex_lock(at as *mut _) }, libc::EOWNERDEAD);
        let word = AtomicU32::new(77);
        release_one((&raw const word) as usize, 78, false);
        assert_eq!(word.load(SeqCst), 77, "another's");
    }
}
