//! Nodes that join a fabric, serve, restart, and are removed.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use cxloe_lab::program;
use cxloe_system::command::succeeded;
use cxloe_system::outcome::{Outcome, ensure, eventually};
use cxloe_system::text;
use nix::sys::signal::Signal;

use super::{ADDRESS, CN, Doors, refused};

pub fn nodes_join_by_one_command_serve_and_start_again() -> Outcome {
    // The memory node restarts with an empty pool (anonymous memory), so this error is expected.
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

    // The node starts with its configuration file alone, even after a restart of the manager: no option has to be
    // repeated.
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
    // The compute node logs the revocation as well, so this error is expected.
    cxloe_lab::expect_error("has revoked the key of memory node");
    // The memory node restarts with an empty pool (anonymous memory), so this error is expected.
    cxloe_lab::expect_error("the memory node has lost its content");
    let doors = Doors::new()?;
    doors.join_mn()?;
    doors.join_cn()?;
    doors.gmm(&["create-region", "-s", "8M", "--owner", "cn0", "scratch"])?;
    doors.works("scratch", 1)?;
    doors.gmm(&["revoke", "mn0"])?;
    doors.says("mn0", "was revoked")?;
    doors.says("cn0", "no session with it until it has joined again")?;
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

/// After a node has joined through a socket, its configuration contains the manager's https address if the manager
/// answers there, and the socket otherwise.
pub fn the_configuration_gets_an_address_that_works() -> Outcome {
    let doors = Doors::new()?;
    let written = |name: &str, url: &str, more: &[&str]| -> Outcome<String> {
        let words = doors.join_words(name);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let join = [&["join", url], &words[2..], &["--no-start"], more].concat();
        succeeded(doors.neighbour("mn-server", None, &join)?)?;
        let config = std::fs::read_to_string(doors.path(&format!("{name}.toml")))?;
        let url = config.lines().find_map(|line| line.strip_prefix("manager = "));
        Ok(url.unwrap_or_default().trim_matches('"').to_owned())
    };
    let over_tls = written("mn1", &doors.manager_url(), &[])?;
    ensure(over_tls == doors.url, over_tls)?;
    let other = doors.start_other(&[])?;
    eventually("it listens", || doors.path("other").join("gmm.sock").exists().then_some(()))?;
    let named = written("mn2", &other, &["--manager", "https://gmm.lab:7440"])?;
    ensure(named == "https://gmm.lab:7440", named)?;
    let by_socket = written("mn2", &other, &[])?;
    ensure(by_socket == other, by_socket)?;

    // The written configuration suffices to start the node.
    let mut run = Command::new(program("mn-server")?);
    run.args(["run", "--prefault", "false", "--config", text(&doors.path("mn2.toml"))]);
    doors.start("mn2", "mn", run)?;
    doors.says("mn2", "registered with the manager")
}

/// An http:// URL of a manager with TLS, or an https:// URL of a manager without, gives an error that names the
/// mistake.
pub fn a_wrong_scheme_is_named() -> Outcome {
    let doors = Doors::new()?;
    let plain = doors.url.replace("https:", "http:");
    let token = doors.token(&["--role", "mn"])?;
    let mut words = doors.join_words("mn0");
    words[1] = plain.clone();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    refused(&doors.neighbour("mn-server", Some(&token), &words)?, "uses TLS: write https://")?;
    let status = ["--manager", &plain, "status"];
    refused(&doors.neighbour("gmm", Some(&token), &status)?, "uses TLS: write https://")?;
    // Programs with a link of their own use another, small HTTP client, which has to notice the mistake as
    // well.
    let latency = ["latency", "-i", "mn0", "--link", "packet", "--insecure", "--manager", &plain];
    refused(&doors.neighbour("cxloe-bench", None, &latency)?, "uses TLS: write https://")?;

    doors.end("gmm", Signal::SIGTERM)?;
    let mut gmm = Command::new(program("gmm")?);
    gmm.args(["serve", "--insecure", "--listen", &format!("{ADDRESS}:7440")]);
    gmm.args(["--store", text(&doors.path("open.redb")), "--port-file", text(&doors.path("open"))]);
    doors.start("open", "cn", gmm)?;
    eventually("it listens", || doors.path("open").exists().then_some(()))?;
    let over_tls = format!("https://{ADDRESS}:7440");
    let status = ["--manager", &over_tls, "status"];
    refused(&doors.neighbour("gmm", Some(&token), &status)?, "uses no TLS")?;
    let latency = ["latency", "-i", "mn0", "--link", "packet", "--insecure", "--manager", &over_tls];
    refused(&doors.neighbour("cxloe-bench", Some(&token), &latency)?, "uses no TLS")
}
