//! `gmm list`: what the manager knows. One kind asked for: an array of it. Several: an array with one object for each kind
//! there is something of.

use clap::Args;
use cxloe_gmm::Client;
use cxloe_gmm::api::EventsQuery;
use cxloe_gmm::command_line::{Failure, output};
use cxloe_gmm::model::Name;
use serde::Serialize;
use serde_json::{Value, json};

/// Arguments of `gmm list`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without -M, -C, -R or -E: memory nodes, compute nodes and regions.

Examples:
  gmm list -M -u          memory nodes with sizes for people
  gmm list -R -r scratch  one region
  gmm list -MR            two kinds at once
  gmm list -E             the event log")]
pub struct ListArgs {
    /// Memory nodes
    #[arg(short = 'M', long)]
    memory_nodes: bool,
    /// Compute nodes
    #[arg(short = 'C', long)]
    compute_nodes: bool,
    /// Regions
    #[arg(short = 'R', long)]
    regions: bool,
    /// Events
    #[arg(short = 'E', long)]
    events: bool,
    /// Only the region of this name (implies -R)
    #[arg(short = 'r', long, value_name = "NAME")]
    region: Option<Name>,
    /// Only the memory node of this name (implies -M)
    #[arg(short = 'm', long, value_name = "NAME")]
    memory_node: Option<Name>,
    /// Sizes and addresses for people
    #[arg(short = 'u', long)]
    human: bool,
}

/// Lists.
///
/// # Errors
/// When the manager cannot be asked, or standard output is closed.
pub async fn run(client: &Client, args: ListArgs) -> Result<(), Failure> {
    let wanted_regions = args.regions || args.region.is_some();
    let wanted_memory = args.memory_nodes || args.memory_node.is_some();
    let any = wanted_regions || wanted_memory || args.compute_nodes || args.events;

    let mut kinds: Vec<(&str, Vec<Value>)> = Vec::new();
    if wanted_memory || !any {
        let nodes = client.memory_nodes().await?;
        let named = |name: &Name| args.memory_node.as_ref().is_none_or(|wanted| wanted == name);
        kinds.push(("memory_nodes", values(nodes.into_iter().filter(|status| named(&status.node.name)))?));
    }
    if args.compute_nodes || !any {
        kinds.push(("compute_nodes", values(client.compute_nodes().await?)?));
    }
    if wanted_regions || !any {
        let regions = client.regions().await?;
        let named = |name: &Name| args.region.as_ref().is_none_or(|wanted| wanted == name);
        kinds.push(("regions", values(regions.into_iter().filter(|region| named(&region.name)))?));
    }
    if args.events {
        kinds.push(("events", all_events(client).await?));
    }

    if kinds.iter().all(|(_, values)| values.is_empty()) {
        let names: Vec<&str> = kinds.iter().map(|(kind, _)| *kind).collect();
        eprintln!("Warning: no {} found", names.join(", ").replace('_', " "));
    }
    let single = kinds.len() == 1;
    let listed = if single {
        kinds.pop().map(|(_, values)| values).unwrap_or_default()
    } else {
        let present = kinds.into_iter().filter(|(_, values)| !values.is_empty());
        present.map(|(kind, values)| json!({ kind: values })).collect()
    };
    output::print(Value::Array(listed), args.human)
}

async fn all_events(client: &Client) -> Result<Vec<Value>, Failure> {
    let mut events = Vec::new();
    let mut query = EventsQuery::default();
    loop {
        let page = client.events(query).await?;
        let Some(last) = page.events.last() else { break };
        query.after = last.seq;
        let complete = last.seq >= page.newest;
        events.extend(values(page.events)?);
        if complete {
            break;
        }
    }
    Ok(events)
}

fn values(items: impl IntoIterator<Item = impl Serialize>) -> Result<Vec<Value>, Failure> {
    items.into_iter().map(output::value).collect()
}
