//! Tests of attachments: addresses, growth, moves, losses, draining, reset, keys, and the state file.

use cxloe_fabric::model::{Extents, Leg, Protection, Release, Unmapped};

use super::view::{AttachedRegion, Attaching};
use super::*;

const CREATED: u64 = 1_700_000_000_000;
const MIB: u64 = 1 << 20;

/// Appends a decoder to a region, with one leg on each of `ways` memory nodes.
fn add_decoder(region: &mut Region, size: u64, ways: u32, committed: bool) {
    let decoder = region.decoders.len() as u32;
    let (offset, ways) = (region.bytes(), Ways::try_from(ways).unwrap());
    let granularity = Granularity::try_from(1024).unwrap();
    region.decoders.push(HdmDecoder { offset, size, ways, granularity, committed });
    for position in 0..ways.count() {
        region.legs.push(Leg {
            memory_node: Name::new(format!("mn{position}")).unwrap(),
            macs: vec![format!("02:00:00:00:01:{position:02x}").parse().unwrap()],
            udp: None,
            mn_key: None,
            decoder,
            position,
            copy: 0,
            cmem_base: offset,
            bytes: size / u64::from(ways.count()),
            extent_bytes: 2 * MIB,
            extents: Extents::default(),
            incarnation: Some(7),
            state: if committed { LegState::Mapped } else { LegState::Mapping },
            moves_to: None,
            former: None,
            lent: None,
            succeeds: None,
        });
    }
    if committed {
        region.size += size;
    }
}

pub(crate) fn spread(name: &str, size: u64, ways: u32) -> Region {
    let mut region = Region {
        name: Name::new(name).unwrap(),
        owner: "02:00:00:00:00:01".parse().unwrap(),
        size: 0,
        ways: Ways::try_from(ways).unwrap(),
        granularity: Granularity::try_from(1024).unwrap(),
        state: RegionState::Active,
        decoders: Vec::new(),
        legs: Vec::new(),
        unmapped: Unmapped::Error,
        release: None,
        failure: None,
        uid: None,
        protect: Protection::None,
        sealed: false,
        readers: Vec::new(),
        labels: Default::default(),
        origin: None,
        epoch: 0,
        created_ms: CREATED,
    };
    add_decoder(&mut region, size, ways, true);
    region
}

pub(super) fn region(name: &str, size: u64, state: RegionState) -> Region {
    Region { state, ..spread(name, size, 1) }
}

/// `region` with another `size` bytes appended.
pub(crate) fn grown(region: &Region, size: u64, committed: bool) -> Region {
    let mut grown = region.clone();
    add_decoder(&mut grown, size, region.ways.count(), committed);
    grown
}

fn releasing(region: &Region, option: UnbindOption) -> Region {
    let release = Some(Release { option, destroy: false, done: false, to: None, seal: false, copy: false });
    Region { state: RegionState::Releasing, release, ..region.clone() }
}

fn hpas(changes: &[AttachmentChange]) -> Vec<u64> {
    let hpa = |change: &AttachmentChange| match change {
        AttachmentChange::Attach(a)
        | AttachmentChange::Legs(a)
        | AttachmentChange::RestoredLegs(a)
        | AttachmentChange::Move(a)
        | AttachmentChange::Drop(a) => Some(a.hpa),
        AttachmentChange::Drain { attachment, .. } | AttachmentChange::Extend { attachment, .. } => {
            Some(attachment.hpa)
        }
        AttachmentChange::Hold(_) | AttachmentChange::Keys(_) => None,
    };
    changes.iter().filter_map(hpa).collect()
}

fn ticket(changes: &[AttachmentChange]) -> u64 {
    match changes {
        [AttachmentChange::Drain { ticket, .. }] => *ticket,
        other => panic!("another change: {other:?}"),
    }
}

