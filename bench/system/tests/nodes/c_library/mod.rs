//! The C library: its example is compiled against the header, linked with the shared and with the static library, and
//! run against real daemons, through the agent and over a link of its own. Programs in C and in Go map a region inline
//! into threads whose signal stacks are their own affair.

#[allow(dead_code, reason = "the rig serves several test programs")]
mod threads;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cxloe_lab::{Process, program};
use cxloe_system::pair::*;
use cxloe_system::{Failed, Test};

/// A quarter of the region.
const LOCAL: u64 = REGION / 4;
const RUN_MAX: Duration = Duration::from_secs(60);

pub fn tests(_: cxloe_lab::Standing) -> Vec<Test> {
    let mut tests = Vec::new();
    for linked in [Linked::Shared, Linked::Static] {
        tests.push(Test::new(format!("{linked:?}::through_the_agent"), move || through_the_agent(linked)));
    }
    tests.push(Test::new("inline_over_its_own_link", inline_over_its_own_link));
    tests.push(Test::new("what_failed_leaves_nothing_and_children_say_why_they_end", again));
    tests.push(Test::new("threads_of_c_with_any_signal_stack", threads::of_c));
    tests.push(Test::new("threads_of_go", threads::of_go));
    tests.push(Test::new("programs_say_what_they_will_need", programs_say_what_they_will_need));
    tests.push(Test::new("errors_are_said_in_words", errors_are_said_in_words));
    tests.push(Test::new("the_header_is_plain_c_and_cpp", the_header_is_plain_c_and_cpp));
    tests
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Linked {
    Shared,
    Static,
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cn-agent/c").join(name)
}

/// The folder of the libraries.
fn libraries() -> Result<PathBuf, Failed> {
    Ok(program("cn-agent")?.parent().ok_or("programs lie in a folder")?.to_path_buf())
}

/// Compiles the example; where it is.
fn compile(folder: &Path, linked: Linked) -> Result<PathBuf, Failed> {
    compile_from(&source("examples/records.c"), &folder.join(format!("records-{linked:?}")), linked)
}

/// Compiles a program; where it is.
fn compile_from(source_file: &Path, to: &Path, linked: Linked) -> Result<PathBuf, Failed> {
    let libraries = libraries()?;
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-I"]).arg(source("include"));
    cc.arg(source_file).arg("-o").arg(to);
    match linked {
        Linked::Shared => {
            cc.arg("-L").arg(&libraries).arg("-lcxloe");
            cc.arg(format!("-Wl,-rpath,{}", libraries.display()))
        }
        Linked::Static => cc.arg(libraries.join("libcxloe.a")).args(["-lm", "-lpthread", "-ldl"]),
    };
    let output = cc.output()?;
    ensure(output.status.success(), String::from_utf8_lossy(&output.stderr))?;
    Ok(to.to_path_buf())
}

/// Runs the example as a process of the compute node; what it says.
fn run_example(rig: &Pair, example: &Path, arguments: &[&str], code: i32) -> Outcome<String> {
    let log = rig.path("example.log");
    let mut command = Command::new(example);
    command.args(arguments).env("CXLOE_AGENT", rig.socket()).env("CXLOE_DATA_DIR", rig.path("nobody"));
    Process::log_to(&mut command, &log)?;
    let mut process = rig.lab.spawn("cn", command)?;
    let status = process.wait(RUN_MAX)?;
    let said = std::fs::read_to_string(&log)?;
    ensure(status.code() == Some(code), format!("{status}: {said}"))?;
    Ok(said)
}

/// The number in front of a word of what the example says.
fn count(said: &str, of: &str) -> Outcome<u64> {
    let words: Vec<&str> = said.split([' ', ',']).collect();
    let at = words.iter().position(|word| *word == of).ok_or_else(|| format!("no {of} in: {said}"))?;
    Ok(words[at - 1].parse()?)
}

fn through_the_agent(linked: Linked) -> Outcome {
    let rig = Pair::with_region("anon", &[])?;
    let example = compile(rig.dir.path(), linked)?;
    let said = run_example(&rig, &example, &["scratch", &LOCAL.to_string()], 0)?;
    let pages = REGION / 4096;
    ensure(count(&said, "pages")? == pages, &said)?;
    ensure(count(&said, "evicted")? > pages && count(&said, "faults")? > 0, &said)?;
    // Two passes wrote one line of each page.
    let lines = count(&said, "lines")?;
    ensure((pages..8 * pages).contains(&lines), &said)
}

fn inline_over_its_own_link() -> Outcome {
    let rig = Pair::bare()?;
    let example = compile(rig.dir.path(), Linked::Shared)?;
    let said = run_inline(&rig, &example)?;
    ensure(count(&said, "pages")? == REGION / 4096 && count(&said, "evicted")? > 0, &said)
}

/// After a mapping that failed the next one is made at once; a second one on the interface is refused by name; a child that
/// touches its parent's says why it ends.
fn again() -> Outcome {
    let rig = Pair::bare()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nodes/c_library/again.c");
    let program = compile_from(&source, &rig.path("again"), Linked::Shared)?;
    let said = run_inline(&rig, &program)?;
    let why =
        said.lines().filter(|line| line.starts_with("cxloe: this process ends here of SIGSEGV")).count();
    ensure(said.ends_with("ok\n") && why == 1, &said)
}

/// Runs a program that maps the region of a fabric without an agent; what it says.
fn run_inline(rig: &Pair, example: &Path) -> Outcome<String> {
    rig.start_gmm()?;
    // The program says nothing of keys, and its frames are sealed.
    rig.start_mn_with("anon", &["--node-key", cxloe_system::text(&rig.path("mn.key"))])?;
    rig.create_region("scratch")?;
    run_example(rig, example, &["scratch", &LOCAL.to_string(), "cn0", &rig.manager_url()], 0)
}

/// By `cxloe_hint`: the program looks at what the agent counts.
fn programs_say_what_they_will_need() -> Outcome {
    let rig = Pair::with_region("anon", &[])?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nodes/c_library/hints.c");
    let program = compile_from(&source, &rig.path("hints"), Linked::Shared)?;
    let said = run_example(&rig, &program, &["scratch", &LOCAL.to_string()], 0)?;
    let pages = LOCAL / 4096 / 2;
    ensure(count(&said, "pages")? == pages && count(&said, "ahead")? >= pages - pages / 8, &said)
}

fn errors_are_said_in_words() -> Outcome {
    let rig = Pair::with_region("anon", &[])?;
    let example = compile(rig.dir.path(), Linked::Shared)?;
    let started = Instant::now();
    let said = run_example(&rig, &example, &["scratch", "1048576", "cn0", "http://127.0.0.1:9"], 1)?;
    ensure(said.contains("map:") && said.contains("127.0.0.1:9"), &said)?;
    ensure(started.elapsed() < RUN_MAX, "in bounded time")?;
    let said = run_example(&rig, &example, &["scratch", "1048576", "nothere0", &rig.manager_url()], 1)?;
    ensure(said.contains("nothere0"), &said)
}

fn the_header_is_plain_c_and_cpp() -> Outcome {
    let folder = tempfile::tempdir()?;
    for (compiler, standard, name) in [("cc", "-std=c99", "header.c"), ("c++", "-std=c++11", "header.cpp")] {
        let file = folder.path().join(name);
        std::fs::write(&file, "#include <cxloe.h>\nint main(void) { return cxloe_size(0) != 0; }\n")?;
        let mut check = Command::new(compiler);
        check.args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"]);
        let output = check.arg(source("include")).arg(&file).output()?;
        ensure(output.status.success(), String::from_utf8_lossy(&output.stderr))?;
    }
    Ok(())
}
