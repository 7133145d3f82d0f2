//! RDMA as a machine without a card has it: the kernel's soft-RoCE at both ends of a cable, measured by perftest, with this
//! system beside it on the same kernel.

use cxloe_system::guest::*;
use cxloe_system::{Outcome, ensure};

/// Every figure of both, and nothing left of the devices. Sizes are small: a packet takes an emulated machine long.
pub fn soft_roce_beside_this_system() -> Outcome {
    let bench = cxloe_lab::program("cxloe-bench")?;
    let programs = bench.parent().ok_or("a program lies in a folder")?.display().to_string();
    let soft_roce = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/vm/soft-roce");
    let command = format!(
        "set -e
        modprobe -a veth af_packet
        {soft_roce} up
        cd /run
        {programs}/cxloe-bench compare --only rdma,cxloe-packet --trials 1 --size 128K --operations 100 --each 50ms \
            --depth 16 --csv x.csv
        cat x.csv
        {soft_roce} down
        ls /sys/class/infiniband | wc -l"
    );
    let said = ended(guest(&["--memory", "1536", "--timeout", "500"], &command)?, 0)?;
    for peer in ["rdma", "cxloe-packet"] {
        for pattern in ["read64", "write64", "read4k", "stream64", "bulk_read", "bulk_write"] {
            let start = format!("{peer},{pattern},");
            let line = said
                .lines()
                .find(|line| line.starts_with(&start))
                .ok_or(format!("no {start} in:\n{said}"))?;
            let positive =
                line.split(',').skip(2).any(|field| field.parse().is_ok_and(|value: f64| value > 0.0));
            ensure(positive && line.ends_with(",1"), line)?;
        }
    }
    // Of the tool's own list of times: as many as it was told to make, less the first.
    let count = |start: &str| -> Option<u64> {
        said.lines().find(|line| line.starts_with(start))?.split(',').nth(8)?.parse().ok()
    };
    ensure(count("rdma,read64,") == Some(99), said.clone())?;
    ensure(said.lines().last() == Some("0"), said)
}
