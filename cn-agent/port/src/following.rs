//! Following the manager in a program that is a compute node itself: a thread keeps the registration alive and receives
//! changes, by the same [`Follow`] that the agent uses. Sessions end when the key of a memory node is revoked, and are
//! renegotiated when the key changes. A manager whose store is older than this node's watermark (the progress of the
//! store that the node has seen) is refused, and its answers change nothing.
//!
//! ```text
//!   Follower (thread) -- register, sync, waits --> manager
//!        |  keys of memory nodes
//!        v
//!     PeerKeys  ------ one load --> KeyWatch (in each port's signals) --> engine: sessions end, or are renegotiated
//! ```

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cxloe_cn_core::attach::SessionKeys;
use cxloe_cn_core::attachments::Attachments;
use cxloe_cn_core::engine::Engine;
use cxloe_cn_core::follow::{Follow, ManagerAnswer, ManagerRequest, RestartReason};
use cxloe_fabric::ClientError;
use cxloe_fabric::api::{ComputeNodeSync, ErrorCode, RegisterComputeNode};
use cxloe_fabric::model::{Region, Watermark};
use cxloe_wire::frame::{Mac, PublicKey};
use cxloe_wire::time::Time;

use crate::manager::{Cut, Manager};

/// Time-out of an answer, in addition to the time for which the request lets the manager wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Pause before the next request to a manager that did not answer or is refused.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Reason why a request to the manager returned nothing that this node can use.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The request failed or was refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// This node refuses the manager.
    #[error(transparent)]
    Halt(#[from] RestartReason),
}

/// This node's registration, and the state of its regions at the manager.
#[derive(Debug)]
pub struct Registration {
    manager: Manager,
    follow: Follow,
    attachments: Attachments,
}

impl Registration {
    /// Registers `node`. `joined` is the watermark (progress of the manager's store) at the time when the node joined;
    /// `None` if the node has not joined.
    ///
    /// # Errors
    /// Any [`FollowError`].
    pub fn new(
        manager: Manager,
        node: RegisterComputeNode,
        joined: Option<Watermark>,
    ) -> Result<Registration, FollowError> {
        let (follow, mut attachments) = (Follow::new(node), Attachments::default());
        attachments.join(joined);
        let mut registration = Registration { manager, follow, attachments };
        while !registration.follow.is_registered() {
            registration.step(&PeerKeys::default())?;
        }
        // The registration has replaced the node's former key by the one made for this run.
        registration.follow.node_mut().new_key = false;
        Ok(registration)
    }

    /// Sends one request to the manager, and stores the keys in the answer.
    ///
    /// # Errors
    /// Any [`FollowError`]; the next call registers anew.
    fn step(&mut self, keys: &PeerKeys) -> Result<(), FollowError> {
        let stepped = self.try_step(keys);
        if stepped.is_err() {
            self.follow.restart();
        }
        stepped
    }

    fn try_step(&mut self, keys: &PeerKeys) -> Result<(), FollowError> {
        let answer = match self.follow.next(&self.attachments, 0) {
            ManagerRequest::Register(node) => match self.manager.register(&node) {
                Ok(answer) => ManagerAnswer::Registered(Box::new(answer)),
                Err(error) if error.code() == Some(ErrorCode::StaleManager) => ManagerAnswer::Stale,
                Err(error) => return Err(error.into()),
            },
            ManagerRequest::NotFollowed(body) => {
                if let Err(error) = self.manager.not_followed(&body) {
                    tracing::debug!(%error, "the manager did not record that this node does not follow");
                }
                ManagerAnswer::Done
            }
            ManagerRequest::Sync(sync) => {
                let timeout = ANSWER_TIMEOUT.saturating_add(Duration::from_millis(sync.wait_ms));
                ManagerAnswer::Synced(Box::new(self.manager.sync(
                    self.follow.node().cn_id,
                    &sync,
                    timeout,
                )?))
            }
        };
        self.take(answer, keys)
    }

    /// Stores the keys in an answer. Regions are not attached here: the program attaches its own.
    fn take(&mut self, answer: ManagerAnswer, keys: &PeerKeys) -> Result<(), FollowError> {
        let listed = match &answer {
            ManagerAnswer::Registered(answer) => answer.regions.clone(),
            ManagerAnswer::Synced(synced) => synced.regions.clone().unwrap_or_default(),
            ManagerAnswer::Stale | ManagerAnswer::Done => Vec::new(),
        };
        self.follow.on_answer(answer, &mut self.attachments)?;
        if self.follow.is_registered() {
            // A key may have been revoked between the creation of its region and this listing: the listed keys are
            // compared with those that the ports use.
            keys.update_from(&listed);
        }
        Ok(())
    }

