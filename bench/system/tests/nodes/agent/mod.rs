//! The agent from end to end: real `gmm`, `mn-server` and `cn-agent` processes, real frames over a virtual cable, and
//! programs that use shared memory. The tests cover normal operation, and the end, hang or misbehaviour of each part.
//!
//! Runs as root, or as an ordinary user inside a private user namespace. Every wait is bounded.

mod cpus;
mod dpdk;
mod hostile;
mod interface;
mod queues;
mod udp;
mod workers;

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_client::client::{self, Client, ClientError};
use cxloe_client::message::Attaching;
use cxloe_cn_core::engine::EngineError;
use cxloe_lab::{Lab, LabPrivilege, Process, program};
use cxloe_system::pair::*;
use cxloe_system::{Test, tests};
use cxloe_wire::session::OpError;

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    let mut tests = tests![
        lines_over_shared_memory,
        lines_over_the_best_link,
        udp::addresses_over_udp_come_from_the_manager,
        udp::an_address_that_changes_is_followed_over_udp,
        udp::a_router_with_a_narrow_hop_is_named_over_udp,
        dpdk::lines_and_pages_without_the_kernel,
        dpdk::a_queue_for_each_worker,
        dpdk::two_queues_of_one_worker,
        dpdk::another_number_of_queues_does_not_connect,
        dpdk::an_end_of_shared_memory_may_go_and_come_back,
        dpdk::both_ends_may_end_and_come_back,
        dpdk::what_is_missing_is_named,
        queues::lines_over_four_queues,
        queues::queues_and_throughput_are_measured,
        workers::lines_over_four_workers,
        workers::lines_over_four_workers_over_udp,
        workers::workers_and_their_options_are_checked,
        the_command_line_reads_and_writes,
        a_new_region_can_be_used_at_once,
        a_region_after_the_last_one_can_be_used_at_once,
        killed_agent_is_noticed_and_its_successor_has_the_data,
        file_pool_survives_its_memory_node,
        lost_pool_is_named_and_never_read_as_zeros,
        killed_memory_node_fails_operations_until_it_is_back,
        second_agent_with_the_same_cn_id_is_refused,
        manager_may_come_and_go,
        agent_starts_without_its_manager,
        unusable_interface_is_named,
        cable_may_be_unplugged,
        sigterm_writes_back_and_leaves_nothing,
        hostile::hostile_clients_hurt_only_themselves,
        cpus::clients_work_on_the_agents_cpu_and_on_others,
        cpus::a_crowded_agent_serves_all,
        cpus::killed_agent_ends_a_wait_on_any_cpu,
        cpus::killed_client_leaves_its_operations,
        idle_agent_sleeps,
        measurements_follow_each_other,
    ];
    tests.push(Test::new("interface::ends_well_without", interface::ends_well_without));
    let comes_back = |link: &'static str, wait: &'static str| {
        let name = format!("interface::comes_back_{link}_{wait}");
        Test::new(name, move || interface::comes_back(link, wait))
    };
    tests.push(comes_back("packet", "adaptive"));
    tests.push(comes_back("pnet", "sleep").long("the same over the third kind of link"));
    if standing == LabPrivilege::Root {
        tests.push(comes_back("xdp", "adaptive"));
    }
    tests
}

/// A command can use a new region at once, even if the agent has not yet received the region or opened its first
/// session.
fn a_new_region_can_be_used_at_once() -> Outcome {
    let rig = Pair::bare()?;
    rig.start_gmm()?;
    rig.start_mn("anon")?;
    rig.start_agent(&[])?;
    for round in 0..6 {
        let (name, text) = (format!("fresh{round}"), format!("at once, {round}"));
        rig.create_region(&name)?;
        succeeded(rig.cli(&["write", &name, "--text", &text, "--flush"])?)?;
        let read = succeeded(rig.cli(&["read", &name])?)?;
        ensure(read.contains(&format!("|{text}")), read)?;
    }
    // A command that runs before its region exists waits for the region. Another round follows if this machine was too
    // slow to create the region in time.
    for round in 0..10 {
        let (name, begun) = (format!("late{round}"), Instant::now());
        let mut write = Command::new(program("cn-agent")?);
        write.args(["write", &name, "--text", "there"]).env("CXLOE_AGENT", rig.socket());
        let write = write.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        // Nothing shows that the command waits, so the test waits for a fixed time.
        thread::sleep(Duration::from_millis(300));
        rig.gmm(&["create-region", "-s", "2M", "--owner", CN, &name])?;
        let in_time = begun.elapsed() < Duration::from_secs(1);
        let written = write.wait_with_output()?;
        if in_time {
            return succeeded(written).map(drop);
        }
        rig.gmm(&["destroy-region", "--force", &name])?;
    }
    Err("no region was made within a second".into())
}

