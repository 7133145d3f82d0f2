//! `gmm relocate` and `gmm rebalance`: moves of regions between memory nodes while they are used.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use clap::Args;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_daemon::to_stderr;
use cxloe_fabric::Client;
use cxloe_fabric::api::{MemoryNodeStatus, RegionStatus, RelocateRegion};
use cxloe_fabric::model::{CnId, Health, Leg, LegState, Name, Region, RegionState, human_bytes};
use serde_json::json;

use super::balance::{self, Move, Part, Pool};
use super::waiting_region;

/// Interval at which the region is read while parts of it move.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
#[command(after_help = "\
Programs use the region meanwhile. The owner's agent copies the part while it runs; memory nodes copy it if
nobody uses the region. Interrupting the command does not stop the move; --stop does.

Examples:
  gmm relocate heap --from mn0 --to mn3
  gmm relocate heap --from mn0 --stop")]
pub struct RelocateArgs {
    /// Name of the region
    region: Name,
    /// The memory node that a part of the region is on
    #[arg(long, value_name = "NAME")]
    from: Name,
    /// The memory node that the part moves to
    #[arg(long, value_name = "NAME", required_unless_present = "stop")]
    to: Option<Name>,
    /// Stop: what has not moved stays
    #[arg(long, conflicts_with = "to")]
    stop: bool,
    /// Return at once, without waiting until the part has moved
    #[arg(long, conflicts_with = "stop")]
    no_wait: bool,
}

/// Moves the parts of a region on one memory node to another one, and prints the result.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn relocate(client: &Client, args: RelocateArgs) -> Result<(), Failure> {
    let RelocateArgs { region: name, from, to, stop: _, no_wait } = args;
    let region = client
        .relocate_region(&name, &RelocateRegion { from: from.clone(), to: to.clone(), wait_ms: 0 })
        .await?;
    let Some(to) = to else {
        return print(&name, &from, None, "stopped", bytes_on(&region, &from));
    };
    let bytes = bytes_on(&region, &from);
    if no_wait && bytes > 0 {
        return print(&name, &from, Some(&to), "moving", bytes);
    }
    let found = Move { region: name.clone(), from: from.clone(), to: to.clone(), bytes };
    if !follow(client, &found).await? {
        return Err(Failure::failed(format!(
            "region {name} does not move to {to} any more: the move was stopped"
        )));
    }
    print(&name, &from, Some(&to), "moved", 0)
}

fn print(region: &Name, from: &Name, to: Option<&Name>, state: &str, bytes_left: u64) -> Result<(), Failure> {
    output::print(
        json!({ "region": region, "from": from, "to": to, "state": state, "bytes_left": bytes_left }),
        false,
    )
}

