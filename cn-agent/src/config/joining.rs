//! The options of a compute node as joining needs them.

use cxloe_daemon::command_line::Failure;
use cxloe_daemon::join::{FilledIn, NodeDescription, NodeSettings, mac_of};
use cxloe_fabric::api::Party;
use cxloe_fabric::model::CnId;
use cxloe_link::LinkConfig;
use cxloe_link::udp::own_mac;

use super::{Config, Settings};

impl NodeSettings for Settings {
    const PROGRAM: &'static str = "cn-agent";
    const FILES: &'static str = "cn";

    fn follow(&mut self, manager: String) {
        self.manager = Some(manager);
    }

    fn filled_in(&mut self) -> FilledIn<'_> {
        let Settings { identity, name, node_key, .. } = self;
        FilledIn { identity, name, node_key }
    }

    fn describe(&self) -> Result<NodeDescription, Failure> {
        let config = Config::new(self.clone()).map_err(Failure::usage)?;
        let mac = match config.is_over_udp() {
            true => {
                let link = LinkConfig { udp: config.udp(), ..LinkConfig::new(&config.interface) };
                own_mac(&link).map_err(Failure::failed)?
            }
            false => mac_of(&config.interface)?,
        };
        let node = Party::ComputeNode(CnId::new(mac).map_err(Failure::failed)?);
        let (name, data_dir, insecure) = (config.name.to_string(), config.data_dir, config.insecure);
        Ok(NodeDescription { node, name, mac, data_dir, insecure })
    }
}
