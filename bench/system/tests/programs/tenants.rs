//! Two ordinary users on one compute node: each has access to its own regions, and none to the other's, whatever its
//! programs send. One user's programs forge the shared state of a previous agent, use the ids of the other user's
//! processes, and connect to the other user's sockets.
//!
//! Runs as root, which starts copies of this program as both users.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use cxloe_client::client::{self, Client};
use cxloe_client::mapping::Owner;
use cxloe_client::memory::receive_with_descriptor;
use cxloe_client::message::{
    self, AgentAnswer, AgentCall, AgentRequest, JoinRequest, MapRequest, ShownFiles, VERSION,
};
use cxloe_cn_core::mapped::MappingKind;
use cxloe_fabric::model::Name;
use cxloe_lab::{LabPrivilege, Process, program};
use cxloe_member::process_files::ProcessFiles;
use cxloe_member::socket::{Socket, SocketPath};
use cxloe_member::wire::{JoinReply, WELCOME, WELCOME_BYTES};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use cxloe_system::copies::ROLE;
use cxloe_system::pair::*;
use cxloe_system::{Test, tests};

pub const ALICE: u32 = 4711;
pub const BOB: u32 = 4712;
/// Group whose members may use the agent's socket.
const USERS: u32 = 4700;
const BYTES: &str = "4M";

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    match standing {
        LabPrivilege::Root => tests![
            a_user_reads_and_writes_its_own_regions_alone,
            a_region_is_mapped_by_its_user_alone,
            a_forged_shared_state_is_not_taken_over,
            a_foreign_process_cannot_be_named,
            programs_run_without_any_right_at_the_manager,
            page_faults_of_the_kernel_are_not_for_everybody,
            a_block_device_is_its_users,
        ],
        _ => Vec::new(),
    }
}

/// Starts a fabric with an agent whose socket the group may use, and creates the regions `alice`, `bob` and `all`.
pub fn rig() -> Outcome<Pair> {
    rig_whose_agent(&[])
}

/// Like [`rig`], with further options of the agent.
pub fn rig_whose_agent(more: &[&str]) -> Outcome<Pair> {
    let mut rig = Pair::bare()?;
    rig.pool_size = "128MiB";
    rig.start_gmm()?;
    rig.start_mn("anon")?;
    rig.start_agent(&[&["--wait", "sleep"][..], more].concat())?;
    fs::set_permissions(rig.dir.path(), Permissions::from_mode(0o755))?;
    chown(rig.socket(), None, Some(USERS))?;
    // Only root may use the manager; neither of the two users may.
    fs::set_permissions(rig.path("gmm.sock"), Permissions::from_mode(0o600))?;
    for (region, uid) in [("alice", Some(ALICE)), ("bob", Some(BOB)), ("all", None)] {
        let uid = uid.map(|uid| uid.to_string());
        let of_user: Vec<&str> = uid.iter().flat_map(|uid| ["--uid", uid]).collect();
        rig.gmm(&[&["create-region", "-s", BYTES, "--owner", CN, region][..], &of_user].concat())?;
        rig.attached(region, "active")?;
    }
    Ok(rig)
}

/// Folder with copies of this build's programs that every user may execute.
pub fn lent(rig: &Pair) -> Outcome<PathBuf> {
    let folder = rig.path("bin");
    fs::create_dir_all(&folder)?;
    let lend = |from: &Path, name: &str| -> Outcome {
        let to = folder.join(name);
        if !to.exists() {
            fs::copy(from, &to)?;
            fs::set_permissions(&to, Permissions::from_mode(0o755))?;
        }
        Ok(())
    };
    lend(&std::env::current_exe()?, "tenant")?;
    let agent = program("cn-agent")?;
    lend(&agent, "cn-agent")?;
    let library = agent.parent().ok_or("a program without a folder")?.join("libcxloe_preload.so");
    lend(&library, "libcxloe_preload.so")?;
    Ok(folder)
}

