//! Real CXL memory: an emulated CXL type 3 device, the kernel's own driver, decoders and device files, and a fabric on
//! the same machine. The same commands use a region over Ethernet if the device is missing, and a region on the device
//! otherwise.

use cxloe_system::guest::*;
use cxloe_system::{Outcome, ensure};

/// A user's commands on a region; `carriers` prints what serves each region (Ethernet or a device), in the order of
/// addresses.
const USE: &str = r#"
    agent=$programs/cn-agent
    carriers() { echo $($agent list | sed -n 's/.*"served_by": "\(.*\)".*/\1/p'); }
    shows() { [ "$(carriers)" = "$1" ]; }
    use_region() {
        $agent write $1 --file /run/image --flush
        $agent read $1 --lines 1024 --raw | cmp - /run/image
        $agent write $1+1M --text 'lines of a region' --flush
        $agent read $1+1M | grep -o 'lines of a reg'
    }
    head -c 64K /dev/urandom >/run/image
"#;

/// The commands work without the device, with the device, after the agent was killed, and after the kernel has removed
/// the device.
pub fn device_serves_what_fits() -> Outcome {
    let command = USE.to_owned()
        + r#"
        POOL=32M fabric $programs 8M --backend auto
        use_region scratch
        echo without: $(carriers)

        modprobe -a cxl_acpi cxl_pci cxl_mem cxl_port cxl_pmem
        until_true 20 test -e /sys/bus/cxl/devices/mem0
        until_true 20 sh -c "$agent cxl list | grep 'mem0: no decoder of it is committed'"
        cxl create-region -m mem0 -d decoder0.0 -w 1 -t pmem >/dev/null 2>&1
        modprobe -a nd_pmem dax_pmem device_dax
        $agent cxl list | grep -o 'region0: no DAX device is on it'
        ndctl create-namespace -m devdax -M mem -r region0 >/dev/null
        until_true 20 sh -c "$agent cxl list | grep 'dax0.0.*up to'"
        until_true 20 sh -c "$agent list | grep 'attached before dax0.0'"

        $programs/gmm --manager $CXLOE_MANAGER create-region -s 8M --owner 02:00:00:00:00:01 second >/dev/null
        until_true 60 shows 'ethernet cxl:dax0.0'
        use_region second
        echo with: $(carriers)
        $agent counters | tr -d ' \n' | grep -o '"local_writes":[0-9]*'

        # Nobody says a word about it, and then it dies.
        kill -KILL $(pidof cn-agent)
        $agent run --name cn0 -i cn0 --link packet --wait sleep --manager $CXLOE_MANAGER --insecure --socket $CXLOE_AGENT \
            --data-dir $FABRIC/agent --backend auto >$FABRIC/agent.2.log 2>&1 &
        until_true 60 $agent read second
        $agent read second --lines 1024 --raw | cmp - /run/image
        until_true 60 $agent read scratch
        $agent read scratch --lines 1024 --raw | cmp - /run/image
        echo after: $(carriers)

        daxctl reconfigure-device --mode=system-ram --no-online dax0.0 >/dev/null 2>&1 || true
        until_true 60 sh -c "$agent cxl list | grep 'dax0.0.*no: it is system RAM'"
        until_true 60 sh -c "$agent list | grep 'its content is lost: dax0.0 was made system RAM'"
        $agent read second && exit 9
        $agent read second 2>&1 | grep -o 'the CXL device that serves HPA .* is gone'
        $agent read scratch+1M | grep -o 'lines of a reg'
    "#;
    let options = ["--cxl", "256M", "--timeout", "300"];
    let output_text = ended(guest_with_fabric(&options, &command)?, 0)?;
    for line in [
        "without: ethernet",
        "region0: no DAX device is on it",
        "with: ethernet cxl:dax0.0",
        "after: ethernet cxl:dax0.0",
    ] {
        ensure(output_text.lines().any(|found| found == line), format!("no {line:?} in:\n{output_text}"))?;
    }
    let lines = output_text.lines().filter(|line| *line == "lines of a reg").count();
    ensure(lines == 3 && output_text.contains("the CXL device that serves HPA"), output_text.clone())?;
    // The counter counts a page, and all lines of one frame, as one write.
    let local = output_text.lines().find_map(|line| line.strip_prefix("\"local_writes\":"));
    ensure(local.and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n >= 16), output_text)
}
