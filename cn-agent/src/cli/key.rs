//! `cn-agent key`: prints the public half of this node's key.

use std::path::PathBuf;

use clap::Args;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_link::keys::node_key;
use serde_json::json;

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  cn-agent key --node-key /var/lib/cxloe/cn-agent.key")]
pub struct KeyArgs {
    /// The file with the key, as given to the node with --node-key; created if it does not exist
    #[arg(long, value_name = "FILE")]
    node_key: PathBuf,
}

/// Prints the public key of `node_key`, which is made if the file does not exist.
pub fn run(args: &KeyArgs) -> Result<(), Failure> {
    let key = node_key(&args.node_key).map_err(Failure::failed)?;
    match output::json_asked() {
        true => output::print(json!({ "key": key.public() }), false),
        false => output::line(&key.public().to_string()),
    }
}