/// Command that runs a program as a user. `setpriv` changes the user after the process has entered the
/// namespace, because that requires root.
pub fn user_command(uid: u32, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &uid.to_string(), "--regid", &USERS.to_string(), "--clear-groups"]);
    command.args(["--inh-caps=-all", "--"]).arg(program).current_dir("/").env_remove("HOME");
    command
}

/// Command that runs a copy of this program as a user; `part` selects one of the programs of [`play`].
fn tenant(rig: &Pair, uid: u32, part: &str, more: &[&str]) -> Outcome<Command> {
    let mut command = user_command(uid, &lent(rig)?.join("tenant"));
    command.env(ROLE, "tenant").arg(part).arg(rig.socket()).args(more);
    Ok(command)
}

/// Runs the program `part` of [`play`] as a user; it has to succeed. Returns its output.
fn played(rig: &Pair, uid: u32, part: &str, more: &[&str]) -> Outcome<String> {
    let output = tenant(rig, uid, part, more)?.output()?;
    let output_text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure(output.status.success(), format!("{part} as {uid}: {}: {output_text}", output.status))?;
    Ok(output_text)
}

/// Checks that the agent is still the process `pid`, and serves.
fn serves(rig: &Pair, pid: u32) -> Outcome {
    ensure(rig.pid("agent")? == pid, "it is the same agent")?;
    client::node(&rig.socket())?;
    Ok(())
}

pub fn a_user_reads_and_writes_its_own_regions_alone() -> Outcome {
    let rig = rig()?;
    let mut port = rig.connect()?;
    let bob = rig.attached("bob", "active")?.hpa;
    eventually("a session is open", || port.read(bob).ok())?;
    port.write(bob, &[7; 64])?;
    port.flush()?;
    for (region, allowed) in [("alice", true), ("all", true), ("bob", false)] {
        let hpa = rig.attached(region, "active")?.hpa.to_string();
        let output_text = played(&rig, ALICE, "port", &[&hpa])?;
        let wanted = if allowed { "done done done done\n" } else { "failed failed failed failed\n" };
        ensure(output_text == wanted, format!("{region}: {output_text}"))?;
    }
    ensure(port.read(bob)? == [7; 64], "nothing of bob's has changed")?;
    // Messages distinguish another user's region from a missing one, and a refused socket from an agent that
    // does not run.
    let agent = lent(&rig)?.join("cn-agent");
    let read = |group: u32| -> Outcome<std::process::Output> {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &ALICE.to_string(), "--regid", &group.to_string(), "--clear-groups"]);
        command.args(["--inh-caps=-all", "--"]).arg(&agent).args(["read", "bob"]).current_dir("/");
        command.env("CXLOE_AGENT", rig.socket()).env_remove("HOME");
        Ok(command.output()?)
    };
    failed_with(&read(USERS)?, 5, &["region `bob` belongs to another user than 4711"])?;
    failed_with(&read(ALICE)?, 5, &["this user may not use the agent"])?;
    // A connected client gets no access to another user's regions that are attached or destroyed later.
    let mut waits = tenant(&rig, ALICE, "port-later", &["later"])?.stdout(Stdio::piped()).spawn()?;
    rig.gmm(&["create-region", "-s", BYTES, "--owner", CN, "--uid", &BOB.to_string(), "later"])?;
    let ended = waits.wait()?;
    ensure(ended.success(), "what comes later is refused, too")
}

