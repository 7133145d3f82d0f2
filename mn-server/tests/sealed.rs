//! Sealed mappings and shares: access of the owner, a reader and a stranger, and the end of a share. Commands
//! are carried out as in the node, and addresses translated as by a worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use cxloe_fabric::model::{FormerOwner, HandOver, Mapping, Name, NodeAction, NodeCommand, Share, Watermark};
use cxloe_mn::control::carry_out;
use cxloe_mn::pool::{Host, MpAddr, Pool, PoolOptions, PoolSpec};
use cxloe_mn_core::mappings::Mappings;
use cxloe_mn_core::translation::{Tlb, Unmapped, WorkerGeneration};
use cxloe_wire::frame::Mac;

const EXTENT: u64 = 64 << 10;
const OWNER: u64 = 0x0200_0000_0001;
const READER: u64 = 0x0200_0000_0002;
const STRANGER: u64 = 0x0200_0000_0003;
static RUN: AtomicBool = AtomicBool::new(false);

struct Node {
    mappings: Mappings,
    worker: WorkerGeneration,
    tlb: Tlb,
    seq: u64,
}

impl Node {
    fn open(spec: PoolSpec) -> Node {
        let options = PoolOptions {
            spec,
            bytes: Some(8 * EXTENT),
            extent_bytes: Some(EXTENT),
            prefault: Some(false),
            ..PoolOptions::default()
        };
        let pool: Pool = cxloe_mn::pool::open(&options, &Host::default(), None, &|_, _| {}).unwrap();
        let mappings = Mappings::open(Arc::new(pool), Watermark::default()).0;
        let worker = mappings.table().generation().worker();
        Node { mappings, worker, tlb: Tlb::new(16), seq: 0 }
    }

    fn order(&mut self, action: NodeAction) -> Option<String> {
        self.seq += 1;
        let command = NodeCommand { seq: self.seq, term: 1, revision: self.seq, action };
        if let Some(job) = self.mappings.start(&command).unwrap() {
            let table = self.mappings.table().clone();
            self.pass();
            let outcome = carry_out(&job, &table, &RUN, &AtomicU64::new(0), || ());
            self.mappings.finish(job, outcome);
        }
        self.mappings.results().last().unwrap().error.clone()
    }

    fn pass(&mut self) {
        let Node { mappings, worker, tlb, .. } = self;
        worker.pass(|| tlb.purge(mappings.table()));
    }

    fn read(&mut self, cn: u64, extent: u64) -> Result<MpAddr, Unmapped> {
        self.tlb.translate(self.mappings.table(), cn, extent * EXTENT + 64)
    }

    fn write(&mut self, cn: u64, extent: u64) -> Result<MpAddr, Unmapped> {
        self.tlb.translate_write(self.mappings.table(), cn, extent * EXTENT + 64)
    }
}

fn mapping(base_extent: u64, sealed: bool) -> Mapping {
    Mapping {
        cn: Mac::from_u64(OWNER).try_into().unwrap(),
        region: Name::new("r").unwrap(),
        cmem_base: base_extent * EXTENT,
        extent_bytes: EXTENT,
        extents: [5, 2].into_iter().collect(),
        sealed,
        cn_key: None,
    }
}

fn share(owner_base: u64, reader: u64, reader_base: u64) -> Share {
    let reader = Mac::from_u64(reader).try_into().unwrap();
    Share { mapping: mapping(owner_base, true), reader, reader_base: reader_base * EXTENT }
}

/// Makes a node on which two extents of the owner's CMem, from extent 9 on, are mapped to the pool's extents 5 and 2
/// and sealed.
fn sealed(spec: PoolSpec) -> Node {
    let mut node = Node::open(spec);
    assert_eq!(node.order(NodeAction::MapCmem(mapping(4, false))), None);
    assert!(node.write(OWNER, 4).is_ok());
    let cn = Mac::from_u64(OWNER).try_into().unwrap();
    let former = FormerOwner { cn, cmem_base: 4 * EXTENT };
    let incarnation = node.mappings.table().pool().incarnation();
    let hand_over = HandOver { mapping: mapping(9, true), former, incarnation };
    assert_eq!(node.order(NodeAction::HandOver(hand_over)), None);
    node
}

