//! Mappings as a manager requests them: order, replays, stale managers, zeroing, restarts; and the link to a manager
//! that cannot be reached.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use cxloe_daemon::{Backoff, Connection};
use cxloe_fabric::api::MemoryNodeRegistered;
use cxloe_fabric::model::{
    CommandResult, FormerOwner, HandOver, LeaderTerm, Mapping, Name, NodeAction, NodeCommand, Share,
    Watermark,
};
use cxloe_mn::control::static_map::{self, StaticMapError, StaticMapFailure};
use cxloe_mn::control::{
    KeptMemory, LastAnswer, ManagerLink, ManagerLinkError, ManagerLinkOptions, carry_out,
};
use cxloe_mn::pool::{Host, MpAddr, MpExtent, Pool, PoolOptions, PoolSpec};
use cxloe_mn_core::job::JobError;
use cxloe_mn_core::mappings::{AUTHORISATION_MS, Mappings, MessageRefusal};
use cxloe_mn_core::translation::Unmapped;
use cxloe_wire::frame::Mac;

const EXTENT: u64 = 64 << 10;
const CN1: u64 = 0x0200_0000_0001;
const CN2: u64 = 0x0200_0000_0002;
static RUN: AtomicBool = AtomicBool::new(false);

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

fn mappings(extents: u64) -> Mappings {
    Mappings::open(pool(PoolSpec::Anon, extents), Watermark::default()).0
}

fn mapping(cn: u64, base_extent: u64, extents: &[u64]) -> Mapping {
    Mapping {
        cn: Mac::from_u64(cn).try_into().unwrap(),
        region: Name::new("r").unwrap(),
        cmem_base: base_extent * EXTENT,
        extent_bytes: EXTENT,
        extents: extents.iter().copied().collect(),
        sealed: false,
        cn_key: None,
    }
}

fn command(seq: u64, action: NodeAction) -> NodeCommand {
    NodeCommand { seq, term: 1, revision: seq, action }
}

/// Carries out a command completely. No worker runs, so that the job begins at once.
fn apply(mappings: &mut Mappings, command: &NodeCommand) -> Result<(), MessageRefusal> {
    if let Some(job) = mappings.start(command)? {
        let outcome = carry_out(&job, mappings.table(), &RUN, &AtomicU64::new(0), || ());
        mappings.finish(job, outcome);
    }
    Ok(())
}

fn done(mappings: &Mappings) -> Vec<u64> {
    assert!(mappings.results().iter().all(|result| result.error.is_none()), "{:?}", mappings.results());
    mappings.results().iter().map(|result| result.seq).collect()
}

fn error(mappings: &Mappings) -> &str {
    mappings.results().last().and_then(|result| result.error.as_deref()).expect("the last command failed")
}

fn first_line(mappings: &Mappings, extent: u32) -> [u8; 64] {
    let mut line = [0xEE; 64];
    mappings.table().pool().read_lines(MpAddr(u64::from(extent) * EXTENT), &mut line);
    line
}

fn write(mappings: &Mappings, extent: u32, byte: u8) {
    mappings.table().pool().write_lines(MpAddr(u64::from(extent) * EXTENT), &[byte; 64]);
}

#[test]
fn maps_and_unmaps_in_order_and_once() {
    let mut m = mappings(8);
    let map = command(1, NodeAction::MapCmem(mapping(CN1, 4, &[5, 2])));
    apply(&mut m, &map).unwrap();
    assert_eq!((done(&m), m.acked(), m.len()), (vec![1], 1, 2));
    assert_eq!(m.table().lookup(CN1, 4), Some(MpExtent(5)));
    assert_eq!(m.table().lookup(CN1, 5), Some(MpExtent(2)));
    write(&m, 5, 7);

    apply(&mut m, &map).unwrap();
    assert_eq!((done(&m), first_line(&m, 5)), (vec![1], [7; 64]), "a replay changes nothing");
    let gap = command(3, NodeAction::MapCmem(mapping(CN2, 0, &[0])));
    assert_eq!(m.start(&gap).unwrap_err(), MessageRefusal::Gap { expected: 2, got: 3 });

    let unmap = NodeAction::UnmapCmem(mapping(CN1, 4, &[5, 2]));
    apply(&mut m, &command(2, unmap.clone())).unwrap();
    assert_eq!((done(&m), m.is_empty(), first_line(&m, 5)), (vec![1, 2], true, [0; 64]));
    assert_eq!(m.table().unmapped(CN1), Unmapped::Denied);
    write(&m, 5, 9);
    apply(&mut m, &command(3, unmap)).unwrap();
    assert_eq!(done(&m), [1, 2, 3], "what is not mapped is gone already");
    apply(&mut m, &gap).unwrap();
    m.reported(2);
    assert_eq!(m.results(), [CommandResult::done(3)]);
}

fn hand_over(m: &Mappings, from: Mapping, to: Mapping) -> NodeAction {
    let former = FormerOwner { cn: from.cn, cmem_base: from.cmem_base };
    NodeAction::HandOver(HandOver { mapping: to, former, incarnation: m.table().pool().incarnation() })
}

