//! `cxloe-bench fault` from its command line: the real program in a lab of its own with small options, as root and as
//! an ordinary user. The report has every time and rate, each measured with pages whose content is checked. The tests
//! assert no speed.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cxloe_lab::LabPrivilege;
use cxloe_measure::report::Report;
use cxloe_system::{Failed, Test};
use cxloe_system::{Outcome, ensure};

/// Time limit on a whole run, on a busy machine, in a build without optimisation.
const RUN_LIMIT: Duration = Duration::from_secs(180);

/// Names of times that are measured whatever the user's rights.
const TIMES: &[&str] =
    &["uffd_floor4k", "uffd_inline_floor4k", "fetch4k", "fault4k_inline", "spin20us", "memcpy4k", "dram64"];
const RATES: &[&str] = &[
    "burst_read",
    "inline_read",
    "inline_random",
    "inline_random_plain",
    "write_back_line",
    "write_back_page",
];
const RATIOS: &[&str] = &[
    "fault4k_inline/(uffd_inline_floor4k+fetch4k)",
    "fault4k_inline/uffd_floor4k",
    "inline_read/burst_read",
    "inline_random/inline_random_plain",
    "write_back_line/write_back_page",
];
/// Names of times, rates and ratios whose measurement requires the right to serve kernel faults.
const THROUGH_AGENT: [&[&str]; 3] = [
    &["fault4k"],
    &["mapped_read", "mapped_random", "mapped_random_plain"],
    &["fault4k/(uffd_floor4k+fetch4k)", "mapped_read/burst_read", "mapped_random/mapped_random_plain"],
];

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    let privileged = standing == LabPrivilege::Root;
    vec![Test::new("everything_is_measured_on_right_pages", move || everything_is_measured(privileged))]
}

fn everything_is_measured(privileged: bool) -> Outcome {
    const TRIALS: usize = 2;
    const FAULTS: u64 = 1000;
    const BATCH: u64 = 250;
    let report = run(&[
        "--trials",
        &TRIALS.to_string(),
        "--operations",
        &FAULTS.to_string(),
        "--pages",
        "512",
        "--size",
        "16M",
    ])?;
    let [mut times, mut rates, mut ratios] = [TIMES, RATES, RATIOS].map(<[_]>::to_vec);
    if privileged {
        times.extend(THROUGH_AGENT[0]);
        rates.extend(THROUGH_AGENT[1]);
        ratios.extend(THROUGH_AGENT[2]);
    }
    for name in times {
        let time = report.result(name).ok_or_else(|| Failed::from(format!("{name} was not measured")))?;
        ensure(time.count > 0 && time.min > 0.0, format!("{name}: {time:?}"))?;
        if ["spin20us", "memcpy4k", "dram64"].contains(&name) {
            ensure(time.trials.len() == TRIALS, format!("{name}: {} trials", time.trials.len()))?;
            continue;
        }
        // Faults are measured in batches; batches during which the latency between the cores changed are discarded.
        let (count, most) = (time.count, TRIALS as u64 * FAULTS);
        ensure(count <= most && time.trials.len() as u64 <= most / BATCH, format!("{name}: {count} faults"))?;
        let whole = time.trials.iter().all(|trial| trial.count <= BATCH && trial.count > BATCH / 2);
        ensure(whole, format!("{name}: {:?}", time.trials))?;
    }
    for name in rates {
        let rate = report.rate(name).ok_or_else(|| Failed::from(format!("{name} was not measured")))?;
        ensure(rate.trials.len() == TRIALS, format!("{name}: {} trials", rate.trials.len()))?;
        ensure(rate.bytes_per_s > 0.0, format!("{name}: {rate:?}"))?;
    }
    for name in ratios {
        ensure(report.ratios.iter().any(|r| r.name == name), format!("no ratio {name}"))?;
    }
    // These rates count bytes per frame: the frame for a page with one dirty line has fewer bytes than the frames for a
    // page of dirty lines.
    let bytes = |name| report.rate(name).map_or(0.0, |rate| rate.bytes_per_s / rate.ops_per_s);
    let (line, page) = (bytes("write_back_line"), bytes("write_back_page"));
    ensure((64.0..205.0).contains(&line), format!("{line} bytes for a page with one dirty line"))?;
    ensure((4096.0..5120.0).contains(&page), format!("{page} bytes for a page of dirty lines"))
}

/// Runs the program to its end and reads its report.
fn run(arguments: &[&str]) -> Result<Report, Failed> {
    let folder = tempfile::tempdir()?;
    let (json, log) = (folder.path().join("report.json"), folder.path().join("log"));
    let out = fs::File::create(&log)?;
    let mut child = Command::new(cxloe_lab::program("cxloe-bench")?)
        .arg("fault")
        .args(arguments)
        .arg("--json")
        .arg(&json)
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()?;
    let deadline = Instant::now() + RUN_LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Err(format!("no end; it said: {}", fs::read_to_string(&log)?).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    ensure(status.success(), format!("{status}; it said: {}", fs::read_to_string(&log)?))?;
    Ok(serde_json::from_slice::<Report>(&std::fs::read(&json)?)?)
}