    /// Ends the registration by a sync over the connection `manager` that is aborted while it is pending. The
    /// compute node's next run can then register at once; a registration that is not ended lasts until it
    /// expires. Takes at most `timeout`.
    pub fn hang_up(&self, manager: &Manager, timeout: Duration) {
        let (until, mut after_event) = (Instant::now() + timeout, self.follow.after_event());
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let sync = ComputeNodeSync {
                registration: self.follow.registration(),
                after_event,
                released: Vec::new(),
                quiet: 0,
                settled: false,
                wait_ms: 60_000,
            };
            match manager.sync(self.follow.node().cn_id, &sync, left) {
                Ok(synced) if !left.is_zero() => after_event = synced.after_event,
                _ => return,
            }
        }
    }
}

/// Keys of the memory nodes of this node's regions, as last received from the manager.
#[derive(Debug, Default)]
pub struct PeerKeys {
    /// Number of changes so far, for [`KeyWatch`].
    changes: AtomicU64,
    /// Keys by address of the memory node; `None` if the key was revoked.
    keys: Mutex<BTreeMap<Mac, Option<PublicKey>>>,
}

impl PeerKeys {
    /// Stores the keys of all memory nodes that have a part of these regions.
    pub fn update_from(&self, regions: &[Region]) {
        let legs = regions.iter().flat_map(|region| &region.legs);
        self.update(legs.flat_map(|leg| leg.macs.iter().map(|mac| (*mac, leg.mn_key))));
    }

    /// Stores the keys of these memory nodes. `None` for a node whose key was stored before means that the key was
    /// revoked. The keys of other nodes stay.
    fn update(&self, keys: impl IntoIterator<Item = (Mac, Option<PublicKey>)>) {
        let mut own = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let before = own.clone();
        for (mac, key) in keys {
            if key.is_some() || own.contains_key(&mac) {
                own.insert(mac, key);
            }
        }
        if *own != before {
            self.changes.fetch_add(1, Ordering::Release);
        }
    }
}

/// Applies the changes of [`PeerKeys`] to one engine.
pub struct KeyWatch {
    peers: Arc<PeerKeys>,
    seen: u64,
    keys: SessionKeys,
}

impl KeyWatch {
    /// Creates a watch for an engine whose sessions use the keys `keys`; only later changes are applied.
    pub fn new(peers: Arc<PeerKeys>, keys: SessionKeys) -> KeyWatch {
        let seen = peers.changes.load(Ordering::Acquire);
        KeyWatch { peers, seen, keys }
    }

    /// Whether a change is to be [applied](Self::apply).
    #[inline]
    pub fn is_due(&self) -> bool {
        self.peers.changes.load(Ordering::Acquire) != self.seen
    }

    /// Passes the keys to the engine: sessions with memory nodes whose keys were revoked end at the engine's next poll,
    /// which is due at once. If another thread holds the lock of the keys, the call does nothing and the change stays
    /// due: the data path neither allocates nor waits for a lock.
    #[cold]
    pub fn apply(&mut self, engine: &mut Engine, now: Time) {
        let seen = self.peers.changes.load(Ordering::Acquire);
        let announced = match self.peers.keys.try_lock() {
            Ok(announced) => announced,
            Err(TryLockError::Poisoned(announced)) => announced.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.seen = seen;
        let keys = &self.keys;
        // Memory nodes whose keys were revoked are barred first, because a session with them would otherwise be opened
        // without a key.
        engine.bar(|mac| announced.get(&mac) == Some(&None), now);
        let pair = |mac| {
            announced.get(&mac).map_or_else(|| keys.with(mac), |key| key.and_then(|key| keys.pair(key)))
        };
        engine.set_keys(pair, now);
    }
}

/// Thread that follows the manager until it is stopped.
#[derive(Debug)]
pub struct Follower {
    stop: Option<Sender<()>>,
    cut: Cut,
    thread: Option<JoinHandle<Registration>>,
}

impl Follower {
    /// Starts the thread, which records changed keys of memory nodes in `keys`.
    ///
    /// # Errors
    /// Failure to start the thread.
    pub fn start(registration: Registration, keys: Arc<PeerKeys>) -> io::Result<Follower> {
        let (stop, stopped) = channel::<()>();
        let cut = registration.manager.cut();
        let thread = thread::Builder::new()
            .name("manager".into())
            .spawn(move || follow(registration, &keys, &stopped))?;
        Ok(Follower { stop: Some(stop), cut, thread: Some(thread) })
    }

