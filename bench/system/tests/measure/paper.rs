//! `cxloe-bench paper` from its command line: the real program in a lab of its own, with a tenth of the usual
//! operations, as root (over AF_XDP, and with the simulated figures) and as an ordinary user (over packet rings). Every
//! section has data, parts add up to totals, the page, the JSON and the CSV files agree, and no process or file is left
//! after an interrupt. The tests assert no speed.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cxloe_lab::{LabPrivilege, program};
use cxloe_measure::report::Report;
use cxloe_system::{Failed, Test};
use cxloe_system::{Outcome, ensure, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Time limit on a whole run, on a busy machine, in a build without optimisation.
const RUN_LIMIT: Duration = Duration::from_secs(240);
/// Names of the parts of a path, as in the paper.
const PARTS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Names of the results that divide a path's time into parts.
const BREAKDOWNS: [&str; 4] = ["fig9", "fig10", "fig9_window", "fig10_window"];
/// Names of the sections, and of the tables in each.
const SECTIONS: [(&str, &[&str]); 7] = [
    ("fig7", &["fig7"]),
    ("fig8", &["fig8", "fig9", "fig10", "fig9_window", "fig10_window"]),
    ("table2", &["table2"]),
    ("fig11", &["fig11"]),
    ("fig12", &["fig12"]),
    ("table3", &["table3_cpu", "table3_memory", "table3_paper"]),
    ("table4", &["table4"]),
];
/// Names of the cases of Table II in the results.
const CASES: [&str; 10] = [
    "hit_write64",
    "hit_read64",
    "write_miss_free",
    "write_miss_clean",
    "write_miss_dirty",
    "write_miss_dirty_acked",
    "read_miss_free",
    "read_miss_clean",
    "read_miss_dirty",
    "dram64_local",
];

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    let privileged = standing == LabPrivilege::Root;
    vec![
        Test::new("every_section_beside_the_paper", move || every_section(privileged)),
        Test::new("only_what_is_asked_for", only_what_is_asked_for),
        Test::new("stopped_it_says_so", stopped_it_says_so),
    ]
}

