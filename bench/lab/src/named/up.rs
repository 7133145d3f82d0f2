//! Creation of a lab: its folder, its keeper, its daemons, and a region for each compute node.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;

use nix::unistd::geteuid;

use super::daemons::{Daemons, POLL, START_POLLS, succeed};
use super::keeper::{is_ready, keeper_pid};
use super::settings::{LabSettings, MANAGER_ADDRESS, address_of, mac_of};
use super::{NamedError, NamedLab};
use crate::Interrupt;

const PROGRAMS: [&str; 3] = ["gmm", "mn-server", "cn-agent"];
/// Programs of the operating system that a lab requires.
const TOOLS: [&str; 4] = ["ip", "nsenter", "unshare", "setsid"];

impl NamedLab {
    /// Makes the lab; if it exists already, starts the daemons that do not run. `keep` are the arguments with
    /// which this program becomes a keeper. `say` receives a message about each step. A call that fails or is
    /// interrupted before the lab was up removes what it has made.
    ///
    /// # Errors
    /// Fails when a requirement is missing, a lab of another shape is up, or a daemon does not start.
    pub fn up(
        &self,
        wanted: LabSettings,
        keep: &[&str],
        interrupt: &Interrupt,
        say: &mut dyn FnMut(String),
    ) -> Result<(), NamedError> {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let in_path = |name: &str| std::env::split_paths(&paths).map(|f| f.join(name)).find(|p| p.is_file());
        if let Some(tool) = TOOLS.iter().find(|tool| in_path(tool).is_none()) {
            return Err(NamedError::missing(format!("{tool} is missing: deploy/install/need.sh ip unshare")));
        }
        if keeper_pid(&self.folder).is_some() {
            let settings = LabSettings::load(&self.folder, &self.typed())?;
            let shape = |s: &LabSettings| (s.memory_nodes, s.compute_nodes);
            if shape(&settings) != shape(&wanted) {
                let (memory, compute) = shape(&settings);
                return Err(NamedError::failed(format!(
                    "a lab of {memory} memory nodes and {compute} compute nodes is up: {} down, and then again",
                    self.typed()
                )));
            }
            say("The lab is up already; starting what does not run.".into());
            return self.serve(&settings, interrupt, say);
        }
        let programs = find_programs(&wanted.programs, in_path("gmm"))?;
        let settings = LabSettings { programs, ..wanted };
        self.make_folder()?;
        let made = self.make(&settings, keep, interrupt, say);
        if made.is_err() {
            self.down();
        }
        made
    }

    /// Makes the folder of this lab, readable by its user alone. The folder of all labs may be in `/tmp`, so
    /// it must belong to the user.
    fn make_folder(&self) -> Result<(), NamedError> {
        let failed = |path: &Path, error| NamedError::failed(format!("{}: {error}", path.display()));
        let mut private = DirBuilder::new();
        private.mode(0o700);
        private.recursive(true).create(&self.root).map_err(|e| failed(&self.root, e))?;
        let owner = fs::metadata(&self.root).map_err(|e| failed(&self.root, e))?.uid();
        if owner != geteuid().as_raw() {
            let root = self.root.display();
            return Err(NamedError::failed(format!("{root} belongs to somebody else: set CXLOE_LAB_DIR")));
        }
        // If an earlier lab of this name ended because its keeper was killed, its folder still exists.
        let _ = fs::remove_dir_all(&self.folder);
        private.recursive(false).create(&self.folder).map_err(|e| failed(&self.folder, e))
    }

    fn make(
        &self,
        settings: &LabSettings,
        keep: &[&str],
        interrupt: &Interrupt,
        say: &mut dyn FnMut(String),
    ) -> Result<(), NamedError> {
        settings.store(&self.folder)?;
        let mut keeper = self.start_keeper(keep)?;
        for _ in 0..START_POLLS {
            if is_ready(&self.folder) || !matches!(keeper.try_wait(), Ok(None)) {
                break;
            }
            check(interrupt)?;
            thread::sleep(POLL);
        }
        if !is_ready(&self.folder) {
            let log = fs::read_to_string(self.folder.join("keeper.log")).unwrap_or_default();
            return Err(NamedError::failed(format!(
                "the network could not be made: {}\nan ordinary user needs unprivileged user namespaces: \
                 sysctl kernel.unprivileged_userns_clone=1, or be root",
                log.trim()
            )));
        }
        let (memory, compute, mtu) = (settings.memory_nodes, settings.compute_nodes, settings.mtu);
        say(format!(
            "network    bridge br0 (switch), {memory} memory nodes, {compute} compute nodes, MTU {mtu}"
        ));
        self.serve(settings, interrupt, say)
    }

