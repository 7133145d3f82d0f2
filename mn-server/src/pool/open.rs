//! Opening a pool: allocates memory or opens an existing file, checks the machine's resources, and populates the pages
//! before the pool is served.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
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

pub const POOL_BYTES_DEFAULT: u64 = 1 << 30;

const GIB: u64 = 1 << 30;
const MIB2: u64 = 2 << 20;
/// Number of NUMA nodes in a node mask.
const NUMA_NODES: u32 = 1024;

#[derive(Clone, Debug, Default)]
pub struct PoolOptions {
    pub spec: PoolSpec,
    /// Bytes of all extents, to which the page table is added; for `huge1g` and `dax` the page table is taken
    /// from these bytes. `None`: the size of the file or device, else [`POOL_BYTES_DEFAULT`].
    pub bytes: Option<u64>,
    /// Length of an extent in bytes. `None`: the length that the file has, otherwise 2 MiB.
    pub extent_bytes: Option<u64>,
    /// Whether to populate all pages before serving. `None`: by [`PoolSpec::prefaults_by_default`], except
    /// for memory kept from an earlier process.
    pub prefault: Option<bool>,
    /// Set to lock the pages into memory, so that they are never swapped out.
    pub mlock: bool,
    pub numa_node: Option<u32>,
    /// Set to discard the content of an existing pool that does not fit these options.
    pub discard: bool,
}

struct OpenedMapping {
    mapping: Mapping,
    layout: Layout,
    file: Option<Flock<File>>,
    /// Superblock of a pool that existed before.
    earlier: Option<Superblock>,
    /// Set if everything behind the superblock certainly is zero.
    zero: bool,
}

