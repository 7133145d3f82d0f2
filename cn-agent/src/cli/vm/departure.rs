//! `cn-agent vm move`: asks the process that runs a virtual machine to move it, and shows the progress.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use clap::Args;
use cxloe_client::client;
use cxloe_daemon::command_line::{Exit, Failure, output};
use cxloe_daemon::to_stderr;
use cxloe_fabric::client::TOKEN_VARIABLE;
use cxloe_fabric::model::Name;
use cxloe_vmm::migration::sender::MoveAddress;
use cxloe_vmm::migration::ticket::Ticket;
use serde_json::json;

use super::control::{self, MoveProgress, MoveRequest};
use crate::cli::SocketArgs;
use crate::cli::failure::of_agent;

#[derive(Debug, Args)]
#[command(after_help = "\
The machine's memory is a region, which is handed over: nothing of it is copied. While the guest runs, dirty
pages are written back; then it is stopped, QEMU's state of devices goes to the other side, the region gets its
new owner, and the guest goes on there. If anything fails before the region is handed over, the guest goes on
here; afterwards the other side has all that it needs. Ctrl-C stops the move as long as the guest can go on here.

The order goes to the manager with the token in CXLOE_TOKEN, if it asks for one: a tenant's that has both compute
nodes, or an administrator's.

Examples:
  At the other compute node, with the command line of the machine:
    cn-agent vm --region web --local 2G --incoming 0.0.0.0:7450 --ticket web.ticket -- qemu-system-x86_64 …
  Here, once the file web.ticket was copied from there:
    cn-agent vm move web --to 10.0.0.2:7450 --ticket web.ticket --dry-run
    cn-agent vm move web --to 10.0.0.2:7450 --ticket web.ticket

Exit codes: 0 moved (or possible), 5 the machine stays here, 1 it has moved and did not report, or is stopped.")]
pub struct MoveArgs {
    /// The region that is the machine's memory
    region: Name,
    /// Address at which the other compute node waits: HOST:PORT, or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    to: MoveAddress,
    /// File with the secret that the other compute node has written
    #[arg(long, value_name = "FILE")]
    ticket: PathBuf,
    /// Only compare the two compute nodes
    #[arg(long)]
    dry_run: bool,
    /// The manager, as for `gmm` [default: that of this machine's agent]
    #[arg(long, env = "CXLOE_MANAGER", value_name = "URL")]
    manager: Option<String>,
    /// Control socket of the machine [default: vm-REGION.sock in the folder of the agent's default socket]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    #[command(flatten)]
    socket: SocketArgs,
}

/// Moves a machine, and prints progress and outcome.
///
/// # Errors
/// When the machine is not reached, or did not move.
pub fn run(args: &MoveArgs) -> Result<(), Failure> {
    let ticket = Ticket::read(&args.ticket).map_err(Failure::failed)?;
    let manager = match args.manager.clone().filter(|url| !url.is_empty()) {
        Some(url) => url,
        None => client::node(&args.socket.path()).map_err(of_agent)?.manager,
    };
    let token = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
    let path = args.control.clone().unwrap_or_else(|| control::path(args.region.as_str()));
    let stream = UnixStream::connect(&path).map_err(|error| {
        Failure::new(
            Exit::NotFound,
            format!(
                "no machine on region {} can be reached at {}: {error}; it has to be a QEMU that `cn-agent vm --region {}` \
                 runs on this compute node, for this user",
                args.region,
                path.display(),
                args.region
            ),
        )
    })?;
    let request = MoveRequest {
        to: args.to.to_string(),
        ticket: ticket.reveal(),
        dry_run: args.dry_run,
        manager,
        token,
    };
    let line = format!("{}\n", serde_json::to_string(&request).map_err(Failure::failed)?);
    (&stream).write_all(line.as_bytes()).map_err(Failure::failed)?;
    for line in BufReader::new(&stream).lines() {
        let line = line.map_err(Failure::failed)?;
        match serde_json::from_str(&line).map_err(Failure::failed)? {
            MoveProgress::Step(step) => to_stderr!("{step}"),
            MoveProgress::End { outcome, reason, target, stopped_us, state_bytes, resident_pages } => {
                let stopped_ms = stopped_us.map(|us| us as f64 / 1000.0);
                output::print(
                    json!({
                        "region": args.region, "outcome": outcome, "target": target, "reason": reason,
                        "stopped_ms": stopped_ms, "state_bytes": state_bytes, "resident_pages": resident_pages,
                    }),
                    false,
                )?;
                let reason = reason.unwrap_or_default();
                return match outcome.as_str() {
                    "possible" | "moved" => Ok(()),
                    "stayed" => Err(Failure::new(Exit::Refused, format!("the machine stays here: {reason}"))),
                    "broken" => {
                        Err(Failure::failed(format!("the machine stays here and is stopped: {reason}")))
                    }
                    _ => Err(Failure::failed(format!(
                        "the machine has moved, and has not reported that it runs: {reason}; look at it there"
                    ))),
                };
            }
        }
    }
    Err(Failure::failed(
        "the process that runs the machine has ended; `gmm list -R` shows whose the region is: there the machine goes on",
    ))
}
