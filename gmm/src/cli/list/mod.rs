//! `gmm list`: the manager's records, in the manner of `cxl list`: as tables on a terminal, else as JSON. With
//! `--json`: an object with an array for each kind. With `--cxl`: one kind is an array; several are an array with one
//! object for each kind that is not empty.
//!
//! ```text
//!   flags --> kinds, scope      manager --> snapshot --> one file per kind makes its objects --> array
//! ```

mod compute_nodes;
mod events;
mod logical_devices;
mod memory_nodes;
mod ports;
mod regions;
mod scope;
mod snapshot;

use clap::Args;
use cxloe_daemon::command_line::{Exit, Failure, output};
use cxloe_daemon::to_stderr;
use cxloe_fabric::Client;
use cxloe_fabric::api::{LogicalDeviceStatus, Owner};
use cxloe_fabric::model::{LabelSelector, Name, Region, Role};
use serde_json::Value;

use super::since::Since;
use scope::Scope;
use snapshot::Snapshot;

#[derive(Debug, Args)]
#[command(after_help = "\
Without a flag for a kind, and without a filter: memory nodes, compute nodes and regions. A filter alone
lists what it names. Idle ones are left out, unless a filter names them: unreachable nodes, disabled
regions, decoders that are not committed, and logical devices that are not bound.

JSON has the keys of `cxl list` where there is one (memdev, ram_size, region, size, interleave_ways,
decoder, targets, mappings...), and further ones. A terminal gets tables with the most important fields;
--json has all, --cxl in the form of `cxl list`, with sizes as integers unless -u is given.

Examples:
  gmm list -M -u             memory nodes with sizes for people
  gmm list -R -r scratch     one region
  gmm list -RD -m mn0        regions that have a part on mn0, and their decoders
  gmm list -l use=serving    regions with this label
  gmm list -Rc cn0           regions that belong to cn0
  gmm list -R --tenant 1a2b3c4d
                             regions of the tenant that has this token
  gmm list -MR               two kinds at once
  gmm list -LB               logical devices and their bindings
  gmm list -E --since 10m    events of the last ten minutes
  gmm list --who 'uid 0'     changes made by root on the manager's machine
  gmm list -vvi              everything, idle ones included")]
pub struct ListArgs {
    /// List memory nodes
    #[arg(short = 'M', long, visible_alias = "memory-nodes", help_heading = "Kinds")]
    memdevs: bool,
    /// List compute nodes
    #[arg(short = 'C', long, help_heading = "Kinds")]
    compute_nodes: bool,
    /// List regions
    #[arg(short = 'R', long, help_heading = "Kinds")]
    regions: bool,
    /// List HDM decoders of regions
    #[arg(short = 'D', long, help_heading = "Kinds")]
    decoders: bool,
    /// List logical devices: the parts of memory nodes given to compute nodes
    #[arg(short = 'L', long, help_heading = "Kinds")]
    logical_devices: bool,
    /// List bindings of logical devices to vPPBs of compute nodes
    #[arg(short = 'B', long, help_heading = "Kinds")]
    bindings: bool,
    /// List ports of the switches of the FM API
    #[arg(short = 'P', long, help_heading = "Kinds")]
    ports: bool,
    /// List sessions of compute nodes with memory nodes, as reported by the latter
    #[arg(short = 'S', long, help_heading = "Kinds")]
    sessions: bool,
    /// List events
    #[arg(short = 'E', long, help_heading = "Kinds")]
    events: bool,
    /// Only these memory nodes and what belongs to them
    #[arg(
        short = 'm',
        long,
        visible_alias = "memory-node",
        value_name = "NAME",
        value_delimiter = ',',
        help_heading = "Filters"
    )]
    memdev: Vec<Name>,
    /// Only these compute nodes and what belongs to them: names or CN ids
    #[arg(short = 'c', long, value_name = "CN", value_delimiter = ',', help_heading = "Filters")]
    compute_node: Vec<Owner>,
    /// Only compute nodes of these tenants, and what belongs to them: ids of tokens as `gmm token list` shows them
    #[arg(long, value_name = "TOKEN", value_delimiter = ',', help_heading = "Filters")]
    tenant: Vec<String>,
    /// Only these regions and what belongs to them
    #[arg(short = 'r', long, value_name = "NAME", value_delimiter = ',', help_heading = "Filters")]
    region: Vec<Name>,
    /// Only regions with these labels: key=value, key!=value, key (any value) or !key, separated by commas
    #[arg(short = 'l', long, value_name = "LABELS", help_heading = "Filters")]
    label: Option<LabelSelector>,
    /// Only these decoders, as in heap.0
    #[arg(short = 'd', long, value_name = "NAME", value_delimiter = ',', help_heading = "Filters")]
    decoder: Vec<String>,
    /// Only events of these kinds, as in region_changed
    #[arg(short = 'k', long, value_name = "KIND", value_delimiter = ',', help_heading = "Filters")]
    kind: Vec<String>,
    /// Only events from this time on: a time (2026-05-01T12:00:00Z) or how long ago (10m, 2h, 1d)
    #[arg(long, value_name = "TIME", help_heading = "Filters")]
    since: Option<Since>,
    /// Only events caused by this caller, as in "token 1a2b3c4d", "uid 0", "memory node mn0"
    #[arg(long, value_name = "WHO", help_heading = "Filters")]
    who: Option<String>,
    /// Include idle objects
    #[arg(short = 'i', long)]
    idle: bool,
    /// Print human-readable sizes, addresses and times
    #[arg(short = 'u', long)]
    human: bool,
    /// More: -v all kinds but sessions and events, -vv idle ones too, -vvv sessions and the reports of nodes
    #[arg(short = 'v', long, action = clap::ArgAction::Count)]
    verbose: u8,
}

