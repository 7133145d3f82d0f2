//! RDMA: `perftest`'s own programs between two verbs devices: cards, or the kernel's RDMA over UDP (soft-RoCE,
//! `rdma_rxe`).
//!
//! Verbs devices stay in the initial namespace, and both programs run there; so the cable between the devices is not
//! the one that the other peers use.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::error::{PeerError, tail};
use super::measured::Measured;
use super::pattern::{AccessOrder, Pattern};
use super::peer::{Facts, Peer, Tool};
use super::plan::Plan;
use super::site::Site;
use super::stage::{HERE, Stage, find, iterations};
use super::unit::{AccessUnit, LINE, STRETCH};
use cxloe_measure::facts::Fact;

const DEVICES: &str = "/sys/class/infiniband";
/// Maximum duration of a run; sufficient on an emulated machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Bytes of a megabyte as the tool counts it.
const MEGABYTE: f64 = 1024.0 * 1024.0;
/// Number of GIDs of a port that are examined.
const GIDS: usize = 32;

/// Peer RDMA, between two verbs devices.
pub struct Rdma;

impl Peer for Rdma {
    fn name(&self) -> &'static str {
        "rdma"
    }

    fn facts(&self) -> Facts {
        Facts {
            what: "RDMA read and write between two verbs devices (perftest, reliable connection)",
            waits: "both ends spin: on the completion queue, and in ib_write_lat on the byte that arrives last",
            copies: "a card none; soft-RoCE the kernel, in and out of packets",
            verified: "the frame's CRC (ICRC); the tools do not look at the data",
            figures: "one buffer is read again and again; write64 is a write and one back: the tool's figure twice; over the \
                      devices' own cable",
        }
    }

    fn tools(&self) -> &'static [Tool] {
        &[
            Tool { program: "ib_read_lat", package: "perftest" },
            Tool { program: "ib_write_lat", package: "perftest" },
            Tool { program: "ib_read_bw", package: "perftest" },
            Tool { program: "ib_write_bw", package: "perftest" },
        ]
    }

    fn hindrance(&self, site: &Site) -> Option<String> {
        let none = "no verbs device with an active port is here; deploy/vm/soft-roce makes two in software, \
                    and `apt-get install ibverbs-providers` brings what talks to them";
        site.rdma.is_none().then(|| none.into())
    }

    fn lacks(&self, pattern: Pattern) -> Option<&'static str> {
        let shape = pattern.read_shape();
        if shape.is_some_and(|shape| shape.order == AccessOrder::Sequential) {
            return Some("perftest's tools read one buffer again and again; see the random ones");
        }
        if pattern.load_share().is_some() {
            return Some("perftest's tools read one at a time, or as fast as they can");
        }
        (pattern == Pattern::Trace).then_some("perftest replays no traces")
    }

    fn trial(&self, stage: &Stage, plan: &Plan) -> Result<Vec<Measured>, PeerError> {
        // A first run with few operations measures the time of an operation on this machine.
        let time_us = |size, count| -> Result<f64, PeerError> {
            let first = ToolRun { program: "ib_read_lat", size, count, more: &["-U"] };
            Ok((mean(&parse_times(first.program, &first.run(stage)?)?) / 1e3).max(1.0))
        };
        let count = iterations(plan, time_us(LINE, 50)?);
        // A page takes about twice as long as a line; 1 MiB takes so much longer that it has a first run of its own.
        // perftest makes five operations at least.
        let stretches = match plan.has(Pattern::Read1m) || plan.has(Pattern::Stream1m) {
            true => (plan.each.as_secs_f64() * 1e6 / time_us(STRETCH, 5)?) as u64,
            false => 0,
        };
        let stretches = stretches.clamp(5, plan.operations.max(5));
        let half = (count / 2).max(100);
        let mut found = Vec::new();
        for (pattern, program, count, ways) in [
            (Pattern::Read64, "ib_read_lat", count, 1),
            (Pattern::Read4k, "ib_read_lat", half, 1),
            (Pattern::Read1m, "ib_read_lat", stretches, 1),
            (Pattern::Write64, "ib_write_lat", half, 2),
        ] {
            if plan.has(pattern) {
                let said = ToolRun { program, size: pattern.bytes(), count, more: &["-U"] }.run(stage)?;
                let times = parse_times(program, &said)?.into_iter().map(|time| ways * time).collect();
                found.push(Measured::times(pattern, times));
            }
        }
        for (pattern, program, count, unit) in [
            (Pattern::Stream64, "ib_read_bw", count / 2, AccessUnit::Line),
            (Pattern::Stream4k, "ib_read_bw", count / 4, AccessUnit::Page),
            (Pattern::Stream1m, "ib_read_bw", stretches, AccessUnit::Stretch),
            (Pattern::BulkRead, "ib_read_bw", count / 16, AccessUnit::Line),
            (Pattern::BulkWrite, "ib_write_bw", count / 16, AccessUnit::Line),
        ] {
            if plan.has(pattern) {
                let (size, depth) = (pattern.bytes(), unit.in_flight(plan.depth).to_string());
                let count = count.max(20);
                let said = ToolRun { program, size, count, more: &["-t", &depth] }.run(stage)?;
                found.push(Measured::rate_said(pattern, parse_bandwidth(program, &said, size)? * MEGABYTE));
            }
        }
        Ok(found)
    }
}

