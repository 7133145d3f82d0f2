//! Programs and the `cn-agent exec` that supervises them: errors at the start, forwarded signals, exit status, and the
//! agent's end.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use cxloe_client::client;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::run::{MIB, RUN_MAX, Running, Sizes, compiled, nothing_is_left, rig, start, start_prepared, text};
use cxloe_system::pair::{Outcome, Pair, ensure, eventually, failed_with, succeeded};

/// Python program that repeatedly scans and checks its memory, until the file `stop` exists.
const WORKING: &str = "
import os, sys
blocks = [bytearray(4096) for _ in range(4000)]
generation = 0
while True:
    for number, block in enumerate(blocks):
        if generation and (block[0] != generation % 251 or block[4000] != number % 251):
            sys.exit(f'block {number} is not as it was in generation {generation}')
        block[0], block[4000] = (generation + 1) % 251, number % 251
    generation += 1
    print('generation', generation, flush=True)
    if os.path.exists('stop'):
        print('done', flush=True)
        sys.exit(7)
";

fn working(rig: &Pair, more: &[&str]) -> Outcome<Running> {
    let running = start(rig, Sizes(64, 4), more, &["/usr/bin/python3", "-c", WORKING])?;
    running.output_text("generation 2\n")?;
    Ok(running)
}

fn exec(rig: &Pair, command: &[&str]) -> Outcome<std::process::Output> {
    rig.cli(&[&["exec", "--size", "8M", "--local", "1M", "--"], command].concat())
}

pub fn what_cannot_be_served_is_refused() -> Outcome {
    let rig = Pair::bare()?;
    failed_with(&exec(&rig, &["/bin/true"])?, 3, &["agent.sock", "cn-agent run"])?;
    let fixed = compiled(&rig, "static", &["-static"])?;
    failed_with(&exec(&rig, &[text(&fixed)])?, 5, &["linked statically"])?;
    let script = rig.path("script");
    std::fs::write(&script, format!("#!{}\n", fixed.display()))?;
    failed_with(&exec(&rig, &[text(&script)])?, 1, &["cannot be run"])?;
    let sanitized = compiled(&rig, "sandbox", &["-fsanitize=address"])?;
    failed_with(&exec(&rig, &[text(&sanitized)])?, 5, &["AddressSanitizer", "without"])?;
    failed_with(&exec(&rig, &["no-such-program"])?, 4, &["no-such-program", "PATH"])?;
    failed_with(&rig.cli(&["set-local", "1", "1M"])?, 3, &["agent.sock"])?;

    rig.start_gmm()?;
    rig.start_agent(&[])?;
    // No memory node has as much memory as requested.
    failed_with(&exec(&rig, &["/bin/true"])?, 5, &["refused"])?;
    rig.start_mn("anon")?;
    failed_with(&rig.cli(&["exec", "--size", "8M", "--local", "4K", "--", "/bin/true"])?, 5, &["too low"])?;
    let none = rig.cli(&["exec", "--region", "none", "--local", "1M", "--", "/bin/true"])?;
    failed_with(&none, 4, &["no region none is attached", "cn-agent list"])?;
    failed_with(&rig.cli(&["set-local", "1", "1M"])?, 4, &["cn-agent paging"])?;
    nothing_is_left(&rig)?;

    // A preloaded file with a name of valgrind's stands for valgrind. The dynamic linker ignores that the
    // file is missing.
    let running = start_prepared(&rig, Sizes(8, 1), &[], &["/bin/true"], |exec| {
        exec.env("LD_PRELOAD", "/none/vgpreload_core.so");
    })?;
    let ended = running.wait()?;
    let told = ended.err.contains("runs under valgrind");
    ensure(told && ended.status.code() == Some(75), format!("{}: {}", ended.status, ended.err))?;

    // A statically linked program runs with local memory if another program starts it.
    let command = ["/bin/sh", "-c", &format!("{} && echo went on", fixed.display())];
    let output_text = succeeded(exec(&rig, &command)?)?;
    ensure(output_text == "static\nwent on\n", output_text)?;
    nothing_is_left(&rig)
}

