//! The page table compared with a model, under concurrent readers, and after damage; the TLB in front of it.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cxloe_mn::pool::{Host, MpAddr, MpExtent, Pool, PoolOptions, PoolSpec};
use cxloe_mn_core::translation::{
    PageTable, PageTableWriter, Recovery, TableError, Tlb, Translation, Unmapped,
};
use proptest::prelude::*;

const EXTENT: u64 = 64 << 10;

fn pool(spec: PoolSpec, extents: u64) -> Arc<Pool> {
    let options = PoolOptions {
        spec,
        bytes: Some(extents * EXTENT),
        extent_bytes: Some(EXTENT),
        prefault: Some(false),
        ..PoolOptions::default()
    };
    Arc::new(cxloe_mn::pool::open(&options, &Host::default(), None, &|_, _| {}).unwrap())
}

fn empty(extents: u64) -> PageTableWriter {
    let (writer, recovery) = PageTableWriter::open(pool(PoolSpec::Anon, extents));
    assert_eq!(recovery, Recovery::default());
    writer
}

fn sorted(table: &PageTable) -> Vec<Translation> {
    let mut all: Vec<_> = table.iter().collect();
    all.sort_unstable();
    all
}

#[derive(Clone, Debug)]
enum Step {
    Map { cn: u64, cmem: u64, mp: u32 },
    Unmap { cn: u64, cmem: u64 },
    Seal,
    WorkerPasses,
}

fn step(extents: u32) -> impl Strategy<Value = Step> {
    let address = || (1..4u64, 0..12u64);
    prop_oneof![
        4 => (address(), 0..extents).prop_map(|((cn, cmem), mp)| Step::Map { cn, cmem, mp }),
        3 => address().prop_map(|(cn, cmem)| Step::Unmap { cn, cmem }),
        1 => Just(Step::Seal),
        1 => Just(Step::WorkerPasses),
    ]
}

fn mapping(cn: u64, cmem_extent: u64, mp_extent: MpExtent) -> Translation {
    Translation { cn, cmem_extent, mp_extent, sealed: false }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// After any sequence of changes the table has the entries of a plain map, and refuses changes that break a rule.
    #[test]
    fn the_table_behaves_like_a_map(steps in prop::collection::vec(step(16), 1..400)) {
        let mut writer = empty(16);
        let table = writer.table().clone();
        let mut worker = table.generation().worker();
        worker.pass(|| {});
        let mut model: HashMap<(u64, u64), u32> = HashMap::new();
        // Extents of removed mappings. Each is free when the worker has passed the generation stored here.
        let mut busy: HashMap<u32, u64> = HashMap::new();
        let (mut current, mut passed) = (0, 0);
        for step in steps {
            match step {
                Step::Map { cn, cmem, mp } => {
                    let expected = if model.get(&(cn, cmem)) == Some(&mp) {
                        "ok"
                    } else if model.contains_key(&(cn, cmem)) {
                        "address"
                    } else if model.values().any(|other| *other == mp) {
                        "extent"
                    } else if busy.get(&mp).is_some_and(|generation| *generation > passed) {
                        "busy"
                    } else {
                        "ok"
                    };
                    let got = match writer.map(mapping(cn, cmem, MpExtent(mp))) {
                        Ok(()) => "ok",
                        Err(TableError::AddressTaken(_)) => "address",
                        Err(TableError::ExtentTaken(_)) => "extent",
                        Err(TableError::ExtentBusy(_)) => "busy",
                        Err(error) => panic!("{error}"),
                    };
                    prop_assert_eq!(got, expected);
                    if got == "ok" {
                        model.insert((cn, cmem), mp);
                    }
                }
                Step::Unmap { cn, cmem } => {
                    let removed = model.remove(&(cn, cmem));
                    prop_assert_eq!(writer.unmap(cn, cmem), removed.map(MpExtent));
                    if let Some(mp) = removed {
                        busy.insert(mp, current + 1);
                    }
                }
                Step::Seal => {
                    current += 1;
                    prop_assert_eq!(writer.seal(), current);
                }
                Step::WorkerPasses => {
                    worker.pass(|| {});
                    passed = current;
                }
            }
            prop_assert_eq!(writer.len(), model.len());
            prop_assert_eq!(writer.passed(), passed);
            for cn in 1..4 {
                for cmem in 0..12 {
                    let expected = model.get(&(cn, cmem)).copied().map(MpExtent);
                    prop_assert_eq!(table.lookup(cn, cmem), expected);
                }
                let known = model.keys().any(|(owner, _)| *owner == cn);
                prop_assert_eq!(table.unmapped(cn) == Unmapped::Nxm, known);
            }
        }
        let mut expected: Vec<_> = model
            .into_iter()
            .map(|((cn, cmem_extent), mp)| mapping(cn, cmem_extent, MpExtent(mp)))
            .collect();
        expected.sort_unstable();
        prop_assert_eq!(sorted(&table), expected);
    }
}

