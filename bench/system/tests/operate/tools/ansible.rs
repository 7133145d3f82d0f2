//! The Ansible role, run against three hosts on this machine. A host consists of a network namespace and a root folder:
//! this machine's files below an overlay that is removed with the host. Ansible's modules run inside, because the
//! Python of each host is a script that enters its namespaces.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_lab::{Lab, Process, program};
use tempfile::TempDir;

use cxloe_system::command::{answered, output_text, printed};
use cxloe_system::{LIMIT, Outcome, ensure};

use super::deploy;

const HOSTS: [(&str, &str); 3] = [("head", "10.77.0.1"), ("mem0", "10.77.0.2"), ("node0", "10.77.0.3")];

/// Script that starts a host: mounts the host's root over this machine's, and waits.
const ROOT: &str = r#"set -e
mount -t tmpfs host "$1"
mkdir "$1"/upper "$1"/work "$1"/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1"/root
for shared in /proc /dev /tmp; do mount --rbind "$shared" "$1/root$shared"; done
mount -t sysfs sys "$1"/root/sys
mount -t tmpfs run "$1"/root/run
echo "up"
exec sleep 3600
"#;

struct Hosts {
    lab: Lab,
    dir: TempDir,
    /// Processes that keep the hosts' mounts and namespaces.
    _keepers: Vec<Process>,
}

impl Hosts {
    fn new() -> Outcome<Hosts> {
        let mut builder = Lab::builder().namespace("switch");
        let ports = HOSTS.map(|(host, _)| format!("port-{host}"));
        for ((host, address), port) in HOSTS.iter().zip(&ports) {
            builder = builder
                .namespace(host)
                .veth(host, host, "switch", port)
                .address(host, &format!("{address}/24"));
        }
        let lab = builder.bridge("switch", "br0", &ports.each_ref().map(String::as_str)).build()?;
        let dir = tempfile::Builder::new().prefix("hosts").tempdir_in("/tmp")?;
        let mut keepers = Vec::new();
        for (host, _) in HOSTS {
            let place = dir.path().join(host);
            fs::create_dir(&place)?;
            let mut keeper = Command::new("unshare");
            keeper.args(["--mount", "--propagation", "private", "sh", "-c", ROOT, host]).arg(&place);
            let log = dir.path().join(format!("{host}.log"));
            Process::log_to(&mut keeper, &log)?;
            let keeper = lab.spawn(host, keeper)?;
            let deadline = Instant::now() + LIMIT;
            while !fs::read_to_string(&log)?.contains("up") {
                ensure(Instant::now() < deadline, format!("{host}: {}", fs::read_to_string(&log)?))?;
                thread::sleep(Duration::from_millis(10));
            }
            let enter = dir.path().join(format!("enter-{host}"));
            let root = place.join("root");
            let script = format!(
                "#!/bin/sh\nexec nsenter --target {} --mount --net -- chroot {} \"$@\"\n",
                keeper.id(),
                root.display()
            );
            let python = format!("#!/bin/sh\nexec {} /usr/bin/python3 \"$@\"\n", enter.display());
            for (path, script) in
                [(enter.clone(), script), (dir.path().join(format!("python-{host}")), python)]
            {
                fs::write(&path, script)?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
            }
            keepers.push(keeper);
        }
        let hosts = Hosts { lab, dir, _keepers: keepers };
        hosts.programs()?;
        hosts.inventory("[]")?;
        Ok(hosts)
    }

    /// Puts the programs where the role finds them. Their debug information is removed, because every run would have to
    /// read it.
    fn programs(&self) -> Outcome {
        let folder = self.dir.path().join("programs");
        fs::create_dir(&folder)?;
        for name in ["gmm", "mn-server", "cn-agent", "libcxloe_preload.so", "libcxloe_vm.so"] {
            printed(Command::new("strip").arg("-o").arg(folder.join(name)).arg(program(name)?))?;
        }
        Ok(())
    }

    /// Writes the inventory, in which the fabric has these regions.
    fn inventory(&self, regions: &str) -> Outcome {
        let dir = self.dir.path().display();
        let host = |index: usize| {
            let (host, address) = HOSTS[index];
            format!(
                "{{hosts: {{{host}: {{ansible_host: {address}, ansible_python_interpreter: {dir}/python-{host}}}}}}}"
            )
        };
        let inventory = format!(
            "cxloe:\n  vars:\n    ansible_connection: local\n    ansible_remote_tmp: {dir}/tmp\n    cxloe_become: false\n    \
             cxloe_source: binaries\n    cxloe_programs_folder: {dir}/programs\n    cxloe_services: false\n    cxloe_doctor: false\n    \
             cxloe_interface: \"{{{{ inventory_hostname }}}}\"\n    cxloe_pool_size: 32MiB\n    cxloe_pool: file:/var/lib/cxloe/pool\n    \
             cxloe_key: a key for this lab alone\n    cxloe_tune: true\n    cxloe_tune_options: --mtu 1400 --governor keep\n    \
             cxloe_memory_node_options: {{link: packet, wait: sleep}}\n    \
             cxloe_compute_node_options: {{link: packet, wait: sleep, cache-size: 64K}}\n    cxloe_regions: {regions}\n  \
             children:\n    cxloe_manager: {}\n    cxloe_memory_nodes: {}\n    cxloe_compute_nodes: {}\n",
            host(0),
            host(1),
            host(2)
        );
        Ok(fs::write(self.dir.path().join("inventory.yml"), inventory)?)
    }

