//! libfabric, measured by its own tool `fi_pingpong` over its TCP provider, at both ends.

use std::time::Duration;

use super::error::{PeerError, tail};
use super::measured::{Measured, Value};
use super::pattern::{AccessOrder, Pattern};
use super::peer::{Facts, Peer, Tool};
use super::plan::Plan;
use super::stage::{FAR, FAR_ADDRESS, NEAR, Stage, find, iterations};
use super::unit::LINE;

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
                      half of 4 KiB there and back, read1m the same with 1 MiB",
        }
    }

    fn tools(&self) -> &'static [Tool] {
        &[Tool { program: PROGRAM, package: "libfabric-bin" }]
    }

    fn lacks(&self, pattern: Pattern) -> Option<&'static str> {
        match pattern.read_shape() {
            Some(shape) if shape.is_many => Some("fi_pingpong has one message in flight"),
            Some(shape) if shape.order == AccessOrder::Sequential => {
                Some("messages have no addresses, so there is no order; see the random ones")
            }
            Some(_) => None,
            None => Some("fi_pingpong sends messages there and back, and nothing else"),
        }
    }

    fn trial(&self, stage: &Stage, plan: &Plan) -> Result<Vec<Measured>, PeerError> {
        let mut found = Vec::new();
        let reads = [(Pattern::Read64, 25.0), (Pattern::Read4k, 25.0), (Pattern::Read1m, 1000.0)];
        if !reads.iter().any(|(pattern, _)| plan.has(*pattern)) {
            return Ok(found);
        }
        let (small, _) = one_way_us(stage, plan, LINE, 25.0)?;
        for (pattern, each_us) in reads.into_iter().filter(|(pattern, _)| plan.has(*pattern)) {
            let (large, count) = one_way_us(stage, plan, pattern.bytes(), each_us)?;
            let mean_ns = (small + large) * 1e3;
            let value = Value::Said { p50_ns: None, p99_ns: None, mean_ns, count };
            found.push(Measured { pattern, value });
        }
        Ok(found)
    }
}

/// Mean one-way time of messages of this size in microseconds, and the number of messages; each takes about `each_us`.
fn one_way_us(stage: &Stage, plan: &Plan, bytes: usize, each_us: f64) -> Result<(f64, u64), PeerError> {
    let count = iterations(plan, each_us);
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
    Ok((parse(&said, bytes)?, count))
}

/// Reads the column `usec/xfer` in the line for this size: mean one-way time, in microseconds.
fn parse(output: &str, bytes: usize) -> Result<f64, PeerError> {
    let missing = |missing| PeerError::Output { program: PROGRAM, missing, said: tail(output) };
    let mut lines = output.lines().skip_while(|line| !line.starts_with("bytes"));
    let names = lines.next().ok_or_else(|| missing("line of column names"))?;
    let column = names.split_whitespace().position(|name| name == "usec/xfer");
    let column = column.ok_or_else(|| missing("column usec/xfer"))?;
    // The tool prints sizes as 64, 4k, 1m.
    let size = match bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{}m", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{}k", bytes >> 10),
        bytes => bytes.to_string(),
    };
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
        assert_eq!(parse(&output.replace("4k", "1m"), 1 << 20).unwrap(), 64.66);
        assert!(parse(output, 8192).unwrap_err().to_string().contains("no line for this size"));
        assert!(parse("inject(): util/pingpong.c:1256, ret=-2 (No such file or directory)", 64).is_err());
    }
}
