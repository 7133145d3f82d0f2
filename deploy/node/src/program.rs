//! Options of a node's program, as far as `join` and `doctor` need them.

use clap::Args;
use cxloe_daemon::command_line::Failure;
use cxloe_fabric::api::Party;
use cxloe_fabric::model::{Mac, Name};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::NodeConfig;
use crate::settings::{LinkSettings, NodeSettings};

/// Options of a node's program, in the form of its configuration file.
pub trait ProgramSettings: Args + Clone + Default + PartialEq + Serialize + DeserializeOwned {
    /// Name of the program, as in `mn-server`.
    const PROGRAM: &'static str;
    /// Prefix of the names of the program's files.
    const FILES: &'static str;

    /// Options that joining sets; the doctor reads them even if other options are wrong.
    fn common(&mut self) -> (&mut NodeSettings, &mut LinkSettings);

    /// Sets the URL of the manager with which the node registers.
    fn follow(&mut self, manager: String) {
        self.common().0.manager = Some(manager);
    }

    /// Checks all options, and returns those that both kinds of node have.
    ///
    /// # Errors
    /// The options do not work together.
    fn check(&self) -> Result<NodeConfig, Failure>;

    /// Returns the node's identity for the manager, made of this name and address.
    ///
    /// # Errors
    /// The address is not valid for such a node.
    fn party(name: Name, mac: Mac) -> Result<Party, Failure>;
}