    /// Runs the playbook; returns the number of changed tasks of each host.
    fn play(&self, options: &[&str]) -> Outcome<Vec<(String, u32)>> {
        let output = self.played(options)?;
        ensure(output.status.success(), format!("{options:?}: {}", output_text(&output)))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let recap = text.split("PLAY RECAP").nth(1).ok_or_else(|| format!("no recap: {text}"))?;
        let changed = |line: &str| -> Option<(String, u32)> {
            let (host, counts) = line.split_once(" : ")?;
            let count = counts.split_whitespace().find_map(|c| c.strip_prefix("changed="))?;
            Some((host.trim().to_owned(), count.parse().ok()?))
        };
        Ok(recap.lines().filter_map(changed).collect())
    }

    /// Runs the playbook, which may fail.
    fn played(&self, options: &[&str]) -> Outcome<Output> {
        let mut command = Command::new("ansible-playbook");
        command.current_dir(deploy("ansible")).arg("-i").arg(self.dir.path().join("inventory.yml"));
        command.arg("site.yml").args(options).stdin(Stdio::null());
        command
            .env("ANSIBLE_NOCOLOR", "1")
            .env("ANSIBLE_PIPELINING", "1")
            // The facts of a host do not change, so they are kept for the next run instead of being gathered
            // again.
            .env("ANSIBLE_GATHERING", "smart")
            .env("ANSIBLE_CACHE_PLUGIN", "jsonfile")
            .env("ANSIBLE_CACHE_PLUGIN_CONNECTION", self.dir.path().join("facts"))
            .env("ANSIBLE_LOCAL_TEMP", self.dir.path().join("local"))
            .env("HOME", self.dir.path());
        Ok(command.output()?)
    }

    /// Command that runs in the root folder and the network of a host.
    fn on(&self, host: &str, command: &[&str]) -> Command {
        let mut entered = Command::new(self.dir.path().join(format!("enter-{host}")));
        entered.args(command).env("NO_COLOR", "1");
        entered
    }

    /// Starts a daemon on a host, with the configuration that the role has written.
    fn start(&self, host: &str, command: &[&str]) -> Outcome<Process> {
        let mut daemon = self.on(host, command);
        Process::log_to(&mut daemon, &self.dir.path().join(format!("daemon-{host}.log")))?;
        Ok(self.lab.spawn(host, daemon)?)
    }

    fn log(&self, host: &str) -> String {
        fs::read_to_string(self.dir.path().join(format!("daemon-{host}.log"))).unwrap_or_default()
    }

    /// Waits until a command on a host succeeds; returns its output.
    fn eventually(&self, host: &str, command: &[&str]) -> Outcome<String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let output = self.on(host, command).output()?;
            if output.status.success() {
                return Ok(String::from_utf8(output.stdout)?);
            }
            let logs = HOSTS.map(|(host, _)| self.log(host)).join("\n");
            ensure(Instant::now() < deadline, format!("{command:?}: {}{logs}", output_text(&output)))?;
            // The test polls, because a command over SSH reports no event.
            thread::sleep(Duration::from_millis(100));
        }
    }
}

fn changes(counts: &[(String, u32)]) -> u32 {
    counts.iter().map(|(_, count)| count).sum()
}

