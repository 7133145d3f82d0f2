//! Requirements of every store, tested on each: in memory, in a file, in etcd, and in etcd over a network that loses
//! requests and answers. A manager loads exactly what the previous one has committed, after any commands and restarts.

use std::sync::{Arc, Mutex};

use crate::common::etcd::{Etcd, lead};
use crate::common::proxy::{Fate, Proxy};
use crate::common::{EXTENT, cn, compute_node, memory_node, name};
use cxloe_fabric::api::{Bind, CreateRegion, GrowRegion, MemoryNodeSync, Owner, Unbind};
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::{ByteSize, CommandResult, LD_UNIT, Name, Qos, UnbindOption};
use cxloe_gmm::store::backup;
use cxloe_gmm::store::etcd::Leadership;
use cxloe_gmm::store::{EtcdPlace, EtcdStore, MemoryStore, RedbStore, Store, StoreError};
use cxloe_gmm_core::manager::{Change, Command, FabricState, Manager, Options};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Number of extents of each memory node.
const EXTENTS: u64 = 1 << 12;
const NODES: u8 = 3;

/// A kind of store to run the suite on.
trait Kind {
    /// A store for a new fabric.
    fn fresh(&mut self) -> Box<dyn Store>;
    /// The same store, opened again after its manager has ended.
    fn again(&mut self, before: Box<dyn Store>) -> Box<dyn Store>;
}

#[derive(Default)]
struct InMemory(Arc<Mutex<MemoryStore>>);

/// A store in memory that outlives its managers.
struct Outliving(Arc<Mutex<MemoryStore>>);

impl Store for Outliving {
    fn load(&mut self) -> Result<FabricState, StoreError> {
        self.0.lock().unwrap().load()
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.0.lock().unwrap().commit(changes)
    }
}

impl Kind for InMemory {
    fn fresh(&mut self) -> Box<dyn Store> {
        self.0 = Arc::default();
        Box::new(Outliving(Arc::clone(&self.0)))
    }

    fn again(&mut self, before: Box<dyn Store>) -> Box<dyn Store> {
        before
    }
}

struct InFile(tempfile::TempDir, u32);

impl InFile {
    fn open(&self) -> Box<dyn Store> {
        Box::new(RedbStore::open(&self.0.path().join(format!("deep/er/{}.redb", self.1))).unwrap())
    }
}

impl Kind for InFile {
    fn fresh(&mut self) -> Box<dyn Store> {
        self.1 += 1;
        self.open()
    }

    fn again(&mut self, before: Box<dyn Store>) -> Box<dyn Store> {
        drop(before);
        self.open()
    }
}

/// A store in etcd, connected through a proxy if there is one.
struct InEtcd {
    etcd: Etcd,
    proxy: Option<Proxy>,
    fabrics: u32,
    leadership: Option<Leadership>,
}

impl InEtcd {
    fn new(lossy: bool) -> Self {
        let etcd = Etcd::start();
        // The proxy loses one request in eight and one answer in eight, always the same ones.
        let mut count = 0_u32;
        let plan = move || {
            count = count.wrapping_add(1);
            match count.wrapping_mul(0x9e37_79b9) >> 29 {
                0 => Fate::LoseRequest,
                1 => Fate::LoseAnswer,
                _ => Fate::Arrive,
            }
        };
        let proxy = lossy.then(|| Proxy::start(etcd.port(), plan));
        Self { etcd, proxy, fabrics: 0, leadership: None }
    }

    fn open(&mut self) -> Box<dyn Store> {
        if let Some(leadership) = self.leadership.take() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(leadership.resign()).unwrap();
        }
        let prefix = format!("fabric-{}", self.fabrics);
        let leadership = lead(&self.etcd.place(&prefix));
        let seal = leadership.token();
        self.leadership = Some(leadership);
        let port = self.proxy.as_ref().map_or(self.etcd.port(), Proxy::port);
        let place: EtcdPlace = format!("etcd://127.0.0.1:{port}/{prefix}").parse().unwrap();
        Box::new(EtcdStore::open(&place, seal).unwrap())
    }
}

