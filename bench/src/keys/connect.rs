//! Under a flood: how long it takes to get a session, and what a session that is there still does.
//!
//! What the flooder takes from two cores is not the handshake's doing, and which thread runs on which core makes more of a
//! difference than what is measured. So one session reads through a whole turn, in slices: one beside the flood to nobody,
//! the next beside the same flood to the memory node. Each slice is compared with its neighbour.

use std::time::{Duration, Instant};

use cxloe_port::port::Port;
use serde::Serialize;

use super::flood::{Aim, Flood, Kind, hellos};
use super::site::Site;
use super::{KeysError, Times};
use cxloe_lab::Interrupt;

/// How long a node may take to connect before that is an error.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// From the start of a flood to the first measurement.
const SETTLE: Duration = Duration::from_millis(200);
/// From another aim of a flood to the next measurement: what is under way has arrived.
const TURN: Duration = Duration::from_millis(5);
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
    /// Pairs of slices in each turn.
    pub pairs: u32,
    /// How long a slice is.
    pub slice: Duration,
}

/// What a flood does.
#[derive(Clone, Debug, Serialize)]
pub struct UnderFlood {
    /// Which flood.
    pub flood: Kind,
    /// Hellos that were sent, a second, by turns: to the memory node and, in every other slice, to nobody.
    pub hellos_per_s: Vec<f64>,
    /// From the first Hello of a node to its session.
    pub connect: Times,
    /// Lines that the session there is read, a second: the median of the slices.
    pub reads_median_per_s: f64,
    /// The same beside the flood to nobody.
    pub elsewhere_median_per_s: f64,
    /// The one over the other, of neighbouring slices.
    pub reads_over_elsewhere: Ratios,
}

/// Ratios of many pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Ratios {
    /// How many pairs.
    pub pairs: usize,
    /// A quarter of them is below.
    pub quarter: f64,
    /// Half of them is below.
    pub median: f64,
    /// A quarter of them is above.
    pub three_quarters: f64,
    /// All that was done of the one over all that was done of the other.
    pub of_sums: f64,
}

impl Ratios {
    /// Of pairs of rates.
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

/// What was found of one flood so far.
#[derive(Default)]
struct Found {
    connected_ns: Vec<u64>,
    hellos_per_s: Vec<f64>,
    /// Reads a second beside the flood, and beside the same to nobody.
    pairs: Vec<(f64, f64)>,
}

impl Found {
    /// One turn.
    fn turn(
        &mut self,
        site: &Site,
        kind: Kind,
        hellos: &[Vec<u8>],
        plan: &FloodPlan,
        interrupt: &Interrupt,
    ) -> Result<(), KeysError> {
        // The session is there before the flood.
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

    fn of(self, flood: Kind) -> UnderFlood {
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

/// Lines a second that `port` reads for so long beside a flood that goes to `aim`.
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
    let mut found = Kind::ALL.map(|_| Found::default());
    for _ in 0..plan.rounds {
        for ((kind, hellos), found) in Kind::ALL.into_iter().zip(&made).zip(&mut found) {
            found.turn(site, kind, hellos, plan, interrupt)?;
        }
    }
    Ok(Kind::ALL.into_iter().zip(found).map(|(kind, found)| found.of(kind)).collect())
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
