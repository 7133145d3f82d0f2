//! Wake-up of long polls by topic: commands for a node, changes to a node's regions, the end of a region. Each commit
//! wakes only the long polls on the topics that it changes: with ten thousand waiting nodes, waking all of them for
//! each region would be most of the manager's work.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use cxloe_fabric::model::{CnId, Name};
use cxloe_gmm_core::manager::Change;

/// Part of the state whose changes a long poll waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Topic {
    /// The record of a memory node, and the commands to it.
    MemoryNode(Name),
    /// The record of a compute node, and its regions.
    ComputeNode(CnId),
    /// The state of a region.
    Region(Name),
    /// The record of a logical device: its binding and capacity.
    LogicalDevice(Name, u16),
    /// The orphans of a memory node: its memory that belongs to no region.
    Orphans(Name),
    /// New entries of the event log.
    Events,
}

/// The topics that long polls are waiting for.
#[derive(Debug, Default)]
pub struct Topics(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    topics: HashMap<Topic, watch::Sender<()>>,
    closed: bool,
}

/// A long poll's wait for changes to one topic.
#[derive(Debug)]
pub struct TopicWait {
    topics: Arc<Topics>,
    topic: Topic,
    receiver: Option<watch::Receiver<()>>,
}

impl Topics {
    /// Begins to wait: no change after this call is missed.
    pub fn watch(self: &Arc<Self>, topic: Topic) -> TopicWait {
        let mut waiting = self.lock();
        let receiver = (!waiting.closed).then(|| {
            let sender = waiting.topics.entry(topic.clone()).or_insert_with(|| watch::channel(()).0);
            sender.subscribe()
        });
        TopicWait { topics: Arc::clone(self), topic, receiver }
    }

    /// Wakes the long polls on the topics that `changes` concern. If the whole state was replaced, every long poll ends as
    /// at its time-out, and answers from the present state: what it waited for may never come there, and nodes have to
    /// see at once that the manager follows another history.
    pub fn publish(&self, changes: &[Change]) {
        if changes.iter().any(|change| matches!(change, Change::Replaced(..))) {
            self.lock().topics.clear();
            return;
        }
        let touched: HashSet<Topic> = changes.iter().filter_map(topic_of).collect();
        touched.iter().for_each(|topic| self.touch(topic));
    }

    /// Wakes the long polls on one topic.
    pub fn touch(&self, topic: &Topic) {
        if let Some(sender) = self.lock().topics.get(topic) {
            sender.send_replace(());
        }
    }

    /// Wakes every long poll: no further changes will come.
    pub fn close(&self) {
        let mut waiting = self.lock();
        waiting.closed = true;
        waiting.topics.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TopicWait {
    /// Waits until the topic has changed since the last call, or since the wait began. Returns `false` if the wait is
    /// over: the whole state was replaced, or no further changes will come.
    pub async fn touched(&mut self) -> bool {
        match &mut self.receiver {
            Some(receiver) => receiver.changed().await.is_ok(),
            None => false,
        }
    }
}

impl Drop for TopicWait {
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
        Change::ComputeNodeGone(cn) => Topic::ComputeNode(*cn),
        Change::Region(region) => Topic::Region(region.name.clone()),
        Change::RegionGone(name) => Topic::Region(name.clone()),
        Change::LogicalDevice(ld) => Topic::LogicalDevice(ld.memory_node.clone(), ld.id),
        Change::LogicalDeviceGone(node, id) => Topic::LogicalDevice(node.clone(), *id),
        Change::Orphans(orphans) => Topic::Orphans(orphans.memory_node.clone()),
        Change::OrphansGone(name) => Topic::Orphans(name.clone()),
        Change::Event(_) => Topic::Events,
        // `publish` ends all long polls.
        Change::Replaced(..) => return None,
        // The following changes wake no long poll.
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
    use cxloe_gmm_core::manager::Meta;

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

    #[tokio::test]
    async fn a_replaced_state_ends_every_wait_and_no_later_one() {
        let topics = Arc::new(Topics::default());
        let name = || Name::new("a").unwrap();
        let of = [
            Topic::MemoryNode(name()),
            Topic::ComputeNode(CnId::new([2, 0, 0, 0, 0, 1]).unwrap()),
            Topic::Region(name()),
            Topic::LogicalDevice(name(), 1),
            Topic::Orphans(name()),
            Topic::Events,
        ];
        let mut waits = of.clone().map(|topic| topics.watch(topic));
        topics.publish(&[Change::Replaced(Box::default(), Box::default()), Change::Meta(Meta::default())]);
        for wait in &mut waits {
            assert!(!wait.touched().await, "{:?} waits on", wait.topic);
        }
        let mut later = of.map(|topic| topics.watch(topic));
        drop(waits);
        for wait in &mut later {
            topics.touch(&wait.topic);
            assert!(wait.touched().await, "{:?} is not woken", wait.topic);
        }
        drop(later);
        assert!(topics.lock().topics.is_empty());
    }
}
