//! The store on disk: it gives back what was put in, says what is wrong with files that are no store, and survives a
//! manager that is killed in the middle of commits.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use common::{EXTENT, Served, cn, compute_node, memory_node, name};
use cxloe_gmm::api::{CreateRegion, DestroyRegion, MemoryNodeSync};
use cxloe_gmm::manager::{Command, Manager, State};
use cxloe_gmm::model::{CommandResult, RegionState};
use cxloe_gmm::store::{RedbStore, Store, StoreError};

fn open(path: &Path) -> Result<(RedbStore, State), StoreError> {
    let mut store = RedbStore::open(path)?;
    let state = store.load()?;
    Ok((store, state))
}

#[test]
fn what_was_committed_is_there_after_opening_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep").join("er").join("gmm.redb");
    let (mut store, state) = open(&path).unwrap();
    assert_eq!(state, State::default());
    let (mut manager, outcome) = Manager::take_over(state, 5000, 1).unwrap();
    store.commit(&outcome.changes).unwrap();
    let commands = [
        Command::RegisterMemoryNode(memory_node("mn0", 0, 64)),
        Command::RegisterComputeNode(compute_node("cn0", 1)),
        Command::CreateRegion(CreateRegion::new(name("kept"), 3 * EXTENT, cn(1))),
        Command::CreateRegion(CreateRegion::new(name("gone"), 5 * EXTENT, cn(2))),
        Command::DestroyRegion { name: name("gone"), force: false },
    ];
    for command in commands {
        let outcome = manager.apply(command, 2).unwrap();
        store.commit(&outcome.changes).unwrap();
    }
    let sync = MemoryNodeSync {
        registration: manager.memory_node_registered(&name("mn0")).unwrap().registration,
        acked_seq: 3,
        results: (1..=3).map(CommandResult::done).collect(),
        stats: serde_json::Value::Null,
        wait_ms: 0,
    };
    let outcome = manager.apply(Command::SyncMemoryNode(name("mn0"), sync), 3).unwrap();
    store.commit(&outcome.changes).unwrap();
    drop(store);

    let (_, state) = open(&path).unwrap();
    assert_eq!(&state, manager.state());
    assert_eq!(state.regions.keys().map(ToString::to_string).collect::<Vec<_>>(), ["kept"]);
    let (again, _) = Manager::take_over(state, 5000, 4).unwrap();
    assert_eq!(again.watermark().term, manager.watermark().term + 1);
    let leftovers: Vec<_> = std::fs::read_dir(path.parent().unwrap()).unwrap().collect();
    assert_eq!(leftovers.len(), 1, "{leftovers:?}");
}

#[test]
fn a_store_in_use_is_not_opened_twice() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let error = open(&folder.path().join("gmm.redb")).map(drop).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error}");
    drop(served);
    open(&folder.path().join("gmm.redb")).unwrap();
}

#[test]
fn files_that_are_no_store_are_named_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gmm.redb");
    for content in [b"hello".to_vec(), vec![0; 4096], vec![0x5a; 100_000]] {
        std::fs::write(&path, content).unwrap();
        let error = open(&path).map(drop).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
        assert!(error.to_string().contains("gmm.redb"), "{error}");
    }
}

#[test]
fn a_damaged_store_is_refused_or_whole_but_never_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gmm.redb");
    let (mut store, state) = open(&path).unwrap();
    let (mut manager, outcome) = Manager::take_over(state, 5000, 1).unwrap();
    store.commit(&outcome.changes).unwrap();
    let outcome = manager.apply(Command::RegisterMemoryNode(memory_node("mn0", 0, 64)), 2).unwrap();
    store.commit(&outcome.changes).unwrap();
    for region in 0..20 {
        let create = CreateRegion::new(name(&format!("r{region}")), EXTENT, cn(1));
        store.commit(&manager.apply(Command::CreateRegion(create), 3).unwrap().changes).unwrap();
    }
    drop(store);
    let whole = std::fs::read(&path).unwrap();
    let mut refused = 0;
    for place in (0..whole.len()).step_by(whole.len() / 64) {
        let mut damaged = whole.clone();
        damaged[place..(place + 64).min(whole.len())].fill(0xa5);
        std::fs::write(&path, damaged).unwrap();
        match open(&path) {
            Ok((_, state)) => assert_eq!(&state, manager.state(), "damage at {place} changed the state"),
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains("gmm.redb"), "{error}");
            }
        }
    }
    assert!(refused > 0, "no damage was ever noticed");
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert!(matches!(open(&path).map(drop), Err(StoreError::Damaged { .. })));
}

