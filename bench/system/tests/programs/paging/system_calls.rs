//! System calls on mapped pages: the kernel accesses absent and present pages on behalf of a program.

#![expect(unsafe_code, reason = "system calls are given addresses in mapped memory")]

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use cxloe_client::mapping::Mapping;
use cxloe_cn_core::pager::PAGE_BYTES;

fn failed(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}

/// Calls read(2) into absent pages, write(2) from absent pages, and futex(2) on a word in an absent page.
pub fn run(mapping: &Mapping) -> Result<(), String> {
    let base = mapping.as_ptr();
    let pages = mapping.len() / PAGE_BYTES;
    let (here, there) = UnixStream::pair().map_err(|error| error.to_string())?;
    let pattern = |page: usize, round: u8| -> Vec<u8> {
        (0..PAGE_BYTES * 2).map(|at| (at as u8) ^ (page as u8).rotate_left(3) ^ round).collect()
    };
    for round in 1..4_u8 {
        for page in (0..pages - 1).step_by(2) {
            (&here).write_all(&pattern(page, round)).map_err(|error| error.to_string())?;
            let mut got = 0;
            while got < 2 * PAGE_BYTES {
                // SAFETY: the bytes are in the mapping, which has no other user.
                let read = unsafe {
                    let to = base.add(page * PAGE_BYTES + got);
                    libc::read(there.as_raw_fd(), to.cast(), 2 * PAGE_BYTES - got)
                };
                if read <= 0 {
                    return Err(failed("read(2) into mapped pages"));
                }
                got += read as usize;
            }
        }
        let mut file = tempfile::tempfile().map_err(|error| error.to_string())?;
        for page in (0..pages - 1).step_by(2) {
            // SAFETY: the bytes are in the mapping, which has no other user.
            let bytes = unsafe { std::slice::from_raw_parts(base.add(page * PAGE_BYTES), 2 * PAGE_BYTES) };
            file.write_all(bytes).map_err(|error| format!("write(2) from mapped pages: {error}"))?;
        }
        check(&file, pages, |page| pattern(page, round))?;
    }
    futex(mapping)?;
    println!("done 0");
    Ok(())
}

fn check(file: &File, pages: usize, expected: impl Fn(usize) -> Vec<u8>) -> Result<(), String> {
    let mut bytes = vec![0; 2 * PAGE_BYTES];
    for (index, page) in (0..pages - 1).step_by(2).enumerate() {
        std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, (index * 2 * PAGE_BYTES) as u64)
            .map_err(|error| error.to_string())?;
        if bytes != expected(page) {
            return Err(format!("page {page} was written otherwise than it was read"));
        }
    }
    Ok(())
}

/// One thread sleeps on a word; another changes the word and wakes the first. Words all over the region are used, so
/// that most of their pages are absent.
fn futex(mapping: &Mapping) -> Result<(), String> {
    let pages = mapping.len() / PAGE_BYTES;
    for page in (0..pages).step_by(pages.div_ceil(64)) {
        let word = mapping.as_ptr() as usize + page * PAGE_BYTES + 128;
        // SAFETY: the word is in the mapping, and all threads access it as an atomic word only.
        let word = unsafe { &*(word as *const AtomicU32) };
        word.store(0, Ordering::SeqCst);
        let woken = thread::scope(|scope| {
            let sleeper = scope.spawn(move || {
                let limit = libc::timespec { tv_sec: 20, tv_nsec: 0 };
                while word.load(Ordering::SeqCst) == 0 {
                    // SAFETY: the kernel reads a live word.
                    let slept =
                        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, 0, &limit) };
                    let errno = std::io::Error::last_os_error().raw_os_error();
                    if slept != 0 && errno == Some(libc::ETIMEDOUT) {
                        return false;
                    }
                }
                true
            });
            // Waits until the other thread probably sleeps in the kernel.
            thread::sleep(Duration::from_millis(1));
            word.store(1, Ordering::SeqCst);
            // SAFETY: the kernel uses the address of a live word.
            unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
            sleeper.join().expect("no panic")
        });
        if !woken {
            return Err(format!("a futex in page {page} did not wake"));
        }
    }
    Ok(())
}

/// Parts of the mapping are discarded, dropped from this process's page table, and finally unmapped.
pub fn parts(mapping: &Mapping) -> Result<(), String> {
    let base = mapping.as_ptr();
    let bytes = mapping.len();
    let byte = |page: usize| -> *mut u8 {
        // SAFETY: the byte is in the mapping.
        unsafe { base.add(page * PAGE_BYTES + 17) }
    };
    let pages = bytes / PAGE_BYTES;
    let value = |page: usize| (page % 251) as u8 + 1;
    for page in 0..pages {
        // SAFETY: the byte has no other user.
        unsafe { byte(page).write_volatile(value(page)) };
    }
    // If shared memory is dropped from a page table, it keeps its content.
    for advice in [libc::MADV_DONTNEED, libc::MADV_DONTNEED_LOCKED] {
        // SAFETY: the range is in the mapping.
        let (known, done) =
            unsafe { (libc::madvise(base.cast(), 0, advice), libc::madvise(base.cast(), bytes / 2, advice)) };
        // A kernel without this advice refuses it even for an empty range; that is no failure.
        if known == 0 && done != 0 {
            return Err(failed("madvise"));
        }
    }
    let gone = pages / 4..pages / 2;
    mapping
        .discard(gone.start * PAGE_BYTES..gone.end * PAGE_BYTES)
        .map_err(|error| format!("cannot discard: {error}"))?;
    for page in 0..pages {
        let expected = if gone.contains(&page) { 0 } else { value(page) };
        // SAFETY: the byte has no other user.
        let found = unsafe { byte(page).read_volatile() };
        if found != expected {
            return Err(format!("page {page} reads as {found}, not {expected}"));
        }
    }
    // A part is unmapped and other memory mapped there; the rest of the region is served as before.
    let (first, count) = (pages - 8, 4);
    // SAFETY: these pages are used afterwards only as the new mapping.
    let other = unsafe {
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let (read, write) = (libc::PROT_READ, libc::PROT_WRITE);
        libc::munmap(base.add((first + 2) * PAGE_BYTES).cast(), 2 * PAGE_BYTES);
        libc::mmap(base.add(first * PAGE_BYTES).cast(), 2 * PAGE_BYTES, read | write, flags, -1, 0)
    };
    if other == libc::MAP_FAILED {
        return Err(failed("mmap over a part"));
    }
    for _ in 0..2 {
        for page in (0..pages).filter(|page| !(first..first + count).contains(page)) {
            let expected = if gone.contains(&page) { 0 } else { value(page) };
            // SAFETY: the byte has no other user.
            let found = unsafe { byte(page).read_volatile() };
            if found != expected {
                return Err(format!(
                    "page {page} reads as {found}, not {expected}, after a part was unmapped"
                ));
            }
        }
    }
    println!("done 0");
    Ok(())
}
