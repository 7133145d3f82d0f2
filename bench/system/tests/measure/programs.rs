//! `cxloe-bench programs` from its command line: the real program, with little work, with every kind of memory that
//! this machine has. The program itself compares each program's output, and fails if one differs; the tests check that
//! every program has its figures, that remote memory was really used, and that swap areas, groups and processes are
//! removed afterwards, also after Ctrl-C. The tests assert no speed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use cxloe_compare::programs::{MemoryBacking, absent_ways, programs};
use cxloe_lab::{LabPrivilege, program};
use cxloe_measure::report::Report;
use cxloe_system::{Failed, Outcome, Test, ensure, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Time limit on a whole run, on a busy machine.
const RUN_LIMIT: Duration = Duration::from_secs(240);
const PAGE: u64 = 4096;

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    let mut tests = vec![
        Test::new("what_is_missing_is_named", what_is_missing_is_named),
        Test::new("without_rights_only_local_memory_is_measured", move || others_are_left_out(standing)),
    ];
    if standing == LabPrivilege::Root {
        tests.push(Test::new("programs_in_every_way", || {
            in_every_way(&["sqlite", "lua", "graph-walk", "chase"])
        }));
        let all = || in_every_way(&programs().iter().map(|program| program.name).collect::<Vec<_>>());
        tests.push(Test::new("all_programs_in_every_way", all).long("programs of minutes"));
        tests.push(Test::new("the_standard_report_has_every_part", the_standard_report_has_every_part));
        tests.push(Test::new("an_interrupt_takes_swap_away", an_interrupt_takes_swap_away));
        tests.push(Test::new("a_run_that_takes_too_long_is_told", a_run_that_takes_too_long_is_reported));
    }
    tests
}

fn bench(folder: &Path, arguments: &[&str]) -> Result<Command, Failed> {
    let mut command = Command::new(program("cxloe-bench")?);
    command.arg("programs").args(arguments).current_dir(folder).env("TMPDIR", folder).stdin(Stdio::null());
    Ok(command)
}

fn output_text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}

/// Swap areas in use on this machine.
fn areas() -> BTreeSet<String> {
    let table = fs::read_to_string("/proc/swaps").unwrap_or_default();
    table.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// Control groups and devices that runs of the program have made and not removed.
fn made() -> BTreeSet<PathBuf> {
    let listed = |folder: &str| {
        let all = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        all.filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("cxloe-programs-") || name.starts_with("zram")
        })
        .collect::<Vec<_>>()
    };
    ["/sys/fs/cgroup/memory", "/sys/fs/cgroup", "/sys/block"].into_iter().flat_map(listed).collect()
}

fn in_every_way(only: &[&str]) -> Outcome {
    let folder = tempfile::tempdir()?;
    let before = (areas(), made());
    let forms = ["--json", "x.json", "--csv", "x.csv", "--html", "x.html", "--swap-dir", "."];
    let usual = ["--scale", "10%", "--resident", "50%", "--limit", "480s"];
    let listed = only.join(",");
    let output = bench(folder.path(), &[&usual[..], &forms, &["--only", &listed]].concat())?.output()?;
    ensure(output.status.success(), format!("{}: {}", output.status, output_text(&output)))?;
    ensure((areas(), made()) == before, "areas of swap or groups are left")?;

    let path = folder.path().join("x.json");
    serde_json::from_slice::<Report>(&std::fs::read(&path)?)?;
    let json: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
    let figures = json["programs"]["figures"].as_array().ok_or("no figures")?;
    let absent: Vec<MemoryBacking> = absent_ways(&MemoryBacking::LIMITED, LabPrivilege::Root, folder.path())
        .into_iter()
        .map(|(way, _)| way)
        .collect();
    let ways = MemoryBacking::LIMITED.into_iter().filter(|way| !absent.contains(way));
    let ways: Vec<MemoryBacking> = [MemoryBacking::Local].into_iter().chain(ways).collect();
    ensure(ways.contains(&MemoryBacking::Exec), "nothing was remote")?;
    for one in programs().iter().filter(|one| only.contains(&one.name) && one.missing().is_none()) {
        for way in &ways {
            let of = |f: &&Value| f["program"] == one.name && f["way"] == way.name();
            let figure = figures.iter().find(of).ok_or_else(|| format!("no {way} of {}", one.name))?;
            // With swap, the kernel may kill the program because it finds no page to evict.
            let missed = figure["missed"].as_str().unwrap_or_default();
            if ![MemoryBacking::Local, MemoryBacking::Exec].contains(way)
                && missed.starts_with("the kernel ended it")
            {
                continue;
            }
            ensure(figure["seconds"].as_f64().unwrap_or(0.0) > 0.0, figure.to_string())?;
            ensure(figure["slowdown"].as_f64().unwrap_or(0.0) > 0.0, figure.to_string())?;
            let bytes = figure["footprint_bytes"].as_u64().unwrap_or(0);
            ensure(bytes > 1 << 20, format!("{figure}: it takes no memory"))?;
            if *way == MemoryBacking::Exec {
                // Only half of the memory may be resident, so a part of the pages has to be evicted.
                let left = figure["paging"]["evicted"].as_u64().unwrap_or(0);
                ensure(left > bytes / PAGE / 8, format!("{figure}: nothing was remote"))?;
            }
        }
    }
    for way in absent {
        ensure(output_text(&output).contains(&format!("left out: {way}")), output_text(&output))?;
    }
    ensure(fs::read_to_string(folder.path().join("x.csv"))?.lines().count() == figures.len() + 1, "the CSV")?;
    let page = fs::read_to_string(folder.path().join("x.html"))?;
    ensure(page.matches("<svg").count() >= only.len() && page.contains("chase"), "the page")?;
    let mut left: Vec<_> = fs::read_dir(folder.path())?.flatten().map(|entry| entry.file_name()).collect();
    left.sort();
    ensure(left == ["x.csv", "x.html", "x.json"], format!("left behind: {left:?}"))
}

