//! The fabric under chaos: a star of one compute node, with a mirrored region that has to outlive all kills.

use std::path::{Path, PathBuf};

use cxloe_fabric::api::EventsQuery;
use cxloe_fabric::model::{Name, Protection, RegionState};
use cxloe_lab::Interrupt;
use nix::sys::signal::Signal;

use super::{ChaosError, WHOLE_LIMIT};
use crate::eventually::eventually;
use crate::star::Star;

const REGION: &str = "chaos";
/// Space in each pool beyond the copy of the region, in bytes.
const POOL_ROOM: u64 = 64 << 20;

/// Daemons, and the region at the compute node.
pub struct ChaosFabric {
    star: Star,
    bytes: u64,
}

impl ChaosFabric {
    /// Starts all daemons and makes the mirrored region.
    pub fn start(
        folder: &Path,
        memory_nodes: usize,
        bytes: u64,
        interrupt: &Interrupt,
    ) -> Result<ChaosFabric, ChaosError> {
        let mut fabric = ChaosFabric { star: Star::new(folder, memory_nodes, 1)?, bytes };
        for name in fabric.daemons() {
            fabric.start_again(&name, false)?;
        }
        fabric.star.wait_reachable(interrupt)?;
        fabric.star.create(REGION, bytes, Protection::Mirror, interrupt)?;
        fabric.wait_whole(interrupt)?;
        Ok(fabric)
    }

    pub fn daemons(&self) -> Vec<String> {
        self.star.names()
    }

    pub fn agent_socket(&self) -> PathBuf {
        self.star.socket(0)
    }

    /// Kills a daemon with SIGKILL, and waits for its end.
    pub fn kill(&mut self, name: &str) -> Result<(), ChaosError> {
        self.star.end(name, Signal::SIGKILL)
    }

    /// Starts a daemon with the state that its earlier processes have left. If `emptied`, a memory node
    /// starts without the content of its pool.
    pub fn start_again(&mut self, name: &str, emptied: bool) -> Result<(), ChaosError> {
        let pool = (self.bytes + POOL_ROOM).next_multiple_of(2 << 20).to_string();
        let mut options = match name {
            "gmm" => vec!["--node-timeout-ms", "1000"],
            // Without a line cache, an acknowledged write has reached the memory nodes.
            "cn0" => vec!["--cache-size", "0", "--session-timeout", "2s", "--link", "packet"],
            _ => vec!["--pool-size", &pool, "--prefault", "false", "--link", "packet"],
        };
        if emptied {
            options.push("--pool-discard");
        }
        self.star.start(name, &options)
    }

    /// True if both copies of the region are in sync, on memory nodes that are reachable.
    pub fn is_whole(&self) -> bool {
        let region = Name::new(REGION).ok().and_then(|name| self.star.ask(self.star.manager.region(&name)));
        region.is_some_and(|region| region.state == RegionState::Active)
    }

    /// Waits until both copies are in sync.
    pub fn wait_whole(&self, interrupt: &Interrupt) -> Result<(), ChaosError> {
        eventually("both copies are in sync", WHOLE_LIMIT, interrupt, || self.is_whole())
    }

    /// Numbers of manager events: legs (copies on one memory node) that became stale, and legs that were filled again.
    pub fn leg_events(&self) -> Result<(u64, u64), ChaosError> {
        let count = |kind: &str| -> Result<u64, ChaosError> {
            let (mut count, mut after) = (0, 0);
            loop {
                let query = EventsQuery { after, kind: Some(kind.to_owned()), ..EventsQuery::default() };
                let events = self.star.order(self.star.manager.events(query))?;
                count += events.events.len() as u64;
                if events.through >= events.newest || events.through <= after {
                    return Ok(count);
                }
                after = events.through;
            }
        };
        Ok((count("leg_stale")?, count("leg_filled")?))
    }
}
