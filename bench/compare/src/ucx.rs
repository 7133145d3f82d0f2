//! UCX, measured by its own tool `ucx_perftest` over its TCP transport, at both ends.

use std::process::Command;
use std::time::Duration;

use super::error::{PeerError, tail};
use super::measured::{Measured, Value};
use super::pattern::{AccessOrder, Pattern};
use super::peer::{Facts, Peer, Tool};
use super::plan::Plan;
use super::stage::{
    FAR, FAR_ADDRESS, FAR_INTERFACE, NEAR, NEAR_ADDRESS, NEAR_INTERFACE, Stage, find, iterations,
};
use super::unit::{AccessUnit, LINE};

const PROGRAM: &str = "ucx_perftest";
const PORT: u16 = 13337;
/// Bytes of a megabyte as the tool counts it.
const MEGABYTE: f64 = 1024.0 * 1024.0;
/// Maximum duration of a run, in addition to the time of its operations.
const LIMIT: Duration = Duration::from_secs(60);
/// Number of blocks in flight in bulk patterns.
const BLOCKS_AHEAD: usize = 16;

pub struct Ucx;

impl Peer for Ucx {
    fn name(&self) -> &'static str {
        "ucx-tcp"
    }

    fn facts(&self) -> Facts {
        Facts {
            what: "UCX over TCP, messages and one-sided puts (ucx_perftest)",
            waits: "both ends spin in ucp_worker_progress",
            copies: "kernel in and out of socket buffers, UCX in and out of its own at both ends",
            verified: "nothing: the tool does not look at the data",
            figures: "read64 is a message of 64 bytes there and one back, read4k half of that and half of 4 KiB there and \
                      back, read1m the same with 1 MiB; write64 a put and one back; streams and bulk are messages one \
                      way. Not ucp_get: over TCP it takes a millisecond, many times what a put does. p99 comes from \
                      runs of its own",
        }
    }

    fn tools(&self) -> &'static [Tool] {
        &[Tool { program: PROGRAM, package: "ucx-utils" }]
    }

    fn lacks(&self, pattern: Pattern) -> Option<&'static str> {
        let shape = pattern.read_shape();
        if shape.is_some_and(|shape| shape.order == AccessOrder::Sequential) {
            return Some("messages have no addresses, so there is no order; see the random ones");
        }
        if pattern.load_share().is_some() {
            return Some("ucx_perftest sends as fast as it can, at no other rate");
        }
        (pattern == Pattern::Trace).then_some("ucx_perftest replays no traces")
    }

    fn trial(&self, stage: &Stage, plan: &Plan) -> Result<Vec<Measured>, PeerError> {
        let mut found = Vec::new();
        let there_and_back = |kind, size, each_us, percentile| {
            let test = ToolRun { kind, size, each_us, outstanding: None, from_far: false, percentile };
            test.run(stage, plan)
        };
        let reads = [
            (Pattern::Read64, AccessUnit::Line, 20.0),
            (Pattern::Read4k, AccessUnit::Page, 20.0),
            (Pattern::Read1m, AccessUnit::Stretch, 1000.0),
        ];
        // The tool reports half the time of a round trip with messages of one size. A read sends a small message and
        // receives its bytes, so half of the small round trip and half of the large one are added.
        if reads.iter().any(|(pattern, ..)| plan.has(*pattern)) {
            let small = there_and_back("tag_lat", LINE, 20.0, "50")?;
            for (pattern, unit, each_us) in reads.into_iter().filter(|(pattern, ..)| plan.has(*pattern)) {
                if unit == AccessUnit::Line {
                    let slow = there_and_back("tag_lat", LINE, each_us, "99")?;
                    found.push(round_trip(pattern, [&small, &small], Some(&slow)));
                } else {
                    let large = there_and_back("tag_lat", unit.bytes(), each_us, "50")?;
                    found.push(round_trip(pattern, [&small, &large], None));
                }
            }
        }
        if plan.has(Pattern::Write64) {
            let put = there_and_back("ucp_put_lat", LINE, 20.0, "50")?;
            let slow = there_and_back("ucp_put_lat", LINE, 20.0, "99")?;
            found.push(round_trip(Pattern::Write64, [&put, &put], Some(&slow)));
        }
        for (pattern, each_us, outstanding, from_far) in [
            (Pattern::Stream64, 3.0, AccessUnit::Line.in_flight(plan.depth), true),
            (Pattern::Stream4k, 10.0, AccessUnit::Page.in_flight(plan.depth), true),
            (Pattern::Stream1m, 1000.0, AccessUnit::Stretch.in_flight(plan.depth), true),
            (Pattern::BulkRead, 60.0, BLOCKS_AHEAD, true),
            (Pattern::BulkWrite, 60.0, BLOCKS_AHEAD, false),
        ] {
            if plan.has(pattern) {
                let (size, outstanding) = (pattern.bytes(), Some(outstanding));
                let test = ToolRun { kind: "tag_bw", size, each_us, outstanding, from_far, percentile: "50" };
                found.push(Measured::rate_said(pattern, test.run(stage, plan)?.megabytes_per_s * MEGABYTE));
            }
        }
        Ok(found)
    }
}

