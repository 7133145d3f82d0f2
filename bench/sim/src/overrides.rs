//! What the user sets instead of leaving it to scenario and seed: the options of the command, too.

use std::fmt::Display;
use std::time::Duration;

use clap::Args;
use cxloe_cn_core::cache::CacheConfig;
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::ByteSize;
use cxloe_link::impairment::Burst;
use cxloe_link::limit::Rate;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::random::Probability;

use crate::layout::Interleave;
use crate::mistake::Mistake;
use crate::plan::Plan;

/// Losses up to this much are made good by sending again, whatever the seed.
const HARMLESS_LOSS: f64 = 0.02;

/// What has the last word over a [`Plan`]; what is `None` stays as it was drawn.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Frames lost, one by one: 1% or 0.01
    #[arg(long, value_name = "P", help_heading = "Network")]
    pub loss: Option<Probability>,

    /// Losses in bursts: the probabilities to enter and to leave one at each frame, as in 0.1%/20%
    #[arg(long, value_name = "P/P", help_heading = "Network")]
    pub burst: Option<Burst>,

    /// Frames that arrive twice
    #[arg(long, value_name = "P", help_heading = "Network")]
    pub duplicate: Option<Probability>,

    /// Frames that others overtake
    #[arg(long, value_name = "P", help_heading = "Network")]
    pub reorder: Option<Probability>,

    /// Frames with damaged bits
    #[arg(long, value_name = "P", help_heading = "Network")]
    pub corrupt: Option<Probability>,

    /// Frames of which a copy arrives about 65 536 frames later
    #[arg(long, value_name = "P", help_heading = "Network")]
    pub late: Option<Probability>,

    /// From sending to arrival, as in 500ns or 10us
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, help_heading = "Network")]
    pub delay: Option<Duration>,

    /// Up to this much more, drawn for each frame
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, help_heading = "Network")]
    pub jitter: Option<Duration>,

    /// Rate of every node's wire, each way, as in 100Gbit
    #[arg(long, value_name = "RATE", help_heading = "Network")]
    pub link_rate: Option<Rate>,

    /// Times that something befalls the nodes; which things, the scenario says
    #[arg(long, value_name = "N", help_heading = "Network")]
    pub troubles: Option<u64>,

    /// Compute nodes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64), help_heading = "Nodes")]
    pub cns: Option<u8>,

    /// Memory nodes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16), help_heading = "Nodes")]
    pub mns: Option<u8>,

    /// Operations that each compute node makes
    #[arg(long, value_name = "N", help_heading = "Nodes")]
    pub operations: Option<u64>,

    /// Spread regions over so many memory nodes: 1, 2, 3, 4, 6, 8, 12 or 16
    #[arg(long, value_name = "WAYS", help_heading = "Nodes")]
    pub ways: Option<Ways>,

    /// In chunks of this size, where they are spread: 256 to 16K
    #[arg(long, value_name = "BYTES", help_heading = "Nodes")]
    pub granularity: Option<Granularity>,

    /// Operations of a compute node on their way at once, at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512), help_heading = "Nodes")]
    pub depth: Option<u16>,

    /// Longest time from one operation of a compute node to its next
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, help_heading = "Nodes")]
    pub think: Option<Duration>,

    /// Streams of each session
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16), help_heading = "Nodes")]
    pub streams: Option<u8>,

    /// Line cache of each compute node; 0 for none
    #[arg(long, value_name = "SIZE", value_parser = cache_size, help_heading = "Nodes")]
    pub cache: Option<ByteSize>,

    /// Frames that the receive queue of a memory node holds
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Nodes")]
    pub fifo: Option<u16>,

    /// Frames in that queue above which the memory node asks for less; 0 for never
    #[arg(long, value_name = "FRAMES", help_heading = "Nodes")]
    pub threshold: Option<u16>,

    /// Frames that a memory node takes in per microsecond [default: as many as come]
    #[arg(long, value_name = "FRAMES/US", value_parser = service_rate, help_heading = "Nodes")]
    pub service_rate: Option<f64>,

    /// Make the nodes break a rule on purpose, to see the checker find it
    #[arg(long, value_name = "MISTAKE", help_heading = "Nodes")]
    pub plant: Option<Mistake>,
}

