//! The measured fabric: a star of daemons, and orders about regions, which return when the nodes have carried them out.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cxloe_client::client;
use cxloe_fabric::api::{
    CloneRegion, CreateRegion, DestroyRegion, Owner, ProtectRegion, SealRegion, ShareRegion,
};
use cxloe_fabric::model::{LegState, Name, Protection, Region, RegionState};
use cxloe_lab::Interrupt;
use cxloe_link::Backend;
use cxloe_link::wait::WaitStyle;
use nix::sys::signal::Signal;

use super::SurvivalError;
use crate::eventually::{eventually, moment, readable};
use crate::star::{LIMIT, ORDER_MS, Star, cn_id};

/// Number of memory nodes: two for the copies of a region, and one to move to.
pub const MEMORY_NODES: usize = 3;
/// Maximum wait for an order that copies a region.
const COPY_LIMIT: Duration = Duration::from_secs(900);
/// Interval of checks for the end of something short, while nothing else is measured.
pub const OFTEN: Duration = Duration::from_millis(1);
/// Interval of checks beside a load, which they should not disturb.
pub const SELDOM: Duration = Duration::from_millis(5);
/// Metric of a memory node: bytes of clones and snapshots that are not copied yet.
const COPY_LEFT: &str = "cxloe_mn_copy_bytes_left";

/// Sizes and options of the daemons.
#[derive(Clone, Debug)]
pub struct FabricSetup {
    /// Size of each memory node's pool, in bytes.
    pub pools: [u64; MEMORY_NODES],
    pub compute_nodes: usize,
    /// Link of all nodes.
    pub link: Backend,
    /// Waiting style of all nodes.
    pub wait: WaitStyle,
}

/// Daemons, and their setup.
pub struct SurvivalFabric {
    star: Star,
    setup: FabricSetup,
}

impl SurvivalFabric {
    /// Starts all daemons, with files below `folder`, and waits until all nodes have registered.
    ///
    /// # Errors
    /// The network cannot be made, or a daemon does not start.
    pub fn start(
        folder: &Path,
        setup: FabricSetup,
        interrupt: &Interrupt,
    ) -> Result<SurvivalFabric, SurvivalError> {
        let star = Star::new(folder, MEMORY_NODES, setup.compute_nodes)?;
        let mut fabric = SurvivalFabric { star, setup };
        fabric.star.names().iter().try_for_each(|name| fabric.start_daemon(name))?;
        fabric.star.wait_reachable(interrupt)?;
        Ok(fabric)
    }

    /// Socket of the agent of compute node number `cn`.
    pub fn socket(&self, cn: usize) -> PathBuf {
        self.star.socket(cn)
    }

    /// Starts a daemon with the state that its earlier processes have left.
    ///
    /// # Errors
    /// The program is missing or cannot be started.
    pub fn start_daemon(&mut self, name: &str) -> Result<(), SurvivalError> {
        let (link, wait) = (self.setup.link.to_string(), self.setup.wait.to_string());
        let metrics = format!("unix:{}", self.star.path(name, ".metrics").display());
        let number = name.strip_prefix("mn").and_then(|number| number.parse::<usize>().ok());
        let pool = number.map_or_else(String::new, |number| self.setup.pools[number].to_string());
        let options = match (name, number) {
            ("gmm", _) => vec!["--node-timeout-ms", "1000"],
            (_, Some(_)) => {
                vec!["--link", &link, "--wait", &wait, "--pool-size", &pool, "--metrics", &metrics]
            }
            // Without a line cache, an acknowledged write has reached the memory nodes.
            (_, None) => {
                vec!["--link", &link, "--wait", &wait, "--cache-size", "0", "--session-timeout", "2s"]
            }
        };
        self.star.start(name, &options)
    }

    /// Kills a daemon with SIGKILL, and waits for its end.
    ///
    /// # Errors
    /// It does not end.
    pub fn kill(&mut self, name: &str) -> Result<(), SurvivalError> {
        self.star.end(name, Signal::SIGKILL)
    }