pub fn a_region_is_mapped_by_its_user_alone() -> Outcome {
    let rig = rig()?;
    let output_text = played(&rig, ALICE, "map", &["bob"])?;
    ensure(output_text.contains("belongs to another user than 4711"), output_text)?;
    let output_text = played(&rig, ALICE, "map", &["alice"])?;
    ensure(output_text.contains("mapped"), output_text)?;
    // Bob has mapped both regions; alice can neither see, join nor change his mappings, not even by their ids.
    for region in ["bob", "all"] {
        let log = rig.path(&format!("{region}.log"));
        let mut keeps = tenant(&rig, BOB, "keep", &[region])?;
        Process::log_to(&mut keeps, &log)?;
        keeps.stdin(Stdio::piped());
        let mut keeps = rig.lab.spawn("cn", keeps)?;
        eventually("bob has it mapped", || saying(&log, "mapped"))?;
        let space = client::paging(&rig.socket(), None)?.pop().ok_or("nothing is mapped")?.space.to_string();
        let output_text = played(&rig, ALICE, "look", &[&space])?;
        ensure(
            output_text == "0 spaces; set: not there; clean: not there; join: refused\n",
            format!("{region}: {output_text}"),
        )?;
        let output_text = played(&rig, BOB, "look", &[&space])?;
        ensure(output_text.starts_with("1 spaces; set: done"), format!("{region}: {output_text}"))?;
        drop(keeps.child_mut().stdin.take());
        ensure(keeps.wait(LIMIT)?.success(), "bob ends well")?;
        eventually("nothing is mapped", || {
            client::paging(&rig.socket(), None).ok()?.is_empty().then_some(())
        })?;
    }
    Ok(())
}

pub fn a_forged_shared_state_is_not_taken_over() -> Outcome {
    let rig = rig()?;
    let pid = rig.pid("agent")?;
    for region in ["alice", "bob"] {
        let output_text = played(&rig, ALICE, "forge", &[region])?;
        let refused = if region == "alice" { "made by user 4711" } else { "another user" };
        ensure(output_text.matches(refused).count() == 3, format!("{region}: {output_text}"))?;
        serves(&rig, pid)?;
    }
    // The agent refuses a descriptor that it made for another purpose, here the memory of a port.
    let output_text = played(&rig, ALICE, "show-port", &["alice"])?;
    ensure(output_text.contains("not made for this purpose"), output_text)?;
    serves(&rig, pid)?;
    // A shared state made by the agent itself is read-only for alice, and refused for another region.
    let output_text = played(&rig, ALICE, "reuse", &["alice"])?;
    ensure(output_text == "not writable; not for another region\n", output_text)?;
    serves(&rig, pid)
}

pub fn a_foreign_process_cannot_be_named() -> Outcome {
    let rig = rig()?;
    let pid = rig.pid("agent")?;
    let mut other = user_command(BOB, Path::new("sleep")).arg("1000").spawn()?;
    let others = [other.id().to_string(), pid.to_string(), "1".into()];
    let outcome = others.iter().try_for_each(|named| {
        let output_text = played(&rig, ALICE, "name", &["alice", named])?;
        ensure(output_text.contains("is not one of user 4711's"), output_text)
    });
    let lives = other.try_wait()?.is_none();
    other.kill()?;
    other.wait()?;
    outcome?;
    ensure(lives, "nothing has happened to it")?;
    let output_text = played(&rig, ALICE, "no-userfaultfd", &["alice"])?;
    ensure(output_text.matches("came as a userfaultfd is another descriptor").count() == 3, output_text)?;
    serves(&rig, pid)
}

pub fn page_faults_of_the_kernel_are_not_for_everybody() -> Outcome {
    let rig = rig()?;
    let folder = lent(&rig)?;
    for (uid, allowed) in [(ALICE, false), (0, true)] {
        let mut command = user_command(uid, &folder.join("cn-agent"));
        command.args(["exec", "--size", "32M", "--local", "4M", "--", "true"]);
        command.env("CXLOE_AGENT", rig.socket());
        let log = rig.path(&format!("exec-{uid}.log"));
        Process::log_to(&mut command, &log)?;
        let status = rig.lab.spawn("cn", command)?.wait(LIMIT)?;
        let output_text = fs::read_to_string(&log)?;
        ensure(status.success() == allowed, format!("{uid}: {status}: {output_text}"))?;
        ensure(allowed || output_text.contains("allow-kernel-faults = true"), output_text)?;
    }
    Ok(())
}

