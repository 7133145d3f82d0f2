//! Tests of regions' backings: questions and answers, devices that disappear and return, regions that stay on their
//! backing.

use super::tests::{grown, spread};
use super::view::{AttachedRegion, Attaching};
use super::*;
use crate::backing::{DevicePlacement, Preference};

const MIB: u64 = 1 << 20;

fn preferring(preference: Preference) -> Attachments {
    let mut table = Attachments::default();
    table.prefer(preference);
    table
}

/// Placement on a device whose memory is not mapped, as read from the state file: the device counts as absent.
fn served(bytes: u64) -> DevicePlacement {
    DevicePlacement {
        device: "dax0.0".into(),
        resource: 0x6_9060_0000,
        size: 250 * MIB,
        bytes,
        boot: None,
        lost: None,
        memory: None,
    }
}

fn question(table: &Attachments) -> BackingQuery {
    let questions = table.questions();
    let [question] = &questions[..] else { panic!("{questions:?}") };
    question.clone()
}

fn only(table: &Attachments) -> AttachedRegion {
    let list = table.list();
    let [region] = &list[..] else { panic!("{list:?}") };
    region.clone()
}

fn again(table: &Attachments, preference: Preference) -> Attachments {
    let mut read: Attachments = serde_json::from_str(&serde_json::to_string(table).unwrap()).unwrap();
    read.prefer(preference);
    read
}

#[test]
fn no_device_is_queried_with_backend_ethernet() {
    let mut table = preferring(Preference::Ethernet);
    let changes = table.follow(&[spread("a", 8 * MIB, 2)], false);
    assert!(matches!(&changes[..], [AttachmentChange::Attach(a)] if a.backing == Backing::Ethernet));
    assert_eq!((table.questions(), only(&table).served_by), (vec![], "ethernet".into()));
}

#[test]
fn a_region_waits_for_its_backing_and_keeps_it() {
    for preference in [Preference::Auto, Preference::Cxl] {
        let mut table = preferring(preference);
        let region = spread("a", 8 * MIB, 2);
        assert_eq!(table.follow(std::slice::from_ref(&region), false), [], "not before it is decided");
        let asked = question(&table);
        assert_eq!((asked.bytes, asked.known.is_some()), (8 * MIB, false));
        assert!(table.explain(&region.name, Some("no device".into())));
        assert!(!table.explain(&region.name, Some("no device".into())), "said already");
        let waits = only(&table);
        assert_eq!((waits.attachment, waits.served_by.as_str()), (Attaching::Waiting, "undecided"));
        assert_eq!(waits.note.as_deref(), Some("no device"));

        let changes = table.answer(&asked, Backing::Ethernet);
        assert!(matches!(&changes[..], [AttachmentChange::Attach(a)] if a.backing == Backing::Ethernet));
        assert_eq!((table.questions(), only(&table).note), (vec![], None));
        assert_eq!(table.answer(&asked, Backing::Device(served(8 * MIB))), [], "it is settled");
        // The decision also survives a restart with another preference.
        let mut next = again(&table, Preference::Cxl);
        assert!(matches!(&next.begin()[..], [AttachmentChange::Attach(a)] if a.backing == Backing::Ethernet));
        assert_eq!(next.questions(), []);
    }
}

#[test]
fn a_backing_query_is_repeated_after_restart_and_for_a_namesake() {
    let mut table = preferring(Preference::Auto);
    let region = spread("a", 8 * MIB, 2);
    table.follow(std::slice::from_ref(&region), false);
    let asked = question(&table);
    let mut next = again(&table, Preference::Auto);
    assert_eq!((next.begin(), question(&next)), (vec![], asked.clone()));
    let other = Region { created_ms: region.created_ms + 1, ..region };
    next.follow(std::slice::from_ref(&other), false);
    assert_eq!(next.answer(&asked, Backing::Device(served(8 * MIB))), [], "of a region that is gone");
    assert_eq!(question(&next).created_ms, other.created_ms);
    // The backing is still undecided when the preference changes to Ethernet.
    let mut last = again(&next, Preference::Ethernet);
    assert!(matches!(&last.begin()[..], [AttachmentChange::Attach(_)]));
}