#[test]
fn every_extent_can_be_mapped_to_a_cn_of_its_own_and_again_and_again() {
    let mut writer = empty(256);
    let table = writer.table().clone();
    for round in 0..40u64 {
        for n in 0..256 {
            writer.map(mapping(1000 * round + n, n * 7, MpExtent(n as u32))).unwrap();
        }
        assert_eq!(writer.len(), 256);
        for n in 0..256 {
            assert_eq!(table.lookup(1000 * round + n, n * 7), Some(MpExtent(n as u32)));
            assert_eq!(writer.unmap(1000 * round + n, n * 7), Some(MpExtent(n as u32)));
        }
        writer.seal();
    }
    assert_eq!(table.iter().count(), 0);
    assert_eq!(table.unmapped(0), Unmapped::Denied);
}

#[test]
fn addresses_and_extents_that_do_not_exist_are_refused() {
    let mut writer = empty(4);
    assert!(matches!(
        writer.map(mapping(1, 0, MpExtent(4))),
        Err(TableError::NoSuchExtent { extents: 4, .. })
    ));
    assert!(matches!(writer.map(mapping(1 << 48, 0, MpExtent(0))), Err(TableError::Range { .. })));
    assert!(matches!(writer.map(mapping(1, 1 << 32, MpExtent(0))), Err(TableError::Range { .. })));
    assert_eq!(writer.unmap(1 << 48, 0), None);
    writer.map(mapping((1 << 48) - 1, (1 << 32) - 1, MpExtent(0))).unwrap();
    let mut tlb = Tlb::new(4);
    let last = (1 << 48) - 64;
    assert_eq!(tlb.translate(writer.table(), (1 << 48) - 1, last), Ok(MpAddr(EXTENT - 64)));
    assert_eq!(tlb.translate(writer.table(), (1 << 48) - 1, 1 << 48), Err(Unmapped::Nxm));
    assert_eq!(tlb.translate(writer.table(), (1 << 48) - 1, u64::MAX), Err(Unmapped::Nxm));
}

#[test]
fn a_tlb_answers_like_the_table_and_counts() {
    let mut writer = empty(64);
    let table = writer.table().clone();
    let mut worker = table.generation().worker();
    let mut tlb = Tlb::new(8);
    worker.pass(|| tlb.purge(&table));
    for n in 0..64 {
        writer.map(mapping(0x0200_0000_0001, 100 + n, MpExtent(63 - n as u32))).unwrap();
    }
    let at = |n: u64| (100 + n) * EXTENT + 64 * n;
    for round in 0..2 {
        for n in 0..64 {
            let expected = MpAddr((63 - n) * EXTENT + 64 * n);
            assert_eq!(tlb.translate(&table, 0x0200_0000_0001, at(n)), Ok(expected), "round {round}");
        }
    }
    assert_eq!((tlb.counters().hits, tlb.counters().misses), (0, 128), "64 extents pass through 8 entries");
    for _ in 0..10 {
        tlb.translate(&table, 0x0200_0000_0001, at(63)).unwrap();
    }
    assert_eq!(tlb.counters().hits, 10);
    assert_eq!(tlb.translate(&table, 0x0200_0000_0001, 0), Err(Unmapped::Nxm));
    assert_eq!(tlb.translate(&table, 0x0200_0000_0002, at(63)), Err(Unmapped::Denied));

    writer.unmap(0x0200_0000_0001, 100).unwrap();
    let generation = writer.seal();
    assert!(writer.passed() < generation);
    worker.pass(|| tlb.purge(&table));
    assert_eq!(writer.passed(), generation);
    assert_eq!(tlb.translate(&table, 0x0200_0000_0001, at(0)), Err(Unmapped::Nxm), "not from memory");
    assert_eq!(tlb.counters().purges, 1);
}

fn bounded(mut done: impl FnMut() -> bool, what: &str) {
    let enough = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !done() {
        assert!(std::time::Instant::now() < enough, "{what}: not within a minute");
        std::thread::yield_now();
    }
}

