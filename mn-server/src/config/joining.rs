//! Options of a memory node that the `join` command reads and sets.

use cxloe_daemon::command_line::Failure;
use cxloe_fabric::api::Party;
use cxloe_fabric::model::{Mac, Name};
use cxloe_node::{LinkSettings, NodeConfig, NodeSettings, ProgramSettings};

use super::{Config, Settings};

impl ProgramSettings for Settings {
    const PROGRAM: &'static str = "mn-server";
    const FILES: &'static str = "mn";

    fn common(&mut self) -> (&mut NodeSettings, &mut LinkSettings) {
        (&mut self.node, &mut self.link)
    }

    fn follow(&mut self, manager: String) {
        self.node.manager = Some(manager);
        self.static_map = None;
    }

    fn check(&self) -> Result<NodeConfig, Failure> {
        Ok(Config::new(self.clone()).map_err(Failure::usage)?.node)
    }

    fn party(name: Name, _: Mac) -> Result<Party, Failure> {
        Ok(Party::MemoryNode(name))
    }
}
