//! Results of a simulation campaign, as text and JSON.

use std::fmt;
use std::time::Duration;

use comfy_table::CellAlignment;
use serde::Serialize;

use cxloe_measure::report::table::new_table;
use cxloe_measure::report::units;
use cxloe_sim::{Campaign, CampaignResults, Class, FailedSeed, Figures};

/// Percentiles of latencies in the output.
const PERCENTILES: [f64; 4] = [50.0, 90.0, 99.0, 99.9];

/// Results of all runs of a campaign.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Name of the scenario, as on the command line.
    pub scenario: String,
    /// Options that replace values of the scenario, as on the command line.
    pub overrides: String,
    /// Seed of the first run; later runs count up from it.
    pub start: u64,
    /// Number of completed runs.
    pub seeds: u64,
    /// Seeds whose runs failed, with the failures.
    pub failing: Vec<FailingSeed>,
    /// Elapsed real time, in seconds.
    pub wall_s: f64,
    /// CPU time of all runs, in seconds.
    pub cpu_s: f64,
    /// Completed simulated operations per second of CPU time.
    pub operations_per_s_per_core: f64,
    /// Completed runs per minute of real time.
    pub seeds_per_minute: f64,
    /// Text on the effect of rate control; `None` if it was disabled.
    pub paces: Option<String>,
    /// Latency of each kind of operation, in virtual time.
    pub latencies: Vec<Latency>,
    /// Counts over all runs.
    pub figures: Figures,
}

/// Seed of a run that failed, and the failure.
#[derive(Clone, Debug, Serialize)]
pub struct FailingSeed {
    pub seed: u64,
    /// Text of the failure.
    pub what: String,
    /// Command that repeats the run.
    pub reproduce: String,
}

/// Latencies of one kind of operation, in nanoseconds of virtual time.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    pub name: &'static str,
    pub count: u64,
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub max_ns: u64,
}

impl Summary {
    pub fn new(campaign: &Campaign, outcome: &CampaignResults) -> Summary {
        let latency = |class: Class| {
            let histogram = &outcome.tally.latencies[class as usize];
            let [p50_ns, p90_ns, p99_ns, p999_ns] = PERCENTILES.map(|p| histogram.value_at_percentile(p));
            let (name, count, max_ns) = (class.name(), histogram.len(), histogram.max());
            Latency { name, count, p50_ns, p90_ns, p99_ns, p999_ns, max_ns }
        };
        let failing = |f: &FailedSeed| FailingSeed {
            seed: f.seed,
            what: f.broken.to_string(),
            reproduce: campaign.command(f.seed),
        };
        let per = |n: u64, time: Duration| n as f64 / time.as_secs_f64().max(1e-9);
        let figures = outcome.tally.figures;
        Summary {
            scenario: campaign.scenario.to_string(),
            overrides: campaign.overrides.arguments().trim().to_owned(),
            start: campaign.start,
            seeds: outcome.seeds,
            failing: outcome.failing.iter().map(failing).collect(),
            wall_s: outcome.wall.as_secs_f64(),
            cpu_s: outcome.cpu.as_secs_f64(),
            operations_per_s_per_core: per(figures.ended(), outcome.cpu),
            seeds_per_minute: per(outcome.seeds, outcome.wall) * 60.0,
            latencies: Class::ALL.into_iter().map(latency).filter(|l| l.count > 0).collect(),
            paces: outcome.tally.paces.text(),
            figures,
        }
    }