#[test]
fn a_hand_over_keeps_the_content_and_serves_one_owner() {
    let mut m = mappings(8);
    let mut worker = m.table().generation().worker();
    worker.pass(|| {});
    let (before, after) = (mapping(CN1, 4, &[5, 2]), mapping(CN2, 9, &[5, 2]));
    apply(&mut m, &command(1, NodeAction::MapCmem(before.clone()))).unwrap();
    write(&m, 5, 7);
    write(&m, 2, 8);
    let action = hand_over(&m, before.clone(), after.clone());
    let job = m.start(&command(2, action.clone())).unwrap().unwrap();
    // The former owner has no access in batches that begin after this command; a batch that began before may still
    // write.
    assert_eq!((m.table().lookup(CN1, 4), m.table().lookup(CN2, 9)), (None, None));
    assert!(!job.is_due(m.table()));
    write(&m, 2, 9);
    worker.pass(|| {});
    let outcome = carry_out(&job, m.table(), &RUN, &AtomicU64::new(0), || ());
    m.finish(job, outcome);
    assert_eq!(done(&m), [1, 2]);
    assert_eq!(m.table().lookup(CN2, 9), Some(MpExtent(5)));
    assert_eq!(m.table().lookup(CN2, 10), Some(MpExtent(2)));
    assert_eq!((first_line(&m, 5), first_line(&m, 2)), ([7; 64], [9; 64]));
    worker.pass(|| {});
    drop(worker);

    // The command is repeated because its result was lost, and again after a restart of a node whose registration
    // listed no mappings.
    apply(&mut m, &command(3, action.clone())).unwrap();
    assert_eq!((done(&m), first_line(&m, 5)), (vec![1, 2, 3], [7; 64]));
    let registered = MemoryNodeRegistered {
        registration: 2,
        watermark: Watermark::new(1, 9),
        lineage: Vec::new(),
        heartbeat_ms: 1000,
        acked_seq: 3,
        mappings: Vec::new(),
        unowned: [0, 1, 3, 4, 6, 7].into_iter().collect(),
        shares: Vec::new(),
        udp_peers: Vec::new(),
        cn_keys: Vec::new(),
    };
    let job = m.registered(&registered).unwrap();
    let outcome = carry_out(&job, m.table(), &RUN, &AtomicU64::new(0), || ());
    m.finish(job, outcome);
    assert!(m.is_empty(), "the manager lists it for nobody until the command is carried out");
    apply(&mut m, &command(4, action)).unwrap();
    assert_eq!((m.table().lookup(CN2, 9), first_line(&m, 5)), (Some(MpExtent(5)), [7; 64]));
}

#[test]
fn a_hand_over_of_other_memory_is_refused() {
    let mut m = mappings(8);
    apply(&mut m, &command(1, NodeAction::MapCmem(mapping(CN1, 0, &[0, 1])))).unwrap();
    write(&m, 0, 7);
    let third = 0x0200_0000_0003;
    let theirs = hand_over(&m, mapping(third, 0, &[0]), mapping(CN2, 0, &[0]));
    apply(&mut m, &command(2, theirs)).unwrap();
    assert!(error(&m).contains("belongs to CN"), "{}", error(&m));
    let NodeAction::HandOver(mut other) = hand_over(&m, mapping(CN1, 0, &[0]), mapping(CN2, 0, &[0])) else {
        unreachable!()
    };
    other.incarnation ^= 1;
    apply(&mut m, &command(3, NodeAction::HandOver(other))).unwrap();
    assert!(error(&m).contains("incarnation"), "{}", error(&m));
    assert_eq!((m.table().lookup(CN1, 0), m.table().lookup(CN2, 0)), (Some(MpExtent(0)), None));
    assert_eq!(first_line(&m, 0), [7; 64]);
}

#[test]
fn an_extent_is_reassigned_only_after_workers_released_it() {
    let mut m = mappings(4);
    let mut worker = m.table().generation().worker();
    worker.pass(|| {});
    apply(&mut m, &command(1, NodeAction::MapCmem(mapping(CN1, 0, &[3])))).unwrap();
    write(&m, 3, 7);
    let unmap = command(2, NodeAction::UnmapCmem(mapping(CN1, 0, &[3])));
    let job = m.start(&unmap).unwrap().unwrap();
    assert!(!job.is_quick());
    assert_eq!(m.table().lookup(CN1, 0), None, "no new translation from now on");
    let table = m.table().clone();
    let waiting = std::thread::spawn(move || {
        let outcome = carry_out(&job, &table, &RUN, &AtomicU64::new(0), || ());
        (job, outcome)
    });
    // The worker may still write, because its batch began before the removal.
    assert!(!waiting.is_finished());
    write(&m, 3, 8);
    assert_eq!((m.acked(), first_line(&m, 3)), (1, [8; 64]));
    worker.pass(|| {});
    let (job, outcome) = waiting.join().unwrap();
    m.finish(job, outcome);
    assert_eq!((done(&m), first_line(&m, 3)), (vec![1, 2], [0; 64]));
}

