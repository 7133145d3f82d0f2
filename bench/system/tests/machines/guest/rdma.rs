//! RDMA without an RDMA card: the kernel's soft-RoCE at both ends of a cable, measured by perftest, and this system
//! measured on the same kernel.

use cxloe_system::guest::*;
use cxloe_system::{Outcome, ensure};

/// Every figure of both systems is measured, and the devices are removed afterwards. Sizes are small, because an
/// emulated machine is slow.
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
    let output_text = ended(guest(&["--memory", "1536", "--timeout", "500"], &command)?, 0)?;
    for peer in ["rdma", "cxloe-packet"] {
        for pattern in ["read64", "write64", "read4k", "stream64", "stream4k", "bulk_read", "bulk_write"] {
            let start = format!("{peer},{pattern},");
            let line = output_text
                .lines()
                .find(|line| line.starts_with(&start))
                .ok_or(format!("no {start} in:\n{output_text}"))?;
            let positive =
                line.split(',').skip(2).any(|field| field.parse().is_ok_and(|value: f64| value > 0.0));
            ensure(positive && line.ends_with(",1"), line)?;
        }
    }
    // perftest lists a time for each requested round except the first.
    let count = |start: &str| -> Option<u64> {
        output_text.lines().find(|line| line.starts_with(start))?.split(',').nth(9)?.parse().ok()
    };
    ensure(count("rdma,read64,") == Some(99), output_text.clone())?;
    ensure(output_text.lines().last() == Some("0"), output_text)
}