#[test]
fn another_format_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gmm.redb");
    drop(open(&path).unwrap());
    let meta: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("meta");
    let database = redb::Database::open(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(meta).unwrap().insert("format", b"99".as_slice()).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = open(&path).map(drop).unwrap_err();
    assert!(matches!(&error, StoreError::Format { found, .. } if found == "99"), "{error}");
}

/// Everything that was answered before the kill is there after it, over and over on one store.
#[test]
fn killed_in_the_middle_of_commits_nothing_answered_is_lost() {
    const ROUNDS: u64 = 30;
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut expected: BTreeMap<String, RegionState> = BTreeMap::new();
    let mut last_term = 0;
    let mut answered_in_all = 0;
    for round in 0..ROUNDS {
        let served = Served::start(folder.path(), &[]);
        let client = served.client();
        let answered = runtime.block_on(async {
            let node = memory_node("mn0", 0, 1 << 20);
            client.register_memory_node(&node).await.unwrap();
            let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
            let mut tasks = tokio::task::JoinSet::new();
            for task in 0..3 {
                let (client, sender) = (client.clone(), sender.clone());
                tasks.spawn(async move {
                    for number in 0..10_000 {
                        let region = format!("r{round}-{task}-{number}");
                        let create =
                            CreateRegion { wait_ms: 0, ..CreateRegion::new(name(&region), EXTENT, cn(task)) };
                        if client.create_region(&create).await.is_err() {
                            return;
                        }
                        sender.send((region.clone(), RegionState::Creating)).unwrap();
                        let destroy = DestroyRegion { force: true, wait_ms: 0 };
                        if number % 3 == 0 {
                            if client.destroy_region(&name(&region), destroy).await.is_err() {
                                return;
                            }
                            sender.send((region, RegionState::Draining)).unwrap();
                        }
                    }
                });
            }
            drop(sender);
            tokio::time::sleep(Duration::from_millis(5 + round * 7 % 40)).await;
            served.kill();
            while tasks.join_next().await.is_some() {}
            let mut answered = Vec::new();
            while let Some(answer) = receiver.recv().await {
                answered.push(answer);
            }
            answered
        });
        answered_in_all += answered.len();
        expected.extend(answered);

        let (_, state) = open(&folder.path().join("gmm.redb")).unwrap();
        assert!(state.meta.watermark.term > last_term);
        last_term = state.meta.watermark.term;
        let found: BTreeMap<String, RegionState> =
            state.regions.iter().map(|(name, region)| (name.to_string(), region.state)).collect();
        for (region, state) in &expected {
            let there = found.get(region);
            // A destroy that was stored but not answered is allowed to have happened.
            let further = *state == RegionState::Creating && there == Some(&RegionState::Draining);
            assert!(there == Some(state) || further, "{region} was answered as {state} and is {there:?}");
        }
        let bases: Vec<(_, u64)> =
            state.regions.values().flat_map(|r| r.legs.iter().map(|l| (r.owner, l.cmem_base))).collect();
        assert_eq!(bases.iter().collect::<BTreeSet<_>>().len(), bases.len(), "CMem was given twice");
    }
    assert!(answered_in_all > 100, "only {answered_in_all} requests were answered: the kills tested nothing");
    assert!(
        !folder.path().read_dir().unwrap().any(|file| file
            .unwrap()
            .file_name()
            .to_string_lossy()
            .contains(".new-"))
    );
}