/// `cn-agent exec` names, at the end, each executed program that had only local memory, or refuses to execute it.
/// Programs with remote memory are not named.
pub fn programs_with_local_memory_are_named() -> Outcome {
    let rig = rig()?;
    let fixed = compiled(&rig, "static", &["-static"])?;
    let fixed = text(&fixed);
    let script = format!(
        "/bin/true; {fixed}; {fixed}; env -i /bin/echo apart; cd {}; exec ./static",
        rig.dir.path().display()
    );
    let command = ["/bin/sh", "-c", &script];
    let ended = start(&rig, Sizes(8, 1), &[], &command)?.wait()?.well()?;
    ensure(ended.text() == "static\nstatic\napart\nstatic\n", ended.text())?;
    for line in [
        format!("executed {fixed} with memory of this machine alone: it is linked statically (2 times)\n"),
        "executed ./static with memory of this machine alone: it is linked statically\n".into(),
        "executed /bin/echo with memory of this machine alone: its environment lacks LD_PRELOAD".into(),
    ] {
        ensure(ended.err.contains(&line), format!("{line:?} is not in {:?}", ended.err))?;
    }
    ensure(!ended.err.contains("true"), ended.err)?;

    // The parent forbids the preloaded library's system calls by a filter, which must not end the program: it
    // runs with local memory.
    let sandbox = compiled(&rig, "sandbox", &[])?;
    let command = [text(&sandbox), "/bin/echo", "sandboxed"];
    let ended = start(&rig, Sizes(8, 1), &[], &command)?.wait()?.well()?;
    let line = "executed /bin/echo with memory of this machine alone: a system call filter";
    ensure(
        ended.text() == "sandboxed\n" && ended.err.contains(line),
        format!("{} {}", ended.text(), ended.err),
    )?;

    // Without direct I/O being refused, nothing names the program, but the filter must not end it either.
    let ended = start(&rig, Sizes(8, 1), &["--allow-direct-io"], &command)?.wait()?.well()?;
    ensure(ended.text() == "sandboxed\n", format!("{} {}", ended.text(), ended.err))?;

    // The library reports from within a program that it cannot have remote memory. A preloaded file with a name of
    // valgrind's stands for valgrind.
    let checked = "LD_PRELOAD=/none/vgpreload_core.so:$LD_PRELOAD /bin/echo checked || echo refused";
    let ended = start(&rig, Sizes(8, 1), &[], &["/bin/sh", "-c", checked])?.wait()?.well()?;
    let line = "echo with memory of this machine alone: it runs under valgrind";
    ensure(
        ended.text() == "checked\n" && ended.err.contains(line),
        format!("{} {}", ended.text(), ended.err),
    )?;
    let ended = start(&rig, Sizes(8, 1), &["--require-remote"], &["/bin/sh", "-c", checked])?.wait()?;
    let refused = ended.text() == "refused\n" && ended.err.contains(line);
    ensure(refused && ended.status.code() == Some(5), format!("{} {}", ended.text(), ended.err))?;

    // With `--require-remote`, each execution with local memory fails, and so does the whole command.
    let script = format!("{fixed} || echo refused; env -i /bin/echo apart || echo refused too");
    let ended = start(&rig, Sizes(8, 1), &["--require-remote"], &["/bin/sh", "-c", &script])?.wait()?;
    ensure(ended.text() == "refused\nrefused too\n", format!("{} {}", ended.text(), ended.err))?;
    let named = ended.err.contains("may not execute") && ended.err.contains("--require-remote");
    ensure(named && ended.status.code() == Some(5), format!("{}: {}", ended.status, ended.err))?;
    let remote = start(&rig, Sizes(8, 1), &["--require-remote"], &["/bin/sh", "-c", "/bin/echo there"])?;
    ensure(remote.wait()?.well()?.text() == "there\n", "what has remote memory is executed")?;

    // A process that survives the kill of its supervisor can still execute programs.
    let script = format!(
        "(trap '' TERM HUP; echo ready; while ! test -e go; do sleep 0.05; done; {fixed} >done) & wait"
    );
    let running = start(&rig, Sizes(8, 1), &[], &["/bin/sh", "-c", &script])?;
    running.output_text("ready")?;
    nix::sys::signal::kill(Pid::from_raw(running.process.id().cast_signed()), Signal::SIGKILL)?;
    // `running` is kept until the end of the test: when it is dropped, it ends the rest of the process group.
    let mut running = running;
    running.process.wait(RUN_MAX)?;
    std::fs::write(rig.path("go"), "")?;
    eventually("what is left executes a program", || {
        std::fs::read(rig.path("done")).is_ok_and(|bytes| bytes == b"static\n")
    })?;
    nothing_is_left(&rig)
}

