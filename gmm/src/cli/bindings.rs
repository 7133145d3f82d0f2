//! `gmm set-ld`, `gmm bind` and `gmm unbind`: slices of memory nodes, bound to compute nodes by the user.

use std::time::{Duration, Instant};

use clap::Args;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_daemon::to_stderr;
use cxloe_fabric::Client;
use cxloe_fabric::api::{Bind, LogicalDeviceStatus, Owner, SetLdAllocations, Unbind, WAIT_MS_DEFAULT};
use cxloe_fabric::client::Unbound;
use cxloe_fabric::model::{ByteSize, Name, RegionState, UnbindOption};
use serde_json::{Value, json};

use super::list;
use super::progress::Progress;
use super::refused;

/// Time for which the manager holds the first request of `gmm unbind`, in milliseconds. It is short, because
/// progress is displayed only after the answer.
const SHORT_MS: u64 = 200;
/// Interval at which the progress is read from the manager.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
#[command(after_help = "\
Prints every logical device of the memory node that has capacity or is bound.

Examples:
  gmm set-ld mn0 3 8G           8 GiB for LD 3 of mn0
  gmm set-ld mn0 0 8G 8G 16G    for LDs 0, 1 and 2
  gmm set-ld mn0 3 0            no reservation for LD 3")]
pub struct SetLdArgs {
    /// Name of the memory node that has the LD
    memory_node: Name,
    /// Number of the first LD: 0 to 15
    ld: u16,
    /// Capacity to reserve for that LD, and for the LDs after it: multiples of 256M
    #[arg(required = true, value_name = "SIZE")]
    sizes: Vec<ByteSize>,
    /// Print human-readable sizes
    #[arg(short = 'u', long)]
    human: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The compute node is notified at once, and gets the capacity of the logical device as a region, for example
mn0-ld3.

Examples:
  gmm bind mn0 3 --to cn1            LD 3 of mn0 at the first free vPPB of cn1
  gmm bind mn0 --to cn1              the first LD that has capacity and is free; the whole of a node that is an SLD
  gmm bind mn0 3 --to cn1 --vppb 7")]
pub struct BindArgs {
    /// Name of the memory node that has the LD
    memory_node: Name,
    /// Number of the LD: 0 to 15
    ld: Option<u16>,
    /// The compute node: name or CN id
    #[arg(long, value_name = "CN")]
    to: Owner,
    /// Number of the vPPB: 0 to 126
    #[arg(long, value_name = "N")]
    vppb: Option<u8>,
    /// Time to wait for the memory node, in milliseconds
    #[arg(long, default_value_t = WAIT_MS_DEFAULT, value_name = "MS")]
    wait_ms: u64,
    /// Print human-readable sizes
    #[arg(short = 'u', long)]
    human: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Every region of the compute node with a part on the logical device is destroyed, and its memory zeroed. The
logical device is free once the compute node has released it. Its memory is free once it is zeroed; an
unreachable memory node does that when it is back.

  wait      wait until the compute node has ended, or is suspended
  managed   have the compute node write back and release it, and wait for that
  surprise  at once: changes that were not written back are lost

Examples:
  gmm unbind mn0 3
  gmm unbind mn0 3 --option surprise")]
pub struct UnbindArgs {
    /// Name of the memory node that has the LD
    memory_node: Name,
    /// Number of the LD: 0 to 15
    ld: u16,
    /// Release of the LD by the compute node: wait, managed or surprise
    #[arg(long, value_name = "HOW", default_value = "managed")]
    option: UnbindOption,
    /// Time to wait for the compute node to release its regions and for memory to be zeroed, in milliseconds
    #[arg(long, default_value_t = WAIT_MS_DEFAULT, value_name = "MS")]
    wait_ms: u64,
}

/// Reserves capacity for logical devices, and prints all logical devices of the memory node.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn set_ld(client: &Client, args: SetLdArgs) -> Result<(), Failure> {
    let SetLdArgs { memory_node, ld, sizes, human } = args;
    let allocations = SetLdAllocations { first: ld, reserved: sizes };
    let devices = client.set_ld_allocations(&memory_node, &allocations).await?;
    let devices = devices.iter().map(list::logical_device).collect::<Result<_, _>>()?;
    output::print(Value::Array(devices), human)
}

/// Binds a logical device, waits for its region, and prints the logical device.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn bind(client: &Client, args: BindArgs) -> Result<(), Failure> {
    let BindArgs { memory_node, ld, to, vppb, wait_ms, human } = args;
    let progress = Progress::waiting(format!("waiting for {memory_node} to map it"));
    let bind = Bind { compute_node: to, memory_node, ld, vppb, wait_ms };
    let device = refused::watch(client, &progress, client.bind(&bind)).await?;
    let region = device.device.binding.as_ref().and_then(|binding| binding.region.as_ref());
    let state = match region {
        Some(region) => Some(client.region(region).await?.state),
        None => None,
    };
    drop(progress);
    if state == Some(RegionState::Creating) {
        to_stderr!("Warning: the memory node has not mapped it yet; `gmm list -R` shows when it is active");
    }
    output::print(list::logical_device(&device)?, human)
}

