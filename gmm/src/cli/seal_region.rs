//! `gmm seal-region` and `gmm share-region`: regions whose content never changes again, and compute nodes
//! besides the owner that may read them.

use clap::Args;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_fabric::Client;
use cxloe_fabric::api::{Owner, SealRegion, ShareRegion};
use cxloe_fabric::model::{CnId, Name, Region, RegionState};
use serde_json::json;

/// Maximum time for which the manager holds a request before it answers, in milliseconds: ten minutes.
const WAIT_MS: u64 = 600_000;

#[derive(Debug, Args)]
#[command(after_help = "\
The agent of the owner writes back what was changed and releases the region, once no program maps it; then the memory
nodes refuse every write, and the agent attaches the region again. This cannot be undone; a sealed region can be read,
shared with other compute nodes (`gmm share-region`), and destroyed.

Examples:
  gmm seal-region model
  gmm share-region model --with cn1")]
pub struct SealRegionArgs {
    /// Name of the region
    region: Name,
    /// Seal it although its owner's agent is unreachable: changes that were not written back are lost
    #[arg(short, long)]
    force: bool,
    /// Return at once, without waiting for the result
    #[arg(long)]
    no_wait: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The region has to be sealed. Its memory is not copied: every compute node reads the same, each with a cache of its own.
With --stop the memory nodes refuse the compute node at once; its programs get errors.

Examples:
  gmm share-region model --with cn1
  gmm share-region model --with cn1 --stop")]
pub struct ShareRegionArgs {
    /// Name of the sealed region
    region: Name,
    /// Compute node that may read the region, by name or CN id
    #[arg(long, value_name = "CN")]
    with: Owner,
    /// User id on that compute node that may read it, instead of all users of its agent
    #[arg(long, conflicts_with = "stop")]
    uid: Option<u32>,
    /// Stop: the compute node may read it no longer
    #[arg(long)]
    stop: bool,
    /// Return at once, without waiting for the result
    #[arg(long)]
    no_wait: bool,
}

/// Makes a region read-only for good, waits for it unless `--no-wait` is given, and prints the region.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn seal(client: &Client, args: SealRegionArgs) -> Result<(), Failure> {
    let SealRegionArgs { region, force, no_wait } = args;
    let order = SealRegion { force, wait_ms: if no_wait { 0 } else { WAIT_MS } };
    let region = client.seal_region(&region, &order).await?;
    let sealed = region.sealed && region.state != RegionState::Creating;
    print(&region, if sealed { "sealed" } else { "sealing" })
}

/// Lets a compute node read a sealed region, or stops that, and prints the result.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn share(client: &Client, args: ShareRegionArgs) -> Result<(), Failure> {
    let ShareRegionArgs { region, with, uid, stop, no_wait } = args;
    let wait_ms = if no_wait { 0 } else { WAIT_MS };
    let order = ShareRegion { with, end: stop, uid, wait_ms };
    let region = client.share_region(&region, &order).await?;
    print(&region, if stop { "not shared" } else { "shared" })
}

fn print(region: &Region, result: &str) -> Result<(), Failure> {
    let readers: Vec<CnId> =
        region.readers.iter().filter(|reader| !reader.ends).map(|reader| reader.cn).collect();
    let answer =
        json!({ "region": region.name, "owner": region.owner, "result": result, "readers": readers });
    output::print(answer, false)
}
