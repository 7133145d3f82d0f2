//! Loading of a snapshot's memory file into a region.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use cxloe_wire::frame::LINE_SIZE;

use cxloe_client::client::{Client, ClientError};

/// Number of bytes read and written in one step.
const BYTES: usize = 4 << 20;

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot read {}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} has {bytes} bytes, the region only {room}; grow it with `gmm grow-region`", .path.display())]
    TooLarge { path: PathBuf, bytes: u64, room: u64 },
    #[error(transparent)]
    Agent(#[from] ClientError),
}

/// Writes the file at `path` to the region at `hpa`, which has `room` bytes, and waits until memory nodes have
/// acknowledged the data. Bytes of the region beyond the file's end stay unchanged. `progress` is called after each
/// step with the bytes written and the bytes of the file.
///
/// # Errors
/// Any [`LoadError`]; then a part of the file may be in the region.
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
        // Only whole lines are written: zeros fill the rest of the last one.
        buffer[now..whole].fill(0);
        port.write_bytes(hpa + done, &buffer[..whole])?;
        done += now as u64;
        progress(done, bytes);
    }
    Ok(bytes)
}
