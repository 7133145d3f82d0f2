//! Labels of regions: set at the creation or later, limited in number, and not part of the content.

use std::collections::BTreeMap;

use super::*;
use cxloe_fabric::api::{LabelRegion, RegionsQuery};
use cxloe_fabric::model::{LABELS_MAX, Labels};

fn labels(of: &[(&str, &str)]) -> Labels {
    let of: BTreeMap<String, String> =
        of.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    of.try_into().unwrap()
}

impl Fabric {
    fn label(&mut self, set: Labels, remove: &[&str]) -> Result<(), ManagerError> {
        let remove = remove.iter().map(|key| key.to_string()).collect();
        self.apply(Command::LabelRegion(name("r"), LabelRegion { set, remove })).map(drop)
    }

    fn found(&self, query: &RegionsQuery) -> u64 {
        self.manager.regions_page(query).matching
    }
}

#[test]
fn a_region_is_found_by_its_labels_until_they_are_removed() {
    let mut fabric = Fabric::new(&[8]);
    fabric.register_cn(1);
    let create = CreateRegion {
        labels: labels(&[("use", "training")]),
        ..CreateRegion::new(name("r"), EXTENT, cn(1))
    };
    fabric.apply(Command::CreateRegion(create)).unwrap();
    let by_label =
        |text: &str| RegionsQuery { labels: Some(text.parse().unwrap()), ..RegionsQuery::default() };
    assert_eq!((fabric.found(&by_label("use=training")), fabric.found(&by_label("!use"))), (1, 0));
    let by_text = RegionsQuery { text: Some("TRAINING".into()), ..RegionsQuery::default() };
    assert_eq!(fabric.found(&by_text), 1);

    fabric.label(labels(&[("team", "a")]), &["use"]).unwrap();
    assert_eq!((fabric.found(&by_label("use")), fabric.found(&by_label("team=a"))), (0, 1));
    // The event log contains the labels that were set.
    let last = fabric.manager.reason_after(&name("r"), 0).unwrap();
    assert!(last.contains("team=a"), "{last}");
    let none = LabelRegion::default();
    assert!(fabric.apply(Command::LabelRegion(name("none"), none)).is_err());
}

#[test]
fn labels_are_bounded() {
    let mut fabric = Fabric::new(&[8]);
    fabric.create("r", 1, cn(1)).unwrap();
    for number in 0..LABELS_MAX {
        fabric.label(labels(&[(&format!("key{number}"), "")]), &[]).unwrap();
    }
    let refused = fabric.label(labels(&[("more", "")]), &[]);
    assert!(refused.unwrap_err().to_string().contains("too many"));
    fabric.label(labels(&[("more", "")]), &["key0"]).unwrap();
}
