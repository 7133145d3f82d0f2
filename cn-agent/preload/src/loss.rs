//! What is said when data is lost: a program that touches a lost page gets SIGBUS, and its last line on standard error says
//! which region and memory node were to blame, and what to do.
//!
//! The agent says why before it has pages give SIGBUS, so the reason is here, or about to be heard by the listener, when
//! the signal comes. Programs with handlers of their own for SIGBUS keep these; then the listener says it at once.

use std::ffi::{c_int, c_void};
use std::fmt::Write;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use arrayvec::ArrayString;
use cxloe_member::helper::Host;
use cxloe_member::told::{STDERR, tell};
use cxloe_member::wire::{Pages, RANGE, RANGES_MAX};

use crate::last_words;

/// How often, and for how long each time, a reason that is on its way is looked for.
const LOOKS: u32 = 100;
const LOOK_PAUSE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// The agent's words, of which the newest count: two texts, so that one can be read while the other is written.
static WORDS: [[AtomicU64; RANGES_MAX]; 2] = [const { [const { AtomicU64::new(0) }; RANGES_MAX] }; 2];
/// How many texts have come; the last is in `WORDS[TEXTS % 2]`.
static TEXTS: AtomicU32 = AtomicU32::new(0);

/// Whether paged memory lies at an address.
static HOLDS: OnceLock<fn(usize) -> bool> = OnceLock::new();

/// A text of the agent's.
type Text = ArrayString<{ RANGES_MAX * RANGE }>;

/// What the listener hears of losses.
#[derive(Debug, Default)]
pub struct Losses {
    /// Texts said aloud here, because the program has a handler of its own.
    said: u32,
}

impl Host for Losses {
    fn why(&mut self, words: &mut dyn Iterator<Item = [u8; RANGE]>) {
        let texts = TEXTS.load(Relaxed).wrapping_add(1);
        for place in &WORDS[texts as usize % 2] {
            place.store(u64::from_le_bytes(words.next().unwrap_or_default()), Relaxed);
        }
        TEXTS.store(texts, Release);
    }

    fn lost(&mut self, _: Pages) {
        let texts = TEXTS.load(Relaxed);
        if self.said != texts && !is_ours() {
            self.said = texts;
            last_words::on_the_programs_own(|descriptor| {
                say(descriptor, "a signal handler of its own will hear", None)
            });
        }
    }
}

/// The newest reason.
fn reason() -> Option<Text> {
    let texts = TEXTS.load(Acquire);
    if texts == 0 {
        return None;
    }
    let mut bytes = [0; RANGES_MAX * RANGE];
    for (place, word) in bytes.chunks_exact_mut(RANGE).zip(&WORDS[texts as usize % 2]) {
        place.copy_from_slice(&word.load(Relaxed).to_le_bytes());
    }
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let whole = match std::str::from_utf8(&bytes[..end]) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    };
    Text::from(whole).ok()
}

fn say(descriptor: c_int, what: &str, address: Option<usize>) {
    let mut line = ArrayString::<1024>::new();
    // SAFETY: cannot fail.
    let pid = unsafe { libc::getpid() };
    let _ = write!(line, "cxloe: process {pid}: {what} of SIGBUS");
    if let Some(address) = address {
        let _ = write!(line, " at address {address:#x}");
    }
    let _ = match reason() {
        Some(why) => write!(line, ": {why}"),
        None => write!(line, ": remote memory is lost; the log of cn-agent says why"),
    };
    if line.try_push('\n').is_err() {
        line.pop();
        line.push('\n');
    }
    tell(descriptor, &line);
}

/// Has SIGBUS be explained, unless the program has been started with another wish for it.
///
/// `holds` says of an address whether paged memory lies there; it runs in the signal handler.
pub fn explain(holds: fn(usize) -> bool) {
    HOLDS.get_or_init(|| holds);
    // SAFETY: structures of this function; the handler does what handlers may.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, null_mut(), &mut now) != 0 || now.sa_sigaction != libc::SIG_DFL {
            return;
        }
        now.sa_sigaction = on_bus_error as *const () as usize;
        now.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut now.sa_mask);
        libc::sigaction(libc::SIGBUS, &now, null_mut());
    }
}

/// Whether SIGBUS is explained by the handler here.
fn is_ours() -> bool {
    // SAFETY: a structure of this function to fill.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, null_mut(), &mut now);
        now.sa_sigaction == on_bus_error as *const () as usize
    }
}

/// Says why, and has the signal do what it would have done: the access is tried again and ends the process.
extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel gives what the signal is about; the rest are plain values and structures of this function.
    unsafe {
        let sent = (*info).si_code <= 0;
        let address = if sent { 0 } else { (*info).si_addr() as usize };
        let ours = HOLDS.get().is_some_and(|holds| holds(address));
        if ours || (sent && TEXTS.load(Acquire) != 0) {
            let mut looks = 0;
            while TEXTS.load(Acquire) == 0 && looks < LOOKS {
                libc::nanosleep(&LOOK_PAUSE, null_mut());
                looks += 1;
            }
            say(STDERR, "it ends here", Some(address).filter(|_| ours));
        }
        let mut usual: libc::sigaction = std::mem::zeroed();
        usual.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &usual, null_mut());
        if sent {
            libc::raise(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use cxloe_member::wire::{Kind, Message};

    use super::*;

    #[test]
    fn the_newest_reason_counts() {
        let mut losses = Losses::default();
        assert!(reason().is_none());
        for text in ["a page of region one is lost", "and then one of two", "of three"] {
            losses.why(&mut Message::words(Kind::Why, text).said());
            assert_eq!(reason().unwrap().as_str(), text);
        }
    }
}
