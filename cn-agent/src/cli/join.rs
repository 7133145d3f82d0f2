//! `cn-agent join`: has this machine let in as a compute node, and starts its agent.

use clap::Args;
use cxloe_cn::config::{Config, RunArgs, Settings};
use cxloe_daemon::command_line::Failure;
use cxloe_daemon::join::{JoinArgs as Common, Joining, mac_of};
use cxloe_daemon::options;
use cxloe_fabric::api::Party;
use cxloe_fabric::model::CnId;
use cxloe_link::LinkConfig;
use cxloe_link::keys::node_key;
use cxloe_link::udp::own_mac;

const PROGRAM: &str = "cn-agent";

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
    let file = common.config(PROGRAM);
    let kept =
        if file.exists() { options::read(&file).map_err(Failure::usage)? } else { Settings::default() };
    let mut settings: Settings = options::over(&settings, &kept);
    settings.manager = Some(common.url.clone());
    let config = Config::new(settings.clone()).map_err(Failure::usage)?;
    let mac = match config.is_over_udp() {
        true => {
            let link = LinkConfig { udp: config.udp(), ..LinkConfig::new(&config.interface) };
            own_mac(&link).map_err(Failure::failed)?
        }
        false => mac_of(&config.interface)?,
    };
    let cn = CnId::new(mac).map_err(Failure::failed)?;
    let identity = config.data_dir.join(format!("cn-{}.identity", config.name));
    if !config.insecure {
        common.make_folder(&config.data_dir)?;
        let path = config.data_dir.join(format!("cn-{}.key", config.name));
        settings.node_key.get_or_insert(path);
    }
    let key = settings.node_key.as_deref().filter(|_| !config.insecure).map(node_key).transpose();
    let key = key.map_err(Failure::failed)?.map(|key| key.public());
    let url =
        common.join(Joining { node: Party::ComputeNode(cn), macs: vec![mac], key, identity: &identity })?;
    settings.manager = Some(url);
    settings.identity = Some(identity);
    settings.name = Some(config.name.to_string());
    // A file that says all this already stays as it is, with its comments.
    if !file.exists() || settings != kept {
        common.write_config(PROGRAM, &options::to_toml(&settings))?;
    }
    if common.run {
        let args = RunArgs { config: Some(file), print_config: false, settings: Settings::default() };
        return super::run::run(&args);
    }
    common.start(PROGRAM, &file)
}