impl Kind for InEtcd {
    fn fresh(&mut self) -> Box<dyn Store> {
        self.leadership = None;
        self.fabrics += 1;
        self.open()
    }

    fn again(&mut self, before: Box<dyn Store>) -> Box<dyn Store> {
        drop(before);
        self.open()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Create {
        owner: u8,
        extents: u64,
        ways: u32,
    },
    Grow(prop::sample::Index, u64),
    Destroy(prop::sample::Index),
    Disable(prop::sample::Index, bool),
    /// The memory node with this number carries out the commands that the manager has for it.
    Sync(u8),
    SetAside(u8, u16, u64),
    Bind(u8, u16, u8),
    Unbind(u8, u16),
    Qos(u8, u8),
    Quota(u8, u64),
    Hold(u8, bool),
    Forget(u8),
    ForgetCn(u8),
    /// A backup is taken.
    Backup,
    /// The latest backup is restored.
    Restore,
    Silence(u64),
    /// Another manager takes over.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let (node, owner, ld) = (0..NODES, 0u8..4, 0u16..4);
    let region = any::<prop::sample::Index>;
    prop_oneof![
        6 => (owner.clone(), 1u64..30, prop::sample::select(vec![1u32, 1, 2, 3]))
            .prop_map(|(owner, extents, ways)| Step::Create { owner, extents: extents * u64::from(ways), ways }),
        2 => (region(), 1u64..60).prop_map(|(region, extents)| Step::Grow(region, extents)),
        2 => region().prop_map(Step::Destroy),
        1 => (region(), any::<bool>()).prop_map(|(region, on)| Step::Disable(region, on)),
        6 => node.clone().prop_map(Step::Sync),
        1 => (node.clone(), ld.clone(), 0u64..4).prop_map(|(node, ld, units)| Step::SetAside(node, ld, units)),
        2 => (node.clone(), ld.clone(), owner.clone()).prop_map(|(node, ld, owner)| Step::Bind(node, ld, owner)),
        1 => (node.clone(), ld).prop_map(|(node, ld)| Step::Unbind(node, ld)),
        1 => (node.clone(), any::<u8>()).prop_map(|(node, percent)| Step::Qos(node, percent)),
        1 => (owner.clone(), 0u64..100).prop_map(|(owner, extents)| Step::Quota(owner, extents)),
        1 => owner.clone().prop_map(Step::ForgetCn),
        1 => Just(Step::Backup),
        1 => Just(Step::Restore),
        1 => (owner, any::<bool>()).prop_map(|(owner, held)| Step::Hold(owner, held)),
        1 => node.prop_map(Step::Forget),
        1 => (1u64..9000).prop_map(Step::Silence),
        2 => Just(Step::Restart),
    ]
}

/// A manager over a store, which carries out the steps of a test.
struct Run<'a> {
    kind: &'a mut dyn Kind,
    store: Option<Box<dyn Store>>,
    manager: Manager,
    now_ms: u64,
    regions: u32,
    backup: Option<String>,
}

impl<'a> Run<'a> {
    fn start(kind: &'a mut dyn Kind) -> Self {
        let mut store = kind.fresh();
        assert_eq!(store.load().unwrap(), FabricState::default(), "a new store is empty");
        let (manager, outcome) = Manager::take_over(FabricState::default(), Options::default(), 1).unwrap();
        store.commit(&outcome.changes).unwrap();
        let mut run = Self { kind, store: Some(store), manager, now_ms: 1, regions: 0, backup: None };
        (0..NODES).for_each(|node| run.register(node));
        run.apply(Command::RegisterComputeNode(compute_node("cn0", 0)));
        run
    }

    fn register(&mut self, node: u8) {
        self.apply(Command::RegisterMemoryNode(memory_node(&format!("mn{node}"), node, EXTENTS)));
    }

    /// Carries out a command, and stores its changes unless the manager refuses it.
    fn apply(&mut self, command: Command) {
        self.now_ms += 1;
        if let Ok(outcome) = self.manager.apply(command, self.now_ms) {
            self.store.as_mut().unwrap().commit(&outcome.changes).unwrap();
        }
    }

