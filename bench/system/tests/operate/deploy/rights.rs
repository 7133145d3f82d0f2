//! The daemons with exactly the rights of their systemd units: only the capabilities that the unit lists, a user of
//! their own, and no way to gain further rights. Accesses to lines and pages have to work, also for programs of another
//! user.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use cxloe_lab::{Lab, Process, program};
use nix::sys::signal::Signal;

use super::is_root;
use super::unit::Unit;
use cxloe_system::pair::{CN, LIMIT, MN, Outcome, ensure, eventually, run, saying, succeeded};

/// User id of the daemons.
pub const DAEMON: &str = "65534";
/// User id of a program that uses remote memory.
pub const PERSON: &str = "65533";
/// Group id of the daemons and of the program.
pub const GROUP: &str = "65534";
/// Time limit on a program whose memory is mostly remote.
const PROGRAM_MAX: Duration = Duration::from_secs(120);

/// Command that runs `program` with the rights of `unit`, except the capability `but`.
pub fn restricted(unit: &str, but: &str, program: &Path) -> Outcome<Command> {
    let mut capabilities = Unit::read(unit)?.capabilities();
    capabilities.retain(|name| name != but);
    let list = |prefix: &str| {
        let all = capabilities.iter().map(|name| format!(",{prefix}{name}")).collect::<String>();
        format!("-all{all}")
    };
    let mut command = Command::new("setpriv");
    if is_root() {
        command.args(["--reuid", DAEMON, "--regid", GROUP, "--clear-groups"]);
    }
    let kept = list("+");
    for set in ["--bounding-set", "--inh-caps", "--ambient-caps"] {
        command.args([set, &kept]);
    }
    command.args(["--no-new-privs", "--"]).arg(program);
    Ok(command)
}

pub fn the_rights_of_the_units_suffice() -> Outcome {
    let lab = Lab::builder().namespace("cn").namespace("mn").veth("cn", "cn0", "mn", "mn0");
    let lab = lab.mac("cn0", CN).mac("mn0", MN).build()?;
    let dir = tempfile::tempdir()?;
    // Folders that the daemons' user may read and write, as systemd makes them for a unit.
    for folder in ["", "bin", "lib", "lib/cxloe"] {
        let folder = dir.path().join(folder);
        fs::create_dir_all(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    }
    let state = dir.path().join("state");
    fs::create_dir(&state)?;
    if is_root() {
        chown(&state, Some(DAEMON.parse()?), Some(GROUP.parse()?))?;
    }
    for name in ["gmm", "mn-server", "cn-agent"] {
        fs::copy(program(name)?, dir.path().join("bin").join(name))?;
    }
    fs::copy(program("libcxloe_preload.so")?, dir.path().join("lib/cxloe/libcxloe_preload.so"))?;
    let path = |name: &str| state.join(name).display().to_string();
    let manager = format!("unix:{}", path("gmm.sock"));
    let start_but = |but: &str, namespace: &str, daemon: &str, arguments: &[&str]| -> Outcome<Process> {
        let mut command = restricted(daemon, but, &dir.path().join("bin").join(daemon))?;
        command.args(arguments);
        let mut command = with_device(command, dir.path())?;
        Process::log_to(&mut command, &dir.path().join(format!("{daemon}.log")))?;
        Ok(lab.spawn(namespace, command)?)
    };
    let start =
        |namespace: &str, daemon: &str, arguments: &[&str]| start_but("", namespace, daemon, arguments);
    let log = |daemon: &str| dir.path().join(format!("{daemon}.log"));
    let logged = |daemon: &str| fs::read_to_string(log(daemon)).unwrap_or_default();

    let serve = [
        "serve",
        "--insecure",
        "--listen",
        "127.0.0.1:0",
        "--store",
        &path("gmm.redb"),
        "--socket",
        &path("gmm.sock"),
    ];
    let gmm = start("mn", "gmm", &serve)?;
    let ask =
        |arguments: &[&str]| succeeded(run("gmm", &[&["--manager", &manager], arguments].concat(), None)?);
    eventually("the manager answers", || ask(&["status"]).ok()).map_err(|_| logged("gmm"))?;
    let usual = ["--wait", "sleep", "--manager", &manager, "--data-dir", &path("data"), "--insecure"];
    let node = ["-i", "mn0", "--name", "mn0", "--pool-size", "128M", "--socket", &path("mn.sock")];
    let mn = start("mn", "mn-server", &[&node[..], &usual].concat())?;
    eventually("the memory node registers", || saying(&log("mn-server"), "registered"))
        .map_err(|_| logged("mn-server"))?;
    let socket = path("agent.sock");
    // The agent serves programs of other users, which pass mapped memory to system calls.
    let own = [
        "run",
        "--allow-kernel-faults",
        "--user-memory",
        "64M",
        "-i",
        "cn0",
        "--name",
        "cn0",
        "--session-timeout",
        "5s",
        "--socket",
        &socket,
    ];
    // Of the links that this user may open, the test uses the one that requires the most rights.
    let link = if is_root() { "xdp" } else { "auto" };
    let own = [&own[..], &["--link", link], &usual].concat();
    let mut agent = start("cn", "cn-agent", &own)?;
    eventually("the agent serves", || saying(&log("cn-agent"), "serving")).map_err(|_| logged("cn-agent"))?;

    ask(&["create-region", "-s", "4M", "--owner", CN, "scratch"])?;
    let cli = |arguments: &[&str]| run("cn-agent", arguments, Some(Path::new(&socket)));
    eventually("a line is written", || {
        cli(&["write", "scratch", "--text", "hello", "--flush"]).ok().filter(|output| output.status.success())
    })
    .map_err(|_| logged("cn-agent"))?;
    if is_root() {
        let counters = succeeded(cli(&["counters"])?)?;
        ensure(counters.contains("\"xdp\""), format!("{counters}\n{}", logged("cn-agent")))?;
        // A program gets its memory from the manager, which is usually reached over the network; here the program uses
        // the manager's socket.
        fs::set_permissions(path("gmm.sock"), fs::Permissions::from_mode(0o666))?;
        let (status, output_text) = a_program_of_somebody_else(&lab, dir.path(), &socket)?;
        ensure(status.success(), format!("{status}: {output_text}"))?;
        // The figures of `cn-agent exec` are at the end of its output.
        let figures = output_text.find('{').map_or("", |at| &output_text[at..]);
        let figures: serde_json::Value =
            serde_json::from_str(figures).map_err(|e| format!("{e}: {output_text}"))?;
        let evicted = figures["counters"]["evicted"].as_u64();
        ensure(evicted.is_some_and(|pages| pages > 1024), format!("too few pages evicted: {figures:#}"))?;

        // Without CAP_SYS_PTRACE the agent starts, but refuses the program with an error that names the capability.
        agent.signal(Signal::SIGTERM)?;
        agent.wait(LIMIT)?;
        agent = start_but("sys_ptrace", "cn", "cn-agent", &own)?;
        eventually("the agent serves", || saying(&log("cn-agent"), "serving"))
            .map_err(|_| logged("cn-agent"))?;
        let (status, output_text) = a_program_of_somebody_else(&lab, dir.path(), &socket)?;
        let named = output_text.contains("CAP_SYS_PTRACE");
        ensure(!status.success() && named, format!("without it: {status}: {output_text}"))?;
        agent.signal(Signal::SIGTERM)?;
        agent.wait(LIMIT)?;
        agent = start("cn", "cn-agent", &own)?;
        eventually("the agent serves", || saying(&log("cn-agent"), "serving"))
            .map_err(|_| logged("cn-agent"))?;
    }
    for mut daemon in [agent, mn, gmm] {
        daemon.signal(Signal::SIGTERM)?;
        let status = daemon.wait(LIMIT)?;
        ensure(status.success(), format!("ended with {status}: {}", logged("cn-agent")))?;
    }
    Ok(())
}

/// Runs `command` with a separate /dev/userfaultfd, which is open to the group as the udev rule makes it.
fn with_device(command: Command, dir: &Path) -> Outcome<Command> {
    let device = Path::new("/dev/userfaultfd");
    if !is_root() || !device.exists() {
        return Ok(command);
    }
    let copy = dir.join("userfaultfd");
    if !copy.exists() {
        succeeded(Command::new("cp").arg("-a").arg(device).arg(&copy).output()?)?;
        chown(&copy, None, Some(GROUP.parse()?))?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o660))?;
    }
    let mut shell = Command::new("sh");
    shell.args(["-c", "mount --bind \"$1\" /dev/userfaultfd && shift && exec \"$@\"", "sh"]).arg(copy);
    shell.arg(command.get_program()).args(command.get_args());
    Ok(shell)
}

