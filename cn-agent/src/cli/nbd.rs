//! `cn-agent nbd`: serves a region as a block device, on a Unix socket, until a signal ends it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use cxloe_client::defaults::default_socket;
use cxloe_daemon::command_line::{Exit, Failure};
use cxloe_daemon::{Bound, LogFormat, Shutdown, Span, log};
use cxloe_fabric::model::Name;
use cxloe_nbd::port::{PortError, RegionLocation};
use cxloe_nbd::server::{Options, Server};
use tracing::info;

use super::failure::of_agent_by;

#[derive(Debug, Args)]
#[command(after_help = "\
A write is answered when the memory node has executed it, so a completed write survives the end of this
server and of the agent. TRIM is accepted and frees nothing: a region keeps its size, and a map of it
shows data everywhere.

Examples:
  cn-agent nbd --region scratch --socket /run/cxloe/scratch.nbd
  nbdinfo 'nbd+unix:///?socket=/run/cxloe/scratch.nbd'
  nbdcopy disk.img 'nbd+unix:///?socket=/run/cxloe/scratch.nbd'
  qemu-system-x86_64 … -drive file='nbd+unix:///scratch?socket=/run/cxloe/scratch.nbd',format=raw,if=virtio
  nbd-client -unix /run/cxloe/scratch.nbd /dev/nbd0 -b 4096 -N scratch     as root, after modprobe nbd")]
pub struct NbdArgs {
    /// The region; its name is also the name of the export
    #[arg(short, long, value_name = "NAME")]
    region: Name,
    /// The Unix socket to listen on; it is open to its owner only (`chown` changes that)
    #[arg(short, long, value_name = "PATH")]
    socket: PathBuf,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// Clients at a time; each takes a port of the agent
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Disconnect a client that has sent no request for this time [default: never]
    #[arg(long, value_name = "TIME")]
    idle: Option<Span>,
    /// Longest wait of a request for an agent or a memory node that does not answer, before it fails with EIO
    #[arg(long, default_value = "5s", value_name = "TIME")]
    wait: Span,
    /// The agent's socket [default: /run/cxloe/cn-agent.sock as root, else below $XDG_RUNTIME_DIR]
    #[arg(long, env = "CXLOE_AGENT", value_name = "PATH")]
    agent: Option<PathBuf>,
    /// Log filter: error, warn, info, debug, trace, or per part as in cxloe_cn=debug
    #[arg(long, default_value = log::FILTER_DEFAULT, value_name = "FILTER")]
    log: String,
    /// Format of log lines
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    log_format: LogFormat,
}

/// Serves clients until SIGTERM or SIGINT.
///
/// # Errors
/// When the region is not attached, or the socket cannot be bound.
pub fn run(args: &NbdArgs) -> Result<(), Failure> {
    let _log = log::start(&args.log, args.log_format);
    let ending = Shutdown::watch().map_err(Failure::failed)?;
    let place = RegionLocation {
        agent: args.agent.clone().unwrap_or_else(default_socket),
        region: args.region.to_string(),
        wait_limit: args.wait.0,
        ending: Arc::new(AtomicBool::new(false)),
    };
    // A region that does not exist fails here, at once; later errors are reported to clients.
    let size = place.find().map_err(of_port)?.size;
    let socket = Bound::bind(&args.socket, 0o600, "NBD server").map_err(Failure::failed)?;
    let options = Options {
        place,
        read_only: args.read_only,
        connections_max: usize::from(args.connections),
        idle: args.idle.map(|idle| idle.0),
    };
    let server = Server::start(socket, options).map_err(Failure::failed)?;
    info!(region = %args.region, size, socket = %args.socket.display(), read_only = args.read_only, "serving");
    ending.wait();
    drop(server);
    info!("ended");
    Ok(())
}

fn of_port(error: PortError) -> Failure {
    match error {
        PortError::Agent(error) => of_agent_by("--agent", error),
        PortError::NoRegion { .. } => Failure::new(Exit::NotFound, error),
        PortError::Moved { .. } | PortError::Ending | PortError::Memory(_) => Failure::failed(error),
    }
}
