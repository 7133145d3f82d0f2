//! `gmm move-region`: gives a region to another compute node with its content.

use std::time::Duration;

use clap::Args;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_daemon::to_stderr;
use cxloe_fabric::Client;
use cxloe_fabric::api::{MoveRegion, Owner};
use cxloe_fabric::model::{Name, Region, RegionState};
use serde_json::json;

/// Interval at which the region's state is read while the region moves.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
#[command(after_help = "\
The agent of the present owner writes back what was changed and releases the region, once no program maps it; then it
belongs to the other compute node, whose agent attaches it. Nothing is copied, and the memory is not zeroed. Programs
that read and write lines of it at the present owner get errors, as with `gmm disable-region`.
Interrupting the command does not stop the move; --stop does, until the region has its new owner.

Examples:
  gmm move-region heap --to cn1
  gmm move-region heap --stop")]
pub struct MoveRegionArgs {
    /// Name of the region
    region: Name,
    /// The compute node that gets the region, by name or CN id
    #[arg(long, value_name = "CN", required_unless_present = "stop")]
    to: Option<Owner>,
    /// Stop: the present owner keeps the region
    #[arg(long, conflicts_with = "to")]
    stop: bool,
    /// Move it although its owner's agent is unreachable: changes that were not written back are lost
    #[arg(short, long, conflicts_with = "stop")]
    force: bool,
    /// Return at once, without waiting until the region has moved
    #[arg(long, conflicts_with = "stop")]
    no_wait: bool,
}

/// Has the present owner release a region and another compute node attach it, displays the progress, and
/// prints the region.
///
/// # Errors
/// If the manager does not answer or refuses, or the move is stopped.
pub async fn run(client: &Client, args: MoveRegionArgs) -> Result<(), Failure> {
    let MoveRegionArgs { region: name, to, stop: _, force, no_wait } = args;
    let order = MoveRegion { to: to.clone(), force, wait_ms: 0 };
    let mut region = client.move_region(&name, &order).await?;
    // Without a target, the request has stopped the move.
    let Some(to) = to else { return print(&region, "stopped") };
    let target = region.release.and_then(|release| release.to).unwrap_or(region.owner);
    if no_wait {
        return print(&region, if is_there(&region) { "moved" } else { "moving" });
    }
    // Last state displayed: each state is displayed once.
    let mut named = RegionState::Active;
    while !(region.owner == target && is_there(&region)) {
        let moving = region.owner == target || region.release.and_then(|release| release.to) == Some(target);
        if !moving || region.state == RegionState::Draining {
            return Err(Failure::failed(format!(
                "region {name} did not move to {to}; `gmm list -E` has the reason"
            )));
        }
        if named != region.state {
            named = region.state;
            match named {
                RegionState::Releasing => {
                    to_stderr!(
                        "Waiting: the agent of CN {} writes back and releases {name}, once no program maps it",
                        region.owner
                    );
                }
                RegionState::Creating => to_stderr!("Waiting: memory nodes map {name} for CN {target}"),
                _ => {}
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
        region = client.region(&name).await?;
    }
    print(&region, "moved")
}

/// True if memory nodes serve the region for its owner.
fn is_there(region: &Region) -> bool {
    region.release.is_none() && region.state != RegionState::Creating
}

fn print(region: &Region, state: &str) -> Result<(), Failure> {
    output::print(json!({ "region": region.name, "owner": region.owner, "state": state }), false)
}