/// Workers translate and write while the writer of the page table maps and unmaps: each write must be in an extent of
/// the worker's CN, although extents are reassigned from one CN to another.
#[test]
fn no_worker_ever_reaches_another_cns_extent() {
    const EXTENTS: u32 = 8;
    const ROUNDS: u32 = 2000;
    let mut writer = empty(EXTENTS.into());
    let table = writer.table().clone();
    let stop = Arc::new(AtomicBool::new(false));
    let translated = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = [1u64, 2]
        .into_iter()
        .map(|cn| {
            let (table, stop, translated) = (table.clone(), stop.clone(), translated.clone());
            std::thread::spawn(move || {
                let mut worker = table.generation().worker();
                let mut tlb = Tlb::new(16);
                let mut batch = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    batch += 1;
                    worker.pass(|| tlb.purge(&table));
                    let all = (0..u64::from(EXTENTS)).map(|cmem| tlb.translate(&table, cn, cmem * EXTENT));
                    let all: Vec<_> = all.flatten().collect();
                    if batch.is_multiple_of(3) {
                        // Gives the writer of the page table an opportunity to reassign extents during this batch,
                        // which it must not do.
                        std::thread::yield_now();
                    }
                    for mp in all {
                        let mut line = [0; 64];
                        table.pool().read_lines(mp, &mut line);
                        assert!(line == [0; 64] || line == [cn as u8; 64], "CN {cn} read {line:?}");
                        table.pool().write_lines(mp, &[cn as u8; 64]);
                        translated.fetch_add(1, Ordering::Relaxed);
                    }
                    if batch.is_multiple_of(64) {
                        worker.park();
                        std::thread::yield_now();
                    }
                }
            })
        })
        .collect();
    let mut seen = 0;
    // Extents move between CNs and CMem extent numbers.
    for round in 0..ROUNDS {
        let (cn, extent) = (1 + u64::from(round / EXTENTS % 2), MpExtent(round % EXTENTS));
        if let Some(old) = writer.owner(extent) {
            writer.unmap(old.cn, old.cmem_extent).unwrap();
            let generation = writer.seal();
            bounded(|| writer.passed() >= generation, "every worker comes to a batch boundary");
            table.pool().zero_extent(extent, |_| true).unwrap();
        }
        table.pool().prepare_extent(extent, |_| true).unwrap();
        writer
            .map(mapping(cn, u64::from((round + round / EXTENTS) % EXTENTS), extent))
            .or_else(|error| match error {
                TableError::AddressTaken(_) => Ok(()),
                error => Err(error),
            })
            .unwrap();
        if round.is_multiple_of(8) {
            bounded(|| translated.load(Ordering::Relaxed) > seen, "a worker translates");
            seen = translated.load(Ordering::Relaxed);
        }
    }
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.join().expect("no worker saw another CN's data");
    }
}

#[test]
fn a_restarted_node_serves_what_its_pool_file_says_and_drops_what_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let spec = PoolSpec::File(path.clone());
    let (mut writer, _) = PageTableWriter::open(pool(spec.clone(), 64));
    for n in 0..32u64 {
        writer.map(mapping(1 + n % 3, n, MpExtent(n as u32))).unwrap();
    }
    writer.unmap(1, 3).unwrap();
    writer.seal();
    let before = sorted(writer.table());
    writer.table().pool().write_lines(MpAddr(5 * EXTENT), &[5; 64]);
    drop(writer);

    let (writer, recovery) = PageTableWriter::open(pool(spec.clone(), 64));
    assert_eq!(recovery, Recovery { kept: 31, dropped: 0 });
    assert_eq!(sorted(writer.table()), before);
    assert_eq!(writer.table().unmapped(2), Unmapped::Nxm, "the CN is known again");
    let mut line = [0; 64];
    writer.table().pool().read_lines(MpAddr(5 * EXTENT), &mut line);
    assert_eq!(line, [5; 64]);
    drop(writer);

    // Damages the extent number of one entry and the address of another, and clears a third slot.
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut damaged = Vec::new();
    let mut slot = [0; 32];
    for (n, at) in (4096..4096 + 256 * 32).step_by(32).enumerate() {
        file.read_exact_at(&mut slot, at).unwrap();
        let word = |w: usize| u64::from_le_bytes(slot[8 * w..8 * w + 8].try_into().unwrap());
        if word(0) >> 63 == 1 && word(1) != u64::MAX && damaged.len() < 3 {
            let offset = [16, 9, 0][damaged.len()];
            let len = if damaged.len() == 2 { 32 } else { 1 };
            let bytes = if len == 32 { vec![0; 32] } else { vec![slot[offset] ^ 0x40] };
            file.write_all_at(&bytes, at + offset as u64).unwrap();
            damaged.push((word(0) & ((1 << 48) - 1), word(1)));
        }
        assert!(n < 256);
    }
    assert_eq!(damaged.len(), 3);
    let (mut writer, recovery) = PageTableWriter::open(pool(spec, 64));
    assert_eq!(recovery, Recovery { kept: 28, dropped: 2 });
    let after = sorted(writer.table());
    for translation in &before {
        let gone = damaged.contains(&(translation.cn, translation.cmem_extent));
        assert_eq!(after.contains(translation), !gone);
        let found = writer.table().lookup(translation.cn, translation.cmem_extent);
        assert_eq!(found, (!gone).then_some(translation.mp_extent), "reachable, or gone");
    }
    for (cn, cmem) in damaged {
        let free = (0..64).map(MpExtent).find(|extent| writer.owner(*extent).is_none()).unwrap();
        writer.map(mapping(cn, cmem, free)).unwrap();
    }
    assert_eq!(writer.len(), 31);
}
