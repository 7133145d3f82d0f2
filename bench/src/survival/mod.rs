//! Goals of memory that survives, moves and is shared, measured on a fabric of real daemons: what a second copy costs,
//! the loss of a memory node or of a writing agent, new copies and drains under load, sealed regions with several readers,
//! snapshots and clones.
//!
//! ```text
//!   loads: lines, one at a time ---> cn0: cn-agent ---.
//!                                                      switch --- mn0, mn1, mn2
//!   orders: kill, drain, clone, … -> gmm   cn1, cn2, …-'
//! ```
//!
//! Every line that is read is compared with the versions that it may have.

mod clones;
mod copies;
mod fabric;
mod figures;
mod kills;
mod lines;
mod mirror;
mod sealed;
mod touches;

use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use cxloe_lab::Interrupt;
use cxloe_link::Backend;
use cxloe_link::wait::WaitStyle;
use serde::Serialize;

use fabric::{FabricSetup, SurvivalFabric};
pub use figures::{Figure, Goal, HEAD};
pub use lines::LineCounts;
use lines::{CheckedLines, PAGE};

/// Any failure of a run, including a wrong line. Failed operations do not end a run: they are counted.
pub type SurvivalError = Box<dyn std::error::Error + Send + Sync>;

/// Space in each pool beyond the regions of the run, in bytes.
const POOL_ROOM: u64 = 64 << 20;
/// Multiple of the size of pools, in bytes.
const POOL_UNIT: u64 = 2 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum SurvivalSection {
    /// Lines and page faults of a mirrored region, beside those of a plain one.
    Mirror,
    /// A memory node of a mirrored region is killed under load, and returns after a time.
    Kill,
    /// The agent is killed while it writes to a mirrored region.
    Writer,
    /// A second copy of a region is made under load, and without load.
    Fill,
    /// The memory node of a region is drained under load, and without load.
    Drain,
    /// A sealed region is read by one compute node, and by several at once.
    Sealed,
    /// Snapshots and clones of a region, and the first writes and touches of pages that are not copied yet.
    Clones,
}

impl SurvivalSection {
    /// Name on the command line and in JSON.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

#[derive(Clone, Debug)]
pub struct SurvivalOptions {
    /// Sections to measure.
    pub sections: Vec<SurvivalSection>,
    /// Number of rounds of each section.
    pub rounds: u32,
    /// Operations on lines, or touches of pages, in a turn.
    pub operations: u64,
    /// Size of the regions, except those that are cloned: a multiple of 2 MiB.
    pub bytes: u64,
    /// Sizes of the regions that are cloned: multiples of 2 MiB.
    pub clone_bytes: Vec<u64>,
    /// Time for which a killed memory node is away.
    pub away: Duration,
    /// Number of compute nodes that read the sealed region.
    pub readers: usize,
    /// Link of all nodes.
    pub link: Backend,
    /// Waiting style of all nodes.
    pub wait: WaitStyle,
}

impl SurvivalOptions {
    fn has(&self, section: SurvivalSection) -> bool {
        self.sections.contains(&section)
    }

    /// Sizes of the daemons that the sections need.
    fn setup(&self) -> FabricSetup {
        let cloned = match self.has(SurvivalSection::Clones) {
            true => self.clone_bytes.iter().copied().max().unwrap_or_default(),
            false => 0,
        };
        let others = self.sections.iter().any(|section| *section != SurvivalSection::Clones);
        let bytes = if others { self.bytes } else { 0 };
        // Two regions, or a region and its clone, are on one memory node at the same time.
        let pool = |bytes: u64| (2 * bytes + POOL_ROOM).next_multiple_of(POOL_UNIT);
        let readers = if self.has(SurvivalSection::Sealed) { self.readers } else { 0 };
        FabricSetup {
            pools: [pool(bytes.max(cloned)), pool(bytes), pool(bytes)],
            compute_nodes: 1 + readers,
            link: self.link,
            wait: self.wait,
        }
    }

    /// Number of pages that are touched in a turn: a power of two, and a sixteenth of a region of `bytes` bytes at most.
    fn touched_pages(&self, bytes: u64) -> usize {
        let most = (bytes / PAGE as u64 / 16).clamp(1, self.operations.max(1));
        1 << most.ilog2()
    }
}

/// Results of a run, in the layout of `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct SurvivalResults {
    pub figures: Vec<Figure>,
    /// Counts of all lines. Attempts that were expected to fail do not count as failed.
    pub lines: LineCounts,
}

/// A run under way.
struct SurvivalRun<'a> {
    fabric: SurvivalFabric,
    options: &'a SurvivalOptions,
    interrupt: &'a Interrupt,
    said: &'a dyn Fn(&str),
    section: SurvivalSection,
    figures: Vec<Figure>,
    counts: LineCounts,
}

