//! UCX: its own `ucx_perftest` over its TCP transport, at both ends.

use std::process::Command;
use std::time::Duration;

use super::error::{PeerError, tail};
use super::measured::{Measured, Value};
use super::pattern::{BLOCK, LINE, PAGE, Pattern, Plan};
use super::peer::{Facts, Peer, Tool};
use super::stage::{FAR, FAR_ADDRESS, FAR_INTERFACE, NEAR, NEAR_INTERFACE, Stage, find, iterations};

const PROGRAM: &str = "ucx_perftest";
const PORT: u16 = 13337;
/// The tool's MB.
const MEGABYTE: f64 = 1024.0 * 1024.0;
/// How long a run may take beyond its operations.
const LIMIT: Duration = Duration::from_secs(60);
/// Blocks in flight in bulk.
const BLOCKS_AHEAD: &str = "16";

/// UCX.
pub struct Ucx;

impl Peer for Ucx {
    fn name(&self) -> &'static str {
        "ucx-tcp"
    }

    fn facts(&self) -> Facts {
        Facts {
            what: "UCX over TCP, one-sided get and put (ucx_perftest)",
            waits: "both ends spin in ucp_worker_progress",
            copies: "kernel in and out of socket buffers, UCX in and out of its own at both ends",
            verified: "nothing: the tool does not look at the data",
            figures: "p50 and p99 come from runs of their own; write64 is a put and one back: the tool's figure twice",
        }
    }

    fn tools(&self) -> &'static [Tool] {
        &[Tool { program: PROGRAM, package: "ucx-utils" }]
    }

    fn trial(&self, stage: &Stage, plan: &Plan) -> Result<Vec<Measured>, PeerError> {
        let one = ["-O", "1"];
        let get = |size| Test { kind: "ucp_get", size, each_us: 20.0, more: &one };
        let put = Test { kind: "ucp_put_lat", size: LINE, each_us: 20.0, more: &[] };
        let mut found = Vec::new();
        for (pattern, test, ways) in [
            (Pattern::Read64, get(LINE), 1.0),
            (Pattern::Write64, put, 2.0),
            (Pattern::Read4k, get(PAGE), 1.0),
        ] {
            let count = iterations(plan, test.each_us);
            let half = test.run(stage, count, "50")?;
            let tail = test.run(stage, count, "99")?;
            let value = Value::Said {
                p50_ns: Some(ways * half.percentile_us * 1e3),
                p99_ns: Some(ways * tail.percentile_us * 1e3),
                mean_ns: ways * half.mean_us * 1e3,
                count: half.iterations,
            };
            found.push(Measured { pattern, value });
        }
        let depth = plan.depth.to_string();
        let (lines, blocks) = (["-O", &depth], ["-O", BLOCKS_AHEAD]);
        for (pattern, kind, size, each_us, more) in [
            (Pattern::Stream64, "ucp_get", LINE, 3.0, &lines[..]),
            (Pattern::BulkRead, "ucp_get", BLOCK, 60.0, &blocks),
            (Pattern::BulkWrite, "ucp_put_bw", BLOCK, 60.0, &blocks),
        ] {
            let test = Test { kind, size, each_us, more };
            let said = test.run(stage, iterations(plan, each_us), "50")?;
            found.push(Measured::rate_said(pattern, said.megabytes_per_s * MEGABYTE));
        }
        Ok(found)
    }
}

/// One run of the tool.
struct Test<'a> {
    kind: &'static str,
    size: usize,
    /// What an operation takes, roughly, in microseconds.
    each_us: f64,
    more: &'a [&'a str],
}

impl Test<'_> {
    fn run(&self, stage: &Stage, count: u64, percentile: &str) -> Result<Said, PeerError> {
        let program = find(PROGRAM).unwrap_or_else(|| PROGRAM.into());
        let over = |mut command: Command, interface: &str| {
            command.env("UCX_TLS", "tcp").env("UCX_NET_DEVICES", interface);
            command
        };
        let server = over(stage.pinned(false, &program), FAR_INTERFACE);
        let server = stage.serve(FAR, "ucx_perftest-server", PORT, server)?;
        let mut client = over(stage.pinned(true, &program), NEAR_INTERFACE);
        client.arg(FAR_ADDRESS.to_string()).args(["-t", self.kind, "-s", &self.size.to_string()]);
        client.args([
            "-n",
            &count.to_string(),
            "-w",
            &(count / 10).to_string(),
            "-R",
            percentile,
            "-f",
            "-v",
        ]);
        client.args(self.more);
        let said = stage.run(NEAR, PROGRAM, client, LIMIT)?;
        server.end(Duration::from_secs(2));
        parse(&said)
    }
}

/// What a run printed.
#[derive(Debug, PartialEq)]
struct Said {
    iterations: u64,
    percentile_us: f64,
    mean_us: f64,
    megabytes_per_s: f64,
}

/// Reads the last line of the tool's CSV: iterations, percentile, average and overall latency, average and overall
/// bandwidth, average and overall message rate.
fn parse(output: &str) -> Result<Said, PeerError> {
    let missing = |missing| PeerError::Output { program: PROGRAM, missing, said: tail(output) };
    let mut lines = output.lines().skip_while(|line| !line.trim().starts_with("iterations,"));
    lines.next().ok_or_else(|| missing("line of column names"))?;
    let row = lines.map(str::trim).filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).last();
    let row = row.ok_or_else(|| missing("line of figures"))?;
    let fields: Vec<f64> = row.split(',').filter_map(|field| field.trim().parse().ok()).collect();
    match fields[..] {
        [iterations, percentile_us, _, mean_us, _, megabytes_per_s, ..] => {
            Ok(Said { iterations: iterations as u64, percentile_us, mean_us, megabytes_per_s })
        }
        _ => Err(missing("figures")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_csv_is_read() {
        // As version 1.13.1 prints it, with a warning in front.
        let output = "[1795303491.450739] [vm:19561:0]     ucp_context.c:1014 UCX  WARN  something\n\
            iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
            100000,6.253,84.880,89.800,0.72,0.68,11781,11136\n";
        let said = Said { iterations: 100_000, percentile_us: 6.253, mean_us: 89.8, megabytes_per_s: 0.68 };
        assert_eq!(parse(output).unwrap(), said);
        let narrow = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n \
            500,24.857,1687.364,1687.364,37.04,37.04,593,593\n";
        let said = Said { iterations: 500, percentile_us: 24.857, mean_us: 1687.364, megabytes_per_s: 37.04 };
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