pub fn programs_run_without_any_right_at_the_manager() -> Outcome {
    let rig = rig_whose_agent(&["--allow-kernel-faults"])?;
    let folder = lent(&rig)?;
    let exec = |uid: u32, script: &str| -> Outcome<Command> {
        let mut command = user_command(uid, &folder.join("cn-agent"));
        command.args(["exec", "--size", "32M", "--local", "4M", "--", "sh", "-c", script]);
        command.env("CXLOE_AGENT", rig.socket());
        Ok(command)
    };
    let denied = UnixStream::connect(rig.path("gmm.sock"));
    ensure(denied.is_ok(), "root reaches the manager")?;
    let log = rig.path("exec.log");
    let mut program = exec(ALICE, "echo started; read line; echo $line")?;
    Process::log_to(&mut program, &log)?;
    program.stdin(Stdio::piped());
    let mut program = rig.lab.spawn("cn", program)?;
    eventually("the program runs", || saying(&log, "started"))?;
    let region = client::paging(&rig.socket(), None)?.pop().ok_or("it has no remote memory")?.region;
    let regions = rig.gmm(&["--json", "list", "-R"])?;
    ensure(regions.contains(&format!("\"uid\": {ALICE}")), regions)?;
    // Nobody can destroy or grow a region by these requests that was not created for a program of the same user:
    // neither another user's nor an ordinary region.
    for (uid, name) in [(BOB, region.as_str()), (BOB, "alice"), (ALICE, "alice")] {
        let output_text = played(&rig, uid, "destroy", &[name])?;
        ensure(output_text.matches("was not created for a program of this user").count() == 2, output_text)?;
    }
    let mut input = program.child_mut().stdin.take().ok_or("no standard input")?;
    input.write_all(b"ended well\n")?;
    drop(input);
    ensure(program.wait(LIMIT)?.success(), fs::read_to_string(&log)?)?;
    let output_text = fs::read_to_string(&log)?;
    ensure(output_text.contains("ended well"), output_text)?;
    eventually("its region is gone", || {
        let regions = rig.gmm(&["list", "-R"]).ok()?;
        (!regions.contains("exec-")).then_some(())
    })
}

pub fn a_block_device_is_its_users() -> Outcome {
    let rig = rig()?;
    let folder = lent(&rig)?;
    let socket = rig.path("nbd/alice.sock");
    fs::create_dir(rig.path("nbd"))?;
    chown(rig.path("nbd"), Some(ALICE), None)?;
    let mut server = user_command(ALICE, &folder.join("cn-agent"));
    server.args(["nbd", "--region", "alice", "--socket"]).arg(&socket).arg("--agent").arg(rig.socket());
    let log = rig.path("nbd.log");
    Process::log_to(&mut server, &log)?;
    let server = rig.lab.spawn("cn", server)?;
    eventually("it serves", || socket.exists().then_some(()))?;
    ensure(fs::metadata(&socket)?.permissions().mode() & 0o777 == 0o600, "its socket is its user's")?;
    // Even if the mode lets others open the socket, the server checks the peer's credentials.
    fs::set_permissions(&socket, Permissions::from_mode(0o666))?;
    let greeted = |uid: u32| played(&rig, uid, "greeted", &[&socket.to_string_lossy()]);
    let (alice, bob) = (greeted(ALICE)?, greeted(BOB)?);
    ensure(alice == "greeted\n" && bob == "turned away\n", format!("alice {alice} bob {bob}"))?;
    drop(server);
    Ok(())
}

