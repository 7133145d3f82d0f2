//! Joining: one command by which a node is admitted by the manager, gets its certificate, writes its configuration,
//! and starts.
//!
//! ```text
//!   mn-server join URL --token T -i eth0
//!     |  TLS key --> POST /v1/join --> certificate          DATA_DIR/mn-NAME.identity  (0600)
//!     |  flags, URL, identity                               /etc/cxloe/mn-server.toml
//!     `- systemctl enable --now mn-server, or --run
//! ```

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use cxloe_fabric::api::{ErrorCode, Join, Joined, Party};
use cxloe_fabric::client::Credentials;
use cxloe_fabric::model::{Mac, PublicKey, Token};
use cxloe_fabric::{Client, ClientError};

use crate::command_line::Failure;
use crate::identity::{NodeIdentity, TlsKey};
use crate::unit::unit_of;
use crate::{interface_name, to_stderr};

/// Maximum wait for a manager that does not listen yet.
const START_MAX: Duration = Duration::from_secs(10);
/// Maximum wait until a manager that answered over its Unix socket is reachable over the network.
const REACH_MAX: Duration = Duration::from_secs(5);
const START_PAUSE: Duration = Duration::from_millis(50);
/// Error texts of a connection attempt to a manager that does not listen.
const NOT_YET: [&str; 2] = ["Connection refused", "No such file"];

/// Options of every `join` command.
#[derive(Args, Clone, Debug)]
pub struct JoinArgs {
    /// The manager: https://HOST:PORT, or the Unix socket of a manager on this machine, for which root needs no token:
    /// unix:/run/cxloe-gmm/gmm.sock. The node registers at this URL, or at that of --manager; with a socket, at the
    /// manager's https address if the manager answers there
    #[arg(value_name = "URL")]
    pub url: String,

    /// Token, as printed by `gmm token create`
    #[arg(long, env = "CXLOE_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<String>,

    /// The configuration file to write; options in it are kept unless given here [default: in /etc/cxloe as
    /// root, else in ~/.config/cxloe]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Take the place of a node that runs under this name or address with another key; without this, such a node has to
    /// end first
    #[arg(long)]
    pub take_over: bool,

    /// Run the node in this process instead of starting the service
    #[arg(long)]
    pub run: bool,

    /// Do not start the node
    #[arg(long, conflicts_with = "run")]
    pub no_start: bool,

    /// Restart the service if it runs already
    #[arg(long, conflicts_with_all = ["run", "no_start"])]
    pub restart: bool,
}

/// Request to join, of a node or a client of the FM API.
#[derive(Debug)]
pub struct JoiningNode<'a> {
    pub node: Party,
    /// MAC addresses of the ports; the first identifies the node.
    pub macs: Vec<Mac>,
    /// Public key of the node's sessions, if it has one.
    pub key: Option<PublicKey>,
    pub identity: &'a Path,
    pub take_over: bool,
}

impl JoiningNode<'_> {
    /// Sends the request to join to the manager at `url` and writes the answer to the identity file. Returns the URL
    /// at which the node has to register: `named` if given, else `url`; for a Unix socket the manager's own URL, if
    /// it is reachable there.
    ///
    /// # Errors
    /// The manager cannot be reached or refuses, or the answer cannot be written.
    pub async fn at(self, url: &str, token: Option<&str>, named: Option<&str>) -> Result<String, Failure> {
        let JoiningNode { node, macs, key: session_key, identity, take_over } = self;
        // An empty variable CXLOE_TOKEN counts as no token.
        let token = token.filter(|text| !text.is_empty()).map(str::parse::<Token>).transpose();
        let token = token.map_err(Failure::usage)?;
        let key = TlsKey::kept_or_new(identity).map_err(Failure::failed)?;
        let mut credentials = token.map_or_else(Credentials::default, Credentials::of_token);
        // A node that has joined before shows its certificate; the manager then accepts new addresses of the node.
        if let Ok(before) = NodeIdentity::read(identity)
            && credentials.authority == before.credentials().authority
        {
            credentials.identity = before.credentials().identity;
        }
        if url.starts_with("https:") && credentials.authority.is_none() {
            return Err(Failure::usage(format!(
                "no token was given: run `gmm token create` on the manager's machine, then join {url} with --token TOKEN"
            )));
        }
        let client = Client::with(url, credentials).map_err(Failure::usage)?;
        let join = Join { node, tls_key: key.public(), key: session_key, macs, take_over };
        let joined = patiently(&client, &join).await?;
        let keep = |manager: &str| key.keep(&join.node, &joined, manager, identity).map_err(Failure::failed);
        let by_socket = url.starts_with("unix:");
        let mut manager = named.unwrap_or(if by_socket { &joined.manager } else { url });
        // Written before the manager is called at this URL, because the call needs the certificate.
        keep(manager)?;
        if named.is_none()
            && by_socket
            && let Err(why) = reached(manager, identity).await
        {
            to_stderr!(
                "Warning: {why}\nThe node is to register by {url} instead, where only root and the manager's own user may; \
                 --manager URL names another address"
            );
            manager = url;
            keep(manager)?;
        }
        to_stderr!("{} has joined at {manager}; its certificate is in {}", join.node, identity.display());
        Ok(manager.to_owned())
    }
}