fn at(extent: u64) -> Result<MpAddr, Unmapped> {
    Ok(MpAddr(extent * EXTENT + 64))
}

#[test]
fn a_sealed_mapping_is_read_and_never_written() {
    let mut node = sealed(PoolSpec::Anon);
    for _ in 0..2 {
        assert_eq!((node.read(OWNER, 9), node.read(OWNER, 10)), (at(5), at(2)));
        assert_eq!(
            (node.write(OWNER, 9), node.write(OWNER, 10)),
            (Err(Unmapped::Sealed), Err(Unmapped::Sealed))
        );
    }
    assert_eq!(node.write(OWNER, 4), Err(Unmapped::Nxm), "where it could be written before");
}

#[test]
fn a_reader_has_its_range_and_no_other() {
    let mut node = sealed(PoolSpec::Anon);
    assert_eq!(node.read(READER, 20), Err(Unmapped::Denied));
    assert_eq!(node.order(NodeAction::Share(share(9, READER, 20))), None);
    for _ in 0..2 {
        assert_eq!((node.read(READER, 20), node.read(READER, 21)), (at(5), at(2)));
        assert_eq!(node.write(READER, 21), Err(Unmapped::Sealed));
    }
    assert_eq!((node.read(READER, 19), node.read(READER, 22)), (Err(Unmapped::Nxm), Err(Unmapped::Nxm)));
    assert_eq!(node.read(READER, 9), Err(Unmapped::Nxm), "the owner's address is the owner's");
    assert_eq!(node.read(STRANGER, 20), Err(Unmapped::Denied));

    // When the command has a result, no worker translates addresses for the reader any more.
    assert_eq!(node.order(NodeAction::Unshare(share(9, READER, 20))), None);
    assert_eq!((node.read(READER, 20), node.read(OWNER, 9)), (Err(Unmapped::Denied), at(5)));
    assert_eq!(node.order(NodeAction::Unshare(share(9, READER, 20))), None, "a repetition");
}

#[test]
fn what_is_not_sealed_is_not_shared() {
    let mut node = Node::open(PoolSpec::Anon);
    assert_eq!(node.order(NodeAction::MapCmem(mapping(9, false))), None);
    let error = node.order(NodeAction::Share(share(9, READER, 20))).unwrap();
    assert!(error.contains("not sealed"), "{error}");
    // Shares from an earlier process give no access either, because the mapping is not sealed.
    node.mappings.resume_shares(vec![share(9, READER, 20)]);
    node.pass();
    assert_eq!((node.read(READER, 20), node.write(READER, 20)), (Err(Unmapped::Nxm), Err(Unmapped::Nxm)));
    assert_eq!(node.write(OWNER, 9), at(5));
}

#[test]
fn shares_end_with_the_owners_mapping() {
    let mut node = sealed(PoolSpec::Anon);
    assert_eq!(node.order(NodeAction::Share(share(9, READER, 20))), None);
    assert_eq!(node.read(READER, 20), at(5));
    assert_eq!(node.order(NodeAction::UnmapCmem(mapping(9, true))), None);
    assert_eq!((node.read(READER, 20), node.mappings.shares()), (Err(Unmapped::Denied), &[][..]));
}

#[test]
fn seals_and_shares_outlive_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let spec = PoolSpec::File(dir.path().join("pool"));
    let mut node = sealed(spec.clone());
    assert_eq!(node.order(NodeAction::Share(share(9, READER, 20))), None);
    let shares = node.mappings.shares().to_vec();
    drop(node);
    let mut node = Node::open(spec);
    node.mappings.resume_shares(shares);
    node.pass();
    assert_eq!((node.read(READER, 21), node.read(OWNER, 10)), (at(2), at(2)));
    assert_eq!(
        (node.write(READER, 21), node.write(OWNER, 10)),
        (Err(Unmapped::Sealed), Err(Unmapped::Sealed))
    );
}