#[test]
fn regions_get_windows_one_after_the_other_and_keep_them() {
    let mut table = Attachments::default();
    let a = region("a", 4 * MIB, RegionState::Active);
    let b = region("b", 5 << 30, RegionState::Degraded);
    let both = [a, b.clone()];
    assert_eq!(hpas(&table.follow(&both, false)), [HPA_FIRST, HPA_FIRST + WINDOW_MIN]);
    assert_eq!(table.follow(&both, false), []);
    assert_eq!(table.list().iter().map(|r| r.window).collect::<Vec<_>>(), [16 << 30, 32 << 30]);
    // A region that is removed and returns gets another address; the other region keeps its address.
    let gone = table.follow(std::slice::from_ref(&b), false);
    assert!(matches!(&gone[..], [AttachmentChange::Drop(a)] if a.hpa == HPA_FIRST));
    assert_eq!(hpas(&table.follow(&both, false)), [HPA_FIRST + WINDOW_MIN + (32 << 30)]);
    assert_eq!(table.list().iter().map(|r| r.region.as_str()).collect::<Vec<_>>(), ["b", "a"]);
}

#[test]
fn what_is_not_ready_is_not_attached() {
    let mut table = Attachments::default();
    for state in [RegionState::Creating, RegionState::Draining, RegionState::Disabled] {
        assert_eq!(table.follow(&[region("a", 2 * MIB, state)], false), [], "{state}");
    }
    assert_eq!(table.list(), [], "no address is given to what cannot be used");
    assert_eq!(table.follow(&[region("a", 2 * MIB, RegionState::Active)], false).len(), 1);
    let draining = table.follow(&[region("a", 2 * MIB, RegionState::Draining)], false);
    assert!(matches!(&draining[..], [AttachmentChange::Drop(_)]));
}

#[test]
fn another_state_is_shown_but_moves_nothing() {
    let mut table = Attachments::default();
    table.follow(&[region("a", 2 * MIB, RegionState::Active)], false);
    assert_eq!(table.follow(&[region("a", 2 * MIB, RegionState::Degraded)], false), []);
    assert_eq!(table.list()[0].state, "degraded");
}

