//! Keys of nodes: the first registration sets a node's key, both ends of a mapping receive the key of the other end,
//! and no node can register under the name of another.

use super::*;
use cxloe_fabric::api::ErrorCode;
use cxloe_fabric::model::PublicKey;

const FIRST: PublicKey = PublicKey([1; 32]);
const OTHER: PublicKey = PublicKey([2; 32]);

fn register(key: Option<PublicKey>) -> Command {
    Command::RegisterComputeNode(RegisterComputeNode {
        cn_id: cn(1),
        name: name("cn1"),
        udp: None,
        key,
        new_key: false,
        instance_id: 1,
        seen: Watermark::default(),
    })
}

fn made_for_one_run(key: PublicKey) -> Command {
    match register(Some(key)) {
        Command::RegisterComputeNode(node) => {
            Command::RegisterComputeNode(RegisterComputeNode { new_key: true, ..node })
        }
        other => other,
    }
}

#[test]
fn a_key_made_for_one_run_takes_the_place_of_another_but_not_of_one_that_has_joined() {
    let mut fabric = Fabric::new(&[8]);
    fabric.apply(register(Some(FIRST))).unwrap();
    fabric.create("a", 1, cn(1)).unwrap();
    fabric.settle();
    fabric.apply(made_for_one_run(OTHER)).unwrap();
    assert_eq!(
        fabric.manager.memory_node_synced(&name("mn0")).cn_keys[0].key,
        OTHER,
        "memory nodes hear of it"
    );
    let joining = crate::manager::access::JoinedNode {
        node: Party::ComputeNode(cn(1)),
        tls: cxloe_fabric::model::Digest::of(b"tls"),
        key: Some(FIRST),
        macs: vec![cn(1).mac()],
        joined_ms: 0,
        by: "uid 0".into(),
    };
    let join = |take_over| Command::Join { node: joining.clone(), token: None, proved: None, take_over };
    let error = fabric.apply(join(false)).unwrap_err();
    assert!(error.to_string().contains("--take-over"), "it runs, with another key: {error}");
    fabric.apply(join(true)).unwrap();
    let error = fabric.apply(made_for_one_run(OTHER)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NameInUse, "{error}");
}

#[test]
fn both_ends_of_a_mapping_are_told_the_key_of_the_other_whenever_it_becomes_known() {
    let mut fabric = Fabric::new(&[8]);
    let node = name("mn0");
    fabric.apply(register(None)).unwrap();
    fabric.create("a", 1, cn(1)).unwrap();
    fabric.settle();
    let leg = |fabric: &Fabric| fabric.manager.region(&name("a")).unwrap().legs[0].mn_key;
    let served = |fabric: &Fabric| {
        let registered = fabric.manager.memory_node_registered(&node, Watermark::default()).unwrap();
        (registered.mappings[0].cn_key, registered.cn_keys.first().map(|key| key.key))
    };
    assert_eq!((leg(&fabric), served(&fabric)), (None, (None, Some(PublicKey::NOBODY))));
    fabric.apply(register(Some(FIRST))).unwrap();
    assert_eq!(served(&fabric), (Some(FIRST), Some(FIRST)));
    assert_eq!(fabric.manager.memory_node_synced(&node).cn_keys[0].key, FIRST);
    let with_key = RegisterMemoryNode { key: Some(OTHER), ..fabric.nodes[0].register() };
    fabric.apply(Command::RegisterMemoryNode(with_key)).unwrap();
    assert_eq!(leg(&fabric), Some(OTHER));
    fabric.create("b", 1, cn(1)).unwrap();
    assert_eq!(fabric.manager.region(&name("b")).unwrap().legs[0].mn_key, Some(OTHER));
}

#[test]
fn a_node_keeps_its_key_until_it_is_given_another() {
    let mut fabric = Fabric::new(&[8]);
    fabric.apply(register(Some(FIRST))).unwrap();
    let error = fabric.apply(register(Some(OTHER))).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NameInUse, "{error}");
    let key = |fabric: &Fabric| fabric.manager.state().compute_nodes[&cn(1)].key;
    fabric.apply(register(None)).expect("one that says nothing of its key keeps it");
    assert_eq!(key(&fabric), Some(FIRST));
    let party = Party::ComputeNode(cn(1));
    fabric.apply(Command::SetKey(party.clone(), Some(OTHER))).unwrap();
    assert!(fabric.apply(register(Some(FIRST))).is_err());
    fabric.apply(register(Some(OTHER))).unwrap();
    fabric.apply(Command::SetKey(party, None)).unwrap();
    fabric.apply(register(Some(FIRST))).unwrap();
    assert_eq!(key(&fabric), Some(FIRST));
    let node = |key| {
        Command::RegisterMemoryNode(RegisterMemoryNode { key: Some(key), ..fabric.nodes[0].register() })
    };
    let (first, other) = (node(FIRST), node(OTHER));
    fabric.apply(first).unwrap();
    assert_eq!(fabric.apply(other.clone()).unwrap_err().code(), ErrorCode::NameInUse);
    fabric.apply(Command::SetKey(Party::MemoryNode(name("mn0")), Some(OTHER))).unwrap();
    fabric.apply(other).unwrap();
}

/// A memory node receives the revoked keys, and so can tell a revoked key from removed memory.
#[test]
fn a_revoked_key_is_reported_while_there_is_memory() {
    let mut fabric = Fabric::new(&[8]);
    let keys = |fabric: &Fabric| -> Vec<PublicKey> {
        let synced = fabric.manager.memory_node_synced(&name("mn0"));
        synced.cn_keys.iter().map(|of| of.key).collect()
    };
    let node = Party::ComputeNode(cn(1));
    let joined = crate::manager::access::JoinedNode {
        node: node.clone(),
        tls: cxloe_fabric::model::Digest::of(b"tls"),
        key: Some(FIRST),
        macs: vec![cn(1).mac()],
        joined_ms: 0,
        by: "uid 0".into(),
    };
    fabric.apply(Command::Join { node: joined, token: None, proved: None, take_over: false }).unwrap();
    fabric.apply(register(Some(FIRST))).unwrap();
    fabric.create("a", 1, cn(1)).unwrap();
    fabric.settle();
    assert_eq!(keys(&fabric), [FIRST]);
    fabric.apply(Command::Revoke(node)).unwrap();
    assert_eq!(keys(&fabric), [PublicKey::NOBODY]);
    fabric.destroy("a").unwrap();
    fabric.settle();
    assert_eq!(keys(&fabric), []);
}

#[test]
fn a_running_node_loses_its_place_only_by_order() {
    let mut fabric = Fabric::new(&[8]);
    let join = |tls: &[u8], take_over| Command::Join {
        node: crate::manager::access::JoinedNode {
            node: Party::ComputeNode(cn(1)),
            tls: cxloe_fabric::model::Digest::of(tls),
            key: Some(FIRST),
            macs: vec![cn(1).mac()],
            joined_ms: 0,
            by: "uid 0".into(),
        },
        token: None,
        proved: None,
        take_over,
    };
    fabric.apply(join(b"first", false)).unwrap();
    // A node that has joined but not registered is not running, so another one may replace it.
    fabric.apply(join(b"second", false)).unwrap();
    fabric.apply(register(Some(FIRST))).unwrap();
    fabric.apply(join(b"second", false)).unwrap();
    let error = fabric.apply(join(b"third", false)).unwrap_err();
    assert!(error.to_string().contains("--take-over"), "{error}");
    fabric.apply(join(b"third", true)).unwrap();
}