pub fn the_role_brings_up_a_lab_and_changes_nothing_twice() -> Outcome {
    let hosts = Hosts::new()?;
    let would = hosts.play(&["--check", "--diff"])?;
    ensure(would.len() == 3 && would.iter().all(|(_, count)| *count > 0), format!("{would:?}"))?;
    ensure(
        !hosts.on("mem0", &["test", "-e", "/usr/bin/mn-server"]).status()?.success(),
        "check mode changes nothing",
    )?;
    // The role is applied to the manager first: the other hosts join its fabric.
    hosts.play(&["--limit", "cxloe_manager"])?;
    let _gmm = hosts.start("head", &["gmm", "serve", "--config", "/etc/cxloe/gmm.toml"])?;
    let socket = "unix:/run/cxloe-gmm/gmm.sock";
    hosts.eventually("head", &["gmm", "--manager", socket, "status"])?;
    hosts.play(&["--limit", "cxloe_memory_nodes:cxloe_compute_nodes"])?;
    let identity = "/var/lib/cxloe/mn-mem0.identity";
    let mode = printed(&mut hosts.on("mem0", &["stat", "-c", "%a", identity]))?;
    ensure(mode.trim() == "600", mode)?;
    let mode = printed(&mut hosts.on("node0", &["stat", "-c", "%a %U %G", "/etc/cxloe/key"]))?;
    ensure(mode.trim() == "600 cxloe cxloe", mode)?;
    // The units, `cn-agent exec` and virtual machines need these files and groups beside the programs.
    for (host, test) in [
        ("mem0", "grep -q ^cxloe-nodes: /etc/group && test -e /etc/udev/rules.d/60-cxloe.rules"),
        ("node0", "test -e /usr/lib/cxloe/libcxloe_preload.so && test -e /usr/lib/cxloe/libcxloe_vm.so"),
    ] {
        ensure(hosts.on(host, &["sh", "-c", test]).status()?.success(), test)?;
    }
    ensure(printed(&mut hosts.on("mem0", &["cat", "/sys/class/net/mem0/mtu"]))?.trim() == "1400", "tuned")?;

    // The daemons start with the configuration that the role has written.
    let _mn = hosts.start("mem0", &["mn-server", "run", "--config", "/etc/cxloe/mn-server.toml"])?;
    let _cn = hosts.start("node0", &["cn-agent", "run", "--config", "/etc/cxloe/cn-agent.toml"])?;
    let both = "gmm list -MC | grep -q node0 && gmm list -MC | grep -q mem0";
    hosts.eventually("head", &["sh", "-c", both])?;

    // After a region is added to the inventory, one run makes one change.
    hosts.inventory("[{name: heap, size: 4MiB, owner: node0}]")?;
    let counts = hosts.play(&[])?;
    ensure(changes(&counts) == 1 && counts.contains(&("head".into(), 1)), format!("{counts:?}"))?;
    hosts.eventually("node0", &["cn-agent", "write", "heap", "--text", "hello", "--flush"])?;
    let read = hosts.eventually("node0", &["cn-agent", "read", "heap"])?;
    ensure(read.contains("|hello"), read)?;
    another_pool_needs_consent(&hosts)?;
    ensure(
        hosts.on("head", &["test", "-e", "/etc/cxloe/key"]).status()?.code() == Some(1),
        "the manager has no key",
    )
}

/// A memory node that is configured with another pool starts empty. While a region has memory on the node, the role
/// refuses such a change and changes nothing, unless the inventory lists the host in `cxloe_discard_content`. If it
/// does, only this host is changed.
fn another_pool_needs_consent(hosts: &Hosts) -> Outcome {
    let options = |hosts: &Hosts| printed(&mut hosts.on("mem0", &["cat", "/etc/cxloe/mn-server.toml"]));
    let before = options(hosts)?;
    let other = "cxloe_pool=anon";
    let refused = hosts.played(&["--limit", "cxloe_memory_nodes", "-e", other])?;
    let named = "cxloe_discard_content: [mem0]";
    answered(
        &refused,
        2,
        &["mem0: memory node mem0", "pool file:/var/lib/cxloe/pool", "anon, with", "content of heap", named],
    )?;
    ensure(options(hosts)? == before, "the options were changed")?;
    let consent = "{\"cxloe_discard_content\": [\"mem0\"]}";
    let counts = hosts.play(&["--limit", "cxloe_manager:cxloe_memory_nodes", "-e", other, "-e", consent])?;
    ensure(counts.len() == 2 && changes(&counts) == 2, format!("{counts:?}"))?;
    ensure(counts.contains(&("mem0".into(), 2)), format!("{counts:?}"))?;
    ensure(options(hosts)?.contains("pool = \"anon\""), "the node has another pool")?;
    // The file of the old pool was renamed: the node does not use the file any longer, and root can still recover the
    // content.
    let aside = "test ! -e /var/lib/cxloe/pool && test -s /var/lib/cxloe/pool.discarded";
    ensure(hosts.on("mem0", &["sh", "-c", aside]).status()?.success(), aside)
}

pub fn the_role_is_clean() -> Outcome {
    let home = tempfile::tempdir()?;
    let mut lint = Command::new("ansible-lint");
    lint.args(["--offline", "--nocolor", "--profile", "production", "site.yml", "roles/cxloe"]);
    lint.current_dir(deploy("ansible")).env("HOME", home.path());
    printed(&mut lint).map(drop)
}