/// A compute node whose last region was destroyed can use a new region at once, even seconds later.
fn a_region_after_the_last_one_can_be_used_at_once() -> Outcome {
    let rig = Pair::bare()?;
    let key = |program: &str| -> Outcome<String> {
        let file = rig.path(&format!("{program}.key")).display().to_string();
        succeeded(Command::new(cxloe_lab::program(program)?).args(["key", "--node-key", &file]).output()?)?;
        Ok(file)
    };
    rig.start_gmm()?;
    rig.start_mn_with("anon", &["--node-key", &key("mn-server")?])?;
    rig.start_agent(&["--wait", "sleep", "--node-key", &key("cn-agent")?])?;
    rig.create_region("scratch")?;
    let mut region = "scratch".to_string();
    for (round, pause) in [0, 2, 5, 8].into_iter().enumerate() {
        succeeded(rig.cli(&["write", &region, "--text", "there", "--flush"])?)?;
        rig.gmm(&["destroy-region", "--force", &region])?;
        // In this time the memory node applies the removal of the region, and answers the compute node.
        thread::sleep(Duration::from_secs(pause));
        region = format!("again{round}");
        rig.gmm(&["create-region", "-s", "2M", "--owner", CN, "--wait", &region])?;
        let read = succeeded(rig.cli(&["read", &region])?)?;
        ensure(!read.contains("there"), "it is another region")?;
    }
    let errors = rig.logs("agent");
    ensure(!errors.contains("ERROR"), errors)
}

/// Each run of the benchmark is a compute node, which deregisters when the run ends.
fn measurements_follow_each_other() -> Outcome {
    let rig = Pair::bare()?;
    rig.start_gmm()?;
    rig.start_mn_with("anon", &["--insecure"])?;
    let verify = |more: &[&str]| -> Outcome<(bool, String)> {
        let mut bench = Command::new(program("cxloe-bench")?);
        bench.args(["verify", "-i", "cn0", "--link", "packet", "--size", "2M", "--json"]).args(more);
        bench.arg("--data-dir").arg(rig.path("nobody"));
        let log = rig.path("bench.log");
        Process::log_to(&mut bench, &log)?;
        let status = rig.lab.spawn("cn", bench)?.wait(LIMIT)?;
        Ok((status.success(), std::fs::read_to_string(&log)?))
    };
    let manager = rig.manager_url();
    // Frames travel unencrypted only if an option asks for that: otherwise, a memory node that has no key, or an
    // unknown key, is an error.
    let (well, output_text) = verify(&["--manager", &manager])?;
    ensure(!well && output_text.contains("memory node mn0 has no key"), output_text)?;
    let (well, output_text) = verify(&["--manager", "http://127.0.0.1:9"])?;
    ensure(
        !well && ["--node-key", "cn-agent join", "--insecure"].iter().all(|way| output_text.contains(way)),
        output_text,
    )?;
    let (well, output_text) = verify(&["--manager", &manager, "--insecure"])?;
    ensure(well && output_text.contains("\"frames\": \"insecure\""), output_text)?;
    rig.stop("mn")?;
    rig.start_mn_with("anon", &["--node-key", text(&rig.path("mn.key"))])?;
    // Each run uses a new key; on its socket the manager accepts the new key in place of the previous key.
    for _ in 0..3 {
        let (well, output_text) = verify(&["--manager", &manager])?;
        ensure(well && output_text.contains("\"frames\": \"sealed\""), output_text)?;
    }
    Ok(())
}

