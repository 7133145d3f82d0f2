//! `cxloe-bench pattern`: well-known access patterns, on an existing link or in a lab (see `pair`).

use std::time::Duration;

use cxloe_daemon::{to_stderr, to_stdout};
use cxloe_fabric::model::ByteSize;

use super::Failure;
use super::common::{OutputArgs, ProgressUnit, RegionArgs, Session, bar, report, step};
use super::pair::{LabOptions, OptionalLink, Setup, in_lab, on_link};
use cxloe_lab::Interrupt;
use cxloe_measure::fault::Agent;
use cxloe_measure::pattern::arrivals::Spacing;
use cxloe_measure::pattern::memory::AccessPath;
use cxloe_measure::pattern::mix::Mix;
use cxloe_measure::pattern::{self, Pattern, Plan, Results, Share};
use cxloe_measure::report::Samples;

/// Measure access patterns over the line port and over mapped memory: load-latency, pointer chase, GUPS,
/// STREAM, mixes
///
/// Every pattern runs over the line port (--over port: lines of 64 bytes, many in flight), over memory mapped
/// through an agent (mapped: loads, stores and page faults), over memory whose faults the measuring thread
/// serves itself (inline), and, to compare with, over memory of this machine (local). --resident says how
/// much of the working set may be held locally: in the line cache over the port, in pages otherwise. All data
/// is checked; wrong data is an error.
///
/// Without --interface it runs in a lab of its own, in namespaces of this machine.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Patterns to measure: any of load-latency, chase, gups, stream, mix, hot-cold, or all
    #[arg(value_name = "PATTERN", required = true, value_enum)]
    patterns: Vec<Choice>,

    /// Ways to reach memory, separated by commas [default: port,mapped]
    #[arg(long, value_name = "WAYS", value_enum, value_delimiter = ',')]
    over: Vec<AccessPath>,

    /// Shares of the working set that may be resident, for example 0%,50%; each is measured [default: 0% over the port,
    /// 50% over mapped memory, and 10%,25%,50% for hot-cold]
    #[arg(long, value_name = "SHARES", value_delimiter = ',')]
    resident: Vec<Share>,

    /// Bytes of the working set, rounded down to a power of two [default: the whole region]
    #[arg(long, value_name = "SIZE")]
    working_set: Option<ByteSize>,

    /// Length of each measurement
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    time: Duration,

    /// Requests in flight over the port; beyond 200 a veth loses frames
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = depth)]
    depth: usize,

    /// Seed of the accesses
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// load-latency: rates offered, per second, for example 50k,100k,200k [default: steps from 5 % to 110 % of the
    /// highest rate]
    #[arg(long, value_name = "RATES", value_delimiter = ',', value_parser = rate, help_heading = "Patterns")]
    rates: Vec<f64>,

    /// load-latency: spacing of arrivals
    #[arg(long, value_name = "SPACING", value_enum, default_value = "poisson", help_heading = "Patterns")]
    arrivals: Spacing,

    /// load-latency, hot-cold: reads to writes, for example 3:1
    #[arg(long, value_name = "MIX", default_value = "reads", help_heading = "Patterns")]
    traffic: Mix,

    /// mix: ratios of reads to writes, measured one after the other
    #[arg(
        long,
        value_name = "MIXES",
        value_delimiter = ',',
        default_value = "reads,3:1,2:1,1:1,writes",
        help_heading = "Patterns"
    )]
    mixes: Vec<Mix>,

    /// hot-cold: shares of the pages that are hot, measured one after the other
    #[arg(
        long,
        value_name = "SHARES",
        value_delimiter = ',',
        default_value = "1%,5%,10%,25%,50%",
        help_heading = "Patterns"
    )]
    hot: Vec<Share>,

    /// hot-cold: share of the accesses that go to hot pages
    #[arg(long, value_name = "SHARE", default_value = "90%", help_heading = "Patterns")]
    heat: Share,

    /// hot-cold: pages by Zipf's law with this exponent, for example 0.99, in place of hot ones and cold ones
    #[arg(long, value_name = "EXPONENT", value_parser = exponent, help_heading = "Patterns")]
    zipf: Option<f64>,

    /// stream: timed iterations, after one untimed iteration
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=200), help_heading = "Patterns")]
    iterations: u32,

    #[command(flatten)]
    link: OptionalLink,
    #[command(flatten)]
    region: RegionArgs,

    /// Socket of a running agent, for mapped memory [default: none; a lab has its own]
    #[arg(long, value_name = "PATH", requires = "agent_region", requires = "interface")]
    agent: Option<std::path::PathBuf>,

    /// The region of that agent to map, whose content is lost
    #[arg(long, value_name = "NAME", requires = "agent")]
    agent_region: Option<String>,

    /// MTU of the cables in a lab of its own
    #[arg(long, value_name = "BYTES", default_value_t = 1500, conflicts_with = "interface")]
    mtu: u32,

    #[command(flatten)]
    output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  All patterns, one page with all pictures:
    cxloe-bench pattern all --html patterns.html --csv patterns.csv

  How long a dependent load takes while a quarter, half, or all of the memory is here:
    cxloe-bench pattern chase --over mapped,inline --resident 25%,50%,100%

  Latency at given rates, two reads to one write, over a NIC:
    cxloe-bench pattern load-latency -i enp3s0f0 --manager https://10.0.0.1:7440 \\
      --rates 50k,100k,200k,400k --traffic 2:1 --hdr load.hlog

  STREAM here and there:
    cxloe-bench pattern stream --over local,port,inline --resident 0%

