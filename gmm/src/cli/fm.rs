//! `gmm fm`: asks the FM API of a switch, this manager's or any other's, and shows what it answers.

mod ask;
mod endpoint;
mod show;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use cxloe_daemon::command_line::{Failure, output};
use cxloe_daemon::join::Joining;
use cxloe_fabric::api::Party;
use cxloe_fabric::model::{ByteSize, Name};
use cxloe_fm::PORT_DEFAULT;
use cxloe_fm::client::Recipient;
use cxloe_fm::header::Dialect;

/// Arguments of `gmm fm`.
#[derive(Debug, Args)]
#[command(after_help = "\
Ports, virtual switches (VCS), vPPBs and logical devices (LD) are numbers, as the switch has them: `ports` and `vcs` list
them. A memory node is a port with LDs behind it, a compute node is a VCS.

Examples:
  gmm fm identify                                what the switch is
  gmm fm ports                                   what is at its ports
  gmm fm --port 0 ld-info                        what is behind port 0
  gmm fm --port 0 ld-alloc --set 1G --first 2    set 1 GiB aside for LD 2 there
  gmm fm bind --vcs 0 --vppb 0 --port 0 --ld 2   give it to compute node 0, and wait until it has it
  gmm fm unbind --vcs 0 --vppb 0                 take it back: the compute node writes back and lets go
  gmm fm background --abort                      break off what goes on, such as an unbinding that waits for ever
  gmm fm --port 0 dcd add --ld 2 --size 256M --tag scratch
  gmm fm raw 5101 0100                           any command: opcode and payload in hexadecimal
  gmm fm join https://gmm.lab:7440 --token cx1.… --name fm0     get the certificate that the FM API asks for")]
pub struct FmArgs {
    /// The switch's FM API; without a port: 2508
    #[arg(
        long,
        global = true,
        env = "CXLOE_FM",
        default_value = "127.0.0.1:2508",
        value_name = "HOST[:PORT]"
    )]
    connect: String,
    /// File with the certificate that is shown, and whom to trust, as `gmm fm join` writes it
    /// [default: ~/.config/cxloe/fm.identity, where it is there]
    #[arg(long, global = true, env = "CXLOE_FM_IDENTITY", value_name = "FILE")]
    identity: Option<PathBuf>,
    /// Without TLS: of a switch that asks for no certificate, such as one of `gmm serve --fm-insecure`
    #[arg(long, global = true)]
    insecure: bool,
    /// How headers are written: as the TCP client tools have it, or as the specification has it
    #[arg(long, global = true, value_enum, default_value = "tools", value_name = "DIALECT")]
    dialect: Dialect,
    /// The port meant; the device behind it is asked, through the tunnel, where the switch could be asked as well
    #[arg(long, global = true, value_name = "PORT")]
    port: Option<u8>,
    #[command(subcommand)]
    command: FmCommand,
}