fn service_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.001..=1000.0).contains(&rate) => Ok(rate),
        _ => Err("write frames per microsecond, 0.001 to 1000".into()),
    }
}

fn cache_size(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|e| format!("{e}"))?;
    if size.0 > 64 << 20 {
        return Err("a line cache has at most 64M".into());
    }
    cache_of(size).check().map(|()| size)
}

/// Four ways, as the paper has them, or fewer where there are fewer lines.
fn cache_of(size: ByteSize) -> CacheConfig {
    let bytes = size.0 as usize;
    CacheConfig { bytes, ways: (bytes / LINE_SIZE).clamp(1, 4) }
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

impl Overrides {
    /// Has the last word.
    pub(crate) fn apply(&self, plan: &mut Plan) {
        let faults = &mut plan.path.faults;
        set(&mut faults.drop, self.loss);
        set(&mut faults.duplicate, self.duplicate);
        set(&mut faults.reorder, self.reorder);
        set(&mut faults.corrupt, self.corrupt);
        faults.burst = self.burst.or(faults.burst);
        set(&mut plan.path.late, self.late);
        set(&mut plan.path.delay, self.delay);
        set(&mut plan.path.jitter, self.jitter);
        set(&mut plan.troubles.count, self.troubles);
        if let Some(n) = self.cns {
            plan.cns = plan.cns.iter().cycle().take(n.into()).cloned().collect();
        }
        if (self.mns, self.ways, self.granularity) != (None, None, None) {
            let planned = plan.interleave;
            let ways = self.ways.or(planned.map(|i| i.ways));
            let granularity =
                self.granularity.or(planned.map(|i| i.granularity)).unwrap_or(Granularity::PAGE);
            let least = ways.map_or(0, |ways| ways.count() as usize);
            let mns = self.mns.map_or(plan.mns.len().max(least), usize::from);
            plan.set_interleave(ways.map(|ways| Interleave { ways, granularity }), mns);
        }
        for cn in &mut plan.cns {
            set(&mut cn.operations, self.operations);
            set(&mut cn.depth, self.depth.map(usize::from));
            set(&mut cn.pause, self.think);
            set(&mut cn.streams, self.streams);
            set(&mut cn.cache, self.cache.map(cache_of));
        }
        for mn in &mut plan.mns {
            set(&mut mn.port.fifo_capacity, self.fifo.map(usize::from));
            set(&mut mn.port.fifo_threshold, self.threshold.map(usize::from));
            set(&mut mn.congestion.threshold, self.threshold.map(usize::from));
            set(&mut mn.service, self.service_rate.map(|rate| Duration::from_nanos((1e3 / rate) as u64)));
        }
        let ports =
            plan.cns.iter_mut().map(|cn| &mut cn.port).chain(plan.mns.iter_mut().map(|mn| &mut mn.port));
        for port in ports.filter(|_| self.link_rate.is_some()) {
            (port.egress, port.ingress) = (self.link_rate, self.link_rate);
        }
        let tame = self.loss.is_none_or(|p| p.get() <= HARMLESS_LOSS)
            && self.corrupt.is_none_or(|p| p.get() <= HARMLESS_LOSS)
            && (self.burst, self.troubles, self.fifo, self.service_rate) == (None, None, None, None)
            && (self.delay, self.jitter, self.link_rate, self.cns) == (None, None, None, None);
        plan.all_succeed &= tame;
        plan.mistake = self.plant;
    }

    /// The options that say the same.
    pub fn arguments(&self) -> String {
        let time =
            |t: Option<Duration>| t.map(|t| humantime::format_duration(t).to_string().replace(' ', ""));
        let burst = self.burst.map(|b| format!("{}/{}/{}", b.enter, b.leave, b.loss));
        let plant = self.plant.map(|mistake| mistake.name());
        let parts = [
            option("loss", self.loss),
            option("burst", burst),
            option("duplicate", self.duplicate),
            option("reorder", self.reorder),
            option("corrupt", self.corrupt),
            option("late", self.late),
            option("delay", time(self.delay)),
            option("jitter", time(self.jitter)),
            option("link-rate", self.link_rate),
            option("troubles", self.troubles),
            option("cns", self.cns),
            option("mns", self.mns),
            option("ways", self.ways),
            option("granularity", self.granularity),
            option("operations", self.operations),
            option("depth", self.depth),
            option("think", time(self.think)),
            option("streams", self.streams),
            option("cache", self.cache.map(|size| size.0)),
            option("fifo", self.fifo),
            option("threshold", self.threshold),
            option("service-rate", self.service_rate),
            option("plant", plant),
        ];
        parts.concat()
    }
}

/// One option with a blank before it, nothing where there is no value.
fn option(name: &str, value: Option<impl Display>) -> String {
    value.map_or_else(String::new, |value| format!(" --{name} {value}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Scenario;
    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        overrides: Overrides,
    }

    fn parse(text: &str) -> Overrides {
        Cli::parse_from(std::iter::once("sim").chain(text.split_whitespace())).overrides
    }

    fn drawn(scenario: Scenario, overrides: &Overrides) -> Plan {
        let mut plan = Plan::draw(scenario, 1);
        overrides.apply(&mut plan);
        plan
    }

    #[test]
    fn options_read_back_as_they_were() {
        let all = "--loss 1% --burst 0.1%/20% --duplicate 2% --reorder 0.5 --corrupt 0.01% --late 0.1% \
                   --delay 1500ns --jitter 2us --link-rate 100Gbit --troubles 3 --cns 4 --mns 2 --ways 2 --granularity 512 --operations 500 \
                   --depth 12 --think 20us --streams 3 --cache 4K --fifo 100 --threshold 50 --service-rate 2.5 \
                   --plant loses-writes";
        let overrides = parse(all);
        let text = overrides.arguments();
        assert_eq!(text.matches("--").count(), all.matches("--").count(), "{text}");
        assert_eq!(parse(&text), overrides, "{text}");
        assert_eq!(Overrides::default().arguments(), "");
    }

    #[test]
    fn they_have_the_last_word() {
        let overrides =
            parse("--loss 50% --cns 5 --operations 7 --cache 0 --service-rate 4 --link-rate 10Gbit");
        let plan = drawn(Scenario::Lossy, &overrides);
        assert_eq!((plan.path.faults.drop.get(), plan.cns.len()), (0.5, 5));
        assert!(plan.cns.iter().all(|cn| cn.operations == 7 && cn.cache == CacheConfig::OFF));
        assert!(plan.cns.iter().all(|cn| cn.port.egress == self::parse("--link-rate 10Gbit").link_rate));
        assert_eq!(plan.mns[0].service, Duration::from_nanos(250));
        assert!(!plan.all_succeed, "half of the frames is too much");
        assert!(drawn(Scenario::Lossy, &Overrides::default()).all_succeed);
    }

    #[test]
    fn regions_are_spread_over_as_many_nodes_as_there_are() {
        let interleave = |text: &str, scenario| {
            let plan = drawn(scenario, &parse(text));
            (plan.mns.len(), plan.interleave.map(|i| (i.ways.count(), i.granularity.bytes())))
        };
        assert_eq!(interleave("--ways 12 --granularity 1K", Scenario::Calm), (12, Some((12, 1024))));
        assert_eq!(interleave("--ways 12 --granularity 1K --mns 11", Scenario::Calm), (11, Some((8, 1024))));
        assert_eq!(interleave("--mns 3", Scenario::Calm), (3, None));
        assert!(interleave("", Scenario::Interleaved).1.is_some_and(|(ways, _)| ways > 1));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for wrong in [
            "--cns 0",
            "--cns 65",
            "--ways 5",
            "--granularity 100",
            "--loss 2",
            "--cache 100",
            "--service-rate 0",
            "--depth 0",
            "--burst 1%",
        ] {
            let words = std::iter::once("sim").chain(wrong.split(' '));
            assert!(Cli::try_parse_from(words).is_err(), "{wrong}");
        }
    }
}
