//! The `doctor` commands, on real interfaces that are correct, have too small an MTU, are down, or are missing; with
//! and without rights; with running and stopped daemons.

use std::fs;
use std::process::{Command, Output};

use cxloe_lab::program;
use serde_json::Value;

use cxloe_system::pair::{Outcome, Pair, ensure, eventually};

/// Exit code and JSON report of a `doctor` command.
struct Findings {
    code: i32,
    report: Value,
}

impl Findings {
    fn of(output: &Output) -> Outcome<Findings> {
        let output_text = String::from_utf8_lossy(&output.stderr);
        let report = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("{error}: {}{output_text}", String::from_utf8_lossy(&output.stdout)))?;
        let code =
            output.status.code().ok_or_else(|| format!("ended with {}: {output_text}", output.status))?;
        Ok(Findings { code, report })
    }

    /// Verdict of the check `name`, with finding and remedy.
    fn check(&self, name: &str) -> Outcome<(String, String)> {
        let checks = self.report["checks"].as_array().ok_or("no checks")?;
        let check = checks.iter().find(|check| check["name"] == name);
        let check = check.ok_or_else(|| format!("no check {name} in {:#}", self.report))?;
        let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
        Ok((text("level"), format!("{} -> {}", text("found"), text("advice"))))
    }

    /// Checks that the check `name` has this verdict, and that its text contains `words`.
    fn expect(&self, name: &str, level: &str, words: &str) -> Outcome {
        let (found, output_text) = self.check(name)?;
        ensure(
            found == level && output_text.contains(words),
            format!("{name} is {found}, not {level} ({words}): {output_text}"),
        )
    }

    fn failures(&self) -> Vec<&Value> {
        let checks = self.report["checks"].as_array();
        checks.into_iter().flatten().filter(|check| check["level"] == "fail").collect()
    }
}

/// Runs the `doctor` command of `daemon` in `namespace`; returns its exit code and JSON report.
fn examine(rig: &Pair, namespace: &str, daemon: &str, arguments: &[&str]) -> Outcome<Findings> {
    let mut command = Command::new(program(daemon)?);
    command.arg("doctor").arg("--json").args(arguments);
    // Nothing listens on this socket, so the doctor finds no running node of another test, whose resources it would not
    // check.
    if daemon != "gmm" && !arguments.contains(&"--socket") {
        command.arg("--socket").arg(rig.path("none.sock"));
    }
    finish(rig, namespace, command)
}

fn finish(rig: &Pair, namespace: &str, mut command: Command) -> Outcome<Findings> {
    // The command runs in the lab, where /sys shows its namespace, and writes its output to files.
    let (out, err) = (rig.path("doctor.out"), rig.path("doctor.err"));
    command.stdout(fs::File::create(&out)?).stderr(fs::File::create(&err)?);
    let status = rig.lab.spawn(namespace, command)?.wait(cxloe_system::pair::LIMIT)?;
    Findings::of(&Output { status, stdout: fs::read(&out)?, stderr: fs::read(&err)? })
}

