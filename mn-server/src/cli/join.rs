//! `mn-server join`: registers this machine as a memory node, and starts it.

use clap::Args;
use cxloe_daemon::OptionSources;
use cxloe_daemon::command_line::Failure;
use cxloe_daemon::join::JoinArgs as Common;
use cxloe_mn::config::{Cli as RunArgs, Settings};
use cxloe_node::{ProgramSettings, join_node};

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
The token identifies the manager. The command gets a certificate for 30 days, which the node renews, writes
a configuration file, and starts the service. Join again, with a new token, if the interface or its address
changes.

Examples:
  gmm token create --role mn                                                       on the manager's machine
  mn-server join https://gmm.lab:7440 --token cx1.… -i enp3s0f0 --pool-size 16G
  mn-server join unix:/run/cxloe-gmm/gmm.sock -i enp3s0f0 --pool-size 16G          on the manager's machine, as root")]
pub struct JoinArgs {
    #[command(flatten)]
    common: Common,
    /// Options of the node, which go to its configuration file.
    #[command(flatten)]
    settings: OptionSources<Settings>,
}

/// Joins the fabric. Returns the arguments for running the node in this process, if the options request that.
///
/// # Errors
/// The options contradict each other, the manager refuses, or the service cannot be started.
pub fn run(args: JoinArgs) -> Result<Option<RunArgs>, Failure> {
    let JoinArgs { common, settings } = args;
    let file = join_node(&common, &settings.flags)?;
    if common.run {
        return Ok(Some(RunArgs {
            config: Some(file),
            print_config: false,
            settings: OptionSources::default(),
        }));
    }
    common.start(Settings::PROGRAM, &file).map(|()| None)
}