    /// Ends the thread, and returns the registration; `None` if the thread has panicked.
    pub fn stop(mut self) -> Option<Registration> {
        self.end()
    }

    fn end(&mut self) -> Option<Registration> {
        drop(self.stop.take());
        self.cut.now();
        self.thread.take()?.join().ok()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.end();
    }
}

fn follow(mut registration: Registration, keys: &PeerKeys, stopped: &Receiver<()>) -> Registration {
    let mut reported = false;
    loop {
        let mut pause = Duration::ZERO;
        match registration.step(keys) {
            Ok(()) => reported = false,
            // The manager was restarted, or another manager leads now: the node registers again, for the first time
            // without a pause.
            Err(error) if !reported && is_passing(&error) => reported = true,
            Err(error) => {
                pause = RETRY_INTERVAL;
                if !std::mem::replace(&mut reported, true)
                    && stopped.recv_timeout(Duration::ZERO) == Err(RecvTimeoutError::Timeout)
                {
                    tracing::warn!(%error, "the manager's changes are not received: changed keys of memory nodes are not used; trying again");
                }
            }
        }
        if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return registration;
        }
    }
}

/// Whether the error is over when the node has registered again.
fn is_passing(error: &FollowError) -> bool {
    match error {
        FollowError::Client(error) => error.code() == Some(ErrorCode::NotRegistered),
        FollowError::Halt(halt) => *halt == RestartReason::Anew,
    }
}

#[cfg(test)]
mod tests {
    use cxloe_cn_core::attach::SessionSettings;
    use cxloe_cn_core::cache::CacheConfig;
    use cxloe_cn_core::engine::{EngineError, RequestId, Sink};
    use cxloe_link::Link;
    use cxloe_link::keys::SYSTEM;
    use cxloe_link::sim::{PortConfig, SimNetwork};
    use cxloe_wire::frame::ETHERTYPE_DEFAULT;
    use cxloe_wire::session::{NodeKey, Timing};

    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const MN: Mac = Mac([2, 0, 0, 0, 1, 0]);
    const PLAIN: Mac = Mac([2, 0, 0, 0, 1, 1]);

    /// A sink that ignores all results, for an engine without operations.
    struct DiscardCompletions;

    impl Sink for DiscardCompletions {
        fn read(&mut self, _: RequestId, _: &[u8]) {}
        fn written(&mut self, _: RequestId) {}
        fn failed(&mut self, _: RequestId, _: EngineError) {}
    }

    #[test]
    fn who_had_a_key_and_has_none_was_revoked() {
        let news = Arc::new(PeerKeys::default());
        let key = |byte| Some(PublicKey([byte; 32]));
        news.update([(MN, key(1)), (PLAIN, None)]);
        let own = Some(Arc::new(NodeKey::generate(SYSTEM)));
        let keys =
            SessionKeys { own, announced: [(MN, PublicKey([1; 32]))].into(), ..SessionKeys::none(SYSTEM) };
        let station = SessionSettings {
            own: OWN,
            ethertype: ETHERTYPE_DEFAULT,
            max_frame: 1514,
            streams: 4,
            instance: 1,
            key: None,
            keys: keys.clone(),
            timing: Timing::default(),
        };
        let mut watch = KeyWatch::new(Arc::clone(&news), keys);
        let mut engine = Engine::new(CacheConfig::OFF);
        for mac in [MN, PLAIN] {
            engine.add_peer(station.requester(mac), Time::ZERO);
        }
        let mut link = SimNetwork::new(1).attach(OWN, PortConfig::default()).unwrap();
        let mut states = |engine: &mut Engine| {
            engine.poll(Time(1), link.transmit(), &mut DiscardCompletions);
            [0, 1].map(|session| engine.sessions()[session].state.clone())
        };
        assert!(!watch.is_due(), "what is known when it begins is no news");
        news.update([(MN, key(1)), (PLAIN, None)]);
        assert!(!watch.is_due());

        for (announced, state) in [(None, "closed"), (key(2), "connecting")] {
            news.update([(MN, announced), (PLAIN, None)]);
            assert!(watch.is_due());
            let changing = news.keys.lock().unwrap();
            watch.apply(&mut engine, Time(1));
            assert!(watch.is_due(), "who changes the news is not waited for");
            drop(changing);
            watch.apply(&mut engine, Time(1));
            assert!(!watch.is_due());
            assert_eq!(states(&mut engine), [state, "connecting"], "{announced:?}");
        }
    }