pub fn exit_codes_and_signals_pass_through() -> Outcome {
    let rig = rig()?;
    let failed = exec(&rig, &["/bin/sh", "-c", "echo out; echo err >&2; exit 42"])?;
    failed_with(&failed, 42, &["err"])?;
    ensure(failed.stdout == b"out\n", "standard output is the program's")?;
    failed_with(&exec(&rig, &["/bin/sh", "-c", "kill -9 $$"])?, 137, &[])?;

    let script = "trap 'echo asked to end; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let running = start(&rig, Sizes(8, 1), &[], &["/bin/sh", "-c", script])?;
    running.output_text("ready")?;
    nix::sys::signal::kill(Pid::from_raw(running.process.id() as i32), Signal::SIGTERM)?;
    let ended = running.wait()?;
    ensure(ended.status.code() == Some(3), format!("{}: {}", ended.status, ended.err))?;
    ensure(ended.text() == "ready\nasked to end\n", ended.text())?;
    nothing_is_left(&rig)?;

    // When the supervisor is killed, the program receives SIGTERM, even if the supervisor was answering one
    // of the program's calls at that moment.
    let executes = script.replace("sleep 0.05", "/bin/true");
    let scripts = [script].into_iter().chain([executes.as_str(); 24]);
    for (round, script) in scripts.enumerate() {
        let running = start(&rig, Sizes(8, 1), &[], &["/bin/sh", "-c", script])?;
        running.output_text("ready")?;
        std::thread::sleep(Duration::from_millis(round as u64));
        nix::sys::signal::kill(Pid::from_raw(running.process.id() as i32), Signal::SIGKILL)?;
        running.output_text("asked to end")?;
    }
    eventually("its memory is given up", || {
        client::paging(&rig.socket(), None).ok()?.is_empty().then_some(())
    })
}

/// A supervisor that may not send signals to its program, which has become another user's, goes on all the same.
pub fn signals_that_are_not_permitted_end_nothing() -> Outcome {
    let rig = rig()?;
    for (place, mode) in [(rig.dir.path().to_path_buf(), 0o755), (rig.socket(), 0o666)] {
        std::fs::set_permissions(place, PermissionsExt::from_mode(mode))?;
    }
    let script = "echo ready; while ! test -e go; do sleep 0.05; done; echo done";
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/bin/sh", "-c", script];
    let running = start_prepared(&rig, Sizes(16, 1), &[], &user, |exec| {
        let mut bounded = Command::new("setpriv");
        bounded.arg("--bounding-set=-kill").arg(exec.get_program()).args(exec.get_args());
        *exec = bounded;
    })?;
    running.output_text("ready")?;
    nix::sys::signal::kill(Pid::from_raw(running.process.id().cast_signed()), Signal::SIGTERM)?;
    eventually("it is told", || running.err().contains("SIGTERM does not reach process").then_some(()))?;
    std::fs::write(rig.path("go"), "")?;
    let ended = running.wait()?.well()?;
    ensure(ended.text() == "ready\ndone\n", ended.text())?;
    nothing_is_left(&rig)
}

pub fn the_limit_changes_while_it_runs() -> Outcome {
    let rig = rig()?;
    let running = working(&rig, &[])?;
    let view = || client::paging(&rig.socket(), None).ok()?.pop();
    let space = view().ok_or("its space is shown")?;
    ensure(space.limit == 4 * MIB && space.resident <= 4 * MIB, format!("{space:?}"))?;
    let pid = space.members.first().map_or(0, |member| member.pid).to_string();
    succeeded(rig.cli(&["set-local", &pid, "40M"])?)?;
    eventually("more is resident", || (view()?.resident > 12 * MIB).then_some(()))?;
    succeeded(rig.cli(&["set-local", &space.space.to_string(), "2M"])?)?;
    eventually("less is resident", || (view()?.resident <= 2 * MIB).then_some(()))?;
    std::fs::write(rig.path("stop"), "")?;
    let ended = running.wait()?;
    ensure(ended.status.code() == Some(7), format!("{}: {}", ended.status, ended.err))?;
    nothing_is_left(&rig)
}