/// The standard report, with little work, includes each part, also the probes or the reason for which they are missing.
fn the_standard_report_has_every_part() -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut command = Command::new(program("cxloe-bench")?);
    command.args(["report", "--trials", "1", "--operations", "250", "--only", "chase", "--scale", "5%"]);
    command.args(["--resident", "50%", "--probe", "--json", "x.json", "--html", "x.html"]);
    let output =
        command.current_dir(folder.path()).env("TMPDIR", folder.path()).stdin(Stdio::null()).output()?;
    ensure(output.status.success(), format!("{}: {}", output.status, output_text(&output)))?;
    let path = folder.path().join("x.json");
    let report = serde_json::from_slice::<Report>(&std::fs::read(&path)?)?;
    for name in ["echo64", "read64", "read64_load70", "fetch4k", "uffd_floor4k", "uffd_inline_floor4k"] {
        ensure(report.result(name).is_some_and(|times| times.count > 0), format!("no {name}"))?;
    }
    for name in ["stream64", "stream64_write", "burst_read", "burst_write"] {
        let ends = report.costs.iter().filter(|cost| cost.name == name && cost.cycles_per_operation > 0.0);
        ensure(ends.count() == 2, format!("{name}: {:?}", report.costs))?;
    }
    let json: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
    let of = |part: &Value| part.as_array().map_or(0, Vec::len);
    ensure(of(&json["programs"]["figures"]) >= 2, json["programs"].to_string())?;
    let (beside, unused) = (of(&json["probes"]["beside"]), of(&json["probes"]["left_out"]));
    ensure(beside > 0 || unused > 0, json["probes"].to_string())?;
    let page = fs::read_to_string(folder.path().join("x.html"))?;
    ensure(page.contains("Cycles") && page.contains("Programs") && page.contains("<svg"), "the page")
}

fn what_is_missing_is_named() -> Outcome {
    let folder = tempfile::tempdir()?;
    let refused = bench(folder.path(), &["--only", "chase,emacs"])?.output()?;
    let words = "no program is called `emacs`; there are numpy-sort";
    ensure(!refused.status.success() && output_text(&refused).contains(words), output_text(&refused))?;
    for wrong in [["--resident", "50"], ["--ways", "tape"], ["--scale", "2"]] {
        let refused = bench(folder.path(), &wrong)?.output()?;
        ensure(refused.status.code() == Some(2), output_text(&refused))?;
    }
    // The run finds none of the programs on the PATH.
    let list =
        bench(folder.path(), &["--list", "--swap-dir", "/dev/shm"])?.env("PATH", folder.path()).output()?;
    ensure(list.status.success(), output_text(&list))?;
    for program in programs() {
        ensure(output_text(&list).contains(program.name), output_text(&list))?;
    }
    for way in MemoryBacking::LIMITED {
        ensure(output_text(&list).contains(way.name()), output_text(&list))
            .map_err(|error| format!("{error:?}: {way}"))?;
    }
    let memory = output_text(&list).contains("takes no swap")
        || output_text(&list).contains("sudo")
        || output_text(&list).contains("group");
    ensure(memory, output_text(&list))
}