    /// Ends the manager, and starts another one from the loaded state.
    fn restart(&mut self) {
        let mut store = self.kind.again(self.store.take().unwrap());
        let found = store.load().unwrap();
        assert_eq!(&found, self.manager.state(), "the store has not what the manager had");
        let term = self.manager.watermark().term;
        let (manager, outcome) = Manager::take_over(found, Options::default(), self.now_ms).unwrap();
        store.commit(&outcome.changes).unwrap();
        assert_eq!(manager.watermark().term, term + 1);
        (self.manager, self.store) = (manager, Some(store));
    }

    fn region(&self, pick: prop::sample::Index) -> Option<Name> {
        let regions: Vec<&Name> = self.manager.state().regions.keys().collect();
        (!regions.is_empty()).then(|| (*pick.get(&regions)).clone())
    }

    fn sync(&mut self, node: u8) {
        let node = name(&format!("mn{node}"));
        let Some(registered) = self.manager.memory_node_registered(&node, Default::default()) else { return };
        let commands = self.manager.memory_node_synced(&node).commands;
        let acked_seq = commands.last().map_or(registered.acked_seq, |last| last.seq);
        let sync = MemoryNodeSync {
            registration: registered.registration,
            acked_seq,
            results: commands.iter().map(|command| CommandResult::done(command.seq)).collect(),
            progress: None,
            fills: Vec::new(),
            stats: serde_json::Value::Null,
            wait_ms: 0,
        };
        self.apply(Command::SyncMemoryNode(node, sync));
    }

    fn step(&mut self, step: Step) {
        let owner = |last: u8| Owner::CnId(cn(last));
        let node = |node: u8| name(&format!("mn{node}"));
        match step {
            Step::Create { owner, extents, ways } => {
                self.regions += 1;
                let region = name(&format!("r{}", self.regions));
                let mut create = CreateRegion::new(region, extents * EXTENT, cn(owner));
                create.ways = Ways::try_from(ways).unwrap();
                self.apply(Command::CreateRegion(create));
            }
            Step::Grow(pick, extents) => {
                if let Some(region) = self.region(pick) {
                    let size = ByteSize(extents * EXTENT);
                    self.apply(Command::GrowRegion(region, GrowRegion { size, on: Vec::new(), wait_ms: 0 }));
                }
            }
            Step::Destroy(pick) => {
                if let Some(name) = self.region(pick) {
                    self.apply(Command::DestroyRegion { name, force: true, created_ms: None });
                }
            }
            Step::Disable(pick, on) => {
                if let Some(name) = self.region(pick) {
                    self.apply(if on { Command::EnableRegion(name) } else { Command::DisableRegion(name) });
                }
            }
            Step::Sync(node) => self.sync(node),
            Step::SetAside(on, ld, units) => {
                self.apply(Command::SetLdAllocations(node(on), ld, vec![ByteSize(units * LD_UNIT)]));
            }
            Step::Bind(on, ld, cn) => {
                let bind = Bind {
                    compute_node: owner(cn),
                    memory_node: node(on),
                    ld: Some(ld),
                    vppb: None,
                    wait_ms: 0,
                };
                self.apply(Command::Bind(bind, Some(0)));
            }
            Step::Unbind(on, ld) => {
                let unbind = Unbind { memory_node: node(on), ld, option: UnbindOption::Surprise, wait_ms: 0 };
                self.apply(Command::Unbind(unbind, Some(0)));
            }
            Step::Qos(on, percent) => {
                self.apply(Command::SetQos(Qos { moderate: percent % 100, ..Qos::new(node(on)) }));
            }
            Step::Quota(cn, extents) => {
                self.apply(Command::SetQuota(owner(cn), (extents > 0).then_some(extents * EXTENT)));
            }
            Step::Hold(cn, held) => self.apply(Command::Hold(owner(cn), held)),
            Step::Forget(on) => {
                self.now_ms += 20_000;
                self.apply(Command::Tick);
                self.apply(Command::ForgetMemoryNode { name: node(on), force: true });
                self.register(on);
            }
            Step::ForgetCn(cn) => {
                self.now_ms += 20_000;
                self.apply(Command::Tick);
                self.apply(Command::ForgetComputeNode(owner(cn)));
            }
            Step::Backup => self.backup = Some(backup::write(self.manager.state(), None).unwrap()),
            Step::Restore => {
                let Some(text) = &self.backup else { return };
                let (head, state) = backup::read(text).unwrap();
                let changes = self.manager.restore(state, 7, "root", self.now_ms).unwrap();
                assert_eq!(self.manager.watermark().term, head.watermark.term + 1);
                self.store.as_mut().unwrap().commit(&changes).unwrap();
            }
            Step::Silence(ms) => {
                self.now_ms += ms;
                self.apply(Command::Tick);
            }
            Step::Restart => self.restart(),
        }
    }
}