/// Time of a round trip, of whose messages there are runs in `halves`: the tool prints half of a run's round trips. `slow`
/// is a run for the 99th percentile.
fn round_trip(pattern: Pattern, halves: [&ToolOutput; 2], slow: Option<&ToolOutput>) -> Measured {
    let sum_ns = |value: fn(&ToolOutput) -> f64| halves.iter().map(|said| value(said) * 1e3).sum::<f64>();
    let value = Value::Said {
        p50_ns: Some(sum_ns(|said| said.percentile_us)),
        p99_ns: slow.map(|said| 2.0 * said.percentile_us * 1e3),
        mean_ns: sum_ns(|said| said.mean_us),
        count: halves[1].iterations,
    };
    Measured { pattern, value }
}

/// Arguments for one run of `ucx_perftest`.
struct ToolRun {
    kind: &'static str,
    size: usize,
    /// Approximate duration of an operation, in microseconds.
    each_us: f64,
    /// Maximum number of messages in flight, if the test supports several.
    outstanding: Option<usize>,
    /// True if the far end sends, so that data come from there.
    from_far: bool,
    percentile: &'static str,
}

impl ToolRun {
    fn run(&self, stage: &Stage, plan: &Plan) -> Result<ToolOutput, PeerError> {
        let program = find(PROGRAM).unwrap_or_else(|| PROGRAM.into());
        let over = |is_near| {
            let mut command: Command = stage.pinned(is_near, &program);
            let interface = if is_near { NEAR_INTERFACE } else { FAR_INTERFACE };
            command.env("UCX_TLS", "tcp").env("UCX_NET_DEVICES", interface);
            command
        };
        let client_is_near = !self.from_far;
        let (own, other, address) =
            if client_is_near { (NEAR, FAR, FAR_ADDRESS) } else { (FAR, NEAR, NEAR_ADDRESS) };
        let server = stage.serve(other, "ucx_perftest-server", PORT, over(!client_is_near))?;
        let count = iterations(plan, self.each_us);
        let mut client = over(client_is_near);
        client.arg(address.to_string()).args(["-t", self.kind, "-s", &self.size.to_string()]);
        client.args(["-n", &count.to_string(), "-w", &(count / 10).to_string()]);
        client.args(["-R", self.percentile, "-f", "-v"]);
        if let Some(outstanding) = self.outstanding {
            client.args(["-O", &outstanding.to_string()]);
        }
        let said = stage.run(own, PROGRAM, client, LIMIT)?;
        server.end(Duration::from_secs(2));
        parse(&said)
    }
}

/// Figures in the output of a run.
#[derive(Debug, PartialEq)]
struct ToolOutput {
    iterations: u64,
    percentile_us: f64,
    mean_us: f64,
    megabytes_per_s: f64,
}

/// Reads the last line of the tool's CSV: iterations, percentile, average and overall latency, average and overall
/// bandwidth, average and overall message rate.
fn parse(output: &str) -> Result<ToolOutput, PeerError> {
    let missing = |missing| PeerError::Output { program: PROGRAM, missing, said: tail(output) };
    let mut lines = output.lines().skip_while(|line| !line.trim().starts_with("iterations,"));
    lines.next().ok_or_else(|| missing("line of column names"))?;
    let row = lines.map(str::trim).filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).last();
    let row = row.ok_or_else(|| missing("line of figures"))?;
    let fields: Vec<f64> = row.split(',').filter_map(|field| field.trim().parse().ok()).collect();
    match fields[..] {
        [iterations, percentile_us, _, mean_us, _, megabytes_per_s, ..] => {
            Ok(ToolOutput { iterations: iterations as u64, percentile_us, mean_us, megabytes_per_s })
        }
        _ => Err(missing("figures")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_csv_is_read() {
        // Output of UCX 1.13.1, after a warning.
        let output = "[1795303491.450739] [vm:19561:0]     ucp_context.c:1014 UCX  WARN  something\n\
            iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
            100000,6.253,84.880,89.800,0.72,0.68,11781,11136\n";
        let said =
            ToolOutput { iterations: 100_000, percentile_us: 6.253, mean_us: 89.8, megabytes_per_s: 0.68 };
        assert_eq!(parse(output).unwrap(), said);
        let narrow = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n \
            500,24.857,1687.364,1687.364,37.04,37.04,593,593\n";
        let said =
            ToolOutput { iterations: 500, percentile_us: 24.857, mean_us: 1687.364, megabytes_per_s: 37.04 };
        assert_eq!(parse(narrow).unwrap(), said);
    }

    #[test]
    fn an_error_is_no_result() {
        let output = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
            [1795303491.450760] [vm:19561:0]     ucp_context.c:1276 UCX  ERROR no usable transports/devices\n";
        let error = parse(output).unwrap_err().to_string();
        assert!(error.contains("no line of figures") && error.contains("no usable transports"), "{error}");
        assert!(parse("").is_err());
    }
}