fn lines_over_the_best_link() -> Outcome {
    let mut rig = Pair::bare()?;
    rig.link = "auto";
    rig.start_all("anon", &["--wait", "sleep"])?;
    let (mut port, hpa) = rig.written(21)?;
    verify(&mut port, hpa, 21)?;
    rig.stop("agent")?;
    rig.start_agent(&["--wait", "busy"])?;
    let mut port = rig.connect()?;
    recovered(&mut port, hpa)?;
    verify(&mut port, hpa, 21)?;
    drop(port);
    eventually("closed ports are cleaned up", || {
        (client::counters(&rig.socket()).ok()?.clients == 0).then_some(())
    })
}

fn lines_over_shared_memory() -> Outcome {
    let rig = Pair::with_region("anon", &[])?;
    let (mut port, hpa) = rig.written(1)?;
    verify(&mut port, hpa, 1)?;
    // Threads work at the same time, each with its own port and its own part of the region.
    let socket = rig.socket();
    thread::scope(|scope| {
        let work = |part: u64| {
            let rig = &socket;
            move || -> Result<(), String> {
                let base = hpa + part * LINES * 64;
                let mut port = Client::connect(rig).map_err(|e| e.to_string())?;
                for seed in [part, part + 100] {
                    port.write_batch(&written_lines(base, seed)).map_err(|e| e.to_string())?;
                    port.flush().map_err(|e| e.to_string())?;
                    verify(&mut port, base, seed).map_err(|e| e.message().unwrap_or_default().to_owned())?;
                }
                Ok(())
            }
        };
        let threads: Vec<_> = (1..5).map(|part| scope.spawn(work(part))).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect::<Result<Vec<()>, _>>()
    })?;
    verify(&mut port, hpa, 1)?;

    port.write(hpa, &[7; 64])?;
    ensure(port.read(hpa)? == [7; 64], "a line reads as it was written")?;
    let before = client::counters(&rig.socket())?.engine;
    ensure(port.read(hpa)? == [7; 64], "a line reads as it was written")?;
    let after = client::counters(&rig.socket())?.engine;
    ensure(after.read_hits > before.read_hits, "the line cache answers")?;

    let beyond = port.read(hpa + (1 << 40)).unwrap_err();
    ensure(matches!(beyond, ClientError::Engine(EngineError::Unmapped(_))), beyond.to_string())?;
    let odd = port.write(hpa + 1, &[0; 64]).unwrap_err();
    ensure(matches!(odd, ClientError::Engine(EngineError::Unaligned(_))), odd.to_string())?;
    drop(port);
    eventually("closed ports are cleaned up", || {
        (client::counters(&rig.socket()).ok()?.clients == 0).then_some(())
    })
}

