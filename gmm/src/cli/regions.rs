//! `gmm create-region` and `gmm grow-region`: allocation of memory to a compute node.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_daemon::to_stderr;
use cxloe_fabric::Client;
use cxloe_fabric::api::{
    CreateRegion, ErrorCode, GRANULARITY_DEFAULT, GrowRegion, Owner, WAIT_MS_DEFAULT, WAYS_DEFAULT,
};
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::{
    ByteSize, Health, Label, LabelError, Name, Protection, Region, RegionState, Unmapped, human_bytes,
};

use super::list;
use super::progress::Progress;
use super::refused;

#[derive(Debug, Args)]
#[command(after_help = "\
Without a name the region gets the first free one of region0, region1 and so on. Its parts are placed on
different memory nodes: those with the most free memory, or those named with --on.

Examples:
  gmm create-region -s 1G --owner cn0 scratch
  gmm create-region -s 512M --owner 02:00:00:00:00:01 -u
  gmm create-region -w 4 -g 1024 -s 64G --owner cn1 --on mn0,mn1,mn2,mn3 heap
  gmm create-region -s 1G --owner cn0 --unmapped poison heap
  gmm create-region -s 64G --owner cn1 --label use=serving,team=vision model

On a terminal the command returns when the owner's agent has received the region, so that it can be used at
once; with --no-wait when the memory nodes have mapped it. In scripts, --wait waits for the agent.")]
pub struct CreateArgs {
    /// Name of the region
    name: Option<Name>,
    /// Size: bytes, or with K, M, G, T; a multiple of the memory nodes' extent size (2M) times the ways
    #[arg(short, long)]
    size: ByteSize,
    /// Owner of the region: the name or the CN id (MAC address) of a compute node
    #[arg(short, long, value_name = "CN")]
    owner: Owner,
    /// Interleave ways: 1, 2, 3, 4, 6, 8, 12 or 16
    #[arg(short, long, default_value_t = WAYS_DEFAULT)]
    ways: Ways,
    /// Interleave granularity in bytes: a power of two, 256 to 16384 (16K)
    #[arg(short, long, default_value_t = GRANULARITY_DEFAULT, value_name = "BYTES")]
    granularity: Granularity,
    /// Memory nodes to take the region's memory from, separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    on: Vec<Name>,
    /// Copies of the region: none (one copy) or mirror (two copies, on different memory nodes and racks)
    #[arg(long, default_value_t, value_name = "HOW")]
    protect: Protection,
    /// Answer to the owner's accesses beyond the region's end: error, poison or all-ones
    #[arg(long, value_name = "HOW", default_value = "error", value_parser = unmapped)]
    unmapped: Unmapped,
    /// User id on the owner that may use the region [default: all users of that node's agent]
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,
    /// Labels of the region, separated by commas: `gmm list --label` finds it by them
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    label: Vec<Label>,
    /// Time to wait for the memory nodes, in milliseconds
    #[arg(long, default_value_t = WAIT_MS_DEFAULT, value_name = "MS")]
    wait_ms: u64,
    #[command(flatten)]
    owner_has_it: OwnerWait,
    /// Print human-readable sizes and addresses
    #[arg(short = 'u', long)]
    human: bool,
}

/// Options for waiting until the agent of a region's owner has received the region.
#[derive(Debug, Clone, Copy, Args)]
struct OwnerWait {
    /// Wait until the owner's agent has the region, too [default: on a terminal]
    #[arg(long, conflicts_with = "no_wait")]
    wait: bool,
    /// Do not wait for the owner's agent [default: where standard output is no terminal]
    #[arg(long)]
    no_wait: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Programs use the region meanwhile. If a memory node refuses its part, the region is not changed.

Examples:
  gmm grow-region heap -s 96G
  gmm grow-region heap -s +32G --on mn4")]
pub struct GrowArgs {
    /// Name of the region
    name: Name,
    /// New total size; or the size to add, as in +32G
    #[arg(short, long, value_name = "SIZE", value_parser = new_size)]
    size: NewSize,
    /// Memory nodes to take the addition from, separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    on: Vec<Name>,
    /// Time to wait for the memory nodes, in milliseconds
    #[arg(long, default_value_t = WAIT_MS_DEFAULT, value_name = "MS")]
    wait_ms: u64,
    #[command(flatten)]
    owner_has_it: OwnerWait,
    /// Print human-readable sizes and addresses
    #[arg(short = 'u', long)]
    human: bool,
}

impl OwnerWait {
    /// Waits for the owner's agent, if requested; prints a note if the agent has not received the region at the
    /// deadline.
    async fn wait(self, client: &Client, region: &Region, deadline: Instant) -> Result<(), Failure> {
        let wanted = self.wait || !self.no_wait && std::io::stdout().is_terminal();
        if !wanted || region.state == RegionState::Creating {
            return Ok(());
        }
        let Region { name, owner, .. } = region;
        let progress = Progress::waiting(format!("waiting for the agent of {owner} to attach {name}"));
        loop {
            // One long poll is enough, unless the time left exceeds the manager's maximum wait.
            let left = deadline.saturating_duration_since(Instant::now());
            if client.region_at_owner(name, left.as_millis() as u64).await?.owner_knows {
                return Ok(());
            }
            let nodes = client.compute_nodes().await?;
            let there = nodes.iter().any(|node| node.cn_id == *owner && node.health == Health::Reachable);
            if !there || Instant::now() >= deadline {
                drop(progress);
                let why =
                    if there { "has not received it yet" } else { "is not there, and gets it when it is" };
                to_stderr!("Warning: the agent of {owner}, whose region {name} is, {why}");
                return Ok(());
            }
        }
    }
}

/// Argument of `gmm grow-region`: a total size, or an addition with `+`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NewSize {
    /// The total size after the growth, in bytes.
    To(u64),
    /// The number of bytes to add.
    By(u64),
}

