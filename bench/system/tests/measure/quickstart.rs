//! The quickstart from its command line: the real program with small options, as root and as an ordinary user, to the
//! end and interrupted in the middle. The report is complete, the page has its pictures, and no process or file is
//! left. The tests assert no speed.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use cxloe_lab::{LabPrivilege, program};
use cxloe_measure::report::Report;
use cxloe_system::{Failed, Test};
use cxloe_system::{Outcome, ensure, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Time limit on a whole run, on a busy machine, in a build without optimisation.
const RUN_LIMIT: Duration = Duration::from_secs(180);
/// Environment variable that marks every process of one run, including those whose parent has ended.
const MARK: &str = "CXLOE_TEST_MARK";

const RESULTS: &[&str] = &[
    "echo64",
    "read64",
    "write64",
    "mixed64",
    "hit_read64",
    "hit_write64",
    "agent_read64",
    "agent_write64",
    "read4k",
    "agent_read4k",
    "nbd_read4k",
    "fault4k_inline",
];
const THROUGHPUTS: &[&str] = &["stream64", "burst_read", "burst_write", "agent_bulk_read", "nbd_bulk_read"];
const RATIOS: &[&str] = &[
    "read64/echo64",
    "write64/echo64",
    "mixed64/echo64",
    "stream64/echo_pipelined",
    "burst_read/echo_pipelined",
    "burst_write/echo_pipelined",
    "agent_read64/read64",
    "agent_write64/write64",
    "agent_read4k/read4k",
    "nbd_read4k/read4k",
];

const DPDK: &[&str] = &["--link", "dpdk"];
/// Figures over DPDK of which there are two: of sealed frames, and of others.
const OF_BOTH: &[&str] =
    &["dpdk_echo64", "dpdk_fetch4k", "echo64", "read64", "write64", "mixed64", "read4k", "fault4k_inline"];
const OF_AGENT: &[&str] = &["agent_read64", "agent_write64", "agent_read4k", "fault4k"];
const RATES_OF_BOTH: &[&str] = &["echo_pipelined", "stream64", "stream64_write", "burst_read", "burst_write"];
/// Ratios over DPDK: numerators and denominators, which have the same prefix.
const RATIOS_OF_BOTH: &[(&str, &str)] = &[
    ("read64", "dpdk_echo64"),
    ("write64", "dpdk_echo64"),
    ("mixed64", "dpdk_echo64"),
    ("echo64", "dpdk_echo64"),
    ("read64", "echo64"),
    ("read4k", "dpdk_fetch4k"),
    ("stream64", "echo_pipelined"),
    ("burst_read", "echo_pipelined"),
    ("burst_write", "echo_pipelined"),
];
/// Goals over DPDK, in the order of the report.
const GOALS: [&str; 5] = [
    "read64 above dpdk_echo64",
    "read4k above dpdk_fetch4k",
    "stream64",
    "plain_read64 above plain_dpdk_echo64",
    "plain_stream64",
];

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    let to_the_end = move || runs_to_the_end_and_cleans_up(standing == LabPrivilege::Root);
    let mut tests = vec![
        Test::new("runs_to_the_end_and_cleans_up", to_the_end),
        Test::new("without_namespaces_it_runs_over_loopback", without_namespaces_it_runs_over_loopback),
        Test::new("what_dpdk_needs_is_named", what_dpdk_needs_is_named),
        Test::new("interrupt_in_the_middle_cleans_up", interrupt_in_the_middle_cleans_up),
    ];
    // The plug-in lies beside the programs, but not beside the copies of them that the user `nobody` runs.
    if standing == LabPrivilege::Root {
        tests.push(Test::new("dpdk::runs_to_the_end_and_cleans_up", without_the_kernel_it_runs_over_dpdk));
        tests.push(Test::new("dpdk::interrupt_in_the_middle_cleans_up", interrupt_over_dpdk_cleans_up));
    }
    tests
}