fn the_command_line_reads_and_writes() -> Outcome {
    let rig = Pair::bare()?;
    failed_with(&rig.cli(&["list"])?, 3, &["agent.sock", "cn-agent run"])?;
    rig.start_gmm()?;
    rig.start_mn("anon")?;
    rig.start_agent(&[])?;
    let empty = rig.cli(&["list"])?;
    ensure(empty.stdout == b"[\n]\n", format!("{empty:?}"))?;
    failed_with(&empty, 0, &["Warning: no regions found"])?;

    rig.create_region("scratch")?;
    let region = rig.attached("scratch", "active")?;
    let listed = succeeded(rig.cli(&["list"])?)?;
    let listed: serde_json::Value = serde_json::from_str(&listed)?;
    let first = &listed[0];
    ensure(first["region"] == "scratch" && first["served_by"] == "ethernet", listed.to_string())?;
    ensure(first["hpa"] == region.hpa && first["size"] == REGION, listed.to_string())?;
    ensure(first["memory_nodes"][0]["mac"] == MN, listed.to_string())?;
    let human = succeeded(rig.cli(&["list", "-u"])?)?;
    ensure(human.contains("0x10000000000") && human.contains("4.00 MiB"), human)?;

    eventually("a session is open", || {
        let sessions = client::sessions(&rig.socket()).ok()?;
        sessions.iter().any(|s| s.status.state == "open" && s.status.peer == MN).then_some(())
    })?;
    let sessions = succeeded(rig.cli(&["sessions"])?)?;
    ensure(sessions.contains(MN) && sessions.contains("open") && sessions.contains("RTT"), sessions)?;
    let sessions: serde_json::Value = serde_json::from_str(&succeeded(rig.cli(&["sessions", "--json"])?)?)?;
    let session = &sessions[0];
    ensure(session["peer"] == MN && session["window"] == 256, sessions.to_string())?;
    ensure(session["timeout_ns"].is_u64() && session["counters"]["sacks"].is_u64(), sessions.to_string())?;

    succeeded(rig.cli(&["write", "scratch+0x40", "--text", "hello, remote memory"])?)?;
    succeeded(rig.cli(&["write", "scratch+0x40", "--text", "HELLO"])?)?;
    succeeded(rig.cli(&["flush"])?)?;
    let dump = succeeded(rig.cli(&["read", "scratch+64"])?)?;
    ensure(dump.contains("|HELLO, remote me|") && dump.starts_with("010000000040 "), dump)?;
    let image = rig.path("image");
    let bytes: Vec<u8> = (0..100_000_u32).flat_map(|i| (i * 7).to_le_bytes()).take(300_032).collect();
    std::fs::write(&image, &bytes)?;
    let image = image.to_str().unwrap_or_default();
    succeeded(rig.cli(&["write", "scratch", "--file", image, "--flush"])?)?;
    let raw = rig.cli(&["read", &region.hpa.to_string(), "--lines", "4688", "--raw"])?;
    ensure(raw.stdout == bytes, "what was written is read")?;

    failed_with(&rig.cli(&["read", "scratch+1"])?, 2, &["multiple of 64"])?;
    failed_with(&rig.cli(&["read", "scratch+4M"])?, 4, &["beyond the end"])?;
    failed_with(&rig.cli(&["read", "other"])?, 4, &["no region other", "cn-agent list"])?;
    failed_with(&rig.cli(&["read", "0x40"])?, 4, &["no region holds HPA 0x40"])?;
    let counters = succeeded(rig.cli(&["counters"])?)?;
    ensure(counters.contains("\"read_misses\""), counters)
}

fn killed_agent_is_noticed_and_its_successor_has_the_data() -> Outcome {
    let rig = Pair::with_region("anon", &["--cache-size", "0"])?;
    let (mut port, hpa) = rig.written(2)?;
    let reader = thread::spawn(move || {
        loop {
            match port.read(hpa) {
                Ok(_) => {}
                Err(error) => return (error, port.read(hpa)),
            }
        }
    });
    rig.kill("agent")?;
    let (error, again) = reader.join().expect("no panic");
    ensure(matches!(error, ClientError::AgentGone(_)), error.to_string())?;
    ensure(matches!(again, Err(ClientError::AgentGone(_))), "a dead port stays dead")?;
    let dead = Client::connect(&rig.socket()).unwrap_err();
    ensure(matches!(dead, ClientError::NoAgent { .. }), dead.to_string())?;

    rig.start_agent(&[])?;
    ensure(rig.attached("scratch", "active")?.hpa == hpa, "a region keeps its address")?;
    let mut port = rig.connect()?;
    recovered(&mut port, hpa)?;
    verify(&mut port, hpa, 2)
}

fn file_pool_survives_its_memory_node() -> Outcome {
    let rig = Pair::with_region("file", &["--cache-size", "0"])?;
    let (mut port, hpa) = rig.written(3)?;
    rig.stop("mn")?;
    rig.start_mn("file")?;
    recovered(&mut port, hpa)?;
    verify(&mut port, hpa, 3)?;
    rig.kill("mn")?;
    rig.start_mn("file")?;
    recovered(&mut port, hpa)?;
    verify(&mut port, hpa, 3)
}

