//! Completion of names in shells: regions and nodes, as listed by the manager that the command line selects.

use std::time::Duration;

use clap::CommandFactory;
use cxloe_daemon::command_line::Failure;
use cxloe_daemon::command_line::completion::{NamedArg, expected};
use cxloe_fabric::Client;

use super::{Args, contact};

/// Maximum time to wait for the manager, after which no names are offered.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Kind of object whose names are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Regions,
    MemoryNodes,
    ComputeNodes,
    Nodes,
}

/// Arguments that take names: subcommand, argument, and kind of the named object.
const NAMED: &[NamedArg<Of>] = &[
    ("list", "memdev", Of::MemoryNodes),
    ("list", "compute_node", Of::ComputeNodes),
    ("list", "region", Of::Regions),
    ("create-region", "owner", Of::ComputeNodes),
    ("create-region", "on", Of::MemoryNodes),
    ("grow-region", "name", Of::Regions),
    ("grow-region", "on", Of::MemoryNodes),
    ("protect", "name", Of::Regions),
    ("protect", "on", Of::MemoryNodes),
    ("destroy-region", "names", Of::Regions),
    ("disable-region", "names", Of::Regions),
    ("enable-region", "names", Of::Regions),
    ("reset-region", "names", Of::Regions),
    ("move-region", "region", Of::Regions),
    ("move-region", "to", Of::ComputeNodes),
    ("label-region", "region", Of::Regions),
    ("seal-region", "region", Of::Regions),
    ("share-region", "region", Of::Regions),
    ("share-region", "with", Of::ComputeNodes),
    ("clone-region", "source", Of::Regions),
    ("clone-region", "owner", Of::ComputeNodes),
    ("snapshot", "source", Of::Regions),
    ("snapshot", "owner", Of::ComputeNodes),
    ("relocate", "region", Of::Regions),
    ("relocate", "from", Of::MemoryNodes),
    ("relocate", "to", Of::MemoryNodes),
    ("drain", "memory_node", Of::MemoryNodes),
    ("set-ld", "memory_node", Of::MemoryNodes),
    ("bind", "memory_node", Of::MemoryNodes),
    ("bind", "to", Of::ComputeNodes),
    ("unbind", "memory_node", Of::MemoryNodes),
    ("set-quota", "compute_node", Of::ComputeNodes),
    ("hold", "compute_node", Of::ComputeNodes),
    ("release", "compute_node", Of::ComputeNodes),
    ("revoke", "node", Of::Nodes),
    ("forget", "memory_node", Of::MemoryNodes),
    ("forget", "cn", Of::ComputeNodes),
    ("release-orphans", "memory_node", Of::MemoryNodes),
    ("monitor", "node", Of::Nodes),
    ("monitor", "region", Of::Regions),
];

/// Prints the names that can complete the last of `words`; none if the manager does not answer quickly.
pub fn print(words: &[String]) {
    let Some(expected) = expected(Args::command(), NAMED, words) else { return };
    let given = expected.given("manager").map(str::to_owned);
    let manager = given.or_else(|| std::env::var("CXLOE_MANAGER").ok()).filter(|url| !url.is_empty());
    // A failure prints nothing, since its text would appear within the command line that the user is typing.
    if let Ok(names) = ask(manager.as_deref(), expected.kind) {
        let _ = expected.print(names);
    }
}

/// Requests the names from the manager at this URL, or from the default manager.
fn ask(manager: Option<&str>, of: Of) -> Result<Vec<String>, Failure> {
    let failed = |error: std::io::Error| Failure::failed(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let client = contact::client(manager, Duration::ZERO)?;
        let asked = tokio::time::timeout(ANSWER_LIMIT, names(&client, of)).await;
        asked.unwrap_or_else(|_| Ok(Vec::new()))
    })
}

async fn names(client: &Client, of: Of) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    if of == Of::Regions {
        names.extend(client.regions().await?.into_iter().map(|region| region.name.to_string()));
    }
    if matches!(of, Of::MemoryNodes | Of::Nodes) {
        names.extend(client.memory_nodes().await?.into_iter().map(|status| status.node.name.to_string()));
    }
    if matches!(of, Of::ComputeNodes | Of::Nodes) {
        let nodes = client.compute_nodes().await?.into_iter();
        names.extend(nodes.map(|node| node.name.map_or(node.cn_id.to_string(), |name| name.to_string())));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_take_names_exist() {
        let command = Args::command();
        for (name, id, _) in NAMED {
            let command = command.find_subcommand(name).unwrap_or_else(|| panic!("no command {name}"));
            assert!(command.get_arguments().any(|arg| arg.get_id() == id), "{name} has no argument {id}");
        }
    }
}
