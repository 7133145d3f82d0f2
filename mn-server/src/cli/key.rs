//! `mn-server key`: prints the public key of this node.

use std::path::PathBuf;

use clap::Args;
use cxloe_daemon::command_line::{Exit, Failure, output};
use cxloe_link::keys::node_key;
use serde_json::json;

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  mn-server key --node-key /var/lib/cxloe/mn-server.key")]
pub struct KeyArgs {
    /// The file with the key, as given to the node with --node-key; made if there is none
    #[arg(long, value_name = "FILE")]
    node_key: PathBuf,
    /// JSON for programs
    #[arg(long)]
    json: bool,
}

pub fn run(args: &KeyArgs) -> Result<(), Failure> {
    let key = node_key(&args.node_key).map_err(|error| Failure::new(Exit::Failed, error))?;
    match args.json {
        true => output::print(json!({ "key": key.public() }), false),
        false => output::line(&key.public().to_string()),
    }
}
