//! The C library: its example program is compiled against the header, linked with the shared and with the static
//! library, and run with real daemons, through the agent and over the program's own link. Programs in C and in Go map a
//! region inline, and their threads have signal stacks of their own.

#[allow(dead_code, reason = "the rig serves several test programs")]
mod threads;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cxloe_lab::{Process, program};
use cxloe_system::command::output;
use cxloe_system::pair::*;
use cxloe_system::{Failed, Test};

/// Limit on resident bytes, a quarter of the region.
const LOCAL: u64 = REGION / 4;
const RUN_MAX: Duration = Duration::from_secs(60);

pub fn tests(_: cxloe_lab::LabPrivilege) -> Vec<Test> {
    let mut tests = Vec::new();
    for linked in [Linked::Shared, Linked::Static] {
        tests.push(Test::new(format!("{linked:?}::through_the_agent"), move || through_the_agent(linked)));
    }
    tests.push(Test::new("inline_over_its_own_link", inline_over_its_own_link));
    tests.push(Test::new("programs_seal_under_a_pre_shared_key", programs_seal_under_a_pre_shared_key));
    tests.push(Test::new("what_failed_leaves_nothing_and_children_say_why_they_end", again));
    tests.push(Test::new("two_regions_inline_over_one_interface", two));
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

/// Folder with the shared and the static library.
fn libraries() -> Result<PathBuf, Failed> {
    Ok(program("cn-agent")?.parent().ok_or("programs lie in a folder")?.to_path_buf())
}

/// Compiles the example program; returns the path of the executable.
fn compile(folder: &Path, linked: Linked) -> Result<PathBuf, Failed> {
    compile_from(&source("examples/records.c"), &folder.join(format!("records-{linked:?}")), linked)
}

/// Compiles a C program to `to`; returns the path of the executable.
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

/// Runs the example program on the compute node, where it has to end with `code`; returns its output.
fn run_example(rig: &Pair, example: &Path, arguments: &[&str], code: i32) -> Outcome<String> {
    run_with(rig, example, arguments, &[], code)
}

/// Like [`run_example`], with further variables in the environment.
fn run_with(
    rig: &Pair,
    example: &Path,
    arguments: &[&str],
    variables: &[(&str, &Path)],
    code: i32,
) -> Outcome<String> {
    let log = rig.path("example.log");
    let mut command = Command::new(example);
    command.args(arguments).env("CXLOE_AGENT", rig.socket()).env("CXLOE_DATA_DIR", rig.path("nobody"));
    command.envs(variables.iter().copied());
    Process::log_to(&mut command, &log)?;
    let mut process = rig.lab.spawn("cn", command)?;
    let status = process.wait(RUN_MAX)?;
    let output_text = std::fs::read_to_string(&log)?;
    ensure(status.code() == Some(code), format!("{status}: {output_text}"))?;
    Ok(output_text)
}

/// Number that precedes the word `of` in the example program's output.
fn count(output_text: &str, of: &str) -> Outcome<u64> {
    let words: Vec<&str> = output_text.split([' ', ',']).collect();
    let at = words.iter().position(|word| *word == of).ok_or_else(|| format!("no {of} in: {output_text}"))?;
    Ok(words[at - 1].parse()?)
}

fn through_the_agent(linked: Linked) -> Outcome {
    let rig = Pair::with_region("anon", &[])?;
    let example = compile(rig.dir.path(), linked)?;
    let output_text = run_example(&rig, &example, &["scratch", &LOCAL.to_string()], 0)?;
    let pages = REGION / 4096;
    ensure(count(&output_text, "pages")? == pages, &output_text)?;
    ensure(count(&output_text, "evicted")? > pages && count(&output_text, "faults")? > 0, &output_text)?;
    // The example program passes over all pages twice, and writes one line of each page in each pass.
    let lines = count(&output_text, "lines")?;
    ensure((pages..8 * pages).contains(&lines), &output_text)
}

fn inline_over_its_own_link() -> Outcome {
    let rig = Pair::bare()?;
    let example = compile(rig.dir.path(), Linked::Shared)?;
    let output_text = run_inline(&rig, &example)?;
    ensure(
        count(&output_text, "pages")? == REGION / 4096 && count(&output_text, "evicted")? > 0,
        &output_text,
    )
}

/// Programs in C and in Rust seal their frames under the key that the memory node has been given. A program without it
/// gets no session, and its message says how to name the key.
fn programs_seal_under_a_pre_shared_key() -> Outcome {
    let rig = Pair::bare()?;
    let example = compile(rig.dir.path(), Linked::Shared)?;
    let key = rig.path("key");
    std::fs::write(&key, "a key that both ends were given beforehand\n")?;
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600))?;
    rig.start_gmm()?;
    rig.start_mn_with("anon", &["--key-file", text(&key)])?;
    rig.create_region("scratch")?;
    let (local, manager) = (LOCAL.to_string(), rig.manager_url());
    let arguments = ["scratch", &local, "cn0", &manager];
    let output_text = run_with(&rig, &example, &arguments, &[("CXLOE_KEY_FILE", key.as_path())], 0)?;
    ensure(count(&output_text, "pages")? == REGION / 4096, &output_text)?;

    let mut verify = Command::new(program("cxloe-bench")?);
    verify.args(["verify", "-i", "cn0", "--link", "packet", "--manager", &manager, "--size", "2M"]);
    verify.args(["--no-echo", "--json", "--key-file", text(&key), "--data-dir", text(&rig.path("nobody"))]);
    let output_text = succeeded(rig.lab.enter("cn", || output(&mut verify))??)?;
    ensure(output_text.contains("\"frames\": \"sealed (pre-shared)\""), &output_text)?;

    let output_text = run_with(&rig, &example, &arguments, &[], 1)?;
    ensure(output_text.contains("CXLOE_KEY_FILE"), &output_text)
}

