//! `cxloe-bench compare` from its command line: the real program, with every peer that can be measured on this kernel,
//! with little memory. The program itself checks each peer's data, and fails if a byte is wrong; the tests check that
//! every peer has its figures, in every format. They assert no speed.

mod archive;
mod patterns;
mod trace;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use cxloe_compare::{Pattern, peers};
use cxloe_lab::{LabPrivilege, program};
use cxloe_measure::report::Report;
use cxloe_system::{Failed, Test};
use cxloe_system::{Outcome, ensure};
use serde_json::Value;

const READS: &[&str] = &["read64", "read4k", "read1m"];
const TIMES: &[&str] = &[
    "read64", "read4k", "read1m", "seq64", "seq4k", "seq1m", "load25", "load50", "load75", "load90",
    "write64",
];
const RATES: &[&str] = &[
    "stream64",
    "stream4k",
    "stream1m",
    "seq_stream64",
    "seq_stream4k",
    "seq_stream1m",
    "bulk_read",
    "bulk_write",
];

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    let mut tests = vec![
        Test::new("peers_side_by_side", move || peers_side_by_side(standing)),
        Test::new("every_pattern_has_its_figure", patterns::measured),
        Test::new("a_trace_is_replayed_and_checked", trace::replayed),
        Test::new("archives_are_checked_and_compared", archive::checked_and_compared),
    ];
    if standing == LabPrivilege::Root {
        tests.push(Test::new("what_is_missing_is_named", what_is_missing_is_named));
        tests.push(Test::new("patterns_are_chosen_and_absent_figures_explained", patterns::chosen));
        tests.push(Test::new("a_peer_that_fails_is_told", a_failing_peer_is_reported));
        tests.push(Test::new("a_trace_that_does_not_fit_is_refused_or_folded", trace::refused_or_folded));
        tests.push(Test::new("traces_are_converted", trace::converted));
        tests.push(Test::new("an_archive_that_cannot_be_written_is_refused", archive::refused_at_once));
    }
    tests
}

fn bench(folder: &Path, arguments: &[&str]) -> Result<Command, Failed> {
    let mut command = Command::new(program("cxloe-bench")?);
    command.arg("compare").args(arguments).current_dir(folder).env("TMPDIR", folder).stdin(Stdio::null());
    Ok(command)
}

fn output_text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}

/// Names of the times, and of the rates, that are measured for a peer.
fn promised(peer: &str) -> (&'static [&'static str], &'static [&'static str]) {
    match peer {
        "libfabric-tcp" => (READS, &[]),
        "ucx-tcp" => (
            &["read64", "read4k", "read1m", "write64"],
            &["stream64", "stream4k", "stream1m", "bulk_read", "bulk_write"],
        ),
        _ => (TIMES, RATES),
    }
}

/// True if this machine meets the requirements of `peer` that no package provides: XDP programs require root,
/// `/dev/fuse` is not open to all users everywhere, few kernels have NVMe over TCP loaded, and some machines have no
/// verbs devices.
fn may_run(peer: &str, standing: LabPrivilege) -> bool {
    match peer {
        "cxloe-xdp" => standing == LabPrivilege::Root,
        "nbd-mapped" => fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok(),
        "nvme-tcp" => {
            let loaded = ["/sys/module/nvmet_tcp", "/dev/nvme-fabrics"];
            standing == LabPrivilege::Root && loaded.iter().all(|path| Path::new(path).exists())
        }
        _ => true,
    }
}

