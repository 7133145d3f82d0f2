//! Child processes of one parent, all at once: each writes a part of the parent's memory and reads all of it.

#![expect(unsafe_code, reason = "a child of fork may do little")]

use std::io;
use std::time::Instant;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use super::own::{PAGE, Worked};

const WORDS: usize = PAGE / size_of::<u64>();
/// Each child writes one page out of this many.
const PART: usize = 10;

/// Content of the written word of a page after the parent's write, or after that of `child`.
fn content(page: usize, child: Option<usize>) -> u64 {
    (page * 7 + 1) as u64 + child.map_or(0, |child| (child as u64 + 1) << 32)
}

/// Index of the word of a page that is written; it is in a different line in each page.
fn word(page: usize) -> usize {
    page * WORDS + page * 8 % WORDS
}

/// True if `child` writes this page.
fn writes(child: usize, page: usize) -> bool {
    page % PART == child % PART
}

/// Work of a child: writes its part, and counts the pages with the expected content.
fn work(child: usize, memory: &mut [u64]) -> usize {
    let pages = memory.len() / WORDS;
    for page in (0..pages).filter(|page| writes(child, *page)) {
        memory[word(page)] = content(page, Some(child));
    }
    let expected = |page| content(page, writes(child, page).then_some(child));
    (0..pages).filter(|page| memory[word(*page)] == expected(*page)).count()
}

/// Writes `bytes` of memory, forks `count` children that work on it at the same time, and checks that the parent's
/// memory is unchanged afterwards.
///
/// # Errors
/// A child could not be started, or a page had unexpected content.
pub fn children(bytes: usize, count: usize) -> io::Result<Worked> {
    let pages = bytes / PAGE;
    let mut memory = vec![0_u64; pages * WORDS];
    let start = Instant::now();
    (0..pages).for_each(|page| memory[word(page)] = content(page, None));
    let mut started = Vec::with_capacity(count);
    for child in 0..count {
        // SAFETY: this process has one thread; the child only works on memory, does not allocate, and exits.
        match unsafe { fork() }? {
            ForkResult::Child => {
                let failed = work(child, &mut memory) != pages;
                // SAFETY: `_exit` runs none of the parent's exit handlers in the child.
                unsafe { libc::_exit(i32::from(failed)) }
            }
            ForkResult::Parent { child } => started.push(child),
        }
    }
    for child in started {
        let status = waitpid(child, None)?;
        if !matches!(status, WaitStatus::Exited(_, 0)) {
            return Err(io::Error::other(format!(
                "a child found something else than was written: {status:?}"
            )));
        }
    }
    let right = (0..pages).filter(|page| memory[word(*page)] == content(*page, None)).count();
    let (operations, time) = ((pages * (count + 2)) as u64, start.elapsed());
    Ok(Worked { operations, time, answer: right as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_changes_its_part_and_finds_what_the_others_left() {
        let mut memory = vec![0; 100 * WORDS];
        (0..100).for_each(|page| memory[word(page)] = content(page, None));
        assert_eq!(work(3, &mut memory), 100);
        let changed = (0..100).filter(|page| memory[word(*page)] != content(*page, None));
        assert_eq!(changed.collect::<Vec<_>>(), [3, 13, 23, 33, 43, 53, 63, 73, 83, 93]);
        assert_eq!(work(14, &mut memory), 90, "another one's pages are not what the parent wrote");
    }
}