#[test]
fn growth_adds_and_touches_nothing_else() {
    let mut table = Attachments::default();
    let small = spread("a", 8 * MIB, 4);
    table.follow(std::slice::from_ref(&small), false);
    assert_eq!(table.follow(&[grown(&small, 16 * MIB, false)], false), [], "not before it is mapped");
    let changes = table.follow(&[grown(&small, 16 * MIB, true)], false);
    let [AttachmentChange::Extend { attachment, from }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((*from, attachment.hpa, attachment.reach()), (8 * MIB, HPA_FIRST, 24 * MIB));
    assert_eq!(table.follow(&[grown(&small, 16 * MIB, true)], false), []);
    let listed = &table.list()[0];
    assert_eq!((listed.size, listed.beyond_window, listed.decoders.len()), (24 * MIB, 0, 2));
    assert_eq!(
        (listed.decoders[1].hpa, listed.memory_nodes[5].offset),
        (HPA_FIRST + 8 * MIB, 8 * MIB + 1024)
    );
}

#[test]
fn growth_beyond_the_window_is_named_and_the_rest_usable() {
    let mut table = Attachments::default();
    let small = spread("a", 6 * MIB, 3);
    table.follow(std::slice::from_ref(&small), false);
    let large = grown(&small, 18 << 30, true);
    let changes = table.follow(std::slice::from_ref(&large), false);
    let [AttachmentChange::Extend { attachment, .. }] = &changes[..] else { panic!("{changes:?}") };
    let (reach, beyond) = (attachment.reach(), attachment.beyond());
    assert_eq!(beyond, large.size - reach, "nothing is mapped that no memory node has");
    assert!(
        reach <= WINDOW_MIN && reach > WINDOW_MIN - 3 * 4096 && reach.is_multiple_of(3 * 4096),
        "{reach:#x}"
    );
    assert_eq!((table.list()[0].beyond_window, table.list()[0].addressable()), (beyond, reach));
}

#[test]
fn a_move_keeps_content_a_loss_does_not() {
    let mut table = Attachments::default();
    let here = spread("a", 8 * MIB, 2);
    table.follow(std::slice::from_ref(&here), false);
    let mut moved = here.clone();
    moved.legs[0].macs = vec!["02:00:00:00:00:0a".parse().unwrap()];
    let changes = table.follow(std::slice::from_ref(&moved), false);
    assert!(
        matches!(&changes[..], [AttachmentChange::Move(old), AttachmentChange::Attach(new)] if old.region == here && new.region == moved)
    );
    assert_eq!(hpas(&changes), [HPA_FIRST, HPA_FIRST]);

    // The part on the second memory node still exists, so dirty lines are written back.
    let mut lost = Region { state: RegionState::Lost, ..moved.clone() };
    lost.legs[0].state = LegState::Lost;
    let changes = table.follow(std::slice::from_ref(&lost), false);
    assert!(matches!(&changes[..], [AttachmentChange::Move(_), AttachmentChange::Attach(_)]), "{changes:?}");
    lost.legs[1].state = LegState::Lost;
    let changes = table.follow(std::slice::from_ref(&lost), false);
    assert!(matches!(&changes[..], [AttachmentChange::Drop(_), AttachmentChange::Attach(_)]), "{changes:?}");

    // During a reset by the manager, the region stays lost; when it is active again, it is empty.
    assert_eq!(table.follow(&[Region { state: RegionState::Creating, ..lost }], false), []);
    let mut fresh = moved;
    fresh.legs.iter_mut().for_each(|leg| leg.incarnation = Some(8));
    let changes = table.follow(&[fresh], false);
    assert!(matches!(&changes[..], [AttachmentChange::Drop(_), AttachmentChange::Attach(_)]), "{changes:?}");
    assert_eq!(hpas(&changes), [HPA_FIRST, HPA_FIRST]);
}

#[test]
fn what_waits_in_the_cache_goes_on_to_a_leg_that_has_taken_the_place_of_a_known_one() {
    let here = spread("a", 8 * MIB, 2);
    let mut copied = Region { epoch: 3, ..here.clone() };
    copied.legs[1].macs = vec!["02:00:00:00:00:0a".parse().unwrap()];
    (copied.legs[1].cmem_base, copied.legs[1].incarnation) = (64 * MIB, Some(9));
    let former = FormerLeg { cmem_base: here.legs[1].cmem_base, incarnation: 7 };
    copied.legs[1].succeeds = Some(former);
    let changes = |now: &Region| {
        let mut table = Attachments::default();
        table.follow(std::slice::from_ref(&here), false);
        table.follow(std::slice::from_ref(now), false)
    };
    assert!(matches!(&changes(&copied)[..], [AttachmentChange::Legs(new)] if new.region == copied));
    // It is mirrored, and the former leg is listed again, at another address.
    let mut mirrored = copied.clone();
    mirrored.legs.push(Leg { copy: 1, cmem_base: 128 * MIB, ..here.legs[1].clone() });
    assert!(matches!(&changes(&mirrored)[..], [AttachmentChange::Legs(_)]));

    // The leg that it has taken the place of is not the one known here: the content may be other.
    for other in [FormerLeg { incarnation: 6, ..former }, FormerLeg { cmem_base: 32 * MIB, ..former }] {
        let mut unknown = copied.clone();
        unknown.legs[1].succeeds = Some(other);
        let changes = changes(&unknown);
        assert!(!matches!(&changes[..], [AttachmentChange::Legs(_)]), "{changes:?}");
    }
    // A change that concerns no leg does not interrupt operations either.
    let mut table = Attachments::default();
    table.follow(std::slice::from_ref(&copied), false);
    assert_eq!(table.follow(&[Region { epoch: 4, ..copied }], false), []);
}

#[test]
fn the_same_name_created_anew_is_another_region() {
    let mut table = Attachments::default();
    table.follow(&[region("a", 2 * MIB, RegionState::Active)], false);
    let again = Region { created_ms: CREATED + 1, ..region("a", 2 * MIB, RegionState::Active) };
    let changes = table.follow(&[again], false);
    assert!(matches!(&changes[..], [AttachmentChange::Drop(_), AttachmentChange::Attach(_)]));
    assert_eq!(hpas(&changes), [HPA_FIRST, HPA_FIRST + WINDOW_MIN]);
}

#[test]
fn a_region_is_connecting_until_the_sessions_of_all_its_memory_nodes_are_open() {
    let mut table = Attachments::default();
    table.follow(&[region("a", 2 * MIB, RegionState::Active)], false);
    let mut shown = table.list().remove(0);
    let mac = shown.memory_nodes[0].mac.clone();
    shown.show_sessions(|peer| peer == mac);
    assert_eq!(shown.attachment, Attaching::Attached);
    let device = AttachedRegion { served_by: "cxl:dax0.0".into(), ..shown.clone() };
    for (of, becomes) in [(&shown, Attaching::Connecting), (&device, Attaching::Attached)] {
        let mut of = of.clone();
        of.show_sessions(|_| false);
        assert_eq!(of.attachment, becomes);
    }
    shown.attachment = Attaching::Draining;
    shown.show_sessions(|_| false);
    assert_eq!(shown.attachment, Attaching::Draining, "that says more");
}

#[test]
fn the_epoch_shown_never_goes_back() {
    let mut table = Attachments::default();
    for (told, shown) in [(1, 1), (3, 3), (2, 3)] {
        table.follow(&[Region { epoch: told, ..region("a", 2 * MIB, RegionState::Active) }], false);
        assert_eq!(table.list()[0].epoch, shown);
    }
    // A store that was restored from a backup has an earlier epoch, which the registration with it brings.
    let at = |epoch| [Region { epoch, ..region("a", 2 * MIB, RegionState::Active) }];
    table.follow_restored(&at(1), false);
    assert_eq!(table.list()[0].epoch, 1);
    table.follow(&at(2), false);
    assert_eq!(table.list()[0].epoch, 2);
    table.follow(&at(1), false);
    assert_eq!(table.list()[0].epoch, 2, "an answer that was overtaken");
}

#[test]
fn a_restored_store_changes_the_legs_of_a_mirrored_region() {
    let mut table = Attachments::default();
    let mut mirrored = region("a", 2 * MIB, RegionState::Active);
    let mut copy = mirrored.legs[0].clone();
    (copy.copy, copy.cmem_base) = (1, 2 * MIB);
    copy.macs = vec!["02:00:00:00:01:09".parse().unwrap()];
    mirrored.legs.push(copy);
    let (mut later, restored) = (mirrored.clone(), mirrored.clone());
    (later.epoch, later.legs[0].state) = (1, LegState::Stale);
    table.follow(std::slice::from_ref(&mirrored), false);
    table.follow(std::slice::from_ref(&later), false);
    assert_eq!(table.follow(std::slice::from_ref(&restored), false), []);
    let changes = table.follow_restored(&[restored], false);
    assert!(matches!(&changes[..], [AttachmentChange::RestoredLegs(_)]), "{changes:?}");
}

/// Tests that a leg that fails while its region is drained, or waits until no program maps it, does not hold up the
/// region's writes.
#[test]
fn a_region_that_is_drained_follows_its_legs() {
    let mut table = Attachments::default();
    let mut mirrored = region("a", 2 * MIB, RegionState::Active);
    let mut copy = mirrored.legs[0].clone();
    (copy.copy, copy.cmem_base) = (1, 2 * MIB);
    copy.macs = vec!["02:00:00:00:01:09".parse().unwrap()];
    mirrored.legs.push(copy);
    table.follow(std::slice::from_ref(&mirrored), false);
    let mut stale = releasing(&mirrored, UnbindOption::Managed);
    let first = ticket(&table.follow(std::slice::from_ref(&stale), false));
    (stale.epoch, stale.legs[1].state) = (1, LegState::Stale);
    let changes = table.follow(std::slice::from_ref(&stale), false);
    assert!(matches!(&changes[..], [AttachmentChange::Legs(now)] if now.region == stale), "{changes:?}");
    assert_eq!(table.follow(std::slice::from_ref(&stale), false), [], "once");
    // The drain is cancelled, and the region stays attached, with legs that have changed again.
    let active = Region { epoch: 2, ..mirrored.clone() };
    let changes = table.follow(std::slice::from_ref(&active), false);
    assert!(matches!(&changes[..], [AttachmentChange::Legs(_), AttachmentChange::Attach(_)]), "{changes:?}");
    assert_eq!(table.drained(first), None);
    // A leg fails at the moment in which the region is taken back.
    stale.epoch = 3;
    let changes = table.follow(std::slice::from_ref(&stale), false);
    let [AttachmentChange::Legs(_), AttachmentChange::Drain { ticket, .. }] = changes[..] else {
        panic!("{changes:?}");
    };
    // What is detached has no legs to follow.
    assert!(table.drained(ticket).is_some());
    let disabled = Region { epoch: 4, state: RegionState::Disabled, ..mirrored };
    assert_eq!(table.follow(&[disabled], false), []);
}

#[test]
fn what_the_manager_wants_back_is_acknowledged_once_it_is_let_go_of() {
    let mut table = Attachments::default();
    let active = region("a", 2 * MIB, RegionState::Active);
    let asked = releasing(&active, UnbindOption::Managed);
    table.follow(std::slice::from_ref(&active), false);
    let first = ticket(&table.follow(std::slice::from_ref(&asked), false));
    assert_eq!(table.follow(std::slice::from_ref(&asked), false), [], "asked once");
    assert!(table.released().is_empty() && table.is_draining());
    assert_eq!(table.list()[0].attachment, Attaching::Draining);

    assert_eq!(table.drained(first + 1), None, "somebody else's");
    assert_eq!(table.drained(first), Some(active.name.clone()));
    let expected = [ReleasedRegion { name: active.name.clone(), created_ms: CREATED }];
    assert_eq!((table.released(), table.is_draining()), (expected.to_vec(), false));
    assert_eq!(table.follow(std::slice::from_ref(&asked), false), []);
    assert_eq!(table.released(), expected, "until the manager says otherwise");

    let disabled = Region { state: RegionState::Disabled, ..asked.clone() };
    assert_eq!(table.follow(&[disabled], false), []);
    assert!(table.released().is_empty());
    assert_eq!(table.list()[0].attachment, Attaching::Detached);
    // When the region is enabled again, it is attached at the same address.
    assert_eq!(hpas(&table.follow(std::slice::from_ref(&active), false)), [HPA_FIRST]);
    assert_eq!(table.list()[0].attachment, Attaching::Attached);

    // The manager reclaims the region, cancels that, and reclaims it again: the end of the first drain does not count
    // for the second.
    let first = ticket(&table.follow(std::slice::from_ref(&asked), false));
    assert!(matches!(&table.follow(&[active], false)[..], [AttachmentChange::Attach(_)]));
    let second = ticket(&table.follow(&[asked], false));
    assert_eq!(table.drained(first), None);
    assert!(table.released().is_empty());
    assert!(table.drained(second).is_some());
    assert_eq!(table.released(), expected);
}

#[test]
fn who_only_waits_is_not_answered() {
    let mut table = Attachments::default();
    let active = region("a", 2 * MIB, RegionState::Active);
    table.follow(std::slice::from_ref(&active), false);
    assert_eq!(table.follow(&[releasing(&active, UnbindOption::WaitLinkDown)], false), []);
    assert_eq!((table.list()[0].attachment, table.released().len()), (Attaching::Attached, 0));
}

#[test]
fn an_agent_started_during_a_withdrawal_has_nothing_to_release() {
    // The region is not in the node's table, so nothing has to be written back.
    let asked = releasing(&region("a", 2 * MIB, RegionState::Active), UnbindOption::Managed);
    let mut table = Attachments::default();
    assert_eq!(table.follow(std::slice::from_ref(&asked), false), []);
    assert_eq!(table.released().len(), 1);
    // The region is in the table but not attached: operations on it are refused with the reason, and nothing is written
    // back.
    let mut known = Attachments::default();
    known.follow(&[region("a", 2 * MIB, RegionState::Active)], false);
    known.follow(std::slice::from_ref(&asked), false);
    let mut again: Attachments = serde_json::from_str(&serde_json::to_string(&known).unwrap()).unwrap();
    let ticket = ticket(&again.begin());
    again.follow(&[asked], false);
    again.drained(ticket);
    assert_eq!(again.released().len(), 1);
}

#[test]
fn a_held_node_attaches_nothing_and_everything_when_it_is_released() {
    let mut table = Attachments::default();
    let (a, b) = (region("a", 2 * MIB, RegionState::Active), region("b", 2 * MIB, RegionState::Active));
    table.follow(std::slice::from_ref(&a), false);
    let changes = table.follow(&[a.clone(), b.clone()], true);
    let [AttachmentChange::Hold(true), AttachmentChange::Drain { attachment, ticket }] = &changes[..] else {
        panic!("{changes:?}")
    };
    assert_eq!(attachment.hpa, HPA_FIRST);
    table.drained(*ticket);
    assert_eq!(table.follow(&[a.clone(), b.clone()], true), []);
    assert_eq!(table.list().iter().map(|r| r.attachment).collect::<Vec<_>>(), [Attaching::InReset; 2]);
    assert!(table.released().is_empty(), "nobody asked for them");

    // A suspended node is still suspended after a restart.
    let mut again: Attachments = serde_json::from_str(&serde_json::to_string(&table).unwrap()).unwrap();
    assert_eq!(again.begin(), [AttachmentChange::Hold(true)]);
    let changes = again.follow(&[a, b], false);
    assert_eq!(changes[0], AttachmentChange::Hold(false));
    assert_eq!(hpas(&changes), [HPA_FIRST, HPA_FIRST + WINDOW_MIN]);
}

#[test]
fn addresses_run_out_without_harm() {
    let mut table = Attachments::almost_full(HPA_ALIGN);
    assert_eq!(table.follow(&[region("big", 2 * HPA_ALIGN, RegionState::Active)], false), []);
    assert_eq!(table.follow(&[region("huge", u64::MAX / 4096 * 4096, RegionState::Active)], false), []);
    let fits = table.follow(&[region("fits", HPA_ALIGN, RegionState::Active)], false);
    assert!(matches!(&fits[..], [AttachmentChange::Attach(a)] if a.window == HPA_ALIGN), "{fits:?}");
    assert_eq!(table.follow(&[region("late", 2 * MIB, RegionState::Active)], false).len(), 1, "fits is gone");
}

#[test]
fn it_reads_back_and_attaches_everything_again() {
    let mut table = Attachments::default();
    let attached = table.follow(&[spread("a", 8 * MIB, 4)], false);
    let json = serde_json::to_string(&table).unwrap();
    let mut read: Attachments = serde_json::from_str(&json).unwrap();
    assert_eq!(read.begin(), attached);
    assert_eq!(serde_json::to_string(&read).unwrap(), json);
}

#[test]
fn what_was_seen_is_kept_with_the_regions_and_counts_while_there_are_some() {
    let seen = Watermark { term: 3, revision: 40, run: 9 };
    let mut attachments = Attachments::default();
    attachments.set_manager_watermark(seen);
    assert_eq!(attachments.seen(), Watermark::default(), "who has nothing follows anybody");
    attachments.follow(&[region("a", 2 * MIB, RegionState::Active)], false);
    assert_eq!(attachments.seen(), seen);
    let held = attachments.holds();
    assert_eq!(held.len(), 1);
    assert_eq!((held[0].bytes, held[0].created_ms), (2 * MIB, Some(CREATED)));

    let kept = serde_json::to_value(&attachments).unwrap();
    let read = |kept: &serde_json::Value| serde_json::from_value::<Attachments>(kept.clone()).unwrap();
    assert_eq!((read(&kept).seen(), read(&kept).by_name), (seen, attachments.by_name.clone()));
    attachments.follow(&[], false);
    assert_eq!(attachments.seen(), Watermark::default());
}

#[test]
fn a_node_that_joined_follows_its_fabric_also_without_regions() {
    let at = |run, revision| Watermark { term: 1, revision, run };
    let mut attachments = Attachments::default();
    attachments.join(Some(at(9, 3)));
    assert_eq!(attachments.seen(), at(9, 3), "from the time it joined");
    attachments.set_manager_watermark(at(9, 40));
    let kept = serde_json::to_string(&attachments).unwrap();
    let mut anew: Attachments = serde_json::from_str(&kept).unwrap();
    anew.join(Some(at(9, 3)));
    assert_eq!(anew.seen(), at(9, 40), "and a restart takes nothing back");
    // The node joins another fabric, and has no regions of the first fabric.
    anew.join(Some(at(5, 2)));
    assert_eq!(anew.seen(), at(5, 2));
    // A node with regions of a fabric continues to follow that fabric, although it joins another.
    anew.set_manager_watermark(at(5, 8));
    anew.follow(&[region("a", 2 * MIB, RegionState::Active)], false);
    anew.join(Some(at(7, 1)));
    assert_eq!(anew.seen(), at(5, 8));
    anew.join(None);
    assert_eq!(anew.seen(), at(5, 8));
    anew.follow(&[], false);
    assert_eq!(anew.seen(), Watermark::default(), "one that has not joined follows any");
}

/// Tests that a memory node with a revoked key differs from one that never had a key: it is reported as
/// revoked, also after a restart, until it has another key.
#[test]
fn a_revoked_key_is_reported_as_revoked() {
    let key = |byte| Some(PublicKey([byte; 32]));
    let mut region = region("a", 4 * MIB, RegionState::Active);
    let mac = region.legs[0].macs[0];
    let mut tell = |table: &mut Attachments, key: Option<PublicKey>| {
        region.legs[0].mn_key = key;
        let changes = table.follow(std::slice::from_ref(&region), false);
        changes.into_iter().find_map(|change| match change {
            AttachmentChange::Keys(keys) => Some(keys),
            _ => None,
        })
    };
    let only = |key| Some(BTreeMap::from([(mac, key)]));
    let mut table = Attachments::default();
    assert_eq!(tell(&mut table, None), None, "it never had one");
    assert_eq!(tell(&mut table, key(1)), only(key(1)));
    assert_eq!(tell(&mut table, key(1)), None, "no news");
    assert_eq!(tell(&mut table, None), only(None));
    assert_eq!(tell(&mut table, None), None, "no news");

    let text = serde_json::to_string(&table).unwrap();
    let mut again: Attachments = serde_json::from_str(&text).unwrap();
    assert!(again.begin().contains(&AttachmentChange::Keys(BTreeMap::from([(mac, None)]))));
    assert_eq!(tell(&mut again, None), None);
    assert_eq!(tell(&mut again, key(2)), only(key(2)));
    assert_eq!(tell(&mut again, None), only(None));

    // The key is revoked while the agent is not running.
    let mut table = Attachments::default();
    tell(&mut table, key(1));
    let mut again: Attachments = serde_json::from_str(&serde_json::to_string(&table).unwrap()).unwrap();
    assert!(again.begin().contains(&AttachmentChange::Keys(BTreeMap::from([(mac, key(1))]))));
    assert_eq!(tell(&mut again, None), only(None));
}
