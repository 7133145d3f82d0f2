//! `cn-agent join`: registers this machine as a compute node, and starts its agent.

use clap::Args;
use cxloe_cn::config::{RunArgs, Settings};
use cxloe_daemon::OptionSources;
use cxloe_daemon::command_line::Failure;
use cxloe_daemon::join::JoinArgs as Common;
use cxloe_node::{ProgramSettings, join_node};

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
The token identifies the manager. The command gets a certificate for 30 days, which the node renews, writes
a configuration file, and starts the service. Join again, with a new token, to use another interface: its
address is another CN id.

Examples:
  gmm token create --role cn                                         on the manager's machine
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