#[test]
fn a_stop_leaves_the_command_for_the_next_start() {
    let mut m = mappings(4);
    apply(&mut m, &command(1, NodeAction::MapCmem(mapping(CN1, 0, &[3])))).unwrap();
    let mut worker = m.table().generation().worker();
    worker.pass(|| {});
    let unmap = command(2, NodeAction::UnmapCmem(mapping(CN1, 0, &[3])));
    let job = m.start(&unmap).unwrap().unwrap();
    let outcome = carry_out(&job, m.table(), &AtomicBool::new(true), &AtomicU64::new(0), || ());
    assert!(matches!(outcome, Err(JobError::Stopped)));
    m.finish(job, outcome);
    assert_eq!((done(&m), m.acked()), (vec![1], 1));
    drop(worker);
    apply(&mut m, &unmap).unwrap();
    assert_eq!(done(&m), [1, 2]);
}

#[test]
fn what_a_job_has_done_is_counted() {
    let mut m = mappings(8);
    let (map, unmap) = (mapping(CN1, 0, &[3, 4, 5]), mapping(CN1, 0, &[3, 4, 5]));
    for (seq, action) in [(1, NodeAction::MapCmem(map)), (2, NodeAction::UnmapCmem(unmap))] {
        let job = m.start(&command(seq, action)).unwrap().unwrap();
        assert_eq!(job.command(), Some(seq));
        let counted = AtomicU64::new(0);
        let outcome = carry_out(&job, m.table(), &RUN, &counted, || ());
        assert_eq!(counted.into_inner(), 3 * EXTENT);
        m.finish(job, outcome);
        write(&m, 4, 7);
    }
    assert_eq!(done(&m), [1, 2]);
}

#[test]
fn commands_that_break_a_rule_fail_and_change_nothing() {
    let mut m = mappings(8);
    apply(&mut m, &command(1, NodeAction::MapCmem(mapping(CN1, 0, &[0, 1])))).unwrap();
    write(&m, 1, 7);
    let wrong_size = Mapping { extent_bytes: 2 << 20, cmem_base: 0, ..mapping(CN2, 0, &[5]) };
    let crooked = Mapping { cmem_base: 64, ..mapping(CN2, 0, &[5]) };
    let cases = [
        (NodeAction::MapCmem(mapping(CN2, 0, &[4, 1])), "belongs to CN"),
        (NodeAction::UnmapCmem(mapping(CN2, 0, &[4, 1])), "belongs to CN"),
        (NodeAction::MapCmem(mapping(CN1, 1, &[5])), "mapped to extent 1 already"),
        (NodeAction::MapCmem(mapping(CN2, 0, &[8])), "does not exist"),
        (NodeAction::MapCmem(mapping(CN2, 0, &[u64::MAX - 1])), "does not exist"),
        (NodeAction::MapCmem(mapping(CN2, 0, &[5, 6, 5])), "listed twice"),
        (NodeAction::MapCmem(wrong_size), "extents of 65536"),
        (NodeAction::MapCmem(crooked), "start of an extent"),
    ];
    for (seq, (action, says)) in (2..).zip(cases) {
        apply(&mut m, &command(seq, action)).unwrap();
        assert!(error(&m).contains(says), "{}", error(&m));
        assert_eq!((m.acked(), m.len(), first_line(&m, 1)), (seq, 2, [7; 64]), "failed, answered, unchanged");
        assert_eq!(m.table().unmapped(CN2), Unmapped::Denied);
    }
}

#[test]
fn a_manager_that_lost_its_place_is_refused() {
    let mut m = mappings(4);
    m.observe_watermark(Watermark::new(3, 10)).unwrap();
    let mut late = command(1, NodeAction::MapCmem(mapping(CN1, 0, &[0])));
    late.term = 2;
    let refusal = m.start(&late).unwrap_err();
    assert!(matches!(refusal, MessageRefusal::Stale { .. }));
    assert!(refusal.to_string().contains("term 2") && refusal.to_string().contains("term 3"), "{refusal}");
    assert_eq!((m.acked(), m.len(), m.results().len()), (0, 0, 0));
    assert!(m.observe_watermark(Watermark::new(3, 9)).is_err());
    // Usual case: the command has a lower revision than the answer that contains it, and both are from one manager.
    let mut usual = command(1, NodeAction::MapCmem(mapping(CN1, 0, &[0])));
    (usual.term, usual.revision) = (3, 5);
    apply(&mut m, &usual).unwrap();
    assert_eq!((done(&m), m.seen()), (vec![1], Watermark::new(3, 10)));
}

