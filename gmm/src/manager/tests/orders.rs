//! Whatever happens in whatever order, late, twice or not at all: the rules hold.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::model::LegState;

#[derive(Debug, Clone)]
enum Step {
    Create {
        owner: u8,
        extents: u64,
    },
    Destroy(prop::sample::Index),
    Reset(prop::sample::Index),
    /// Sync; whether the commands fail, whether the answer is lost.
    Sync {
        node: usize,
        fail: bool,
        answer_lost: bool,
    },
    /// A sync of the past arrives again.
    Replay {
        node: usize,
    },
    Restart {
        node: usize,
        keep_content: bool,
    },
    Silence(u64),
    RestartManager,
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0usize..3;
    prop_oneof![
        4 => (0u8..3, 1u64..9).prop_map(|(owner, extents)| Step::Create { owner, extents }),
        3 => any::<prop::sample::Index>().prop_map(Step::Destroy),
        1 => any::<prop::sample::Index>().prop_map(Step::Reset),
        10 => (node.clone(), prop::bool::weighted(0.1), prop::bool::weighted(0.2))
            .prop_map(|(node, fail, answer_lost)| Step::Sync { node, fail, answer_lost }),
        1 => node.clone().prop_map(|node| Step::Replay { node }),
        2 => (node, any::<bool>()).prop_map(|(node, keep_content)| Step::Restart { node, keep_content }),
        1 => (1u64..2 * TIMEOUT_MS).prop_map(Step::Silence),
        1 => Just(Step::RestartManager),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Whatever happens in whatever order: no extent has two owners (the nodes assert that on their side too), none is
    /// lost, CMem is never given twice, a refused command leaves no trace, the store has what the manager has, and when
    /// all is quiet everything can be taken down and everything is free again.
    #[test]
    fn no_order_of_events_breaks_the_rules(steps in prop::collection::vec(step(), 1..70)) {
        let mut fabric = Fabric::new(&[6, 9, 12]);
        let mut cmem_given: BTreeMap<CnId, u64> = BTreeMap::new();
        let mut old_syncs: BTreeMap<usize, MemoryNodeSync> = BTreeMap::new();
        for (number, step) in steps.into_iter().enumerate() {
            fabric.now_ms += 1;
            let region_at = |fabric: &Fabric, pick: prop::sample::Index| {
                let regions: Vec<Name> = fabric.manager.state().regions.keys().cloned().collect();
                (!regions.is_empty()).then(|| pick.get(&regions).clone())
            };
            match step {
                Step::Create { owner, extents } => {
                    let region = format!("r{number}");
                    if fabric.create(&region, extents, cn(owner)).is_ok() {
                        let given = cmem_given.entry(cn(owner)).or_default();
                        for leg in &fabric.manager.region(&name(&region)).unwrap().legs {
                            prop_assert!(leg.cmem_base >= *given, "CMem 0x{:x} given again", leg.cmem_base);
                            *given = leg.cmem_base + leg.bytes;
                        }
                    }
                }
                Step::Destroy(pick) => {
                    if let Some(region) = region_at(&fabric, pick) {
                        fabric.destroy(region.as_str()).unwrap();
                    }
                }
                Step::Reset(pick) => {
                    if let Some(region) = region_at(&fabric, pick) {
                        drop(fabric.apply(Command::ResetRegion(region)));
                    }
                }
                Step::Sync { node, fail, answer_lost } => {
                    let sync = fabric.nodes[node].sync();
                    if answer_lost {
                        fabric.apply(Command::SyncMemoryNode(fabric.nodes[node].name.clone(), sync.clone())).unwrap();
                    } else {
                        fabric.sync(node, fail).unwrap();
                    }
                    old_syncs.insert(node, sync);
                }
                Step::Replay { node } => {
                    if let Some(sync) = old_syncs.get(&node).cloned() {
                        let before = fabric.free();
                        drop(fabric.apply(Command::SyncMemoryNode(fabric.nodes[node].name.clone(), sync)));
                        prop_assert_eq!(fabric.free(), before, "a repeated sync freed memory");
                    }
                }
                Step::Restart { node, keep_content } => {
                    let key = liveness::NodeKey::Memory(fabric.nodes[node].name.clone());
                    let registration = fabric.nodes[node].registration;
                    fabric.apply(Command::HungUp(key, registration)).unwrap();
                    fabric.nodes[node].instance_id += 1;
                    fabric.nodes[node].incarnation += u64::from(!keep_content);
                    fabric.register(node).unwrap();
                }
                Step::Silence(ms) => {
                    fabric.now_ms += ms;
                    fabric.apply(Command::Tick).unwrap();
                }
                Step::RestartManager => fabric.restart_manager(),
            }
            fabric.manager.state().verify().unwrap();
            for node in &fabric.nodes {
                let record = &fabric.manager.state().memory_nodes[&node.name];
                let derived = fabric.manager.state().free_extents(record).unwrap();
                prop_assert_eq!(&derived, &fabric.manager.free[&node.name], "free extents were lost or invented");
                let held: u64 = fabric.manager.state().legs_on(&node.name).map(|(_, leg)| leg.extents.len()).sum();
                prop_assert_eq!(held + derived.count(), node.extents);
                // What the manager believes to be served is served, and what it believes free is not.
                prop_assert!(derived.extents().iter().all(|extent| !node.mapped.contains_key(&extent)));
                for (region, leg) in fabric.manager.state().legs_on(&node.name) {
                    if leg.state == LegState::Mapped {
                        let first = leg.extents.iter().next().and_then(|extent| node.mapped.get(&extent));
                        prop_assert_eq!(first, Some(&(region.owner, leg.cmem_base)));
                    }
                }
            }
        }
        let regions: Vec<Name> = fabric.manager.state().regions.keys().cloned().collect();
        fabric.settle();
        for region in regions {
            drop(fabric.destroy(region.as_str()));
        }
        fabric.settle();
        prop_assert!(fabric.manager.state().regions.is_empty());
        prop_assert_eq!(fabric.free(), 6 + 9 + 12);
        prop_assert!(fabric.nodes.iter().all(|node| node.mapped.is_empty()));
    }
}