impl JoinArgs {
    /// Path of the configuration file of `program`: that of `--config`, else the default.
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

    /// Creates the folder for the node's key and certificate, if there is none.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn make_folder(&self, folder: &Path) -> Result<(), Failure> {
        let failed = |error| Failure::failed(format!("cannot make {}: {error}", folder.display()));
        crate::identity::make_folder(folder).map_err(failed)
    }

    /// Sends the request `joining` to the manager and writes the answer to the identity file. Returns the URL at
    /// which the node has to register: `named`, if given.
    ///
    /// # Errors
    /// The manager cannot be reached or refuses, or the answer cannot be written.
    pub fn join(&self, joining: JoiningNode<'_>, named: Option<&str>) -> Result<String, Failure> {
        let joined = async { joining.at(&self.url, self.token.as_deref(), named).await };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| Failure::failed(format!("cannot start: {error}")))?.block_on(joined)
    }

    /// Writes the configuration of `program`, and returns the path of the file.
    ///
    /// # Errors
    /// The file cannot be written.
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
        // A draft is renamed over the file, so that a crash never leaves a part of a configuration.
        let draft = path.with_extension(format!("new-{}", std::process::id()));
        let mut file = fs::File::create(&draft).map_err(failed)?;
        writeln!(file, "# Written by `{program} join`. All keys: {program} --help.").map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        fs::rename(&draft, &path).map_err(failed)?;
        to_stderr!("{} is written", path.display());
        Ok(path)
    }

    /// Starts the systemd unit that runs `program` with the configuration `config`, if systemd runs this machine. A unit
    /// that runs already is left running, unless `restart` is set: its memory may be in use.
    ///
    /// # Errors
    /// systemd cannot start it.
    pub fn start(&self, program: &str, config: &Path) -> Result<(), Failure> {
        let by_hand = || to_stderr!("start it with: {program} run --config {}", config.display());
        if self.no_start || !Path::new("/run/systemd/system").exists() {
            by_hand();
            return Ok(());
        }
        let succeeds = |words: [&str; 2]| {
            let mut asked = Command::new("systemctl");
            let status = asked.args(words).stdout(Stdio::null()).stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        };
        // `systemctl cat` succeeds only for a unit that exists.
        let unit = unit_of(program, config).filter(|unit| succeeds(["cat", unit]));
        let Some(unit) = unit else {
            to_stderr!("no systemd unit of this machine runs {program} with {}", config.display());
            by_hand();
            return Ok(());
        };
        let orders = orders(succeeds(["is-active", &unit]), self.restart);
        if orders.is_empty() {
            to_stderr!(
                "{unit} goes on as it was; what has changed takes effect when it is restarted: systemctl restart {unit}"
            );
            return Ok(());
        }
        for order in orders {
            let done = Command::new("systemctl").args([*order, unit.as_str()]).status();
            if !done.as_ref().is_ok_and(std::process::ExitStatus::success) {
                let why = done.map_or_else(|error| error.to_string(), |status| status.to_string());
                by_hand();
                return Err(Failure::failed(format!("systemctl {order} {unit}: {why}")));
            }
        }
        to_stderr!("{unit} runs");
        Ok(())
    }
}

/// Commands of systemctl for a unit. A running unit is left alone unless it `may_restart`: other nodes may
/// use its memory.
fn orders(is_running: bool, may_restart: bool) -> &'static [&'static str] {
    match (is_running, may_restart) {
        (false, _) => &["enable", "start"],
        (true, true) => &["enable", "restart"],
        (true, false) => &[],
    }
}

/// Sends the request to join again while the manager, just started, does not listen.
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

/// Checks that the manager at `url` is reachable from this machine with the certificate in `identity`.
async fn reached(url: &str, identity: &Path) -> Result<(), String> {
    let identity = NodeIdentity::read(identity).map_err(|error| error.to_string())?;
    let client = Client::with(url, identity.credentials()).map_err(|error| error.to_string())?;
    match tokio::time::timeout(REACH_MAX, client.who_am_i()).await {
        Ok(answered) => answered.map(drop).map_err(|error| error.to_string()),
        Err(_) => Err(format!("the manager does not answer at {url} from here")),
    }
}

/// MAC address of a network interface.
///
/// # Errors
/// There is no such interface, or it has no MAC address.
pub fn mac_of(interface: &str) -> Result<Mac, Failure> {
    let addresses = nix::ifaddrs::getifaddrs()
        .map_err(|error| Failure::failed(format!("cannot list the network interfaces: {error}")))?;
    let name = interface_name(interface);
    let of_it = addresses.filter(|address| address.interface_name == name);
    let mac = of_it.filter_map(|address| address.address?.as_link_addr()?.addr()).next();
    mac.filter(|mac| *mac != [0; 6]).map(Mac).ok_or_else(|| {
        Failure::failed(format!(
            "there is no interface {interface} with a MAC address; `ip link` shows those there are"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_that_runs_is_restarted_only_if_that_is_asked_for() {
        assert_eq!(orders(true, false), [""; 0]);
        assert_eq!(orders(true, true), ["enable", "restart"]);
        assert_eq!([false, true].map(|may| orders(false, may)), [["enable", "start"]; 2]);
    }
}
