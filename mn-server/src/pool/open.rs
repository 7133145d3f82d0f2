//! How a pool comes to be: memory is asked for or a file found again, checked against what the machine has,
//! and brought in before anything is served from it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use cxloe_fabric::model::ByteSize;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, Flock, FlockArg, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};

use cxloe_mn_core::pool::{
    BadSuperblock, Content, EXTENT_BYTES_DEFAULT, HEAD_ALIGN, Layout, Pool, PoolError, PoolSpec,
    SUPERBLOCK_BYTES, Superblock,
};

use super::file::{Mapped, disk_full, free_disk};
use super::host::Host;
use super::mapping::Mapping;

/// The size of a new pool unless an option says otherwise, in bytes.
pub const POOL_BYTES_DEFAULT: u64 = 1 << 30;

const GIB: u64 = 1 << 30;
const MIB2: u64 = 2 << 20;
/// NUMA nodes that a node mask holds.
const NUMA_NODES: u32 = 1024;

/// What pool is wanted.
#[derive(Clone, Debug, Default)]
pub struct PoolOptions {
    /// What it is made of.
    pub spec: PoolSpec,
    /// Bytes that CNs can be given; the page table comes on top, except for `huge1g` and `dax`, where it
    /// takes a part. `None`: what the file or device has; else [`POOL_BYTES_DEFAULT`].
    pub bytes: Option<u64>,
    /// Bytes of an extent. `None`: what the file has; else 2 MiB.
    pub extent_bytes: Option<u64>,
    /// Whether to bring all pages in first. `None`: as [`PoolSpec::prefaults_by_default`] has it.
    pub prefault: Option<bool>,
    /// Lock the pages into memory, so that they are never swapped.
    pub mlock: bool,
    /// Take the pages from this NUMA node.
    pub numa_node: Option<u32>,
}

/// What opening has found or made so far.
struct Found {
    mapping: Mapping,
    layout: Layout,
    file: Option<Flock<File>>,
    /// The superblock of a pool that existed before.
    earlier: Option<Superblock>,
    /// Whether everything behind the superblock is certain to be zero.
    zero: bool,
}

/// Opens the pool: makes it, or finds a file's or device's content again. `progress` hears how many
/// bytes of how many have been brought in, from several threads.
///
/// # Errors
/// Any [`PoolError`]; each says what to do.
pub fn open(
    options: &PoolOptions,
    host: &Host,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Pool, PoolError> {
    let found = match &options.spec {
        PoolSpec::Anon => anonymous(options, host)?,
        PoolSpec::Huge2M => huge(options, host, MIB2)?,
        PoolSpec::Huge1G => huge(options, host, GIB)?,
        PoolSpec::Memfd => memfd(options, host)?,
        PoolSpec::File(path) => in_file(options, path)?,
        PoolSpec::Dax(path) => on_device(options, host, path)?,
    };
    start(options, host, found, progress)
}

/// Takes over the memory of a predecessor's memfd pool ([`Pool::memory_fd`]) with its content, its
/// mappings and its incarnation. The predecessor must have stopped serving.
///
/// # Errors
/// As [`open`].
pub fn adopt(memory: File, host: &Host) -> Result<Pool, PoolError> {
    let options = PoolOptions { spec: PoolSpec::Memfd, prefault: Some(false), ..PoolOptions::default() };
    let path = PathBuf::from("memfd");
    let len = memory.metadata().map_err(io_error("look at the memfd", &options.spec))?.len();
    let found = existing(&options, &path, lock(memory, &path)?, len)?;
    start(&options, host, found, &|_, _| {})
}

fn start(
    options: &PoolOptions,
    host: &Host,
    found: Found,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Pool, PoolError> {
    let Found { mapping, layout, file, earlier, zero } = found;
    let spec = options.spec.clone();
    if let Some(node) = options.numa_node {
        let (exists, online) = host.numa_node(node);
        if !exists || node >= NUMA_NODES {
            return Err(PoolError::NumaNode { node, online });
        }
        mapping.bind(node).map_err(io_error("bind memory to the NUMA node", &spec))?;
    }
    if options.prefault.unwrap_or(spec.prefaults_by_default()) {
        if let (PoolSpec::File(path), Some(file)) = (&spec, &file) {
            reserve_all(path, file, mapping.len() as u64)?;
        }
        mapping.prefault(progress).map_err(io_error("bring the pages in", &spec))?;
    }
    if options.mlock {
        let bytes = mapping.len() as u64;
        mapping.lock().map_err(|source| PoolError::Mlock { bytes, source })?;
    }
    let boot_id = host.boot_id();
    let same_boot = |earlier: &Superblock| boot_id != 0 && earlier.boot_id == boot_id;
    let kept = earlier.filter(|earlier| match spec {
        PoolSpec::File(_) => earlier.clean || same_boot(earlier),
        _ => same_boot(earlier),
    });
    let incarnation = kept.map_or_else(|| rand::random_range(1..=u64::MAX), |kept| kept.incarnation);
    let content = Content { layout, incarnation, boot_id, retained: kept.is_some(), zero };
    Pool::start(spec.clone(), Box::new(Mapped { spec, mapping, file }), content)
}

/// The stored superblock of a mapping of at least 4 KiB.
fn stored_superblock(mapping: &Mapping) -> [u8; Superblock::BYTES] {
    assert!(mapping.len() >= SUPERBLOCK_BYTES as usize);
    let mut bytes = [0; Superblock::BYTES];
    // SAFETY: the source is mapped, as just checked, and the pool's lock keeps other processes out.
    unsafe { mapping.base().as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), Superblock::BYTES) };
    bytes
}