/// Kinds of objects, in the order of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObjectKind {
    MemoryNodes,
    ComputeNodes,
    Regions,
    Decoders,
    LogicalDevices,
    Bindings,
    Ports,
    Sessions,
    Events,
}

impl ObjectKind {
    /// Key of this kind's array in the output.
    fn key(self) -> &'static str {
        match self {
            Self::MemoryNodes => "memdevs",
            Self::ComputeNodes => "compute_nodes",
            Self::Regions => "regions",
            Self::Decoders => "decoders",
            Self::LogicalDevices => "logical_devices",
            Self::Bindings => "bindings",
            Self::Ports => "ports",
            Self::Sessions => "sessions",
            Self::Events => "events",
        }
    }

    /// Name of this kind in messages to people.
    fn plural(self) -> String {
        match self {
            Self::MemoryNodes => "memory nodes".to_owned(),
            _ => self.key().replace('_', " "),
        }
    }
}

impl ListArgs {
    fn kinds(&self) -> Vec<ObjectKind> {
        let verbose = self.verbose > 0;
        let flags = [
            (ObjectKind::MemoryNodes, self.memdevs || verbose),
            (ObjectKind::ComputeNodes, self.compute_nodes || verbose),
            (ObjectKind::Regions, self.regions || verbose),
            (ObjectKind::Decoders, self.decoders || verbose),
            (ObjectKind::LogicalDevices, self.logical_devices || verbose),
            (ObjectKind::Bindings, self.bindings || verbose),
            (ObjectKind::Ports, self.ports || verbose),
            (ObjectKind::Sessions, self.sessions || self.verbose > 2),
            (ObjectKind::Events, self.events),
        ];
        let filters = [
            (ObjectKind::MemoryNodes, !self.memdev.is_empty()),
            (ObjectKind::ComputeNodes, !self.compute_node.is_empty() || !self.tenant.is_empty()),
            (ObjectKind::Regions, !self.region.is_empty() || self.label.is_some()),
            (ObjectKind::Decoders, !self.decoder.is_empty()),
            (ObjectKind::Events, !self.kind.is_empty() || self.since.is_some() || self.who.is_some()),
        ];
        let chosen = |of: &[(ObjectKind, bool)]| -> Vec<ObjectKind> {
            of.iter().filter(|(_, chosen)| *chosen).map(|(kind, _)| *kind).collect()
        };
        let (flagged, named) = (chosen(&flags), chosen(&filters));
        match (flagged.is_empty(), named.is_empty()) {
            (false, _) => flagged,
            (true, false) => named,
            (true, true) => vec![ObjectKind::MemoryNodes, ObjectKind::ComputeNodes, ObjectKind::Regions],
        }
    }
}

