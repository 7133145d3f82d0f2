//! Mappings of the region in this process: each mapping is a member of the region's space, with a userfaultfd and a
//! helper thread of its own.

#![expect(unsafe_code, reason = "_exit and pthread_sigmask are functions of the C library")]

use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;

use cxloe_member::bounded_write::{STDERR, write_bounded};
use cxloe_member::helper::{HelperEnd, HelperHost, Member};
use cxloe_member::join::{JoinError, JoinKind, MemberMemory, join};
use cxloe_member::line::HelperLine;
use cxloe_member::uffd;
use cxloe_member::wire::{PAGE_BYTES, Pages, RANGE};

use crate::reentry::bypass;
use crate::settings::{Settings, settings};
use crate::spans::{Span, whole_pages};

/// Exit code of a process whose memory is out of reach: `EX_TEMPFAIL` of `sysexits.h`.
const OUT_OF_REACH: i32 = 75;

/// Prints a line on standard error; neither ends nor blocks the monitor if that fails.
macro_rules! say {
    ($($argument:tt)*) => { write_bounded(STDERR, &format!("{}\n", format_args!($($argument)*))) };
}

/// A mapping, and the channel to its helper thread.
#[derive(Debug)]
struct Mapping {
    span: Span,
    line: Arc<HelperLine>,
}

static MAPPINGS: Mutex<Vec<Mapping>> = Mutex::new(Vec::new());

#[derive(Debug)]
enum MappingError {
    Uffd(std::io::Error),
    Join(Box<JoinError>),
    System(std::io::Error),
}

impl std::fmt::Display for MappingError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MappingError::Uffd(error) => write!(
                f,
                "page faults cannot be handled: {error}; let this user open /dev/userfaultfd, or run the agent as root"
            ),
            MappingError::Join(error) => error.fmt(f),
            MappingError::System(error) => write!(f, "no thread for it: {error}"),
        }
    }
}

fn mappings() -> MutexGuard<'static, Vec<Mapping>> {
    // Each change of the list is a single call, so a panic elsewhere leaves it consistent.
    MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether `fd` refers to the region's memory, which cannot be mapped privately; prints the refusal in that case.
pub fn refuses_private(fd: c_int) -> bool {
    let refuses = settings().is_some_and(|settings| settings.is_memory(fd));
    if refuses {
        say!(
            "cxloe: the region's memory is not mapped: the monitor asks for a private mapping, whose pages would all stay in \
             this machine; have it map the file shared, QEMU by share=on in -object memory-backend-file"
        );
    }
    refuses
}

/// Makes a mapping of the region's memory a member of the space. Returns `false`, and prints the reason, if that fails.
pub fn add(settings: &'static Settings, span: Span) -> bool {
    match start(settings, span) {
        Ok(line) => {
            mappings().push(Mapping { span, line });
            true
        }
        Err(error) => {
            let Span { address, bytes, .. } = span;
            say!("cxloe: {bytes} bytes at {address:#x} cannot be remote memory: {error}");
            false
        }
    }
}

fn start(settings: &'static Settings, span: Span) -> Result<Arc<HelperLine>, MappingError> {
    let uffd = uffd::create(settings.device.as_ref().map(AsFd::as_fd)).map_err(MappingError::Uffd)?;
    let Span { address, bytes, offset } = span;
    let place = MemberMemory { agent: settings.agent, space: settings.space, address, bytes, offset };
    let mut joined = join(&place, JoinKind::New { uffd: uffd.as_fd(), files: None })
        .map_err(|error| MappingError::Join(Box::new(error)))?;
    let shared_state =
        joined.shared_state.take().ok_or_else(|| MappingError::Join(Box::new(JoinError::Protocol)))?;
    let memory = settings.memory.try_clone().map_err(MappingError::System)?;
    let line = Arc::new(HelperLine::new());
    let ready = Arc::new(Barrier::new(2));
    let (of_thread, there) = (Arc::clone(&line), Arc::clone(&ready));
    let body = move || {
        bypass();
        let memory: Option<OwnedFd> = Some(memory);
        let mut member = Member::new(place, joined, uffd, shared_state, memory, &of_thread, settings.wait);
        there.wait();
        if let HelperEnd::Abandoned(error) = member.run(&mut Watcher) {
            give_up(&error);
        }
    };
    // Signals are blocked while the helper thread starts, so that the monitor's signals do not reach it.
    let before = SignalMask::block_all();
    let thread = thread::Builder::new().name("cxloe-member".into()).spawn(body);
    drop(before);
    thread.map_err(MappingError::System)?;
    // When both threads have reached the barrier, the helper thread is ready for the agent's orders.
    ready.wait();
    Ok(line)
}

/// Announces that the monitor is about to discard these bytes of the region; returns when the agent has acknowledged
/// that.
pub fn discard(bytes: &Range<u64>) {
    let Some(pages) = whole_pages(bytes) else { return };
    // The lock is released before the discard, which may wait for a new agent after the agent has ended.
    let line = mappings().first().map(|mapping| Arc::clone(&mapping.line));
    if let Some(line) = line {
        // An error is ignored: the discard fails only without a helper thread, and then the process is about to end.
        let _ = line.discard(pages);
    }
}

/// The parts of the region that are mapped at `addresses`.
pub fn parts(addresses: &Range<u64>) -> Vec<Range<u64>> {
    mappings().iter().filter_map(|mapping| mapping.span.part(addresses)).collect()
}

