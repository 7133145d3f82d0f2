//! Joining of memory nodes and compute nodes: from command-line options and the configuration file to keys, a
//! certificate, and a complete configuration file.

use std::path::PathBuf;

use cxloe_daemon::command_line::Failure;
use cxloe_daemon::join::{JoinArgs, JoiningNode};
use cxloe_daemon::options;
use cxloe_link::keys::node_key;

use crate::program::ProgramSettings;

/// Joins as the node that `given` and the configuration file describe; generates the node's key if there is none.
/// Returns the path of the configuration file.
///
/// # Errors
/// The options do not work together, the manager refuses, or a file cannot be written.
pub fn join_node<S: ProgramSettings>(args: &JoinArgs, given: &S) -> Result<PathBuf, Failure> {
    let file = args.config(S::PROGRAM);
    let kept: S =
        if file.exists() { options::read_options(&file).map_err(Failure::usage)? } else { S::default() };
    let mut settings: S = options::over(given, &kept);
    let named = given.clone().common().0.manager.take();
    // The check requires a manager's URL. Until joining yields the URL for registration, the one for joining is used.
    settings.follow(args.url.clone());
    let config = settings.check()?;
    let mac = config.mac()?;
    let node = S::party(config.name.clone(), mac)?;
    let file_of = |kind: &str| config.data_dir.join(format!("{}-{}.{kind}", S::FILES, config.name));
    let identity = file_of("identity");
    let key = match config.insecure {
        true => None,
        false => {
            args.make_folder(&config.data_dir)?;
            let path = settings.common().1.node_key.get_or_insert_with(|| file_of("key"));
            Some(node_key(path).map_err(Failure::failed)?.public())
        }
    };
    let joining = JoiningNode { node, macs: vec![mac], key, identity: &identity, take_over: args.take_over };
    let url = args.join(joining, named.as_deref())?;
    settings.follow(url);
    let (node, _) = settings.common();
    node.identity = Some(identity);
    node.name = Some(config.name.to_string());
    // A file that has all these options already is not rewritten, and so keeps its comments.
    if !file.exists() || settings != kept {
        args.write_config(S::PROGRAM, &options::to_toml(&settings))?;
    }
    Ok(file)
}
