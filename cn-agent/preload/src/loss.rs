//! The message for lost data: a program that touches a lost page gets SIGBUS, and the last line on its standard error
//! names the region, the memory node, and the remedy.
//!
//! The agent sends the reason before accesses to the lost pages raise SIGBUS. So when the signal comes, the
//! listener has the reason, or is about to receive it. A program that has a handler of its own for SIGBUS
//! keeps it; then the listener prints the reason at once.

#![expect(unsafe_code, reason = "a signal handler reads the kernel's siginfo")]

use std::ffi::{c_int, c_void};
use std::fmt::Write;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use arrayvec::ArrayString;
use cxloe_member::bounded_write::{STDERR, write_bounded};
use cxloe_member::helper::HelperHost;
use cxloe_member::wire::{Pages, RANGE, RANGES_MAX};

use crate::final_message;

/// Number of checks for a reason that has not arrived yet, and the pause between two checks.
const LOOKS: u32 = 100;
const LOOK_PAUSE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Texts from the agent: two, so that the newest one can be read while the next is written.
static WORDS: [[AtomicU64; RANGES_MAX]; 2] = [const { [const { AtomicU64::new(0) }; RANGES_MAX] }; 2];
/// Number of texts received; the newest is in `WORDS[TEXTS % 2]`.
static TEXTS: AtomicU32 = AtomicU32::new(0);

/// Function that returns whether paged memory lies at an address.
static HOLDS: OnceLock<fn(usize) -> bool> = OnceLock::new();

/// A text from the agent, as one string.
type Text = ArrayString<{ RANGES_MAX * RANGE }>;

/// Receiver of the agent's explanations why pages were lost.
#[derive(Debug, Default)]
pub struct Losses {
    /// Number of texts that the listener has printed, because the program has a handler of its own.
    said: u32,
}

impl HelperHost for Losses {
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
            final_message::with_program_stderr(|descriptor| {
                print_reason(descriptor, "its own signal handler runs because", None)
            });
        }
    }
}

/// The newest reason, if any.
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

fn print_reason(descriptor: c_int, what: &str, address: Option<usize>) {
    let mut line = ArrayString::<1024>::new();
    // SAFETY: the call has no arguments and cannot fail.
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
    write_bounded(descriptor, &line);
}

/// Installs the handler of SIGBUS, unless the program has changed the default action of the signal.
///
/// `holds` returns whether paged memory lies at an address; it is called in the signal handler.
pub fn explain(holds: fn(usize) -> bool) {
    HOLDS.get_or_init(|| holds);
    // SAFETY: the pointers are to values of this function; the handler uses async-signal-safe calls only.
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

/// Whether the handler of this module is installed for SIGBUS.
fn is_ours() -> bool {
    // SAFETY: the kernel fills a value of this function.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, null_mut(), &mut now);
        now.sa_sigaction == on_bus_error as *const () as usize
    }
}

/// Prints the reason, and restores the default action of the signal: the access is then repeated, and ends the process.
extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a siginfo; the rest are plain values and values of this function.
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
            print_reason(STDERR, "it ends here", Some(address).filter(|_| ours));
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
    use cxloe_member::wire::{Message, MessageKind};

    use super::*;

    #[test]
    fn the_newest_reason_counts() {
        let mut losses = Losses::default();
        assert!(reason().is_none());
        for text in ["a page of region one is lost", "and then one of two", "of three"] {
            losses.why(&mut Message::words(MessageKind::Why, text).text_bytes());
            assert_eq!(reason().unwrap().as_str(), text);
        }
    }
}
