//! `cxloe-bench scale`: throughput by number of queues, or CPU time by number of an agent's workers.

use std::time::Duration;

use cxloe_daemon::{to_stderr, to_stdout};
use cxloe_lab::Interrupt;
use cxloe_measure::machine::{Machine, median};
use cxloe_sim::scaling::{ScalingSetting, simulate};
use cxloe_wire::frame::SHARDS_MAX;
use serde_json::json;

use super::Failure;
use super::common::{OutputArgs, RegionArgs, frames, in_folder, report, shown, write_json};
use super::pair::OptionalLink;
use crate::workers::{self, WorkersOptions, WorkersTrial};
use cxloe_measure::report::Throughput;
use cxloe_measure::scale::{ScalePlan, scale};
use cxloe_port::connect::Shards;

/// Measure how throughput grows with queues, or what workers cost
///
/// For 1, 2, 4, ... queues, as many shards of this compute node read lines, and read and write in bulk; each
/// shard has a thread and a part of a region of its own. The memory node needs as many workers, and both
/// machines as many cores: with fewer, the table shows that it works, and not how fast it is.
///
/// With --workers, in a lab of its own: the CPU time that an agent's workers take for a line and for a page
/// fault, by number of workers. It does not depend on the number of cores.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    link: OptionalLink,
    #[command(flatten)]
    region: RegionArgs,

    /// Simulate instead, with a core for each queue at both ends; the memory node takes this number of
    /// nanoseconds for each frame. Uses neither the interface nor a memory node
    #[arg(long, value_name = "NS")]
    simulate: Option<u64>,

    /// Measure the CPU time for each operation of an agent with this number of workers, in a lab: 1 to 8, as
    /// 1,2,4,8
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=8),
        conflicts_with_all = ["interface", "simulate"])]
    workers: Vec<u8>,

    /// With --workers: operations of each kind on each of eight regions, in a trial
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    operations: u32,

    /// Maximum number of queues: 1, 2, 4, 8 or 16
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = queues)]
    queues: u8,

    /// CPUs of the shards' threads, as 2,3,4,5 [default: not pinned]
    #[arg(long, value_name = "CPU", value_delimiter = ',')]
    cpus: Vec<usize>,

    /// Trials of each measurement
    #[arg(long, value_name = "N", default_value_t = 3)]
    trials: u32,

    /// Length of each trial, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500)]
    each_ms: u64,

    /// Number of requests in flight in each shard
    #[arg(long, value_name = "N", default_value_t = 64)]
    depth: usize,

    #[command(flatten)]
    output: OutputArgs,
}

impl Args {
    /// True if the command makes a lab, for which this process must be able to create namespaces.
    pub fn makes_lab(&self) -> bool {
        !self.workers.is_empty()
    }
}

fn queues(text: &str) -> Result<u8, String> {
    let queues = text.parse().ok().filter(|n: &u8| n.is_power_of_two() && *n <= SHARDS_MAX);
    queues.ok_or_else(|| format!("`{text}` is not one of 1, 2, 4, 8 and {SHARDS_MAX}"))
}

/// Prints the table of the simulated throughput.
fn simulated(worker_frame_ns: u64, queues: u8) -> Result<(), Failure> {
    to_stdout!(
        "simulated: a core for each queue at both ends, {worker_frame_ns} ns a frame at the memory node and half of it at the \
         compute node, 100 Gbit/s; caches and memory bandwidth are not modelled"
    );
    to_stdout!("queues   lines/s     x   read GiB/s     x");
    let mut one = None;
    for queues in (0..).map(|log2| 1 << log2).take_while(|count| *count <= queues) {
        let lines = ScalingSetting {
            shards: queues,
            workers: queues.into(),
            worker_frame_ns,
            shard_frame_ns: worker_frame_ns / 2,
            ..ScalingSetting::default()
        };
        let ops = simulate(&lines)?.ops_per_s;
        let bytes = simulate(&ScalingSetting { lines: 23, depth: 64, ..lines })?.bytes_per_s;
        let (first_ops, first_bytes) = *one.get_or_insert((ops, bytes));
        to_stdout!(
            "{queues:>6} {ops:>9.0} {:>5.2} {:>12.2} {:>5.2}",
            ops / first_ops,
            bytes / f64::from(1 << 30),
            bytes / first_bytes
        );
    }
    Ok(())
}

pub fn run(args: &Args, interrupt: Interrupt) -> Result<(), Failure> {
    if let Some(worker_frame_ns) = args.simulate {
        return simulated(worker_frame_ns, args.queues);
    }
    if args.makes_lab() {
        return by_workers(args, &interrupt);
    }
    let link = args
        .link
        .0
        .as_ref()
        .ok_or("name the interface, as in -i enp3s0f0, or use --workers or --simulate")?;
    let options = args.region.connection(link);
    let plan = ScalePlan {
        trials: args.trials,
        each: Duration::from_millis(args.each_ms),
        depth: args.depth,
        cpus: args.cpus.clone(),
    };
    let numbers = (0..).map(|log2| 1 << log2).take_while(|count| *count <= args.queues);
    let (mut written, mut rows): (_, Vec<(u8, Vec<Throughput>)>) = (None, Vec::new());
    for count in numbers {
        let mut shards = Shards::open(&options, count)?;
        let info = shards.ports[0].link().info().clone();
        let frames = frames(&mut shards.ports[0]);
        let report = written
            .get_or_insert_with(|| report(&info, &frames, vec![info.interface.clone()], link.wait, None));
        let (shards, throughputs) =
            shown(format!("{count} queues"), || scale(shards, &plan, &|| Ok(interrupt.check()?)))?;
        let Shards { ports, lease, .. } = shards;
        // The session of the first shard is closed last, because the sessions of the other shards belong to it.
        for port in ports.into_iter().rev() {
            port.close()?;
        }
        lease.end()?;
        throughputs.iter().cloned().for_each(|throughput| report.add_throughput(throughput));
        rows.push((count, throughputs));
    }
    to_stdout!("{}", table(&rows));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < usize::from(args.queues) {
        to_stdout!(
            "{cores} cores here for up to {} threads: this shows that several queues work, and not how fast they are",
            args.queues
        );
    }
    written.map_or(Ok(()), |report| args.output.write(&report, &[]))
}

