//! NVMe over TCP by the kernel at both ends of a cable, measured beside this system on the same kernel, which is left as
//! it was.

use cxloe_system::guest::*;
use cxloe_system::{Outcome, ensure};

/// Every figure of both systems is measured and checked, the archive has the settings of the target, and afterwards the
/// kernel has neither a target nor a controller. Sizes are small, because an emulated machine is slow.
pub fn over_tcp_beside_this_system() -> Outcome {
    let bench = cxloe_lab::program("cxloe-bench")?;
    let programs = bench.parent().ok_or("a program lies in a folder")?.display().to_string();
    let command = format!(
        "set -e
        modprobe -a veth af_packet nvme-tcp nvmet-tcp
        cd /run
        {programs}/cxloe-bench compare --only nvme-tcp,cxloe-packet --trials 1 --size 128K --operations 100 \
            --each 50ms --depth 16 --csv x.csv --archive x.tar.gz
        cat x.csv
        tar -xOzf x.tar.gz cxloe-compare/settings/nvme-tcp.txt
        mkdir config
        mount -t configfs none config
        ls config/nvmet/subsystems config/nvmet/ports /sys/class/nvme | grep -c . || true
        ls /dev/shm | wc -l"
    );
    let output_text = ended(guest(&["--memory", "1536", "--timeout", "500"], &command)?, 0)?;
    let times = [
        "read64",
        "seq64",
        "read4k",
        "seq4k",
        "stream64",
        "stream4k",
        "load50",
        "load90",
        "write64",
        "bulk_read",
        "bulk_write",
    ];
    for peer in ["nvme-tcp", "cxloe-packet"] {
        for pattern in times {
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
    ensure(output_text.contains("addr_traddr 10.77.0.2"), output_text.clone())?;
    // The names of the three listed folders, and nothing in them; nothing in memory.
    let last: Vec<&str> = output_text.lines().rev().take(2).collect();
    ensure(last == ["0", "3"], output_text)
}
