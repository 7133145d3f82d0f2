//! Pools as a memory node opens them: the content that each kind keeps, the options that it refuses, and its messages.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use cxloe_mn::pool::{Host, MpAddr, MpExtent, Pool, PoolError, PoolOptions, PoolSpec};

const MIB: u64 = 1 << 20;

fn options(spec: PoolSpec, mib: u64) -> PoolOptions {
    PoolOptions { spec, bytes: Some(mib * MIB), ..PoolOptions::default() }
}

fn open(options: &PoolOptions, host: &Host) -> Result<Pool, PoolError> {
    cxloe_mn::pool::open(options, host, None, &|_, _| {})
}

/// Makes a machine with `mib` MiB of memory, and the boot id `boot`.
fn machine(boot: u8, mib: u64) -> (tempfile::TempDir, Host) {
    let root = tempfile::tempdir().unwrap();
    let random = root.path().join("proc/sys/kernel/random");
    fs::create_dir_all(&random).unwrap();
    fs::write(random.join("boot_id"), format!("0c5e3b8e-31a4-4ad7-8e0c-0000000000{boot:02x}\n")).unwrap();
    fs::write(root.path().join("proc/meminfo"), format!("MemAvailable: {} kB\n", mib << 10)).unwrap();
    let host = Host::at(root.path());
    (root, host)
}

fn lines(pool: &Pool, at: u64, n: usize) -> Vec<u8> {
    let mut out = vec![0xEE; n * 64];
    pool.read_lines(MpAddr(at), &mut out);
    out
}

#[test]
fn every_kind_of_memory_holds_lines() {
    let dir = tempfile::tempdir().unwrap();
    for spec in [PoolSpec::Anon, PoolSpec::File(dir.path().join("pool"))] {
        let pool = open(&options(spec.clone(), 8), &Host::default()).unwrap();
        assert_eq!((pool.bytes(), pool.extents(), pool.extent_bytes()), (8 * MIB, 4, 2 * MIB), "{spec}");
        assert!(!pool.retained());
        let last = pool.bytes() - 64;
        for at in [0, 2 * MIB, last] {
            pool.prefetch(MpAddr(at));
            assert_eq!(lines(&pool, at, 1), [0; 64], "{spec} at {at:#x}");
            pool.write_lines(MpAddr(at), &[0xA5; 64]);
            assert_eq!(lines(&pool, at, 1), [0xA5; 64], "{spec} at {at:#x}");
        }
        pool.write_lines(MpAddr(4 * MIB - 128), &[0x11; 256]);
        assert_eq!(lines(&pool, 4 * MIB - 192, 6), [vec![0; 64], vec![0x11; 256], vec![0; 64]].concat());
    }
}

#[test]
fn lines_outside_the_pool_are_a_defect_not_a_leak() {
    let pool = open(&options(PoolSpec::Anon, 4), &Host::default()).unwrap();
    for (at, n) in [(4 * MIB, 1), (4 * MIB - 64, 2), (u64::MAX - 63, 1), (0, 65537)] {
        let attempt = std::panic::AssertUnwindSafe(|| lines(&pool, at, n));
        assert!(std::panic::catch_unwind(attempt).is_err(), "{n} lines at {at:#x}");
        let attempt = std::panic::AssertUnwindSafe(|| pool.write_lines(MpAddr(at), &vec![1; n * 64]));
        assert!(std::panic::catch_unwind(attempt).is_err(), "{n} lines at {at:#x}");
    }
    pool.prefetch(MpAddr(u64::MAX - 63));
}

#[test]
fn an_extent_reads_as_zeros_for_its_next_owner() {
    let dir = tempfile::tempdir().unwrap();
    for spec in [PoolSpec::Anon, PoolSpec::File(dir.path().join("pool"))] {
        let pool = open(&options(spec.clone(), 8), &Host::default()).unwrap();
        let extent = MpExtent(2);
        let start = pool.extent_start(extent).0;
        assert!(pool.is_known_zero(extent).unwrap());
        pool.prepare_extent(extent, |_| true).unwrap();
        assert!(!pool.is_known_zero(extent).unwrap(), "its owner may write from now on");
        for at in [start - 64, start, start + 2 * MIB - 64, start + 2 * MIB] {
            pool.write_lines(MpAddr(at), &[7; 64]);
        }
        pool.zero_extent(extent, |_| true).unwrap();
        assert!(pool.is_known_zero(extent).unwrap());
        assert!(lines(&pool, start, 32768).iter().all(|byte| *byte == 0), "{spec}");
        assert_eq!(lines(&pool, start - 64, 1), [7; 64], "the neighbours keep their content");
        assert_eq!(lines(&pool, start + 2 * MIB, 1), [7; 64], "the neighbours keep their content");
        pool.write_lines(MpAddr(start), &[9; 64]);
        pool.prepare_extent(extent, |_| true).unwrap();
        pool.prepare_extent(extent, |_| true).unwrap();
        assert_eq!(lines(&pool, start, 1), [0; 64], "{spec}");
        assert!(matches!(
            pool.zero_extent(MpExtent(4), |_| true),
            Err(PoolError::NoSuchExtent { extent: 4, extents: 4 })
        ));
        assert!(matches!(
            pool.prepare_extent(MpExtent(u32::MAX), |_| true),
            Err(PoolError::NoSuchExtent { .. })
        ));
    }
}

