//! `gmm clone-region` and `gmm snapshot`: regions that begin with the content of another one.

use clap::Args;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_fabric::Client;
use cxloe_fabric::api::{CloneRegion, Owner};
use cxloe_fabric::model::{Name, RegionState};
use serde_json::json;

use super::region_wait::{REQUEST_WAIT_MS, wait_while};

#[derive(Debug, Args)]
#[command(after_help = "\
The memory nodes copy the content within themselves, page by page, while both regions are used: the clone can be used at
once, and takes as much memory there as its source. The agent of a region in use writes back what was changed and
releases the region first, once no program maps it, and has it again after a moment. Sealed and disabled regions are
cloned without that.

Examples:
  gmm clone-region model model-tuned
  gmm clone-region backup-monday scratch --owner cn1")]
pub struct CloneRegionArgs {
    #[command(flatten)]
    copy: CopyArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A snapshot is a clone that is sealed: its content never changes. It can be read, shared with other compute nodes
(`gmm share-region`), cloned (`gmm clone-region`) and destroyed. `gmm clone-region --help` says how the content is copied.

Examples:
  gmm snapshot db db-monday
  gmm clone-region db-monday db-again")]
pub struct SnapshotArgs {
    #[command(flatten)]
    copy: CopyArgs,
}

#[derive(Debug, Args)]
struct CopyArgs {
    /// Name of the region whose content is taken
    source: Name,
    /// Name of the new region
    name: Name,
    /// The compute node that will use the new region, by name or CN id [default: that of the source]
    #[arg(short, long, value_name = "CN")]
    owner: Option<Owner>,
    /// User id on that compute node that may use the new region [default: that of the source]
    #[arg(long)]
    uid: Option<u32>,
    /// Take what the memory nodes have although the agent of the source is unreachable, without what it has not written back
    #[arg(short, long)]
    force: bool,
    /// Return at once, without waiting for the new region
    #[arg(long)]
    no_wait: bool,
}

/// Requests a writable copy of a region, waits for it unless `--no-wait` is given, and prints the new region.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn clone(client: &Client, args: CloneRegionArgs) -> Result<(), Failure> {
    run(client, args.copy, false).await
}

/// Requests a sealed copy of a region, waits for it unless `--no-wait` is given, and prints the new region.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn snapshot(client: &Client, args: SnapshotArgs) -> Result<(), Failure> {
    run(client, args.copy, true).await
}

async fn run(client: &Client, args: CopyArgs, sealed: bool) -> Result<(), Failure> {
    let CopyArgs { source, name, owner, uid, force, no_wait } = args;
    let wait_ms = if no_wait { 0 } else { REQUEST_WAIT_MS };
    let order = CloneRegion { name, owner, uid, sealed, force, wait_ms };
    let mut region = client.clone_region(&source, &order).await?;
    if !no_wait {
        region = wait_while(client, region, |region| region.state == RegionState::Creating).await?;
    }
    let result = match region.state {
        RegionState::Creating => "being made",
        RegionState::Draining => {
            let reason = region.failure.as_deref().unwrap_or("it was destroyed meanwhile");
            return Err(Failure::failed(format!("region {} did not come about: {reason}", region.name)));
        }
        _ if sealed => "snapshot made",
        _ => "cloned",
    };
    let answer = json!({
        "region": region.name, "owner": region.owner, "origin": source, "size": region.size, "result": result,
    });
    output::print(answer, false)
}
