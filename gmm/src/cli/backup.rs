//! `gmm backup` and `gmm restore`: the store as one file, written and restored while the manager runs.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use cxloe_daemon::command_line::{Exit, Failure, output};
use cxloe_daemon::to_stderr;
use cxloe_fabric::Client;
use cxloe_fabric::api::RestoreStore;
use cxloe_private::Existing;
use serde_json::json;

/// Arguments of `gmm backup`.
#[derive(Debug, Args)]
#[command(after_help = "\
The manager keeps running; the backup has the whole store as of one moment, whether it is a file or in etcd.
Only this user can read the file, and it appears when it is complete.

Examples:
  gmm backup /var/backups/gmm-$(date +%F).backup")]
pub struct BackupArgs {
    /// The file to write
    file: PathBuf,
}

/// Arguments of `gmm restore`.
#[derive(Debug, Args)]
#[command(after_help = "\
The manager keeps running; the backup replaces the whole content of its store. Nodes that have seen later
changes refuse the manager from then on, keep their regions, and go on serving them: `gmm adopt-fabric`
shows what this backup lacks, and with --force the nodes accept it.

To have a lost store back, start `gmm serve` over an empty data directory and restore into that.

Examples:
  gmm restore /var/backups/gmm-2026-11-22.backup")]
pub struct RestoreArgs {
    /// The file to read
    file: PathBuf,
    /// Restore it even if it is a backup of another fabric
    #[arg(long)]
    other_fabric: bool,
}

/// Writes a backup of the manager's store into a file.
///
/// # Errors
/// If the manager does not answer, or the file cannot be written.
pub async fn backup(client: &Client, args: BackupArgs) -> Result<(), Failure> {
    let backup = client.backup().await?;
    let failed = |error| Failure::failed(format!("cannot write {}: {error}", args.file.display()));
    cxloe_private::write(&args.file, &backup, Existing::Replace).map_err(failed)?;
    output::print(json!({ "file": args.file, "bytes": backup.len() }), false)
}

/// Replaces the manager's store by the backup in a file, and prints the watermarks.
///
/// # Errors
/// If the file cannot be read or is no backup, and if the manager does not answer or refuses.
pub async fn restore(client: &Client, args: RestoreArgs) -> Result<(), Failure> {
    let RestoreArgs { file, other_fabric } = args;
    let read = fs::read_to_string(&file);
    let backup = read
        .map_err(|error| Failure::new(Exit::NotFound, format!("cannot read {}: {error}", file.display())))?;
    let restored = client.restore(&RestoreStore { backup, other_fabric }).await?;
    if restored.restored.revision < restored.before.revision {
        to_stderr!(
            "Warning: nodes that have seen more than this backup refuse it now; see `gmm adopt-fabric`"
        );
    }
    output::print(output::value(restored)?, false)
}
