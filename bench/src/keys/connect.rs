//! Under a flood: how long it takes to get a session, and what a session that is there still does.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::flood::{Flood, Kind, hellos};
use super::site::Site;
use super::{KeysError, Times};
use cxloe_lab::Interrupt;

/// How long a node may take to connect before that is an error.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// From the start of a flood to the first measurement.
const SETTLE: Duration = Duration::from_millis(200);
const NO_REKEY: Duration = Duration::from_secs(3600);

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct FloodPlan {
    /// Hellos a second.
    pub rate: u64,
    /// Times that each flood has its turn.
    pub rounds: u32,
    /// Connections in each turn.
    pub connections: u32,
    /// How long the session that is there reads in each turn.
    pub reading: Duration,
}

/// What a flood does.
#[derive(Clone, Debug, Serialize)]
pub struct UnderFlood {
    /// Which flood.
    pub flood: Kind,
    /// Hellos that were sent, a second, by turns.
    pub hellos_per_s: Vec<f64>,
    /// From the first Hello of a node to its session.
    pub connect: Times,
    /// Lines that the session there is read, a second, by turns.
    pub reads_per_s: Vec<f64>,
    /// Their median.
    pub reads_median_per_s: f64,
    /// The median, over the turns, of what it is of the same flood to nobody in the same turn.
    pub reads_over_elsewhere: f64,
}

/// Measures all floods by turns.
///
/// # Errors
/// Any [`KeysError`].
pub fn under_floods(
    site: &Site,
    plan: &FloodPlan,
    interrupt: &Interrupt,
) -> Result<Vec<UnderFlood>, KeysError> {
    let made = Kind::ALL.map(|kind| hellos(kind, site.mn_key));
    let made = made.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut times = Kind::ALL.map(|_| Vec::new());
    let mut reads = Kind::ALL.map(|_| Vec::new());
    let mut rates = Kind::ALL.map(|_| Vec::new());
    for _ in 0..plan.rounds {
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            interrupt.check()?;
            // The session is there before the flood.
            let mut port = site.port(NO_REKEY)?;
            port.connect(CONNECT_LIMIT)?;
            let flood = Flood::start(site, kind, &made[at], plan.rate)?;
            std::thread::sleep(SETTLE);
            let (started, mut done) = (Instant::now(), 0_u64);
            while started.elapsed() < plan.reading {
                for line in 0..64 {
                    port.read(line * 64)?;
                }
                done += 64;
            }
            reads[at].push(done as f64 / started.elapsed().as_secs_f64());
            port.close()?;
            for _ in 0..plan.connections {
                let mut port = site.port(NO_REKEY)?;
                let started = Instant::now();
                port.connect(CONNECT_LIMIT)?;
                times[at].push(started.elapsed().as_nanos() as u64);
                port.close()?;
            }
            rates[at].push(flood.end()?);
        }
    }
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or_default()
    };
    let medians: Vec<f64> = reads.iter().map(|reads| median(reads.clone())).collect();
    let elsewhere = reads[1].clone();
    let of_elsewhere = |reads: &[f64]| {
        median(reads.iter().zip(&elsewhere).map(|(reads, elsewhere)| reads / elsewhere.max(1.0)).collect())
    };
    let all = Kind::ALL.into_iter().zip(rates).zip(times.into_iter().zip(reads)).zip(medians);
    Ok(all
        .map(|(((flood, hellos_per_s), (times, reads_per_s)), median)| UnderFlood {
            flood,
            hellos_per_s,
            connect: Times::of(times),
            reads_over_elsewhere: of_elsewhere(&reads_per_s),
            reads_per_s,
            reads_median_per_s: median,
        })
        .collect())
}
