//! `gmm backup` and `gmm restore`: the store as one file, and the key that signs certificates as another one, written
//! and restored while the manager runs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use cxloe_daemon::command_line::{Exit, Failure, output};
use cxloe_daemon::to_stderr;
use cxloe_fabric::Client;
use cxloe_fabric::api::{AuthorityPem, RestoreStore};
use cxloe_private::Existing;
use serde_json::json;

/// Suffix that `gmm backup` appends to FILE for the authority's file, and by which `gmm restore` finds it.
const AUTHORITY_SUFFIX: &str = ".authority.pem";

#[derive(Debug, Args)]
#[command(after_help = "\
Writes two files, which only this user can read:
  FILE                  the manager's store as of one moment, whether it is a file or in etcd
  FILE.authority.pem    the authority: the key that signs certificates
Together they restore the fabric on another machine. Whoever has the key can make certificates for all
nodes: protect it as you protect private keys. A manager that runs with --insecure uses no authority, and
only FILE is written.

The manager keeps running, and the files appear when they are complete. Options and the fabric file
(gmm.toml, fabric.toml) are not part of a backup.

Examples:
  gmm backup /var/backups/gmm-$(date +%F).backup")]
pub struct BackupArgs {
    /// Path of the backup to write
    file: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The manager keeps running; the backup replaces the whole content of its store. If FILE.authority.pem is
there, it replaces the manager's authority, too.

If the manager's machine is lost: start `gmm serve` over an empty data directory, at the address that the
nodes have, and restore into it. The nodes follow it by themselves. Nodes that have seen later changes than
the backup refuse the manager, keep their regions, and go on serving them: `gmm adopt-fabric` shows what
this backup lacks, and with --force the nodes accept it.

Examples:
  gmm restore /var/backups/gmm-2026-11-22.backup")]
pub struct RestoreArgs {
    /// Path of the backup to restore
    file: PathBuf,
    /// Restore it even if it is a backup of another fabric
    #[arg(long)]
    other_fabric: bool,
    /// Restore it even if FILE.authority.pem is lost: all nodes then have to join again, and all tokens are void
    #[arg(long)]
    without_authority: bool,
}

fn authority_path(backup: &Path) -> PathBuf {
    let mut path = backup.as_os_str().to_owned();
    path.push(AUTHORITY_SUFFIX);
    path.into()
}

/// Writes a backup of the manager's store, and its authority, into files.
///
/// # Errors
/// If the manager does not answer, or a file cannot be written.
pub async fn backup(client: &Client, args: BackupArgs) -> Result<(), Failure> {
    let folder = args.file.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        let error = format!("cannot write {}: there is no folder {}", args.file.display(), folder.display());
        return Err(Failure::new(Exit::NotFound, error));
    }
    let write = |path: &Path, content: &[u8]| {
        let failed = |error| Failure::failed(format!("cannot write {}: {error}", path.display()));
        cxloe_private::write(path, content, Existing::Replace).map_err(failed)
    };
    let authority = client.backup_authority().await?;
    let backup = client.backup().await?;
    // The store's file is written last: if it exists, the authority's file beside it is complete, too.
    let authority = match authority {
        Some(AuthorityPem(pem)) => {
            let path = authority_path(&args.file);
            write(&path, pem.as_bytes())?;
            Some(path)
        }
        None => None,
    };
    write(&args.file, &backup)?;
    output::print(json!({ "file": args.file, "bytes": backup.len(), "authority": authority }), false)
}

/// Replaces the manager's store and its authority by those in files, and prints the watermarks before and
/// after.
///
/// # Errors
/// If a file cannot be read or is no backup, and if the manager does not answer or refuses.
pub async fn restore(client: &Client, args: RestoreArgs) -> Result<(), Failure> {
    let RestoreArgs { file, other_fabric, without_authority } = args;
    let cannot_read = |path: &Path, error: &io::Error| {
        Failure::new(Exit::NotFound, format!("cannot read {}: {error}", path.display()))
    };
    let backup = fs::read_to_string(&file).map_err(|error| cannot_read(&file, &error))?;
    let path = authority_path(&file);
    let authority = match cxloe_private::read_to_string(&path) {
        _ if without_authority => None,
        Ok(pem) => Some(AuthorityPem(pem)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(cannot_read(&path, &error)),
    };
    // Over plain HTTP the authority's key would be readable on the network, and a manager without TLS does
    // not use it.
    let authority = authority.filter(|_| {
        let has_tls = !client.url().split(',').any(|url| url.starts_with("http:"));
        if !has_tls {
            to_stderr!("Warning: {} is not sent to a manager without TLS", path.display());
        }
        has_tls
    });
    let restore = RestoreStore { backup, other_fabric, authority, without_authority };
    let restored = client.restore(&restore).await?;
    if restored.restored.revision < restored.before.revision {
        to_stderr!(
            "Warning: nodes that have seen more than this backup refuse it now; see `gmm adopt-fabric`"
        );
    }
    output::print(output::value(restored)?, false)
}