fn unmapped(text: &str) -> Result<Unmapped, String> {
    match text {
        "error" => Ok(Unmapped::Error),
        "poison" => Ok(Unmapped::Poison),
        "all-ones" => Ok(Unmapped::AllOnes),
        other => Err(format!("{other:?} is no way to answer: give error, poison or all-ones")),
    }
}

fn new_size(text: &str) -> Result<NewSize, String> {
    let (more, size) = text.strip_prefix('+').map_or((false, text), |size| (true, size));
    let ByteSize(bytes) = size.parse().map_err(|error: cxloe_fabric::model::SizeError| error.to_string())?;
    Ok(if more { NewSize::By(bytes) } else { NewSize::To(bytes) })
}

/// Creates a region, waits for its memory nodes and its owner, and prints the region.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn create(client: &Client, args: CreateArgs) -> Result<(), Failure> {
    let CreateArgs {
        name,
        size,
        owner,
        ways,
        granularity,
        on,
        protect,
        unmapped,
        uid,
        label,
        wait_ms,
        owner_has_it,
        human,
    } = args;
    let labels = label.try_into().map_err(|error: LabelError| Failure::usage(error.to_string()))?;
    // One deadline covers both waits: for the memory nodes and for the owner's agent.
    let deadline = Instant::now() + Duration::from_millis(wait_ms);
    let create =
        CreateRegion { name, size, owner, ways, granularity, on, protect, unmapped, uid, labels, wait_ms };
    let progress = Progress::waiting(format!("waiting for memory nodes to map {size}"));
    let region = refused::watch(client, &progress, create_surely(client, &create)).await?;
    drop(progress);
    owner_has_it.wait(client, &region, deadline).await?;
    show(&region, human)
}

/// Creates a region. If the answer is lost and the region has a name, looks for that name to find out whether the
/// region was created.
async fn create_surely(client: &Client, create: &CreateRegion) -> Result<Region, Failure> {
    let lost = match client.create_region(create).await {
        Err(lost) if lost.may_be_done() => lost,
        answered => return Ok(answered?),
    };
    // Without a name, the region cannot be found, and a repeated request might create a second one.
    let Some(name) = &create.name else { return Err(lost.into()) };
    to_stderr!("Warning: the answer was lost; looking whether {name} was created");
    match client.region(name).await {
        Ok(region) if is_of(&region, create, client).await? => Ok(region),
        // The region differs from the requested one: somebody else created it, or it existed before.
        Ok(_) => Err(lost.into()),
        Err(error) if error.code() == Some(ErrorCode::NotFound) => Ok(client.create_region(create).await?),
        Err(error) => Err(error.into()),
    }
}

/// True if `region` has the owner and the size that `create` requests.
async fn is_of(region: &Region, create: &CreateRegion, client: &Client) -> Result<bool, Failure> {
    let owner = match &create.owner {
        Owner::CnId(id) => Some(*id),
        Owner::Name(name) => {
            let nodes = client.compute_nodes().await?;
            nodes.into_iter().find(|node| node.name.as_ref() == Some(name)).map(|node| node.cn_id)
        }
    };
    Ok(owner == Some(region.owner) && region.size == create.size.0)
}

/// Enlarges a region, waits for its memory nodes and its owner, and prints the region.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn grow(client: &Client, args: GrowArgs) -> Result<(), Failure> {
    let GrowArgs { name, size, on, wait_ms, owner_has_it, human } = args;
    let deadline = Instant::now() + Duration::from_millis(wait_ms);
    let size = match size {
        NewSize::To(size) => size,
        NewSize::By(more) => client.region(&name).await?.size.saturating_add(more),
    };
    let progress = Progress::waiting(format!("waiting for memory nodes to map more of {name}"));
    let grow = GrowRegion { size: ByteSize(size), on, wait_ms };
    let region = match refused::watch(client, &progress, client.grow_region(&name, &grow)).await {
        Err(lost) if lost.may_be_done() => {
            to_stderr!("Warning: the answer was lost; looking whether {name} grows");
            // Until the addition is mapped, a growing region has its old size. An error returned here can therefore
            // mean that the region is still growing.
            let region = client.region(&name).await?;
            if region.size < size {
                return Err(lost.into());
            }
            region
        }
        answered => answered?,
    };
    drop(progress);
    if region.size < size {
        let (now, then) = (human_bytes(region.size), human_bytes(size));
        to_stderr!(
            "Warning: {name} has {now} so far and is still growing to {then}; `gmm list -R` shows when it has it"
        );
    }
    owner_has_it.wait(client, &region, deadline).await?;
    show(&region, human)
}

/// Prints a region after a change, as JSON or, if `human`, in human-readable form.
///
/// # Errors
/// If standard output is closed.
pub fn show(region: &Region, human: bool) -> Result<(), Failure> {
    if region.state == RegionState::Creating {
        to_stderr!(
            "Warning: not every memory node has mapped {} yet; `gmm list -R` shows when it is active",
            region.name
        );
    }
    output::print(list::region(region)?, human)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_people_write_them() {
        assert!(unmapped("zeros").is_err());
        assert_eq!((new_size("2M"), new_size("+2M")), (Ok(NewSize::To(2 << 20)), Ok(NewSize::By(2 << 20))));
        assert_eq!(unmapped("all-ones"), Ok(Unmapped::AllOnes));
    }
}
