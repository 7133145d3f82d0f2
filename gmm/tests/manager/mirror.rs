//! Mirrored regions over the REST interface of a real process: creation, the owner's requests, and a changed protection.

use crate::common::patient::{PatientAgent, PatientNode};
use crate::common::{EXTENT, Served, cn, compute_node, eventually, memory_node, name};
use cxloe_fabric::api::{CreateRegion, ErrorCode, LegsFilled, LegsStale, ProtectRegion};
use cxloe_fabric::model::{LegState, Protection, RegionState};

const LONG_MS: u64 = 20_000;

#[tokio::test]
async fn the_owner_declares_a_leg_stale_and_fills_it() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let client = served.client();
    let _nodes = [
        PatientNode::start(client.clone(), memory_node("mn0", 0, 16)).await,
        PatientNode::start(client.clone(), memory_node("mn1", 1, 16)).await,
    ];
    let registration = client.register_compute_node(&compute_node("cn0", 1)).await.unwrap().registration;
    let create = CreateRegion::new(name("r"), 4 * EXTENT, cn(1));
    let create = CreateRegion { protect: Protection::Mirror, ..create };
    let region = client.create_region(&create).await.unwrap();
    assert_eq!((region.state, region.legs.len(), region.epoch), (RegionState::Active, 2, 0));
    let leg = region.legs.iter().find(|leg| leg.copy == 1).unwrap().clone();
    let mac = leg.mac().unwrap();

    let stale = LegsStale { registration, mac, epoch: region.epoch };
    let other = LegsStale { registration: registration + 100, ..stale };
    assert_eq!(
        client.legs_stale(&name("r"), &other).await.unwrap_err().code(),
        Some(ErrorCode::NotRegistered)
    );
    let exposed = client.legs_stale(&name("r"), &stale).await.unwrap();
    assert_eq!((exposed.state, exposed.epoch), (RegionState::Exposed, 1));
    assert_eq!(client.legs_stale(&name("r"), &stale).await.unwrap(), exposed, "a repetition");
    let last = region.legs.iter().find(|leg| leg.copy == 0).unwrap().mac().unwrap();
    let only = LegsStale { registration, mac: last, epoch: 1 };
    assert_eq!(client.legs_stale(&name("r"), &only).await.unwrap_err().code(), Some(ErrorCode::OnlyCopy));

    let filled = LegsFilled { registration, mac, cmem_base: leg.cmem_base, epoch: 0 };
    assert_eq!(
        client.legs_filled(&name("r"), &filled).await.unwrap_err().code(),
        Some(ErrorCode::StaleEpoch)
    );
    let active = client.legs_filled(&name("r"), &LegsFilled { epoch: 1, ..filled }).await.unwrap();
    assert_eq!((active.state, active.epoch), (RegionState::Active, 2));
}

#[tokio::test]
async fn a_region_gets_a_copy_and_a_drained_node_is_emptied() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &["--rebuild-after", "1h"]);
    let client = served.client();
    let _nodes = [
        PatientNode::start(client.clone(), memory_node("mn0", 0, 16)).await,
        PatientNode::start(client.clone(), memory_node("mn1", 1, 16)).await,
    ];
    let _agent = PatientAgent::start(client.clone(), compute_node("cn0", 1)).await;
    let registration = client.compute_nodes().await.unwrap()[0].registration;
    let create = CreateRegion { on: vec![name("mn0")], ..CreateRegion::new(name("r"), 4 * EXTENT, cn(1)) };
    client.create_region(&create).await.unwrap();
    let protect = ProtectRegion { protect: Protection::Mirror, on: Vec::new(), wait_ms: 0 };
    client.protect_region(&name("r"), &protect).await.unwrap();
    let stale = eventually("the second copy is mapped", || async {
        let region = client.region(&name("r")).await.unwrap();
        region.legs.iter().find(|leg| leg.state == LegState::Stale).cloned().map(|leg| (leg, region.epoch))
    })
    .await;
    let filled = |(leg, epoch): (cxloe_fabric::model::Leg, u64)| LegsFilled {
        registration,
        mac: leg.mac().unwrap(),
        cmem_base: leg.cmem_base,
        epoch,
    };
    let active = client.legs_filled(&name("r"), &filled(stale)).await.unwrap();
    assert_eq!((active.state, active.protect), (RegionState::Active, Protection::Mirror));
    let none = ProtectRegion { protect: Protection::None, on: Vec::new(), wait_ms: LONG_MS };
    let plain = client.protect_region(&name("r"), &none).await.unwrap();
    assert_eq!((plain.state, plain.protect), (RegionState::Active, Protection::None));

    client.drain_memory_node(&name("mn0"), true).await.unwrap();
    let moving = eventually("the part on mn0 has a second leg", || async {
        let region = client.region(&name("r")).await.unwrap();
        region.legs.iter().find(|leg| leg.state == LegState::Stale).cloned().map(|leg| (leg, region.epoch))
    })
    .await;
    client.legs_filled(&name("r"), &filled(moving)).await.unwrap();
    eventually("mn0 is empty", || async {
        let region = client.region(&name("r")).await.unwrap();
        (!region.lies_on(&name("mn0"))).then_some(())
    })
    .await;
}