    /// Starts the daemons that do not run, waits for each of them, and makes the regions that are missing.
    fn serve(
        &self,
        settings: &LabSettings,
        interrupt: &Interrupt,
        say: &mut dyn FnMut(String),
    ) -> Result<(), NamedError> {
        let daemons = Daemons { settings, folder: &self.folder };
        let checked = || check(interrupt);
        daemons.start("gmm")?;
        daemons.wait("the manager's answer", "gmm", || daemons.manager_answers(), checked)?;
        say(format!("manager    {}, in the lab https://{MANAGER_ADDRESS}:7440", daemons.manager_url()));
        let nodes = settings.nodes();
        // All nodes start before the first wait, so that they start in parallel.
        nodes.iter().try_for_each(|node| daemons.start(node))?;
        for node in &nodes {
            let what = format!("{node} with the manager");
            daemons.wait(&what, node, || daemons.manager_knows(node), checked)?;
            say(format!("{node:<10} {}, {}", mac_of(node), address_of(node)));
        }
        let has_regions = settings.region != "0" && settings.memory_nodes > 0 && settings.compute_nodes > 0;
        if has_regions {
            let there = daemons.manager_lists(&["-R"]).map(|list| list.to_string()).unwrap_or_default();
            for index in 0..settings.compute_nodes {
                let (node, region) = (format!("cn{index}"), format!("scratch{index}"));
                checked()?;
                if !there.contains(&format!("\"{region}\"")) {
                    let wanted = ["create-region", "--size", &settings.region, "--owner", &node, &region];
                    succeed(daemons.gmm().args(wanted))?;
                }
                let what = format!("region {region} on {node}");
                daemons.wait(&what, &node, || daemons.can_read(&node, &region), checked)?;
            }
            say(format!("regions    one of {} for each compute node: scratch0, …", settings.region));
        }
        let lab = self.typed();
        if has_regions {
            say(format!("try        {lab} exec cn0 -- cn-agent write scratch0 --text hello --flush"));
            say(format!("           {lab} exec cn0 -- cn-agent read scratch0"));
        } else {
            say(format!("try        {lab} exec switch -- gmm list"));
        }
        say(format!("           {lab} status; {lab} down"));
        Ok(())
    }
}

fn check(interrupt: &Interrupt) -> Result<(), NamedError> {
    interrupt
        .check()
        .map_err(|interrupted| NamedError { code: interrupted.exit_code(), message: interrupted.to_string() })
}

/// Returns the folder with all three programs: the requested one if there is one, else that of this program
/// or of `gmm` in PATH.
fn find_programs(asked: &Path, in_path: Option<PathBuf>) -> Result<PathBuf, NamedError> {
    let own = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.to_path_buf()));
    let path = in_path.and_then(|gmm| Some(gmm.parent()?.to_path_buf()));
    let tried: Vec<PathBuf> = if asked.as_os_str().is_empty() {
        own.into_iter().chain(path).collect()
    } else {
        vec![asked.to_path_buf()]
    };
    let whole = |folder: &&PathBuf| PROGRAMS.iter().all(|program| folder.join(program).is_file());
    if let Some(found) = tried.iter().find(whole) {
        return Ok(found.canonicalize().unwrap_or_else(|_| found.clone()));
    }
    let tried: Vec<String> = tried.iter().map(|folder| folder.display().to_string()).collect();
    let named = if asked.as_os_str().is_empty() { ", the PATH" } else { "" };
    Err(NamedError::missing(format!(
        "gmm, mn-server and cn-agent are not all in {}{named}\nbuild them with: make build",
        tried.join(", ")
    )))
}
