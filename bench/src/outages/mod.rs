//! Outages of a memory node under a load that checks every line: its process is killed or replaced, or its interface
//! goes away and comes back. The result is the longest operation, compared with the time in which no answer was
//! possible.

use std::thread;
use std::time::{Duration, Instant};

use cxloe_lab::Interrupt;
use cxloe_port::port::Port;
use nix::sys::signal::Signal;
use serde::Serialize;

use crate::keys::KeysError;
use crate::keys::site::{CN, MN, Site};

/// Maximum wait for a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Duration of the load before an outage, and again after it.
const BEFORE: Duration = Duration::from_millis(150);
const AFTER: Duration = Duration::from_millis(1500);
/// Number of lines that are written and read in turn.
const LINES: u64 = 64;
const LINE: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Outage {
    /// The process is replaced by another, which takes its memory over.
    Replaced,
    /// The process is killed, and another started with the memory that was kept.
    Killed,
    /// The interface is down for a time.
    Down,
    /// The interface has another MAC address for a time.
    OtherMac,
    /// The interface has another MTU for a time.
    OtherMtu,
    /// The interface has another name for a time.
    Renamed,
    /// The cable is deleted, and made again after a time.
    Deleted,
    /// The interface is in another namespace for a time.
    Moved,
}

impl Outage {
    /// Causes the outage and ends it; an interface is away for the time `away`. Returns the time in which no answer was
    /// possible, as far as it can be observed from outside the memory node.
    fn happen(self, site: &mut Site, away: Duration) -> Result<Duration, KeysError> {
        let began = Instant::now();
        match self {
            Outage::Replaced => {
                site.start_next(&["--take-over"])?;
                return Ok(Duration::ZERO);
            }
            Outage::Killed => {
                site.end(Signal::SIGKILL)?;
                site.start_next(&[])?;
            }
            Outage::Down => {
                site.lab().link_down("mn0")?;
                thread::sleep(away);
                site.lab().link_up("mn0")?;
            }
            Outage::OtherMac => {
                site.lab().set_link("mn0", &["address", "02:00:00:00:00:77"])?;
                thread::sleep(away);
                site.lab().set_link("mn0", &["address", &MN.to_string()])?;
            }
            Outage::OtherMtu => {
                site.lab().set_link("mn0", &["mtu", "1400"])?;
                thread::sleep(away);
                site.lab().set_link("mn0", &["mtu", "1500"])?;
                return Ok(Duration::ZERO);
            }
            Outage::Renamed => {
                site.lab().rename_link("mn0", "mn0", "other0")?;
                thread::sleep(away);
                site.lab().rename_link("mn0", "other0", "mn0")?;
                return Ok(Duration::ZERO);
            }
            Outage::Deleted => {
                site.lab().delete_link("mn0")?;
                thread::sleep(away);
                site.lab().make_link_again([("cn0", &CN.to_string()), ("mn0", &MN.to_string())])?;
            }
            Outage::Moved => {
                site.lab().move_link("mn0", "mn", "store")?;
                thread::sleep(away);
                site.lab().move_link("mn0", "store", "mn")?;
                site.lab().link_up("mn0")?;
            }
        }
        Ok(began.elapsed())
    }
}

/// Longest operation and counts of one outage.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub outage: Outage,
    /// Time in which no answer was possible, in milliseconds; 0 if unknown.
    pub away_ms: f64,
    /// Time of the longest operation, in milliseconds.
    pub longest_ms: f64,
    pub operations: u64,
    pub failed: u64,
    /// Number of lines whose content differed from the last write.
    pub wrong: u64,
}

impl Measured {
    /// Time of the longest operation beyond `away_ms`, in milliseconds.
    pub fn beyond_ms(&self) -> f64 {
        (self.longest_ms - self.away_ms).max(0.0)
    }
}

/// Runs the load on a new session through one outage, and returns its longest operation and its counts.
///
/// # Errors
/// Returns any [`KeysError`] except failed operations, which are counted.
pub fn outage(
    site: &mut Site,
    outage: Outage,
    away: Duration,
    interrupt: &Interrupt,
) -> Result<Measured, KeysError> {
    interrupt.check()?;
    let mut port = site.persistent_port()?;
    port.connect(CONNECT_LIMIT)?;
    let mut measured = Measured { outage, away_ms: 0.0, longest_ms: 0.0, operations: 0, failed: 0, wrong: 0 };
    let happened = thread::scope(|scope| {
        let happens = scope.spawn(move || {
            thread::sleep(BEFORE);
            let lasted = outage.happen(site, away);
            thread::sleep(AFTER);
            lasted
        });
        let mut version = 0;
        while !happens.is_finished() {
            version += 1;
            work(&mut port, version, &mut measured);
        }
        happens.join()
    });
    let lasted = happened.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    measured.away_ms = lasted.as_secs_f64() * 1e3;
    port.close()?;
    Ok(measured)
}

/// Writes all lines in a version and reads them back, line by line.
fn work(port: &mut Port, version: u64, measured: &mut Measured) {
    let content = |at: u64| {
        let mut line = [0; LINE as usize];
        for (index, word) in line.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(version << 16 ^ at << 4 ^ index as u64).to_le_bytes());
        }
        line
    };
    let mut timed = |measured: &mut Measured, done: &mut dyn FnMut(&mut Port) -> bool| {
        let began = Instant::now();
        let succeeded = done(port);
        measured.longest_ms = measured.longest_ms.max(began.elapsed().as_secs_f64() * 1e3);
        measured.operations += 1;
        measured.failed += u64::from(!succeeded);
    };
    let mut written = [false; LINES as usize];
    for at in 0..LINES {
        timed(measured, &mut |port| {
            written[at as usize] = port.write(at * LINE, &content(at)).is_ok();
            written[at as usize]
        });
    }
    for at in 0..LINES {
        let mut found = None;
        timed(measured, &mut |port| {
            found = port.read(at * LINE).ok();
            found.is_some()
        });
        // A failed write may or may not have been carried out.
        let wrong = written[at as usize] && found.is_some_and(|line| line != content(at));
        measured.wrong += u64::from(wrong);
    }
}
