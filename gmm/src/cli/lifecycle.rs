//! `gmm destroy-region`, `disable-region`, `enable-region` and `reset-region`: operations on one, several or all
//! existing regions, in the manner of the CXL tools. A failure for one region does not affect the others; the first
//! failure determines the exit code.

use std::time::{Duration, Instant};

use clap::Args;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_daemon::to_stderr;
use cxloe_fabric::Client;
use cxloe_fabric::api::{DestroyRegion, DisableRegion, ErrorCode, ResetRegion, WAIT_MS_DEFAULT};
use cxloe_fabric::client::Destroyed;
use cxloe_fabric::model::{Name, Region, RegionState};
use serde_json::{Value, json};

use super::list;
use super::progress::Progress;
use super::refused;

/// Name that stands for every region.
const ALL: &str = "all";
/// Time for which the manager holds the first request, in milliseconds. It is short, because progress is
/// displayed only after the answer.
const SHORT_MS: u64 = 200;
/// Interval at which the progress is read from the manager.
const LOOK: Duration = Duration::from_millis(200);

/// Regions to operate on, and the time to wait.
#[derive(Debug, Args)]
struct RegionSelection {
    /// Names of regions, or `all`
    #[arg(required = true, value_name = "NAME")]
    names: Vec<Name>,
    /// Time to wait for each, in milliseconds
    #[arg(long, default_value_t = WAIT_MS_DEFAULT, value_name = "MS")]
    wait_ms: u64,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The memory is zeroed before it is used for another region. The command refuses a region whose owner's agent
runs: first let the agent write back and release it (`gmm disable-region`), or use --force: then changes
that the agent has not written back are lost, and programs that use the region get errors (SIGBUS where it
is mapped).

Examples:
  gmm destroy-region scratch
  gmm destroy-region region0 region1
  gmm destroy-region --force scratch    although the agent of its owner is running
  gmm destroy-region --force all")]
pub struct DestroyArgs {
    #[command(flatten)]
    which: RegionSelection,
    /// Destroy them at once, even if their owners' agents are running: changes not written back are lost, and programs
    /// that use the regions get errors
    #[arg(short, long)]
    force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The owner's agent writes back modified lines and releases the region. The content is kept: after `gmm
enable-region` the region has the same content at the same addresses.

Examples:
  gmm disable-region heap
  gmm disable-region all")]
pub struct DisableArgs {
    #[command(flatten)]
    which: RegionSelection,
    /// Print human-readable sizes and addresses
    #[arg(short = 'u', long)]
    human: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gmm enable-region heap
  gmm enable-region all")]
pub struct EnableArgs {
    /// Names of disabled regions, or `all`
    #[arg(required = true, value_name = "NAME")]
    names: Vec<Name>,
    /// Print human-readable sizes and addresses
    #[arg(short = 'u', long)]
    human: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A region is `lost` when a memory node came back without the content of its pool (for example after a
reboot). Resetting it accepts the loss: the lost parts read as zeros.

Examples:
  gmm reset-region scratch
  gmm reset-region all       every region that is lost")]
pub struct ResetArgs {
    #[command(flatten)]
    which: RegionSelection,
    /// Print human-readable sizes and addresses
    #[arg(short = 'u', long)]
    human: bool,
}

/// Destroys the selected regions, and displays the progress until their memory is zeroed.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn destroy(client: &Client, args: DestroyArgs) -> Result<(), Failure> {
    let DestroyArgs { which: RegionSelection { names, wait_ms }, force } = args;
    let several = SelectedRegions::new(client, names, |_| true).await?;
    several.each(false, async |name| destroy_one(client, name, force, wait_ms).await).await
}

async fn destroy_one(client: &Client, name: &Name, force: bool, wait_ms: u64) -> Result<Value, Failure> {
    let deadline = Instant::now() + Duration::from_millis(wait_ms);
    // If this fails, so does the request to destroy the region, with the better error.
    let created_ms = client.region(name).await.ok().map(|region| region.created_ms);
    let destroy = DestroyRegion { force, wait_ms: wait_ms.min(SHORT_MS), created_ms };
    let destroyed = match client.destroy_region(name, destroy).await {
        // After a lost answer, a second request shows the result: `NotFound` means that the first one
        // succeeded. The creation time keeps it from a later region of the same name.
        Err(lost) if lost.may_be_done() && created_ms.is_some() => {
            to_stderr!("Warning: the answer was lost; asking again whether {name} is destroyed");
            match client.destroy_region(name, destroy).await {
                Err(error) if error.code() == Some(ErrorCode::NotFound) => Ok(Destroyed::Gone),
                answered => answered,
            }
        }
        answered => answered,
    };
    let Destroyed::Draining(mut left) = destroyed? else {
        return Ok(json!({ "region": name, "state": "destroyed" }));
    };
    let progress = Progress::percent(format!("zeroing {name}"));
    while Instant::now() < deadline {
        progress.at(left.zeroed_percent.unwrap_or(0));
        tokio::time::sleep(LOOK.min(deadline.saturating_duration_since(Instant::now()))).await;
        match client.region_status(name).await {
            // A region with another creation time is a later one of the same name.
            Ok(now) if now.region.created_ms == left.region.created_ms => *left = now,
            Err(error) if error.code() != Some(ErrorCode::NotFound) => return Err(error.into()),
            _ => return Ok(json!({ "region": name, "state": "destroyed" })),
        }
    }
    drop(progress);
    let nodes: Vec<String> = left.region.legs.iter().map(|leg| leg.memory_node.to_string()).collect();
    to_stderr!(
        "Warning: memory nodes have yet to zero their part of {name}: {}; the manager continues with it",
        nodes.join(", ")
    );
    Ok(json!({ "region": name, "state": "draining", "zeroed_percent": left.zeroed_percent }))
}

/// Has the owners' agents write back and release regions, whose content is kept, and prints the regions.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn disable(client: &Client, args: DisableArgs) -> Result<(), Failure> {
    let DisableArgs { which: RegionSelection { names, wait_ms }, human } = args;
    let in_use = |state| {
        matches!(
            state,
            RegionState::Active | RegionState::Exposed | RegionState::Degraded | RegionState::Lost
        )
    };
    let several = SelectedRegions::new(client, names, in_use).await?;
    let disable = async |name: &Name| {
        let progress = Progress::waiting(format!("waiting for the owner of {name} to release it"));
        let region = client.disable_region(name, DisableRegion { wait_ms }).await?;
        drop(progress);
        if region.state == RegionState::Releasing {
            to_stderr!(
                "Warning: the owner of {name} has not released it yet; `gmm list -i -r {name}` shows when it has"
            );
        }
        list::region(&region)
    };
    several.each(human, disable).await
}

/// Gives disabled regions back to their owners, with the content that was kept, and prints the regions.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn enable(client: &Client, args: EnableArgs) -> Result<(), Failure> {
    let let_go = |state| matches!(state, RegionState::Disabled | RegionState::Releasing);
    let several = SelectedRegions::new(client, args.names, let_go).await?;
    several.each(args.human, async |name| list::region(&client.enable_region(name).await?)).await
}

/// Has memory nodes map the lost parts of regions again, filled with zeros, and prints the regions.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn reset(client: &Client, args: ResetArgs) -> Result<(), Failure> {
    let ResetArgs { which: RegionSelection { names, wait_ms }, human } = args;
    let several = SelectedRegions::new(client, names, |state| state == RegionState::Lost).await?;
    let reset = async |name: &Name| {
        let progress = Progress::waiting(format!("waiting for memory nodes to map {name}"));
        let asked = client.reset_region(name, ResetRegion { wait_ms });
        let region = refused::watch(client, &progress, asked).await?;
        drop(progress);
        if region.state == RegionState::Creating {
            to_stderr!(
                "Warning: not every memory node has mapped {name} yet; `gmm list -R` shows when it is active"
            );
        }
        list::region(&region)
    };
    several.each(human, reset).await
}

struct SelectedRegions {
    names: Vec<Name>,
    /// True if the output is an array: several regions were named, or all.
    array: bool,
}

impl SelectedRegions {
    /// Selects the named regions; for `all`, the regions in the states that the command applies to.
    async fn new(
        client: &Client,
        names: Vec<Name>,
        concerned: impl Fn(RegionState) -> bool,
    ) -> Result<Self, Failure> {
        let array = names.len() > 1 || names.iter().any(|name| name.as_str() == ALL);
        if names.iter().all(|name| name.as_str() != ALL) {
            return Ok(Self { names, array });
        }
        let all: Vec<Region> = client.regions().await?;
        let names = all.into_iter().filter(|region| concerned(region.state)).map(|region| region.name);
        Ok(Self { names: names.collect(), array })
    }

    /// Applies the operation to each region, and prints those for which it succeeded.
    async fn each(
        self,
        human: bool,
        act: impl AsyncFn(&Name) -> Result<Value, Failure>,
    ) -> Result<(), Failure> {
        let (mut done, mut first_failure) = (Vec::new(), None);
        for name in &self.names {
            match act(name).await {
                Ok(value) => done.push(value),
                // The first failure is returned, and printed when the command ends; the others are printed
                // here.
                Err(failure) if first_failure.is_none() => first_failure = Some(failure),
                Err(failure) => to_stderr!("gmm: {}", failure.message),
            }
        }
        if self.array {
            if self.names.is_empty() {
                to_stderr!("Warning: no regions found");
            }
            output::print(Value::Array(done), human)?;
        } else if let Some(value) = done.pop() {
            output::print(value, human)?;
        }
        first_failure.map_or(Ok(()), Err)
    }
}