#[test]
fn zeroing_can_be_ended_between_slices_and_begins_anew() {
    let pool = open(&options(PoolSpec::Anon, 8), &Host::default()).unwrap();
    let extent = MpExtent(1);
    let (start, last) = (pool.extent_start(extent), MpAddr(pool.extent_start(extent).0 + 2 * MIB - 64));
    pool.prepare_extent(extent, |_| true).unwrap();
    pool.write_lines(start, &[7; 64]);
    pool.write_lines(last, &[7; 64]);
    let mut told = Vec::new();
    let ended = pool.zero_extent(extent, |bytes| {
        told.push(bytes);
        false
    });
    assert_eq!((ended.unwrap(), told), (false, vec![MIB]));
    assert!(!pool.is_known_zero(extent).unwrap());
    assert_eq!((lines(&pool, start.0, 1), lines(&pool, last.0, 1)), (vec![0; 64], vec![7; 64]));
    assert!(!pool.prepare_extent(extent, |_| false).unwrap());

    let mut bytes = 0;
    let done = pool.zero_extent(extent, |more| {
        bytes += more;
        true
    });
    assert_eq!((done.unwrap(), bytes), (true, 2 * MIB));
    assert!(pool.is_known_zero(extent).unwrap());
    assert_eq!(lines(&pool, last.0, 1), [0; 64]);
}

#[test]
fn a_pool_larger_than_memory_is_refused_with_both_numbers() {
    let (_root, host) = machine(1, 64);
    let error = open(&options(PoolSpec::Anon, 128), &host).unwrap_err();
    assert!(matches!(error, PoolError::Memory { available, .. } if available == 64 * MIB));
    let text = error.to_string();
    assert!(text.contains("130MiB") && text.contains("64MiB") && text.contains("--pool-size"), "{text}");
    // The memory available on the real machine is checked as well.
    let available = Host::default().available_memory().unwrap();
    let error = open(&options(PoolSpec::Anon, 2 * available / MIB / 2 * 2), &Host::default()).unwrap_err();
    assert!(matches!(error, PoolError::Memory { .. }), "{error}");
}

#[test]
fn a_pool_larger_than_its_disk_is_refused_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let error = open(&options(PoolSpec::File(path.clone()), 1 << 30), &Host::default()).unwrap_err();
    assert!(matches!(error, PoolError::Disk { .. }), "{error}");
    assert!(error.to_string().contains("1024.10 TiB"), "{error}");
    assert!(!path.exists());
}

#[test]
fn absent_huge_pages_are_an_error_that_says_how_to_reserve_them() {
    for (spec, page, mib) in [(PoolSpec::Huge2M, 2 << 20, 1 << 20), (PoolSpec::Huge1G, 1 << 30, 1 << 20)] {
        // This test assumes a machine with less than a TiB of huge pages.
        let (free, reserved) = Host::default().huge_pages(page);
        let error = open(&options(spec.clone(), mib), &Host::default()).unwrap_err();
        let PoolError::HugePages { needed, free: told, reserve, ref knob, .. } = error else {
            panic!("{error}")
        };
        assert!(needed >= (mib << 20) / page && told == free);
        assert_eq!(reserve, reserved + needed - free);
        assert!(knob.starts_with("/sys/kernel/mm/hugepages") && knob.ends_with("nr_hugepages"));
        let text = error.to_string();
        assert!(text.contains(&format!("echo {reserve} > ")) && text.contains(&spec.to_string()), "{text}");
    }
}