/// Writes more memory than may be resident and reads it back, as a user who has only the group in common with the
/// agent. Returns the exit status, and standard error.
fn a_program_of_somebody_else(lab: &Lab, dir: &Path, socket: &str) -> Outcome<(ExitStatus, String)> {
    // Writes a different value to both ends of each of 4096 pages, of which half may be resident.
    const WORK: &str = "\
b = bytearray(16 << 20)
for page in range(4096): b[page * 4096:page * 4096 + 4] = b[page * 4096 + 4092:page * 4096 + 4096] = page.to_bytes(4, 'little')
read = [int.from_bytes(b[page * 4096:page * 4096 + 4], 'little') for page in range(4096)]
last = [int.from_bytes(b[page * 4096 + 4092:page * 4096 + 4096], 'little') for page in range(4096)]
print('right' if read == last == list(range(4096)) else 'wrong')";
    let mut command = Command::new("setpriv");
    command.args(["--reuid", PERSON, "--regid", GROUP, "--clear-groups", "--no-new-privs"]);
    command.args(["--bounding-set=-all", "--"]).arg(dir.join("bin/cn-agent"));
    command.args(["exec", "--size", "64M", "--local", "8M", "--stats=json", "--", "python3", "-c", WORK]);
    command.env("CXLOE_AGENT", socket).current_dir("/");
    let (out, err) = (dir.join("program.out"), dir.join("program.err"));
    command.stdout(fs::File::create(&out)?).stderr(fs::File::create(&err)?);
    let status = lab.spawn("cn", command)?.wait(PROGRAM_MAX)?;
    let (output_text, complained) = (fs::read_to_string(&out)?, fs::read_to_string(&err)?);
    ensure(!status.success() || output_text == "right\n", format!("{output_text}{complained}"))?;
    Ok((status, complained))
}