/// Measures and prints the CPU time for each operation by number of workers.
fn by_workers(args: &Args, interrupt: &Interrupt) -> Result<(), Failure> {
    let options =
        WorkersOptions { workers: args.workers.clone(), trials: args.trials, operations: args.operations };
    let said = |trial: &WorkersTrial| {
        to_stderr!(
            "{} workers: {:.0} ns for a line, {:.0} ns for a fault",
            trial.workers,
            trial.line_ns,
            trial.fault_ns
        );
    };
    let trials =
        in_folder("cxloe-workers-", interrupt, |folder| workers::run(&options, folder, interrupt, &said))?;
    to_stdout!("{}", workers_table(&args.workers, &trials));
    write_json(&args.output.json, &json!({ "machine": Machine::describe(), "trials": trials }))
}

/// Table with a row for each number of workers: medians, and their ratios to the first row.
fn workers_table(workers: &[u8], trials: &[WorkersTrial]) -> String {
    let mut text = String::from("workers   ns/line     x   ns/fault     x\n");
    let of_trials = |number: u8, of: fn(&WorkersTrial) -> f64| {
        let values: Vec<f64> = trials.iter().filter(|trial| trial.workers == number).map(of).collect();
        median(&values).unwrap_or(f64::NAN)
    };
    let Some(first) = workers.first() else { return text };
    for number in workers {
        let [line, fault] = [|trial: &WorkersTrial| trial.line_ns, |trial: &WorkersTrial| trial.fault_ns]
            .map(|of| (of_trials(*number, of), of_trials(*number, of) / of_trials(*first, of)));
        text += &format!("{number:>7} {:>9.0} {:>5.2} {:>10.0} {:>5.2}\n", line.0, line.1, fault.0, fault.1);
    }
    text
}

/// Table with a row for each number of queues: total rate, and its ratio to the rate with one queue.
fn table(rows: &[(u8, Vec<Throughput>)]) -> String {
    let mut text = String::from("queues   lines/s     x   read GiB/s     x   write GiB/s     x\n");
    let Some((_, first)) = rows.first() else { return text };
    for (queues, now) in rows {
        let [lines, read, write] = [0, 1, 2].map(|kind| now.get(kind).zip(first.get(kind)));
        let of = |pair: Option<(&Throughput, &Throughput)>, value: fn(&Throughput) -> f64| {
            pair.map_or((0.0, 0.0), |(now, one)| (value(now), value(now) / value(one).max(1.0)))
        };
        let (lines, lines_x) = of(lines, |t| t.ops_per_s);
        let (read, read_x) = of(read, |t| t.bytes_per_s);
        let (write, write_x) = of(write, |t| t.bytes_per_s);
        let gib = f64::from(1 << 30);
        text.push_str(&format!(
            "{queues:>6} {lines:>9.0} {lines_x:>5.2} {:>12.2} {read_x:>5.2} {:>13.2} {write_x:>5.2}\n",
            read / gib,
            write / gib
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_all_queues_do_and_how_often_that_of_one() {
        let throughput = |ops: f64| Throughput {
            name: String::new(),
            ops_per_s: ops,
            bytes_per_s: ops * f64::from(1 << 20),
            trials: Vec::new(),
        };
        let row = |queues, ops| (queues, vec![throughput(ops), throughput(ops), throughput(2.0 * ops)]);
        let text = table(&[row(1, 1024.0), row(4, 3072.0)]);
        let last = text.lines().last().unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(last, ["4", "3072", "3.00", "3.00", "3.00", "6.00", "3.00"]);
    }

    #[test]
    fn a_row_has_the_median_of_its_trials() {
        let trial = |workers, line_ns, fault_ns| WorkersTrial { workers, line_ns, fault_ns };
        let all = [
            (1, 100.0, 10.0),
            (2, 90.0, 20.0),
            (1, 300.0, 10.0),
            (2, 210.0, 5.0),
            (1, 200.0, 10.0),
            (2, 220.0, 15.0),
        ];
        let text = workers_table(&[1, 2], &all.map(|(workers, line, fault)| trial(workers, line, fault)));
        let last = text.lines().last().unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(last, ["2", "210", "1.05", "15", "1.50"]);
    }

    #[test]
    fn queues_are_powers_of_two() {
        assert_eq!(queues("16"), Ok(16));
        for wrong in ["0", "3", "32", "", "four"] {
            assert!(queues(wrong).is_err(), "{wrong}");
        }
    }
}
