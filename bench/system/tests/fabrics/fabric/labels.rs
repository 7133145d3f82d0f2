//! Labels of regions on the command line: they are set with the region or later, found by selectors, and kept in the
//! store; only users who may change the region can set them.

use std::process::{Command, Output};

use cxloe_lab::program;
use serde_json::Value;

use cxloe_system::command::{answered, output};
use cxloe_system::star::*;

fn gmm(rig: &Star, arguments: &[&str]) -> Outcome<Output> {
    output(Command::new(program("gmm")?).args(["--manager", &rig.manager_url()]).args(arguments))
}

/// Names of the regions that `gmm list` finds with a selector.
fn found(rig: &Star, selector: &str) -> Outcome<Vec<String>> {
    let listed = gmm(rig, &["--json", "list", "--label", selector])?;
    let listed: Value = serde_json::from_slice(&listed.stdout)?;
    let regions = listed["regions"].as_array().ok_or("no regions")?;
    Ok(regions.iter().filter_map(|region| Some(region["region"].as_str()?.to_owned())).collect())
}

pub fn regions_are_found_by_their_labels() -> Outcome {
    let rig = Star::new(1, 1, &[])?;
    rig.start_mn(0, &["--pool-size", "64MiB"])?;
    rig.start_agent(0, &[])?;
    let create = ["create-region", "-s", "2M", "--owner", "cn0"];
    for (name, labels) in [("a", "use=training,team=x"), ("b", "use=serving"), ("c", "use=")] {
        answered(&gmm(&rig, &[&create[..], &["--label", labels, name]].concat())?, 0, &[name])?;
    }
    answered(&gmm(&rig, &[&create[..], &["d"]].concat())?, 0, &[])?;
    for (selector, names) in [
        ("use", &["a", "b", "c"][..]),
        ("use=training", &["a"]),
        ("use!=training,use", &["b", "c"]),
        ("!use", &["d"]),
        ("team=y", &[]),
    ] {
        let listed = found(&rig, selector)?;
        ensure(listed == names, format!("{selector}: {listed:?}"))?;
    }
    answered(&gmm(&rig, &["label-region", "d", "use=serving", "owner/of=x"])?, 0, &["owner/of"])?;
    answered(&gmm(&rig, &["label-region", "a", "team-", "use=serving"])?, 0, &["serving"])?;
    ensure(found(&rig, "use=serving")? == ["a", "b", "d"], "labels were not changed")?;
    ensure(found(&rig, "team")?.is_empty(), "a label was not removed")?;
    // Events serve as the audit log: they record who set which labels.
    let events = gmm(&rig, &["list", "-E", "-r", "d"])?;
    answered(&events, 0, &["owner/of=x"])?;
    for (arguments, code, words) in [
        (&["label-region", "a", "team"][..], 2, "write it as key=value"),
        (&["label-region", "a", "te am=x"], 2, "cannot be the key of a label"),
        (&["label-region", "none", "a=b"], 4, "none"),
        (&["list", "--label", "a b"], 2, "cannot be the key of a label"),
    ] {
        answered(&gmm(&rig, arguments)?, code, &[words])?;
    }
    // A sealed region can be labelled, because labels are not part of its content.
    answered(&gmm(&rig, &["seal-region", "b"])?, 0, &["sealed"])?;
    answered(&gmm(&rig, &["label-region", "b", "version=3"])?, 0, &["version"])
}
