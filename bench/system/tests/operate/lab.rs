//! Labs of real namespaces: connectivity, interfaces, ends of programs, and complete removal.
//!
//! Some tests need another process that holds a lab and is killed: they start this program again in one of [`ROLES`].

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_lab::{
    Builder, Interrupt, Lab, LabError, LabPrivilege, Process, become_private_user_namespace,
    compute_node_mac, memory_node_mac,
};
use cxloe_system::copies::{ROLE, as_nobody};
use cxloe_system::{LIMIT, Outcome, Role, Test, copy_as, ensure, eventually, tests};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub const ROLES: &[Role] = &[("holder", || hold(true)), ("stuck", || hold(false)), ("forbidder", forbid)];

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    let mut tests = tests![
        namespaces_reach_each_other,
        each_namespace_sees_its_own_interfaces,
        macvlan_is_a_station_of_its_own,
        jumbo_frames_cross_whole,
        bridge_joins_three,
        star_joins_every_node_under_its_own_address,
        queues_are_as_many_as_asked,
        link_flap_is_seen_by_the_peer,
        process_runs_inside_and_ends_with_its_guard,
        stubborn_process_is_killed_with_its_children,
        process_wait_is_bounded,
        wrong_descriptions_are_named,
        interrupt_ends_in_order,
        interrupt_ends_even_when_stuck,
        kill_leaves_nothing,
    ];
    if standing == LabPrivilege::Root {
        tests.extend(tests![forbidden_user_namespaces_are_explained]);
    }
    tests
}

/// A lab of two namespaces and one cable: cn0 (10.77.0.1) and mn0 (10.77.0.2).
fn pair() -> Builder {
    Lab::builder()
        .namespace("cn")
        .namespace("mn")
        .veth("cn", "cn0", "mn", "mn0")
        .address("cn0", "10.77.0.1/24")
        .address("mn0", "10.77.0.2/24")
}

/// A UDP socket inside a namespace, whose receive time-out is [`LIMIT`].
fn socket(lab: &Lab, namespace: &str, address: &str) -> Outcome<UdpSocket> {
    let socket = lab.enter(namespace, || UdpSocket::bind((address, 0)))??;
    socket.set_read_timeout(Some(LIMIT))?;
    Ok(socket)
}

/// Sends `size` bytes from one socket to the other and checks that they arrive.
fn exchange(from: &UdpSocket, to: &UdpSocket, size: usize) -> Outcome {
    let sent: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
    from.send_to(&sent, to.local_addr()?)?;
    let mut got = vec![0; size + 1];
    let (length, sender) = to.recv_from(&mut got)?;
    ensure(got[..length] == sent[..], "other bytes arrived than were sent")?;
    ensure(sender == from.local_addr()?, format!("they came from {sender}"))
}

/// Value of an attribute of an interface, from the sysfs of its namespace.
fn attribute(lab: &Lab, interface: &str, name: &str) -> Outcome<String> {
    let path = format!("/sys/class/net/{interface}/{name}");
    Ok(lab.home_of(interface)?.enter(|| fs::read_to_string(path))??.trim().to_owned())
}