fn peers_side_by_side(standing: LabPrivilege) -> Outcome {
    let folder = tempfile::tempdir()?;
    let forms = ["--json", "x.json", "--csv", "x.csv", "--html", "x.html", "--hdr", "x.hdr"];
    let options = ["--quick", "--trials", "1", "--each", "20ms", "--without", "rdma"];
    let arguments = [&options[..], &forms, &["--archive", "x.tar.gz"]].concat();
    let output = bench(folder.path(), &arguments)?.output()?;
    ensure(output.status.success(), format!("{}: {}", output.status, output_text(&output)))?;

    let path = folder.path().join("x.json");
    let report = serde_json::from_slice::<Report>(&std::fs::read(&path)?)?;
    let json: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
    let figures = json["comparison"]["figures"].as_array().ok_or("no figures")?;
    let mut left_out = Vec::new();
    for peer in peers() {
        let name = peer.name();
        if name.split('-').next() == Some("rdma") {
            continue;
        }
        if !may_run(name, standing) {
            left_out.push(name);
            continue;
        }
        let of = |pattern: &str| figures.iter().find(|f| f["peer"] == name && f["pattern"] == pattern);
        let (times, rates) = promised(name);
        for pattern in times {
            let figure = of(pattern).ok_or_else(|| format!("no {pattern} of {name}"))?;
            ensure(figure["mean_ns"].as_f64().unwrap_or(0.0) > 0.0, figure.to_string())?;
            // Reads of 1 MiB are long, so that fewer of them are enough.
            let least = if pattern.ends_with("1m") { 5 } else { 20 };
            ensure(figure["count"].as_u64().unwrap_or(0) >= least, figure.to_string())?;
            ensure(figure["ratio"].as_f64().unwrap_or(0.0) > 0.0, figure.to_string())?;
            let p50 = figure["p50_ns"].as_f64();
            ensure(p50.is_some() == (name != "libfabric-tcp"), figure.to_string())?;
            // The two quantiles come from separate runs, so either may be the larger one.
            let ordered =
                name == "ucx-tcp" || figure["p99_ns"].as_f64().unwrap_or(f64::MAX) >= p50.unwrap_or(0.0);
            ensure(ordered, figure.to_string())?;
        }
        for pattern in rates {
            let figure = of(pattern).ok_or_else(|| format!("no {pattern} of {name}"))?;
            ensure(figure["bytes_per_s"].as_f64().unwrap_or(0.0) > 0.0, figure.to_string())?;
            ensure(report.rate(&format!("{name}.{pattern}")).is_some(), format!("{name}.{pattern}"))?;
        }
        ensure(
            figures.iter().filter(|f| f["peer"] == name).count() == times.len() + rates.len(),
            format!("{name} has figures that nobody promised"),
        )?;
        patterns::absent_ones_are_explained(&json, name, &[times, rates].concat(), &output_text(&output))?;
    }
    // Peers that cannot run here are listed with the reason; all others are measured.
    let absent = json["comparison"]["absent"].as_array().ok_or("no list of absent peers")?;
    let names: Vec<&str> = absent.iter().filter_map(|one| one["peer"].as_str()).collect();
    ensure(names == left_out, format!("absent: {absent:?}, to be expected here: {left_out:?}"))?;
    for one in absent {
        let reason = one["reason"].as_str().unwrap_or_default();
        ensure(
            !reason.is_empty() && output_text(&output).contains(reason),
            format!("{one}: {}", output_text(&output)),
        )?;
    }
    ensure(report.result("tcp-spin.read64").is_some_and(|read| read.count >= 20), "no times of TCP")?;

    let csv = fs::read_to_string(folder.path().join("x.csv"))?;
    ensure(csv.lines().count() == figures.len() + 1, csv)?;
    let page = fs::read_to_string(folder.path().join("x.html"))?;
    ensure(page.contains("What each figure means") && page.contains("redis.read64"), "an incomplete page")?;
    ensure(page.matches("<svg").count() > Pattern::ALL.len(), "a page without pictures")?;
    ensure(fs::metadata(folder.path().join("x.hdr"))?.len() > 1000, "an empty histogram log")?;
    let mut left: Vec<_> = fs::read_dir(folder.path())?.flatten().map(|entry| entry.file_name()).collect();
    left.sort();
    ensure(left == ["x.csv", "x.hdr", "x.html", "x.json", "x.tar.gz"], format!("left behind: {left:?}"))?;
    archive::complete(folder.path(), "x.tar.gz", absent)
}

fn what_is_missing_is_named() -> Outcome {
    let folder = tempfile::tempdir()?;
    let refused = bench(folder.path(), &["--only", "redis,carrier-pigeon"])?.output()?;
    ensure(
        !refused.status.success() && output_text(&refused).contains("no peer is called `carrier-pigeon`"),
        output_text(&refused),
    )?;
    // The listing succeeds although the machine has no verbs device of this name.
    let list = bench(folder.path(), &["--list", "--rdma", "mlx5_0"])?.output()?;
    ensure(list.status.success(), output_text(&list))?;
    for peer in peers() {
        ensure(output_text(&list).contains(peer.name()), output_text(&list))?;
    }
    Ok(())
}

/// A peer whose server ends at once is reported, and does not affect the other peers' figures.
fn a_failing_peer_is_reported() -> Outcome {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir()?;
    let broken = folder.path().join("bin/redis-server");
    fs::create_dir(folder.path().join("bin"))?;
    fs::write(&broken, "#!/bin/sh\necho no memory for me\nexit 3\n")?;
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755))?;
    let path = format!("{}:{}", folder.path().join("bin").display(), std::env::var("PATH")?);
    let arguments = ["--quick", "--trials", "1", "--only", "redis,tcp-block", "--csv", "x.csv"];
    let output = bench(folder.path(), &arguments)?.env("PATH", path).output()?;
    ensure(output.status.code() == Some(1), format!("{}: {}", output.status, output_text(&output)))?;
    for words in ["these peers failed: redis", "no memory for me", "tcp-block"] {
        ensure(output_text(&output).contains(words), format!("no `{words}` in: {}", output_text(&output)))?;
    }
    let csv = fs::read_to_string(folder.path().join("x.csv"))?;
    ensure(csv.contains("tcp-block,bulk_read") && !csv.contains("redis"), csv)
}