/// Opens the pool: creates it, or opens a file, a device or memory `kept` from an earlier process ([`Pool::memory_fd`])
/// with its content. The earlier process must have stopped serving. `progress` gets the bytes populated and the total,
/// from several threads.
///
/// # Errors
/// Any [`PoolError`]; each message names a remedy.
pub fn open(
    options: &PoolOptions,
    host: &Host,
    kept: Option<File>,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Pool, PoolError> {
    let found = match (&options.spec, kept) {
        (PoolSpec::File(path), _) => in_file(options, path)?,
        (PoolSpec::Dax(path), _) => on_device(options, host, path)?,
        (spec, Some(memory)) => earlier_memory(options, memory, page_bytes(spec))?,
        (spec, None) => new_memory(options, host, page_bytes(spec))?,
    };
    start(options, host, found, progress)
}

/// Size in bytes of a huge page for this kind of memory; `None` for ordinary pages.
fn page_bytes(spec: &PoolSpec) -> Option<u64> {
    match spec {
        PoolSpec::Huge2M => Some(MIB2),
        PoolSpec::Huge1G => Some(GIB),
        _ => None,
    }
}

fn start(
    options: &PoolOptions,
    host: &Host,
    found: OpenedMapping,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Pool, PoolError> {
    let OpenedMapping { mapping, layout, file, earlier, zero } = found;
    let spec = options.spec.clone();
    if let Some(node) = options.numa_node {
        let (exists, online) = host.numa_node(node);
        if !exists || node >= NUMA_NODES {
            return Err(PoolError::NumaNode { node, online });
        }
        // The memory is bound before pages are populated, because the binding applies only to pages that are not
        // present yet.
        mapping.bind(node).map_err(io_error("bind memory to the NUMA node", &spec))?;
    }
    // Pages kept from an earlier process are present already; populating them would only delay the start.
    let kept_in_memory = spec.is_memory() && earlier.is_some();
    if options.prefault.unwrap_or(spec.prefaults_by_default() && !kept_in_memory) {
        // Blocks are reserved first, so that populating pages does not find the disk full.
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
    let retained = earlier.filter(|earlier| is_valid_still(&spec, earlier, boot_id));
    let incarnation =
        retained.map_or_else(|| rand::random_range(1..=u64::MAX), |earlier| earlier.incarnation);
    let content = Content { layout, incarnation, boot_id, retained: retained.is_some(), zero };
    Pool::start(spec.clone(), Box::new(Mapped { spec, mapping, file }), content)
}

/// Whether the content of a pool of this kind, with this superblock, is valid for a process of the boot `boot_id`.
pub(super) fn is_valid_still(spec: &PoolSpec, earlier: &Superblock, boot_id: u128) -> bool {
    let same_boot = boot_id != 0 && earlier.boot_id == boot_id;
    match spec {
        PoolSpec::File(_) => earlier.clean || same_boot,
        PoolSpec::Dax(_) => same_boot,
        // Memory without a file exists only while a process has its descriptor, so the content is of this boot.
        PoolSpec::Anon | PoolSpec::Huge2M | PoolSpec::Huge1G => true,
    }
}

/// Superblock stored in a mapping of at least 4 KiB.
fn stored_superblock(mapping: &Mapping) -> [u8; Superblock::BYTES] {
    let mut bytes = [0; Superblock::BYTES];
    mapping.read(0, &mut bytes);
    bytes
}

/// Size of the memory that a new pool of `anon`, `huge2m` or `huge1g` takes with its page table, in bytes.
///
/// # Errors
/// The pool size and the extent size do not fit each other.
pub fn memory_bytes(options: &PoolOptions) -> Result<u64, PoolError> {
    let huge = page_bytes(&options.spec);
    Ok(mapped_bytes(&memory_layout(options, huge)?, huge))
}

fn memory_layout(options: &PoolOptions, huge: Option<u64>) -> Result<Layout, PoolError> {
    if huge != Some(GIB) {
        return required_layout(options);
    }
    // A separate page for the page table would take a GiB, so the page table takes a part of the requested size.
    let total = options.bytes.unwrap_or(POOL_BYTES_DEFAULT).next_multiple_of(GIB);
    Layout::within(total, options.extent_bytes.unwrap_or(EXTENT_BYTES_DEFAULT))
}

/// Allocates new memory with a descriptor, so that another process can keep it.
fn new_memory(options: &PoolOptions, host: &Host, huge: Option<u64>) -> Result<OpenedMapping, PoolError> {
    let failed = |what| io_error(what, &options.spec);
    let layout = memory_layout(options, huge)?;
    let len = mapped_bytes(&layout, huge);
    if huge.is_none() {
        check_memory(len, host)?;
    }
    let too_few = |source: io::Error| match (huge, source.raw_os_error()) {
        (Some(page), Some(libc::ENOMEM | libc::EINVAL | libc::ENODEV | libc::ENOSPC | libc::ENOENT))
            if host.huge_pages(page).0 < len / page =>
        {
            let (free, reserved) = host.huge_pages(page);
            let needed = len / page;
            PoolError::HugePages {
                pool: options.spec.clone(),
                page: ByteSize(page),
                needed,
                free,
                reserve: reserved + needed - free,
                knob: host.huge_pages_knob(page),
            }
        }
        _ => failed("map memory")(source),
    };
    let flags = match huge {
        Some(GIB) => MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_1GB,
        Some(_) => MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB,
        None => MFdFlags::empty(),
    };
    let file =
        memfd_create(c"cxloe-pool", flags | MFdFlags::MFD_CLOEXEC).map_err(|errno| too_few(errno.into()))?;
    let file = File::from(file);
    file.set_len(len).map_err(failed("size the memory"))?;
    let mapping = map_memory(&file, len, huge).map_err(too_few)?;
    Ok(OpenedMapping { mapping, layout, file: Some(lock(file, &memory_name())?), earlier: None, zero: true })
}

fn earlier_memory(
    options: &PoolOptions,
    memory: File,
    huge: Option<u64>,
) -> Result<OpenedMapping, PoolError> {
    let failed = |what| io_error(what, &options.spec);
    let differs = |why| PoolError::Kept { why };
    let metadata = memory.metadata().map_err(failed("look at the memory"))?;
    if let Some(page) = huge.filter(|page| *page != metadata.blksize()) {
        let found = ByteSize(metadata.blksize());
        return Err(differs(format!("its pages are of {found}, not of {} (--pool)", ByteSize(page))));
    }
    let file = lock(memory, &memory_name())?;
    let earlier = match stored_in(&file) {
        Ok(Ok(earlier)) => earlier,
        Ok(Err(BadSuperblock::Damaged(why))) => {
            return Err(differs(format!("its superblock is damaged ({why})")));
        }
        Ok(Err(BadSuperblock::Foreign)) | Err(_) => return Err(differs("it is no pool".into())),
    };
    let layout = earlier.layout;
    let len = mapped_bytes(&layout, huge);
    if metadata.len() < len {
        return Err(differs(format!("it has {} bytes of {len}", metadata.len())));
    }
    let (size, extent) = asked(options, &layout);
    let fits = match huge {
        // In a pool of 1 GiB pages, the page table is a part of the requested size.
        Some(GIB) => options.bytes.is_none_or(|bytes| bytes.next_multiple_of(GIB) == layout.total_bytes()),
        _ => size == layout.served_bytes(),
    };
    if !fits || extent != layout.extent_bytes {
        return Err(differs(other_geometry("it", &layout, (size, extent))));
    }
    let mapping = map_memory(&file, len, huge).map_err(failed("map the memory"))?;
    Ok(OpenedMapping { mapping, layout, file: Some(file), earlier: Some(earlier), zero: false })
}

fn memory_name() -> PathBuf {
    PathBuf::from("the pool's memory")
}

/// Bytes to map for a pool: whole pages.
fn mapped_bytes(layout: &Layout, huge: Option<u64>) -> u64 {
    layout.total_bytes().next_multiple_of(huge.unwrap_or(1))
}

fn map_memory(file: &File, len: u64, huge: Option<u64>) -> io::Result<Mapping> {
    match huge {
        Some(_) => Mapping::huge(file, len as usize),
        None => Mapping::shared(file, len as usize),
    }
}

/// Superblock of a file, or the reason why the file has none.
pub(super) fn stored_in(file: &File) -> io::Result<Result<Superblock, BadSuperblock>> {
    let mut bytes = [0; Superblock::BYTES];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(Superblock::parse(&bytes))
}

/// Size and extent size that the options request; if an option is missing, that of the existing pool.
fn asked(options: &PoolOptions, there: &Layout) -> (u64, u64) {
    (options.bytes.unwrap_or(there.served_bytes()), options.extent_bytes.unwrap_or(there.extent_bytes))
}

fn in_file(options: &PoolOptions, path: &Path) -> Result<OpenedMapping, PoolError> {
    let failed = |what| io_error(what, &options.spec);
    if path.exists() && !path.is_file() {
        return Err(PoolError::Kind { path: path.into(), expected: "a regular file" });
    }
    let mut own = OpenOptions::new();
    own.read(true).write(true).create(true).truncate(false);
    let file = cxloe_private::open(path, &own);
    let file = lock(file.map_err(failed("open or create the file"))?, path)?;
    let metadata = file.metadata().map_err(failed("look at the file"))?;
    // Only a file that is empty, or has no blocks because its creation was interrupted, may be made a new pool.
    if metadata.len() > 0 && metadata.blocks() > 0 {
        return existing(options, path, file, metadata.len());
    }
    let made = required_layout(options).and_then(|layout| {
        check_disk(path, &file, layout.total_bytes())?;
        file.set_len(layout.total_bytes()).map_err(failed("size the file"))?;
        let mapping =
            Mapping::shared(&file, layout.total_bytes() as usize).map_err(failed("map the file"))?;
        Ok((mapping, layout))
    });
    match made {
        Ok((mapping, layout)) => {
            Ok(OpenedMapping { mapping, layout, file: Some(file), earlier: None, zero: true })
        }
        Err(error) => {
            // The file was empty before, so nothing is lost with it.
            if metadata.len() == 0 {
                let _ = std::fs::remove_file(path);
            }
            Err(error)
        }
    }
}

fn on_device(options: &PoolOptions, host: &Host, path: &Path) -> Result<OpenedMapping, PoolError> {
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
        && fits_device(options, &earlier, host.boot_id(), path)?
    {
        let layout = earlier.layout;
        let mapping =
            Mapping::shared(&file, layout.total_bytes() as usize).map_err(failed("map the device"))?;
        return Ok(OpenedMapping { mapping, layout, file: Some(file), earlier: Some(earlier), zero: false });
    }
    let total = options.bytes.map_or(len, |bytes| bytes / HEAD_ALIGN * HEAD_ALIGN);
    if total > len {
        return Err(PoolError::Memory { needed: total, available: len });
    }
    let layout = Layout::within(total, options.extent_bytes.unwrap_or(EXTENT_BYTES_DEFAULT))?;
    let bytes = layout.total_bytes().next_multiple_of(HEAD_ALIGN);
    let mapping = Mapping::shared(&file, bytes as usize).map_err(failed("map the device"))?;
    Ok(OpenedMapping { mapping, layout, file: Some(file), earlier: None, zero: false })
}

/// Whether the pool on a device has the requested geometry. `false` means that the pool may be replaced, because its
/// content is not valid or is to be discarded; if it may not be replaced, an error is returned.
fn fits_device(
    options: &PoolOptions,
    earlier: &Superblock,
    boot_id: u128,
    path: &Path,
) -> Result<bool, PoolError> {
    let layout = &earlier.layout;
    let fits = options.bytes.is_none_or(|bytes| bytes >= layout.served_bytes())
        && options.extent_bytes.is_none_or(|bytes| bytes == layout.extent_bytes);
    if fits || options.discard || !is_valid_still(&options.spec, earlier, boot_id) {
        return Ok(fits);
    }
    Err(PoolError::Kept { why: other_geometry(&path.display().to_string(), layout, asked(options, layout)) })
}

fn other_geometry(pool: &str, found: &Layout, (size, extent): (u64, u64)) -> String {
    format!(
        "{pool} is a pool of {} in extents of {}, not of {} in extents of {} (--pool-size, --extent-size)",
        ByteSize(found.served_bytes()),
        ByteSize(found.extent_bytes),
        ByteSize(size),
        ByteSize(extent)
    )
}

/// Opens a file with content, which has to be a pool of the geometry requested.
fn existing(
    options: &PoolOptions,
    path: &Path,
    file: Flock<File>,
    len: u64,
) -> Result<OpenedMapping, PoolError> {
    let failed = |what| io_error(what, &options.spec);
    let damaged = |why| PoolError::Superblock { path: path.into(), why };
    if len < SUPERBLOCK_BYTES {
        return Err(PoolError::Foreign { path: path.into() });
    }
    let earlier = stored_in(&file).map_err(failed("read the file"))?.map_err(|bad| match bad {
        BadSuperblock::Foreign => PoolError::Foreign { path: path.into() },
        BadSuperblock::Damaged(why) => damaged(why),
    })?;
    let layout = earlier.layout;
    if len < layout.total_bytes() {
        return Err(damaged(format!("the file has {len} bytes of {}", layout.total_bytes())));
    }
    let (size, extent) = asked(options, &layout);
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
    Ok(OpenedMapping { mapping, layout, file: Some(file), earlier: Some(earlier), zero: false })
}

fn required_layout(options: &PoolOptions) -> Result<Layout, PoolError> {
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

/// Reserves disk blocks for the whole file, if the file system supports that.
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