fn interfaces_in_sysfs() -> std::io::Result<BTreeSet<String>> {
    fs::read_dir("/sys/class/net")?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

fn namespaces_reach_each_other() -> Outcome {
    let lab = pair().build()?;
    let (cn, mn) = (socket(&lab, "cn", "10.77.0.1")?, socket(&lab, "mn", "10.77.0.2")?);
    exchange(&cn, &mn, 64)?;
    exchange(&mn, &cn, 64)
}

fn each_namespace_sees_its_own_interfaces() -> Outcome {
    let before = interfaces_in_sysfs()?;
    let lab = pair().build()?;
    let expected = |name: &str| BTreeSet::from(["lo".to_owned(), name.to_owned()]);
    ensure(lab.enter("cn", interfaces_in_sysfs)?? == expected("cn0"), "cn shows other interfaces")?;
    let mn = lab.namespace("mn")?.thread("looks", interfaces_in_sysfs)?;
    let seen = mn.join().map_err(|_| "the thread panicked")???;
    ensure(seen == expected("mn0"), "mn shows other interfaces")?;
    ensure(interfaces_in_sysfs()? == before, "the lab shows outside")
}

fn macvlan_is_a_station_of_its_own() -> Outcome {
    let lab = pair()
        .namespace("bench")
        .macvlan("cn0", "bench", "bench0")
        .macvlan("cn0", "cn", "cn1")
        .mac("bench0", "02:00:00:00:00:0b")
        .address("bench0", "10.77.0.3/24")
        .mtu(9000)
        .build()?;
    ensure(
        attribute(&lab, "bench0", "address")? == "02:00:00:00:00:0b",
        "another MAC address than asked for",
    )?;
    ensure(attribute(&lab, "cn1", "address")? != attribute(&lab, "cn0", "address")?, "cn1 shares cn0's MAC")?;
    ensure(attribute(&lab, "bench0", "mtu")? == "9000", "another MTU than asked for")?;
    let mn = socket(&lab, "mn", "10.77.0.2")?;
    exchange(&socket(&lab, "bench", "10.77.0.3")?, &mn, 64)?;
    exchange(&mn, &socket(&lab, "cn", "10.77.0.1")?, 64)
}

fn jumbo_frames_cross_whole() -> Outcome {
    let lab = pair().mtu(9000).build()?;
    let (cn, mn) = (socket(&lab, "cn", "10.77.0.1")?, socket(&lab, "mn", "10.77.0.2")?);
    exchange(&cn, &mn, 64)?; // ARP is settled from here on
    let frames = || -> Outcome<u64> { Ok(attribute(&lab, "mn0", "statistics/rx_packets")?.parse()?) };
    let before = frames()?;
    exchange(&cn, &mn, 9000 - 28)?; // less the IP and UDP headers
    let crossed = frames()? - before;
    ensure(crossed == 1, format!("{crossed} frames for one datagram"))
}

fn bridge_joins_three() -> Outcome {
    let mut builder = Lab::builder().namespace("switch");
    for (host, last) in [("a", 1), ("b", 2), ("c", 3)] {
        let (inner, port) = (format!("{host}0"), format!("port-{host}"));
        let address = format!("10.77.0.{last}/24");
        builder = builder.namespace(host).veth(host, &inner, "switch", &port).address(&inner, &address);
    }
    let lab = builder.bridge("switch", "br0", &["port-a", "port-b", "port-c"]).build()?;
    let [a, b, c] = [("a", "10.77.0.1"), ("b", "10.77.0.2"), ("c", "10.77.0.3")]
        .map(|(host, address)| socket(&lab, host, address));
    let (a, b, c) = (a?, b?, c?);
    exchange(&a, &b, 1400)?;
    exchange(&b, &c, 1400)?;
    exchange(&c, &a, 1400)
}

fn star_joins_every_node_under_its_own_address() -> Outcome {
    let mut builder = Lab::star(3, 2).mtu(9000);
    let nodes = ["mn0", "mn1", "mn2", "cn0", "cn1"];
    for (index, node) in nodes.iter().enumerate() {
        builder = builder.address(node, &format!("10.77.0.{}/24", index + 1));
    }
    let lab = builder.build()?;
    ensure(attribute(&lab, "mn2", "address")? == memory_node_mac(2), "a memory node's address")?;
    ensure(attribute(&lab, "cn1", "address")? == compute_node_mac(1), "a compute node's address")?;
    let sockets = nodes
        .iter()
        .enumerate()
        .map(|(index, node)| socket(&lab, node, &format!("10.77.0.{}", index + 1)))
        .collect::<Result<Vec<_>, _>>()?;
    for from in &sockets {
        for to in sockets.iter().filter(|to| !std::ptr::eq(*to, from)) {
            exchange(from, to, 8000)?;
        }
    }
    Ok(())
}

fn queues_are_as_many_as_asked() -> Outcome {
    let lab = pair().queues(2).build()?;
    for interface in ["cn0", "mn0"] {
        let folder = format!("/sys/class/net/{interface}/queues");
        let listed =
            lab.home_of(interface)?.enter(|| fs::read_dir(folder).map(|entries| entries.count()))??;
        ensure(listed == 4, format!("{interface} has {listed} queues, not two each way"))?;
    }
    Ok(())
}

fn link_flap_is_seen_by_the_peer() -> Outcome {
    let lab = pair().build()?;
    let (cn, mn) = (socket(&lab, "cn", "10.77.0.1")?, socket(&lab, "mn", "10.77.0.2")?);
    exchange(&cn, &mn, 64)?;
    lab.link_down("mn0")?;
    eventually("cn0 loses carrier", || {
        attribute(&lab, "cn0", "carrier").is_ok_and(|carrier| carrier == "0")
    })?;
    lab.link_up("mn0")?;
    eventually("cn0 has carrier", || attribute(&lab, "cn0", "carrier").is_ok_and(|carrier| carrier == "1"))?;
    exchange(&cn, &mn, 64)
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

fn process_runs_inside_and_ends_with_its_guard() -> Outcome {
    let lab = pair().build()?;
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("log");
    let mut command = shell("ls /sys/class/net; echo done >&2; exec sleep 300");
    Process::log_to(&mut command, &log)?;
    let mut process = lab.spawn("mn", command)?;
    let mut text = String::new();
    eventually("the program has written", || {
        text = fs::read_to_string(&log).unwrap_or_default();
        text.ends_with("done\n")
    })?;
    ensure(text == "lo\nmn0\ndone\n", format!("it saw {text:?}"))?;
    ensure(process.try_wait()?.is_none(), "it ended too early")?;
    let pid = process.id();
    drop(lab); // the guard needs nothing of the lab
    ensure(process.try_wait()?.is_none(), "it ended with the lab")?;
    drop(process);
    ensure(!is_running(pid), "it outlives its guard")
}

fn stubborn_process_is_killed_with_its_children() -> Outcome {
    let lab = Lab::builder().namespace("mn").build()?;
    let mut command = shell("trap '' TERM; sleep 300 & echo $!; while :; do sleep 300; done");
    command.stdout(Stdio::piped());
    let mut process = lab.spawn("mn", command)?;
    let output = process.child_mut().stdout.take().ok_or("no pipe")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let (pid, grandchild) = (process.id(), line.trim().parse::<u32>()?);
    ensure(is_running(grandchild), "the grandchild did not start")?;
    let status = process.terminate(Duration::from_millis(50))?;
    ensure(status.signal() == Some(Signal::SIGKILL as i32), format!("it ended with {status}"))?;
    ensure(!is_running(pid), "it still runs")?;
    eventually("the grandchild ends", || !is_running(grandchild))
}

fn process_wait_is_bounded() -> Outcome {
    let lab = Lab::builder().namespace("mn").build()?;
    let mut sleeper = lab.spawn("mn", shell("exec sleep 300"))?;
    let waited = sleeper.wait(Duration::from_millis(20));
    ensure(matches!(waited, Err(LabError::StillRunning { .. })), format!("{waited:?}"))?;
    let status = sleeper.terminate(LIMIT)?;
    ensure(status.signal() == Some(Signal::SIGTERM as i32), format!("it ended with {status}"))?;
    let status = lab.spawn("mn", shell("exit 7"))?.wait(LIMIT)?;
    ensure(status.code() == Some(7), format!("it ended with {status}"))
}

fn wrong_descriptions_are_named() -> Outcome {
    let fails = |result: Result<(), LabError>, expected: &str| match result {
        Ok(()) => Err(format!("no error; expected: {expected}").into()),
        Err(error) => ensure(error.to_string().contains(expected), format!("it says: {error}")),
    };
    let build = |builder: Builder| builder.build().map(drop);
    fails(build(pair().namespace("cn")), "the name cn is used twice")?;
    fails(build(pair().veth("cn", "cn0", "mn", "mn1")), "the name cn0 is used twice")?;
    fails(build(pair().veth("cn", "cn1", "nowhere", "x0")), "no namespace nowhere")?;
    fails(build(pair().address("cn9", "10.0.0.1/24")), "no interface cn9")?;
    fails(build(pair().macvlan("cn9", "cn", "cn1")), "no interface cn9")?;
    fails(build(pair().address("cn0", "10.0.0.256/24")), "address add 10.0.0.256/24 dev cn0")?;
    let lab = pair().build()?;
    fails(lab.link_down("cn9"), "no interface cn9")?;
    fails(lab.spawn("cn", Command::new("/nonexistent/program")).map(drop), "/nonexistent/program")?;
    fails(lab.enter("nowhere", || ()), "no namespace nowhere")
}

/// Role: holds a lab, prints the pid of a process inside and the lab's namespaces, then waits for a signal. With
/// `in_order` the role returns by itself after the signal; otherwise only its [`Interrupt`] ends the process.
fn hold(in_order: bool) -> ExitCode {
    let run = || -> Result<ExitCode, Box<dyn std::error::Error>> {
        become_private_user_namespace()?;
        let interrupt = Interrupt::install(if in_order { LIMIT } else { Duration::from_millis(100) })?;
        let lab = pair().build()?;
        let process = lab.spawn("mn", shell("exec sleep 300"))?;
        let identity = |name| lab.enter(name, || fs::read_link("/proc/thread-self/ns/net"));
        println!("{} {} {}", process.id(), identity("cn")??.display(), identity("mn")??.display());
        let deadline = Instant::now() + 3 * LIMIT;
        while Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
            if let (true, Err(interrupted)) = (in_order, interrupt.check()) {
                return Ok(ExitCode::from(interrupted.exit_code()));
            }
        }
        Ok(ExitCode::FAILURE)
    };
    run().unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

/// A running copy of this program that holds a lab, and the resources that must not exist after its end.
struct Holder {
    child: Child,
    inside: u32,
    namespaces: Vec<String>,
}

impl Holder {
    fn start(role: &str) -> Outcome<Self> {
        let mut child = copy_as(role)?.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no pipe")?).read_line(&mut line)?;
        let mut words = line.split_whitespace().map(str::to_owned);
        let inside = words.next().ok_or("the copy could not make its lab")?.parse()?;
        let holder = Self { child, inside, namespaces: words.collect() };
        ensure(holder.namespaces.len() == 2, "the copy told no namespaces")?;
        ensure(is_running(holder.inside), "nothing runs inside")?;
        ensure(holder.namespaces.iter().all(|n| is_referred_to(n)), "the search finds no living namespace")?;
        Ok(holder)
    }

    /// Sends the signal; the copy has to end with `expected` (exit code, or signal), and its resources have to be
    /// removed.
    fn ends(mut self, signal: Signal, expected: (Option<i32>, Option<i32>)) -> Outcome {
        let named = fs::read_dir("/run/netns").map_or(0, Iterator::count);
        kill(Pid::from_raw(self.child.id().cast_signed()), signal)?;
        let mut status = None;
        eventually("the copy ends", || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        })?;
        let ended = status.map(|s| (s.code(), s.signal()));
        ensure(ended == Some(expected), format!("the copy ended with {status:?}"))?;
        eventually("the program inside ends", || !is_running(self.inside))?;
        for namespace in &self.namespaces {
            eventually("nothing refers to the namespace", || !is_referred_to(namespace))?;
        }
        let still_named = fs::read_dir("/run/netns").map_or(0, Iterator::count);
        ensure(still_named == named, "a named namespace has come or gone")
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn interrupt_ends_in_order() -> Outcome {
    Holder::start("holder")?.ends(Signal::SIGINT, (Some(130), None))?;
    Holder::start("holder")?.ends(Signal::SIGTERM, (Some(143), None))
}

fn interrupt_ends_even_when_stuck() -> Outcome {
    Holder::start("stuck")?.ends(Signal::SIGINT, (Some(130), None))
}

fn kill_leaves_nothing() -> Outcome {
    Holder::start("holder")?.ends(Signal::SIGKILL, (None, Some(Signal::SIGKILL as i32)))
}

/// True if a process exists and is no zombie.
fn is_running(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])))
}

