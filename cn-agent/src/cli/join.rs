//! `cn-agent join`: registers this machine as a compute node, and starts its agent.

use clap::Args;
use cxloe_cn::config::{RunArgs, Settings};
use cxloe_daemon::OptionSources;
use cxloe_daemon::command_line::Failure;
use cxloe_daemon::join::JoinArgs as Common;
use cxloe_node::{ProgramSettings, join_node};

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
    /// Options of the agent, which are written to its configuration file.
    #[command(flatten)]
    settings: OptionSources<Settings>,
}

/// Registers this machine, and starts the agent unless the options decline that.
///
/// # Errors
/// When the options are invalid, the manager refuses, or the agent cannot be started.
pub fn run(args: JoinArgs) -> Result<(), Failure> {
    let JoinArgs { common, settings } = args;
    let file = join_node(&common, &settings.flags)?;
    if common.run {
        let args = RunArgs { config: Some(file), print_config: false, settings: OptionSources::default() };
        return super::run::run(&args);
    }
    common.start(Settings::PROGRAM, &file)
}
