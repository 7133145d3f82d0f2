//! Check of the pool that this node served before. After a start with another `--pool`, compute nodes could not access
//! the regions in the former pool, so the node does not start while that pool has regions.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use cxloe_daemon::NodeState;
use cxloe_mn_core::pool::{PoolError, PoolSpec, SUPERBLOCK_BYTES, Superblock};
use cxloe_mn_core::translation::mappings_stored;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::host::Host;
use super::mapping::Mapping;
use super::open::{PoolOptions, is_valid_still, stored_in};

/// Bytes of a page table that are read at a time.
const PIECE: usize = 1 << 20;

/// Pool that a node served last, as its state file keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Former {
    /// Kind of memory and path; `None` before the first start.
    pub pool: Option<PoolSpec>,
}

impl NodeState for Former {
    const REMEDY: &str = "remove it if this node serves the same pool as before";
}

/// Checks that a node with these `options` leaves no regions unserved, neither in the pool of `former` nor in memory
/// `kept` from an earlier process that the options do not use.
///
/// # Errors
/// [`PoolError::Former`]; [`PoolError::Io`] if a pool cannot be read.
pub fn check(
    former: &Former,
    kept: Option<&File>,
    options: &PoolOptions,
    host: &Host,
) -> Result<(), PoolError> {
    let refuse_if_any = |former: &PoolSpec, bytes| match bytes {
        0 => Ok(()),
        bytes => Err(PoolError::Former { former: former.clone(), bytes, pool: options.spec.clone() }),
    };
    if options.discard {
        return Ok(());
    }
    // If the options ask for a pool in memory, the kept memory is compared with them when the pool is opened.
    if let Some(kept) = kept.filter(|_| !options.spec.is_memory()) {
        let former = former.pool.clone().filter(PoolSpec::is_memory).unwrap_or_default();
        let bytes = bytes_mapped(&former, kept, host).map_err(unreadable(&former))?;
        refuse_if_any(&former, bytes)?;
    }
    match &former.pool {
        Some(former @ (PoolSpec::File(path) | PoolSpec::Dax(path))) if !is_same(former, &options.spec) => {
            // A file or device that cannot be opened, for example because it was removed, is not checked.
            let Ok(file) = OpenOptions::new().read(true).write(true).open(path) else { return Ok(()) };
            // If another process has locked the pool, that process serves it, so its regions are not left unserved.
            let Ok(file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { return Ok(()) };
            refuse_if_any(former, bytes_mapped(former, &file, host).map_err(unreadable(former))?)
        }
        _ => Ok(()),
    }
}

fn unreadable(pool: &PoolSpec) -> impl FnOnce(io::Error) -> PoolError {
    let pool = pool.to_string();
    move |source| PoolError::Io { what: "read what this node served before", pool, source }
}

/// Whether two names stand for the same pool; one file can have several names.
fn is_same(one: &PoolSpec, other: &PoolSpec) -> bool {
    let identity = |path: &Path| path.metadata().map(|of| (of.dev(), of.ino())).ok();
    match (one, other) {
        (PoolSpec::File(one), PoolSpec::File(other)) | (PoolSpec::Dax(one), PoolSpec::Dax(other)) => {
            one == other || identity(one).is_some_and(|one| Some(one) == identity(other))
        }
        _ => one == other,
    }
}

/// Bytes of the extents that are mapped to compute nodes; 0 if `file` is no pool, or its content is lost
/// already.
fn bytes_mapped(spec: &PoolSpec, file: &File, host: &Host) -> io::Result<u64> {
    let read_at = |offset: u64, bytes: &mut [u8]| match spec {
        // A device cannot be read by system calls, so it is mapped.
        PoolSpec::Dax(_) => {
            let end = offset as usize + bytes.len();
            let mapping = Mapping::shared(file, end)?;
            mapping.read(offset as usize, bytes);
            Ok(())
        }
        _ => file.read_exact_at(bytes, offset),
    };
    let superblock = match spec {
        PoolSpec::Dax(_) => {
            let mut bytes = [0; Superblock::BYTES];
            read_at(0, &mut bytes)?;
            Superblock::parse(&bytes)
        }
        _ if file.metadata()?.len() < SUPERBLOCK_BYTES => return Ok(0),
        _ => stored_in(file)?,
    };
    let Ok(superblock) = superblock else { return Ok(0) };
    if !is_valid_still(spec, &superblock, host.boot_id()) {
        return Ok(0);
    }
    let (mut mapped, mut offset) = (0, SUPERBLOCK_BYTES);
    let end = SUPERBLOCK_BYTES + superblock.layout.table_bytes();
    let mut piece = vec![0; PIECE];
    while offset < end {
        let piece = &mut piece[..PIECE.min((end - offset) as usize)];
        read_at(offset, piece)?;
        mapped += mappings_stored(piece, superblock.incarnation);
        offset += piece.len() as u64;
    }
    Ok(mapped * superblock.layout.extent_bytes)
}
