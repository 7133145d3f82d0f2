//! `gmm create-region` and `gmm grow-region`: giving memory to a compute node.

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
use cxloe_fabric::model::{ByteSize, Health, Name, Region, RegionState, Unmapped, human_bytes};

use super::list;
use super::progress::Progress;

/// How often it is looked whether the owner has a region.
const LOOK: Duration = Duration::from_millis(20);
/// How often a name is made up anew when somebody else was faster with it.
const NAME_TRIES: u32 = 16;

/// Arguments of `gmm create-region`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without a name the region is called region0, region1 and so on: the first that is free. Legs lie on distinct memory nodes,
those with the most free memory, or those named with --on.

Examples:
  gmm create-region -s 1G --owner cn0 scratch
  gmm create-region -s 512M --owner 02:00:00:00:00:01 -u
  gmm create-region -w 4 -g 1024 -s 64G --owner cn1 --on mn0,mn1,mn2,mn3 heap
  gmm create-region -s 1G --owner cn0 --unmapped poison heap

On a terminal it returns when the agent of the owner has the region as well, so that it can be used at once; --no-wait
returns as soon as the memory nodes have mapped it, --wait waits for the agent in scripts too.")]
pub struct CreateArgs {
    /// Name of the region
    name: Option<Name>,
    /// Size: bytes, or with K, M, G, T; a multiple of the memory nodes' extent size (2M) times the ways
    #[arg(short, long)]
    size: ByteSize,
    /// Who it is for: the name or the CN id (MAC address) of a compute node
    #[arg(short, long, value_name = "CN")]
    owner: Owner,
    /// Interleave ways: 1, 2, 3, 4, 6, 8, 12 or 16
    #[arg(short, long, default_value_t = WAYS_DEFAULT, value_parser = ways)]
    ways: u32,
    /// Interleave granularity in bytes: a power of two, 256 to 16384 (16K)
    #[arg(short, long, default_value_t = GRANULARITY_DEFAULT, value_name = "BYTES", value_parser = granularity)]
    granularity: u32,
    /// The memory nodes to take it from, separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    on: Vec<Name>,
    /// How its owner answers accesses beyond its end: error, poison or all-ones
    #[arg(long, value_name = "HOW", default_value = "error", value_parser = unmapped)]
    unmapped: Unmapped,
    /// The user of its compute node whose memory it is to be, by number [default: all who may use that node's agent]
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,
    /// How long to wait for its memory nodes, in milliseconds
    #[arg(long, default_value_t = WAIT_MS_DEFAULT, value_name = "MS")]
    wait_ms: u64,
    #[command(flatten)]
    owner_has_it: OwnerHasIt,
    /// Sizes and addresses for people
    #[arg(short = 'u', long)]
    human: bool,
}

/// Whether a command returns only when the agent of a region's owner has heard of it.
#[derive(Debug, Clone, Copy, Args)]
struct OwnerHasIt {
    /// Wait until the owner's agent has it, too [default: on a terminal]
    #[arg(long, conflicts_with = "no_wait")]
    wait: bool,
    /// Do not wait for the owner's agent [default: where standard output is no terminal]
    #[arg(long)]
    no_wait: bool,
}

/// Arguments of `gmm grow-region`.
#[derive(Debug, Args)]
#[command(after_help = "\
Its user goes on meanwhile. If a memory node refuses its part, the region stays as it was.

Examples:
  gmm grow-region heap -s 96G
  gmm grow-region heap -s +32G --on mn4")]
pub struct GrowArgs {
    /// Name of the region
    name: Name,
    /// Its new size, all of it; or what is to be added, as in +32G
    #[arg(short, long, value_name = "SIZE", value_parser = new_size)]
    size: NewSize,
    /// The memory nodes to take the addition from, separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    on: Vec<Name>,
    /// How long to wait for its memory nodes, in milliseconds
    #[arg(long, default_value_t = WAIT_MS_DEFAULT, value_name = "MS")]
    wait_ms: u64,
    #[command(flatten)]
    owner_has_it: OwnerHasIt,
    /// Sizes and addresses for people
    #[arg(short = 'u', long)]
    human: bool,
}