#[test]
fn a_registration_brings_the_table_to_what_the_manager_lists() {
    let mut m = mappings(8);
    apply(&mut m, &command(1, NodeAction::MapCmem(mapping(CN1, 0, &[0, 1, 2])))).unwrap();
    (0..3).for_each(|extent| write(&m, extent, 7));
    let answer = MemoryNodeRegistered {
        registration: 2,
        watermark: Watermark::new(1, 9),
        lineage: Vec::new(),
        heartbeat_ms: 1000,
        acked_seq: 5,
        mappings: vec![mapping(CN1, 0, &[0]), mapping(CN2, 3, &[2, 6])],
        unowned: [1, 3, 4, 5, 7].into_iter().collect(),
        shares: Vec::new(),
        udp_peers: Vec::new(),
        cn_keys: Vec::new(),
    };
    let job = m.registered(&answer).unwrap();
    let outcome = carry_out(&job, m.table(), &RUN, &AtomicU64::new(0), || ());
    m.finish(job, outcome);
    assert_eq!((m.len(), m.acked(), m.results().len()), (2, 5, 0));
    assert_eq!(first_line(&m, 0), [7; 64], "listed and there: untouched");
    assert_eq!(first_line(&m, 1), [7; 64], "no longer listed: kept");
    assert_eq!(first_line(&m, 2), [7; 64], "another CN's now: kept all the same, and not served to it");
    assert_eq!((m.table().lookup(CN2, 3), m.table().lookup(CN2, 4)), (None, Some(MpExtent(6))));
    assert_eq!((m.table().lookup(CN1, 1), m.table().lookup(CN1, 2)), (None, None));
    let old = MemoryNodeRegistered { watermark: Watermark::new(1, 8), ..answer };
    assert!(m.registered(&old).is_err());
    assert_eq!(m.len(), 2);
}

/// Makes a node with content in extents 0, 1 and 2, and an answer of a manager that lists only extent 0.
fn with_orphans(run: u64) -> (Mappings, MemoryNodeRegistered) {
    let (mut m, answer) = (with_content(pool(PoolSpec::Anon, 8)), answer(run, 1..8));
    register(&mut m, &answer);
    (m, answer)
}

/// Makes a node with content in extents 0, 1 and 2, which are mapped for one compute node.
fn with_content(pool: Arc<Pool>) -> Mappings {
    let mut m = Mappings::open(pool, Watermark::default()).0;
    apply(&mut m, &command(1, NodeAction::MapCmem(mapping(CN1, 0, &[0, 1, 2])))).unwrap();
    (0..3).for_each(|extent| write(&m, extent, 7));
    m
}

/// Answer of a manager that lists only extent 0.
fn answer(run: u64, unowned: std::ops::Range<u64>) -> MemoryNodeRegistered {
    MemoryNodeRegistered {
        registration: 2,
        watermark: Watermark { term: 1, revision: 9, run },
        lineage: vec![LeaderTerm { term: 1, run, first: 1, adopted: Vec::new() }],
        heartbeat_ms: 1000,
        acked_seq: 5,
        mappings: vec![mapping(CN1, 0, &[0])],
        unowned: unowned.collect(),
        shares: Vec::new(),
        udp_peers: Vec::new(),
        cn_keys: Vec::new(),
    }
}

fn register(m: &mut Mappings, answer: &MemoryNodeRegistered) {
    let job = m.registered(answer).unwrap();
    let outcome = carry_out(&job, m.table(), &RUN, &AtomicU64::new(0), || ());
    m.finish(job, outcome);
}

fn extents_to_report(m: &Mappings) -> Vec<u64> {
    m.orphans_to_report().iter().flat_map(|orphan| orphan.extents.iter()).collect()
}

/// Scenario: a backup of the manager's store is restored in which commands for extents are pending that another region has
/// used since. The region's memory must be neither zeroed nor given away.
#[test]
fn a_command_of_a_restored_store_makes_an_orphan_of_memory_that_it_does_not_name() {
    let mut m = with_content(pool(PoolSpec::Anon, 8));
    register(&mut m, &answer(4, 3..8));
    assert_eq!(m.orphans_to_report(), [], "a command may name it");
    let cases = [
        (NodeAction::MapCmem(mapping(CN2, 9, &[1])), vec![1]),
        (NodeAction::UnmapCmem(mapping(CN2, 9, &[2])), vec![1, 2]),
    ];
    for (seq, (action, orphans)) in (6..).zip(cases) {
        apply(&mut m, &command(seq, action)).unwrap();
        assert!(error(&m).contains("gmm release-orphans"), "{}", error(&m));
        assert_eq!(extents_to_report(&m), orphans);
    }
    assert_eq!((first_line(&m, 1), first_line(&m, 2)), ([7; 64], [7; 64]));
    apply(&mut m, &command(8, NodeAction::UnmapCmem(mapping(CN1, 1, &[1, 2])))).unwrap();
    assert_eq!((first_line(&m, 1), first_line(&m, 2)), ([0; 64], [0; 64]));
}

