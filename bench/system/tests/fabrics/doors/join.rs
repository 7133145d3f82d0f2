//! Nodes that join, serve, start again, and are shown out.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use cxloe_lab::program;
use cxloe_system::outcome::{Outcome, ensure, eventually};
use cxloe_system::text;
use nix::sys::signal::Signal;

use super::{CN, Doors};

pub fn nodes_join_by_one_command_serve_and_start_again() -> Outcome {
    // Its pool is plain memory, and it starts again.
    cxloe_lab::expect_error("the memory node has lost its content");
    let mut doors = Doors::new()?;
    doors.join_mn()?;
    doors.join_cn()?;
    doors.gmm(&["create-region", "-s", "8M", "--owner", "cn0", "scratch"])?;
    doors.works("scratch", 1)?;

    let identity = doors.path("mn0.data").join("mn-mn0.identity");
    let mode = std::fs::metadata(&identity)?.permissions().mode();
    ensure(mode & 0o777 == 0o600, format!("{mode:o}"))?;
    let config = std::fs::read_to_string(doors.path("mn0.toml"))?;
    ensure(config.contains(&doors.url) && !config.contains("cx1."), config)?;

    // From the configuration alone, and with another start of the manager: nothing has to be given again.
    doors.end("mn0", Signal::SIGTERM)?;
    doors.end("gmm", Signal::SIGTERM)?;
    doors.start_gmm()?;
    let mut again = Command::new(program("mn-server")?);
    again.args(["run", "--config", text(&doors.path("mn0.toml"))]);
    doors.start("mn0", "mn", again)?;
    doors.says("mn0", "registered with the manager")?;
    doors.gmm(&["destroy-region", "--force", "scratch"])?;
    doors.gmm(&["create-region", "-s", "8M", "--owner", "cn0", "fresh"])?;
    doors.works("fresh", 2)?;

    let events = doors.gmm(&["list", "-E", "--json"])?;
    for who in ["\"memory node mn0\"", &format!("\"compute node {CN}\""), "\"uid 0\"", "\"token "] {
        ensure(events.contains(who), format!("nothing by {who}: {events}"))?;
    }
    Ok(())
}

pub fn a_node_that_is_revoked_is_out_until_it_joins_again() -> Outcome {
    // Its compute node says so too.
    cxloe_lab::expect_error("has taken the key of memory node");
    // Its pool is plain memory, and it starts again.
    cxloe_lab::expect_error("the memory node has lost its content");
    let doors = Doors::new()?;
    doors.join_mn()?;
    doors.join_cn()?;
    doors.gmm(&["create-region", "-s", "8M", "--owner", "cn0", "scratch"])?;
    doors.works("scratch", 1)?;
    doors.gmm(&["revoke", "mn0"])?;
    doors.says("mn0", "was revoked")?;
    doors.says("cn0", "it is not spoken with until it has joined again")?;
    eventually("mn0 is not heard of", || {
        doors
            .gmm(&["list", "-Mi", "--json"])
            .is_ok_and(|nodes| nodes.contains("\"unreachable\""))
            .then_some(())
    })?;
    doors.end("mn0", Signal::SIGTERM)?;
    doors.join_mn()?;
    eventually("mn0 is back", || {
        doors.gmm(&["list", "-Mi", "--json"]).is_ok_and(|nodes| nodes.contains("\"reachable\"")).then_some(())
    })
}
