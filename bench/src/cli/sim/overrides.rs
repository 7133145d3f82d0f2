//! Options of `cxloe-bench sim` that replace values drawn from scenario and seed.

use std::time::Duration;

use clap::Args;
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::ByteSize;
use cxloe_net::impairment::Burst;
use cxloe_net::rate::Rate;
use cxloe_sim::{Overrides, PlantedFault, line_cache};
use cxloe_wire::random::Probability;

use super::by_name::by_name;

/// Values that replace those that scenario and seed draw.
#[derive(Args, Clone, Debug)]
pub struct OverrideArgs {
    /// Share of frames that are lost, each independently of the others: 1% or 0.01
    #[arg(long, value_name = "P", help_heading = "Network")]
    loss: Option<Probability>,

    /// Losses in bursts: probabilities that a burst begins and that it ends, at each frame, as in 0.1%/20%
    #[arg(long, value_name = "P/P", help_heading = "Network")]
    burst: Option<Burst>,

    /// Share of frames that arrive twice
    #[arg(long, value_name = "P", help_heading = "Network")]
    duplicate: Option<Probability>,

    /// Share of frames that are overtaken by others
    #[arg(long, value_name = "P", help_heading = "Network")]
    reorder: Option<Probability>,

    /// Share of frames with damaged bits
    #[arg(long, value_name = "P", help_heading = "Network")]
    corrupt: Option<Probability>,

    /// Share of frames that arrive again about 65 536 frames later
    #[arg(long, value_name = "P", help_heading = "Network")]
    late: Option<Probability>,

    /// Time from sending to arrival, as in 500ns or 10us
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, help_heading = "Network")]
    delay: Option<Duration>,

    /// Maximum additional time, drawn for each frame
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, help_heading = "Network")]
    jitter: Option<Duration>,

    /// Rate of every node's wire in each direction, as in 100Gbit
    #[arg(long, value_name = "RATE", help_heading = "Network")]
    link_rate: Option<Rate>,

    /// Number of faults to inject into nodes and network, of the scenario's kinds
    #[arg(long, value_name = "N", help_heading = "Network")]
    faults: Option<u64>,

    /// Number of compute nodes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64), help_heading = "Nodes")]
    cns: Option<u8>,

    /// Number of workers of each compute node
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16), help_heading = "Nodes")]
    workers: Option<u8>,

    /// Number of memory nodes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16), help_heading = "Nodes")]
    mns: Option<u8>,

    /// Number of operations of each compute node
    #[arg(long, value_name = "N", help_heading = "Nodes")]
    operations: Option<u64>,

    /// Interleave regions over this many memory nodes: 1, 2, 3, 4, 6, 8, 12 or 16
    #[arg(long, value_name = "WAYS", help_heading = "Nodes")]
    ways: Option<Ways>,

    /// Interleave granularity: 256 to 16K
    #[arg(long, value_name = "BYTES", help_heading = "Nodes")]
    granularity: Option<Granularity>,

    /// Maximum number of operations in flight of a compute node
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512), help_heading = "Nodes")]
    depth: Option<u16>,

    /// Maximum time from one operation of a compute node to its next
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, help_heading = "Nodes")]
    think: Option<Duration>,

    /// Number of streams of each session
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16), help_heading = "Nodes")]
    streams: Option<u8>,

    /// Size of the line cache of each compute node; 0 for none
    #[arg(long, value_name = "SIZE", value_parser = cache_size, help_heading = "Nodes")]
    cache: Option<ByteSize>,

    /// Maximum number of frames in the receive queue of a memory node
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Nodes")]
    fifo: Option<u16>,

    /// Number of frames in the receive queue above which a memory node signals congestion; 0 for never
    #[arg(long, value_name = "FRAMES", help_heading = "Nodes")]
    threshold: Option<u16>,

    /// Frames that a memory node processes per microsecond [default: unlimited]
    #[arg(long, value_name = "FRAMES/US", value_parser = service_rate, help_heading = "Nodes")]
    service_rate: Option<f64>,

    /// Make the nodes work wrongly in this way, to test the checker
    #[arg(long, value_name = "MISTAKE", value_parser = by_name::<PlantedFault>(), help_heading = "Nodes")]
    plant: Option<PlantedFault>,
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
    line_cache(size).check().map(|()| size)
}

impl From<OverrideArgs> for Overrides {
    fn from(args: OverrideArgs) -> Overrides {
        Overrides {
            loss: args.loss,
            burst: args.burst,
            duplicate: args.duplicate,
            reorder: args.reorder,
            corrupt: args.corrupt,
            late: args.late,
            delay: args.delay,
            jitter: args.jitter,
            link_rate: args.link_rate,
            faults: args.faults,
            cns: args.cns,
            workers: args.workers,
            mns: args.mns,
            operations: args.operations,
            ways: args.ways,
            granularity: args.granularity,
            depth: args.depth,
            think: args.think,
            streams: args.streams,
            cache: args.cache,
            fifo: args.fifo,
            threshold: args.threshold,
            service_rate: args.service_rate,
            plant: args.plant,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        overrides: OverrideArgs,
    }

    fn parse(text: &str) -> Overrides {
        Cli::parse_from(std::iter::once("sim").chain(text.split_whitespace())).overrides.into()
    }

    #[test]
    fn options_read_back_as_they_were() {
        let all = "--loss 1% --burst 0.1%/20% --duplicate 2% --reorder 0.5 --corrupt 0.01% --late 0.1% \
                   --delay 1500ns --jitter 2us --link-rate 100Gbit --faults 3 --cns 4 --workers 2 --mns 2 --ways 2 --granularity 512 --operations 500 \
                   --depth 12 --think 20us --streams 3 --cache 4K --fifo 100 --threshold 50 --service-rate 2.5 \
                   --plant loses-writes";
        let overrides = parse(all);
        let text = overrides.arguments();
        assert_eq!(text.matches("--").count(), all.matches("--").count(), "{text}");
        assert_eq!(parse(&text), overrides, "{text}");
        assert_eq!(Overrides::default().arguments(), "");
    }

    #[test]
    fn invalid_values_are_refused() {
        for wrong in [
            "--cns 0",
            "--cns 65",
            "--workers 17",
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