fn lost_pool_is_named_and_never_read_as_zeros() -> Outcome {
    cxloe_lab::expect_error("has lost its content");
    let rig = Pair::with_region("anon", &["--cache-size", "0"])?;
    let (mut port, hpa) = rig.written(4)?;
    rig.kill("mn")?;
    rig.start_mn("anon")?;
    let expected = line(hpa, 4);
    let mut strange = None;
    eventually("the loss is named", || match port.read(hpa) {
        Err(ClientError::Engine(
            EngineError::DataLost(_) | EngineError::Failed { error: OpError::DataLost, .. },
        )) => Some(()),
        Err(_) => None,
        Ok(read) if read == expected => None,
        Ok(read) => {
            strange = Some(read);
            Some(())
        }
    })?;
    ensure(strange.is_none(), format!("read {strange:?} from lost memory"))?;
    rig.attached("scratch", "lost")?;
    failed_with(&rig.cli(&["read", "scratch"])?, 5, &[MN, "lost", "`gmm reset-region"])?;
    failed_with(&rig.cli(&["write", "scratch", "--text", "x"])?, 5, &["lost"])?;

    rig.gmm(&["reset-region", "scratch"])?;
    ensure(rig.attached("scratch", "active")?.hpa == hpa, "a region keeps its address")?;
    ensure(recovered(&mut port, hpa)? == [0; 64], "a region that was reset is empty")?;
    port.write_batch(&written_lines(hpa, 5))?;
    port.flush()?;
    verify(&mut port, hpa, 5)
}

fn killed_memory_node_fails_operations_until_it_is_back() -> Outcome {
    cxloe_lab::expect_error("has not answered within the limit");
    let rig = Pair::with_region("file", &[])?;
    let (mut port, hpa) = rig.written(6)?;
    // The written line is in the agent's cache only: the memory node does not have the line when the node is killed.
    let last = hpa + (LINES - 1) * 64;
    port.write(last, &[9; 64])?;
    rig.kill("mn")?;
    let error = failure(&mut port, hpa)?;
    let named = matches!(
        &error,
        ClientError::Engine(
            EngineError::NotConnected(_) | EngineError::Failed { error: OpError::SessionDead, .. }
        )
    );
    ensure(named, error.to_string())?;
    ensure(error.to_string().contains("mn-server"), error.to_string())?;
    failed_with(&rig.cli(&["read", "scratch"])?, 3, &[MN])?;
    ensure(port.read(last)? == [9; 64], "the cache goes on answering")?;
    ensure(port.flush().is_err(), "what cannot be written back is not flushed")?;
    let away = rig.attached("scratch", "degraded")?;
    ensure(away.attachment == Attaching::Connecting, format!("{away:?}"))?;

    rig.start_mn("file")?;
    recovered(&mut port, hpa)?;
    let back = rig.attached("scratch", "active")?;
    ensure(back.attachment == Attaching::Attached, format!("{back:?}"))?;
    eventually("what was held back is written", || port.flush().ok())?;
    rig.attached("scratch", "active")?;
    rig.stop("agent")?;
    rig.start_agent(&[])?;
    let mut port = rig.connect()?;
    recovered(&mut port, hpa)?;
    ensure(port.read(last)? == [9; 64], "the write survived its memory node's death")?;
    ensure(port.read(hpa)? == line(hpa, 6), "the others are there")
}

