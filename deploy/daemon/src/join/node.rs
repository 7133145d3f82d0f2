//! What memory nodes and compute nodes do alike to join: from the options that are given, and those that are in the
//! configuration file, to keys, a certificate, and a file that has it all.

use std::path::{Path, PathBuf};

use cxloe_fabric::api::Party;
use cxloe_fabric::model::{Mac, PublicKey};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{JoinArgs, Joining};
use crate::command_line::Failure;
use crate::options;

/// The options of a node's program, as its configuration file has them.
pub trait NodeSettings: Clone + Default + PartialEq + Serialize + DeserializeOwned {
    /// The program.
    const PROGRAM: &'static str;
    /// What the names of its files begin with.
    const FILES: &'static str;

    /// From here on, the manager at this URL says what the node has to do.
    fn follow(&mut self, manager: String);

    /// Those that joining fills in besides.
    fn filled_in(&mut self) -> FilledIn<'_>;

    /// The node that they describe.
    ///
    /// # Errors
    /// When they do not work.
    fn describe(&self) -> Result<NodeDescription, Failure>;
}

/// The options that joining fills in, besides the manager.
#[derive(Debug)]
pub struct FilledIn<'a> {
    /// The file by which the node is known.
    pub identity: &'a mut Option<PathBuf>,
    /// Its name.
    pub name: &'a mut Option<String>,
    /// The file with its key.
    pub node_key: &'a mut Option<PathBuf>,
}

/// A node that is to join.
#[derive(Debug)]
pub struct NodeDescription {
    /// Which.
    pub node: Party,
    /// Its name.
    pub name: String,
    /// The address that identifies it.
    pub mac: Mac,
    /// Where it keeps its files.
    pub data_dir: PathBuf,
    /// It is to speak without keys.
    pub insecure: bool,
}

impl JoinArgs {
    /// Has the node join that these options and those of its configuration file describe; `key_in` reads or makes the key in a
    /// file and gives its public half. Returns the configuration file.
    ///
    /// # Errors
    /// When the options do not work, the manager does not let it in, or something cannot be kept.
    pub fn join_node<S: NodeSettings>(
        &self,
        given: &S,
        key_in: impl FnOnce(&Path) -> Result<PublicKey, Failure>,
    ) -> Result<PathBuf, Failure> {
        let file = self.config(S::PROGRAM);
        let kept: S =
            if file.exists() { options::read(&file).map_err(Failure::usage)? } else { S::default() };
        let mut settings: S = options::over(given, &kept);
        settings.follow(self.url.clone());
        let NodeDescription { node, name, mac, data_dir, insecure } = settings.describe()?;
        let file_of = |kind: &str| data_dir.join(format!("{}-{name}.{kind}", S::FILES));
        let identity = file_of("identity");
        let key = match insecure {
            true => None,
            false => {
                self.make_folder(&data_dir)?;
                let path = settings.filled_in().node_key.get_or_insert_with(|| file_of("key")).clone();
                Some(key_in(&path)?)
            }
        };
        let url = self.join(Joining { node, macs: vec![mac], key, identity: &identity })?;
        settings.follow(url);
        let filled_in = settings.filled_in();
        *filled_in.identity = Some(identity);
        *filled_in.name = Some(name);
        // A file that says all this already stays as it is, with its comments.
        if !file.exists() || settings != kept {
            self.write_config(S::PROGRAM, &options::to_toml(&settings))?;
        }
        Ok(file)
    }
}