/// One run of one of perftest's tools.
struct ToolRun<'a> {
    program: &'static str,
    size: usize,
    count: u64,
    more: &'a [&'a str],
}

impl ToolRun<'_> {
    fn run(&self, stage: &Stage) -> Result<String, PeerError> {
        let (near, far) = stage.site.rdma.as_ref().expect("a peer that is hindered is not measured");
        // The tools first exchange addresses over TCP, for which they need a free port.
        let free = || TcpListener::bind("127.0.0.1:0").and_then(|listener| Ok(listener.local_addr()?.port()));
        let port = stage.lab.enter(HERE, free)?.map_err(PeerError::io("finding a free port"))?;
        let program = find(self.program).unwrap_or_else(|| self.program.into());
        let test = |is_near, device: &str| {
            let mut command: Command = stage.pinned(is_near, &program);
            command.args(["-F", "-d", device, "-p", &port.to_string(), "-s", &self.size.to_string()]);
            command.args(["-n", &self.count.to_string()]).args(self.more);
            if let Some(gid) = gid_index(&Path::new(DEVICES).join(device)) {
                command.args(["-x", &gid.to_string()]);
            }
            command
        };
        let server = stage.serve(HERE, &format!("{}-server", self.program), port, test(false, far))?;
        let mut client = test(true, near);
        client.arg("127.0.0.1");
        let said = stage.run(HERE, self.program, client, LIMIT)?;
        server.end(Duration::from_secs(2));
        Ok(said)
    }
}

/// Devices between which to measure: the first two with an active port; or twice the first, if there is only one.
pub fn devices() -> Option<(String, String)> {
    let mut active: Vec<String> = fs::read_dir(DEVICES)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|device| {
            fs::read_to_string(device.path().join("ports/1/state")).is_ok_and(|s| s.contains("ACTIVE"))
        })
        .map(|device| device.file_name().to_string_lossy().into_owned())
        .collect();
    active.sort();
    let first = active.first()?.clone();
    let second = active.get(1).unwrap_or(&first).clone();
    Some((first, second))
}

/// Facts of a verbs device: card, firmware, and the rate of its port.
pub fn facts(device: &str) -> Vec<Fact> {
    let folder = Path::new(DEVICES).join(device);
    let files =
        [("card", "hca_type"), ("board", "board_id"), ("firmware", "fw_ver"), ("rate", "ports/1/rate")];
    let read = |(name, file): (&str, &str)| {
        let value = fs::read_to_string(folder.join(file)).ok()?;
        let value = value.trim();
        (!value.is_empty()).then(|| Fact::new(format!("{device}: {name}"), value))
    };
    files.into_iter().filter_map(read).collect()
}

/// Index of the first GID that is an IPv4 address with RoCE v2; `None` on InfiniBand, which needs none.
fn gid_index(device: &Path) -> Option<usize> {
    let port = device.join("ports/1");
    (0..GIDS).find(|index| {
        let read =
            |what: &str| fs::read_to_string(port.join(what).join(index.to_string())).unwrap_or_default();
        read("gids").starts_with("0000:0000:0000:0000:0000:ffff:")
            && read("gid_attrs/types").trim() == "RoCE v2"
    })
}

