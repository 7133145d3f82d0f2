//! `gmm create-region`, `gmm destroy-region` and `gmm reset-region`.

use clap::Args;
use cxloe_gmm::Client;
use cxloe_gmm::api::{
    CreateRegion, DestroyRegion, GRANULARITY_DEFAULT, Owner, ResetRegion, WAIT_MS_DEFAULT, WAYS_DEFAULT,
};
use cxloe_gmm::client::Destroyed;
use cxloe_gmm::command_line::{Failure, output};
use cxloe_gmm::model::{ByteSize, Name, Region, RegionState};
use serde_json::json;

/// Arguments of `gmm create-region`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gmm create-region -s 1G --owner cn0 scratch
  gmm create-region -s 512M --owner 02:00:00:00:00:01 -u heap")]
pub struct CreateArgs {
    /// Name of the region
    name: Name,
    /// Size: bytes, or with K, M, G, T; a multiple of the memory nodes' extent size (2M)
    #[arg(short, long)]
    size: ByteSize,
    /// Who it is for: the name or the CN id (MAC address) of a compute node
    #[arg(short, long, value_name = "CN")]
    owner: Owner,
    /// Interleave ways
    #[arg(short, long, default_value_t = WAYS_DEFAULT)]
    ways: u32,
    /// Interleave granularity in bytes: a power of two, 256 to 16384
    #[arg(short, long, default_value_t = GRANULARITY_DEFAULT, value_name = "BYTES")]
    granularity: u32,
    /// How long to wait for its memory nodes, in milliseconds
    #[arg(long, default_value_t = WAIT_MS_DEFAULT, value_name = "MS")]
    wait_ms: u64,
    /// Sizes and addresses for people
    #[arg(short = 'u', long)]
    human: bool,
}

/// Arguments of `gmm destroy-region`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gmm destroy-region scratch
  gmm destroy-region --force scratch    although the agent of its owner is running")]
pub struct DestroyArgs {
    /// Name of the region
    name: Name,
    /// Although its owner's agent is there and may be using it
    #[arg(short, long)]
    force: bool,
    /// How long to wait for its memory to be zeroed, in milliseconds
    #[arg(long, default_value_t = WAIT_MS_DEFAULT, value_name = "MS")]
    wait_ms: u64,
}

/// Arguments of `gmm reset-region`.
#[derive(Debug, Args)]
#[command(after_help = "\
A region is `lost` when a memory node came back without the content of its pool (a restart with anonymous
memory, for one). Resetting it accepts the loss: the lost parts read as zeros again.

Example:
  gmm reset-region scratch")]
pub struct ResetArgs {
    /// Name of the region
    name: Name,
    /// How long to wait for its memory nodes, in milliseconds
    #[arg(long, default_value_t = WAIT_MS_DEFAULT, value_name = "MS")]
    wait_ms: u64,
    /// Sizes and addresses for people
    #[arg(short = 'u', long)]
    human: bool,
}

/// Creates a region and prints it.
///
/// # Errors
/// When the manager cannot be asked or refuses.
pub async fn create(client: &Client, args: CreateArgs) -> Result<(), Failure> {
    let CreateArgs { name, size, owner, ways, granularity, wait_ms, human } = args;
    let region =
        client.create_region(&CreateRegion { name, size, owner, ways, granularity, wait_ms }).await?;
    show(&region, human)
}

/// Destroys a region.
///
/// # Errors
/// When the manager cannot be asked or refuses.
pub async fn destroy(client: &Client, args: DestroyArgs) -> Result<(), Failure> {
    let DestroyArgs { name, force, wait_ms } = args;
    let (state, note) = match client.destroy_region(&name, DestroyRegion { force, wait_ms }).await? {
        Destroyed::Gone => ("destroyed", None),
        Destroyed::Draining(region) => {
            let nodes: Vec<String> = region.legs.iter().map(|leg| leg.memory_node.to_string()).collect();
            ("draining", Some(format!("memory nodes have yet to zero their part: {}", nodes.join(", "))))
        }
    };
    if let Some(note) = note {
        eprintln!("Warning: {note}; the manager goes on with it");
    }
    output::print(json!({ "region": name, "state": state }), false)
}

/// Resets a lost region and prints it.
///
/// # Errors
/// When the manager cannot be asked or refuses.
pub async fn reset(client: &Client, args: ResetArgs) -> Result<(), Failure> {
    let region = client.reset_region(&args.name, ResetRegion { wait_ms: args.wait_ms }).await?;
    show(&region, args.human)
}

fn show(region: &Region, human: bool) -> Result<(), Failure> {
    if region.state == RegionState::Creating {
        eprintln!(
            "Warning: not every memory node has mapped {} yet; `gmm list -R` shows when it is active",
            region.name
        );
    }
    output::print(output::value(region)?, human)
}
