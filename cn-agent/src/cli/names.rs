//! Completion of region names in shells: offers the regions that the agent has attached.

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::CommandFactory;
use cxloe_client::client;
use cxloe_client::defaults::default_socket;
use cxloe_daemon::command_line::completion::{NamedArg, expected};

use super::Args;

/// Maximum wait for the agent, after which no names are offered: completion must not block a shell.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Arguments that take names of regions, each with the option that names the agent's socket.
const NAMED: &[NamedArg<&str>] = &[
    ("read", "target", "socket"),
    ("write", "target", "socket"),
    ("export", "region", "socket"),
    ("import", "region", "socket"),
    ("exec", "region", "socket"),
    ("vm", "region", "socket"),
    ("nbd", "region", "agent"),
    ("serve-uffd", "region", "agent"),
];

/// Prints the region names that can complete the last of `words`. Prints nothing if the agent does not answer
/// within [`ANSWER_LIMIT`].
pub fn print(words: &[String]) {
    let Some(expected) = expected(Args::command(), NAMED, words) else { return };
    let of_environment =
        || std::env::var_os("CXLOE_AGENT").filter(|path| !path.is_empty()).map(PathBuf::from);
    let given = expected.given(expected.kind).map(PathBuf::from);
    let socket = given.or_else(of_environment).unwrap_or_else(default_socket);
    let (sender, answer) = mpsc::channel();
    // Not joined: the thread ends with the process, even if the agent never answers.
    thread::spawn(move || sender.send(client::regions(&socket)));
    let Ok(Ok(regions)) = answer.recv_timeout(ANSWER_LIMIT) else { return };
    let _ = expected.print(regions.into_iter().map(|region| region.region));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_take_names_exist() {
        let command = Args::command();
        for (name, id, socket) in NAMED {
            let command = command.find_subcommand(name).unwrap_or_else(|| panic!("no command {name}"));
            let has = |id: &str| command.get_arguments().any(|arg| arg.get_id() == id);
            assert!(has(id) && has(socket), "{name} has no argument {id} or {socket}");
        }
    }
}
