//! `cn-agent top` in a real terminal with a real agent, and its output to a pipe.

use std::process::ExitCode;
use std::time::Duration;

use cxloe_cn::top::terminal::live;
use cxloe_cn::top::view::View;
use cxloe_lab::program;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::fabric::rig;
use super::terminal::Terminal;
use cxloe_system::copies::ROLE;
use cxloe_system::pair::*;

/// Starts the live view in the terminal's shell; writes its process id to the file `pid`.
fn started(rig: &Pair, terminal: &Terminal, interval: &str) -> Outcome {
    let (program, socket, pid) = (program("cn-agent")?, rig.socket(), rig.path("pid"));
    let (program, socket, pid) = (program.display(), socket.display(), pid.display());
    terminal
        .command(&format!("sh -c 'echo $$ > {pid}; exec {program} top --socket {socket} -i {interval}'"))?;
    terminal.shows(&["cn-agent top", "regions", "sessions", "q end"]).map(drop)
}

pub fn the_live_view_shows_an_agent_at_work() -> Outcome {
    let rig = rig()?;
    drop(rig.written(1)?);
    let terminal = Terminal::open(rig.dir.path(), 130, 30)?;
    terminal.command("echo before")?;
    terminal.shows(&["before"])?;
    started(&rig, &terminal, "200ms")?;
    let screen = terminal.shows(&[
        "scratch",
        "4MiB",
        "active",
        "mn0",
        "open",
        "cn-agent top  agent",
        "link packet",
        "phase",
        "every 200",
    ])?;
    ensure(!screen.contains("before"), format!("the shell's screen shines through:\n{screen}"))?;
    ensure(terminal.state()? == (true, false), "a screen of its own, without a cursor")?;

    // The view shows accesses to lines and pages.
    let socket = rig.socket();
    let busy = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let working = std::sync::Arc::clone(&busy);
    let hpa = rig.attached("scratch", "active")?.hpa;
    let worker = std::thread::spawn(move || -> Result<(), String> {
        let mut port = cxloe_client::client::Client::connect(&socket).map_err(|e| e.to_string())?;
        while working.load(std::sync::atomic::Ordering::Relaxed) {
            port.read(hpa).map_err(|e| e.to_string())?;
        }
        Ok(())
    });
    let seen = terminal.until("lines are read", |screen| {
        screen.lines().any(|line| line.starts_with("lines") && line.contains("hit 100.0%"))
    });
    busy.store(false, std::sync::atomic::Ordering::Relaxed);
    worker.join().map_err(|_| "the worker panicked")??;
    seen?;

    terminal.key("s")?;
    terminal.shows(&["sort (name)"])?;
    terminal.key("r")?;
    terminal.shows(&["sort (name, reversed)"])?;
    terminal.key("+")?;
    terminal.shows(&["every 100"])?;
    terminal.key("Space")?;
    terminal.shows(&["paused", "space go on"])?;
    terminal.key("Space")?;
    terminal.key("?")?;
    terminal.shows(&["sort by rate, name, size, trouble"])?;
    terminal.key("Escape")?;
    terminal.until("the help is gone", |screen| !screen.contains("sort by rate, name"))?;
    for (width, height) in [(60, 12), (80, 24), (200, 50)] {
        terminal.resize(width, height)?;
        terminal.until("the screen fits", |screen| {
            let lines: Vec<&str> = screen.lines().collect();
            let last = lines.iter().rposition(|line| line.starts_with("q end"));
            last == Some(usize::from(height) - 1) && lines[0].starts_with("cn-agent top")
        })?;
    }
    terminal.key("q")?;
    terminal.is_given_back()?;
    let screen = terminal.screen()?;
    ensure(screen.contains("before") && !screen.contains("q end"), format!("not as it was:\n{screen}"))
}

pub fn the_live_view_outlives_its_agent() -> Outcome {
    let rig = rig()?;
    let terminal = Terminal::open(rig.dir.path(), 130, 30)?;
    started(&rig, &terminal, "100ms")?;
    terminal.shows(&["scratch"])?;
    rig.kill("agent")?;
    // After the agent is killed, its last figures stay on the screen, marked as old.
    terminal.shows(&["no agent at", "these figures are", "trying again", "scratch"])?;
    rig.start_agent(&[])?;
    let back = terminal.until("it is connected again", |screen| !screen.contains("trying again"))?;
    ensure(back.contains("scratch"), back)?;
    terminal.key("C-c")?;
    terminal.is_given_back()?;

    // The view also restores the terminal when it is ended by a signal.
    terminal.command("clear")?;
    started(&rig, &terminal, "100ms")?;
    let pid = std::fs::read_to_string(rig.path("pid"))?.trim().parse()?;
    kill(Pid::from_raw(pid), Signal::SIGTERM)?;
    terminal.is_given_back()
}

pub fn scripts_get_text_and_json() -> Outcome {
    let rig = rig()?;
    drop(rig.written(1)?);
    let text = succeeded(rig.cli(&["top", "--once", "-i", "200ms"])?)?;
    for words in ["scratch", "mn0", "open", "hit", "p50"] {
        ensure(text.contains(words), format!("no {words} in\n{text}"))?;
    }
    ensure(!text.contains('\u{1b}') && !text.contains("q end"), format!("not for files:\n{text}"))?;
    let line = succeeded(rig.cli(&["top", "--once", "--json", "-i", "200ms"])?)?;
    let figures: Value = serde_json::from_str(&line)?;
    ensure(figures["regions"][0]["region"] == "scratch", line.clone())?;
    ensure(
        figures["sessions"][0]["peer"] == MN && figures["interval_ns"].as_u64() >= Some(200_000_000),
        line,
    )?;
    failed_with(&rig.cli(&["top"])?, 2, &["terminal", "--once"])?;
    failed_with(&rig.cli(&["top", "-i", "1ms"])?, 2, &["100ms to 60s"])?;
    rig.stop("agent")?;
    failed_with(&rig.cli(&["top", "--once"])?, 3, &["agent.sock"])
}

/// Runs, as a role of the test program, a live view with a fake agent that makes the view panic.
pub fn play() -> ExitCode {
    let mut asked = 0;
    let take = move || {
        asked += 1;
        assert!(asked < 5, "as it was told to");
        Err("an agent that is not there".to_owned())
    };
    let view = View { interval: Duration::from_millis(100), ..View::default() };
    let ended = live(take, view);
    eprintln!("ended: {ended:?}");
    ExitCode::from(if ended.is_err() { 7 } else { 0 })
}

pub fn a_panic_gives_the_terminal_back() -> Outcome {
    let dir = tempfile::tempdir()?;
    let terminal = Terminal::open(dir.path(), 100, 24)?;
    let own = std::env::current_exe()?;
    terminal.command(&format!("{ROLE}=top_panics {}; echo status $?", own.display()))?;
    terminal.shows(&["as it was told to", "status 7"])?;
    terminal.is_given_back()
}
