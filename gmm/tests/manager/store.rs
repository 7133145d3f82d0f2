//! The store in a file: errors for files that are no store, are damaged, in use, or of another version. The suite for
//! all stores tests storing and loading.

use std::path::Path;

use crate::common::{EXTENT, Served, cn, memory_node, name};
use cxloe_fabric::api::CreateRegion;
use cxloe_gmm::store::{RedbStore, Store, StoreError};
use cxloe_gmm_core::manager::{Command, FabricState, Manager, Options};

fn open(path: &Path) -> Result<(RedbStore, FabricState), StoreError> {
    let mut store = RedbStore::open(path)?;
    let state = store.load()?;
    Ok((store, state))
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
        cxloe_private::write(&path, &content, cxloe_private::Existing::Replace).unwrap();
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
    let (mut manager, outcome) = Manager::take_over(state, Options::default(), 1).unwrap();
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
