//! `gmm seal-region` and `gmm share-region`: regions whose content never changes again, and compute nodes
//! besides the owner that may read them.

use clap::Args;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_fabric::Client;
use cxloe_fabric::api::{Owner, SealRegion, ShareRegion};
use cxloe_fabric::model::{CnId, Name, Reader, Region, RegionState};
use serde_json::json;

use super::region_wait::{REQUEST_WAIT_MS, wait_while};

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
/// If the manager does not answer or refuses, or the region is not sealed.
pub async fn seal(client: &Client, args: SealRegionArgs) -> Result<(), Failure> {
    let SealRegionArgs { region, force, no_wait } = args;
    let order = SealRegion { force, wait_ms: if no_wait { 0 } else { REQUEST_WAIT_MS } };
    let mut region = client.seal_region(&region, &order).await?;
    if !no_wait {
        region = wait_while(client, region, is_being_sealed).await?;
    }
    if is_being_sealed(&region) {
        print(&region, "sealing")
    } else if region.sealed && region.state != RegionState::Draining {
        print(&region, "sealed")
    } else {
        Err(failed(format!("region {} was not sealed", region.name)))
    }
}

fn is_being_sealed(region: &Region) -> bool {
    match region.state {
        RegionState::Draining => false,
        RegionState::Creating => region.sealed,
        _ => !region.sealed && region.release.is_some_and(|release| release.seal),
    }
}

/// Lets a compute node read a sealed region, or stops that, and prints the result.
///
/// # Errors
/// If the manager does not answer or refuses, or a memory node does.
pub async fn share(client: &Client, args: ShareRegionArgs) -> Result<(), Failure> {
    let ShareRegionArgs { region, with, uid, stop, no_wait } = args;
    let wait_ms = if no_wait { 0 } else { REQUEST_WAIT_MS };
    let order = ShareRegion { with, end: stop, uid, wait_ms };
    let mut region = client.share_region(&region, &order).await?;
    let cn = match &order.with {
        Owner::CnId(cn) => Some(*cn),
        Owner::Name(name) => {
            let mut nodes = client.compute_nodes().await?.into_iter();
            nodes.find(|node| node.name.as_ref() == Some(name)).map(|node| node.cn_id)
        }
    };
    let pending = |region: &Region| {
        reader_of(region, cn).is_some_and(|reader| reader.ends == stop && !reader.is_ready())
    };
    if !no_wait {
        region = wait_while(client, region, pending).await?;
    }
    if pending(&region) {
        return print(&region, if stop { "being ended" } else { "being shared" });
    }
    match reader_of(&region, cn) {
        None if stop => print(&region, "not shared"),
        Some(_) if stop => Err(failed(format!("region {} is shared with {} again", region.name, order.with))),
        Some(reader) if reader.is_ready() => print(&region, "shared"),
        _ => Err(failed(format!("region {} was not shared with {}", region.name, order.with))),
    }
}

/// Returns the entry of a compute node that may read the region, or whose share is being ended.
fn reader_of(region: &Region, cn: Option<CnId>) -> Option<&Reader> {
    region.readers.iter().find(|reader| Some(reader.cn) == cn)
}

fn failed(what: String) -> Failure {
    Failure::failed(format!("{what}; `gmm list -E` has the reason"))
}

fn print(region: &Region, result: &str) -> Result<(), Failure> {
    let readers: Vec<CnId> =
        region.readers.iter().filter(|reader| !reader.ends).map(|reader| reader.cn).collect();
    let answer =
        json!({ "region": region.name, "owner": region.owner, "result": result, "readers": readers });
    output::print(answer, false)
}
