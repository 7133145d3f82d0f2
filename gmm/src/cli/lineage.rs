//! `gmm adopt-fabric` and `gmm release-orphans`: continue with a store that lacks changes which nodes have seen, and
//! free memory that belongs to no region.

use clap::Args;
use cxloe_daemon::command_line::{Exit, Failure, output};
use cxloe_daemon::to_stderr;
use cxloe_fabric::Client;
use cxloe_fabric::api::{AdoptFabric, Orphans, RefusedNode, ReleaseOrphans, WAIT_MS_DEFAULT};
use cxloe_fabric::model::{Name, Watermark, human_bytes};

use super::progress::Progress;
use super::refused;

#[derive(Debug, Args)]
#[command(after_help = "\
Nodes refuse a manager whose store lacks changes that they have seen: an older copy of the store, or another
store. They keep their regions and go on serving them. Start the manager over the newest store, and they
accept it.

If the newest store is lost, this command makes nodes accept the present one. Without --force it only shows
which nodes refuse it, and which of their regions it does not list. With --force the nodes accept it:
compute nodes lose those regions; memory nodes keep the memory unused until `gmm release-orphans`.

Examples:
  gmm adopt-fabric            what would be lost
  gmm adopt-fabric --force    lose it")]
pub struct AdoptArgs {
    /// Give up the regions shown
    #[arg(short, long)]
    force: bool,
    /// Print human-readable sizes
    #[arg(short = 'u', long)]
    human: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Orphans are memory of a memory node that belongs to no region: the node returned after `gmm forget`, or `gmm
adopt-fabric` gave its regions up. The memory is kept unchanged until this command; `gmm list -M` shows how
much there is (orphan_bytes).

Examples:
  gmm release-orphans mn0
  gmm release-orphans --wait-ms 60000 mn0")]
pub struct ReleaseOrphansArgs {
    /// Name of the memory node
    memory_node: Name,
    /// Time to wait for the memory node, in milliseconds
    #[arg(long, default_value_t = WAIT_MS_DEFAULT, value_name = "MS")]
    wait_ms: u64,
    /// Print human-readable sizes
    #[arg(short = 'u', long)]
    human: bool,
}

/// Shows the nodes that refuse this manager, and the memory that they would lose by accepting its store. With
/// `--force`, makes the nodes accept it.
///
/// # Errors
/// If the manager does not answer or refuses, or if nodes refuse it and the command was not forced.
pub async fn adopt(client: &Client, args: AdoptArgs) -> Result<(), Failure> {
    let refused = client.refused_nodes().await?;
    if refused.is_empty() {
        to_stderr!("Warning: no node is refused; there is nothing to adopt");
    }
    output::print(output::value(&refused)?, args.human)?;
    if refused.is_empty() {
        return Ok(());
    }
    if !args.force {
        return Err(Failure::new(
            Exit::Refused,
            format!(
                "nothing was changed: {}; start the manager over its newest store, or give this up with `gmm adopt-fabric --force`",
                in_short(&refused)
            ),
        ));
    }
    // The request contains only the watermarks (latest states that nodes have seen) that were printed: a node that has
    // seen another state still refuses the manager.
    let mut seen: Vec<Watermark> = Vec::new();
    for node in &refused {
        if !seen.contains(&node.seen) {
            seen.push(node.seen);
        }
    }
    Ok(client.adopt_fabric(&AdoptFabric { seen }).await?)
}

/// The memory that would be lost, in one line of text.
fn in_short(refused: &[RefusedNode]) -> String {
    let part = |node: &RefusedNode| {
        let held = node.would_lose.iter().map(|held| match &held.region {
            Some(region) => format!("region {region} ({})", human_bytes(held.bytes)),
            None => format!("{} of {}", human_bytes(held.bytes), held.compute_node),
        });
        let held: Vec<String> = held.collect();
        let lost = if held.is_empty() { "nothing that it has reported".to_owned() } else { held.join(", ") };
        format!("{} would lose {lost}", node.node)
    };
    refused.iter().map(part).collect::<Vec<_>>().join("; ")
}

/// Has a memory node zero and free its orphans (memory that belongs to no region), and prints the orphans that remain
/// after the wait.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn release_orphans(client: &Client, args: ReleaseOrphansArgs) -> Result<(), Failure> {
    let ReleaseOrphansArgs { memory_node, wait_ms, human } = args;
    let progress = Progress::waiting(format!("waiting for {memory_node} to zero them"));
    let asked = client.release_orphans(&memory_node, ReleaseOrphans { wait_ms });
    let left: Orphans = refused::watch(client, &progress, asked).await?;
    drop(progress);
    if !left.orphans.is_empty() {
        to_stderr!(
            "Warning: {memory_node} has yet to zero {}; the manager continues with it (`gmm list -M`)",
            human_bytes(left.bytes())
        );
    }
    output::print(output::value(&left)?, human)
}
