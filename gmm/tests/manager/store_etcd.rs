//! Requirements of the store in etcd beyond those of every store: only the leader writes, however late requests arrive;
//! a commit of many transactions is all or nothing, wherever it is interrupted; etcd may restart at any time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::common::etcd::{Etcd, lead};
use crate::common::proxy::{Fate, Proxy};
use crate::common::{EXTENT, TEST_TIMEOUT, cn, memory_node, name};
use cxloe_fabric::api::CreateRegion;
use cxloe_gmm::store::etcd::{Attempt, Campaign, Leadership};
use cxloe_gmm::store::{EtcdPlace, EtcdStore, Store, StoreError};
use cxloe_gmm_core::manager::{Change, Command, FabricState, Manager, Options};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Makes another leader take over the store at `place`, connected through `port`.
fn take_over(place: &EtcdPlace, port: u16) -> (Leadership, EtcdStore) {
    let leadership = lead(place);
    let through: EtcdPlace =
        place.to_string().replace(place.hosts()[0].as_str(), &format!("127.0.0.1:{port}")).parse().unwrap();
    let store = EtcdStore::open(&through, leadership.token()).unwrap();
    (leadership, store)
}

/// A manager that has taken over `store`.
fn manager(store: &mut EtcdStore) -> Manager {
    let (mut manager, outcome) = Manager::take_over(store.load().unwrap(), Options::default(), 1).unwrap();
    store.commit(&outcome.changes).unwrap();
    if manager.state().memory_nodes.is_empty() {
        let node = Command::RegisterMemoryNode(memory_node("mn0", 0, 1 << 14));
        store.commit(&manager.apply(node, 2).unwrap().changes).unwrap();
    }
    manager
}

fn create(manager: &mut Manager, region: &str) -> Vec<Change> {
    let create = CreateRegion::new(name(region), EXTENT, cn(1));
    manager.apply(Command::CreateRegion(create), 3).unwrap().changes
}

/// The state that a new leader loads from the store.
fn found(place: &EtcdPlace, port: u16) -> FabricState {
    let (leadership, mut store) = take_over(place, port);
    let state = store.load().unwrap();
    drop(store);
    block_on(leadership.resign()).unwrap();
    state
}

#[test]
fn a_deposed_leader_cannot_write_and_the_next_one_does_not_notice() {
    let etcd = Etcd::start();
    let place = etcd.place("lab");
    let (_old, mut old_store) = take_over(&place, etcd.port());
    let mut old_manager = manager(&mut old_store);
    old_store.commit(&create(&mut old_manager, "kept")).unwrap();
    assert!(matches!(
        block_on(Campaign::new(&place, "http://b", 600).unwrap().attempt()),
        Ok(Attempt::Led(url)) if url == "http://127.0.0.1:1"
    ));

    // The leader loses its lease without notice, and commits a change as if it still led.
    etcd.depose(&place);
    let late = create(&mut old_manager, "late");
    let error = old_store.commit(&late).unwrap_err();
    assert!(matches!(&error, StoreError::Deposed { .. }), "{error}");
    assert!(error.is_passing() && error.to_string().contains(&place.to_string()), "{error}");

    let (new, mut new_store) = take_over(&place, etcd.port());
    let mut new_manager = manager(&mut new_store);
    assert_eq!(new_manager.state().regions.keys().map(ToString::to_string).collect::<Vec<_>>(), ["kept"]);
    assert!(matches!(old_store.commit(&late), Err(StoreError::Deposed { .. })));
    assert!(matches!(old_store.load(), Err(StoreError::Deposed { .. })), "nor may it read");
    new_store.commit(&create(&mut new_manager, "after")).unwrap();
    drop(new_store);
    block_on(new.resign()).unwrap();
    assert_eq!(&found(&place, etcd.port()), new_manager.state());
}