Names of results: chase_mapped_r50 is the chase over mapped memory with 50 % resident.
Exit codes: 0 done and all data right, 1 failed or wrong data, 2 wrong usage, 130 ended by Ctrl-C.";

/// One pattern, or all patterns.
#[derive(Clone, Copy, Debug)]
enum Choice {
    One(Pattern),
    All,
}

impl clap::ValueEnum for Choice {
    fn value_variants<'a>() -> &'a [Self] {
        const CHOICES: [Choice; 7] = [
            Choice::One(Pattern::LoadLatency),
            Choice::One(Pattern::Chase),
            Choice::One(Pattern::Gups),
            Choice::One(Pattern::Stream),
            Choice::One(Pattern::Mix),
            Choice::One(Pattern::HotCold),
            Choice::All,
        ];
        &CHOICES
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        match self {
            Choice::One(pattern) => pattern.to_possible_value(),
            Choice::All => Some(clap::builder::PossibleValue::new("all").help("All of them")),
        }
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|e| format!("{e}; write for example 500ms or 2s"))?;
    match time.as_millis() {
        1..=3_600_000 => Ok(time),
        _ => Err("a measurement lasts 1ms to 1h".into()),
    }
}

fn depth(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(depth @ 1..=4096) => Ok(depth),
        _ => Err("1 to 4096 requests can be under way".into()),
    }
}

fn exponent(text: &str) -> Result<f64, String> {
    let exponent = text.parse::<f64>().ok().filter(|exponent| (0.01..=0.999).contains(exponent));
    exponent.ok_or_else(|| format!("`{text}` is no exponent from 0.01 to 0.999; write for example 0.99"))
}

/// Parses a rate in operations per second, with an optional suffix k or M.
fn rate(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (number, 1e3),
        None => text.strip_suffix('M').map_or((text, 1.0), |number| (number, 1e6)),
    };
    let rate = number.parse::<f64>().ok().map(|number| number * unit);
    rate.filter(|rate| (1.0..=1e8).contains(rate))
        .ok_or_else(|| format!("`{text}` is no rate from 1 to 100M per second; write for example 150k"))
}

impl Args {
    /// True if the command makes a lab, for which this process must be able to create namespaces.
    pub fn makes_lab(&self) -> bool {
        self.link.0.is_none()
    }

    /// Returns two flags: whether memory mapped through an agent is measured, and whether the options request it
    /// explicitly.
    fn measures_mapped(&self) -> (bool, bool) {
        let named = self.over.contains(&AccessPath::Mapped);
        (named || self.over.is_empty(), named)
    }