pub fn a_working_fabric_has_no_failures() -> Outcome {
    let rig = Pair::bare()?;
    rig.start_gmm()?;
    let (manager, data) = (rig.manager_url(), rig.path("").display().to_string());
    let (mn_socket, agent_socket) =
        (rig.path("mn.sock").display().to_string(), rig.socket().display().to_string());
    let mn = ["-i", "mn0", "--name", "mn0", "--link", "packet", "--manager", &manager, "--data-dir", &data];
    let mn = [&mn[..], &["--socket", &mn_socket, "--pool-size", "32M", "--insecure"]].concat();
    let cn = ["-i", "cn0", "--name", "agent", "--link", "packet", "--manager", &manager, "--data-dir", &data];
    let cn = [&cn[..], &["--socket", &agent_socket, "--insecure"]].concat();

    // No daemon other than the manager runs yet.
    let before = examine(&rig, "mn", "mn-server", &mn)?;
    ensure(
        before.failures().is_empty() && before.code == 1,
        format!("{}: {:#}", before.code, before.report),
    )?;
    before.expect("frames", "warn", "not sealed")?;
    before.expect("memory node", "ok", "not running")?;
    before.expect("pool", "ok", "32 MiB of")?;
    before.expect("MTU", "warn", "ip link set mn0 mtu 9000")?;
    before.expect("manager", "ok", "0 of 0 memory nodes")?;
    before.expect("registration", "ok", "mn0 is not registered yet")?;
    let tried = examine(&rig, "mn", "mn-server", &[&mn[..], &["--try-link"]].concat())?;
    tried.expect("link opened", "ok", "TPACKET_V2")?;
    let lonely = examine(&rig, "cn", "cn-agent", &cn)?;
    lonely.expect("memory nodes", "warn", "the manager knows none")?;

    // Now the memory node runs and answers frames.
    rig.start_mn("anon")?;
    let called = examine(&rig, "cn", "cn-agent", &cn)?;
    ensure(called.failures().is_empty(), format!("{:#}", called.report))?;
    called.expect("frames to mn0", "ok", "answered")?;
    called.expect("agent", "ok", "not running")?;
    // Now the agent runs too: the doctor queries the agent, whose session continues.
    rig.start_agent(&[])?;
    rig.create_region("scratch")?;
    rig.attached("scratch", "active")?;
    let asked = eventually("the agent has its session", || {
        let asked = examine(&rig, "cn", "cn-agent", &cn).ok()?;
        asked.expect(&format!("frames to {}", cxloe_system::pair::MN), "ok", "answered").ok().map(|()| asked)
    })?;
    asked.expect("agent", "ok", "1 sessions")?;
    ensure(asked.failures().is_empty(), format!("{:#}", asked.report))?;

    // Without the option for JSON, the output is a human-readable table.
    let mut table = Command::new(program("cn-agent")?);
    table.arg("doctor").args(&cn);
    let shown = rig.path("table");
    table.stdout(fs::File::create(&shown)?);
    let status = rig.lab.spawn("cn", table)?.wait(cxloe_system::pair::LIMIT)?;
    let shown = fs::read_to_string(shown)?;
    ensure(status.code() == Some(asked.code), format!("{status}: {shown}"))?;
    for words in ["What to do:", "ip link set cn0 mtu 9000", "frames to", "0 failures"] {
        ensure(shown.contains(words), format!("{words} is missing in\n{shown}"))?;
    }
    Ok(())
}

pub fn what_is_wrong_with_an_interface_is_named() -> Outcome {
    let rig = Pair::bare()?;
    let ip = |arguments: &[&str]| -> Outcome {
        let mut ip = Command::new("ip");
        ip.args(arguments);
        let status = rig.lab.spawn("mn", ip)?.wait(cxloe_system::pair::LIMIT)?;
        ensure(status.success(), format!("ip {arguments:?}: {status}"))
    };
    let look = |more: &[&str]| {
        let usual = ["-i", "mn0", "--static-map", "/dev/null", "--pool-size", "32M"];
        examine(&rig, "mn", "mn-server", &[&usual[..], more].concat())
    };
    ip(&["link", "set", "mn0", "mtu", "80"])?;
    let narrow = look(&[])?;
    narrow.expect("MTU", "fail", "80, a line takes 97 -> ip link set mn0 mtu 9000")?;
    ensure(narrow.code == 2, format!("exit code {}", narrow.code))?;
    ip(&["link", "set", "mn0", "mtu", "9000"])?;
    look(&[])?.expect("MTU", "ok", "a page fits one frame")?;
    look(&["--priority", "3"])?.expect("PFC", "warn", "Data Center Bridging")?;
    look(&["--link", "xdp", "--workers", "5"])?.expect("queues", "fail", "have 1 workers")?;
    let crowded = look(&["--workers", "2", "--cpus", "0,0"])?;
    crowded.expect("cores of workers", "warn", "several on CPU 0")?;

    rig.lab.link_down("cn0")?;
    let unplugged = look(&[])?;
    unplugged.expect("link", "fail", "no carrier")?;
    ensure(unplugged.code == 2, format!("exit code {}", unplugged.code))?;
    rig.lab.link_up("cn0")?;
    rig.lab.link_down("mn0")?;
    look(&[])?.expect("link", "fail", "down -> ip link set mn0 up")?;
    let absent = look(&["-i", "enp9s9"]);
    ensure(absent.is_err(), "an option may be given once")?;
    let absent = examine(&rig, "mn", "mn-server", &["-i", "enp9s9", "--static-map", "/dev/null"])?;
    absent.expect("interface", "fail", "there is no enp9s9")?;
    absent.expect("interface", "fail", "mn0")?;
    absent.expect("frames", "fail", "--node-key")?;
    let loopback = examine(&rig, "mn", "mn-server", &["-i", "lo", "--static-map", "/dev/null"])?;
    loopback.expect("interface", "fail", "no Ethernet")
}