/// Scenario: the command that maps a region is pending in a restored backup, and was carried out after the backup: the
/// region is served again with its content. Any other time the command is repeated, the memory is zeroed.
#[test]
fn a_region_that_a_restored_store_maps_once_more_keeps_its_content() {
    let seen = Watermark { term: 2, revision: 15, run: 22 };
    for (adopted, line) in [(vec![seen], [7; 64]), (Vec::new(), [0; 64])] {
        let mut m = with_content(pool(PoolSpec::Anon, 8));
        let leader = |term, run, first, adopted| LeaderTerm { term, run, first, adopted };
        m.accept(seen, &[leader(2, 22, 1, Vec::new())]).unwrap();
        // A store that has all this node has seen, or an older copy that an administrator had the nodes adopt.
        let lineage = match adopted.is_empty() {
            true => vec![leader(2, 22, 1, Vec::new()), leader(3, 33, 16, Vec::new())],
            false => vec![leader(3, 33, 9, adopted)],
        };
        let watermark = Watermark { term: 3, revision: 20, run: 33 };
        register(&mut m, &MemoryNodeRegistered { lineage, watermark, ..answer(33, 3..8) });
        let action = NodeAction::MapCmem(mapping(CN1, 1, &[1, 2]));
        apply(&mut m, &NodeCommand { seq: 6, term: 3, revision: 20, action }).unwrap();
        assert_eq!((done(&m), m.len()), (vec![6], 3));
        assert_eq!((first_line(&m, 1), first_line(&m, 2)), (line, line));
    }
}

/// Scenario: a manager lists memory that this node has unmapped and zeroed, and its owner writes to it. The next owner must
/// get zeros all the same.
#[test]
fn memory_that_is_mapped_again_without_a_command_is_zeroed_again_for_the_next_owner() {
    let mut m = with_content(pool(PoolSpec::Anon, 8));
    apply(&mut m, &command(2, NodeAction::UnmapCmem(mapping(CN1, 1, &[1])))).unwrap();
    let listed = vec![mapping(CN1, 0, &[0, 1])];
    register(&mut m, &MemoryNodeRegistered { mappings: listed, ..answer(4, 3..8) });
    assert_eq!((m.table().lookup(CN1, 1), first_line(&m, 1)), (Some(MpExtent(1)), [0; 64]));
    write(&m, 1, 9);
    apply(&mut m, &command(6, NodeAction::UnmapCmem(mapping(CN1, 1, &[1])))).unwrap();
    apply(&mut m, &command(7, NodeAction::MapCmem(mapping(CN2, 9, &[1])))).unwrap();
    assert_eq!((done(&m), m.table().lookup(CN2, 9)), (vec![6, 7], Some(MpExtent(1))));
    assert_eq!(first_line(&m, 1), [0; 64]);
}

/// Scenario: memory is unmapped and zeroed after a backup of the manager's store was made, and the backup is restored. Zeros
/// that it lists, or that a pending command hands over, are lost content: they are not served, nor after a restart.
#[test]
fn what_was_zeroed_since_a_restored_backup_is_lost_and_not_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let spec = PoolSpec::File(dir.path().join("pool"));
    let seen = Watermark { term: 2, revision: 15, run: 22 };
    let leader = |term, run, first, adopted| LeaderTerm { term, run, first, adopted };
    let listed = MemoryNodeRegistered {
        watermark: Watermark { term: 3, revision: 20, run: 33 },
        lineage: vec![leader(3, 33, 9, vec![seen])],
        mappings: vec![mapping(CN1, 0, &[0, 1])],
        ..answer(33, 3..8)
    };
    let issued = |seq, action| NodeCommand { seq, term: 3, revision: 20, action };
    let served = |m: &Mappings| [0, 1].map(|cmem_extent| m.table().lookup(CN1, cmem_extent));
    let kept = {
        let mut m = with_content(pool(spec.clone(), 8));
        m.accept(seen, &[leader(2, 22, 1, Vec::new())]).unwrap();
        let action = NodeAction::UnmapCmem(mapping(CN1, 1, &[1, 2]));
        apply(&mut m, &NodeCommand { seq: 2, term: 2, revision: 15, action }).unwrap();
        register(&mut m, &listed);
        assert_eq!((served(&m), extents_to_report(&m)), ([Some(MpExtent(0)), None], vec![1]));
        assert_eq!(m.held().iter().map(|held| held.bytes).sum::<u64>(), EXTENT);
        let action = hand_over(&m, mapping(CN1, 2, &[2]), mapping(CN2, 9, &[2]));
        apply(&mut m, &issued(6, action)).unwrap();
        assert!(error(&m).contains("gmm release-orphans"), "{}", error(&m));
        assert_eq!((m.table().lookup(CN2, 9), extents_to_report(&m)), (None, vec![1, 2]));
        register(&mut m, &listed);
        assert_eq!((served(&m), extents_to_report(&m)), ([Some(MpExtent(0)), None], vec![1, 2]));
        KeptMemory::of(&m)
    };
    let mut m = Mappings::open(pool(spec, 8), listed.watermark).0;
    m.resume_kept(kept.translations(m.table().pool().incarnation()));
    register(&mut m, &listed);
    assert_eq!((served(&m), extents_to_report(&m)), ([Some(MpExtent(0)), None], vec![1]));
    let [orphan] = m.orphans_to_report().try_into().unwrap();
    apply(&mut m, &issued(6, NodeAction::UnmapCmem(orphan))).unwrap();
    apply(&mut m, &issued(7, NodeAction::MapCmem(mapping(CN1, 1, &[1])))).unwrap();
    assert_eq!((done(&m), served(&m)), (vec![6, 7], [Some(MpExtent(0)), Some(MpExtent(1))]));
}

