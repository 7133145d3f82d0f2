//! The memory file of a snapshot, put into a region.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use cxloe_wire::frame::LINE_SIZE;

use cxloe_client::client::{Client, ClientError};

/// Bytes read and written at once.
const BYTES: usize = 4 << 20;

/// Why a snapshot is not in its region.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file.
    #[error("cannot read {}: {source}", .path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It does not fit.
    #[error("{} has {bytes} bytes, the region only {room}; grow it with `gmm grow-region`", .path.display())]
    TooLarge {
        /// Its path.
        path: PathBuf,
        /// Its bytes.
        bytes: u64,
        /// Those of the region.
        room: u64,
    },
    /// The agent.
    #[error(transparent)]
    Agent(#[from] ClientError),
}

/// Writes the file at `path` to the region at `hpa`, which has `room` bytes, and waits until memory nodes have it. What
/// the region has beyond the file's end stays. `progress` is told how many bytes of how many are written, now and then.
///
/// # Errors
/// Any [`LoadError`]; the region may have a part of the file then.
pub fn load(
    path: &Path,
    port: &mut Client,
    hpa: u64,
    room: u64,
    mut progress: impl FnMut(u64, u64),
) -> Result<u64, LoadError> {
    let failed = |source| LoadError::File { path: path.into(), source };
    let mut file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    if bytes > room {
        return Err(LoadError::TooLarge { path: path.into(), bytes, room });
    }
    let mut buffer = vec![0; BYTES.min(bytes as usize).next_multiple_of(LINE_SIZE)];
    let mut done = 0;
    while done < bytes {
        let now = (bytes - done).min(buffer.len() as u64) as usize;
        let whole = now.next_multiple_of(LINE_SIZE);
        file.read_exact(&mut buffer[..now]).map_err(failed)?;
        // The rest of the last line belongs to nobody.
        buffer[now..whole].fill(0);
        port.write_bytes(hpa + done, &buffer[..whole])?;
        done += now as u64;
        progress(done, bytes);
    }
    Ok(bytes)
}