    /// Waits until the manager describes a region as `wanted`, with checks at the interval `every`, and returns the moment.
    ///
    /// # Errors
    /// That does not happen in time, or Ctrl-C.
    fn described(
        &self,
        (name, what): (&Name, &str),
        every: Duration,
        interrupt: &Interrupt,
        wanted: impl Fn(&Region) -> bool,
    ) -> Result<Instant, SurvivalError> {
        let what = format!("region {name} {what}");
        moment(&what, every, COPY_LIMIT, interrupt, || {
            self.star.ask(self.star.manager.region(name)).is_some_and(|region| wanted(&region))
        })
    }

    /// Waits until a region is in this state, with checks at the interval `every`, and returns the moment.
    ///
    /// # Errors
    /// That does not happen in time, or Ctrl-C.
    pub fn wait_for(
        &self,
        region: &str,
        state: RegionState,
        every: Duration,
        interrupt: &Interrupt,
    ) -> Result<Instant, SurvivalError> {
        let (name, what) = (Name::new(region)?, format!("is {state}"));
        self.described((&name, what.as_str()), every, interrupt, |region| region.state == state)
    }

    /// Creates a region of `cn0` on these memory nodes, waits until it can be used, and returns its HPA.
    ///
    /// # Errors
    /// The manager refuses it, it cannot be used in time, or Ctrl-C.
    pub fn create(
        &self,
        region: &str,
        bytes: u64,
        protect: Protection,
        on: &[&str],
        interrupt: &Interrupt,
    ) -> Result<u64, SurvivalError> {
        let on = on.iter().map(|node| Name::new(*node)).collect::<Result<Vec<_>, _>>()?;
        let create = CreateRegion {
            protect,
            on,
            wait_ms: ORDER_MS,
            ..CreateRegion::new(Name::new(region)?, bytes, cn_id(0)?)
        };
        self.star.order(self.star.manager.create_region(&create))?;
        self.wait_for(region, RegionState::Active, SELDOM, interrupt)?;
        self.readable(0, region, interrupt)
    }

    /// Destroys a region, and waits until its memory is free.
    ///
    /// # Errors
    /// The manager refuses it, it takes too long, or Ctrl-C.
    pub fn destroy(&self, region: &str, interrupt: &Interrupt) -> Result<(), SurvivalError> {
        let name = Name::new(region)?;
        let destroy = DestroyRegion { force: true, wait_ms: ORDER_MS, created_ms: None };
        self.star.order(self.star.manager.destroy_region(&name, destroy))?;
        eventually(&format!("region {region} is destroyed"), LIMIT, interrupt, || {
            let all = self.star.ask(self.star.manager.regions());
            all.is_some_and(|all| all.iter().all(|region| region.name != name))
        })
    }

    /// Waits until the agent of compute node number `cn` has attached these regions, and returns the moment.
    ///
    /// # Errors
    /// That does not happen in time, or Ctrl-C.
    pub fn attached(
        &self,
        cn: usize,
        regions: &[&str],
        interrupt: &Interrupt,
    ) -> Result<Instant, SurvivalError> {
        let what = format!("cn{cn} attaches {}", regions.join(" and "));
        moment(&what, OFTEN, LIMIT, interrupt, || {
            regions.iter().all(|region| self.star.is_attached(cn, region))
        })
    }

    /// Waits until compute node number `cn` can read a region, and returns the region's HPA there.
    ///
    /// # Errors
    /// That does not happen in time, or Ctrl-C.
    pub fn readable(&self, cn: usize, region: &str, interrupt: &Interrupt) -> Result<u64, SurvivalError> {
        readable(&self.socket(cn), region, LIMIT, interrupt)
    }

