//! `gmm set-quota`, `gmm hold`, `gmm release` and `gmm forget`: operations on nodes.

use clap::Args;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_fabric::Client;
use cxloe_fabric::api::Owner;
use cxloe_fabric::model::{ByteSize, Name};
use serde_json::{Value, json};

#[derive(Debug, Args)]
#[command(after_help = "\
Regions that exist stay, even if they exceed the quota.

Examples:
  gmm set-quota cn1 256G
  gmm set-quota 02:00:00:00:00:01 none    no limit")]
pub struct QuotaArgs {
    /// The compute node: name or CN id
    #[arg(value_name = "CN")]
    compute_node: Owner,
    /// Maximum size of all regions of the compute node together, or `none`
    #[arg(value_name = "SIZE", value_parser = quota)]
    size: Quota,
    /// Print human-readable sizes
    #[arg(short = 'u', long)]
    human: bool,
}

/// A quota on the command line: a size, or `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Quota(Option<u64>);

fn quota(text: &str) -> Result<Quota, String> {
    if text == "none" {
        return Ok(Quota(None));
    }
    let size: Result<ByteSize, _> = text.parse();
    size.map(|size| Quota(Some(size.0))).map_err(|error| format!("{error}; or `none`"))
}

#[derive(Debug, Args)]
#[command(after_help = "\
A suspended compute node writes back and releases its regions, and attaches none until `gmm release`. CXL
calls this holding it in reset.

Example:
  gmm hold cn1")]
pub struct HoldArgs {
    /// The compute node: name or CN id
    #[arg(value_name = "CN")]
    compute_node: Owner,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  gmm release cn1")]
pub struct ReleaseArgs {
    /// The compute node: name or CN id
    #[arg(value_name = "CN")]
    compute_node: Owner,
}

#[derive(Debug, Args)]
#[command(after_help = "\
For a node that will not return. A memory node that returns nevertheless is a new one: it does not serve its
old content, and keeps it until `gmm release-orphans`. A compute node can be removed when it has no regions
and no logical devices; if it returns, it is a new one.

Examples:
  gmm forget mn3
  gmm forget --force mn3    although regions lie on it: they are destroyed
  gmm forget --cn cn7       a compute node, by name or CN id")]
pub struct ForgetArgs {
    /// Name of the memory node
    #[arg(required_unless_present = "cn", conflicts_with = "cn")]
    memory_node: Option<Name>,
    /// The compute node instead: name or CN id
    #[arg(long, value_name = "CN")]
    cn: Option<Owner>,
    /// Remove it even if regions lie on it: they are destroyed
    #[arg(short, long, conflicts_with = "cn")]
    force: bool,
}

/// Limits the total size of a compute node's regions, or lifts the limit, and prints the compute node.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn set_quota(client: &Client, args: QuotaArgs) -> Result<(), Failure> {
    let node = client.set_quota(&args.compute_node, args.size.0).await?;
    output::print(output::value(node)?, args.human)
}

/// Has a compute node release its regions and attach none until `gmm release`, and prints the compute node.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn hold(client: &Client, args: HoldArgs) -> Result<(), Failure> {
    output::print(output::value(client.hold(&args.compute_node).await?)?, false)
}

/// Ends the suspension of a compute node, which attaches its regions again, and prints the compute node.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn release(client: &Client, args: ReleaseArgs) -> Result<(), Failure> {
    output::print(output::value(client.release(&args.compute_node).await?)?, false)
}

/// Removes the record of a memory node or compute node that will not return.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn forget(client: &Client, args: ForgetArgs) -> Result<(), Failure> {
    let ForgetArgs { memory_node, cn, force } = args;
    let mut forgotten: Value = json!({ "state": "forgotten" });
    if let Some(cn) = cn {
        client.forget_compute_node(&cn).await?;
        forgotten["compute_node"] = json!(cn);
    }
    if let Some(memory_node) = memory_node {
        client.forget_memory_node(&memory_node, force).await?;
        forgotten["memdev"] = json!(memory_node);
    }
    output::print(forgotten, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_a_size_or_none() {
        assert_eq!((quota("none"), quota("2M")), (Ok(Quota(None)), Ok(Quota(Some(2 << 20)))));
        assert!(quota("much").unwrap_err().contains("`none`"));
    }
}