#[test]
fn what_is_kept_for_nobody_outlives_a_restart_of_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let spec = PoolSpec::File(dir.path().join("pool"));
    // The manager lists extent 1 as free and extent 2 as neither used nor free; the node ends before it has reported.
    let listed = MemoryNodeRegistered { unowned: [1].into_iter().collect(), ..answer(4, 3..8) };
    let kept = {
        let mut m = with_content(pool(spec.clone(), 8));
        register(&mut m, &listed);
        KeptMemory::of(&m)
    };
    let mut m = Mappings::open(pool(spec, 8), Watermark::default()).0;
    let incarnation = m.table().pool().incarnation();
    assert_eq!(kept.translations(incarnation + 1).count(), 0, "another pool's");
    m.resume_kept(kept.translations(incarnation));
    assert_eq!(KeptMemory::of(&m), kept);
    register(&mut m, &listed);
    assert_eq!(extents_to_report(&m), [1]);
    apply(&mut m, &command(6, NodeAction::MapCmem(mapping(CN2, 9, &[2])))).unwrap();
    assert!(error(&m).contains("gmm release-orphans"), "{}", error(&m));
    assert_eq!((first_line(&m, 1), first_line(&m, 2)), ([7; 64], [7; 64]));
}

#[test]
fn what_the_manager_lists_for_nobody_is_kept_until_it_is_unmapped_by_name() {
    let (mut m, answer) = with_orphans(4);
    let kept = mapping(CN1, 1, &[1, 2]);
    let reported = m.orphans_to_report();
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert_eq!((reported[0].cmem_base, &reported[0].extents), (kept.cmem_base, &kept.extents));
    m.orphans_reported();
    assert!(m.orphans_to_report().is_empty());
    assert_eq!(m.held().iter().map(|held| held.bytes).sum::<u64>(), 3 * kept.extent_bytes);
    // A command that names another CN must neither give the orphan to that CN nor zero it.
    let cases = [NodeAction::MapCmem(mapping(CN2, 9, &[3, 2])), NodeAction::UnmapCmem(mapping(CN2, 9, &[2]))];
    for (seq, action) in (6..).zip(cases) {
        apply(&mut m, &command(seq, action)).unwrap();
        assert!(error(&m).contains("gmm release-orphans"), "{}", error(&m));
    }
    assert_eq!((first_line(&m, 1), first_line(&m, 2), m.len()), ([7; 64], [7; 64], 1));
    // After a registration that does not list the orphans, they are reported again; one that lists them restores their
    // mappings.
    m.registered(&answer).unwrap();
    assert_eq!(m.orphans_to_report(), reported);
    let listed = MemoryNodeRegistered { mappings: vec![mapping(CN1, 0, &[0, 1])], ..answer };
    let job = m.registered(&listed).unwrap();
    m.finish(job, Ok(()));
    assert_eq!((m.table().lookup(CN1, 1), first_line(&m, 1)), (Some(MpExtent(1)), [7; 64]));
    // The manager releases the orphan by a command that names its former mapping.
    apply(&mut m, &command(6, NodeAction::UnmapCmem(mapping(CN1, 2, &[2])))).unwrap();
    assert_eq!((first_line(&m, 2), m.orphans_to_report().len()), ([0; 64], 0));
    apply(&mut m, &command(7, NodeAction::MapCmem(mapping(CN2, 9, &[2])))).unwrap();
    assert_eq!(m.table().lookup(CN2, 9), Some(MpExtent(2)));
}

/// Scenario: an older store was adopted, and a compute node gets an address again at which it had what is an orphan now. The
/// release of the orphan must end neither the mapping that is there now nor its share.
#[test]
fn the_release_of_an_orphan_leaves_a_later_mapping_at_its_address() {
    let (mut m, _) = with_orphans(4);
    let later = Mapping { sealed: true, ..mapping(CN1, 1, &[3, 4]) };
    apply(&mut m, &command(6, NodeAction::MapCmem(later.clone()))).unwrap();
    write(&m, 3, 9);
    let reader = Mac::from_u64(CN2).try_into().unwrap();
    let share = Share { mapping: later, reader, reader_base: 5 * EXTENT };
    apply(&mut m, &command(7, NodeAction::Share(share.clone()))).unwrap();
    apply(&mut m, &command(8, NodeAction::UnmapCmem(mapping(CN1, 1, &[1, 2])))).unwrap();
    assert_eq!(done(&m), [6, 7, 8]);
    assert_eq!((first_line(&m, 1), first_line(&m, 3)), ([0; 64], [9; 64]));
    let served = [1, 2].map(|extent| m.table().lookup(CN1, extent));
    assert_eq!((served, m.shares()), ([Some(MpExtent(3)), Some(MpExtent(4))], &[share][..]));
}

