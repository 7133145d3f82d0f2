//! `mn-server join`: has this machine let in as a memory node, and starts it.

use clap::Args;
use cxloe_daemon::command_line::Failure;
use cxloe_daemon::join::{JoinArgs as Common, NodeSettings};
use cxloe_link::keys::node_key;
use cxloe_mn::config::{Cli as RunArgs, Settings};

/// Arguments of `mn-server join`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
The manager is known by the token: nothing else has to be trusted beforehand. The node gets a certificate of 30 days, which
it renews by itself, and a configuration file; then its service is started. A node at another interface, or with another
address, joins again, with a new token.

Examples:
  gmm token create --role mn                                                       on the manager's side
  mn-server join https://gmm.lab:7440 --token cx1.… -i enp3s0f0 --pool-size 16G
  mn-server join unix:/run/cxloe-gmm/gmm.sock -i enp3s0f0 --pool-size 16G          on the manager's machine, as root")]
pub struct JoinArgs {
    #[command(flatten)]
    common: Common,
    /// Options of the node, which go to its configuration file.
    #[command(flatten)]
    settings: Settings,
}

/// Joins. Returns how to run the node, if that is to be done now.
///
/// # Errors
/// When the options do not work, the manager does not let it in, or the service cannot be started.
pub fn run(args: JoinArgs) -> Result<Option<RunArgs>, Failure> {
    let JoinArgs { common, settings } = args;
    let key_in = |path: &std::path::Path| Ok(node_key(path).map_err(Failure::failed)?.public());
    let file = common.join_node(&settings, key_in)?;
    if common.run {
        return Ok(Some(RunArgs { config: Some(file), print_config: false, settings: Settings::default() }));
    }
    common.start(Settings::PROGRAM, &file).map(|()| None)
}
