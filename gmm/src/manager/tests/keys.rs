//! Whose key is whose: the first registration says it, both ends of a mapping are told the other's, and nobody else takes
//! its place.

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
        instance_id: 1,
        seen: Watermark::default(),
    })
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
    assert_eq!((leg(&fabric), served(&fabric)), (None, (None, None)));
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