/// Prints the objects of the requested kinds that pass the filters.
///
/// # Errors
/// If the manager does not answer, or standard output is closed.
pub async fn run(client: &Client, mut args: ListArgs) -> Result<(), Failure> {
    let kinds = args.kinds();
    args.compute_node.extend(nodes_of_tenants(client, &args.tenant).await?);
    let snapshot = Snapshot::take(client, &kinds, !args.compute_node.is_empty()).await?;
    let mut scope = Scope::new(&args, &snapshot);
    let mut listed: Vec<(ObjectKind, Vec<Value>)> = Vec::new();
    for kind in kinds {
        let found = match kind {
            ObjectKind::MemoryNodes => memory_nodes::list(&snapshot, &mut scope)?,
            ObjectKind::ComputeNodes => compute_nodes::list(&snapshot, &mut scope)?,
            ObjectKind::Regions => regions::list(&snapshot, &mut scope)?,
            ObjectKind::Decoders => regions::decoders(&snapshot, &mut scope),
            ObjectKind::LogicalDevices => logical_devices::list(&snapshot, &mut scope)?,
            ObjectKind::Bindings => logical_devices::bindings(&snapshot, &mut scope),
            ObjectKind::Ports => ports::list(&snapshot, &mut scope),
            ObjectKind::Sessions => events::sessions(client, &scope).await?,
            ObjectKind::Events => events::list(client, &args, &scope).await?,
        };
        listed.push((kind, found));
    }
    if listed.iter().all(|(_, found)| found.is_empty()) {
        let names: Vec<String> = listed.iter().map(|(kind, _)| kind.plural()).collect();
        to_stderr!("Warning: no {} found{}", names.join(", "), scope.idle_hint());
    } else if scope.hidden > 0 {
        to_stderr!("Warning: some are idle and not shown{}", scope.idle_hint());
    }
    output::print_kinds(listed.into_iter().map(|(kind, found)| (kind.key(), found)).collect(), args.human)
}

/// Compute nodes of the tenants that have the tokens `ids`.
async fn nodes_of_tenants(client: &Client, ids: &[String]) -> Result<Vec<Owner>, Failure> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let tokens = client.tokens().await?;
    let mut nodes = Vec::new();
    for id in ids {
        let tenant = tokens.iter().find(|token| token.id == *id && token.role == Role::Tenant);
        let Some(tenant) = tenant else {
            let what = format!("no tenant has token {id}; `gmm token list` shows the tokens of role tenant");
            return Err(Failure::new(Exit::NotFound, what));
        };
        nodes.extend(tenant.compute_nodes.iter().copied().map(Owner::CnId));
    }
    Ok(nodes)
}

/// A region as printed by the commands about regions.
///
/// # Errors
/// If the region has no JSON form.
pub fn region(region: &Region) -> Result<Value, Failure> {
    regions::shown(region, region)
}

/// A logical device as printed by the commands about logical devices.
///
/// # Errors
/// If the status has no JSON form.
pub fn logical_device(status: &LogicalDeviceStatus) -> Result<Value, Failure> {
    logical_devices::shown(status)
}

/// Returns `item` as a JSON object, with those fields of `more` added whose values are not null.
fn object(item: impl serde::Serialize, more: Value) -> Result<Value, Failure> {
    let mut value = output::value(item)?;
    if let (Value::Object(fields), Value::Object(more)) = (&mut value, more) {
        fields.extend(more.into_iter().filter(|(_, field)| !field.is_null()));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct ListedCommand {
        #[command(flatten)]
        list: ListArgs,
    }

    fn kinds(args: &[&str]) -> Vec<ObjectKind> {
        ListedCommand::parse_from([&["list"], args].concat()).list.kinds()
    }

    #[test]
    fn kinds_follow_from_flags_and_filters() {
        use ObjectKind::*;
        assert_eq!(kinds(&[]), [MemoryNodes, ComputeNodes, Regions]);
        assert_eq!(kinds(&["-DR"]), [Regions, Decoders]);
        assert_eq!(kinds(&["-m", "mn0,mn1"]), [MemoryNodes]);
        assert_eq!(kinds(&["-R", "-m", "mn0"]), [Regions]);
        assert_eq!(kinds(&["--since", "10m"]), [Events]);
        assert_eq!(kinds(&["-v"]).len(), 7);
        assert_eq!(kinds(&["-vvv"]).last(), Some(&Sessions));
    }
}