/// Waits for the end of a move. Returns `false` if the move was stopped.
async fn follow(client: &Client, found: &Move) -> Result<bool, Failure> {
    let mut named = false;
    loop {
        let status = client.region_status(&found.region).await?;
        let region = &status.region;
        let mut here = legs_on(region, &found.from).peekable();
        if here.peek().is_none() {
            return Ok(true);
        }
        if here.any(|leg| leg.moves_to.as_ref() != Some(&found.to)) {
            return Ok(false);
        }
        if !named && let Some(reason) = waiting_region::reason(&status, &running(client).await?) {
            named = true;
            to_stderr!("Waiting: {reason}");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Compute nodes whose agent runs, which copies parts of their regions.
async fn running(client: &Client) -> Result<BTreeSet<CnId>, Failure> {
    let nodes = client.compute_nodes().await?.into_iter();
    Ok(nodes.filter(|node| node.health == Health::Reachable).map(|node| node.cn_id).collect())
}

/// Legs (parts) of a region on a memory node, without those that are being unmapped.
fn legs_on<'a>(region: &'a Region, node: &'a Name) -> impl Iterator<Item = &'a Leg> {
    region.legs.iter().filter(move |leg| &leg.memory_node == node && leg.state != LegState::Unmapping)
}

fn bytes_on(region: &Region, node: &Name) -> u64 {
    legs_on(region, node).map(|leg| leg.bytes).sum()
}

#[derive(Debug, Args)]
#[command(after_help = "\
Moves parts of regions from the memory nodes that are used most to those that are used least, one at a time,
while programs use them: for example after a memory node was added. Regions move whose owner's agent runs,
which copies them, and regions that nobody uses, which memory nodes copy. Interrupted, the command begins no
further move; --stop also stops the one under way.

Examples:
  gmm rebalance --dry-run            what would move
  gmm rebalance
  gmm rebalance --within 5")]
pub struct RebalanceArgs {
    /// Difference that may remain between the uses of the memory nodes, in per cent of their pools
    #[arg(long, default_value_t = 10, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    within: u8,
    /// Print the moves, and make none
    #[arg(long)]
    dry_run: bool,
    /// Stop all moves that are under way: what has not moved stays
    #[arg(long, conflicts_with_all = ["dry_run", "within"])]
    stop: bool,
}

/// Moves parts of regions until the memory nodes are used evenly, with progress on standard error, and prints
/// the result.
///
/// # Errors
/// If the manager does not answer.
pub async fn rebalance(client: &Client, args: RebalanceArgs) -> Result<(), Failure> {
    if args.stop {
        return stop_all(client).await;
    }
    let within = f64::from(args.within) / 100.0;
    let (pools, parts) = look(client).await?;
    let before = balance::spread(&pools);
    let (planned, after) = balance::plan(pools, parts, within);
    if args.dry_run {
        let moves: Vec<_> = planned.iter().map(shown).collect();
        let moves = json!({ "moves": moves, "spread_percent": percent(before), "spread_after_percent": percent(after) });
        return output::print(moves, false);
    }
    let total: u64 = planned.iter().map(|one| one.bytes).sum();
    let (began, mut moved, mut count) = (Instant::now(), 0_u64, 0_u64);
    let mut refused = BTreeSet::new();
    let spread = loop {
        // Regions are created and destroyed meanwhile, so each move is chosen from the present state.
        let (pools, parts) = look(client).await?;
        let Some(next) = balance::next_move(&pools, &parts, within, &refused) else {
            break balance::spread(&pools);
        };
        let left = total.saturating_sub(moved);
        let estimate = match moved {
            0 => String::new(),
            moved => format!(", about {:.0} s", began.elapsed().as_secs_f64() * left as f64 / moved as f64),
        };
        let Move { region, from, to, bytes } = &next;
        to_stderr!(
            "{region}: {} from {from} to {to}; {} left{estimate}",
            human_bytes(*bytes),
            human_bytes(left)
        );
        let order = RelocateRegion { from: from.clone(), to: Some(to.clone()), wait_ms: 0 };
        match client.relocate_region(region, &order).await {
            Ok(_) => {}
            // After a refusal, this region is not moved to this memory node; other moves are still tried.
            Err(error) if error.code().is_some() => {
                to_stderr!("{region} does not move to {to}: {error}");
                refused.insert((region.clone(), to.clone()));
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        if follow(client, &next).await? {
            (moved, count) = (moved + bytes, count + 1);
        } else {
            return Err(Failure::failed(format!(
                "the move of {region} was stopped, and so is the rebalancing"
            )));
        }
    };
    let state = if spread <= within { "balanced" } else { "no move helps" };
    output::print(
        json!({
            "state": state, "moves": count, "bytes": moved,
            "spread_before_percent": percent(before), "spread_percent": percent(spread),
        }),
        false,
    )
}

fn shown(one: &Move) -> serde_json::Value {
    json!({ "region": one.region, "from": one.from, "to": one.to, "bytes": one.bytes })
}

/// Converts a fraction to per cent, rounded to a tenth.
fn percent(share: f64) -> f64 {
    (share * 1000.0).round() / 10.0
}

/// Reads the pools that can receive parts, and the parts that can move.
async fn look(client: &Client) -> Result<(Vec<Pool>, Vec<Part>), Failure> {
    let (nodes, regions, running) =
        (client.memory_nodes().await?, client.region_statuses().await?, running(client).await?);
    Ok((pools(&nodes), parts(&regions, &running)))
}

fn pools(nodes: &[MemoryNodeStatus]) -> Vec<Pool> {
    let usable =
        nodes.iter().filter(|status| status.node.health == Health::Reachable && !status.node.draining);
    let pool = |status: &MemoryNodeStatus| Pool {
        node: status.node.name.clone(),
        bytes: status.node.pool_bytes,
        // Memory being zeroed belongs to no region any more, but cannot be allocated yet.
        used: status.node.pool_bytes.saturating_sub(status.free_bytes + status.draining_bytes),
        free: status.free_bytes.saturating_sub(status.reserved_bytes),
        extent_bytes: status.node.extent_bytes,
    };
    usable.map(pool).collect()
}

fn parts(regions: &[RegionStatus], running: &BTreeSet<CnId>) -> Vec<Part> {
    let movable = |status: &&RegionStatus| {
        let rests = status.at_rest && status.region.state == RegionState::Disabled;
        let idle = rests || status.region.state == RegionState::Active;
        idle && status.region.growing() == 0 && waiting_region::reason(status, running).is_none()
    };
    let mut parts = Vec::new();
    for region in regions.iter().filter(movable).map(|status| &status.region) {
        let mut on: BTreeMap<&Name, u64> = BTreeMap::new();
        for leg in region.legs.iter().filter(|leg| leg.state != LegState::Unmapping) {
            *on.entry(&leg.memory_node).or_default() += leg.bytes;
        }
        for (node, bytes) in on {
            let positions: BTreeSet<_> =
                legs_on(region, node).map(|leg| (leg.decoder, leg.position)).collect();
            let same = |leg: &&Leg| {
                &leg.memory_node != node
                    && leg.state != LegState::Unmapping
                    && positions.contains(&(leg.decoder, leg.position))
            };
            let copies_on = region.legs.iter().filter(same).map(|leg| leg.memory_node.clone()).collect();
            parts.push(Part { region: region.name.clone(), on: node.clone(), bytes, copies_on });
        }
    }
    parts
}

/// Stops all moves that were ordered for single regions.
async fn stop_all(client: &Client) -> Result<(), Failure> {
    let mut stopped = Vec::new();
    for region in client.regions().await? {
        let leaving: BTreeSet<Name> = {
            let legs = region.legs.iter().filter(|leg| leg.moves_to.is_some());
            legs.map(|leg| leg.memory_node.clone()).collect()
        };
        for from in leaving {
            let order = RelocateRegion { from: from.clone(), to: None, wait_ms: 0 };
            client.relocate_region(&region.name, &order).await?;
            stopped.push(json!({ "region": region.name, "from": from }));
        }
    }
    output::print(json!({ "state": "stopped", "stopped": stopped }), false)
}