/// Role: a user's program, selected by the first argument; the second is the agent's socket.
pub fn play() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, part, socket, rest @ ..] = &arguments[..] else { return ExitCode::from(2) };
    let (socket, rest) = (Path::new(socket), rest.iter().map(String::as_str).collect::<Vec<_>>());
    let done = match (part.as_str(), &rest[..]) {
        ("port", [hpa]) => port(socket, hpa),
        ("port-later", [region]) => port_later(socket, region),
        ("map", [region]) => map(socket, region),
        ("keep", [region]) => keep(socket, region),
        ("look", [space]) => look(socket, space),
        ("forge", [region]) => forge(socket, region),
        ("show-port", [region]) => show_port(socket, region),
        ("reuse", [region]) => reuse(socket, region),
        ("name", [region, pid]) => name_process(socket, region, pid),
        ("no-userfaultfd", [region]) => no_userfaultfd(socket, region),
        ("destroy", [region]) => destroy(socket, region),
        ("greeted", [server]) => greeted(Path::new(server)),
        _ => Err(format!("no part {part} with {rest:?}").into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", error.message().unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}

fn word<T, E>(outcome: &Result<T, E>) -> &'static str {
    if outcome.is_ok() { "done" } else { "failed" }
}

fn port(socket: &Path, hpa: &str) -> Outcome {
    let hpa: u64 = hpa.parse()?;
    let mut port = Client::connect(socket)?;
    let mut bytes = vec![0; 8192];
    let outcomes = [
        word(&port.read(hpa)),
        word(&port.write(hpa, &[1; 64])),
        word(&port.read_bytes(hpa + 4096, &mut bytes)),
        word(&port.write_bytes(hpa, &bytes)),
    ];
    println!("{}", outcomes.join(" "));
    Ok(())
}

/// Reads a region that is attached later, through a port that was opened before it.
fn port_later(socket: &Path, region: &str) -> Outcome {
    let mut port = Client::connect(socket)?;
    let attached = eventually("it is attached", || {
        port.regions().ok()?.into_iter().find(|found| found.region == region && found.state == "active")
    })?;
    ensure(port.read(attached.hpa).is_err(), "another user's region is read")
}

pub fn request(region: &str, kind: MappingKind) -> MapRequest {
    MapRequest::new(region, kind, 1 << 20, std::time::Duration::from_secs(1))
}

fn map(socket: &Path, region: &str) -> Outcome {
    match Owner::map(socket, request(region, MappingKind::Shared)) {
        Ok(_) => println!("mapped"),
        Err(error) => println!("{error}"),
    }
    Ok(())
}

fn keep(socket: &Path, region: &str) -> Outcome {
    let owner = Owner::map(socket, request(region, MappingKind::Private))?;
    println!("mapped");
    std::io::stdin().read_line(&mut String::new())?;
    drop(owner);
    Ok(())
}

fn look(socket: &Path, space: &str) -> Outcome {
    let space: u64 = space.parse()?;
    let seen = client::paging(socket, None)?.len();
    let set = client::set_limit(socket, space, 2 << 20);
    let answer = |ask: AgentCall| -> Outcome<AgentAnswer> {
        let mut socket = UnixStream::connect(socket)?;
        message::write(&mut socket, &AgentRequest { version: VERSION, ask })?;
        Ok(message::read(&mut socket, 1 << 16)?)
    };
    let clean = matches!(answer(AgentCall::CleanAll { space, zeros: true })?, AgentAnswer::Done);
    let join = join(socket, space, std::process::id(), false, &[userfaultfd()?])?;
    let there = |done: bool| if done { "done" } else { "not there" };
    let joined = if join.contains("belongs to another user") { "refused" } else { "looked at" };
    println!("{seen} spaces; set: {}; clean: {}; join: {joined}", there(set.is_ok()), there(clean));
    Ok(())
}

/// The agent's answer to a request to join a mapping with these descriptors.
fn join(socket: &Path, space: u64, pid: u32, resume: bool, descriptors: &[OwnedFd]) -> Outcome<String> {
    let path = SocketPath::new(socket.as_os_str().as_encoded_bytes()).ok_or("too long a path")?;
    let connection = Socket::connect(&path, LIMIT)?;
    let view = resume.then_some(0);
    let (own, files) = match resume {
        true => (None, ShownFiles::None),
        false => (Some(ProcessFiles::own()?), ShownFiles::All),
    };
    let proof = None;
    let request =
        JoinRequest { space, address: 1 << 30, bytes: 4096, offset: 0, pid, view, proof, resume, files };
    let bytes = message::encode(&AgentRequest { version: VERSION, ask: AgentCall::Join(request) });
    let own = own.iter().flat_map(|own| [own.memory(), Some(own.table())]).flatten();
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).chain(own).collect();
    connection.send(&bytes, &descriptors)?;
    let mut none = cxloe_member::socket::Descriptors::new();
    let mut head = [0; WELCOME_BYTES];
    connection.receive_exact(&mut head, &mut none)?;
    let welcome = JoinReply::decode(&head).ok_or("no welcome")?;
    let mut text = vec![0; welcome.text as usize];
    connection.receive_exact(&mut text, &mut none)?;
    Ok(if welcome.status == WELCOME { "welcome".into() } else { String::from_utf8_lossy(&text).into_owned() })
}