#[test]
fn without_word_from_a_manager_for_a_day_nobody_is_served_and_nothing_is_lost() {
    let (mut m, answer) = with_orphans(4);
    let listed = MemoryNodeRegistered { mappings: vec![mapping(CN1, 0, &[0, 1])], ..answer.clone() };
    let job = m.registered(&listed).unwrap();
    m.finish(job, Ok(()));
    m.confirm(1000);
    assert_eq!((m.expire(1000 + AUTHORISATION_MS - 1), m.len()), (0, 2));
    m.confirm(5000);
    assert_eq!((m.expire(1000 + AUTHORISATION_MS), m.len()), (0, 2), "it was heard meanwhile");
    let held = m.held();
    assert_eq!((m.expire(5000 + AUTHORISATION_MS), m.len()), (2, 0));
    assert_eq!((m.table().lookup(CN1, 0), m.table().lookup(CN1, 1)), (None, None));
    assert_eq!((m.expire(5000 + AUTHORISATION_MS), m.held()), (0, held), "once, and it is still held");
    // The node restarts before 24 hours have passed, with the wall clock unchanged or set back: the time without an
    // answer is counted on.
    let kept = LastAnswer { kept_ms: 7_000, silent_ms: AUTHORISATION_MS - 10 };
    for (wall_ms, left_ms) in [(7_004, 6), (3, 10)] {
        let (mut anew, _) = with_orphans(4);
        let job = anew.registered(&listed).unwrap();
        anew.finish(job, Ok(()));
        anew.resume(kept.silent_at(wall_ms));
        assert_eq!((anew.expire(left_ms - 1), anew.len()), (0, 2));
        assert_eq!(anew.expire(left_ms), 2, "by a wall clock at {wall_ms}");
        anew.confirm(left_ms);
        assert_eq!(anew.silent_ms(left_ms + 1), 1, "word of a manager ends the silence of before, too");
    }
    // The manager is reachable again. It lists one extent, sends a command to unmap the second, and does not list the
    // third, which becomes an orphan.
    let back = MemoryNodeRegistered { unowned: (2..8).collect(), ..answer };
    let job = m.registered(&back).unwrap();
    m.finish(job, Ok(()));
    assert_eq!((m.table().lookup(CN1, 0), first_line(&m, 0)), (Some(MpExtent(0)), [7; 64]));
    assert_eq!((m.len(), first_line(&m, 1)), (1, [7; 64]));
    let orphans: Vec<u64> = m.orphans_to_report().iter().flat_map(|orphan| orphan.extents.iter()).collect();
    assert_eq!(orphans, [2]);
    apply(&mut m, &command(6, NodeAction::UnmapCmem(mapping(CN1, 1, &[1])))).unwrap();
    assert_eq!((done(&m), first_line(&m, 1)), (vec![6], [0; 64]));
}

#[test]
fn what_has_just_expired_is_served_again_once_workers_have_released_it() {
    let (mut m, answer) = with_orphans(4);
    let mut worker = m.table().generation().worker();
    worker.pass(|| {});
    m.confirm(0);
    assert_eq!(m.expire(AUTHORISATION_MS), 1);
    let job = m.registered(&answer).unwrap();
    assert!(!job.is_quick() && !job.is_due(m.table()), "the worker may still use the extent");
    worker.pass(|| {});
    let outcome = carry_out(&job, m.table(), &RUN, &AtomicU64::new(0), || ());
    m.finish(job, outcome);
    assert_eq!((m.table().lookup(CN1, 0), first_line(&m, 0)), (Some(MpExtent(0)), [7; 64]));
}

#[test]
fn a_manager_over_an_older_store_is_not_accepted_however_far_it_comes() {
    let mut m = mappings(4);
    let at = |term, revision, run| Watermark { term, revision, run };
    let leader = |term, run, first| LeaderTerm { term, run, first, adopted: Vec::new() };
    m.accept(at(2, 15, 22), &[leader(1, 11, 1), leader(2, 22, 10)]).unwrap();
    assert!(
        matches!(m.observe_watermark(at(3, 40, 33)), Err(MessageRefusal::AnotherRun)),
        "it has to show its lineage first"
    );
    assert!(matches!(m.observe_watermark(at(2, 14, 22)), Err(MessageRefusal::Stale { .. })));
    for lineage in [vec![], vec![leader(90, 99, 1)], vec![leader(2, 22, 10), leader(3, 99, 15)]] {
        let refusal = m.accept(at(90, 900, 99), &lineage).unwrap_err();
        assert!(matches!(refusal, MessageRefusal::Lacking(_)), "{lineage:?}");
        assert!(refusal.to_string().contains("gmm adopt-fabric"), "{refusal}");
        assert_eq!(m.seen(), at(2, 15, 22));
    }
    m.accept(at(3, 20, 33), &[leader(2, 22, 10), leader(3, 33, 16)]).unwrap();
    m.observe_watermark(at(3, 21, 33)).unwrap();
}

