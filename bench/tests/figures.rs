//! The paper's congestion figures must show what the paper states, and must equal the files in
//! `bench/figures` byte for byte. A change of the controller, the token bucket or the model makes them
//! differ.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cxloe_paper::figures::{Fig11, Fig12, Model};

const RENEW: &str = "cargo run --release -p cxloe-bench -- figures --output bench/figures";

fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("figures").join(name)
}

/// Differences between the kept file and the new text, in a few lines; `None` if they are the same.
fn difference(name: &str, new: &str) -> Option<String> {
    const LINES_MAX: usize = 12;
    let old = match fs::read_to_string(kept(name)) {
        Ok(old) => old,
        Err(e) => return Some(format!("{name}: {e}")),
    };
    if old == new {
        return None;
    }
    let (mut was, mut is) = (old.lines(), new.lines());
    let mut shown = Vec::new();
    let mut number = 0;
    loop {
        number += 1;
        let (a, b) = (was.next(), is.next());
        if (a, b) == (None, None) {
            break;
        }
        if a != b {
            shown.push(format!(
                "{name}:{number}\n  - {}\n  + {}",
                a.unwrap_or("(end)"),
                b.unwrap_or("(end)")
            ));
        }
    }
    let more = shown.len().saturating_sub(LINES_MAX);
    shown.truncate(LINES_MAX);
    if more > 0 {
        shown.push(format!("and {more} lines more"));
    }
    Some(if shown.is_empty() { format!("{name}: line ends differ") } else { shown.join("\n") })
}

fn assert_kept(files: [(&str, String); 2]) {
    let changes: Vec<String> = files.iter().filter_map(|(name, new)| difference(name, new)).collect();
    assert!(
        changes.is_empty(),
        "the figures have changed:\n{}\nIf that is right: {RENEW}",
        changes.join("\n")
    );
}

#[test]
fn fig11_shows_what_the_paper_says_and_is_the_kept_one() {
    let figure = Fig11::simulate(&Model::default());
    for pair in figure.points.windows(2) {
        let (low, high) = (&pair[0], &pair[1]);
        assert!(
            high.last.mean > low.last.mean || low.pfc == 0,
            "the final rate rises from {} to {} entries: {:?}, {:?}",
            low.threshold,
            high.threshold,
            low.last,
            high.last
        );
    }
    for point in &figure.points {
        let quiet = point.threshold >= 105;
        assert_eq!(point.pfc == 0, quiet, "PFC frames at {} entries: {}", point.threshold, point.pfc);
        assert_eq!(point.first.is_none(), quiet, "first stable rate at {} entries", point.threshold);
        if quiet {
            assert!(
                point.last.min > 99.9,
                "{} entries: the link's rate, not {:?}",
                point.threshold,
                point.last
            );
        }
    }
    assert_eq!(figure.quiet_from(), Some(105));
    let apart = figure.difference_percent.expect("there are PFC frames");
    assert!((4.0..=10.0).contains(&apart.mean), "first and final rate differ by {apart:?} %");
    assert_kept([("fig11.csv", figure.csv()), ("fig11.svg", figure.svg().unwrap())]);
}

#[test]
fn fig12_shows_what_the_paper_says_and_is_the_kept_one() {
    let figure = Fig12::simulate(&Model::default());
    let apart = figure.spread_percent().expect("there are points");
    assert!(apart <= 3.0, "the final rates are {apart:.1} % apart: {}", figure.table());
    let rates = figure.rates().expect("there are points");
    assert!((41.0..=42.5).contains(&rates.mean), "about 41 to 42 Gbit/s, not {rates:?}");
    assert!(figure.points.iter().all(|point| point.pfc > 0), "all are held back by PFC: {}", figure.table());
    assert_kept([("fig12.csv", figure.csv()), ("fig12.svg", figure.svg().unwrap())]);
}

#[test]
fn a_folder_that_cannot_be_made_is_named_before_anything_is_simulated() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let folder = file.path().join("figures");
    let run = Command::new(env!("CARGO_BIN_EXE_cxloe-bench"))
        .args(["figures", "all", "--output"])
        .arg(&folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot make the folder") && said.contains("--output"), "{said}");
    assert!(run.stdout.is_empty());
}
