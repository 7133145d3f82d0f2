//! Programs that are compute nodes of their own, in a fabric with rights: with the certificate and the key that `cn-agent
//! join` has written for their interface, they reach the manager over TLS, and their sessions are sealed. Without, they are
//! told what is missing.

use std::path::Path;
use std::process::Command;

use cxloe_lab::program;
use cxloe_system::command::{output, succeeded};
use cxloe_system::outcome::{Outcome, ensure};
use cxloe_system::text;

use super::{CN, Doors};

/// What of the region of 4 MiB may be in this machine.
const LOCAL: &str = "1048576";

pub fn programs_with_a_link_of_their_own_join_over_tls() -> Outcome {
    let doors = Doors::new()?;
    doors.join_mn()?;
    let data = doors.path("cn0.data");
    let mut join = Command::new(program("cn-agent")?);
    join.args(["join", &doors.url, "-i", "cn0", "--name", "cn0", "--link", "packet", "--no-start"]);
    join.args(["--data-dir", text(&data), "--config", text(&doors.path("cn0.toml"))]);
    join.env("CXLOE_TOKEN", doors.token(&["--role", "cn"])?);
    succeeded(doors.lab.enter("cn", || output(&mut join))??)?;
    let (identity, key) = (data.join("cn-cn0.identity"), data.join("cn-cn0.key"));

    // In Rust: the line port of the benchmark, with a region of its own.
    let verify = |identity: Option<&Path>| -> Outcome<std::process::Output> {
        let mut verify = Command::new(program("cxloe-bench")?);
        verify.args(["verify", "-i", "cn0", "--link", "packet", "--manager", &doors.url, "--size", "2M"]);
        verify.args(["--no-echo", "--node-key", text(&key)]).env_remove("CXLOE_TOKEN");
        if let Some(identity) = identity {
            verify.arg("--identity").arg(identity);
        }
        doors.lab.enter("cn", || output(&mut verify))?
    };
    succeeded(verify(Some(&identity))?)?;
    let unknown = verify(None)?;
    let said = String::from_utf8_lossy(&unknown.stderr);
    ensure(!unknown.status.success() && said.contains("which authority to trust"), said)?;

    // In C: an inline mapping.
    doors.gmm(&["create-region", "-s", "4M", "--owner", CN, "scratch"])?;
    let libraries = program("cn-agent")?.parent().ok_or("programs lie in a folder")?.to_path_buf();
    let c = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cn-agent/c");
    let records = doors.path("records");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O1", "-pthread", "-I"]).arg(c.join("include")).arg(c.join("examples/records.c"));
    cc.arg("-o").arg(&records).arg("-L").arg(&libraries).arg("-lcxloe");
    cc.arg(format!("-Wl,-rpath,{}", libraries.display()));
    succeeded(output(&mut cc)?)?;
    let mut run = Command::new(&records);
    run.args(["scratch", LOCAL, "cn0", &doors.url]).env_remove("CXLOE_TOKEN");
    run.env("CXLOE_IDENTITY", &identity).env("CXLOE_NODE_KEY", &key);
    succeeded(doors.lab.enter("cn", || output(&mut run))??)?;
    let events = doors.gmm(&["list", "-E", "--json", "--who", &format!("compute node {CN}")])?;
    ensure(events.contains("compute_node_registered"), events)
}