/// Starts the program with `arguments`; results and output go to `folder`.
fn start(folder: &Path, arguments: &[&str]) -> Result<Child, Failed> {
    let log = fs::File::create(folder.join("log"))?;
    Ok(Command::new(program("cxloe-bench")?)
        .arg("paper")
        .args(arguments)
        .arg("--output")
        .arg(folder.join("out"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?)
}

fn output_text(folder: &Path) -> String {
    fs::read_to_string(folder.join("log")).unwrap_or_default()
}

/// Waits for the program's end, and kills it at the time limit; returns its exit code.
fn end(folder: &Path, mut child: Child) -> Result<Option<i32>, Failed> {
    let deadline = Instant::now() + RUN_LIMIT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("it has not ended; it said: {}", output_text(folder)).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn every_section(privileged: bool) -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut arguments = vec!["--quick", "--size", "16M"];
    if !privileged {
        // The simulated sections do not depend on the user's rights.
        arguments.extend(["--only", "fig7,fig8,table2,table3,table4"]);
    }
    let code = end(folder.path(), start(folder.path(), &arguments)?)?;
    ensure(code == Some(0), format!("it ended with {code:?}: {}", output_text(folder.path())))?;
    let out = folder.path().join("out");
    let report = serde_json::from_slice::<Report>(&std::fs::read(out.join("paper.json"))?)?;
    let json: Value = serde_json::from_str(&fs::read_to_string(out.join("paper.json"))?)?;
    let (here, values) = (&json["paper"]["here"], &json["paper"]["values"]);
    let page = fs::read_to_string(out.join("paper.html"))?;
    let words = output_text(folder.path());

    // Fig. 7 has results of this system and of its lower limit over each available link, and results of sockets.
    let links: &[&str] = if privileged { &["xdp", "packet"] } else { &["packet"] };
    let mut names: Vec<String> = Vec::new();
    for link in links {
        names.extend(["mixed64", "read64", "write64", "echo64"].map(|what| format!("{link}_{what}")));
    }
    names
        .extend(["udp_spinning", "tcp_spinning", "udp_sleeping", "tcp_sleeping", "dram64"].map(String::from));
    let listed: Vec<&str> =
        here["fig7"]["names"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    ensure(listed == names, format!("Fig. 7 has {listed:?}"))?;
    ensure(privileged || words.contains("Not measured: xdp"), "what is missing is named")?;
    names.extend(CASES.map(String::from));
    for name in BREAKDOWNS {
        names.push(format!("{name}_total"));
        names.extend(PARTS.map(|part| format!("{name}_{part}")));
    }
    for name in &names {
        let result = report.result(name).ok_or_else(|| format!("no {name} among the results"))?;
        let order = [result.min, result.p50, result.p90, result.p99, result.p999, result.max];
        ensure(result.count > 0 && order.is_sorted(), format!("{name}: {result:?}"))?;
    }
    for name in BREAKDOWNS {
        adds_up(name, &report, here, &out)?;
    }
    let simulated = |section: &str| matches!(section, "fig11" | "fig12");
    for (section, tables) in SECTIONS.into_iter().filter(|(section, _)| privileged || !simulated(section)) {
        ensure(words.contains("Not comparable: "), "words on what can be compared")?;
        ensure(!here[section].is_null() && here[section] != false, format!("no data of {section}"))?;
        let start = page.find(&format!("<section id=\"{section}\">")).ok_or(format!("no {section}"))?;
        let part = &page[start..start + page[start..].find("</section>").ok_or("an open section")?];
        let pictures = part.matches("<svg width").count();
        ensure(
            section.starts_with("table") && section != "table2" || pictures > 0,
            format!("{section}: no picture"),
        )?;
        ensure(
            part.contains("<dt>Not comparable</dt>"),
            format!("{section}: nothing on what can be compared"),
        )?;
        for table in tables {
            let csv = fs::read_to_string(out.join(format!("{table}.csv")))?;
            ensure(csv.lines().count() > 1, format!("{table}.csv is empty"))?;
        }
        ensure(part.matches("<caption>").count() == tables.len(), format!("{section}: not all tables"))?;
    }
    // Table III has CPU times of both ends, and the memory of each data structure.
    for row in here["table3"]["cpu"].as_array().ok_or("no CPU times")? {
        let positive =
            ["operations", "per_s", "cn_ns", "mn_ns"].map(|f| row[f].as_f64().unwrap_or(0.0) > 0.0);
        ensure(positive == [true; 4], row.to_string())?;
    }
    let memory = here["table3"]["memory"].as_array().ok_or("no memory")?;
    ensure(memory.iter().all(|row| row["bytes"].as_f64().unwrap_or(0.0) > 0.0), format!("{memory:?}"))?;
    // The results include the values that the paper reports.
    ensure(values["fig7"]["rows"][0]["ns"] == 1970.0, values["fig7"].to_string())?;
    ensure(page.contains("1.97 µs") && page.contains("285"), "the paper's values on the page")?;
    ensure(
        !page.contains("src=") && !page.contains("<script") && !page.contains("href=\"http"),
        "it stands alone",
    )
}

/// The parts of a breakdown add up to its total: exactly for each request in the CSV file, to a nanosecond for the
/// means, and to three digits, the precision of the histograms, for the means from histograms.
fn adds_up(name: &str, report: &Report, here: &Value, out: &Path) -> Outcome {
    let each = here["fig8"]["each"].as_array().ok_or("no breakdowns")?;
    let one = each.iter().find(|one| one["name"] == name).ok_or_else(|| format!("no {name}"))?;
    let number = |field: &str| one[field].as_f64().unwrap_or(-1.0);
    ensure(number("operations") == 1000.0, "a tenth of the paper's 10 000")?;
    ensure(
        number("left_out") * 2.0 <= number("operations"),
        format!("{name}: {} left out", number("left_out")),
    )?;
    let means: f64 = one["mean_ns"].as_array().into_iter().flatten().filter_map(Value::as_f64).sum();
    ensure(
        (means - number("total_mean_ns")).abs() < 1.0,
        format!("{name}: {means} {}", one["total_mean_ns"]),
    )?;
    let mean = |part: &str| report.result(&format!("{name}_{part}")).map_or(-1.0, |r| r.mean);
    let parts: f64 = PARTS.iter().map(|part| mean(part)).sum();
    ensure((parts / mean("total") - 1.0).abs() < 2e-3, format!("{name}: {parts} {}", mean("total")))?;
    ensure(
        (number("total_mean_ns") / mean("total") - 1.0).abs() < 2e-3,
        format!("{name}: JSON contradicts itself"),
    )?;
    let csv = fs::read_to_string(out.join(format!("{name}.csv")))?;
    let rows =
        csv.lines().skip(1).map(|line| line.split(',').filter_map(|n| n.parse::<f64>().ok()).collect());
    let rows: Vec<Vec<f64>> = rows.collect();
    ensure(rows.len() == 11, format!("{name}: {} single requests", rows.len()))?;
    for (row, point) in rows.iter().zip(one["points"].as_array().into_iter().flatten()) {
        ensure(row.len() == 8 && row[1..7].iter().sum::<f64>() == row[7], format!("{name}: {row:?}"))?;
        ensure(point["request"].as_f64() == Some(row[0]), format!("{name}: {point} {row:?}"))?;
        let parts: Vec<f64> =
            point["parts"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        ensure(parts == row[1..7], format!("{name}: {point} {row:?}"))?;
    }
    Ok(())
}

fn only_what_is_asked_for() -> Outcome {
    let folder = tempfile::tempdir()?;
    let code = end(folder.path(), start(folder.path(), &["--only", "table4"])?)?;
    ensure(code == Some(0), output_text(folder.path()))?;
    let page = fs::read_to_string(folder.path().join("out/paper.html"))?;
    ensure(page.matches("<section").count() == 1 && page.contains("<section id=\"table4\">"), "one section")?;
    ensure(page.contains("not measured in this run"), "no latency is made up")?;
    let mut found: Vec<_> =
        fs::read_dir(folder.path().join("out"))?.flatten().map(|e| e.file_name()).collect();
    found.sort();
    ensure(found == ["paper.html", "paper.json", "table4.csv"], format!("{found:?}"))?;
    let code = end(folder.path(), start(folder.path(), &["--only", "fig8", "-i", "lo"])?)?;
    ensure(code == Some(1) && output_text(folder.path()).contains("one clock"), output_text(folder.path()))?;
    let code = end(folder.path(), start(folder.path(), &["--only", "fig5"])?)?;
    ensure(code == Some(2) && output_text(folder.path()).contains("fig8"), output_text(folder.path()))
}

/// Ctrl-C during a long run gives the usual exit code, and no result that could be taken for a complete one.
fn stopped_it_says_so() -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut child = start(folder.path(), &["--only", "fig7,fig8", "--size", "16M"])?;
    let pid = Pid::from_raw(child.id().cast_signed());
    // The program measures when its thread `worker-0` runs.
    eventually("it measures", || {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let mut names = threads.filter_map(|t| fs::read_to_string(t.path().join("comm")).ok());
        names.any(|name| name.trim() == "worker-0") || child.try_wait().is_ok_and(|ended| ended.is_some())
    })?;
    kill(pid, Signal::SIGINT)?;
    let code = end(folder.path(), child)?;
    ensure(code == Some(130), format!("it ended with {code:?}: {}", output_text(folder.path())))?;
    let left = fs::read_dir(folder.path().join("out"))?.count();
    ensure(left == 0, format!("{left} files of an evaluation that was not finished"))
}
