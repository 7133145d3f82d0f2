//! Time to connect, and throughput of an open session, during a flood.
//!
//! The CPU time of the flooder itself is no cost of the handshake, and the placement of threads on cores changes the
//! read rate by more than the measured effect. So one session reads during a whole turn, in slices: one slice during a
//! flood to an unused address, the next during the same flood to the memory node. Each slice is compared with its
//! neighbour.

use std::time::{Duration, Instant};

use cxloe_port::port::Port;
use serde::Serialize;

use super::flood::{Aim, Flood, FloodKind, hellos};
use super::site::Site;
use super::{KeysError, Times};
use cxloe_lab::Interrupt;

/// Maximum time for a node to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// Time from the start of a flood to the first measurement.
const SETTLE: Duration = Duration::from_millis(200);
/// Pause after each change of a flood's destination, so that frames in flight arrive before the next slice.
const TURN: Duration = Duration::from_millis(5);
const NO_REKEY: Duration = Duration::from_secs(3600);

/// Parameters of the measurement under floods.
#[derive(Clone, Copy, Debug)]
pub struct FloodPlan {
    /// Forged Hellos per second.
    pub rate: u64,
    /// Number of turns of each flood.
    pub rounds: u32,
    /// Number of connections in each turn.
    pub connections: u32,
    pub pairs: u32,
    pub slice: Duration,
}

/// Times to connect and rates of reads during one kind of flood.
#[derive(Clone, Debug, Serialize)]
pub struct UnderFlood {
    /// Kind of the forged Hellos.
    pub flood: FloodKind,
    /// Hellos sent per second in each turn: to the memory node and, in every other slice, to an unused address.
    pub hellos_per_s: Vec<f64>,
    /// Time from a node's first Hello to its session.
    pub connect: Times,
    /// Lines read per second by the open session during the flood to the memory node: median of the slices.
    pub reads_median_per_s: f64,
    /// Lines read per second by the open session during the same flood to an unused address: median of the slices.
    pub elsewhere_median_per_s: f64,
    /// Ratios of the read rates of neighbouring slices: flood to the memory node, divided by flood to an
    /// unused address.
    pub reads_over_elsewhere: Ratios,
}

/// Quartiles of the ratios of many pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Ratios {
    pub pairs: usize,
    pub quarter: f64,
    pub median: f64,
    pub three_quarters: f64,
    /// Ratio of the sum of all numerators to the sum of all denominators.
    pub of_sums: f64,
}

impl Ratios {
    /// Divides the pairs (numerator, denominator); a denominator below 1 counts as 1.
    fn of(pairs: &[(f64, f64)]) -> Ratios {
        let mut ratios: Vec<f64> = pairs.iter().map(|(one, other)| one / other.max(1.0)).collect();
        ratios.sort_by(f64::total_cmp);
        let at = |share: f64| ratios.get((ratios.len() as f64 * share) as usize).copied().unwrap_or_default();
        let sum = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>();
        Ratios {
            pairs: pairs.len(),
            quarter: at(0.25),
            median: at(0.5),
            three_quarters: at(0.75),
            of_sums: sum(|pair| pair.0) / sum(|pair| pair.1).max(1.0),
        }
    }
}

/// Results of one flood, collected over its turns.
#[derive(Default)]
struct FloodSamples {
    connected_ns: Vec<u64>,
    hellos_per_s: Vec<f64>,
    /// Reads per second during the flood to the memory node, and in the neighbouring slice during the flood to an
    /// unused address.
    pairs: Vec<(f64, f64)>,
}

impl FloodSamples {
    /// Makes one turn of a flood: reads in pairs of slices, then connects and times each connection.
    fn turn(
        &mut self,
        site: &Site,
        kind: FloodKind,
        hellos: &[Vec<u8>],
        plan: &FloodPlan,
        interrupt: &Interrupt,
    ) -> Result<(), KeysError> {
        // The session is opened before the flood starts: connecting in a flood is measured separately.
        let mut port = site.port(NO_REKEY)?;
        port.connect(CONNECT_LIMIT)?;
        let flood = Flood::start(site, hellos, plan.rate)?;
        flood.aim(kind.aim());
        std::thread::sleep(SETTLE);
        for _ in 0..plan.pairs {
            interrupt.check()?;
            let elsewhere = slice(&mut port, &flood, Aim::Nobody, plan.slice)?;
            self.pairs.push((slice(&mut port, &flood, kind.aim(), plan.slice)?, elsewhere));
        }
        port.close()?;
        for _ in 0..plan.connections {
            let mut port = site.port(NO_REKEY)?;
            let started = Instant::now();
            port.connect(CONNECT_LIMIT)?;
            self.connected_ns.push(started.elapsed().as_nanos() as u64);
            port.close()?;
        }
        self.hellos_per_s.push(flood.end()?);
        Ok(())
    }

    fn of(self, flood: FloodKind) -> UnderFlood {
        let median = |of: fn(&(f64, f64)) -> f64| {
            let mut all: Vec<f64> = self.pairs.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied().unwrap_or_default()
        };
        UnderFlood {
            flood,
            reads_median_per_s: median(|pair| pair.0),
            elsewhere_median_per_s: median(|pair| pair.1),
            reads_over_elsewhere: Ratios::of(&self.pairs),
            hellos_per_s: self.hellos_per_s,
            connect: Times::of(self.connected_ns),
        }
    }
}

/// Lines per second that `port` reads during `length` while the flood is sent to `aim`.
fn slice(port: &mut Port, flood: &Flood, aim: Aim, length: Duration) -> Result<f64, KeysError> {
    flood.aim(aim);
    read_for(port, TURN)?;
    read_for(port, length)
}

fn read_for(port: &mut Port, length: Duration) -> Result<f64, KeysError> {
    let (started, mut done) = (Instant::now(), 0_u64);
    while started.elapsed() < length {
        for line in 0..16 {
            port.read(line * 64)?;
        }
        done += 16;
    }
    Ok(done as f64 / started.elapsed().as_secs_f64())
}

/// Measures all kinds of flood alternately.
pub fn under_floods(
    site: &Site,
    plan: &FloodPlan,
    interrupt: &Interrupt,
) -> Result<Vec<UnderFlood>, KeysError> {
    let made = FloodKind::ALL.map(|kind| hellos(kind, site.mn_key));
    let made = made.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut found = FloodKind::ALL.map(|_| FloodSamples::default());
    for _ in 0..plan.rounds {
        for ((kind, hellos), found) in FloodKind::ALL.into_iter().zip(&made).zip(&mut found) {
            found.turn(site, kind, hellos, plan, interrupt)?;
        }
    }
    Ok(FloodKind::ALL.into_iter().zip(found).map(|(kind, found)| found.of(kind)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_neighbours() {
        let pairs = [(1.0, 2.0), (3.0, 3.0), (40.0, 50.0), (9.0, 10.0)];
        let ratios = Ratios::of(&pairs);
        assert_eq!((ratios.pairs, ratios.quarter, ratios.median, ratios.three_quarters), (4, 0.8, 0.9, 1.0));
        assert!((ratios.of_sums - 53.0 / 65.0).abs() < 1e-9);
        assert_eq!(Ratios::of(&[]), Ratios { pairs: 0, ..Ratios::default() });
    }
}