/// An interface can be given by an alternative name, as for `ip`, although `/sys` and the kernel's lists do
/// not have such names.
pub fn an_interface_is_known_by_its_alternative_names() -> Outcome {
    let mut rig = Pair::bare()?;
    // The link `pnet` looks for its interface in a list of the kernel.
    rig.link = "pnet";
    for (namespace, interface, name) in [("mn", "mn0", "wire0"), ("cn", "cn0", "far-memory")] {
        let mut ip = Command::new("ip");
        ip.args(["link", "property", "add", "dev", interface, "altname", name]);
        let status = rig.lab.spawn(namespace, ip)?.wait(cxloe_system::pair::LIMIT)?;
        ensure(status.success(), format!("ip link property add dev {interface}: {status}"))?;
    }
    let usual = ["-i", "wire0", "--static-map", "/dev/null", "--pool-size", "32M"];
    let found = examine(&rig, "mn", "mn-server", &usual)?;
    found.expect("MTU", "warn", "ip link set mn0 mtu 9000")?;

    rig.start_gmm()?;
    rig.start_mn("anon")?;
    rig.start_agent(&["-i", "far-memory"])?;
    rig.create_region("scratch")?;
    rig.attached("scratch", "active")?;
    rig.written(7).map(drop)
}

pub fn missing_rights_are_named() -> Outcome {
    let rig = Pair::bare()?;
    let (manager, data) = (rig.manager_url(), rig.path("").display().to_string());
    let restricted = |sets: &[&str], daemon: &str, more: &[&str]| -> Outcome<Findings> {
        let mut command = Command::new("setpriv");
        command.args(sets).arg("--").arg(program(daemon)?).args(["doctor", "--json", "--manager", &manager]);
        // Nothing listens on this socket, so the doctor finds no running node of another test, whose resources it would
        // not check.
        command.args(["--data-dir", &data, "--socket", &format!("{data}/none.sock")]).args(more);
        finish(&rig, "cn", command)
    };
    let none = ["--bounding-set=-all", "--inh-caps=-all"];
    let found = restricted(&none, "mn-server", &["-i", "cn0", "--pool-size", "32M"])?;
    found.expect("raw frames", "fail", "CAP_NET_RAW is missing")?;
    found.expect("AF_XDP", "warn", "")?;
    ensure(found.code == 2, format!("exit code {}", found.code))?;
    let must = restricted(&none, "mn-server", &["-i", "cn0", "--pool-size", "32M", "--link", "xdp"])?;
    must.expect("AF_XDP", "fail", "link = auto")?;
    let raw = ["--bounding-set=-all,+net_raw", "--inh-caps=-all"];
    let some = restricted(&raw, "cn-agent", &["-i", "cn0", "--link", "packet"])?;
    some.expect("raw frames", "ok", "")?;
    some.expect("programs of others", "warn", "CAP_SYS_PTRACE")?;
    // Without rights, a pool can be locked only within the limit on locked memory.
    let found = restricted(&none, "mn-server", &["-i", "cn0", "--pool-size", "32M", "--mlock=true"])?;
    let (level, output_text) = found.check("locked pool")?;
    ensure(level == "ok" || output_text.contains("LimitMEMLOCK"), output_text)
}

/// A device of DPDK is judged by what the kernel says of it, also without the plug-in.
pub fn a_card_is_looked_at_before_it_is_taken() -> Outcome {
    let rig = Pair::bare()?;
    let look = |device: &str| -> Outcome<Findings> {
        let mut command = Command::new(program("mn-server")?);
        command.args(["doctor", "--json", "-i", device, "--static-map", "/dev/null", "--pool-size", "32M"]);
        command.arg("--socket").arg(rig.path("none.sock")).env("CXLOE_DPDK", "/none/such.so");
        finish(&rig, "mn", command)
    };
    let absent = look("dpdk:ffff:ff:1f.7,mtu=9000")?;
    absent.expect("PCI device", "fail", "there is no ffff:ff:1f.7")?;
    absent.expect("DPDK device", "fail", "make dpdk")?;
    absent.check("huge pages for DPDK")?;
    let shared = look("dpdk:net_memif0,role=server")?;
    ensure(shared.check("IOMMU").is_err(), "shared memory is no card")?;
    shared.check("huge pages for DPDK").map(drop)
}

