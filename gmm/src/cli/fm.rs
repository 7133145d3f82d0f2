//! `gmm fm`: sends requests to the FM API of a switch, of this manager or any other, and displays the answers.

mod ask;
mod endpoint;
mod show;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use cxloe_daemon::command_line::{Failure, output};
use cxloe_daemon::join::JoiningNode;
use cxloe_fabric::api::Party;
use cxloe_fabric::model::{ByteSize, Name};
use cxloe_fm::PORT_DEFAULT;
use cxloe_fm::client::Recipient;
use cxloe_fm::header::Dialect;

#[derive(Debug, Args)]
#[command(after_help = "\
Ports, virtual switches (VCS), vPPBs and logical devices (LD) are numbers, as the switch has them: `ports` and `vcs` list
them. A memory node is a port with LDs behind it, a compute node is a VCS.

Examples:
  gmm fm identify                                what the switch is
  gmm fm ports                                   what is at its ports
  gmm fm --port 0 ld-info                        what is behind port 0
  gmm fm --port 0 ld-alloc --set 1G --first 2    reserve 1 GiB for LD 2 there
  gmm fm bind --vcs 0 --vppb 0 --port 0 --ld 2   give it to compute node 0, and wait until it has it
  gmm fm unbind --vcs 0 --vppb 0                 take it back: the compute node writes back and releases it
  gmm fm background --abort                      abort the background operation, such as an unbinding that does not end
  gmm fm --port 0 dcd add --ld 2 --size 256M --tag scratch
  gmm fm raw 5101 0100                           any command: opcode and payload in hexadecimal
  gmm fm join https://gmm.lab:7440 --token cx1.… --name fm0     get the certificate that the FM API asks for")]
pub struct FmArgs {
    /// Address of the switch's FM API; without a port: 2508
    #[arg(
        long,
        global = true,
        env = "CXLOE_FM",
        default_value = "127.0.0.1:2508",
        value_name = "HOST[:PORT]"
    )]
    connect: String,
    /// File with the client's certificate and the authority to trust, as `gmm fm join` writes it [default:
    /// ~/.config/cxloe/fm.identity, if it exists]
    #[arg(long, global = true, env = "CXLOE_FM_IDENTITY", value_name = "FILE")]
    identity: Option<PathBuf>,
    /// Connect without TLS, to a switch that requires no certificate, such as one of
    /// `gmm serve --fm-insecure`
    #[arg(long, global = true)]
    insecure: bool,
    /// Layout of headers: that of the TCP client tools, or that of the specification
    #[arg(long, global = true, value_enum, default_value = "tools", value_name = "DIALECT")]
    dialect: Dialect,
    /// Port of the switch; requests that both the switch and the device behind the port could answer go to
    /// the device, through the tunnel
    #[arg(long, global = true, value_name = "PORT")]
    port: Option<u8>,
    #[command(subcommand)]
    command: FmCommand,
}