/// After a failed mapping the next mapping succeeds at once; a child that accesses its parent's mapping ends with a
/// message.
fn again() -> Outcome {
    let rig = Pair::bare()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nodes/c_library/again.c");
    let program = compile_from(&source, &rig.path("again"), Linked::Shared)?;
    let output_text = run_inline(&rig, &program)?;
    let why = output_text
        .lines()
        .filter(|line| line.starts_with("cxloe: this process ends here of SIGSEGV"))
        .count();
    ensure(output_text.ends_with("ok\n") && why == 1, &output_text)
}

/// One program maps two regions over one interface, which no other program can then use.
fn two() -> Outcome {
    let rig = Pair::bare()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nodes/c_library/two.c");
    let program = compile_from(&source, &rig.path("two"), Linked::Shared)?;
    let another = compile(rig.dir.path(), Linked::Shared)?;
    serve(&rig, &["scratch", "other"])?;
    let local = (REGION / 16).to_string();
    let arguments = ["scratch", &local, "cn0", &rig.manager_url(), "other", cxloe_system::text(&another)];
    let output_text = run_example(&rig, &program, &arguments, 0)?;
    ensure(output_text.ends_with("ok\n"), &output_text)
}

/// Runs a program that maps the fabric's region without an agent; returns the program's output.
fn run_inline(rig: &Pair, example: &Path) -> Outcome<String> {
    serve(rig, &["scratch"])?;
    run_example(rig, example, &["scratch", &LOCAL.to_string(), "cn0", &rig.manager_url()], 0)
}

/// Starts a manager and a memory node, and creates regions for programs that have no keys configured and yet seal their
/// frames.
fn serve(rig: &Pair, regions: &[&str]) -> Outcome {
    rig.start_gmm()?;
    rig.start_mn_with("anon", &["--node-key", cxloe_system::text(&rig.path("mn.key"))])?;
    regions.iter().try_for_each(|name| rig.create_region(name).map(drop))
}

/// A program calls `cxloe_hint` and finds the effects in the agent's counters.
fn programs_say_what_they_will_need() -> Outcome {
    let rig = Pair::with_region("anon", &[])?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nodes/c_library/hints.c");
    let program = compile_from(&source, &rig.path("hints"), Linked::Shared)?;
    let output_text = run_example(&rig, &program, &["scratch", &LOCAL.to_string()], 0)?;
    let pages = LOCAL / 4096 / 2;
    ensure(
        count(&output_text, "pages")? == pages && count(&output_text, "ahead")? >= pages - pages / 8,
        &output_text,
    )
}

fn errors_are_said_in_words() -> Outcome {
    let rig = Pair::with_region("anon", &[])?;
    let example = compile(rig.dir.path(), Linked::Shared)?;
    let output_text = run_example(&rig, &example, &["scratch", "1048576", "cn0", "http://127.0.0.1:9"], 1)?;
    ensure(output_text.contains("map:") && output_text.contains("127.0.0.1:9"), &output_text)?;
    let output_text =
        run_example(&rig, &example, &["scratch", "1048576", "nothere0", &rig.manager_url()], 1)?;
    ensure(output_text.contains("nothere0"), &output_text)
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
