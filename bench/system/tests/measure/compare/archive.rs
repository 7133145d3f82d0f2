//! Archives of comparisons: whole, without names of host and user, checked by their checksums, and compared.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use cxloe_compare::peers;
use cxloe_system::command::{answered, printed};
use cxloe_system::{Outcome, ensure};
use serde_json::Value;

use super::{bench, output_text};

/// Checks the archive of a comparison of all peers: the usual programs unpack and check it, and every file is there.
/// `absent` are the peers that the comparison could not measure.
pub fn complete(folder: &Path, name: &str, absent: &[Value]) -> Outcome {
    let unpack = format!("tar -xzf {name} && cd cxloe-compare && sha256sum --strict --quiet -c SHA256SUMS");
    printed(Command::new("sh").args(["-c", &unpack]).current_dir(folder))?;
    let root = folder.join("cxloe-compare");
    let text = |name: &str| fs::read_to_string(root.join(name)).map_err(|e| format!("{name}: {e}"));
    let readme = text("README.md")?;
    for name in ["table.md", "picture.svg", "report.html", "figures.csv", "trials.csv", "histograms.hlog"] {
        ensure(!text(name)?.is_empty() && readme.contains(name), format!("{name} in {readme}"))?;
    }
    ensure(readme.contains("cxloe-bench compare --only cxloe-"), readme.clone())?;
    let commands = text("commands.txt")?;
    let table = text("table.md")?;
    for peer in peers() {
        let missing = absent.iter().find(|one| one["peer"] == peer.name());
        let reason = missing.and_then(|one| one["reason"].as_str());
        match reason {
            Some(reason) => ensure(table.contains(reason), format!("no {reason} in {table}"))?,
            None if peer.name() == "rdma" => {}
            None => {
                ensure(commands.contains(&format!("## {}: ", peer.name())), commands.clone())?;
                ensure(table.contains(&format!("| {} |", peer.name())), table.clone())?;
            }
        }
    }
    ensure(commands.contains("redis-server --port 7379") && commands.contains("$TRIAL/gmm"), commands)?;
    ensure(text("settings/redis.txt")?.contains("appendonly no\n"), text("settings/redis.txt")?)?;
    ensure(text("settings/memcached.txt")?.contains("maxbytes "), text("settings/memcached.txt")?)?;
    ensure(text("cells/tcp-spin.read64.csv")?.lines().count() > 1, "no times of TCP")?;
    let outputs = fs::read_dir(root.join("outputs/ucx-tcp"))?.count();
    ensure(outputs >= 8, format!("{outputs} outputs of UCX's tool"))?;

    let run: Value = serde_json::from_str(&text("run.json")?)?;
    let programs = run["programs"].as_array().ok_or("no programs")?;
    for name in ["cxloe-bench", "gmm", "mn-server", "redis-server", "memcached", "ucx_perftest", "nbdkit"] {
        let Some(program) = programs.iter().find(|program| program["program"] == name) else {
            ensure(name == "nbdkit", format!("no {name} in {run}"))?;
            continue;
        };
        let is_known = program["version"].as_str().is_some_and(|version| !version.is_empty())
            && program["sha256"].as_str().is_some_and(|sum| sum.len() == 64)
            && program["libraries"].as_array().is_some_and(|libraries| !libraries.is_empty());
        ensure(is_known, program.to_string())?;
    }
    let names = |list: &str| -> Vec<String> {
        let facts = run[list].as_array().into_iter().flatten();
        facts.filter_map(|fact| Some(fact["name"].as_str()?.to_owned())).collect()
    };
    ensure(names("machine").iter().any(|name| name == "kernel"), run.to_string())?;
    ensure(names("interfaces").iter().any(|name| name == "mn0: driver"), run.to_string())?;
    nameless(&root, folder)
}

/// Checks that no file below `root` has the folder in which the comparison ran, or the name of this host in an output.
fn nameless(root: &Path, folder: &Path) -> Outcome {
    let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
    let folder = folder.display().to_string();
    let mut folders = vec![root.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(at)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
            ensure(!text.contains(&folder), format!("{} has {folder}", path.display()))?;
            let is_output = path.starts_with(root.join("outputs"));
            let named = format!("[{}:", host.trim());
            ensure(!is_output || !text.contains(&named), format!("{} names the host", path.display()))?;
        }
    }
    Ok(())
}

/// Two runs are laid side by side, by the run itself and afterwards; a changed archive is refused.
pub fn checked_and_compared() -> Outcome {
    let folder = tempfile::tempdir()?;
    let run = |more: &[&str]| -> Outcome<Output> {
        let options = ["--only", "tcp-block,udp-block", "--trials", "1", "--size", "64K", "--each", "20ms"];
        Ok(bench(folder.path(), &[&options[..], more].concat())?.output()?)
    };
    answered(&run(&["--archive", "a.tar.gz"])?, 0, &["archive:    a.tar.gz"])?;
    let beside = ["new / old", "tcp-block", "bulk_write", "What differs between the runs", "--depth 7 "];
    answered(&run(&["--depth", "7", "--archive", "b.tar.gz", "--with", "a.tar.gz"])?, 0, &beside)?;
    let verify = |arguments: &[&str]| -> Outcome<Output> { Ok(bench(folder.path(), arguments)?.output()?) };
    let shown =
        ["| tcp-block |", "all as their checksums say", "cxloe-bench compare --only udp-block,tcp-block"];
    answered(&verify(&["--verify", "a.tar.gz"])?, 0, &shown)?;
    answered(&verify(&["--verify", "b.tar.gz", "--with", "a.tar.gz"])?, 0, &beside)?;
    let same = verify(&["--verify", "a.tar.gz", "--with", "a.tar.gz"])?;
    answered(&same, 0, &["1.000", "The conditions of both runs are the same"])?;

    let pack = "tar -xzf a.tar.gz && sed -i 's/tcp-block/tcp-spin/' cxloe-compare/figures.csv && \
                tar -czf changed.tar.gz cxloe-compare && head -c 1000 a.tar.gz >half.tar.gz";
    printed(Command::new("sh").args(["-c", pack]).current_dir(folder.path()))?;
    let changed = ["changed.tar.gz was changed", "figures.csv differs"];
    answered(&verify(&["--verify", "changed.tar.gz"])?, 1, &changed)?;
    answered(&verify(&["--verify", "half.tar.gz"])?, 1, &["half.tar.gz is no archive"])?;
    answered(&verify(&["--verify", "none.tar.gz"])?, 1, &["cannot read none.tar.gz"])?;
    answered(&run(&["--with", "half.tar.gz"])?, 1, &["half.tar.gz is no archive"])
}

/// A place that cannot be written is named before anything is measured.
pub fn refused_at_once() -> Outcome {
    let folder = tempfile::tempdir()?;
    let output = bench(folder.path(), &["--only", "tcp-block", "--archive", "none/x.tar.gz"])?.output()?;
    answered(&output, 1, &["cannot write none/x.tar.gz"])?;
    ensure(!output_text(&output).contains("trials each"), output_text(&output))
}
