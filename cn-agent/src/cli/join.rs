//! `cn-agent join`: has this machine let in as a compute node, and starts its agent.

use clap::Args;
use cxloe_cn::config::{RunArgs, Settings};
use cxloe_daemon::command_line::Failure;
use cxloe_daemon::join::{JoinArgs as Common, NodeSettings};
use cxloe_link::keys::node_key;

/// Arguments of `cn-agent join`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
The manager is known by the token: nothing else has to be trusted beforehand. The node gets a certificate of 30 days, which
it renews by itself, and a configuration file; then its service is started. A node at another interface is another one by
its CN id, and joins again, with a new token.

Examples:
  gmm token create --role cn                                         on the manager's side
  cn-agent join https://gmm.lab:7440 --token cx1.… -i enp3s0f0
  cn-agent join unix:/run/cxloe-gmm/gmm.sock -i enp3s0f0             on the manager's machine, as root")]
pub struct JoinArgs {
    #[command(flatten)]
    common: Common,
    /// Options of the agent, which go to its configuration file.
    #[command(flatten)]
    settings: Settings,
}

/// Joins, and runs the agent if that is to be done now.
///
/// # Errors
/// When the options do not work, the manager does not let it in, or the agent cannot be started.
pub fn run(args: JoinArgs) -> Result<(), Failure> {
    let JoinArgs { common, settings } = args;
    let file = common.join_node(&settings, |path| Ok(node_key(path).map_err(Failure::failed)?.public()))?;
    if common.run {
        let args = RunArgs { config: Some(file), print_config: false, settings: Settings::default() };
        return super::run::run(&args);
    }
    common.start(Settings::PROGRAM, &file)
}