/// True if any process or thread is in the namespace (written `net:[inode]`) or has an open descriptor of it, as far as
/// this user can see.
fn is_referred_to(namespace: &str) -> bool {
    let points_there = |path: &Path| fs::read_link(path).is_ok_and(|target| target.as_os_str() == namespace);
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    entries(Path::new("/proc")).any(|process| {
        entries(&process.join("task")).any(|thread| points_there(&thread.join("ns/net")))
            || entries(&process.join("fd")).any(|descriptor| points_there(&descriptor))
    })
}

/// Role: forbids further user namespaces inside a user namespace, as an ordinary user, and then starts another copy
/// without any capability.
fn forbid() -> ExitCode {
    let run = || -> Outcome<std::process::ExitStatus> {
        become_private_user_namespace()?;
        fs::write("/proc/sys/user/max_user_namespaces", "0")?;
        let program = std::env::current_exe()?;
        Ok(Command::new("setpriv").arg("--bounding-set=-all").arg(program).env_remove(ROLE).status()?)
    };
    match run().map(|status| status.code()) {
        Ok(Some(code)) => ExitCode::from(code.to_le_bytes()[0]),
        other => {
            eprintln!("{:?}", other.map_err(|failed| failed.message().map(str::to_owned)));
            ExitCode::FAILURE
        }
    }
}

fn forbidden_user_namespaces_are_explained() -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut child = as_nobody(folder.path(), &std::env::current_exe()?, &[])?
        .env(ROLE, "forbidder")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut output_text = String::new();
    child.stderr.take().ok_or("no pipe")?.read_to_string(&mut output_text)?;
    let status = child.wait()?;
    ensure(status.code() == Some(3), format!("it ended with {status} and said: {output_text}"))?;
    ensure(output_text.contains("user.max_user_namespaces=0") && output_text.contains("sudo"), output_text)
}