/// Makes a fabric with files below `folder`, and measures the sections. Calls `said` with a line of text for each round.
///
/// # Errors
/// The fabric cannot be made, an order is not carried out in time, a line is wrong, or Ctrl-C.
pub fn run(
    options: &SurvivalOptions,
    folder: &Path,
    interrupt: &Interrupt,
    said: &dyn Fn(&str),
) -> Result<SurvivalResults, SurvivalError> {
    let fabric = SurvivalFabric::start(folder, options.setup(), interrupt)?;
    let (section, figures, counts) = (SurvivalSection::Mirror, Vec::new(), LineCounts::default());
    let mut run = SurvivalRun { fabric, options, interrupt, said, section, figures, counts };
    for section in SurvivalSection::value_variants().iter().copied().filter(|section| options.has(*section)) {
        run.section = section;
        match section {
            SurvivalSection::Mirror => mirror::measure(&mut run),
            SurvivalSection::Kill => kills::memory_node(&mut run),
            SurvivalSection::Writer => kills::writer(&mut run),
            SurvivalSection::Fill => copies::fill(&mut run),
            SurvivalSection::Drain => copies::drain(&mut run),
            SurvivalSection::Sealed => sealed::measure(&mut run),
            SurvivalSection::Clones => clones::measure(&mut run),
        }?;
    }
    Ok(SurvivalResults { figures: run.figures, lines: run.counts })
}

impl SurvivalRun<'_> {
    fn say(&self, what: &str) {
        (self.said)(&format!("{}: {what}", self.section.name()));
    }

    /// Says that a round of the section begins.
    fn say_round(&self, round: u32) {
        self.say(&format!("round {round} of {}", self.options.rounds));
    }

    /// Notes a value of the figure `name` of the present section.
    fn note(&mut self, name: &str, unit: &'static str, value: f64, goal: Option<Goal>) {
        let section = self.section;
        match self.figures.iter_mut().find(|figure| figure.section == section && figure.name == name) {
            Some(figure) => figure.add(value),
            None => self.figures.push(Figure::new(section, name.to_owned(), unit, goal, value)),
        }
    }

    /// Notes a quotient; nothing if the divisor is 0.
    fn note_ratio(&mut self, name: &str, above: f64, below: f64, goal: Option<Goal>) {
        if below > 0.0 {
            self.note(name, "ratio", above / below, goal);
        }
    }

    /// Adds the counts of lines where no operation may fail.
    fn count(&mut self, lines: &mut [CheckedLines]) {
        let counts = lines.iter_mut().fold(LineCounts::default(), |sum, one| sum.plus(&one.take_counts()));
        self.counts = self.counts.plus(&counts);
        self.note("failed operations", "count", counts.failed as f64, Some(Goal::AllAtMost(0.0)));
    }

    /// Adds the counts of lines where attempts are expected to fail, and returns the number of those that did.
    fn count_repeated(&mut self, lines: &mut CheckedLines) -> u64 {
        let counts = lines.take_counts();
        self.counts = self.counts.plus(&LineCounts { failed: 0, ..counts });
        counts.failed
    }

    /// Whether this process can map a region of compute node 0; if it cannot, says the reason.
    fn can_map(&self, region: &str, bytes: u64) -> bool {
        let error = touches::open(&self.fabric.socket(0), region, bytes).err();
        if let Some(error) = &error {
            self.say(&format!("page faults are left out: {error}"));
        }
        error.is_none()
    }
}

/// Converts nanoseconds to microseconds.
fn us(ns: f64) -> f64 {
    ns / 1e3
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Rate in MB/s.
fn rate(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / took.as_secs_f64().max(1e-9) / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn options(sections: &[SurvivalSection]) -> SurvivalOptions {
        SurvivalOptions {
            sections: sections.to_vec(),
            rounds: 3,
            operations: 2000,
            bytes: 256 * MIB,
            clone_bytes: vec![64 * MIB, 1024 * MIB],
            away: Duration::from_secs(1),
            readers: 3,
            link: Backend::Packet,
            wait: WaitStyle::default(),
        }
    }

    #[test]
    fn sections_have_one_name_everywhere() {
        for section in SurvivalSection::value_variants() {
            assert_eq!(serde_json::to_value(section).unwrap(), section.name());
        }
    }

    #[test]
    fn pools_have_room_for_what_is_measured() {
        let all = options(SurvivalSection::value_variants()).setup();
        assert_eq!(all.pools, [2112 * MIB, 576 * MIB, 576 * MIB]);
        assert_eq!(all.compute_nodes, 4);
        let plain = options(&[SurvivalSection::Mirror]).setup();
        assert_eq!((plain.pools, plain.compute_nodes), ([576 * MIB; 3], 1));
        let clones = options(&[SurvivalSection::Clones]).setup();
        assert_eq!(clones.pools, [2112 * MIB, 64 * MIB, 64 * MIB]);
    }

    #[test]
    fn touched_pages_are_a_power_of_two_and_few_of_all() {
        let options = options(&[]);
        for (mebibytes, pages) in [(1024, 1024), (64, 1024), (16, 256), (2, 32)] {
            assert_eq!(options.touched_pages(mebibytes * MIB), pages);
        }
        assert_eq!(options.touched_pages(0), 1);
        assert_eq!(SurvivalOptions { operations: 1, ..options }.touched_pages(64 * MIB), 1);
    }

    #[test]
    fn times_and_rates_are_converted() {
        assert_eq!((us(1500.0), ms(Duration::from_micros(1500)), mib(3 * MIB)), (1.5, 1.5, 3.0));
        assert_eq!(rate(1_000_000_000, Duration::from_secs(2)), 500.0);
    }
}
