//! `gmm status`: health of the manager, and the number of its nodes and regions.

use clap::Args;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_daemon::to_stderr;
use cxloe_fabric::Client;
use cxloe_fabric::model::{RegionState, human_bytes};
use serde_json::json;

use super::refused;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gmm status                                               one line, or JSON into a pipe
  gmm status --json                                        as JSON
  gmm --manager https://a:7440,https://b:7440 status       of the leading manager")]
pub struct StatusArgs {
    /// Print one human-readable line instead of JSON, as on a terminal
    #[arg(short = 'u', long)]
    human: bool,
}

/// Prints the health of the manager with the numbers of its nodes and regions; warnings go to standard error.
///
/// # Errors
/// If the manager does not answer.
pub async fn run(client: &Client, args: StatusArgs) -> Result<(), Failure> {
    let health = client.health().await?;
    let nodes = client.memory_nodes().await?;
    let pool_bytes: u64 = nodes.iter().map(|status| status.node.pool_bytes).sum();
    let free_bytes: u64 = nodes.iter().map(|status| status.free_bytes).sum();
    if let Some(reason) = &health.read_only {
        to_stderr!("Warning: nothing can be changed at present: {reason}; make room where the store is");
    }
    if let Some(warning) = refused::not_followed(&health) {
        to_stderr!("{warning}");
    }
    if health.orphan_bytes > 0 {
        to_stderr!(
            "Warning: memory nodes keep {} that no region has; `gmm release-orphans NODE` has it zeroed and given back",
            human_bytes(health.orphan_bytes)
        );
    }
    let exposed = client.overview().await?.regions.into_iter().find(|of| of.state == RegionState::Exposed);
    let exposed = exposed.map_or(0, |of| of.regions);
    if exposed > 0 {
        to_stderr!("Warning: {exposed} mirrored regions lack a copy in sync; `gmm list -R` shows which");
    }
    if output::form() == output::OutputForm::Table || args.human && !output::json_asked() {
        return output::line(&format!(
            "{} {}: gmm {}, led by {}, term {}, memory nodes {}/{} reachable, compute nodes {}/{} reachable, {} regions, {} free of {}{}",
            client.url(),
            health.status,
            health.version,
            health.leader.as_deref().unwrap_or("itself"),
            health.watermark.term,
            health.memory_nodes.reachable,
            health.memory_nodes.known,
            health.compute_nodes.reachable,
            health.compute_nodes.known,
            health.regions,
            human_bytes(free_bytes),
            human_bytes(pool_bytes),
            if health.insecure { "; --insecure: every client has all rights" } else { "" },
        ));
    }
    let mut value = output::value(&health)?;
    value["url"] = json!(client.url());
    value["pool_bytes"] = json!(pool_bytes);
    value["free_bytes"] = json!(free_bytes);
    output::print(value, args.human)
}