#[test]
fn a_static_map_serves_without_a_manager() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("map.toml");
    let write_map = |text: &str| {
        std::fs::write(&file, text).unwrap();
        static_map::read(&file)
    };
    let spec = PoolSpec::File(dir.path().join("pool"));
    let two = "[[map]]\ncn = '02:00:00:00:00:01'\nsize = '128KiB'\n\
               [[map]]\ncn = '02:00:00:00:00:02'\nbase = '1MiB'\nsize = '64KiB'\n";
    let (mut m, _) = Mappings::open(pool(spec.clone(), 4), Watermark::default());
    static_map::apply(&write_map(two).unwrap(), &mut m).unwrap();
    assert_eq!(m.len(), 3);
    let extent = m.table().lookup(CN2, 16).unwrap().0;
    write(&m, extent, 7);
    drop(m);

    // After a restart the same map finds the same content; a smaller map removes ranges and zeroes them.
    let (mut m, recovery) = Mappings::open(pool(spec, 4), Watermark::default());
    assert_eq!(recovery.kept, 3);
    static_map::apply(&write_map(two).unwrap(), &mut m).unwrap();
    assert_eq!((m.table().lookup(CN2, 16), first_line(&m, extent)), (Some(MpExtent(extent)), [7; 64]));
    let other = write_map("[[map]]\ncn = '02:00:00:00:00:03'\nsize = '256KiB'\n").unwrap();
    static_map::apply(&other, &mut m).unwrap();
    assert_eq!((m.len(), first_line(&m, extent)), (4, [0; 64]));
    assert_eq!(m.table().unmapped(CN2), Unmapped::Denied);

    let failing =
        |text: &str| write_map(text).and_then(|map| static_map::apply(&map, &mut mappings(4))).unwrap_err();
    assert!(matches!(
        failing("[[map]]\ncn = '02:00:00:00:00:01'\nsize = '320KiB'"),
        StaticMapFailure::Map(StaticMapError::Full { .. })
    ));
    assert!(matches!(
        failing("[[map]]\ncn = '02:00:00:00:00:01'\nsize = '1GiB'"),
        StaticMapFailure::Map(StaticMapError::Full { .. })
    ));
    assert!(matches!(
        failing("[[map]]\ncn = '02:00:00:00:00:01'\nsize = 100"),
        StaticMapFailure::Map(StaticMapError::Range { .. })
    ));
    let twice = "[[map]]\ncn = '02:00:00:00:00:01'\nsize = 65536\n".repeat(2);
    assert!(matches!(failing(&twice), StaticMapFailure::Map(StaticMapError::Overlap { at: 0, .. })));
    let syntax = failing("[[map]]\ncn = 'me'\nsize = 1");
    assert!(
        matches!(syntax, StaticMapFailure::Syntax { .. }) && syntax.to_string().contains("map.toml"),
        "{syntax}"
    );
    assert!(static_map::read(&dir.path().join("none")).unwrap_err().to_string().contains("none"));
}

fn options(url: &str) -> ManagerLinkOptions {
    let mut options = ManagerLinkOptions::new(url, "mn0", vec![Mac([2, 0, 0, 0, 0, 9])], 1500);
    options.backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(20));
    options
}

fn wait_for(link: &ManagerLink, what: impl FnMut(&Connection) -> bool) -> Connection {
    let mut changes = link.watch();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let found = tokio::time::timeout(Duration::from_secs(20), changes.wait_for(what)).await;
        found.expect("it happens within 20 seconds").expect("the link lives").clone()
    })
}

#[test]
fn what_is_mapped_stays_while_there_is_no_manager() {
    // The listener is closed at once, so that no process listens at this port.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut m = mappings(4);
    apply(&mut m, &command(1, NodeAction::MapCmem(mapping(CN1, 0, &[0])))).unwrap();
    let table = m.table().clone();
    let link =
        ManagerLink::start(m, options(&format!("http://127.0.0.1:{port}")), Box::new(Default::default))
            .unwrap();
    let away = wait_for(&link, |connection| matches!(connection, Connection::Away(_)));
    assert!(
        matches!(&away, Connection::Away(why) if why.contains("gmm serve") && why.contains(&port.to_string())),
        "{away:?}"
    );
    assert_eq!(table.lookup(CN1, 0), Some(MpExtent(0)));
    let m = link.stop();
    assert_eq!((m.len(), m.acked()), (1, 1));
}

#[test]
fn names_and_urls_that_cannot_be_are_refused_at_once() {
    let start =
        |options| ManagerLink::start(mappings(1), options, Box::new(Default::default)).map(drop).unwrap_err();
    assert!(matches!(start(options("gopher://m")), ManagerLinkError::Link(_)));
    let nameless = ManagerLinkOptions { name: "a/b".into(), ..options("http://127.0.0.1:1") };
    assert!(matches!(start(nameless), ManagerLinkError::Name(_)));
}