    fn plan(&self, bytes: u64, has_agent: bool) -> Plan {
        let all = self.patterns.iter().any(|choice| matches!(choice, Choice::All));
        let chosen = |pattern: &Pattern| {
            all || self.patterns.iter().any(|c| matches!(c, Choice::One(one) if one == pattern))
        };
        let mut over = self.over.clone();
        if over.is_empty() {
            over = vec![AccessPath::Port, AccessPath::Mapped];
        }
        over.retain(|way| has_agent || *way != AccessPath::Mapped);
        Plan {
            patterns: Pattern::ALL.into_iter().filter(chosen).collect(),
            over: distinct(over),
            bytes: self.working_set.map_or(bytes, |size| size.0),
            resident: distinct(self.resident.clone()),
            time: self.time,
            seed: self.seed,
            depth: self.depth,
            rates: (!self.rates.is_empty()).then(|| distinct(self.rates.iter().map(|r| r.round()).collect())),
            spacing: self.arrivals,
            traffic: self.traffic,
            mixes: distinct(self.mixes.clone()),
            hot: distinct(self.hot.clone()),
            heat: self.heat,
            zipf: self.zipf,
            iterations: self.iterations,
        }
    }
}

/// Items without duplicates, in the order of their first occurrence.
fn distinct<T: PartialEq>(items: Vec<T>) -> Vec<T> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

pub fn run(args: &Args, interrupt: Interrupt) -> Result<(), Failure> {
    let Some(link) = &args.link.0 else {
        let agent = args.measures_mapped().0;
        let options = LabOptions { name: "pattern", mtu: args.mtu, region: &args.region, agent };
        return in_lab(&options, &interrupt, |place| at(args, place));
    };
    let agent = args.agent.clone().zip(args.agent_region.clone());
    let agent = agent.map(|(socket, region)| Agent { socket, region, processes: Vec::new() });
    on_link(link, &args.region, agent, interrupt, |place| at(args, place))
}

fn at(args: &Args, place: Setup) -> Result<(), Failure> {
    let agent = match (place.agent, args.measures_mapped()) {
        (Some(Ok(agent)), _) => Some(agent),
        (Some(Err(error)), (_, true)) => return Err(error.into()),
        (None, (_, true)) => {
            return Err(
                "mapped memory needs an agent: name its socket with --agent and a region of its with \
                        --agent-region, or leave `mapped` out of --over"
                    .into(),
            );
        }
        (Some(Err(error)), _) => {
            to_stderr!("memory mapped through an agent is left out: {error}");
            None
        }
        (None, (wanted, _)) => {
            if wanted {
                to_stderr!("memory mapped through an agent is left out: no agent is named with --agent");
            }
            None
        }
    };
    let mut session = place.session;
    let bounce = session.target.bounce();
    let mut report = report(&session.link, &session.frames, place.interfaces, place.wait, bounce);
    let results;
    (session, results) = measured(args, session, agent)?;
    session.close()?;
    let wrong: Vec<String> = results
        .conditions
        .iter()
        .filter(|c| c.wrong > 0)
        .map(|c| format!("{} of {} in {}", c.wrong, c.checked, c.name))
        .collect();
    let checked: u64 = results.conditions.iter().map(|c| c.checked).sum();
    let samples = results.into_report(&mut report);
    let samples: Vec<&Samples> = samples.iter().collect();
    args.output.write(&report, &samples)?;
    if !wrong.is_empty() {
        return Err(
            format!("wrong data: {}; the memory does not hold what was written", wrong.join(", ")).into()
        );
    }
    to_stdout!("checked:    {checked} values, every one right");
    Ok(())
}

fn measured(args: &Args, session: Session, agent: Option<Agent>) -> Result<(Session, Results), Failure> {
    let (target, again) = session.into_parts();
    let plan = args.plan(target.bytes, agent.is_some());
    if plan.bytes > target.bytes {
        return Err(format!(
            "a working set of {} bytes does not fit the region of {}; make it larger with --size",
            plan.bytes, target.bytes
        )
        .into());
    }
    if plan.bytes < BYTES_MIN {
        return Err(format!("a working set has at least {BYTES_MIN} bytes, not {}", plan.bytes).into());
    }
    let progress = bar(plan.steps(), ProgressUnit::Steps);
    let (target, results) =
        pattern::measure(target, agent.as_ref(), &plan, &mut |what| step(&progress, what))?;
    progress.finish_and_clear();
    Ok((again(target), results))
}

/// Minimum size of a working set, in bytes: a smaller one has too few pages to be divided into shares.
const BYTES_MIN: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read() {
        for (text, expected) in [("1", 1.0), ("250", 250.0), ("1.5k", 1500.0), ("2K", 2000.0), ("2M", 2e6)] {
            assert_eq!(rate(text).unwrap(), expected);
        }
        for text in ["", "k", "0", "-5", "1G", "101M", "nan"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }
}