impl OwnerHasIt {
    /// Waits for the agent of the owner, if that is wanted; says so when it does not have the region in the end.
    async fn wait(self, client: &Client, region: &Region, deadline: Instant) -> Result<(), Failure> {
        let wanted = self.wait || !self.no_wait && std::io::stdout().is_terminal();
        if !wanted || region.state == RegionState::Creating {
            return Ok(());
        }
        let Region { name, owner, .. } = region;
        let progress = Progress::waiting(format!("waiting for the agent of {owner} to attach {name}"));
        while !client.region_status(name).await?.owner_knows {
            let nodes = client.compute_nodes().await?;
            let there = nodes.iter().any(|node| node.cn_id == *owner && node.health == Health::Reachable);
            if !there || Instant::now() >= deadline {
                drop(progress);
                let why =
                    if there { "has yet to hear of it" } else { "is not there, and gets it when it is" };
                to_stderr!("Warning: the agent of {owner}, whose region {name} is, {why}");
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }
}

/// A size to grow to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NewSize {
    /// All of it.
    To(u64),
    /// What is added.
    By(u64),
}

fn ways(text: &str) -> Result<u32, String> {
    text.parse::<Ways>().map(Ways::count).map_err(|error| error.to_string())
}

fn granularity(text: &str) -> Result<u32, String> {
    text.parse::<Granularity>().map(Granularity::bytes).map_err(|error| error.to_string())
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

/// Creates a region and prints it.
///
/// # Errors
/// When the manager cannot be asked or refuses.
pub async fn create(client: &Client, args: CreateArgs) -> Result<(), Failure> {
    let CreateArgs { name, size, owner, ways, granularity, on, unmapped, uid, wait_ms, owner_has_it, human } =
        args;
    let deadline = Instant::now() + Duration::from_millis(wait_ms);
    let create = |name| {
        let owner = owner.clone();
        CreateRegion { name, size, owner, ways, granularity, on: on.clone(), unmapped, uid, wait_ms }
    };
    let progress = Progress::waiting(format!("waiting for memory nodes to map {size}"));
    let region = match name {
        Some(name) => client.create_region(&create(name)).await?,
        None => create_nameless(client, create).await?,
    };
    drop(progress);
    owner_has_it.wait(client, &region, deadline).await?;
    show(&region, human)
}

async fn create_nameless(client: &Client, create: impl Fn(Name) -> CreateRegion) -> Result<Region, Failure> {
    let mut tries = 0;
    loop {
        tries += 1;
        let taken = client.regions().await?;
        let free = (0_u32..)
            .map(|n| Name::new(format!("region{n}")))
            .find_map(|name| name.ok().filter(|name| taken.iter().all(|region| region.name != *name)));
        let Some(name) = free else { return Err(Failure::failed("no name is free; give one")) };
        match client.create_region(&create(name)).await {
            Err(error) if error.code() == Some(ErrorCode::NameInUse) && tries < NAME_TRIES => {}
            created => return Ok(created?),
        }
    }
}

/// Makes a region larger and prints it.
///
/// # Errors
/// When the manager cannot be asked or refuses.
pub async fn grow(client: &Client, args: GrowArgs) -> Result<(), Failure> {
    let GrowArgs { name, size, on, wait_ms, owner_has_it, human } = args;
    let deadline = Instant::now() + Duration::from_millis(wait_ms);
    let size = match size {
        NewSize::To(size) => size,
        NewSize::By(more) => client.region(&name).await?.size.saturating_add(more),
    };
    let progress = Progress::waiting(format!("waiting for memory nodes to map more of {name}"));
    let region = client.grow_region(&name, &GrowRegion { size: ByteSize(size), on, wait_ms }).await?;
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

/// Prints a region that was made or changed.
///
/// # Errors
/// When standard output is closed.
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
        assert_eq!((ways("12"), granularity("1K")), (Ok(12), Ok(1024)));
        assert!(ways("5").is_err() && granularity("100").is_err() && unmapped("zeros").is_err());
        assert_eq!((new_size("2M"), new_size("+2M")), (Ok(NewSize::To(2 << 20)), Ok(NewSize::By(2 << 20))));
        assert_eq!(unmapped("all-ones"), Ok(Unmapped::AllOnes));
    }
}