fn anonymous(options: &PoolOptions, host: &Host) -> Result<Found, PoolError> {
    let layout = wanted(options)?;
    check_memory(layout.total_bytes(), host)?;
    let mapping = Mapping::anonymous(layout.total_bytes() as usize)
        .map_err(io_error("map anonymous memory", &options.spec))?;
    Ok(Found { mapping, layout, file: None, earlier: None, zero: true })
}

fn huge(options: &PoolOptions, host: &Host, page_bytes: u64) -> Result<Found, PoolError> {
    let layout = if page_bytes == GIB {
        // A page of its own for the page table would cost a GiB: it takes a part of what was asked for.
        let total = options.bytes.unwrap_or(POOL_BYTES_DEFAULT).next_multiple_of(GIB);
        Layout::within(total, options.extent_bytes.unwrap_or(EXTENT_BYTES_DEFAULT))?
    } else {
        wanted(options)?
    };
    let len = layout.total_bytes().next_multiple_of(page_bytes);
    let mapping = Mapping::huge(len as usize, page_bytes).map_err(|source| {
        let (free, reserved) = host.huge_pages(page_bytes);
        let needed = len / page_bytes;
        match source.raw_os_error() {
            Some(libc::ENOMEM | libc::EINVAL) if free < needed => PoolError::HugePages {
                pool: options.spec.clone(),
                page: ByteSize(page_bytes),
                needed,
                free,
                reserve: reserved + needed - free,
                knob: host.huge_pages_knob(page_bytes),
            },
            _ => io_error("map huge pages", &options.spec)(source),
        }
    })?;
    Ok(Found { mapping, layout, file: None, earlier: None, zero: true })
}

fn memfd(options: &PoolOptions, host: &Host) -> Result<Found, PoolError> {
    let layout = wanted(options)?;
    check_memory(layout.total_bytes(), host)?;
    let failed = |what| io_error(what, &options.spec);
    let file = memfd_create(c"cxloe-pool", MFdFlags::MFD_CLOEXEC)
        .map_err(|errno| failed("create a memfd")(errno.into()))?;
    let file = File::from(file);
    file.set_len(layout.total_bytes()).map_err(failed("size the memfd"))?;
    let file = lock(file, Path::new("memfd"))?;
    let mapping = Mapping::shared(&file, layout.total_bytes() as usize).map_err(failed("map the memfd"))?;
    Ok(Found { mapping, layout, file: Some(file), earlier: None, zero: true })
}

fn in_file(options: &PoolOptions, path: &Path) -> Result<Found, PoolError> {
    let failed = |what| io_error(what, &options.spec);
    if path.exists() && !path.is_file() {
        return Err(PoolError::Kind { path: path.into(), expected: "a regular file" });
    }
    let mut own = OpenOptions::new();
    own.read(true).write(true).create(true).truncate(false);
    let file = cxloe_private::open(path, &own);
    let file = lock(file.map_err(failed("open or create the file"))?, path)?;
    let metadata = file.metadata().map_err(failed("look at the file"))?;
    // Only a file that is empty, or a hole from end to end as an interrupted creation leaves it, is made a pool.
    if metadata.len() > 0 && metadata.blocks() > 0 {
        return existing(options, path, file, metadata.len());
    }
    let made = wanted(options).and_then(|layout| {
        check_disk(path, &file, layout.total_bytes())?;
        file.set_len(layout.total_bytes()).map_err(failed("size the file"))?;
        let mapping =
            Mapping::shared(&file, layout.total_bytes() as usize).map_err(failed("map the file"))?;
        Ok((mapping, layout))
    });
    match made {
        Ok((mapping, layout)) => Ok(Found { mapping, layout, file: Some(file), earlier: None, zero: true }),
        Err(error) => {
            if metadata.len() == 0 {
                let _ = std::fs::remove_file(path);
            }
            Err(error)
        }
    }
}