pub fn wrong_options_and_absent_peers_are_named() -> Outcome {
    let rig = Pair::bare()?;
    let path = |name: &str| rig.path(name).display().to_string();
    fs::write(rig.path("mn.toml"), "interface = 'mn0'\npool_size = '1G'\n")?;
    let wrong = examine(&rig, "mn", "mn-server", &["--config", &path("mn.toml")])?;
    wrong.expect("options", "fail", "pool_size")?;
    wrong.expect("rights and limits", "ok", "those of this process")?;
    wrong.check("CPU quota")?;
    if !std::path::Path::new("/etc/cxloe/mn-server.toml").exists() {
        let none = examine(&rig, "mn", "mn-server", &[])?;
        none.expect("options", "fail", "mn-server join https://")?;
        none.expect("kernel", "ok", "")?;
    }
    wrong.expect("kernel", "ok", "")?;
    ensure(wrong.code == 2, format!("exit code {}", wrong.code))?;

    let (manager, data) = (rig.manager_url(), path("data"));
    let usual = ["--manager", &manager, "--data-dir", &data];
    let gone = examine(&rig, "cn", "cn-agent", &[&["-i", "cn0"][..], &usual].concat())?;
    gone.expect("manager", "fail", "unreachable")?;
    ensure(
        gone.report["checks"].as_array().is_some_and(|checks| {
            checks.iter().all(|check| !check["name"].as_str().unwrap_or_default().starts_with("frames to"))
        }),
        "nobody is called whom nobody names",
    )?;
    let huge = ["-i", "mn0", "--pool", "huge1g", "--pool-size", "64T"];
    let huge = examine(&rig, "mn", "mn-server", &[&huge[..], &usual].concat())?;
    huge.expect("huge pages", "fail", "hugepages=65536")?;
    let small = ["-i", "mn0", "--pool", "huge2m", "--pool-size", "1G"];
    let small = examine(&rig, "mn", "mn-server", &[&small[..], &usual].concat())?;
    small.expect("huge pages", "fail", "513 needed")?;
    let large = ["-i", "mn0", "--pool-size", "64T"];
    let large = examine(&rig, "mn", "mn-server", &[&large[..], &usual].concat())?;
    large.expect("pool", "fail", "smaller pool-size")?;

    // The manager's doctor is run before the manager starts, while it runs, and while another process uses its port.
    let store = path("store");
    let free = examine(&rig, "mn", "gmm", &["--listen", "127.0.0.1:7440", "--data-dir", &store])?;
    free.expect("manager", "ok", "not running")?;
    ensure(free.failures().is_empty(), format!("{:#}", free.report))?;
    let serve = ["serve", "--insecure", "--listen", "127.0.0.1:7440", "--data-dir", &store];
    let mut command = Command::new(program("gmm")?);
    command.args(serve);
    cxloe_lab::Process::log_to(&mut command, &rig.path("gmm.log"))?;
    let running = rig.lab.spawn("mn", command)?;
    eventually("the manager's doctor sees it", || {
        let found = examine(&rig, "mn", "gmm", &serve[1..]).ok()?;
        found.expect("manager", "ok", "0 of 0 memory nodes").ok()
    })?;
    drop(running);
    let taken = rig.lab.enter("mn", || std::net::TcpListener::bind("127.0.0.1:7440"))??;
    let found = examine(&rig, "mn", "gmm", &["--listen", "127.0.0.1:7440", "--data-dir", &store])?;
    found.expect("address", "fail", "ss -ltnp")?;
    drop(taken);
    let elsewhere = examine(&rig, "mn", "gmm", &["--listen", "192.0.2.1:7440", "--data-dir", &store])?;
    elsewhere.expect("address", "fail", "no address of this machine")?;
    let cluster =
        examine(&rig, "mn", "gmm", &["--listen", "127.0.0.1:0", "--store", "etcd://127.0.0.1:1/x"])?;
    cluster.expect("store", "fail", "127.0.0.1:1")
}