fn second_agent_with_the_same_cn_id_is_refused() -> Outcome {
    cxloe_lab::expect_error("already serves another running agent");
    let rig = Pair::with_region("anon", &["--cache-size", "0"])?;
    let (mut port, hpa) = rig.written(7)?;
    // A second agent is started with the same socket, then with the same data directory, and then with only the
    // interface in common.
    let run = |arguments: Vec<String>| -> Outcome<std::process::Output> {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = Command::new(program("cn-agent")?);
        command.args(arguments);
        let log = rig.path("second.log");
        Process::log_to(&mut command, &log)?;
        let status = rig.lab.spawn("cn", command)?.wait(LIMIT)?;
        Ok(std::process::Output { status, stdout: Vec::new(), stderr: std::fs::read(log)? })
    };
    failed_with(&run(rig.agent_arguments("agent", &[]))?, 1, &["another agent", "--socket"])?;
    let data = rig.path("agent.data");
    let own_socket = rig.path("other.sock");
    let mut arguments = rig.agent_arguments("agent", &[]);
    for (flag, path) in [("--socket", &own_socket), ("--data-dir", &data)] {
        let at = arguments.iter().position(|a| a == flag).expect("it is there");
        arguments[at + 1] = path.display().to_string();
    }
    failed_with(&run(arguments)?, 1, &["another agent", CN, "MAC address"])?;

    let stolen = rig.path("thief.data");
    std::fs::create_dir(&stolen)?;
    let state = format!("cn-{}.state", CN.replace(':', "-"));
    std::fs::copy(data.join(&state), stolen.join(&state))?;
    let _thief = rig.start_agent_called("thief", &[])?;
    let log = rig.log("thief");
    eventually("the manager refuses it", || saying(&log, "no manager").and_then(|()| saying(&log, CN)))?;
    eventually("the memory node refuses it", || saying(&log, "already serves another running agent"))?;
    let theirs = run_against(&rig, "thief.sock", &["read", "scratch"])?;
    failed_with(&theirs, 5, &["already serves another running agent", "MAC address"])?;
    recovered(&mut port, hpa)?;
    verify(&mut port, hpa, 7)
}

fn run_against(rig: &Pair, socket: &str, arguments: &[&str]) -> Outcome<std::process::Output> {
    cxloe_system::command::run("cn-agent", arguments, Some(&rig.path(socket)))
}

fn manager_may_come_and_go() -> Outcome {
    let rig = Pair::with_region("anon", &["--cache-size", "0"])?;
    let (mut port, hpa) = rig.written(8)?;
    rig.kill("gmm")?;
    verify(&mut port, hpa, 8)?;
    port.write_batch(&written_lines(hpa, 9))?;
    port.flush()?;
    // An agent that is restarted while the manager is down has the same regions as before.
    rig.stop("agent")?;
    rig.start_agent(&["--cache-size", "0"])?;
    let region = client::regions(&rig.socket())?;
    ensure(region.first().is_some_and(|r| r.region == "scratch" && r.hpa == hpa), format!("{region:?}"))?;
    let mut port = rig.connect()?;
    recovered(&mut port, hpa)?;
    verify(&mut port, hpa, 9)?;

    rig.start_gmm()?;
    rig.create_region("second")?;
    let second = rig.attached("second", "active")?.hpa;
    port.write(second, &[2; 64])?;
    verify(&mut port, hpa, 9)?;
    rig.gmm(&["destroy-region", "--force", "second"])?;
    // With --force the region is removed at the memory node first; the agent detaches it when the change arrives.
    let attached =
        || client::regions(&rig.socket()).is_ok_and(|all| all.iter().any(|r| r.region == "second"));
    eventually("the agent lets go of it", || (!attached()).then_some(()))?;
    let gone = failure(&mut port, second)?;
    ensure(matches!(gone, ClientError::Engine(EngineError::Unmapped(_))), gone.to_string())?;
    rig.create_region("third")?;
    ensure(rig.attached("third", "active")?.hpa > second, "an address is never given away twice")?;
    verify(&mut port, hpa, 9)
}

fn agent_starts_without_its_manager() -> Outcome {
    let rig = Pair::bare()?;
    rig.start_agent(&[])?;
    ensure(client::regions(&rig.socket())?.is_empty(), "nothing is attached")?;
    let log = rig.log("agent");
    eventually("it says so", || saying(&log, "manager unreachable at unix:"))?;
    rig.start_gmm()?;
    rig.start_mn("anon")?;
    rig.create_region("scratch")?;
    let (mut port, hpa) = rig.written(10)?;
    verify(&mut port, hpa, 10)
}

