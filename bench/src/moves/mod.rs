//! Virtual machines that move between two compute nodes without their memory being copied: for how long the guest is
//! stopped, and how fast it is right after.
//!
//! ```text
//!   cn0: cn-agent vm, QEMU, guest  ---- cn-agent vm move ---->  cn1: cn-agent vm --incoming, QEMU, the guest goes on
//!                       \                                       /
//!                        `---- the region, on a memory node ---'
//! ```
//!
//! The guest goes through its working set without a pause, and checks what it reads. Each pass writes a line
//! to the guest's serial line, which is read every millisecond.

mod guest;
mod hosts;
mod passes;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cxloe_lab::Interrupt;
use serde::Serialize;

use guest::GuestSizes;
use hosts::{Emulator, Hosts};
use passes::SerialLine;

/// Any failure of a run, including wrong content of the guest's memory.
pub type MoveError = Box<dyn std::error::Error + Send + Sync>;

/// Interval at which the file of the serial line is read.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Time for which the guest is observed before a move, and after it.
const WATCHED: Duration = Duration::from_secs(1);
/// Period after a move for which the guest's speed is reported separately.
const FIRST: Duration = Duration::from_millis(100);
/// Maximum time until the guest has written its memory for the first time.
const FILL_LIMIT: Duration = Duration::from_secs(300);
/// Maximum time from the end of the command to the guest's first pass.
const RESUME_LIMIT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct MoveOptions {
    /// Bytes of the machine's memory, all of it remote.
    pub memory: u64,
    /// Bytes of the machine's memory that may be resident on the compute node.
    pub local: u64,
    /// Bytes of the guest's working set. Each pass reads all of its pages, and writes every other one.
    pub working: u64,
    pub moves: u32,
}

/// Results of one move.
#[derive(Clone, Debug, Serialize)]
pub struct Move {
    /// Time for which the guest was stopped, from QEMU's stop to its resumption, in milliseconds.
    pub stopped_ms: f64,
    /// Time from the last pass before the move to the first one after it, less the duration of a pass, in
    /// milliseconds.
    pub gap_ms: f64,
    /// Duration of the whole command, in milliseconds.
    pub command_ms: f64,
    pub before: f64,
    /// Passes per second in the first 100 ms after the stop.
    pub first_100ms: f64,
    /// Passes per second in the first second after the stop.
    pub first_second: f64,
    /// Pages that were resident at the source.
    pub resident_pages: u64,
    /// Size of QEMU's state without the guest's memory, in bytes.
    pub state_bytes: u64,
}

/// Makes two compute nodes with files below `folder`, and moves a machine between them. `said` gets a line for each move.
///
/// # Errors
/// The nodes or the machine cannot be made, a move fails, or the guest finds a wrong word.
pub fn run(
    options: &MoveOptions,
    folder: &Path,
    interrupt: &Interrupt,
    said: &dyn Fn(&str),
) -> Result<Vec<Move>, MoveError> {
    // The firmware uses the end of the memory, and a 32-bit guest reaches only memory below the devices'
    // addresses.
    let area = (options.memory - (48 << 20)).min(1900 << 20);
    let sizes = GuestSizes { area, working: options.working.min(area), written_of: 2 };
    let kernel = guest::compile(folder, sizes)?;
    let mut hosts = Hosts::start(folder, options, kernel, interrupt)?;
    let mut here = hosts.machine(0, false, interrupt)?;
    let mut serial = SerialLine::open(&here.serial)?;
    let began = Instant::now();
    watch(&mut serial, began + FILL_LIMIT, interrupt, |serial| serial.passes.len() >= 3)?;
    if serial.passes.len() < 3 {
        return Err(format!("the guest has not written its memory within {FILL_LIMIT:?}").into());
    }
    let mut moves = Vec::new();
    for number in 1..=options.moves {
        let there = hosts.machine(1 - here.side, true, interrupt)?;
        let (done, next) = one_move(&hosts, &mut serial, &here, &there, interrupt)?;
        said(&format!(
            "move {number}: stopped {:.0} ms; passes/s {:.0} before, {:.0} in the first 100 ms, {:.0} in the first second",
            done.stopped_ms, done.before, done.first_100ms, done.first_second
        ));
        moves.push(done);
        hosts.ended(here)?;
        (here, serial) = (there, next);
    }
    Ok(moves)
}

/// Reads a serial line until `enough` returns true, or until the moment `until`.
fn watch(
    serial: &mut SerialLine,
    until: Instant,
    interrupt: &Interrupt,
    enough: impl Fn(&SerialLine) -> bool,
) -> Result<(), MoveError> {
    while Instant::now() < until && !enough(serial) {
        interrupt.check()?;
        serial.look()?;
        if let Some(wrong) = &serial.wrong {
            return Err(format!("the guest's memory is wrong: {wrong}").into());
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn one_move(
    hosts: &Hosts,
    serial: &mut SerialLine,
    here: &Emulator,
    there: &Emulator,
    interrupt: &Interrupt,
) -> Result<(Move, SerialLine), MoveError> {
    let from = Instant::now();
    watch(serial, from + WATCHED, interrupt, |_| false)?;
    let before = serial.between(from, Instant::now()) as f64 / WATCHED.as_secs_f64();
    let ordered = Instant::now();
    let order = hosts.order(here, there)?;
    let waiting = thread::spawn(move || (order.wait_with_output(), Instant::now()));
    let mut next = SerialLine::open(&there.serial)?;
    let mut finished = None;
    while next.passes.is_empty() {
        if waiting.is_finished() && finished.get_or_insert_with(Instant::now).elapsed() > RESUME_LIMIT {
            break;
        }
        watch(serial, Instant::now() + LOOK_EVERY, interrupt, |_| false)?;
        next.look()?;
    }
    let last = serial.passes.last().copied().unwrap_or(ordered);
    let first = next.passes.first().copied();
    watch(&mut next, Instant::now() + WATCHED, interrupt, |_| false)?;
    let (output, ended) = waiting.join().map_err(|_| "the thread that waits for the command has panicked")?;
    let report = hosts::report(output?)?;
    let first = first.ok_or("the guest has completed no pass where it went")?;
    let stopped_ms = report["stopped_ms"].as_f64().ok_or("the report has no time")?;
    let pass_ms = 1000.0 / before.max(1.0);
    // The stop began at most one pass after `last`, so the guest resumed about `stopped_ms` after `last`.
    let resumed = last + Duration::from_secs_f64(stopped_ms / 1000.0);
    Ok((
        Move {
            stopped_ms,
            gap_ms: (first - last).as_secs_f64() * 1000.0 - pass_ms,
            command_ms: (ended - ordered).as_secs_f64() * 1000.0,
            before,
            first_100ms: next.between(resumed, resumed + FIRST) as f64 / FIRST.as_secs_f64(),
            first_second: next.between(resumed, resumed + WATCHED) as f64 / WATCHED.as_secs_f64(),
            resident_pages: report["resident_pages"].as_u64().unwrap_or(0),
            state_bytes: report["state_bytes"].as_u64().unwrap_or(0),
        },
        next,
    ))
}
