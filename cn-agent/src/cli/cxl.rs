//! `cn-agent cxl list`: lists the real CXL memory of this machine, the devices that can serve regions, and the reasons
//! why other devices cannot. Reads sysfs directly, so it needs no agent.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use cxloe_cxl::inventory::{CxlMemory, CxlRegion, DaxDevice, Memdev};
use cxloe_cxl::{DEV_ROOT, SYSFS_ROOT};
use cxloe_daemon::command_line::{Failure, new_table, output};
use cxloe_daemon::to_stderr;
use cxloe_fabric::model::ByteSize;

#[derive(Debug, Args)]
pub struct CxlArgs {
    #[command(subcommand)]
    command: CxlCommand,
}

#[derive(Debug, Subcommand)]
enum CxlCommand {
    /// List CXL memory, and the devices that can serve regions
    List(ListArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
A region is served by a DAX device on a committed CXL region, in devdax mode, that has room for all of it and serves no
other. To make one of a persistent device:
  cxl create-region -m -t pmem -d decoder0.0 mem0
  ndctl create-namespace -m devdax -M mem -r region0
and take one back from system RAM:
  daxctl reconfigure-device --mode=devdax dax0.0

Examples:
  cn-agent cxl list
  cn-agent cxl list --json")]
struct ListArgs {
    /// JSON for programs
    #[arg(long)]
    json: bool,
    /// With --json: human-readable sizes and addresses
    #[arg(short = 'u', long)]
    human: bool,
    /// Directory in which sysfs is mounted
    #[arg(long, value_name = "DIR", default_value = SYSFS_ROOT)]
    sysfs_root: PathBuf,
    /// Directory in which device files such as dax0.0 are looked up
    #[arg(long, value_name = "DIR", default_value = DEV_ROOT)]
    dev_root: PathBuf,
}

/// Prints the CXL memory of this machine as tables or as JSON. Obstacles are warnings on standard error.
///
/// # Errors
/// When standard output is closed.
pub fn run(args: &CxlArgs) -> Result<(), Failure> {
    let CxlCommand::List(args) = &args.command;
    let memory = CxlMemory::scan(&args.sysfs_root);
    if args.json {
        return output::print(output::value(memory)?, args.human);
    }
    for problem in &memory.problems {
        to_stderr!("Warning: {problem}");
    }
    for file in memory.dax_devices.iter().filter(|dax| dax.unfit.is_none()).map(|dax| &dax.device) {
        if !args.dev_root.join(file).exists() {
            to_stderr!("Warning: {} is missing; is devtmpfs mounted?", args.dev_root.join(file).display());
        }
    }
    let shown = text(&memory);
    if shown.is_empty() {
        to_stderr!("Warning: no CXL memory found: {}", memory.why_none(0, &[]));
    }
    output::write(shown.as_bytes())
}

fn text(memory: &CxlMemory) -> String {
    let size = |bytes: u64| ByteSize(bytes).to_string();
    let known = |name: &Option<String>| name.clone().unwrap_or_else(|| "-".into());
    let mut memdevs = new_table(["memory device", "volatile", "persistent", "serial", "decoding"]);
    for Memdev { memdev, ram_size, pmem_size, serial, decoding, .. } in &memory.memdevs {
        let serial = serial.map_or_else(|| "-".into(), |serial| format!("{serial:#x}"));
        let decoding = if *decoding { "yes" } else { "no" };
        memdevs.add_row([memdev.clone(), size(*ram_size), size(*pmem_size), serial, decoding.into()]);
    }
    let mut regions = new_table(["CXL region", "size", "address", "kind", "ways", "committed"]);
    for CxlRegion { region, resource, size: bytes, committed, persistent, interleave_ways, .. } in
        &memory.regions
    {
        let kind = persistent.map_or("-", |persistent| if persistent { "pmem" } else { "ram" });
        let address = resource.map_or_else(|| "-".into(), |first| format!("{first:#x}"));
        let committed = if *committed { "yes" } else { "no" };
        let ways = interleave_ways.to_string();
        regions.add_row([region.clone(), size(*bytes), address, kind.into(), ways, committed.into()]);
    }
    let mut devices = new_table(["DAX device", "size", "CXL region", "driver", "can serve regions"]);
    for DaxDevice { device, size: bytes, region, driver, unfit, .. } in &memory.dax_devices {
        let serves =
            unfit.as_ref().map_or_else(|| format!("up to {}", size(*bytes)), |why| format!("no: {why}"));
        devices.add_row([device.clone(), size(*bytes), known(region), known(driver), serves]);
    }
    let mut nodes = new_table(["NUMA node without CPUs", "size", "can serve regions"]);
    for node in &memory.cpuless_nodes {
        let bytes = node.size.map_or_else(|| "-".into(), size);
        nodes.add_row([
            node.node.to_string(),
            bytes,
            "no: it is system RAM, the kernel's to give away".into(),
        ]);
    }
    let tables = [memdevs, regions, devices, nodes].into_iter().filter(|table| table.row_count() > 0);
    let idle = memory.idle().into_iter().map(|hint| format!("{hint}\n"));
    tables.map(|table| format!("{table}\n")).chain(idle).collect()
}
