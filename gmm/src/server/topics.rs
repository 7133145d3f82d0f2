//! Who waits for what. A long poll waits for one thing: commands for its node, changes to its regions, a region's end.
//! After each commit those are woken whose thing was touched, and nobody else: with ten thousand nodes waiting, waking
//! all of them for each region would be most of the manager's work.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::manager::Change;
use cxloe_fabric::model::{CnId, Name};

/// What can be waited for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Topic {
    /// A memory node's record or commands.
    MemoryNode(Name),
    /// A compute node's record or regions.
    ComputeNode(CnId),
    /// A region.
    Region(Name),
    /// A logical device.
    LogicalDevice(Name, u16),
    /// The memory of a memory node that no region has.
    Orphans(Name),
    /// The event log.
    Events,
}

/// All that is waited for.
#[derive(Debug, Default)]
pub struct Topics(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    topics: HashMap<Topic, watch::Sender<()>>,
    closed: bool,
}

/// A wait for one topic.
#[derive(Debug)]
pub struct Watch {
    topics: Arc<Topics>,
    topic: Topic,
    receiver: Option<watch::Receiver<()>>,
}

impl Topics {
    /// Begins to wait: what happens from here on is not missed.
    pub fn watch(self: &Arc<Self>, topic: Topic) -> Watch {
        let mut waiting = self.lock();
        let receiver = (!waiting.closed).then(|| {
            let sender = waiting.topics.entry(topic.clone()).or_insert_with(|| watch::channel(()).0);
            sender.subscribe()
        });
        Watch { topics: Arc::clone(self), topic, receiver }
    }

    /// Wakes those who wait for what `changes` touch.
    pub fn publish(&self, changes: &[Change]) {
        let touched: HashSet<Topic> = changes.iter().filter_map(topic_of).collect();
        let waiting = self.lock();
        for topic in touched {
            if let Some(sender) = waiting.topics.get(&topic) {
                sender.send_replace(());
            }
        }
    }

    /// Wakes everyone for good: nothing is going to happen any more.
    pub fn close(&self) {
        let mut waiting = self.lock();
        waiting.closed = true;
        waiting.topics.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// Returns when the topic was touched since the last time, or since the wait began; `false`: it never will be.
    pub async fn touched(&mut self) -> bool {
        match &mut self.receiver {
            Some(receiver) => receiver.changed().await.is_ok(),
            None => false,
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut waiting = self.topics.lock();
        self.receiver = None;
        if waiting.topics.get(&self.topic).is_some_and(|sender| sender.receiver_count() == 0) {
            waiting.topics.remove(&self.topic);
        }
    }
}

fn topic_of(change: &Change) -> Option<Topic> {
    Some(match change {
        Change::MemoryNode(node) => Topic::MemoryNode(node.name.clone()),
        Change::MemoryNodeGone(name) | Change::CommandIssued(name, _) => Topic::MemoryNode(name.clone()),
        Change::ComputeNode(node) => Topic::ComputeNode(node.cn_id),
        Change::Region(region) => Topic::Region(region.name.clone()),
        Change::RegionGone(name) => Topic::Region(name.clone()),
        Change::LogicalDevice(ld) => Topic::LogicalDevice(ld.memory_node.clone(), ld.id),
        Change::LogicalDeviceGone(node, id) => Topic::LogicalDevice(node.clone(), *id),
        Change::Orphans(orphans) => Topic::Orphans(orphans.memory_node.clone()),
        Change::OrphansGone(name) => Topic::Orphans(name.clone()),
        Change::Event(_) => Topic::Events,
        Change::Meta(_)
        | Change::Operation(_)
        | Change::Qos(_)
        | Change::Token(_)
        | Change::TokenGone(_)
        | Change::Joined(_)
        | Change::JoinedGone(_)
        | Change::LogCleared(_)
        | Change::CommandAnswered(..)
        | Change::LeaderTerm(_)
        | Change::LeaderTermForgotten(_)
        | Change::EventsForgotten(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::Meta;

    #[tokio::test]
    async fn those_are_woken_whose_topic_was_touched_and_nothing_is_left_behind() {
        let topics = Arc::new(Topics::default());
        let name = |text: &str| Name::new(text).unwrap();
        let mut mine = topics.watch(Topic::Region(name("a")));
        let mut other = topics.watch(Topic::Region(name("b")));
        topics.publish(&[Change::RegionGone(name("a")), Change::Meta(Meta::default())]);
        assert!(mine.touched().await);
        let quiet = tokio::time::timeout(std::time::Duration::from_millis(1), other.touched()).await;
        assert!(quiet.is_err(), "nobody touched it");
        let also_mine = topics.watch(Topic::Region(name("a")));
        drop(mine);
        assert_eq!(topics.lock().topics.len(), 2);
        drop(also_mine);
        assert_eq!(topics.lock().topics.len(), 1);
        topics.close();
        assert!(!other.touched().await);
        assert!(!topics.watch(Topic::Events).touched().await);
    }
}
