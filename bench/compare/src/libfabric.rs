//! libfabric, measured by its own tool `fi_pingpong` over its TCP provider, at both ends.

use std::time::Duration;

use super::error::{PeerError, tail};
use super::measured::{Measured, Value};
use super::pattern::{LINE, PAGE, Pattern, Plan};
use super::peer::{Facts, Peer, Tool};
use super::stage::{FAR, FAR_ADDRESS, NEAR, Stage, find, iterations};

const PROGRAM: &str = "fi_pingpong";
const PORT: u16 = 47592;
const LIMIT: Duration = Duration::from_secs(60);

pub struct Libfabric;

impl Peer for Libfabric {
    fn name(&self) -> &'static str {
        "libfabric-tcp"
    }

    fn facts(&self) -> Facts {
        Facts {
            what: "libfabric's tcp provider, messages there and back (fi_pingpong)",
            waits: "both ends spin on their completion queues",
            copies: "kernel in and out of socket buffers, and into the application's",
            verified: "every message, inside the time (fi_pingpong -c)",
            figures: "means: the tool has no percentiles; read64 is 64 bytes there and 64 back, read4k half of that and \
                      half of 4 KiB there and back; no streams, no bulk",
        }
    }

    fn tools(&self) -> &'static [Tool] {
        &[Tool { program: PROGRAM, package: "libfabric-bin" }]
    }

    fn trial(&self, stage: &Stage, plan: &Plan) -> Result<Vec<Measured>, PeerError> {
        let count = iterations(plan, 25.0);
        let line_us = one_way_us(stage, LINE, count)?;
        let page_us = one_way_us(stage, PAGE, count)?;
        let said = |pattern, mean_us: f64| Measured {
            pattern,
            value: Value::Said { p50_ns: None, p99_ns: None, mean_ns: mean_us * 1e3, count },
        };
        Ok(vec![said(Pattern::Read64, 2.0 * line_us), said(Pattern::Read4k, line_us + page_us)])
    }
}

fn one_way_us(stage: &Stage, bytes: usize, count: u64) -> Result<f64, PeerError> {
    let program = find(PROGRAM).unwrap_or_else(|| PROGRAM.into());
    let test = |near| {
        let mut command = stage.pinned(near, &program);
        command.args(["-p", "tcp", "-e", "msg", "-c", "-S", &bytes.to_string(), "-I", &count.to_string()]);
        command
    };
    let server = stage.serve(FAR, "fi_pingpong-server", PORT, test(false))?;
    let mut client = test(true);
    client.arg(FAR_ADDRESS.to_string());
    let said = stage.run(NEAR, PROGRAM, client, LIMIT)?;
    server.end(Duration::from_secs(2));
    parse(&said, bytes)
}

/// Reads the column `usec/xfer` in the line for this size: mean one-way time, in microseconds.
fn parse(output: &str, bytes: usize) -> Result<f64, PeerError> {
    let missing = |missing| PeerError::Output { program: PROGRAM, missing, said: tail(output) };
    let mut lines = output.lines().skip_while(|line| !line.starts_with("bytes"));
    let names = lines.next().ok_or_else(|| missing("line of column names"))?;
    let column = names.split_whitespace().position(|name| name == "usec/xfer");
    let column = column.ok_or_else(|| missing("column usec/xfer"))?;
    // The tool prints sizes as 64, 4k, 1m.
    let size = if bytes.is_multiple_of(1024) { format!("{}k", bytes / 1024) } else { bytes.to_string() };
    let row = lines.find(|line| line.split_whitespace().next() == Some(&size));
    let row = row.ok_or_else(|| missing("line for this size"))?;
    let value = row.split_whitespace().nth(column).and_then(|field| field.parse().ok());
    value.ok_or_else(|| missing("figure"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_table_is_read() {
        // Output of libfabric 1.17.0.
        let output = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
            64      10k     =10k     1.2m        8.28s      0.15     413.82       0.00\n\
            4k      10k     =10k     78m         1.29s     63.34      64.66       0.02\n";
        assert_eq!(parse(output, 64).unwrap(), 413.82);
        assert_eq!(parse(output, 4096).unwrap(), 64.66);
        assert!(parse(output, 8192).unwrap_err().to_string().contains("no line for this size"));
        assert!(parse("inject(): util/pingpong.c:1256, ret=-2 (No such file or directory)", 64).is_err());
    }
}