#[derive(Debug, Subcommand)]
enum FmCommand {
    /// Have this client let in by the manager: it gets a certificate of 30 days, which is renewed when it is used
    Join {
        /// The manager: https://HOST:PORT, or its Unix socket on its own machine, for which root needs no token
        url: String,
        /// What `gmm token create --role fm` printed
        #[arg(long, env = cxloe_fabric::client::TOKEN_VARIABLE, hide_env_values = true)]
        token: Option<String>,
        /// What the client is called in the event log, and for `gmm revoke --fm`
        #[arg(long, default_value = "fm", value_name = "NAME")]
        name: Name,
    },
    /// What a switch or device is
    Identify,
    /// What is at the ports of the switch
    Ports {
        /// Only these
        ports: Vec<u8>,
    },
    /// Hold what is behind an upstream port in reset, or release it
    PortControl {
        /// What to do
        #[arg(value_enum)]
        operation: PortOperation,
    },
    /// Virtual switches and what their vPPBs are bound to
    Vcs {
        /// Only these
        ids: Vec<u8>,
        /// Free vPPBs as well
        #[arg(long)]
        all: bool,
    },
    /// Bind a vPPB to a device or an LD of it
    Bind {
        #[command(flatten)]
        vppb: VppbArgs,
        /// The LD; none: a device that is given away whole
        #[arg(long, value_name = "LD")]
        ld: Option<u16>,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Unbind a vPPB: its memory is zeroed before it is anybody else's
    Unbind {
        #[command(flatten)]
        vppb: VppbArgs,
        /// How
        #[arg(long, value_enum, default_value = "managed")]
        option: UnbindOption,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Have an AER event generated at a vPPB
    Aer {
        #[command(flatten)]
        vppb: VppbArgs,
        /// The error, as in the AER registers
        #[arg(long, value_parser = hexadecimal, value_name = "HEX")]
        error: u32,
    },
    /// The background operation that is under way, or was last
    Background {
        /// Wait for its end
        #[arg(long)]
        wait: bool,
        /// Break it off: what has not been done is left as it was
        #[arg(long)]
        abort: bool,
    },
    /// The commands a switch or device has, and their effects
    Log,
    /// The event logs of a switch or device
    Events {
        /// Only this log: 0 informational, 1 warning, 2 failure, 3 fatal, 4 dynamic capacity
        #[arg(long, value_name = "LOG")]
        log: Option<u8>,
        /// Clear them after showing them
        #[arg(long)]
        clear: bool,
    },
    /// What a device in slices is (with --port)
    LdInfo,
    /// Capacity set aside for LDs (with --port)
    LdAlloc {
        /// Set it: a size for each LD from --first on, multiples of 256 MiB
        #[arg(long, value_name = "SIZE", num_args = 1..)]
        set: Vec<ByteSize>,
        /// The first LD
        #[arg(long, default_value_t = 0, value_name = "LD")]
        first: u8,
    },
    /// Quality of service (with --port)
    Qos(QosArgs),
    /// Dynamic capacity (with --port)
    Dcd {
        #[command(subcommand)]
        command: Option<DcdCommand>,
    },
    /// Read an LD's configuration space (with --port)
    Config {
        /// The LD
        #[arg(long, default_value_t = 0, value_name = "LD")]
        ld: u16,
        /// First byte
        #[arg(value_parser = hexadecimal, value_name = "HEX")]
        offset: u32,
        /// Write these four bytes there
        #[arg(long, value_parser = hexadecimal, value_name = "HEX")]
        write: Option<u32>,
    },
    /// Read an LD's component registers (with --port)
    Registers {
        /// The LD
        #[arg(long, default_value_t = 0, value_name = "LD")]
        ld: u16,
        /// First byte
        #[arg(value_parser = hexadecimal, value_name = "HEX")]
        offset: u32,
        /// How many bytes
        #[arg(long, default_value_t = 4, value_name = "BYTES")]
        length: u16,
    },
    /// Any command, with its payload and its response in hexadecimal
    Raw {
        /// Its opcode
        #[arg(value_parser = hexadecimal, value_name = "OPCODE")]
        opcode: u32,
        /// Its payload
        #[arg(default_value = "", value_name = "HEX")]
        payload: String,
    },
}

#[derive(Debug, Clone, Copy, Args)]
struct VppbArgs {
    /// The virtual switch
    #[arg(long, value_name = "VCS")]
    vcs: u8,
    /// Its vPPB
    #[arg(long, value_name = "VPPB")]
    vppb: u8,
}

#[derive(Debug, Clone, Copy, Args)]
struct WaitArgs {
    /// Return as soon as it is started
    #[arg(long)]
    no_wait: bool,
}

#[derive(Debug, Clone, Copy, Args)]
struct QosArgs {
    /// Set what is on: 1 egress port congestion, 2 temporary throughput reduction, 3 both
    #[arg(long, value_name = "BITS")]
    enables: Option<u8>,
    /// Set the percentage of congestion that counts as moderate
    #[arg(long, value_name = "PERCENT")]
    moderate: Option<u8>,
    /// Set the percentage that counts as severe
    #[arg(long, value_name = "PERCENT")]
    severe: Option<u8>,
    /// The LD that --allocated and --limit are for
    #[arg(long, default_value_t = 0, value_name = "LD")]
    ld: u8,
    /// Set its share of the bandwidth, in 256ths
    #[arg(long, value_name = "N")]
    allocated: Option<u8>,
    /// Set its limit of the bandwidth, in 256ths
    #[arg(long, value_name = "N")]
    limit: Option<u8>,
}

#[derive(Debug, Clone, Subcommand)]
enum DcdCommand {
    /// What the device can do
    Info,
    /// The regions of a host
    Regions {
        /// The host: an LD
        #[arg(long, value_name = "LD")]
        ld: u16,
    },
    /// The extents of a host
    Extents {
        /// The host: an LD
        #[arg(long, value_name = "LD")]
        ld: u16,
    },
    /// Give a host more
    Add {
        /// The host: an LD
        #[arg(long, value_name = "LD")]
        ld: u16,
        /// How much
        #[arg(long, value_name = "SIZE")]
        size: ByteSize,
        /// What it is to be known as: up to 16 characters, or 32 hexadecimal digits
        #[arg(long, value_parser = tag, default_value = "", value_name = "TAG")]
        tag: [u8; 16],
    },
    /// Take what a host was given
    Release {
        /// The host: an LD
        #[arg(long, value_name = "LD")]
        ld: u16,
        /// What it is known as
        #[arg(long, value_parser = tag, value_name = "TAG")]
        tag: [u8; 16],
        /// Without asking the host
        #[arg(long)]
        force: bool,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PortOperation {
    /// Hold in reset (PERST)
    Assert,
    /// Release
    Deassert,
    /// Reset the bridge
    Reset,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum UnbindOption {
    /// Wait until the host is gone by itself
    Wait,
    /// Have the host write back and let go
    Managed,
    /// At once
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

/// Asks and shows.
///
/// # Errors
/// When the endpoint cannot be asked or refuses.
pub async fn run(args: FmArgs) -> Result<(), Failure> {
    let identity = args.identity.clone().unwrap_or_else(endpoint::identity_default);
    let command = match args.command {
        FmCommand::Join { url, token, name } => {
            let node = Party::FmClient(name);
            let joining = Joining { node, macs: Vec::new(), key: None, identity: &identity };
            return joining.at(&url, token.as_deref()).await.map(drop);
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
    let mut commands = ask::Commands {
        client: &mut client,
        recipient,
        port: args.port,
        json: output::form() == output::Form::Json,
    };
    commands.carry_out(command).await
}