/// First words of the header of a shared state (the agent's record of a mapped region) of 1,024 pages, in which each
/// view (table of pages) has `view_pages` entries.
fn header(region: &str, kind: MappingKind, view_pages: u64) -> [u64; 11] {
    let name = region.len() as u64;
    [u64::from_le_bytes(*b"CXLoElgr"), 1, 77, kind as u64, 1024, 64, 0, 0, 1000, name, view_pages]
}

fn write_header(file: &File, words: &[u64], region: &str) -> Outcome {
    for (index, word) in words.iter().enumerate() {
        file.write_at(&word.to_le_bytes(), index as u64 * 8)?;
    }
    file.write_at(region.as_bytes(), 64 * 8)?;
    Ok(())
}

/// A forged shared state: the region in it is valid, its page states are not.
fn forged(region: &str, kind: MappingKind, sealed: bool) -> Outcome<OwnedFd> {
    let file = File::from(memfd_create(c"forged", MFdFlags::MFD_ALLOW_SEALING)?);
    let pages: u64 = 1024;
    let tables = 4096 + 1024 * 64;
    let views = if kind == MappingKind::Private { 1024 } else { 1 };
    file.set_len(tables + views * pages * 8)?;
    write_header(&file, &header(region, kind, pages), region)?;
    // These records name a live process, nonexistent views and slots, and other users' buffers; the page states below
    // are invalid.
    let records = [1, u64::MAX, u64::from(std::process::id()), 5, 1 << 30, 0, 0, 0];
    for (index, word) in records.into_iter().enumerate() {
        file.write_at(&word.to_le_bytes(), 4096 + index as u64 * 8)?;
    }
    for page in 0..pages {
        let entry = page << 40 | (page * 0x0101_0101) << 8 | page & 0xFF;
        file.write_at(&entry.to_le_bytes(), tables + page * 8)?;
    }
    if sealed {
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    }
    Ok(file.into())
}

/// The agent's answer to a request to resume a region with this shared state.
fn resume(socket: &Path, request: MapRequest, descriptors: &[OwnedFd]) -> Outcome<String> {
    let path = SocketPath::new(socket.as_os_str().as_encoded_bytes()).ok_or("too long a path")?;
    let connection = Socket::connect(&path, LIMIT)?;
    let request = MapRequest { resume: true, ..request };
    let bytes = message::encode(&AgentRequest { version: VERSION, ask: AgentCall::Map(request) });
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    connection.send(&bytes, &descriptors)?;
    let mut none = cxloe_member::socket::Descriptors::new();
    let mut prefix = [0; 4];
    connection.receive_exact(&mut prefix, &mut none)?;
    let mut text = vec![0; u32::from_be_bytes(prefix) as usize];
    connection.receive_exact(&mut text, &mut none)?;
    match message::decode(&text)? {
        AgentAnswer::Refused(refused) => Ok(refused.to_string()),
        other => Ok(format!("{other:?}")),
    }
}