    /// Rows of the text form: label and value.
    fn rows(&self) -> Vec<(&'static str, String)> {
        let f = &self.figures;
        let n = units::count;
        let some = |parts: &[(&str, u64)]| {
            let parts = parts.iter().filter(|(_, count)| *count > 0);
            let texts: Vec<_> = parts.map(|(name, count)| format!("{name} {}", n(*count))).collect();
            if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
        };
        let done = f.operations - f.failed();
        vec![
            (
                "operations",
                format!(
                    "{} by memory nodes, {} by the cache, {} flushes",
                    n(done),
                    n(f.at_once - f.flushes),
                    n(f.flushes)
                ),
            ),
            (
                "failed",
                some(&[
                    ("session died", f.failed_session_dead),
                    ("memory lost", f.failed_data_lost),
                    ("limits changed", f.failed_limits),
                    ("region taken away", f.failed_taken_away),
                    ("with a killed node", f.abandoned),
                ]),
            ),
            (
                "not taken",
                some(&[
                    ("no session", f.refused_not_connected),
                    ("memory lost", f.refused_data_lost),
                    ("too large", f.refused_limits),
                    ("region wanted back", f.refused_withdrawn),
                    ("put off while busy", f.busy),
                ]),
            ),
            (
                "modified lines",
                some(&[
                    ("written back", f.write_backs),
                    ("kept for an absent node", f.stranded),
                    ("lost with their memory", f.write_backs_refused),
                ]),
            ),
            (
                "frames",
                some(&[
                    ("sent", f.frames),
                    ("lost", f.lost),
                    ("cut", f.cut),
                    ("overflowed", f.overflowed),
                    ("repeated", f.repeated),
                    ("reordered", f.reordered),
                    ("damaged", f.corrupted),
                ]),
            ),
            (
                "recovery",
                some(&[
                    ("requests sent again", f.retransmitted),
                    ("SACKs", f.sacks),
                    ("time-outs", f.timeouts),
                ]),
            ),
            ("sessions", some(&[("opened", f.sessions), ("died", f.deaths)])),
            (
                "faults",
                some(&[
                    ("cuts", f.cuts),
                    ("pauses", f.pauses),
                    ("memory nodes restarted", f.restarts_kept),
                    ("restarted empty", f.restarts_lost),
                    ("compute nodes killed", f.kills),
                    ("regions replaced", f.replaced),
                    ("network profiles", f.network_profiles),
                    ("managers killed", f.managers_killed),
                    ("out of reach", f.managers_away),
                ]),
            ),
            (
                "pages",
                some(&[
                    ("faults", f.faults),
                    ("first writes", f.write_faults),
                    ("read ahead", f.pages_ahead),
                    ("evicted", f.pages_evicted),
                    ("written back", f.pages_written_back),
                    ("lost and told", f.pages_lost),
                    ("forks", f.forks),
                    ("discarded", f.discards),
                    ("pagers taken over from", f.successions),
                ]),
            ),
            (
                "manager",
                some(&[
                    ("messages", f.messages),
                    ("lost", f.messages_lost),
                    ("repeated", f.messages_repeated),
                    ("regions made", f.regions_made),
                    ("grown", f.regions_grown),
                    ("disabled", f.regions_disabled),
                    ("reset", f.regions_reset),
                    ("destroyed", f.regions_destroyed),
                    ("devices bound", f.bindings),
                    ("unbound", f.unbindings),
                ]),
            ),
            (
                "rate control",
                match self.paces.as_deref() {
                    None => some(&[("Congestion frames", f.congestion)]),
                    Some(paces) => {
                        let frames = [("Congestion frames", f.congestion), ("slowed down by", f.slowdowns)];
                        format!("{}\n{}", some(&frames), paces.replace("; ", "\n"))
                    }
                },
            ),
            (
                "time",
                format!(
                    "{} virtual, {} real, {} of processors",
                    units::time(f.virtual_ns as f64),
                    units::time(self.wall_s * 1e9),
                    units::time(self.cpu_s * 1e9)
                ),
            ),
            (
                "speed",
                format!(
                    "{} per core, {} seeds a minute",
                    units::operations(self.operations_per_s_per_core),
                    n(self.seeds_per_minute as u64)
                ),
            ),
        ]
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.start.wrapping_add(self.seeds.saturating_sub(1));
        let seeds = match self.seeds {
            0 => format!("from seed {} on, none finished", self.start),
            1 => format!("seed {}", self.start),
            n => format!("{} seeds, {} to {last}", units::count(n), self.start),
        };
        let failing = match self.failing.len() {
            0 => "every check held".to_owned(),
            n => format!("{n} FAILED"),
        };
        let mut counts = new_table([&self.scenario, &format!("{seeds}: {failing}")]);
        counts.column_mut(1).into_iter().for_each(|c| {
            c.set_cell_alignment(CellAlignment::Left);
        });
        for (label, text) in self.rows() {
            counts.add_row([label, &text]);
        }
        writeln!(f, "{counts}")?;
        if !self.latencies.is_empty() {
            let mut times = new_table(["virtual time", "operations", "p50", "p90", "p99", "p99.9", "max"]);
            for l in &self.latencies {
                let ns = [l.p50_ns, l.p90_ns, l.p99_ns, l.p999_ns, l.max_ns].map(|ns| units::time(ns as f64));
                times.add_row([vec![l.name.to_owned(), units::count(l.count)], ns.to_vec()].concat());
            }
            writeln!(f, "{times}")?;
        }
        Ok(())
    }
}
