//! Joining: one command by which a node is let in by the manager, gets its certificate, writes its configuration, and
//! starts.
//!
//! ```text
//!   mn-server join URL --token T -i eth0
//!     |  TLS key --> POST /v1/join --> certificate          DATA_DIR/mn-NAME.identity  (0600)
//!     |  flags, URL, identity                               /etc/cxloe/mn-server.toml
//!     `- systemctl enable --now mn-server, or --run
//! ```

mod node;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use cxloe_fabric::api::{ErrorCode, Join, Joined, Party};
use cxloe_fabric::client::Credentials;
use cxloe_fabric::model::{Mac, PublicKey, Token};
use cxloe_fabric::{Client, ClientError};

use crate::command_line::Failure;
use crate::identity::{NodeIdentity, TlsKey};
use crate::to_stderr;
pub use node::{FilledIn, NodeDescription, NodeSettings};

/// How long a manager that does not listen yet is waited for.
const START_MAX: Duration = Duration::from_secs(10);
const START_PAUSE: Duration = Duration::from_millis(50);
/// What connecting says where nobody listens.
const NOT_YET: [&str; 2] = ["Connection refused", "No such file"];

/// What every node is told to join with.
#[derive(Args, Clone, Debug)]
pub struct JoinArgs {
    /// The manager: https://HOST:PORT, or the Unix socket of a manager on this machine, for which root needs no token:
    /// unix:/run/cxloe-gmm/gmm.sock
    #[arg(value_name = "URL")]
    pub url: String,

    /// What `gmm token create` printed
    #[arg(long, env = "CXLOE_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<String>,

    /// The configuration file to write; options that it has already stay, unless given here [default: in /etc/cxloe as
    /// root, else in ~/.config/cxloe]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Be the node from then on, instead of starting the service
    #[arg(long)]
    pub run: bool,

    /// Start nothing
    #[arg(long, conflicts_with = "run")]
    pub no_start: bool,
}

/// A node, or a client of the FM API, that is to join.
#[derive(Debug)]
pub struct Joining<'a> {
    /// Which.
    pub node: Party,
    /// The addresses of its ports, the one that identifies it first.
    pub macs: Vec<Mac>,
    /// The public half of the key of its sessions, if it has one.
    pub key: Option<PublicKey>,
    /// Where its TLS key and certificate are kept.
    pub identity: &'a Path,
}

impl Joining<'_> {
    /// Asks the manager at `url` to let it in, and keeps what it answers. Returns the URL under which the manager is reached
    /// over the network.
    ///
    /// # Errors
    /// When the manager cannot be asked or refuses, or the answer cannot be kept.
    pub async fn at(self, url: &str, token: Option<&str>) -> Result<String, Failure> {
        let Joining { node, macs, key: session_key, identity } = self;
        let token = token.filter(|text| !text.is_empty()).map(str::parse::<Token>).transpose();
        let token = token.map_err(Failure::usage)?;
        let key = TlsKey::kept_or_new(identity).map_err(Failure::failed)?;
        let mut credentials = token.map_or_else(Credentials::default, Credentials::of_token);
        // Who has joined here before shows that it has the key: so it may come with other addresses.
        if let Ok(before) = NodeIdentity::read(identity)
            && credentials.authority == before.credentials().authority
        {
            credentials.identity = before.credentials().identity;
        }
        let client = Client::with(url, credentials).map_err(Failure::usage)?;
        let join = Join { node, tls_key: key.public(), key: session_key, macs };
        let joined = patiently(&client, &join).await?;
        let manager = if url.starts_with("unix:") { joined.manager.clone() } else { url.to_owned() };
        key.keep(&join.node, &joined, &manager, identity).map_err(Failure::failed)?;
        to_stderr!("{} has joined at {manager}; its certificate is in {}", join.node, identity.display());
        Ok(manager)
    }
}