fn unusable_interface_is_named() -> Outcome {
    let rig = Pair::bare()?;
    let run = |more: &[&str]| -> Outcome<std::process::Output> {
        let mut command = Command::new(program("cn-agent")?);
        command.args(rig.agent_arguments("agent", more));
        let log = rig.path("it.log");
        Process::log_to(&mut command, &log)?;
        let status = rig.lab.spawn("cn", command)?.wait(LIMIT)?;
        Ok(std::process::Output { status, stdout: Vec::new(), stderr: std::fs::read(log)? })
    };
    failed_with(&run(&["-i", "nothere0"])?, 2, &["nothere0", "ip link"])?;
    rig.lab.link_down("cn0")?;
    failed_with(&run(&[])?, 1, &["cn0", "down", "ip link set cn0 up"])?;
    failed_with(&run(&["--streams", "0"])?, 2, &["streams", "1 to 64"])?;
    ensure(!rig.socket().exists(), "an agent that did not start leaves no socket")?;

    let small =
        Pair::on(Lab::builder().namespace("cn").namespace("mn").veth("cn", "cn0", "mn", "mn0").mtu(80))?;
    let mut process = small.start_agent_called("agent", &[])?;
    let log = small.log("agent");
    let status = process.wait(LIMIT)?;
    let output = std::process::Output { status, stdout: Vec::new(), stderr: std::fs::read(log)? };
    failed_with(&output, 1, &["MTU 80", "mtu 1500"])
}

fn cable_may_be_unplugged() -> Outcome {
    cxloe_lab::expect_error("has not answered within the limit");
    let rig = Pair::with_region("anon", &["--cache-size", "0"])?;
    let (mut port, hpa) = rig.written(11)?;
    for interface in ["mn0", "cn0"] {
        rig.lab.link_down(interface)?;
        let error = failure(&mut port, hpa)?;
        ensure(matches!(error, ClientError::Engine(_)), error.to_string())?;
        rig.lab.link_up(interface)?;
        recovered(&mut port, hpa)?;
        verify(&mut port, hpa, 11)?;
    }
    Ok(())
}

fn sigterm_writes_back_and_leaves_nothing() -> Outcome {
    let rig = Pair::with_region("anon", &[])?;
    let (mut port, hpa) = rig.written(12)?;
    // The written lines stay in the cache and are not yet at the memory node.
    for i in 0..16 {
        port.write(hpa + i * 64, &[i as u8; 64])?;
    }
    rig.stop("agent")?;
    ensure(matches!(port.read(hpa), Err(ClientError::AgentGone(_))), "a port ends with its agent")?;
    ensure(!rig.socket().exists(), "the socket is gone")?;
    let mut left: Vec<String> = std::fs::read_dir(rig.path("agent.data"))?
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_, _>>()?;
    left.sort();
    let name = format!("cn-{}", CN.replace(':', "-"));
    ensure(left == [format!("{name}.lock"), format!("{name}.state")], format!("left behind: {left:?}"))?;

    rig.start_agent(&[])?;
    let mut port = rig.connect()?;
    recovered(&mut port, hpa)?;
    for i in 0..16 {
        ensure(port.read(hpa + i * 64)? == [i as u8; 64], format!("line {i} was written back"))?;
    }
    Ok(())
}

/// CPU time that all threads of a process have used so far.
fn cpu_time(pid: u32) -> Outcome<Duration> {
    let mut total = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        total += text.split_whitespace().next().and_then(|t| t.parse::<u64>().ok()).ok_or("no schedstat")?;
    }
    Ok(Duration::from_nanos(total))
}

fn idle_agent_sleeps() -> Outcome {
    cxloe_lab::expect_error("has not answered within the limit");
    let rig = Pair::with_region("anon", &[])?;
    let (_port, _) = rig.written(15)?;
    let agent = rig.pid("agent")?;
    let used = || -> Outcome<f64> {
        let (began, before) = (std::time::Instant::now(), cpu_time(agent)?);
        // CPU time is counted over these two seconds.
        thread::sleep(Duration::from_secs(2));
        let spent = cpu_time(agent)?.saturating_sub(before);
        Ok(spent.as_secs_f64() / began.elapsed().as_secs_f64())
    };
    // CPU time is compared, not elapsed time, so that the load of the machine makes no difference.
    let idle = used()?;
    ensure(idle < 0.01, format!("an idle agent uses {:.2} % of a core", idle * 100.0))?;
    rig.lab.link_down("cn0")?;
    let down = used()?;
    ensure(down < 0.01, format!("without its link it uses {:.2} % of a core", down * 100.0))
}