#[test]
fn an_absent_device_is_queried_until_it_is_present() {
    let mut table = preferring(Preference::Auto);
    let region = spread("a", 8 * MIB, 2);
    table.follow(std::slice::from_ref(&region), false);
    let changes = table.answer(&question(&table), Backing::Device(served(8 * MIB)));
    assert!(
        matches!(&changes[..], [AttachmentChange::Attach(_)]),
        "so that operations on it fail with the reason"
    );
    assert_eq!(only(&table).served_by, "cxl:dax0.0");
    let asked = question(&table);
    assert_eq!(asked.known, Some(served(8 * MIB)));
    let back = DevicePlacement { device: "dax1.0".into(), ..served(8 * MIB) };
    let changes = table.answer(&asked, Backing::Device(back));
    assert!(matches!(&changes[..], [AttachmentChange::Move(_), AttachmentChange::Attach(_)]), "{changes:?}");
    assert_eq!(only(&table).served_by, "cxl:dax1.0");

    // An agent with `--backend ethernet` leaves a region on its device, does not serve it over Ethernet, and
    // gives the reason.
    let mut blind = again(&table, Preference::Ethernet);
    assert!(
        matches!(&blind.begin()[..], [AttachmentChange::Attach(a)] if matches!(a.backing, Backing::Device(_)))
    );
    assert!(only(&blind).note.unwrap().contains("--backend ethernet"));

    let lost = DevicePlacement { lost: Some("no power".into()), ..served(8 * MIB) };
    table.answer(&question(&table), Backing::Device(lost));
    assert_eq!(table.questions(), [], "nothing brings it back");
    assert!(again(&table, Preference::Auto).list()[0].note.as_ref().unwrap().contains("no power"));
}

#[test]
fn what_happens_at_memory_nodes_moves_nothing_that_a_device_serves() {
    let mut table = preferring(Preference::Auto);
    let region = spread("a", 8 * MIB, 2);
    table.follow(std::slice::from_ref(&region), false);
    table.answer(&question(&table), Backing::Device(served(8 * MIB)));
    let mut moved = region.clone();
    moved.legs[0].macs = vec!["02:00:00:00:00:0a".parse().unwrap()];
    assert_eq!(table.follow(std::slice::from_ref(&moved), false), []);
    let mut lost = Region { state: RegionState::Lost, ..moved.clone() };
    lost.legs.iter_mut().for_each(|leg| leg.state = LegState::Lost);
    assert_eq!(table.follow(std::slice::from_ref(&lost), false), []);

    // When the region grows, the new part is served over Ethernet.
    let larger = grown(&region, 4 * MIB, true);
    let mut growing = again(&table, Preference::Auto);
    growing.begin();
    growing.follow(std::slice::from_ref(&region), false);
    let changes = growing.follow(std::slice::from_ref(&larger), false);
    let [AttachmentChange::Extend { attachment, from }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(*from, 8 * MIB);
    let serves: Vec<bool> = larger.decoders.iter().map(|d| attachment.backing.serves(d)).collect();
    assert_eq!((serves, only(&growing).served_by), (vec![true, false], "cxl:dax0.0+ethernet".into()));

    // After a reset by the manager the region is empty, keeps its address, and is undecided like a new one.
    let hpa = only(&table).hpa;
    let mut fresh = Region { state: RegionState::Active, ..moved };
    fresh.legs.iter_mut().for_each(|leg| leg.incarnation = Some(8));
    let changes = table.follow(&[fresh], false);
    assert!(matches!(&changes[..], [AttachmentChange::Drop(a)] if a.hpa == hpa), "{changes:?}");
    assert_eq!((question(&table).known, only(&table).hpa), (None, hpa));
    let changes = table.answer(&question(&table), Backing::Ethernet);
    assert!(matches!(&changes[..], [AttachmentChange::Attach(a)] if a.hpa == hpa));
}

#[test]
fn a_held_node_attaches_after_its_release() {
    let mut table = preferring(Preference::Auto);
    let region = spread("a", 8 * MIB, 2);
    assert_eq!(table.follow(std::slice::from_ref(&region), true), [AttachmentChange::Hold(true)]);
    assert_eq!(table.answer(&question(&table), Backing::Device(served(8 * MIB))), []);
    let changes = table.follow(&[region], false);
    assert!(
        matches!(&changes[..], [AttachmentChange::Hold(false), AttachmentChange::Attach(_)]),
        "{changes:?}"
    );
}

#[test]
fn a_state_file_without_backings_is_of_regions_on_ethernet() {
    let mut table = preferring(Preference::Ethernet);
    table.follow(&[spread("a", 8 * MIB, 2)], false);
    let mut json = serde_json::to_value(&table).unwrap();
    json["by_name"]["a"].as_object_mut().unwrap().remove("backing").unwrap();
    let mut read: Attachments = serde_json::from_value(json).unwrap();
    read.prefer(Preference::Auto);
    assert!(matches!(&read.begin()[..], [AttachmentChange::Attach(a)] if a.backing == Backing::Ethernet));
    assert_eq!(read.questions(), []);
}
