//! A program that hands its region over to another compute node: it counts in the region until it is told to end, and an
//! instance at the other compute node goes on counting there.
//!
//! ```sh
//! cargo build --release -p cxloe-client --examples
//! gmm create-region -s 64M --owner cn0 counter
//! target/release/examples/hand_over counter                     # at cn0, until Ctrl-C or SIGTERM
//! target/release/examples/hand_over counter --expect-epoch 0    # at cn1, with the epoch that was printed at cn0
//! gmm move-region counter --to cn1
//! ```
//!
//! The epoch of a region grows with each move. By it, the instance that waits tells the region with the latest count
//! from one that its agent had before. `CXLOE_AGENT` in the environment names the agent's socket, if it is not the
//! default one.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use cxloe_client::client::{self, ClientError};
use cxloe_client::defaults::default_socket;
use cxloe_client::mapping::{MapError, MapOptions, Mapping};
use cxloe_client::message::{AttachedRegion, Attaching};
use nix::sys::signal::{SigSet, Signal};

/// Number of words of 8 bytes of a page.
const PAGE_WORDS: usize = 512;
/// Pause between two steps of the count.
const STEP: Duration = Duration::from_millis(1);
/// Number of steps between two lines of output.
const REPORTED: u64 = 500;
/// Interval at which the agent is asked for the region.
const POLL: Duration = Duration::from_millis(50);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        [region] => run(region, None),
        [region, "--expect-epoch", epoch] => run(region, Some(epoch)),
        _ => Err("usage: hand_over REGION [--expect-epoch EPOCH]".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hand_over: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(region: &str, former: Option<&str>) -> Result<(), Box<dyn Error>> {
    let former = former.map(str::parse::<u64>).transpose()?;
    let socket = std::env::var_os("CXLOE_AGENT").map_or_else(default_socket, PathBuf::from);
    let requests = requests()?;
    if !is_there(&socket, region, former, &requests)? {
        return Ok(());
    }
    let counter = Counter { memory: Mapping::open(&socket, region, MapOptions::default())? };
    let mut count = counter.count()?;
    println!("counts from {count} on");
    loop {
        counter.step(count)?;
        count += 1;
        if count.is_multiple_of(REPORTED) {
            println!("count {count}");
        }
        if is_requested(&requests, STEP) {
            break;
        }
    }
    counter.memory.flush()?;
    // As long as a program maps the region, it stays at this compute node, so the epoch after a move is a later one.
    let listed = find(&socket, region)?.ok_or("the region is not attached any more")?;
    drop(counter);
    println!("region {region}, epoch {}, count {count}", listed.epoch);
    Ok(())
}

/// Returns a receiver that gets a message when SIGINT (Ctrl-C) or SIGTERM arrives. To be called before the program has
/// other threads, because they inherit that these signals are blocked.
fn requests() -> nix::Result<Receiver<()>> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    let (request, requests) = mpsc::channel();
    thread::spawn(move || signals.wait().map(|_| request.send(())));
    Ok(requests)
}

/// Waits up to `limit` for the request to end.
fn is_requested(requests: &Receiver<()>, limit: Duration) -> bool {
    requests.recv_timeout(limit) != Err(RecvTimeoutError::Timeout)
}

fn find(socket: &Path, region: &str) -> Result<Option<AttachedRegion>, ClientError> {
    Ok(client::regions(socket)?.into_iter().find(|listed| listed.region == region))
}

/// Waits until the region can be used here and has a later epoch than `former`. Returns false if the request to end
/// comes first.
fn is_there(
    socket: &Path,
    region: &str,
    former: Option<u64>,
    requests: &Receiver<()>,
) -> Result<bool, ClientError> {
    let is_usable = |listed: &AttachedRegion| {
        listed.attachment == Attaching::Attached && former.is_none_or(|former| listed.epoch > former)
    };
    let mut is_told = false;
    while !find(socket, region)?.as_ref().is_some_and(is_usable) {
        if !is_told {
            println!("waits for region {region}");
            is_told = true;
        }
        if is_requested(requests, POLL) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A count that is kept twice: in the first word of the region, and as the sum of the second words of all pages, each
/// of which counts its turns. If pages were lost or old, the two would differ.
struct Counter {
    memory: Mapping,
}

impl Counter {
    fn pages(&self) -> usize {
        self.memory.len() / (PAGE_WORDS * size_of::<u64>())
    }

    fn count(&self) -> Result<u64, String> {
        let turns = (0..self.pages()).map(|page| self.memory.load(page * PAGE_WORDS + 1));
        let (count, sum) = (self.memory.load(0), turns.fold(0, u64::wrapping_add));
        if count == sum { Ok(count) } else { Err(format!("the count is {count}, and the pages have {sum}")) }
    }

    /// Counts one on from `count`.
    fn step(&self, count: u64) -> Result<(), MapError> {
        let page = count as usize % self.pages();
        let turns = page * PAGE_WORDS + 1;
        self.memory.store(turns, self.memory.load(turns) + 1)?;
        self.memory.store(0, count + 1)
    }
}
