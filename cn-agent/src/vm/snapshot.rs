//! The memory file of a snapshot, put into a region line by line.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::cache::Line;
use crate::client::{Client, ClientError};

/// Lines written at once.
const LINES: usize = 4096;
const LINE: usize = size_of::<Line>();

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
    let mut buffer = vec![[0; LINE]; LINES];
    let mut done = 0;
    while done < bytes {
        let now = (bytes - done).min((LINES * LINE) as u64) as usize;
        let lines = &mut buffer[..now.div_ceil(LINE)];
        // The rest of the last line belongs to nobody.
        if let Some(last) = lines.last_mut() {
            last.fill(0);
        }
        file.read_exact(&mut lines.as_flattened_mut()[..now]).map_err(failed)?;
        let placed: Vec<(u64, Line)> = (hpa + done..).step_by(LINE).zip(lines.iter().copied()).collect();
        port.write_batch(&placed)?;
        done += now as u64;
        progress(done, bytes);
    }
    port.flush()?;
    Ok(bytes)
}
