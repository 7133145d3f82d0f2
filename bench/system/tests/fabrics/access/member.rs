//! Programs that are compute nodes of their own, in a fabric with access control: with the certificate and the key that
//! `cn-agent join` has written for their interface, they reach the manager over TLS, and their sessions are sealed.
//! Without certificate or key, an error names what is missing.

#![expect(unsafe_code, reason = "mapped memory is written through a raw pointer")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_lab::program;
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, LinkConfig, Middlewares};
use cxloe_port::connect::{Access, ConnectOptions, Connected};
use cxloe_port::inline::{InlineOptions, InlineRegion};
use cxloe_system::command::{output, succeeded};
use cxloe_system::outcome::{LIMIT, Outcome, ensure, eventually};
use cxloe_system::text;
use nix::sys::signal::Signal;

use super::{CN, Doors};

/// Limit on resident bytes of the region of 4 MiB.
const LOCAL: &str = "1048576";

/// Joins the compute node's interface to the fabric, without starting an agent; returns the data folder.
fn join_without_an_agent(doors: &Doors) -> Outcome<PathBuf> {
    let data = doors.path("cn0.data");
    let mut join = Command::new(program("cn-agent")?);
    join.args(["join", &doors.url, "-i", "cn0", "--name", "cn0", "--link", "packet", "--no-start"]);
    join.args(["--data-dir", text(&data), "--config", text(&doors.path("cn0.toml"))]);
    join.env("CXLOE_TOKEN", doors.token(&["--role", "cn"])?);
    succeeded(doors.lab.enter("cn", || output(&mut join))??)?;
    Ok(data)
}

/// Options by which a program on a machine that has joined connects to a region of its own.
fn member(doors: &Doors, data: PathBuf) -> ConnectOptions {
    ConnectOptions {
        name: "long".into(),
        link: LinkConfig { backend: Backend::Packet, ..LinkConfig::new("cn0") },
        extras: Middlewares::default(),
        wait: WaitStyle::default(),
        manager: doors.url.clone(),
        access: Access { data_dir: Some(data), ..Access::default() },
        region: None,
        size: 2 << 20,
        ways: Ways::One,
        granularity: Granularity::PAGE,
        timeout: LIMIT,
        rate_control: None,
    }
}

/// A revoked memory node may continue to answer: compute nodes send it no more requests after the manager has revoked
/// its key.
pub fn programs_get_errors_after_a_memory_node_was_revoked() -> Outcome {
    // The memory node restarts with an empty pool (anonymous memory), so this error is expected.
    cxloe_lab::expect_error("the memory node has lost its content");
    cxloe_lab::expect_error("has revoked the key of memory node");
    let doors = Doors::new()?;
    doors.join_mn()?;
    let options = member(&doors, join_without_an_agent(&doors)?);
    let (gmm, manager) = (program("gmm")?, doors.manager_url());
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let revoke = || {
        let mut gmm = Command::new(&gmm);
        gmm.args(["--manager", &manager, "revoke", "mn0"]).env_remove("CXLOE_TOKEN");
        let revoked = gmm.status().map_err(|e| words(&e))?;
        revoked.success().then_some(()).ok_or_else(|| revoked.to_string())
    };

    // A program with a line port gets errors from reads.
    doors.lab.enter("cn", || -> Result<(), String> {
        let Connected { mut port, hpa, lease, .. } = Connected::open(&options).map_err(|e| words(&e))?;
        port.write(hpa, &[7; 64]).map_err(|e| words(&e))?;
        revoke()?;
        eventually("reads are refused", || port.read(hpa).err()).map_err(|e| format!("{e:?}"))?;
        drop(lease);
        Ok(())
    })??;
    doors.end("mn0", Signal::SIGTERM)?;
    doors.join_mn()?;

    // A program with an inline mapping (it serves its own page faults): pages that it has written stay resident.
    doors.lab.enter("cn", || -> Result<(), String> {
        let inline = InlineOptions { lost_wait: Duration::ZERO, ..InlineOptions::default() };
        let mapped = InlineRegion::open(&options, inline).map_err(|e| words(&e))?;
        // The value differs each time, because a page that equals the memory node's copy is not written back.
        let mut value = 0_u8;
        let mut write = || {
            value = value.wrapping_add(1);
            // SAFETY: the address is the first byte of a live mapping, to which no reference exists.
            unsafe { mapped.as_ptr().write_volatile(value) }
        };
        write();
        mapped.flush().map_err(|e| words(&e))?;
        revoke()?;
        eventually("nothing is written back", || {
            write();
            mapped.flush().err()
        })
        .map_err(|e| format!("{e:?}"))?;
        drop(mapped);
        Ok(())
    })??;
    Ok(())
}

