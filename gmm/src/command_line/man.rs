//! Manual pages: each program writes its own, made from the very definition of its arguments.

use std::path::PathBuf;

use clap::{Args, Command};

use super::Failure;

/// Arguments of the command `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The folder to write them to, made if need be; one page for the program and one for each of its commands
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
}

impl ManArgs {
    /// Writes the pages of `program`: `PROGRAM.1`, `PROGRAM-COMMAND.1` and so on.
    ///
    /// # Errors
    /// When the folder cannot be made or written to.
    pub fn write(&self, program: Command) -> Result<(), Failure> {
        let written =
            std::fs::create_dir_all(&self.dir).and_then(|()| clap_mangen::generate_to(program, &self.dir));
        written.map_err(|error| {
            let dir = self.dir.display();
            Failure::failed(format!(
                "cannot write manual pages to {dir}: {error}; give a writable folder with --dir"
            ))
        })
    }
}