    /// Tests that a key counts as revoked if it is revoked between the creation of a region and the first
    /// answer that lists the region.
    #[test]
    fn a_key_revoked_before_the_first_listing_is_missed_by_nobody() {
        let region = |key: Option<PublicKey>| -> Region {
            serde_json::from_value(serde_json::json!({
                "name": "r", "owner": "02:00:00:00:00:01", "size": 4096, "ways": 1, "granularity": 4096,
                "state": "active", "created_ms": 1, "decoders": [],
                "legs": [{
                    "memory_node": "mn0", "macs": ["02:00:00:00:01:00"], "mn_key": key, "decoder": 0, "position": 0,
                    "cmem_base": 0, "bytes": 4096, "extent_bytes": 4096, "extents": [], "incarnation": 1,
                    "state": "mapped",
                }],
            }))
            .unwrap()
        };
        let keys = PeerKeys::default();
        keys.update_from(&[region(Some(PublicKey([1; 32])))]);
        let manager = Manager::new("http://127.0.0.1:1", &Default::default()).unwrap();
        let node = put_back::node();
        let (follow, attachments) = (Follow::new(node), Attachments::default());
        let mut registration = Registration { manager, follow, attachments };
        registration.follow.next(&registration.attachments, 0);
        let watermark = Watermark { term: 1, revision: 9, run: 5 };
        let answer = cxloe_fabric::api::ComputeNodeRegistered {
            registration: 7,
            watermark,
            term: 1,
            lineage: vec![cxloe_fabric::model::LeaderTerm { term: 1, run: 5, first: 0, adopted: Vec::new() }],
            heartbeat_ms: 1000,
            after_event: 9,
            regions: vec![region(None)],
            devices: Vec::new(),
            held: false,
        };
        registration.take(ManagerAnswer::Registered(Box::new(answer)), &keys).unwrap();
        assert_eq!(keys.keys.lock().unwrap()[&MN], None);
    }

    mod put_back {
        use std::path::Path;

        use cxloe_fabric::model::Name;
        use cxloe_fabric::trust::Credentials;
        use cxloe_gmm::server::{Config, Server};
        use tokio::runtime::Runtime;

        use super::*;

        fn serve(runtime: &Runtime, store: &Path, port: u16) -> Server {
            let config = Config {
                listen: ([127, 0, 0, 1], port).into(),
                insecure: true,
                store: store.to_path_buf().into(),
                ..Config::default()
            };
            runtime.block_on(Server::start(config)).unwrap()
        }

        pub(super) fn node() -> RegisterComputeNode {
            RegisterComputeNode {
                cn_id: "02:00:00:00:00:01".parse().unwrap(),
                name: Name::new("port").unwrap(),
                udp: None,
                key: None,
                new_key: false,
                instance_id: 7,
                seen: Watermark::default(),
            }
        }

        /// Tests that a port, like an agent, refuses a manager that runs on an older copy of the store, and
        /// uses no key in the manager's answers.
        #[test]
        fn a_manager_over_an_older_store_is_refused() {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            let dir = tempfile::tempdir().unwrap();
            let (store, copy) = (dir.path().join("gmm.redb"), dir.path().join("copy"));
            let server = serve(&runtime, &store, 0);
            let address = server.address();
            runtime.block_on(server.stop()).unwrap();
            std::fs::copy(&store, &copy).unwrap();
            let server = serve(&runtime, &store, address.port());
            let manager = || Manager::new(&format!("http://{address}"), &Credentials::default()).unwrap();
            let joined = manager().register(&node()).unwrap().watermark;
            let keys = PeerKeys::default();
            let mut registration = Registration::new(manager(), node(), Some(joined)).unwrap();
            runtime.block_on(server.stop()).unwrap();

            std::fs::rename(&copy, &store).unwrap();
            let server = serve(&runtime, &store, address.port());
            let refused = (0..20).find_map(|_| match registration.step(&keys) {
                Err(FollowError::Halt(halt)) => Some(halt),
                _ => None,
            });
            assert!(matches!(refused, Some(RestartReason::Stale | RestartReason::Refused(_))), "{refused:?}");
            assert!(!registration.follow.is_registered());
            let anew = Registration::new(manager(), node(), Some(joined)).map(drop);
            assert!(matches!(anew, Err(FollowError::Halt(_))), "{anew:?}");
            assert_eq!(keys.changes.load(Ordering::Relaxed), 0);
            // A node that has not joined has no watermark (progress of the manager's store), and accepts any manager.
            Registration::new(manager(), node(), None).unwrap();
            runtime.block_on(server.stop()).unwrap();
        }
    }
}
