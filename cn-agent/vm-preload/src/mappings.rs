//! What this process has mapped of the region: each mapping is a member of the region's space, with a userfaultfd and a
//! helper thread of its own.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;

use cxloe_member::helper::{Ended, Host, Member};
use cxloe_member::join::{As, JoinError, Place, join};
use cxloe_member::line::Line;
use cxloe_member::told::{STDERR, tell};
use cxloe_member::uffd;
use cxloe_member::wire::{PAGE_BYTES, Pages, RANGE};

use crate::settings::Settings;
use crate::spans::{Span, whole_pages};

/// The exit code of a process whose memory has gone out of reach: that of a temporary failure in `sysexits.h`.
const OUT_OF_REACH: i32 = 75;

/// A line on standard error, which neither ends nor blocks the monitor.
macro_rules! say {
    ($($argument:tt)*) => { tell(STDERR, &format!("{}\n", format_args!($($argument)*))) };
}

/// A mapping, and how to reach its helper thread.
#[derive(Debug)]
struct Mapping {
    span: Span,
    line: Arc<Line>,
}

static MAPPINGS: Mutex<Vec<Mapping>> = Mutex::new(Vec::new());

/// Why a mapping is not remote memory.
#[derive(Debug)]
enum Failed {
    Uffd(std::io::Error),
    Join(Box<JoinError>),
    System(std::io::Error),
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failed::Uffd(error) => write!(
                f,
                "page faults cannot be handled: {error}; let this user open /dev/userfaultfd, or run the agent as root"
            ),
            Failed::Join(error) => error.fmt(f),
            Failed::System(error) => write!(f, "no thread for it: {error}"),
        }
    }
}

fn mappings() -> MutexGuard<'static, Vec<Mapping>> {
    // Each change of it is one call, so that a panic elsewhere leaves it whole.
    MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a mapping of the region's memory a member; `false` when that failed, and the reason has been told.
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

fn start(settings: &'static Settings, span: Span) -> Result<Arc<Line>, Failed> {
    let uffd = uffd::create(settings.device.as_ref().map(AsFd::as_fd)).map_err(Failed::Uffd)?;
    let Span { address, bytes, offset } = span;
    let place = Place { agent: settings.agent, space: settings.space, address, bytes, offset };
    let mut joined = join(&place, As::New(uffd.as_fd())).map_err(|error| Failed::Join(Box::new(error)))?;
    let shared_state =
        joined.shared_state.take().ok_or_else(|| Failed::Join(Box::new(JoinError::Protocol)))?;
    let memory = settings.memory.try_clone().map_err(Failed::System)?;
    let line = Arc::new(Line::new());
    let ready = Arc::new(Barrier::new(2));
    let (of_thread, there) = (Arc::clone(&line), Arc::clone(&ready));
    let body = move || {
        let memory: Option<OwnedFd> = Some(memory);
        let mut member = Member::new(place, joined, uffd, shared_state, memory, &of_thread, settings.wait);
        there.wait();
        if let Ended::Abandoned(error) = member.run(&mut Watcher) {
            give_up(&error);
        }
    };
    // The monitor's signals are for the monitor's threads.
    let before = SignalMask::block_all();
    let thread = thread::Builder::new().name("cxloe-member".into()).spawn(body);
    drop(before);
    thread.map_err(Failed::System)?;
    // From here on the helper is heard and hears.
    ready.wait();
    Ok(line)
}

/// The monitor is about to give up these bytes of the region: the agent has to know first.
pub fn discard(bytes: &Range<u64>) {
    let Some(pages) = whole_pages(bytes) else { return };
    // Not under the lock: it may wait for an agent's successor.
    let line = mappings().first().map(|mapping| Arc::clone(&mapping.line));
    if let Some(line) = line {
        // It has no helper any more only when the process is about to end.
        let _ = line.discard(pages);
    }
}

/// The parts of the region that are mapped at `addresses`.
pub fn parts(addresses: &Range<u64>) -> Vec<Range<u64>> {
    mappings().iter().filter_map(|mapping| mapping.span.part(addresses)).collect()
}

/// What is mapped at `addresses` will not be any more: members that go wholly leave. How many did.
pub fn leave(addresses: &Range<u64>) -> usize {
    let mut mappings = mappings();
    let before = mappings.len();
    mappings.retain(|mapping| {
        let goes = mapping.span.is_within(addresses);
        if goes {
            mapping.line.leave();
        }
        !goes
    });
    before - mappings.len()
}

/// The span of a mapping, if it is one of whole pages.
pub fn span(address: u64, length: u64, offset: u64) -> Option<Span> {
    let bytes = length.checked_next_multiple_of(PAGE_BYTES)?;
    (bytes > 0 && offset.is_multiple_of(PAGE_BYTES)).then_some(Span { address, bytes, offset })
}

/// Tells on standard error what happens to the agent: the monitor's own logs do not know it.
struct Watcher;

impl Host for Watcher {
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

/// What is not here cannot come any more: vCPUs would wait for it for ever.
#[cold]
pub fn give_up(why: impl std::fmt::Display) -> ! {
    say!("cxloe: this virtual machine ends here: nobody serves its memory any more: {why}");
    // SAFETY: ends the process, without what the monitor would do at its end, which may touch the guest's memory.
    unsafe { libc::_exit(OUT_OF_REACH) }
}

/// All signals blocked for this thread, as long as this is there.
struct SignalMask(libc::sigset_t);

impl SignalMask {
    fn block_all() -> SignalMask {
        // SAFETY: live sets to fill; the calls cannot fail with these arguments.
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
        // SAFETY: a live set, which was in force before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}