fn forge(socket: &Path, region: &str) -> Outcome {
    for kind in [MappingKind::Private, MappingKind::Shared, MappingKind::Foreign] {
        let memory = File::from(memfd_create(c"memory", MFdFlags::MFD_ALLOW_SEALING)?);
        memory.set_len(4 << 20)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&memory, FcntlArg::F_ADD_SEALS(seals))?;
        let shown = [forged(region, kind, true)?, memory.into()];
        println!("{}", resume(socket, request(region, kind), &shown)?);
        let nothing = resume(socket, request(region, kind), &[forged(region, kind, false)?])?;
        ensure(nothing.contains("another user") || nothing.contains("made by user"), nothing)?;
        let [shown, memory] = shown;
        let joined =
            join(socket, 77, std::process::id(), true, &[File::open("/dev/null")?.into(), shown, memory])?;
        ensure(joined != "welcome", joined)?;
    }
    Ok(())
}

/// Passes the memory of a port, made by the agent and writable by this program, to the agent as the shared state of a
/// region.
fn show_port(socket: &Path, region: &str) -> Outcome {
    let mut port = UnixStream::connect(socket)?;
    message::write(&mut port, &AgentRequest { version: VERSION, ask: AgentCall::Port })?;
    let (_, memory) = receive_with_descriptor(&port, &mut [0; 512])?;
    let memory = File::from(memory.ok_or("no memory came")?);
    // With 2048 entries per view, a shared state of 256 views has exactly the size of a port's memory.
    write_header(&memory, &header(region, MappingKind::Private, 2048), region)?;
    ensure(memory.metadata()?.len() == 69_632 + 256 * 2048 * 8, "a port has the size of a shared state")?;
    println!("{}", resume(socket, request(region, MappingKind::Private), &[memory.into()])?);
    Ok(())
}

fn reuse(socket: &Path, region: &str) -> Outcome {
    let owner = Owner::map(socket, request(region, MappingKind::Foreign))?;
    let shown = owner.shared_state().try_clone_to_owned()?;
    let anew = File::options().write(true).open(format!("/proc/self/fd/{}", shown.as_raw_fd()));
    let writable = if anew.is_err() { "not writable" } else { "writable" };
    // The region is unmapped. Its shared state still gives access to this region, but not to the region `all`.
    drop(owner);
    let other = resume(socket, request("all", MappingKind::Foreign), &[shown])?;
    let other = if other.starts_with("Mapped") { "for another region" } else { "not for another region" };
    println!("{writable}; {other}");
    Ok(())
}

fn userfaultfd() -> Outcome<OwnedFd> {
    Ok(cxloe_paging::uffd::Uffd::create_user_only()?.into())
}

fn name_process(socket: &Path, region: &str, pid: &str) -> Outcome {
    let owner = Owner::map(socket, request(region, MappingKind::Foreign))?;
    println!("{}", join(socket, owner.space(), pid.parse()?, false, &[userfaultfd()?])?);
    Ok(())
}

fn no_userfaultfd(socket: &Path, region: &str) -> Outcome {
    let owner = Owner::map(socket, request(region, MappingKind::Private))?;
    let (pipe, _other) = nix::unistd::pipe()?;
    for descriptor in [pipe, File::open("/dev/zero")?.into(), memfd_create(c"x", MFdFlags::empty())?] {
        println!("{}", join(socket, owner.space(), std::process::id(), false, &[descriptor])?);
    }
    Ok(())
}

fn destroy(socket: &Path, region: &str) -> Outcome {
    let region = Name::new(region)?;
    for outcome in [client::destroy(socket, region.clone()), client::grow(socket, region, 1 << 30)] {
        println!("{}", outcome.map_or_else(|error| error.to_string(), |()| "done".into()));
    }
    Ok(())
}

/// Prints whether an NBD server sends this process a greeting.
fn greeted(server: &Path) -> Outcome {
    let mut socket = UnixStream::connect(server)?;
    socket.set_read_timeout(Some(LIMIT))?;
    let mut greeting = [0; 8];
    let spoken = std::io::Read::read_exact(&mut socket, &mut greeting).is_ok();
    println!("{}", if spoken && greeting == *b"NBDMAGIC" { "greeted" } else { "turned away" });
    Ok(())
}