/// For an ordinary user only local memory is measured, and the output names the kinds that are left out. For root the
/// same holds for swap on NBD without an NBD device.
fn others_are_left_out(standing: LabPrivilege) -> Outcome {
    let folder = tempfile::tempdir()?;
    let usual =
        ["--only", "chase", "--scale", "5%", "--resident", "50%", "--json", "x.json", "--swap-dir", "."];
    let ways: &[&str] = if standing == LabPrivilege::Root { &["--ways", "swap-nbd"] } else { &[] };
    // On a machine with an NBD device, root can measure swap on NBD, so no kind of memory would be left out.
    if standing == LabPrivilege::Root && Path::new("/sys/block/nbd0").exists() {
        return Ok(());
    }
    let output = bench(folder.path(), &[&usual[..], ways].concat())?.output()?;
    ensure(output.status.success(), format!("{}: {}", output.status, output_text(&output)))?;
    ensure(output_text(&output).contains("left out: swap-nbd"), output_text(&output))?;
    let json: Value = serde_json::from_str(&fs::read_to_string(folder.path().join("x.json"))?)?;
    let figures = json["programs"]["figures"].as_array().ok_or("no figures")?;
    let ways: Vec<&Value> = figures.iter().map(|figure| &figure["way"]).collect();
    ensure(ways == ["local"], format!("{figures:?}"))
}

/// Starts a run in its own process group, so that only the run receives signals.
fn started(folder: &Path, arguments: &[&str]) -> Result<Child, Failed> {
    let log = File::create(folder.join("log"))?;
    let mut command = bench(folder, arguments)?;
    Ok(command.stdout(log.try_clone()?).stderr(log).process_group(0).spawn()?)
}

fn ended(child: &mut Child) -> Result<Option<i32>, Failed> {
    let deadline = Instant::now() + RUN_LIMIT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        if Instant::now() > deadline {
            child.kill()?;
            return Err("it has not ended".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn an_interrupt_takes_swap_away() -> Outcome {
    let folder = tempfile::tempdir()?;
    if !absent_ways(&[MemoryBacking::SwapFile], LabPrivilege::Root, folder.path()).is_empty() {
        return Ok(());
    }
    let before = (areas(), made());
    // The run is a pointer chase that lasts until it is interrupted.
    let usual = [
        "--only",
        "chase",
        "--ways",
        "swap-file",
        "--resident",
        "25%",
        "--trials",
        "1000",
        "--swap-dir",
        ".",
    ];
    let mut child = started(folder.path(), &usual)?;
    let swaps = || (areas().len() > before.0.len()).then_some(());
    eventually("it swaps", swaps)?;
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT)?;
    let code = ended(&mut child)?;
    let log = fs::read_to_string(folder.path().join("log"))?;
    ensure(code == Some(130), format!("it ended with {code:?}: {log}"))?;
    ensure((areas(), made()) == before, format!("left behind: {:?} {:?}", areas(), made()))?;
    let left: Vec<_> = fs::read_dir(folder.path())?.flatten().map(|entry| entry.file_name()).collect();
    ensure(left == ["log"], format!("left behind: {left:?}"))
}

fn a_run_that_takes_too_long_is_reported() -> Outcome {
    let folder = tempfile::tempdir()?;
    let usual =
        ["--only", "chase", "--ways", "exec", "--resident", "10%", "--limit", "1s", "--json", "x.json"];
    let output = bench(folder.path(), &usual)?.output()?;
    ensure(output.status.success(), format!("{}: {}", output.status, output_text(&output)))?;
    ensure(output_text(&output).contains("> 1 s"), output_text(&output))?;
    let json: Value = serde_json::from_str(&fs::read_to_string(folder.path().join("x.json"))?)?;
    let figures = json["programs"]["figures"].as_array().ok_or("no figures")?;
    let remote = figures.iter().find(|figure| figure["way"] == "exec").ok_or("no figure")?;
    ensure(remote.get("seconds").is_none() && remote["trials"] == 0, remote.to_string())
}
