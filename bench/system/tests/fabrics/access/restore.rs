//! The manager's machine is lost. A backup restores the fabric on another machine, and running nodes follow the new
//! manager without a command on their own machines.

use std::fs;

use cxloe_system::outcome::{Outcome, ensure, eventually};
use cxloe_system::{lines, text};
use nix::sys::signal::Signal;

use super::Doors;

pub fn a_lost_manager_is_restored_and_nodes_follow_by_themselves() -> Outcome {
    let mut doors = Doors::new()?;
    doors.join_mn()?;
    doors.join_cn()?;
    doors.gmm(&["create-region", "-s", "8M", "--owner", "cn0", "kept"])?;
    doors.works("kept", 1)?;
    let backup = doors.path("fabric.backup");
    doors.gmm(&["backup", text(&backup)])?;
    doors.end("gmm", Signal::SIGKILL)?;
    for lost in ["gmm.redb", "authority.pem", "ca.pem"] {
        fs::remove_file(doors.path(lost))?;
    }

    doors.folder = doors.path("elsewhere");
    fs::create_dir(&doors.folder)?;
    doors.start_gmm()?;
    doors.gmm(&["restore", text(&backup)])?;
    eventually("both nodes follow", || {
        let nodes = doors.gmm(&["list", "-MCi", "--json"]).ok()?;
        (nodes.matches("\"reachable\"").count() == 2).then_some(())
    })?;
    let refused = doors.gmm(&["status", "--json"])?;
    ensure(!refused.contains("has seen"), refused)?;
    // The data is there, and the manager commands the nodes.
    let (mut port, hpa) = doors.attached("kept")?;
    lines::verify(&mut port, hpa, 64 << 10, 1)?;
    doors.works("kept", 2)?;
    doors.gmm(&["create-region", "-s", "8M", "--owner", "cn0", "fresh"])?;
    doors.works("fresh", 3)
}
