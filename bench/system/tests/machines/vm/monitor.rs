//! A virtual machine monitor that loads a snapshot as Firecracker does, but runs no machine. The monitor has anonymous
//! memory in two pieces, with a userfaultfd that reports removals, and passes the addresses and the userfaultfd over a
//! Unix socket in one message. Then its threads access the memory as vCPUs do, and a balloon removes parts of the
//! memory. The monitor runs in a copy of the test program.
//!
//! The monitor reads commands on standard input and answers each line with `ok` or an error.

#![expect(unsafe_code, reason = "the monitor maps memory and touches it through raw pointers")]

use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use cxloe_client::memory::send_with_descriptor;
use cxloe_lab::{Lab, Process};
use cxloe_paging::uffd::{Features, Modes, Uffd};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};

use cxloe_system::{LIMIT, Outcome, copy_as, ensure};

pub const PAGE: usize = 4096;
/// Number of pages in each of the two pieces, which are adjacent in the snapshot but not in the monitor's address
/// space.
const PIECES: [usize; 2] = [1536, 512];
/// Number of pages in both pieces together.
pub const PAGES: usize = PIECES[0] + PIECES[1];
/// Number of threads that access the memory as vCPUs do.
const THREADS: usize = 4;

/// Value of word `index` in the snapshot.
fn word(index: usize) -> u64 {
    (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Content of the snapshot's memory file.
pub fn snapshot() -> Vec<u8> {
    (0..PAGES * PAGE / 8).flat_map(|index| word(index).to_le_bytes()).collect()
}

/// Handle of the monitor's process, for a test.
pub struct Monitor {
    process: Process,
    answers: Receiver<String>,
}

impl Monitor {
    /// Starts the monitor, which passes its memory to the server at `socket`.
    pub fn start(lab: &Lab, socket: &Path) -> Outcome<Monitor> {
        let mut command = copy_as("monitor")?;
        command.arg(socket).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = lab.spawn("cn", command)?;
        let output = BufReader::new(process.child_mut().stdout.take().ok_or("no output")?);
        let (tell, answers) = channel();
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        let mut monitor = Monitor { process, answers };
        ensure(monitor.answer()? == "ok", "the monitor has handed its memory over")?;
        Ok(monitor)
    }

    /// Sends a command, without waiting for the answer.
    pub fn send_command(&mut self, words: &str) -> Outcome {
        let input = self.process.child_mut().stdin.as_mut().ok_or("no input")?;
        writeln!(input, "{words}")?;
        Ok(input.flush()?)
    }

    /// Waits for the monitor's next answer.
    pub fn answer(&mut self) -> Outcome<String> {
        Ok(self
            .answers
            .recv_timeout(LIMIT)
            .map_err(|error| format!("the machine gives no answer: {error}"))?)
    }

    /// Sends a command that has to succeed.
    pub fn does(&mut self, words: &str) -> Outcome {
        self.send_command(words)?;
        let answer = self.answer()?;
        ensure(answer == "ok", format!("{words}: `{answer}`"))
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// Role: runs the monitor, which passes its memory to the server at the socket in its first argument.
pub fn play() -> ExitCode {
    let socket = std::env::args().nth(1).unwrap_or_default();
    match Machine::hand_over(&socket).and_then(|machine| machine.run_commands()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{}", error.message().unwrap_or("failed"));
            ExitCode::FAILURE
        }
    }
}

#[derive(Clone, Copy)]
struct Machine {
    /// First addresses of the two pieces.
    pieces: [usize; 2],
}

impl Machine {
    fn hand_over(socket: &str) -> Outcome<Machine> {
        let (readable, private) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE);
        let map = |pages: usize| {
            let bytes = NonZeroUsize::new(pages * PAGE).ok_or("no pages")?;
            // SAFETY: maps new memory at an address that the kernel chooses.
            let memory = unsafe { mmap_anonymous(None, bytes, readable, private | MapFlags::MAP_NORESERVE) }?;
            Outcome::Ok(memory.as_ptr() as usize)
        };
        let pieces = [map(PIECES[0])?, map(PIECES[1])?];
        let uffd = Uffd::create()?;
        uffd.handshake(Features::EVENT_REMOVE)?;
        let mut message = Vec::new();
        let mut offset = 0;
        for (address, pages) in pieces.into_iter().zip(PIECES) {
            let bytes = pages * PAGE;
            let range = address as u64..(address + bytes) as u64;
            // SAFETY: the range is memory of this process that nothing uses yet.
            unsafe { uffd.register(range, Modes::MISSING) }?;
            message.push(serde_json::json!({
                "base_host_virt_addr": address, "size": bytes, "offset": offset,
                "page_size": PAGE, "page_size_kib": PAGE,
            }));
            offset += bytes;
        }
        let stream = UnixStream::connect(socket)?;
        send_with_descriptor(&stream, &serde_json::to_vec(&message)?, uffd.as_fd())?;
        // Socket and userfaultfd stay open until the monitor's process ends.
        std::mem::forget((stream, uffd));
        Ok(Machine { pieces })
    }

    fn run_commands(self) -> Outcome {
        println!("ok");
        for line in std::io::stdin().lines() {
            let line = line?;
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok()).unwrap_or(0);
            let pages = number(1)..number(2);
            let outcome = match words[0] {
                "read" => self.touch(pages, word),
                "zeros" => self.touch(pages, |_| 0),
                "write" => {
                    (pages.start * PAGE / 8..pages.end * PAGE / 8)
                        .for_each(|index| self.set(index, !word(index)));
                    Ok(())
                }
                "written" => self.touch(pages, |index| !word(index)),
                "remove" => self.remove(pages),
                _ => return Ok(()),
            };
            match outcome {
                Ok(()) => println!("ok"),
                Err(error) => println!("{error}"),
            }
        }
        Ok(())
    }

    /// Address of word `index` in the monitor's memory.
    fn place(self, index: usize) -> *mut u64 {
        let first = PIECES[0] * PAGE / 8;
        let (piece, index) = if index < first { (0, index) } else { (1, index - first) };
        assert!(index < PIECES[piece] * PAGE / 8);
        (self.pieces[piece] + index * 8) as *mut u64
    }

    fn set(self, index: usize, value: u64) {
        // SAFETY: the word is within the two pieces, which stay mapped until the process ends; only this thread writes.
        unsafe { self.place(index).write_volatile(value) }
    }

    /// Compares every word of some pages with its expected value, by several threads that begin at different pages.
    fn touch(
        self,
        pages: std::ops::Range<usize>,
        expected: impl Fn(usize) -> u64 + Sync,
    ) -> Result<(), String> {
        let expected = &expected;
        thread::scope(|scope| {
            let look = |thread: usize| {
                let pages = pages.clone();
                move || {
                    let shift = pages.len() * thread / THREADS;
                    for page in pages.clone().cycle().skip(shift).take(pages.len()) {
                        for index in page * PAGE / 8..(page + 1) * PAGE / 8 {
                            // SAFETY: the word is within the two pieces, which stay mapped until the process ends.
                            let found = unsafe { self.place(index).read_volatile() };
                            if found != expected(index) {
                                return Err(format!("word {index} of page {page} is {found:#x}"));
                            }
                        }
                    }
                    Ok(())
                }
            };
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(look(thread))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })
    }

    /// Removes pages as a balloon does.
    fn remove(self, pages: std::ops::Range<usize>) -> Result<(), String> {
        let start = std::ptr::NonNull::new(self.place(pages.start * PAGE / 8)).ok_or("null")?;
        // SAFETY: the range consists of pages of one piece, and their content is no longer used.
        unsafe { madvise(start.cast(), pages.len() * PAGE, MmapAdvise::MADV_DONTNEED) }
            .map_err(|e| e.to_string())
    }
}