/// Unbinds a logical device, and displays the progress until its memory is zeroed.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn unbind(client: &Client, args: UnbindArgs) -> Result<(), Failure> {
    let UnbindArgs { memory_node, ld, option, wait_ms } = args;
    let deadline = Instant::now() + Duration::from_millis(wait_ms);
    let asked = Unbind { memory_node: memory_node.clone(), ld, option, wait_ms: wait_ms.min(SHORT_MS) };
    let mut done = json!({ "memdev": memory_node, "ld": ld, "state": "unbound" });
    let is_it =
        |device: &LogicalDeviceStatus| device.device.memory_node == memory_node && device.device.id == ld;
    // The regions are read before the request, because an unbound logical device no longer lists them.
    let regions = client.logical_devices().await?.into_iter().find(is_it).map(|device| device.regions);
    if let Unbound::Unbinding(mut device) = client.unbind(&asked).await? {
        let progress = Progress::percent(format!("unbinding LD {ld} of {memory_node}"));
        loop {
            progress.at(device.unbound_percent.unwrap_or(0));
            if Instant::now() >= deadline {
                drop(progress);
                to_stderr!(
                    "Warning: LD {ld} of {memory_node} waits for its compute node to release it; the manager continues with it"
                );
                done["state"] = json!("unbinding");
                done["unbound_percent"] = json!(device.unbound_percent);
                return output::print(done, false);
            }
            tokio::time::sleep(LOOK.min(deadline.saturating_duration_since(Instant::now()))).await;
            match client.logical_devices().await?.into_iter().find(|now| is_going_on(now, &device)) {
                Some(now) => *device = now,
                None => break,
            }
        }
    }
    let zeroed = zeroed(client, &regions.unwrap_or_default(), deadline).await?;
    if let Some(percent) = zeroed {
        to_stderr!(
            "Warning: LD {ld} of {memory_node} is free, and its memory has yet to be zeroed; the manager continues with it"
        );
        done["zeroed_percent"] = json!(percent);
    }
    output::print(done, false)
}

/// Waits until the memory of the destroyed regions is zeroed. If the zeroing is not complete at `deadline`, returns the
/// percentage that is zeroed.
async fn zeroed(client: &Client, regions: &[Name], deadline: Instant) -> Result<Option<u8>, Failure> {
    let progress = Progress::percent("zeroing its memory");
    loop {
        let left = client.region_statuses().await?.into_iter();
        let left = left.filter(|left| regions.contains(&left.region.name));
        let Some(percent) = left.filter_map(|left| left.zeroed_percent).min() else { return Ok(None) };
        if Instant::now() >= deadline {
            return Ok(Some(percent));
        }
        progress.at(percent);
        tokio::time::sleep(LOOK.min(deadline.saturating_duration_since(Instant::now()))).await;
    }
}

/// True if `now` is the logical device `before`, still being unbound from the same compute node.
fn is_going_on(now: &LogicalDeviceStatus, before: &LogicalDeviceStatus) -> bool {
    let holder = |status: &LogicalDeviceStatus| {
        let binding = status.device.binding.as_ref().filter(|binding| binding.unbinding.is_some());
        binding.map(|binding| binding.compute_node)
    };
    now.device.memory_node == before.device.memory_node
        && now.device.id == before.device.id
        && holder(now).is_some()
        && holder(now) == holder(before)
}