impl JoinArgs {
    /// The configuration file of `program`.
    pub fn config(&self, program: &str) -> PathBuf {
        let default = || {
            let folder = if nix::unistd::geteuid().is_root() {
                PathBuf::from("/etc/cxloe")
            } else {
                let home = || std::env::home_dir().unwrap_or_default().join(".config");
                std::env::var_os("XDG_CONFIG_HOME").map_or_else(home, PathBuf::from).join("cxloe")
            };
            folder.join(format!("{program}.toml"))
        };
        self.config.clone().unwrap_or_else(default)
    }

    /// Makes the folder in which the node keeps its key and its certificate, if there is none.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn make_folder(&self, folder: &Path) -> Result<(), Failure> {
        let failed = |error| Failure::failed(format!("cannot make {}: {error}", folder.display()));
        crate::identity::make_folder(folder).map_err(failed)
    }

    /// Asks the manager to let `joining` in, and keeps what it answers. Returns the URL that the node has to register at.
    ///
    /// # Errors
    /// When the manager cannot be asked or refuses, or the answer cannot be kept.
    pub fn join(&self, joining: Joining<'_>) -> Result<String, Failure> {
        let joined = async { joining.at(&self.url, self.token.as_deref()).await };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| Failure::failed(format!("cannot start: {error}")))?.block_on(joined)
    }

    /// Writes the configuration of `program`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_config(&self, program: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.config(program);
        let failed = |error: std::io::Error| {
            Failure::failed(format!(
                "cannot write {}: {error}; give another place with --config",
                path.display()
            ))
        };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let draft = path.with_extension(format!("new-{}", std::process::id()));
        let mut file = fs::File::create(&draft).map_err(failed)?;
        writeln!(file, "# Written by `{program} join`. All keys: {program} --help.").map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        fs::rename(&draft, &path).map_err(failed)?;
        to_stderr!("{} is written", path.display());
        Ok(path)
    }

    /// Starts the service of `program`, where there is one.
    ///
    /// # Errors
    /// When systemd cannot start it.
    pub fn start(&self, program: &str, config: &Path) -> Result<(), Failure> {
        let by_hand = || to_stderr!("start it with: {program} run --config {}", config.display());
        if self.no_start || !Path::new("/run/systemd/system").exists() {
            by_hand();
            return Ok(());
        }
        for words in [["enable", program], ["restart", program]] {
            let done = Command::new("systemctl").args(words).status();
            if !done.as_ref().is_ok_and(std::process::ExitStatus::success) {
                let why = done.map_or_else(|error| error.to_string(), |status| status.to_string());
                by_hand();
                return Err(Failure::failed(format!("systemctl {} {program}: {why}", words[0])));
            }
        }
        to_stderr!("{program} runs");
        Ok(())
    }
}

/// Asks for as long as a manager may take that was started a moment ago.
async fn patiently(client: &Client, join: &Join) -> Result<Joined, ClientError> {
    let started = Instant::now();
    loop {
        match client.join(join).await {
            Err(ClientError::Unreachable { reason, .. })
                if started.elapsed() < START_MAX && NOT_YET.iter().any(|yet| reason.contains(yet)) => {}
            Err(error) if started.elapsed() < START_MAX && error.code() == Some(ErrorCode::Unavailable) => {}
            answered => return answered,
        }
        tokio::time::sleep(START_PAUSE).await;
    }
}

/// The MAC address of a network interface.
///
/// # Errors
/// When there is no such interface, or it has none.
pub fn mac_of(interface: &str) -> Result<Mac, Failure> {
    let addresses = nix::ifaddrs::getifaddrs()
        .map_err(|error| Failure::failed(format!("cannot list the network interfaces: {error}")))?;
    let of_it = addresses.filter(|address| address.interface_name == interface);
    let mac = of_it.filter_map(|address| address.address?.as_link_addr()?.addr()).next();
    mac.filter(|mac| *mac != [0; 6]).map(Mac).ok_or_else(|| {
        Failure::failed(format!(
            "there is no interface {interface} with a MAC address; `ip link` shows those there are"
        ))
    })
}