/// A program that is a compute node itself, on an interface that has joined, does not change the name that
/// the node has at the manager.
pub fn a_program_does_not_rename_its_node() -> Outcome {
    let doors = Doors::new()?;
    doors.join_mn()?;
    doors.join_cn()?;
    doors.end("cn0", Signal::SIGTERM)?;
    let options = member(&doors, doors.path("cn0.data"));
    let (gmm, manager) = (program("gmm")?, doors.manager_url());
    let names = || -> Result<String, String> {
        let mut list = Command::new(&gmm);
        list.args(["--manager", &manager, "list", "-Ci", "--json"]).env_remove("CXLOE_TOKEN");
        let listed = list.output().map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&listed.stdout).into_owned())
    };
    let during = doors.lab.enter("cn", || -> Result<String, String> {
        let connected = Connected::open(&options).map_err(|error| error.to_string())?;
        let names = names()?;
        connected.lease.end().map_err(|error| error.to_string())?;
        Ok(names)
    })??;
    ensure(during.contains("\"cn0\"") && !during.contains("long-"), during)?;
    let after = names()?;
    ensure(after.contains("\"cn0\"") && !after.contains("long-"), after)
}

/// The manager's certificates are valid for three seconds: after four, the initial one is refused everywhere.
pub fn a_program_keeps_its_certificate_for_as_long_as_it_runs() -> Outcome {
    let doors = Doors::certifying_for(Some(3))?;
    doors.join_mn()?;
    let data = join_without_an_agent(&doors)?;
    let identity = data.join("cn-cn0.identity");
    let before = std::fs::read_to_string(&identity)?;
    let options = member(&doors, data);
    doors.lab.enter("cn", || -> Result<(), String> {
        let connected = Connected::open(&options).map_err(|error| error.to_string())?;
        // The wait exceeds the validity of the certificate, so a new one has been issued meanwhile.
        std::thread::sleep(Duration::from_secs(4));
        connected.port.close().map_err(|error| error.to_string())?;
        connected.lease.end().map_err(|error| error.to_string())
    })??;
    ensure(std::fs::read_to_string(&identity)? != before, "the next one finds the new certificate")?;
    // The memory node's daemon has renewed its certificate as well.
    let nodes = doors.gmm(&["list", "-M", "--json"])?;
    ensure(nodes.contains("\"reachable\""), nodes)
}

pub fn programs_with_a_link_of_their_own_join_over_tls() -> Outcome {
    let doors = Doors::new()?;
    doors.join_mn()?;
    let data = join_without_an_agent(&doors)?;
    let (identity, key) = (data.join("cn-cn0.identity"), data.join("cn-cn0.key"));

    // A program in Rust: the line port of the benchmark, with a region of its own.
    let nobody = doors.path("nobody");
    let verify = |more: &[&str]| -> Outcome<std::process::Output> {
        let mut verify = Command::new(program("cxloe-bench")?);
        verify.args(["verify", "-i", "cn0", "--link", "packet", "--manager", &doors.url, "--size", "2M"]);
        verify.args(["--no-echo", "--json"]).args(more).env_remove("CXLOE_TOKEN");
        doors.lab.enter("cn", || output(&mut verify))?
    };
    // On a machine that has joined, certificate and key are found by default; elsewhere options name them.
    let by_name = ["--identity", text(&identity), "--node-key", text(&key), "--data-dir", text(&nobody)];
    for way in [&["--data-dir", text(&data)][..], &by_name] {
        let output_text = succeeded(verify(way)?)?;
        ensure(output_text.contains("\"frames\": \"sealed\""), output_text)?;
    }
    for way in [&["--data-dir", text(&nobody)][..], &["--node-key", text(&key), "--data-dir", text(&nobody)]]
    {
        let unknown = verify(way)?;
        let output_text = String::from_utf8_lossy(&unknown.stderr);
        ensure(!unknown.status.success() && output_text.contains("which authority to trust"), output_text)?;
    }

    // A program in C: an inline mapping of the region.
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
