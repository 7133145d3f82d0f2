//! A switch that carries shorter frames than the links of both nodes: it drops longer ones without an error.

use std::process::Command;

use cxloe_lab::{Lab, LabPrivilege};
use cxloe_system::pair::Pair;
use cxloe_system::{Outcome, Test, ensure, eventually};
use serde_json::Value;

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    vec![Test::new("a_narrow_path_is_named_and_left_once_it_is_wide", a_narrow_path_is_named)]
}

/// The memory node's session, as `cn-agent sessions --json` prints it.
fn session(pair: &Pair) -> Option<Value> {
    let output = pair.cli(&["sessions", "--json"]).ok()?;
    serde_json::from_slice::<Vec<Value>>(&output.stdout).ok()?.into_iter().next()
}

fn set_mtu(pair: &Pair, port: &str, bytes: &str) -> Outcome {
    let mut ip = Command::new("ip");
    ip.args(["link", "set", "dev", port, "mtu", bytes]);
    let done = pair.lab.enter("switch", || ip.status())??;
    ensure(done.success(), format!("{port}: {done}"))
}

/// Both links have an MTU of 9000, and one port of the switch has one of 1500. Pages are read and written, the log and
/// `sessions` name the path, and long frames are used once the port carries them.
fn a_narrow_path_is_named() -> Outcome {
    let network = Lab::builder()
        .namespace("cn")
        .namespace("mn")
        .namespace("switch")
        .veth("cn", "cn0", "switch", "port-cn")
        .veth("mn", "mn0", "switch", "port-mn")
        .bridge("switch", "br0", &["port-cn", "port-mn"])
        .mtu(9000);
    let pair = Pair::on(network)?;
    set_mtu(&pair, "port-mn", "1500")?;
    pair.start_all("anon", &[])?;
    let (mut port, hpa) = pair.written(1)?;
    cxloe_system::pair::verify(&mut port, hpa, 1)?;
    let narrow = session(&pair).ok_or("no session is listed")?;
    ensure(narrow["max_frame"] == 1514 && narrow["path_loses"].as_u64() > Some(4000), narrow.to_string())?;
    pair.says("agent", "the path loses frames of")?;
    let shown = String::from_utf8_lossy(&pair.cli(&["sessions"])?.stdout).into_owned();
    ensure(shown.contains("has an MTU below 4137"), shown)?;

    set_mtu(&pair, "port-mn", "9000")?;
    eventually("long frames are used", || {
        session(&pair).filter(|session| session["max_frame"].as_u64() > Some(4000))
    })?;
    let wide = session(&pair).ok_or("no session is listed")?;
    ensure(wide["path_loses"].is_null(), wide.to_string())?;
    cxloe_system::pair::verify(&mut port, hpa, 1)
}