/// Ends the membership of mappings that lie wholly inside `addresses`, which are about to be unmapped. Returns the
/// number of these mappings, once the agent installs no page in them any more.
pub fn leave(addresses: &Range<u64>) -> usize {
    let mut left = Vec::new();
    mappings().retain(|mapping| {
        let goes = mapping.span.is_within(addresses);
        if goes {
            left.push(Arc::clone(&mapping.line));
        }
        !goes
    });
    // The lock is released before the waits, which depend on the agent.
    left.iter().for_each(|line| line.leave());
    left.iter().for_each(|line| line.wait_over());
    left.len()
}

/// The span of a mapping of whole pages; `None` for any other.
pub fn span(address: u64, length: u64, offset: u64) -> Option<Span> {
    let bytes = length.checked_next_multiple_of(PAGE_BYTES)?;
    (bytes > 0 && offset.is_multiple_of(PAGE_BYTES)).then_some(Span { address, bytes, offset })
}

/// Callbacks of the helper thread. They print changes of the agent's state on standard error, because the monitor's
/// logs lack them.
struct Watcher;

impl HelperHost for Watcher {
    fn lost(&mut self, Pages { first, count }: Pages) {
        say!("cxloe: {count} pages of guest memory from page {first} on are lost: their memory node is");
    }

    fn why(&mut self, words: &mut dyn Iterator<Item = [u8; RANGE]>) {
        let said: Vec<u8> = words.flatten().collect();
        say!("cxloe: {}", String::from_utf8_lossy(&said).trim_end_matches('\0'));
    }

    fn orphaned(&mut self) {
        say!("cxloe: the agent has ended; pages of guest memory that are not here wait for its successor");
    }

    fn adopted(&mut self) {
        say!("cxloe: another agent serves guest memory from here on");
    }
}

/// Ends the process, because its vCPUs would wait for ever for pages that are not resident.
#[cold]
pub fn give_up(why: impl std::fmt::Display) -> ! {
    end(OUT_OF_REACH, format_args!("its memory is no longer served: {why}"))
}

/// Ends the process with an exit code, and prints the reason.
#[cold]
pub fn end(code: i32, why: std::fmt::Arguments<'_>) -> ! {
    say!("cxloe: this virtual machine ends here: {why}");
    // SAFETY: ends the process without the monitor's exit handlers, which may touch the guest's memory.
    unsafe { libc::_exit(code) }
}

/// Blocks all signals for this thread, until dropped.
struct SignalMask(libc::sigset_t);

impl SignalMask {
    fn block_all() -> SignalMask {
        // SAFETY: the sets are live and filled here; the calls cannot fail with these arguments.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            SignalMask(before)
        }
    }
}

impl Drop for SignalMask {
    fn drop(&mut self) {
        // SAFETY: the set is live, and was in force before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use cxloe_member::helper::SilentHost;
    use cxloe_member::join::Joined;
    use cxloe_member::socket::{Socket, SocketPath};
    use cxloe_member::wire::JoinReply;

    use super::*;

    /// File of `/proc` with the number of this thread's sleeps.
    fn status() -> PathBuf {
        Path::new("/proc").join(fs::read_link("/proc/thread-self").unwrap()).join("status")
    }

    fn sleeps(status: &Path) -> Option<u64> {
        let status = fs::read_to_string(status).ok()?;
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        count.trim().parse().ok()
    }

    #[test]
    fn memory_is_unmapped_only_after_the_agent_has_let_it_go() {
        let (here, mut agent) = UnixStream::pair().unwrap();
        let nothing = || OwnedFd::from(File::open("/dev/null").unwrap());
        let span = Span { address: 4 * PAGE_BYTES, bytes: PAGE_BYTES, offset: 0 };
        let path = SocketPath::new(b"/nowhere/agent.sock").unwrap();
        let place =
            MemberMemory { agent: path, space: 1, address: span.address, bytes: span.bytes, offset: 0 };
        let joined = Joined {
            socket: Socket::from(OwnedFd::from(here)),
            welcome: JoinReply::default(),
            uffd: None,
            shared_state: None,
        };
        let line = Arc::new(HelperLine::new());
        let mut member = Member::new(place, joined, nothing(), nothing(), None, &line, Duration::ZERO);
        mappings().push(Mapping { span, line: Arc::clone(&line) });
        assert_eq!(leave(&(0..span.address + span.bytes - 1)), 0, "a part of it stays mapped");

        let (returned, (tell, told)) = (AtomicBool::new(false), mpsc::channel());
        thread::scope(|scope| {
            scope.spawn(|| member.run(&mut SilentHost));
            let leaver = scope.spawn(|| {
                let status = status();
                tell.send((sleeps(&status), status)).unwrap();
                let left = leave(&(span.address..span.address + span.bytes));
                returned.store(true, Ordering::SeqCst);
                left
            });
            // The member's message that it leaves has no page ranges, and so eight bytes.
            agent.read_exact(&mut [0; 8]).unwrap();
            let (before, status) = told.recv().unwrap();
            let until = Instant::now() + Duration::from_secs(10);
            while !returned.load(Ordering::SeqCst) && sleeps(&status) == before {
                assert!(Instant::now() < until, "the thread neither waits nor returns");
                thread::yield_now();
            }
            assert!(!returned.load(Ordering::SeqCst), "the agent may still install pages");
            drop(agent);
            assert_eq!(leaver.join().unwrap(), 1);
        });
        assert!(mappings().is_empty());
    }
}