fn on_device(options: &PoolOptions, host: &Host, path: &Path) -> Result<Found, PoolError> {
    let failed = |what| io_error(what, &options.spec);
    let not_a_device = || PoolError::Kind { path: path.into(), expected: "a device-DAX node (/dev/daxX.Y)" };
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed("open the device"))?;
    if !file.metadata().map_err(failed("look at the device"))?.file_type().is_char_device() {
        return Err(not_a_device());
    }
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(not_a_device)?;
    let len = host.dax_bytes(name).ok_or_else(not_a_device)? / HEAD_ALIGN * HEAD_ALIGN;
    let file = lock(file, path)?;
    let start = Mapping::shared(&file, HEAD_ALIGN as usize).map_err(failed("map the device"))?;
    if let Ok(earlier) = Superblock::parse(&stored_superblock(&start))
        && earlier.layout.total_bytes() <= len
        && options.bytes.is_none_or(|bytes| bytes >= earlier.layout.served_bytes())
        && options.extent_bytes.is_none_or(|bytes| bytes == earlier.layout.extent_bytes)
    {
        let layout = earlier.layout;
        let mapping =
            Mapping::shared(&file, layout.total_bytes() as usize).map_err(failed("map the device"))?;
        return Ok(Found { mapping, layout, file: Some(file), earlier: Some(earlier), zero: false });
    }
    let total = options.bytes.map_or(len, |bytes| bytes / HEAD_ALIGN * HEAD_ALIGN);
    if total > len {
        return Err(PoolError::Memory { needed: total, available: len });
    }
    let layout = Layout::within(total, options.extent_bytes.unwrap_or(EXTENT_BYTES_DEFAULT))?;
    let bytes = layout.total_bytes().next_multiple_of(HEAD_ALIGN);
    let mapping = Mapping::shared(&file, bytes as usize).map_err(failed("map the device"))?;
    Ok(Found { mapping, layout, file: Some(file), earlier: None, zero: false })
}

/// A file that has content: a pool of the geometry asked for, or an error.
fn existing(options: &PoolOptions, path: &Path, file: Flock<File>, len: u64) -> Result<Found, PoolError> {
    let failed = |what| io_error(what, &options.spec);
    let damaged = |why| PoolError::Superblock { path: path.into(), why };
    if len < SUPERBLOCK_BYTES {
        return Err(PoolError::Foreign { path: path.into() });
    }
    let start = Mapping::shared(&file, SUPERBLOCK_BYTES as usize).map_err(failed("map the file"))?;
    let earlier = Superblock::parse(&stored_superblock(&start)).map_err(|bad| match bad {
        BadSuperblock::Foreign => PoolError::Foreign { path: path.into() },
        BadSuperblock::Damaged(why) => damaged(why),
    })?;
    let layout = earlier.layout;
    if len < layout.total_bytes() {
        return Err(damaged(format!("the file has {len} bytes of {}", layout.total_bytes())));
    }
    let size = options.bytes.unwrap_or(layout.served_bytes());
    let extent = options.extent_bytes.unwrap_or(layout.extent_bytes);
    if (size, extent) != (layout.served_bytes(), layout.extent_bytes) {
        return Err(PoolError::Geometry {
            path: path.into(),
            found_size: ByteSize(layout.served_bytes()),
            found_extent: ByteSize(layout.extent_bytes),
            size: ByteSize(size),
            extent: ByteSize(extent),
        });
    }
    let mapping = Mapping::shared(&file, layout.total_bytes() as usize).map_err(failed("map the file"))?;
    Ok(Found { mapping, layout, file: Some(file), earlier: Some(earlier), zero: false })
}

fn wanted(options: &PoolOptions) -> Result<Layout, PoolError> {
    Layout::serving(
        options.bytes.unwrap_or(POOL_BYTES_DEFAULT),
        options.extent_bytes.unwrap_or(EXTENT_BYTES_DEFAULT),
    )
}

fn check_memory(needed: u64, host: &Host) -> Result<(), PoolError> {
    match host.available_memory() {
        Some(available) if available < needed => Err(PoolError::Memory { needed, available }),
        _ => Ok(()),
    }
}

fn check_disk(path: &Path, file: &File, needed: u64) -> Result<(), PoolError> {
    if free_disk(file).is_some_and(|free| free < needed) {
        Err(disk_full(path, file, needed))
    } else {
        Ok(())
    }
}

/// Reserves disk blocks for the whole file, where its file system can.
fn reserve_all(path: &Path, file: &File, len: u64) -> Result<(), PoolError> {
    match fallocate(file.as_fd(), FallocateFlags::empty(), 0, len as i64) {
        Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(()),
        Err(Errno::ENOSPC) => Err(disk_full(path, file, len)),
        Err(errno) => Err(io_error("reserve disk blocks", &PoolSpec::File(path.into()))(errno.into())),
    }
}

fn lock(file: File, path: &Path) -> Result<Flock<File>, PoolError> {
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(file, errno)| match errno {
        Errno::EWOULDBLOCK => PoolError::Locked { path: path.into() },
        _ => {
            let pool = format!("{} (descriptor {})", path.display(), file.as_raw_fd());
            PoolError::Io { what: "lock the file", pool, source: errno.into() }
        }
    })
}

fn io_error(what: &'static str, spec: &PoolSpec) -> impl FnOnce(io::Error) -> PoolError {
    let pool = spec.to_string();
    move |source| PoolError::Io { what, pool, source }
}
