//! A DAX device that this process uses: its file is locked, so that no other agent takes it, and mapped.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use cxloe_fabric::model::ByteSize;

use super::DEV_ROOT;
use super::inventory::DaxDevice;
use super::mapping::Mapping;
use cxloe_cn_core::backing::DeviceMemory;
use cxloe_cn_core::engine::{LocalMemory, MemoryGone};

#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("cannot open {} for reading and writing: {source}; run the agent as root, or let its user do that", .path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{} is locked by another process, most likely another agent", .path.display())]
    Held { path: PathBuf },
    /// The file is no device file, or is too short.
    #[error("{} is not what sysfs says: {why}", .path.display())]
    Strange {
        path: PathBuf,
        /// The property that is wrong.
        why: String,
    },
    #[error("cannot map {} of {}: {source}", ByteSize(*.bytes), .path.display())]
    Map {
        path: PathBuf,
        /// Length of the attempted mapping in bytes.
        bytes: u64,
        source: io::Error,
    },
    #[error("{} vanished while it was being cleared", .path.display())]
    Gone { path: PathBuf },
}

/// A device that this process uses exclusively, until this value is dropped or [given
/// up](DeviceMemory::give_up).
#[derive(Debug)]
pub struct Device {
    path: PathBuf,
    mapping: Mapping,
    /// The open file, which holds the lock.
    file: Mutex<Option<File>>,
}

impl Device {
    /// Locks and maps the file of `dax` in the folder `root`. In folders other than [`DEV_ROOT`], plain files may
    /// represent devices.
    pub fn claim(root: &Path, dax: &DaxDevice) -> Result<Device, DeviceError> {
        let path = root.join(&dax.device);
        let strange = |why: String| DeviceError::Strange { path: path.clone(), why };
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let described = opened.and_then(|file| Ok((file.metadata()?, file)));
        let (kind, file) = described.map_err(|source| DeviceError::Open { path: path.clone(), source })?;
        if !kind.file_type().is_char_device() {
            if !kind.is_file() || root == Path::new(DEV_ROOT) {
                return Err(strange("it is no device".into()));
            }
            if kind.len() < dax.size {
                return Err(strange(format!("it has {} of {} bytes", kind.len(), dax.size)));
            }
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DeviceError::Held { path }),
            Err(TryLockError::Error(source)) => return Err(DeviceError::Open { path, source }),
        }
        let mapped = usize::try_from(dax.size).map_err(io::Error::other).and_then(|n| Mapping::of(&file, n));
        match mapped {
            Ok(mapping) => Ok(Device { path, mapping, file: Mutex::new(Some(file)) }),
            Err(source) => Err(DeviceError::Map { path, bytes: dax.size, source }),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes zeros to `bytes` bytes from offset `from` on; both are multiples of 8.
    ///
    /// # Errors
    /// [`DeviceError::Gone`].
    pub fn clear(&self, from: u64, bytes: u64) -> Result<(), DeviceError> {
        self.mapping.clear(from, bytes).map_err(|MemoryGone| DeviceError::Gone { path: self.path.clone() })
    }
}

impl LocalMemory for Device {
    fn bytes(&self) -> u64 {
        self.mapping.bytes() as u64
    }

    #[inline]
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), MemoryGone> {
        self.mapping.read(offset, out)
    }

    #[inline]
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), MemoryGone> {
        self.mapping.write(offset, data)
    }
}

impl DeviceMemory for Device {
    fn is_gone(&self) -> bool {
        self.mapping.is_gone()
    }

    fn give_up(&self) {
        self.mapping.give_up();
        // A mapping keeps its file open, and the open file keeps the lock. If the mapping could not be
        // replaced, only this explicit unlock releases the lock.
        if let Some(file) = self.file.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = file.unlock();
        }
    }
}