    /// Makes a clone, or a snapshot if `sealed`, for the same compute node, and returns the time until the memory nodes
    /// serve it.
    ///
    /// # Errors
    /// The manager refuses it, it takes too long, or Ctrl-C.
    pub fn make_clone(
        &self,
        source: &str,
        copy: &str,
        sealed: bool,
        interrupt: &Interrupt,
    ) -> Result<Duration, SurvivalError> {
        let name = Name::new(copy)?;
        let order = CloneRegion {
            name: name.clone(),
            owner: None,
            uid: None,
            sealed,
            force: false,
            wait_ms: ORDER_MS,
        };
        let began = Instant::now();
        let made = self.star.order(self.star.manager.clone_region(&Name::new(source)?, &order))?;
        if made.state == RegionState::Creating {
            let is_made = |region: &Region| region.state != RegionState::Creating;
            self.described((&name, "is made"), OFTEN, interrupt, is_made)?;
        }
        Ok(began.elapsed())
    }

    /// Changes the protection of a region, and returns the time until all its copies, and no others, are in sync.
    ///
    /// # Errors
    /// The manager refuses it, it takes too long, or Ctrl-C.
    pub fn protect(
        &self,
        region: &str,
        protect: Protection,
        interrupt: &Interrupt,
    ) -> Result<Duration, SurvivalError> {
        let (name, copies) = (Name::new(region)?, usize::from(protect.copies()));
        let began = Instant::now();
        let order = ProtectRegion { protect, on: Vec::new(), wait_ms: 0 };
        self.star.order(self.star.manager.protect_region(&name, &order))?;
        let whole = |region: &Region| region.state == RegionState::Active && region.legs.len() == copies;
        let ended = self.described((&name, "is protected as ordered"), SELDOM, interrupt, whole)?;
        Ok(ended.duration_since(began))
    }

    /// Name of the memory node that a region without a second copy is on.
    ///
    /// # Errors
    /// The manager does not answer, or the region has no part on a memory node.
    pub fn home(&self, region: &str) -> Result<Name, SurvivalError> {
        let region = self.star.order(self.star.manager.region(&Name::new(region)?))?;
        let leg = region.legs.iter().find(|leg| leg.state != LegState::Unmapping);
        Ok(leg.ok_or_else(|| format!("region {} is on no memory node", region.name))?.memory_node.clone())
    }

    /// Drains a memory node, and returns the time until nothing of the region is served from there. Afterwards regions may
    /// be placed there again.
    ///
    /// # Errors
    /// The manager refuses it, it takes too long, or Ctrl-C.
    pub fn drain(&self, node: &Name, region: &str, interrupt: &Interrupt) -> Result<Duration, SurvivalError> {
        let name = Name::new(region)?;
        let began = Instant::now();
        self.star.order(self.star.manager.drain_memory_node(node, true))?;
        let left = |region: &Region| {
            region.legs.iter().all(|leg| &leg.memory_node != node || leg.state == LegState::Unmapping)
        };
        let what = format!("leaves {node}");
        let ended = self.described((&name, what.as_str()), SELDOM, interrupt, left)?;
        self.star.order(self.star.manager.drain_memory_node(node, false))?;
        let whole = |region: &Region| region.state == RegionState::Active && region.legs.len() == 1;
        self.described((&name, "has one copy"), SELDOM, interrupt, whole)?;
        Ok(ended.duration_since(began))
    }

    /// Seals a region.
    ///
    /// # Errors
    /// The manager refuses it, it takes too long, or Ctrl-C.
    pub fn seal(&self, region: &str, interrupt: &Interrupt) -> Result<(), SurvivalError> {
        let name = Name::new(region)?;
        let order = SealRegion { force: false, wait_ms: ORDER_MS };
        self.star.order(self.star.manager.seal_region(&name, &order))?;
        let sealed = |region: &Region| region.sealed && region.state == RegionState::Active;
        self.described((&name, "is sealed"), SELDOM, interrupt, sealed)?;
        Ok(())
    }

    /// Lets compute node number `cn` read a sealed region, and returns the region's HPA there.
    ///
    /// # Errors
    /// The manager refuses it, it takes too long, or Ctrl-C.
    pub fn share(&self, region: &str, cn: usize, interrupt: &Interrupt) -> Result<u64, SurvivalError> {
        let order = ShareRegion { with: Owner::CnId(cn_id(cn)?), end: false, uid: None, wait_ms: ORDER_MS };
        self.star.order(self.star.manager.share_region(&Name::new(region)?, &order))?;
        self.readable(cn, region, interrupt)
    }

