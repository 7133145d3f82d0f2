//! `cxloe-bench sim` as users run it: exit codes, the trace, JSON, and how a seed that fails is named.

use std::process::Command;

#[test]
fn the_command() {
    let sim = |arguments: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cxloe-bench"));
        let output =
            command.arg("sim").args(arguments.split_whitespace()).output().expect("the program starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("sim.json");
    let (code, out, err) =
        sim(&format!("--scenario lossy --seeds 5 --start 3 --jobs 2 --json {}", json.display()));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("5 seeds, 3 to 7: every check held") && out.contains("p99.9"), "{out}");
    let text = std::fs::read(&json).expect("the results");
    let results: serde_json::Value = serde_json::from_slice(&text).expect("they are JSON");
    assert_eq!((&results["scenario"], &results["seeds"]), (&"lossy".into(), &5.into()));
    assert!(results["figures"]["retransmitted"].as_u64().is_some_and(|n| n > 0));

    let (code, out, _) = sim("--seed 7 --scenario restarts --trace-last 12");
    assert_eq!(
        (code, out.lines().position(|line| line.starts_with("restarts "))),
        (Some(0), Some(12)),
        "{out}"
    );

    // A planted fault shows that the checks can fail.
    let (code, _, err) = sim("--scenario calm --plant loses-writes --seeds 50");
    assert_eq!(code, Some(1));
    let reproduce = err.lines().find_map(|line| line.trim().strip_prefix("reproduce: cxloe-bench sim "));
    let (code, out, _) = sim(reproduce.unwrap_or_else(|| panic!("no command in {err}")));
    assert_eq!(code, Some(1));
    assert!(out.contains("WriteReq") && out.contains("arrived") && out.contains("1 FAILED"));

    for wrong in ["--trace", "--seed 1 --seeds 2", "--scenario nothing", "--loss 2", "--cns 0"] {
        assert_eq!(sim(wrong).0, Some(2), "{wrong}");
    }
}