#[test]
fn a_pool_file_serves_one_process_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(PoolSpec::File(dir.path().join("pool")), 8);
    let first = open(&options, &Host::default()).unwrap();
    let error = open(&options, &Host::default()).unwrap_err();
    assert!(matches!(error, PoolError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("another process"), "{error}");
    drop(first);
    open(&options, &Host::default()).unwrap();
}

#[test]
fn files_that_are_no_pools_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("thesis.tex");
    for content in [b"\\documentclass{book}".to_vec(), vec![0x5A; 3 << 20]] {
        cxloe_private::write(&path, &content, cxloe_private::Existing::Replace).unwrap();
        let error = open(&options(PoolSpec::File(path.clone()), 8), &Host::default()).unwrap_err();
        assert!(matches!(error, PoolError::Foreign { .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), content);
    }
    let error = open(&options(PoolSpec::File(dir.path().into()), 8), &Host::default()).unwrap_err();
    assert!(matches!(error, PoolError::Kind { .. }), "{error}");
    for (spec, is_kind) in [(PoolSpec::Dax("/dev/null".into()), true), (PoolSpec::Dax(path.clone()), true)] {
        let error = open(&options(spec, 8), &Host::default()).unwrap_err();
        assert_eq!(matches!(error, PoolError::Kind { .. }), is_kind, "{error}");
    }
    let error = open(&options(PoolSpec::Dax("/dev/dax9.9".into()), 8), &Host::default()).unwrap_err();
    assert!(error.to_string().contains("/dev/dax9.9"), "{error}");
}

/// Opens the pool of `path` in the boot of `host`; returns it with its incarnation, `retained`, and its first line.
fn look(path: &Path, host: &Host) -> (Pool, u64, bool, Vec<u8>) {
    let options = PoolOptions { spec: PoolSpec::File(path.into()), ..PoolOptions::default() };
    let pool = open(&options, host).unwrap();
    let (incarnation, retained, line) = (pool.incarnation(), pool.retained(), lines(&pool, 0, 1));
    (pool, incarnation, retained, line)
}

#[test]
fn a_pool_file_keeps_its_incarnation_as_long_as_its_content_is_certain() {
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = dir.path().join("pool");
    let ((_a, monday), (_b, tuesday)) = (machine(1, 64), machine(2, 64));
    let pool = open(&options(PoolSpec::File(path.clone()), 8), &monday).unwrap();
    let first = pool.incarnation();
    assert_ne!(first, 0);
    pool.write_lines(MpAddr(0), &[1; 64]);
    drop(pool);

    // The process ended without closing the pool: the page cache still has its content.
    let (pool, incarnation, retained, line) = look(&path, &monday);
    assert_eq!((incarnation, retained, line), (first, true, vec![1; 64]));
    assert!(!pool.is_known_zero(MpExtent(3)).unwrap(), "who knows what the earlier process left there");
    pool.close().unwrap();
    drop(pool);

    // The pool was closed, then opened in another boot: the file has all of its content.
    let (pool, incarnation, retained, line) = look(&path, &tuesday);
    assert_eq!((incarnation, retained, line), (first, true, vec![1; 64]));
    drop(pool);

    // Opening the pool has cleared its clean mark, so after a boot without an orderly close the content counts as lost.
    let (pool, incarnation, retained, _) = look(&path, &monday);
    assert!(incarnation != first && incarnation != 0 && !retained);
    assert!(!pool.is_known_zero(MpExtent(0)).unwrap());
    pool.prepare_extent(MpExtent(0), |_| true).unwrap();
    assert_eq!(lines(&pool, 0, 1), [0; 64], "nothing of the lost content reaches a new owner");
    drop(pool);

    // If the boot id is unknown, every opening counts as one in another boot.
    let nowhere = Host::at("/nonexistent");
    let (pool, second, ..) = look(&path, &nowhere);
    drop(pool);
    let (_pool, third, retained, _) = look(&path, &nowhere);
    assert!(second != third && !retained);
}

#[test]
fn memory_without_a_file_is_another_incarnation_each_time() {
    let (_root, host) = machine(1, 64);
    let incarnations: Vec<u64> =
        (0..4).map(|_| open(&options(PoolSpec::Anon, 4), &host).unwrap().incarnation()).collect();
    for (n, incarnation) in incarnations.iter().enumerate() {
        assert!(*incarnation != 0 && !incarnations[..n].contains(incarnation));
    }
}