#[derive(Debug, Subcommand)]
enum FmCommand {
    /// Register this client with the manager: it gets a certificate of 30 days, which is renewed when it is used
    Join {
        /// URL of the manager: https://HOST:PORT, or its Unix socket on its own machine, where root needs no
        /// token
        url: String,
        /// A token made by `gmm token create --role fm`
        #[arg(long, env = cxloe_fabric::client::TOKEN_VARIABLE, hide_env_values = true)]
        token: Option<String>,
        /// Name of the client in the event log, and for `gmm revoke --fm`
        #[arg(long, default_value = "fm", value_name = "NAME")]
        name: Name,
    },
    /// Show the type, vendor and serial number of a switch or device
    Identify,
    /// Show the ports of the switch
    Ports {
        /// Ports to show [default: all]
        ports: Vec<u8>,
    },
    /// Suspend the host at an upstream port (hold it in reset), or resume it
    PortControl {
        /// Operation on the port
        #[arg(value_enum)]
        operation: PortOperation,
    },
    /// Show virtual switches and the bindings of their vPPBs
    Vcs {
        /// Virtual switches to show [default: all]
        ids: Vec<u8>,
        /// Include free vPPBs
        #[arg(long)]
        all: bool,
    },
    /// Bind a vPPB to a device or to one of its LDs
    Bind {
        #[command(flatten)]
        vppb: VppbArgs,
        /// The LD; none: the whole device
        #[arg(long, value_name = "LD")]
        ld: Option<u16>,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Unbind a vPPB: its memory is zeroed before anyone else gets it
    Unbind {
        #[command(flatten)]
        vppb: VppbArgs,
        /// When the host's memory is taken away: wait, managed or surprise
        #[arg(long, value_enum, default_value = "managed")]
        option: UnbindOption,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Have an AER event generated at a vPPB
    Aer {
        #[command(flatten)]
        vppb: VppbArgs,
        /// The error to generate, encoded as in the AER registers
        #[arg(long, value_parser = hexadecimal, value_name = "HEX")]
        error: u32,
    },
    /// Show the state of the background operation, running or last completed
    Background {
        /// Wait until the operation has ended
        #[arg(long)]
        wait: bool,
        /// Abort the operation: its remaining steps are skipped
        #[arg(long)]
        abort: bool,
    },
    /// Show the commands that a switch or device supports, and their effects
    Log,
    /// Show the event logs of a switch or device
    Events {
        /// Only this log: 0 informational, 1 warning, 2 failure, 3 fatal, 4 dynamic capacity
        #[arg(long, value_name = "LOG")]
        log: Option<u8>,
        /// Clear the events after showing them
        #[arg(long)]
        clear: bool,
    },
    /// Show the memory size and the number of LDs of an MLD (requires --port)
    LdInfo,
    /// Show or set the capacity reserved for LDs (requires --port)
    LdAlloc {
        /// Set the capacity: a size for each LD from --first on, multiples of 256 MiB
        #[arg(long, value_name = "SIZE", num_args = 1..)]
        set: Vec<ByteSize>,
        /// The first LD
        #[arg(long, default_value_t = 0, value_name = "LD")]
        first: u8,
    },
    /// Show or set quality of service (requires --port)
    Qos(QosArgs),
    /// Show or manage dynamic capacity (requires --port)
    Dcd {
        #[command(subcommand)]
        command: Option<DcdCommand>,
    },
    /// Read or write an LD's configuration space (requires --port)
    Config {
        /// The LD: 0 to 15
        #[arg(long, default_value_t = 0, value_name = "LD")]
        ld: u16,
        /// Offset of the first byte
        #[arg(value_parser = hexadecimal, value_name = "HEX")]
        offset: u32,
        /// Write these four bytes at the offset
        #[arg(long, value_parser = hexadecimal, value_name = "HEX")]
        write: Option<u32>,
    },
    /// Read an LD's component registers (requires --port)
    Registers {
        /// The LD: 0 to 15
        #[arg(long, default_value_t = 0, value_name = "LD")]
        ld: u16,
        /// Offset of the first byte
        #[arg(value_parser = hexadecimal, value_name = "HEX")]
        offset: u32,
        /// Number of bytes
        #[arg(long, default_value_t = 4, value_name = "BYTES")]
        length: u16,
    },
    /// Send any command, with its payload and its response in hexadecimal
    Raw {
        /// Opcode of the command, such as 0x5100
        #[arg(value_parser = hexadecimal, value_name = "OPCODE")]
        opcode: u32,
        /// Payload of the command, in hexadecimal
        #[arg(default_value = "", value_name = "HEX")]
        payload: String,
    },
}

#[derive(Debug, Clone, Copy, Args)]
struct VppbArgs {
    /// Number of the virtual switch
    #[arg(long, value_name = "VCS")]
    vcs: u8,
    /// Number of the vPPB in that virtual switch
    #[arg(long, value_name = "VPPB")]
    vppb: u8,
}

#[derive(Debug, Clone, Copy, Args)]
struct WaitArgs {
    /// Return as soon as the operation has started
    #[arg(long)]
    no_wait: bool,
}

#[derive(Debug, Clone, Copy, Args)]
struct QosArgs {
    /// Set what is enabled: 1 egress port congestion, 2 temporary throughput reduction, 3 both
    #[arg(long, value_name = "BITS")]
    enables: Option<u8>,
    /// Set the percentage of congestion that counts as moderate
    #[arg(long, value_name = "PERCENT")]
    moderate: Option<u8>,
    /// Set the percentage of congestion that counts as severe
    #[arg(long, value_name = "PERCENT")]
    severe: Option<u8>,
    /// The LD that --allocated and --limit apply to
    #[arg(long, default_value_t = 0, value_name = "LD")]
    ld: u8,
    /// Set the LD's share of the bandwidth, in 256ths
    #[arg(long, value_name = "N")]
    allocated: Option<u8>,
    /// Set the LD's bandwidth limit, in 256ths
    #[arg(long, value_name = "N")]
    limit: Option<u8>,
}

#[derive(Debug, Clone, Subcommand)]
enum DcdCommand {
    /// Show the device's dynamic-capacity configuration
    Info,
    /// Show the dynamic-capacity regions of a host
    Regions {
        /// The host, by its LD: 0 to 15
        #[arg(long, value_name = "LD")]
        ld: u16,
    },
    /// Show the extents of a host
    Extents {
        /// The host, by its LD: 0 to 15
        #[arg(long, value_name = "LD")]
        ld: u16,
    },
    /// Add capacity to a host
    Add {
        /// The host, by its LD: 0 to 15
        #[arg(long, value_name = "LD")]
        ld: u16,
        /// Size of the added capacity
        #[arg(long, value_name = "SIZE")]
        size: ByteSize,
        /// Tag of the capacity: up to 16 characters, or 32 hexadecimal digits
        #[arg(long, value_parser = tag, default_value = "", value_name = "TAG")]
        tag: [u8; 16],
    },
    /// Release capacity of a host
    Release {
        /// The host, by its LD: 0 to 15
        #[arg(long, value_name = "LD")]
        ld: u16,
        /// Tag of the capacity
        #[arg(long, value_parser = tag, value_name = "TAG")]
        tag: [u8; 16],
        /// Release without waiting for the host
        #[arg(long)]
        force: bool,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PortOperation {
    /// Assert PERST: suspend
    Assert,
    /// Deassert PERST: resume
    Deassert,
    /// Reset the bridge
    Reset,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum UnbindOption {
    /// Wait until the host has stopped
    Wait,
    /// Have the host write back and release the memory
    Managed,
    /// Take the memory away at once
    Surprise,
}

fn hexadecimal(text: &str) -> Result<u32, String> {
    let digits = text.trim_start_matches("0x").trim_end_matches('h');
    u32::from_str_radix(digits, 16).map_err(|_| format!("`{text}` is not a hexadecimal number such as 5101"))
}

fn tag(text: &str) -> Result<[u8; 16], String> {
    let mut tag = [0; 16];
    match (text.len(), u128::from_str_radix(text, 16)) {
        (32, Ok(number)) => return Ok(number.to_be_bytes()),
        (0..=16, _) => tag[..text.len()].copy_from_slice(text.as_bytes()),
        _ => return Err(format!("`{text}` is no tag: give up to 16 characters, or 32 hexadecimal digits")),
    }
    Ok(tag)
}

/// Sends the requests of a subcommand to the switch, over TLS if this client has joined, and prints the
/// answers.
///
/// # Errors
/// If the endpoint does not answer or refuses.
pub async fn run(args: FmArgs) -> Result<(), Failure> {
    let identity = args.identity.clone().unwrap_or_else(endpoint::identity_default);
    let command = match args.command {
        // `gmm fm join` asks the manager for a certificate, and does not use the FM API.
        FmCommand::Join { url, token, name } => {
            let node = Party::FmClient(name);
            let joining =
                JoiningNode { node, macs: Vec::new(), key: None, identity: &identity, take_over: false };
            return joining.at(&url, token.as_deref(), None).await.map(drop);
        }
        command => command,
    };
    let shown = !args.insecure && (args.identity.is_some() || identity.exists());
    let address = match args.connect.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => format!("{host}:{port}"),
        _ if args.connect.contains(':') && !args.connect.starts_with('[') => {
            format!("[{}]:{PORT_DEFAULT}", args.connect)
        }
        _ => format!("{}:{PORT_DEFAULT}", args.connect),
    };
    let mut client =
        endpoint::Endpoint::connect(&address, args.dialect, shown.then_some(identity.as_path())).await?;
    let recipient = args.port.map_or(Recipient::Switch, Recipient::Device);
    let mut commands =
        ask::Commands { client: &mut client, recipient, port: args.port, json: output::json_asked() };
    commands.carry_out(command).await
}