fn mean(times: &[u64]) -> f64 {
    times.iter().sum::<u64>() as f64 / times.len().max(1) as f64
}

/// Times in nanoseconds, from the lines `number, microseconds` that the option `-U` prints.
fn parse_times(program: &'static str, output: &str) -> Result<Vec<u64>, PeerError> {
    let times: Vec<u64> = output
        .lines()
        .skip_while(|line| line.trim() != "#, usec")
        .skip(1)
        .map_while(|line| {
            let (number, time_us) = line.split_once(',')?;
            number.trim().parse::<u64>().ok()?;
            time_us.trim().parse::<f64>().ok().map(|us| (us * 1e3).round() as u64)
        })
        .collect();
    if times.is_empty() {
        return Err(PeerError::Output { program, missing: "lines `number, usec`", said: tail(output) });
    }
    Ok(times)
}

/// Column `BW average[MB/sec]` in the line for this size.
fn parse_bandwidth(program: &'static str, output: &str, size: usize) -> Result<f64, PeerError> {
    let missing = |missing| PeerError::Output { program, missing, said: tail(output) };
    let mut lines = output.lines().skip_while(|line| !line.contains("BW average[MB/sec]"));
    lines.next().ok_or_else(|| missing("column BW average[MB/sec]"))?;
    let size = size.to_string();
    let row = lines.find(|line| line.split_whitespace().next() == Some(&size));
    // Columns: bytes, iterations, peak, average, messages.
    let average = row.ok_or_else(|| missing("line for this size"))?.split_whitespace().nth(3);
    average.and_then(|field| field.parse().ok()).ok_or_else(|| missing("figure"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of perftest 4.5 over soft-RoCE.
    const LATENCY: &str = "\
---------------------------------------------------------------------------------------
Device not recognized to implement inline feature. Disabling it
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
#, usec
1, 62752.5
2, 880.094
3, 287.023
---------------------------------------------------------------------------------------
 64      20          188.94         4920.86      232.26   \t       582.25      \t1061.72\t\t4920.86 \t\t4920.86
---------------------------------------------------------------------------------------
";
    const BANDWIDTH: &str = "\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      50               6.27               5.17   \t\t   0.000083
---------------------------------------------------------------------------------------
";

    #[test]
    fn the_tools_lists_and_tables_are_read() {
        assert_eq!(parse_times("ib_read_lat", LATENCY).unwrap(), [62_752_500, 880_094, 287_023]);
        assert_eq!(parse_bandwidth("ib_read_bw", BANDWIDTH, 65536).unwrap(), 5.17);
    }

    #[test]
    fn another_output_is_refused() {
        let error = parse_times("ib_read_lat", "Couldn't connect to 127.0.0.1:18515").unwrap_err();
        assert!(error.to_string().contains("Couldn't connect"), "{error}");
        assert!(parse_bandwidth("ib_read_bw", BANDWIDTH, 64).is_err());
        assert!(parse_bandwidth("ib_read_bw", LATENCY, 64).is_err());
    }

    #[test]
    fn the_gid_is_one_of_ipv4_with_roce_v2() {
        let folder = tempfile::tempdir().unwrap();
        let port = folder.path().join("ports/1");
        for (what, values) in [
            (
                "gids",
                [
                    "fe80:0000:0000:0000:1c6f:11ff:fe74:ce26\n",
                    "0000:0000:0000:0000:0000:ffff:0a4e:0001\n",
                    "0000:0000:0000:0000:0000:ffff:0a4e:0001\n",
                ],
            ),
            ("gid_attrs/types", ["RoCE v2\n", "IB/RoCE v1\n", "RoCE v2\n"]),
        ] {
            let place = port.join(what);
            fs::create_dir_all(&place).unwrap();
            for (index, value) in values.iter().enumerate() {
                fs::write(place.join(index.to_string()), value).unwrap();
            }
        }
        assert_eq!(gid_index(folder.path()), Some(2));
        assert_eq!(gid_index(&folder.path().join("none")), None);
    }
}