/// A run of the program in a temporary folder of its own.
struct Run {
    child: Child,
    folder: tempfile::TempDir,
    mark: String,
    netns: BTreeSet<PathBuf>,
}

impl Run {
    fn start(trials: &str, more: &[&str]) -> Result<Run, Failed> {
        Run::start_by(Command::new(program("cxloe-bench")?), trials, more)
    }

    /// Starts a run by a command whose last word is the program, with further options.
    fn start_by(mut command: Command, trials: &str, more: &[&str]) -> Result<Run, Failed> {
        let folder = tempfile::tempdir()?;
        for part in ["tmp", "work"] {
            fs::create_dir(folder.path().join(part))?;
        }
        let mark = folder.path().to_string_lossy().into_owned();
        let log = fs::File::create(folder.path().join("log"))?;
        let child = command
            .args(["quickstart", "--trials", trials, "--size", "8M", "--output", "report"])
            .args(more)
            .current_dir(folder.path().join("work"))
            .env("TMPDIR", folder.path().join("tmp"))
            .env(MARK, &mark)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()?;
        Ok(Run { child, folder, mark, netns: listed(Path::new("/run/netns")) })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn output_text(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn ends(&mut self) -> Result<ExitStatus, Failed> {
        let deadline = Instant::now() + RUN_LIMIT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure(Instant::now() < deadline, format!("it has not ended; it said: {}", self.output_text()))?;
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Names of the live processes of this run, whatever their parents.
    fn processes(&self) -> Vec<String> {
        let mark = format!("{MARK}={}", self.mark);
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        processes
            .filter(|p| p.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit()))
            .filter(|p| {
                let environment = fs::read(p.path().join("environ")).unwrap_or_default();
                environment.split(|b| *b == 0).any(|variable| variable == mark.as_bytes())
            })
            .map(|p| fs::read_to_string(p.path().join("comm")).unwrap_or_default())
            .collect()
    }

    /// Checks that the run has left no process (and so no unnamed namespace, interface or XDP program), no named
    /// namespace, and no file except `files`.
    fn left_only(&self, files: &[&str]) -> Outcome {
        eventually("all processes end", || self.processes().is_empty())?;
        ensure(listed(Path::new("/run/netns")) == self.netns, "a named namespace has come or gone")?;
        ensure(listed(&self.path("tmp")).is_empty(), format!("left: {:?}", listed(&self.path("tmp"))))?;
        let found = listed(&self.path("work"));
        let expected = files.iter().map(|name| self.path("work").join(name)).collect();
        ensure(found == expected, format!("files: {found:?}"))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Paths of all files and folders below a folder.
fn listed(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(listed(&entry.path()));
        }
        found.insert(entry.path());
    }
    found
}

fn runs_to_the_end_and_cleans_up(privileged: bool) -> Outcome {
    let run = ran(Run::start("1", &[])?)?;
    let output_text = run.output_text();
    // Only root is certain to be allowed to serve kernel faults.
    let left_out = output_text.contains("through the agent are left out: ");
    ensure(!(left_out && privileged), format!("left out for root: {output_text}"))?;
    ensure(left_out != output_text.contains("fetched by the agent"), &output_text)?;
    let json = complete(&run)?;
    let mut results = json["results"].as_array().into_iter().flatten();
    ensure(left_out != results.any(|item| item["name"] == "fault4k"), "fault4k is measured or left out")?;
    ensure(json["link"]["mtu"] == 1500, json["link"].to_string())
}

/// A user who may neither make namespaces nor open raw sockets, as in many containers, gets a run over the loopback
/// interface.
fn without_namespaces_it_runs_over_loopback() -> Outcome {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--", "sh", "-c"]);
    command.arg(
        "ip link set lo up && echo 0 > /proc/sys/user/max_user_namespaces && \
         exec setpriv --bounding-set=-all --inh-caps=-all -- \"$0\" \"$@\"",
    );
    command.arg(program("cxloe-bench")?);
    let run = ran(Run::start_by(command, "1", &[])?)?;
    let output_text = run.output_text();
    for words in ["no network of its own can be made here", "max_user_namespaces=0", "UDP on the loopback"] {
        ensure(output_text.contains(words), format!("no `{words}` in: {output_text}"))?;
    }
    let json = complete(&run)?;
    ensure(json["link"]["backend"] == "udp", json["link"].to_string())
}

/// Processes of an ordinary kind, without a network of their own, share memory by DPDK: the report has figures of sealed
/// and of other frames beside bare ones, and the goals of such a link.
fn without_the_kernel_it_runs_over_dpdk() -> Outcome {
    let run = ran(Run::start("1", DPDK)?)?;
    let json = report(&run)?;
    ensure(json["link"]["backend"] == "dpdk" && json["link"]["mtu"] == 9000, json["link"].to_string())?;
    ensure(json["link"]["frames"] == "sealed", json["link"].to_string())?;
    let of_both = |names: &[&str]| -> Vec<String> {
        ["", "plain_"].iter().flat_map(|prefix| names.iter().map(move |n| format!("{prefix}{n}"))).collect()
    };
    let results = [of_both(OF_BOTH), OF_AGENT.iter().map(|name| (*name).into()).collect()].concat();
    let of_one = |prefix: &'static str| {
        RATIOS_OF_BOTH.iter().map(move |(above, below)| format!("{prefix}{above}/{prefix}{below}"))
    };
    let ratios: Vec<String> = of_one("").chain(of_one("plain_")).collect();
    let lists = [("results", results), ("throughput", of_both(RATES_OF_BOTH)), ("ratios", ratios)];
    for (list, expected) in lists {
        expected.iter().try_for_each(|name| has(&json, list, name))?;
    }
    let goals = json["goals"].as_array().ok_or("no goals")?;
    ensure(names(&json, "goals") == GOALS, format!("{goals:?}"))?;
    for goal in goals {
        let [value, most, least] =
            ["value", "at_most_ns", "at_least_per_s"].map(|field| goal[field].as_f64());
        let value = value.ok_or_else(|| goal.to_string())?;
        let reached = most.is_some_and(|most| value <= most) || least.is_some_and(|least| value >= least);
        ensure(most.is_some() != least.is_some() && goal["reached"] == reached, goal.to_string())?;
    }
    // A goal's value is the difference of the medians that its ratio compares.
    let mut compared = json["ratios"].as_array().into_iter().flatten();
    let over = compared.find(|r| r["name"] == "read64/dpdk_echo64" && r["statistic"] == "p50");
    ensure(over.is_some_and(|ratio| ratio["over"] == goals[0]["value"]), json["ratios"].to_string())?;
    ensure(run.output_text().contains("read64 above dpdk_echo64"), run.output_text())
}

fn what_dpdk_needs_is_named() -> Outcome {
    let missing = |more: &[&str], words: &[&str]| -> Outcome {
        let mut command = Command::new(program("cxloe-bench")?);
        command.env("CXLOE_DPDK", "/none/such.so");
        let mut run = Run::start_by(command, "1", more)?;
        let status = run.ends()?;
        let output_text = run.output_text();
        ensure(status.code().is_some_and(|code| code > 0), format!("it ended with {status}: {output_text}"))?;
        for word in words {
            ensure(output_text.contains(word), format!("no `{word}` in: {output_text}"))?;
        }
        run.left_only(&[])
    };
    missing(DPDK, &["/none/such.so", "make dpdk", "net_memif", "CXLOE_DPDK"])?;
    missing(&["--link", "memif"], &["no link named `memif`", "or dpdk"])
}

/// Waits for the end of the run; checks that all data was verified and that only the report is left.
fn ran(mut run: Run) -> Result<Run, Failed> {
    let status = run.ends()?;
    ensure(status.code() == Some(0), format!("it ended with {status}: {}", run.output_text()))?;
    run.left_only(&["report", "report/report.html", "report/report.json"])?;
    let output_text = run.output_text();
    for words in ["verified: ", "gmm", "mn-server", "cn-agent", "read64", "p99", "fetched by the thread"] {
        ensure(output_text.contains(words), format!("no `{words}` in: {output_text}"))?;
    }
    Ok(run)
}

/// Names of the items of a list of the report.
fn names(json: &serde_json::Value, list: &str) -> Vec<String> {
    let items = json[list].as_array().into_iter().flatten();
    items.filter_map(|item| Some(item["name"].as_str()?.to_owned())).collect()
}

fn has(json: &serde_json::Value, list: &str, name: &str) -> Outcome {
    let names = names(json, list);
    ensure(names.iter().any(|n| n == name), format!("no {name} in {list}: {names:?}"))
}

/// Checks that the report of the run over a link of the kernel has all figures; returns the report.
fn complete(run: &Run) -> Result<serde_json::Value, Failed> {
    let json = report(run)?;
    for (list, expected) in [("results", RESULTS), ("throughput", THROUGHPUTS), ("ratios", RATIOS)] {
        expected.iter().try_for_each(|name| has(&json, list, name))?;
    }
    Ok(json)
}

/// Checks that each figure in the report of the run may be one, and that its page has pictures; returns the report.
fn report(run: &Run) -> Result<serde_json::Value, Failed> {
    let report = serde_json::from_slice::<Report>(&std::fs::read(run.path("work/report/report.json"))?)?;
    let json = serde_json::to_value(&report)?;
    for item in json["results"].as_array().into_iter().flatten() {
        let value = |field: &str| item[field].as_f64().unwrap_or(-1.0);
        ensure(value("count") > 0.0 && item["unit"] == "ns", item.to_string())?;
        let order = ["min", "p50", "p90", "p99", "p999", "max"].map(value);
        ensure(order[0] >= 0.0 && order.is_sorted(), item.to_string())?;
    }
    for item in json["throughput"].as_array().into_iter().flatten() {
        ensure(item["ops_per_s"].as_f64().unwrap_or(0.0) > 0.0, item.to_string())?;
        ensure(item["bytes_per_s"].as_f64().unwrap_or(0.0) > 0.0, item.to_string())?;
    }
    for item in json["ratios"].as_array().into_iter().flatten() {
        ensure(
            item["value"].as_f64().unwrap_or(0.0) > 0.0 && item["statistic"].is_string(),
            item.to_string(),
        )?;
    }
    ensure(json["schema"] == 1, json["schema"].to_string())?;
    ensure(json["machine"]["cores"].as_u64().unwrap_or(0) > 0, json["machine"].to_string())?;
    let page = fs::read_to_string(run.path("work/report/report.html"))?;
    ensure(page.matches("<svg").count() >= 2 && page.contains("read64"), "a page without pictures")?;
    ensure(!page.contains("src=\"http"), "a page that needs the network")?;
    Ok(json)
}

/// Interrupts a run with these options once it says each of `moments`.
fn interrupted_at(moments: [&str; 2], more: &[&str]) -> Outcome {
    for moment in moments {
        let mut run = Run::start("500", more)?;
        eventually(&format!("it says `{moment}`"), || {
            run.output_text().contains(moment) || run.child.try_wait().is_ok_and(|s| s.is_some())
        })?;
        kill(Pid::from_raw(run.child.id().cast_signed()), Signal::SIGINT)?;
        let status = run.ends()?;
        ensure(
            status.code() == Some(130),
            format!("at `{moment}` it ended with {status}: {}", run.output_text()),
        )?;
        run.left_only(&[])?;
    }
    Ok(())
}

/// The run is interrupted once while daemons start, and once while it measures.
fn interrupt_in_the_middle_cleans_up() -> Outcome {
    interrupted_at(["network", "region"], &[])
}

/// The same over shared memory, whose sockets are in the run's temporary folder.
fn interrupt_over_dpdk_cleans_up() -> Outcome {
    interrupted_at(["network", "sealed"], DPDK)
}