/// After any sequence of commands, a new manager loads exactly the state of the previous one.
fn random_commands_are_found_again(kind: &mut dyn Kind, cases: u32, steps: usize) {
    let cases =
        std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse::<u32>().ok()).map_or(cases, |all| {
            // proptest runs 256 cases by default. If `PROPTEST_CASES` asks for more, `cases` grows by the
            // same factor.
            cases * (all / 256).max(1)
        });
    let kind = std::cell::RefCell::new(kind);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&prop::collection::vec(step(), 1..steps), |steps| {
        let mut kind = kind.borrow_mut();
        let mut run = Run::start(&mut **kind);
        steps.into_iter().for_each(|step| run.step(step));
        run.restart();
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

/// The store keeps all changes of a commit, even of one with very many commands.
fn a_large_batch_is_one(kind: &mut dyn Kind) {
    let mut run = Run::start(kind);
    let mut batch = Vec::new();
    for region in 0..400 {
        let mut create = CreateRegion::new(name(&format!("large-{region}")), 3 * EXTENT, cn(1));
        (create.ways, create.granularity) = (Ways::Three, Granularity::try_from(1024).unwrap());
        batch.extend(run.manager.apply(Command::CreateRegion(create), 2).unwrap().changes);
    }
    for region in 0..100 {
        let destroy =
            Command::DestroyRegion { name: name(&format!("large-{region}")), force: true, created_ms: None };
        batch.extend(run.manager.apply(destroy, 3).unwrap().changes);
    }
    assert!(batch.len() > 5000, "{} changes", batch.len());
    run.store.as_mut().unwrap().commit(&batch).unwrap();
    run.restart();
    assert_eq!(run.manager.state().regions.len(), 400);
    // A memory node gets so many commands in several answers.
    (0..3).for_each(|_| (0..NODES).for_each(|node| run.sync(node)));
    run.restart();
    assert_eq!(run.manager.state().regions.len(), 300);
}

/// Events that the manager removes because they are the oldest are removed from the store too.
fn forgotten_events_are_gone(kind: &mut dyn Kind) {
    let mut run = Run::start(kind);
    let mut batch = Vec::new();
    for _ in 0..6000 {
        for held in [true, false] {
            run.now_ms += 1;
            let hold = Command::Hold(Owner::CnId(cn(0)), held);
            batch.extend(run.manager.apply(hold, run.now_ms).unwrap().changes);
        }
    }
    run.store.as_mut().unwrap().commit(&batch).unwrap();
    let oldest = run.manager.state().events.front().unwrap().seq;
    assert!(oldest > 1, "nothing was forgotten: {oldest}");
    run.restart();
    run.step(Step::Hold(0, true));
    assert_eq!(run.manager.state().events.front().unwrap().seq, oldest + 2);
    run.restart();
}

fn suite(kind: &mut dyn Kind, cases: u32, steps: usize) {
    a_large_batch_is_one(kind);
    forgotten_events_are_gone(kind);
    random_commands_are_found_again(kind, cases, steps);
}

#[test]
fn a_store_in_memory() {
    suite(&mut InMemory::default(), 100, 60);
}

#[test]
fn a_store_in_a_file() {
    suite(&mut InFile(tempfile::tempdir().unwrap(), 0), 24, 60);
}

#[test]
fn a_store_in_etcd() {
    suite(&mut InEtcd::new(false), 24, 60);
}

#[test]
fn a_store_in_etcd_over_a_network_that_loses_requests_and_answers() {
    suite(&mut InEtcd::new(true), 12, 40);
}
