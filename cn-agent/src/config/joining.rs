//! The part of `join` that is specific to compute nodes. The common part is shared with memory nodes.

use cxloe_daemon::command_line::Failure;
use cxloe_fabric::api::Party;
use cxloe_fabric::model::{CnId, Mac, Name};
use cxloe_node::{LinkSettings, NodeConfig, NodeSettings, ProgramSettings};

use super::{Config, Settings};

impl ProgramSettings for Settings {
    const PROGRAM: &'static str = "cn-agent";
    const FILES: &'static str = "cn";

    fn common(&mut self) -> (&mut NodeSettings, &mut LinkSettings) {
        (&mut self.node, &mut self.link)
    }

    fn check(&self) -> Result<NodeConfig, Failure> {
        Ok(Config::new(self.clone()).map_err(Failure::usage)?.node)
    }

    fn party(_: Name, mac: Mac) -> Result<Party, Failure> {
        Ok(Party::ComputeNode(CnId::new(mac).map_err(Failure::failed)?))
    }
}
