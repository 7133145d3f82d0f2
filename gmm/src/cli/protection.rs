//! `gmm protect` and `gmm drain`: copies of regions, and the move of regions from a memory node.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use clap::Args;
use cxloe_daemon::command_line::Failure;
use cxloe_daemon::to_stderr;
use cxloe_fabric::Client;
use cxloe_fabric::api::{ProtectRegion, RegionStatus, WAIT_MS_DEFAULT};
use cxloe_fabric::model::{Health, LegState, Name, Protection, Region, RegionState, human_bytes};
use serde_json::json;

use super::{output, regions, waiting_region};

/// Interval at which the regions on a memory node are read while it is drained.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(after_help = "\
Programs use the region meanwhile. The owner's agent fills a new copy; until then the region is `exposed`.

Examples:
  gmm protect heap mirror               a second copy, on other memory nodes
  gmm protect heap mirror --on mn4,mn5
  gmm protect heap none                 removes a copy")]
pub struct ProtectArgs {
    /// Name of the region
    name: Name,
    /// Copies of the region from now on: none (one copy) or mirror (two copies, on different memory nodes and
    /// racks)
    #[arg(value_name = "HOW")]
    protect: Protection,
    /// The memory nodes to take another copy from, separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    on: Vec<Name>,
    /// Time to wait until every copy is in sync, in milliseconds
    #[arg(long, default_value_t = WAIT_MS_DEFAULT, value_name = "MS")]
    wait_ms: u64,
    /// Print human-readable sizes and addresses
    #[arg(short = 'u', long)]
    human: bool,
}

/// Changes the number of copies of a region, waits until they are in sync, and prints the region.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn protect(client: &Client, args: ProtectArgs) -> Result<(), Failure> {
    let ProtectArgs { name, protect, on, wait_ms, human } = args;
    let region = client.protect_region(&name, &ProtectRegion { protect, on, wait_ms }).await?;
    if protect == Protection::Mirror && region.state == RegionState::Exposed {
        to_stderr!("Warning: a copy of {name} is not filled yet; `gmm list -R` shows when it is active");
    }
    regions::show(&region, human)
}

#[derive(Debug, Args)]
#[command(after_help = "\
The manager places nothing on the memory node any more, and every part of a region there moves to another
node while the region is used. A mirrored region is `exposed` meanwhile. The owner's agent copies a region
while it runs. Memory nodes copy a region that nobody uses: a disabled one, or one whose owner's agent has
ended in order. Interrupting the command does not stop the drain; --stop does.

Examples:
  gmm drain mn3
  gmm drain mn3 --stop")]
pub struct DrainArgs {
    /// Name of the memory node
    memory_node: Name,
    /// Stop: what has not moved stays
    #[arg(long)]
    stop: bool,
    /// Return at once, without waiting until all parts have moved
    #[arg(long, conflicts_with = "stop")]
    no_wait: bool,
}

/// Moves the regions on a memory node to others, with progress on standard error, and prints the result.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn drain(client: &Client, args: DrainArgs) -> Result<(), Failure> {
    let DrainArgs { memory_node, stop, no_wait } = args;
    client.drain_memory_node(&memory_node, !stop).await?;
    let (began, mut first) = (Instant::now(), None);
    let (mut named, mut without_room) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let left = regions_left(client, &memory_node).await?;
        let bytes: u64 = left.iter().map(|status| bytes_left(status, &memory_node)).sum();
        if stop || no_wait || left.is_empty() {
            let state = if stop {
                "stopped"
            } else if left.is_empty() {
                "drained"
            } else {
                "draining"
            };
            return output::print(
                json!({ "memdev": memory_node, "state": state, "bytes_left": bytes }),
                false,
            );
        }
        let running: BTreeSet<_> = {
            let nodes = client.compute_nodes().await?.into_iter();
            nodes.filter(|node| node.health == Health::Reachable).map(|node| node.cn_id).collect()
        };
        for status in &left {
            let waits = waiting_region::reason(status, &running);
            if let Some(reason) = waits.filter(|_| named.insert(status.region.name.clone())) {
                to_stderr!("Waiting: {reason}");
            }
        }
        for RegionStatus { region, .. } in left.iter().filter(|status| status.without_spare) {
            if without_room.insert(region.name.clone()) {
                to_stderr!(
                    "Waiting: {} moves once another memory node has {} free; `gmm drain {memory_node} --stop` ends the drain",
                    region.name,
                    human_bytes(bytes_on(region, &memory_node))
                );
            }
        }
        let before = *first.get_or_insert(bytes);
        let moved = before.saturating_sub(bytes);
        // The estimate assumes the mean rate so far.
        let estimate = match moved {
            0 => String::new(),
            moved => {
                let seconds = began.elapsed().as_secs_f64() * bytes as f64 / moved as f64;
                format!(", about {seconds:.0} s")
            }
        };
        to_stderr!("{} left of {}{estimate}", human_bytes(bytes), human_bytes(before));
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn regions_left(client: &Client, node: &Name) -> Result<Vec<RegionStatus>, Failure> {
    let all = client.region_statuses().await?.into_iter();
    Ok(all.filter(|status| bytes_on(&status.region, node) > 0).collect())
}

/// Bytes of a region that have to be copied from a memory node, without those that memory nodes have copied already.
fn bytes_left(status: &RegionStatus, node: &Name) -> u64 {
    bytes_on(&status.region, node).saturating_sub(status.copying.map_or(0, |copying| copying.done))
}

/// Bytes of a region on a memory node, without the parts that are being unmapped.
fn bytes_on(region: &Region, node: &Name) -> u64 {
    let here = |leg: &&cxloe_fabric::model::Leg| &leg.memory_node == node && leg.state != LegState::Unmapping;
    region.legs.iter().filter(here).map(|leg| leg.bytes).sum()
}