#[test]
fn the_next_process_goes_on_with_kept_memory() {
    let (_root, host) = machine(1, 64);
    let pool = open(&options(PoolSpec::Anon, 8), &host).unwrap();
    pool.write_lines(MpAddr(4 * MIB), &[3; 64]);
    let incarnation = pool.incarnation();
    let memory = pool.memory_fd().unwrap().try_clone_to_owned().unwrap();
    drop(pool);
    let reopen = |options: &PoolOptions| {
        let kept = File::from(memory.try_clone().unwrap());
        cxloe_mn::pool::open(options, &host, Some(kept), &|_, _| {})
    };
    for options in [options(PoolSpec::Anon, 8), PoolOptions::default()] {
        let next = reopen(&options).unwrap();
        assert_eq!((next.incarnation(), next.retained()), (incarnation, true));
        assert_eq!((next.bytes(), lines(&next, 4 * MIB, 1)), (8 * MIB, vec![3; 64]));
        assert_eq!(lines(&next, 4 * MIB + 64, 1), [0; 64]);
    }
    let twice = reopen(&PoolOptions::default()).unwrap();
    assert!(twice.memory_fd().is_some(), "it can be handed on again");

    for (options, word) in [
        (options(PoolSpec::Anon, 16), "8MiB"),
        (PoolOptions { extent_bytes: Some(4 * MIB), ..PoolOptions::default() }, "4MiB"),
        (options(PoolSpec::Huge2M, 8), "--pool"),
    ] {
        let error = reopen(&options).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, PoolError::Kept { .. }) && text.contains(word), "{text}");
        assert!(text.contains("--pool-discard"), "{text}");
    }
    let empty = tempfile::tempfile().unwrap();
    let error = cxloe_mn::pool::open(&PoolOptions::default(), &host, Some(empty), &|_, _| {}).unwrap_err();
    assert!(matches!(error, PoolError::Kept { .. }), "{error}");
}

#[test]
fn a_pool_file_says_its_geometry_and_its_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let spec = PoolSpec::File(path.clone());
    drop(open(&options(spec.clone(), 8), &Host::default()).unwrap());
    let error = open(&options(spec.clone(), 16), &Host::default()).unwrap_err();
    assert!(error.to_string().contains("8MiB") && error.to_string().contains("16MiB"), "{error}");
    let extent = PoolOptions { extent_bytes: Some(64 << 10), ..options(spec.clone(), 8) };
    assert!(matches!(open(&extent, &Host::default()), Err(PoolError::Geometry { .. })));

    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length - 4096).unwrap();
    let error = open(&options(spec.clone(), 8), &Host::default()).unwrap_err();
    assert!(matches!(&error, PoolError::Superblock { why, .. } if why.contains("bytes of")), "{error}");
    file.set_len(length).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 30).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 30).unwrap();
    let error = open(&options(spec, 8), &Host::default()).unwrap_err();
    assert!(matches!(&error, PoolError::Superblock { why, .. } if why.contains("checksum")), "{error}");
}

#[test]
fn a_pool_file_is_sparse_until_an_extent_gets_an_owner() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = open(&options(PoolSpec::File(path.clone()), 64), &Host::default()).unwrap();
    let blocks = || fs::metadata(&path).unwrap().blocks() * 512;
    let before = blocks();
    assert!(before < 4 * MIB, "{before} bytes allocated");
    pool.prepare_extent(MpExtent(9), |_| true).unwrap();
    assert!(blocks() >= before + 2 * MIB, "blocks are reserved before a CN can write");
}

#[test]
fn prefault_reports_progress_and_options_reach_the_kernel() {
    let told = AtomicU64::new(0);
    let all = PoolOptions { mlock: false, numa_node: Some(0), ..options(PoolSpec::Anon, 8) };
    let pool = cxloe_mn::pool::open(&all, &Host::default(), None, &|done, of| {
        assert!(done <= of);
        told.fetch_max(done, Ordering::Relaxed);
    });
    let pool = pool.unwrap();
    assert!(told.load(Ordering::Relaxed) > pool.bytes());
    let off = PoolOptions { prefault: Some(false), ..options(PoolSpec::Anon, 8) };
    cxloe_mn::pool::open(&off, &Host::default(), None, &|_, _| panic!("nothing is brought in")).unwrap();
    let elsewhere = PoolOptions { numa_node: Some(1000), ..options(PoolSpec::Anon, 8) };
    let error = open(&elsewhere, &Host::default()).unwrap_err();
    assert!(matches!(&error, PoolError::NumaNode { node: 1000, online } if !online.is_empty()), "{error}");
}