pub fn a_killed_agent_is_taken_over_from() -> Outcome {
    let rig = rig()?;
    let running = working(&rig, &[])?;
    for _ in 0..2 {
        rig.kill("agent")?;
        rig.start_agent(&["--wait", "sleep"])?;
        let output_text = running.out().len();
        eventually("the program goes on", || (running.out().len() > output_text + 40).then_some(()))
            .map_err(|error| format!("{error:?}; it said: {}", running.err()))?;
    }
    std::fs::write(rig.path("stop"), "")?;
    let ended = running.wait()?;
    ensure(ended.status.code() == Some(7), format!("{}: {}", ended.status, ended.err))?;
    nothing_is_left(&rig)
}

/// If the memory node ends for good, the program's last message names the memory node, and the remedy.
pub fn lost_data_is_explained_by_the_programs_last_line() -> Outcome {
    cxloe_lab::expect_error("has not answered within the limit");
    cxloe_lab::expect_error("a page is given up");
    let rig = rig()?;
    let running = working(&rig, &["--lost-wait", "1s"])?;
    rig.kill("mn")?;
    let ended = running.wait()?;
    ensure(ended.status.code() == Some(128 + 7), format!("{}: {}", ended.status, ended.err))?;
    let last = ended.err.lines().rfind(|line| !line.starts_with("cn-agent: ")).unwrap_or_default();
    for words in
        ["cxloe: process ", "SIGBUS at address 0x", "region exec-", cxloe_system::pair::MN, "`gmm list -M`"]
    {
        ensure(last.contains(words), format!("no {words:?} in its last line: {}", ended.err))?;
    }
    Ok(())
}

pub fn without_a_successor_programs_end() -> Outcome {
    let rig = rig()?;
    let running = working(&rig, &["--wait", "1s"])?;
    rig.kill("agent")?;
    let ended = running.wait()?;
    ensure(ended.status.code() == Some(75), format!("{}: {}", ended.status, ended.err))?;
    ensure(ended.err.contains("the agent that serves its memory has ended"), ended.err)
}

/// Only the agent has a record of a child that was created without `fork(3)` and has not allocated memory. After the
/// agent is killed, the child's accesses to its memory give errors, not zeros.
pub fn a_child_that_only_a_dead_agent_knew_gets_no_zeros() -> Outcome {
    let rig = rig()?;
    let program = compiled(&rig, "orphan", &[])?;
    let running = start(&rig, Sizes(64, 1), &["--wait", "10s"], &[text(&program)])?;
    running.output_text("waiting\n")?;
    // The child runs as soon as the agent has read its fork event, so the test waits for the agent's own count.
    eventually("the agent knows the child", || {
        let members = client::paging(&rig.socket(), None).ok()?.pop()?.members;
        members.iter().any(|member| member.pid == 0).then_some(())
    })?;
    rig.kill("agent")?;
    std::fs::write(rig.path("go"), "")?;
    running.output_text("refused\n")?;
    ensure(running.err().contains("the agent has ended"), running.err())?;
    running.wait().map(drop)
}

/// An ordinary user's agent may not follow forks, and reports that instead of serving only a part of each program.
pub fn an_ordinary_users_agent_says_what_it_lacks() -> Outcome {
    let rig = rig()?;
    let refused = exec(&rig, &["/bin/true"])?;
    ensure(!refused.status.success(), "it is refused")?;
    let output_text = String::from_utf8_lossy(&refused.stderr);
    ensure(output_text.contains("CAP_SYS_PTRACE") || output_text.contains("userfaultfd"), output_text)?;
    nothing_is_left(&rig)
}

/// An agent that cannot see the program's process reports that, with a remedy.
pub fn another_pid_namespace_is_named() -> Outcome {
    let rig = rig()?;
    rig.stop("agent")?;
    let mut apart = Command::new("unshare");
    apart.args(["--pid", "--fork", "--kill-child"]).arg(cxloe_lab::program("cn-agent")?);
    apart.args(rig.agent_arguments("agent", &["--wait", "sleep"]));
    let log = rig.path("apart.log");
    cxloe_lab::Process::log_to(&mut apart, &log)?;
    let _agent = rig.lab.spawn("cn", apart)?;
    eventually("the agent serves", || client::node(&rig.socket()).ok())?;
    let refused = eventually("there is a session", || {
        let output = exec(&rig, &["/bin/true"]).ok()?;
        (output.status.code() == Some(5)).then_some(output)
    })?;
    failed_with(&refused, 5, &["another PID namespace", "--pid=host"])
}