#[test]
fn what_arrives_late_changes_nothing() {
    let etcd = Etcd::start();
    let place = etcd.place("lab");
    let proxy = Proxy::start(etcd.port(), || Fate::Arrive);
    let (leadership, mut store) = take_over(&place, proxy.port());
    let mut manager = manager(&mut store);
    for region in ["r0", "r1", "r2"] {
        store.commit(&create(&mut manager, region)).unwrap();
        let destroy = Command::DestroyRegion { name: name(region), force: true, created_ms: None };
        store.commit(&manager.apply(destroy, 4).unwrap().changes).unwrap();
    }
    drop(store);
    let before = (etcd.content(&place, "state"), etcd.content(&place, "redo"));
    let bytes = wait_for("the connection to end", || Some(proxy.replay()).filter(|bytes| *bytes > 0));
    assert!(bytes > 10_000, "{bytes} bytes were sent again");
    assert_eq!((etcd.content(&place, "state"), etcd.content(&place, "redo")), before);
    block_on(leadership.resign()).unwrap();
    assert_eq!(&found(&place, etcd.port()), manager.state());
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A commit of several transactions is interrupted after each of its requests in turn. A new leader loads the state
/// before the commit if the redo log is incomplete, and the state after the commit if the redo log is complete.
#[test]
fn a_commit_of_many_transactions_is_all_or_nothing_wherever_it_breaks_off() {
    let etcd = Etcd::start();
    let mut outcomes = Vec::new();
    for requests in 0.. {
        let place = etcd.place(&format!("broken-after-{requests}"));
        let left = Arc::new(AtomicI64::new(i64::MAX));
        let plan = {
            let left = Arc::clone(&left);
            move || if left.fetch_sub(1, Ordering::SeqCst) > 0 { Fate::Arrive } else { Fate::LoseRequest }
        };
        let proxy = Proxy::start(etcd.port(), plan);
        let (leadership, mut store) = take_over(&place, proxy.port());
        let mut manager = manager(&mut store);
        let before = manager.state().clone();
        let batch: Vec<Change> =
            (0..150).flat_map(|region| create(&mut manager, &format!("r{region}"))).collect();
        left.store(requests, Ordering::SeqCst);
        let committing = std::thread::spawn(move || store.commit(&batch));
        wait_for("the commit to end or to get stuck", || {
            (committing.is_finished() || left.load(Ordering::SeqCst) < 0).then_some(())
        });
        block_on(leadership.resign()).unwrap();
        let committed = committing.join().unwrap();
        let state = found(&place, etcd.port());
        assert!(etcd.content(&place, "redo").is_empty(), "what was written down is left over");
        assert!(state == before || &state == manager.state(), "half a commit after {requests} requests");
        outcomes.push(&state == manager.state());
        match committed {
            Ok(()) => {
                assert_eq!(outcomes.last(), Some(&true), "committed, and gone");
                break;
            }
            Err(error) => assert!(matches!(error, StoreError::Deposed { .. }), "{error}"),
        }
        assert!(requests < 100, "a commit of {requests} requests");
    }
    assert!(outcomes.is_sorted(), "{outcomes:?}");
    let (lost, kept) =
        (outcomes.iter().filter(|kept| !**kept).count(), outcomes.iter().filter(|kept| **kept).count());
    assert!(lost >= 3 && kept >= 3, "too few transactions for this test: {outcomes:?}");
}

#[test]
fn etcd_may_restart_or_hang_during_commits() {
    let mut etcd = Etcd::start();
    let place = etcd.place("lab");
    let (_leadership, mut store) = take_over(&place, etcd.port());
    let mut manager = manager(&mut store);
    let committing = std::thread::spawn(move || {
        for region in 0..60 {
            store.commit(&create(&mut manager, &format!("r{region}"))).unwrap();
        }
        (store, manager)
    });
    for _ in 0..2 {
        etcd.kill();
        assert!(etcd.run());
        etcd.freeze();
        std::thread::sleep(Duration::from_millis(50));
        etcd.thaw();
    }
    let (mut store, manager) = committing.join().unwrap();
    assert_eq!(&store.load().unwrap(), manager.state());
}

#[test]
fn a_store_that_is_none_or_another_versions_is_named() {
    let etcd = Etcd::start();
    let place = etcd.place("lab");
    let (leadership, mut store) = take_over(&place, etcd.port());
    manager(&mut store);
    let put = |name: &str, value: &str| etcd.put(&place.key(name), value);
    put("state/regions/r0", "{}");
    let error = store.load().unwrap_err();
    let told = error.to_string();
    assert!(told.contains("key lab/state/regions/r0 of"), "{told}");
    let etcdctl = format!("etcdctl --endpoints=http://127.0.0.1:{}", etcd.port());
    assert!(told.contains(&format!("`{etcdctl} get 'lab/state/regions/r0'`")), "{told}");
    assert!(told.contains(&format!("`{etcdctl} del --prefix lab/`")), "{told}");
    put("redo/head", "3");
    assert!(store.load().unwrap_err().to_string().contains("0 of 3 parts"));
    put("format", "99");
    let error = store.load().unwrap_err();
    assert!(matches!(&error, StoreError::Format { found, .. } if found == "99"), "{error}");
    assert!(!error.is_passing());
    put("commit", "someone");
    let error = store.commit(&[Change::EventsForgotten(1)]).unwrap_err();
    assert!(error.to_string().contains("does not lead"), "{error}");
    block_on(leadership.resign()).unwrap();
}
