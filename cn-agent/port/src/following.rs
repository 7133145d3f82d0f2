//! Following the manager while a program that is a compute node of its own runs: a thread that waits for news of the node's
//! regions, so that the program hears of it when the key of a memory node is taken back or is another one.
//!
//! ```text
//!   Follower (thread) -- sync, waits --> manager
//!        |  legs with keys
//!        v
//!     KeyNews  ------ one load --> KeyWatch (in each port's signals) --> engine: sessions end, or are agreed on anew
//! ```

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cxloe_cn_core::attach::Station;
use cxloe_cn_core::engine::Engine;
use cxloe_fabric::ClientError;
use cxloe_fabric::api::{ComputeNodeSync, ErrorCode, RegisterComputeNode};
use cxloe_fabric::model::Region;
use cxloe_wire::frame::{Mac, PublicKey};
use cxloe_wire::time::Time;

use crate::manager::{Cut, Manager};

/// How long the manager may wait for a change; it answers sooner, so often as it wants to hear of a node.
const WAIT: Duration = Duration::from_secs(60);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(75);
/// How long a manager that did not answer is left alone.
const PAUSE: Duration = Duration::from_secs(1);

/// Whose keys are whose, as the manager has told it last.
#[derive(Debug, Default)]
pub struct KeyNews {
    /// How often they have changed.
    changes: AtomicU64,
    /// The keys of the memory nodes of this node's regions; none where one was taken back.
    told: Mutex<BTreeMap<Mac, Option<PublicKey>>>,
}

impl KeyNews {
    /// The memory nodes of these regions have the keys that their legs have.
    pub fn hear(&self, regions: &[Region]) {
        let legs = regions.iter().flat_map(|region| &region.legs);
        self.learn(legs.flat_map(|leg| leg.macs.iter().map(|mac| (*mac, leg.mn_key))));
    }

    /// These memory nodes have these keys. One that had a key and has none was revoked; one that is not among them is as it was.
    fn learn(&self, keys: impl IntoIterator<Item = (Mac, Option<PublicKey>)>) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let before = told.clone();
        for (mac, key) in keys {
            if key.is_some() || told.contains_key(&mac) {
                told.insert(mac, key);
            }
        }
        if *told != before {
            self.changes.fetch_add(1, Ordering::Release);
        }
    }
}

/// What an engine is told of them.
pub struct KeyWatch {
    news: Arc<KeyNews>,
    seen: u64,
    station: Station,
}

impl KeyWatch {
    /// For an engine whose sessions are as `station` configures them, by what is known now.
    pub fn new(news: Arc<KeyNews>, station: Station) -> KeyWatch {
        let seen = news.changes.load(Ordering::Acquire);
        KeyWatch { news, seen, station }
    }

    /// Whether there is something to [tell](Self::tell).
    #[inline]
    pub fn is_due(&self) -> bool {
        self.news.changes.load(Ordering::Acquire) != self.seen
    }

    /// Tells the engine: sessions with who was revoked end with the next poll, which is due at once.
    #[cold]
    pub fn tell(&mut self, engine: &mut Engine, now: Time) {
        self.seen = self.news.changes.load(Ordering::Acquire);
        let told = self.news.told.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.station.tell_keys(engine, told, now);
    }
}

/// Hears the manager until it is dropped. That it hangs up tells the manager that the node has gone.
#[derive(Debug)]
pub struct Follower {
    stop: Option<Sender<()>>,
    cut: Cut,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Starts the thread, which has a connection of its own to `manager`, for the node that has registered as `node`, and got
    /// the number `registered`.
    ///
    /// # Errors
    /// No thread.
    pub fn start(
        manager: Manager,
        node: RegisterComputeNode,
        registered: u64,
        news: Arc<KeyNews>,
    ) -> io::Result<Follower> {
        let (stop, stopped) = channel::<()>();
        let cut = manager.cut();
        let thread = thread::Builder::new()
            .name("manager".into())
            .spawn(move || follow(&manager, &node, registered, &news, &stopped))?;
        Ok(Follower { stop: Some(stop), cut, thread: Some(thread) })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.cut.now();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn follow(
    manager: &Manager,
    node: &RegisterComputeNode,
    mut registration: u64,
    news: &KeyNews,
    stopped: &Receiver<()>,
) {
    let (mut after_event, mut said) = (0, false);
    loop {
        let sync = ComputeNodeSync {
            registration,
            after_event,
            released: Vec::new(),
            quiet: 0,
            wait_ms: WAIT.as_millis() as u64,
        };
        let heard = manager.sync(node.cn_id, &sync, PATIENCE).map(|synced| {
            after_event = synced.after_event;
            news.hear(synced.regions.as_deref().unwrap_or_default());
        });
        let mut pause = Duration::ZERO;
        match heard
            .or_else(|error| again(manager, node, error).map(|new| (registration, after_event) = (new, 0)))
        {
            Ok(()) => said = false,
            Err(error) => {
                pause = PAUSE;
                if !std::mem::replace(&mut said, true)
                    && stopped.recv_timeout(Duration::ZERO) == Err(RecvTimeoutError::Timeout)
                {
                    tracing::warn!(%error, "no news of the keys of memory nodes can be had; trying again");
                }
            }
        }
        if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// Registers again where the manager knows the registration no more, and only there; its number.
fn again(manager: &Manager, node: &RegisterComputeNode, error: ClientError) -> Result<u64, ClientError> {
    match error.code() {
        Some(ErrorCode::NotRegistered) => Ok(manager.register(node)?.registration),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use cxloe_cn_core::attach::StationKeys;
    use cxloe_cn_core::cache::CacheConfig;
    use cxloe_link::keys::SYSTEM;
    use cxloe_wire::frame::ETHERTYPE_DEFAULT;
    use cxloe_wire::session::Timing;

    use super::*;

    const MN: Mac = Mac([2, 0, 0, 0, 1, 0]);
    const PLAIN: Mac = Mac([2, 0, 0, 0, 1, 1]);

    #[test]
    fn who_had_a_key_and_has_none_was_revoked() {
        let news = Arc::new(KeyNews::default());
        let key = |byte| Some(PublicKey([byte; 32]));
        news.learn([(MN, key(1)), (PLAIN, None)]);
        let mut watch = KeyWatch::new(
            Arc::clone(&news),
            Station {
                own: Mac([2, 0, 0, 0, 0, 1]),
                ethertype: ETHERTYPE_DEFAULT,
                max_frame: 1514,
                streams: 4,
                instance: 1,
                key: None,
                keys: StationKeys::none(SYSTEM),
                timing: Timing::default(),
            },
        );
        let mut engine = Engine::new(CacheConfig::OFF);
        assert!(!watch.is_due(), "what is known when it begins is no news");
        news.learn([(MN, key(1)), (PLAIN, None)]);
        assert!(!watch.is_due());

        for (told, barred) in [(None, true), (key(2), false)] {
            news.learn([(MN, told), (PLAIN, None)]);
            assert!(watch.is_due());
            watch.tell(&mut engine, Time(1));
            assert!(!watch.is_due());
            let keys = &watch.station.keys;
            assert_eq!((keys.bars(MN), keys.bars(PLAIN), keys.told.get(&MN).copied()), (barred, false, told));
        }
    }
}