    /// Number of bytes of a memory node's pool that belong to regions.
    ///
    /// # Errors
    /// The manager does not answer, or does not know the memory node.
    pub fn used_bytes(&self, node: &str) -> Result<u64, SurvivalError> {
        let nodes = self.star.order(self.star.manager.memory_nodes())?;
        let status = nodes.iter().find(|status| status.node.name.as_str() == node);
        let status = status.ok_or_else(|| format!("the manager does not know memory node {node}"))?;
        Ok(status.node.pool_bytes.saturating_sub(status.free_bytes))
    }

    /// Number of the latest registration of compute node 0.
    pub fn registration(&self) -> Option<u64> {
        let (own, nodes) = (cn_id(0).ok()?, self.star.ask(self.star.manager.compute_nodes())?);
        nodes.iter().find(|node| node.cn_id == own).map(|node| node.registration)
    }

    /// Waits until compute node 0 has a later registration than `before`, and returns the moment.
    ///
    /// # Errors
    /// That does not happen in time, or Ctrl-C.
    pub fn registered_after(
        &self,
        before: Option<u64>,
        interrupt: &Interrupt,
    ) -> Result<Instant, SurvivalError> {
        moment("the new agent registers", OFTEN, LIMIT, interrupt, || self.registration() > before)
    }

    /// Number of sessions that the agent of compute node 0 has opened.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn sessions(&self) -> Result<u64, SurvivalError> {
        let all = client::sessions(&self.socket(0))?;
        Ok(all.iter().map(|session| session.status.counters.sessions).sum())
    }

    /// Waits until the agent of compute node 0 has opened more than `before` sessions, and returns the moment.
    ///
    /// # Errors
    /// That does not happen in time, or Ctrl-C.
    pub fn session_opened(&self, before: u64, interrupt: &Interrupt) -> Result<Instant, SurvivalError> {
        moment("cn0 opens a session", OFTEN, LIMIT, interrupt, || {
            self.sessions().is_ok_and(|now| now > before)
        })
    }

    /// Number of bytes that the agent of compute node 0 has sent.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn sent_bytes(&self) -> Result<u64, SurvivalError> {
        Ok(client::counters(&self.socket(0))?.link.tx_bytes)
    }

    /// Number of bytes of clones and snapshots that a memory node has not copied yet.
    ///
    /// # Errors
    /// The memory node does not answer.
    pub fn left_to_copy(&self, node: &str) -> Result<u64, SurvivalError> {
        let mut stream = UnixStream::connect(self.star.path(node, ".metrics"))?;
        stream.set_read_timeout(Some(LIMIT))?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {node}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let left = metric(&answer, COPY_LEFT);
        left.ok_or_else(|| format!("{node} serves no metric {COPY_LEFT}: {answer}").into())
    }

    /// Waits until a memory node has copied all clones and snapshots, and returns the moment.
    ///
    /// # Errors
    /// That does not happen in time, or Ctrl-C.
    pub fn copied(&self, node: &str, interrupt: &Interrupt) -> Result<Instant, SurvivalError> {
        moment(&format!("{node} has copied all clones"), OFTEN, COPY_LIMIT, interrupt, || {
            self.left_to_copy(node).is_ok_and(|left| left == 0)
        })
    }
}

/// Value of a metric without labels in a daemon's answer.
fn metric(answer: &str, name: &str) -> Option<u64> {
    let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.trim().parse::<f64>().ok().map(|value| value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let answer =
            "HTTP/1.1 200 OK\r\n\r\n# HELP copied x\n# TYPE copied gauge\ncopied_more 3\ncopied 65536\n";
        assert_eq!(metric(answer, "copied"), Some(65536));
        assert_eq!(metric(answer, "copied_more"), Some(3));
        assert_eq!(metric(answer, "copie"), None);
        assert_eq!(metric("copied x\n", "copied"), None);
    }
}
