//! Facts about a machine and its interfaces that explain figures: each a name and a value, in the order of reports.
//!
//! ```text
//!   /proc, /sys, /etc below a Host --> platform --.
//!   interface as the doctor reads it -> interface -+--> [Fact], for tables, JSON and the comparison of two reports
//!   PCI address of a card -----------> card ------'
//! ```
//!
//! A fact that the kernel or a driver does not show is left out. None names the host, a user, or an address of the
//! network.

mod card;
mod interface;
mod platform;

use serde::{Deserialize, Serialize};

pub use card::{card, pci_address};
pub use interface::interface;
pub use platform::platform;

/// Property of a machine or of an interface, as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// Name, by which facts of two reports are compared.
    pub name: String,
    pub value: String,
}

impl Fact {
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Fact {
        Fact { name: name.into(), value: value.into() }
    }
}

/// Facts, to which those are added that are known.
#[derive(Debug, Default)]
struct FactList(Vec<Fact>);

impl FactList {
    /// Adds a fact if its value is known and not empty.
    fn add(&mut self, name: impl Into<String>, value: Option<impl Into<String>>) {
        if let Some(value) = value.map(Into::into).filter(|value: &String| !value.is_empty()) {
            self.0.push(Fact { name: name.into(), value });
        }
    }
}

/// Numbers in the kernel's form of a list: `0-3,8`; empty for none.
fn ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let text = |(first, last): (usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.into_iter().map(text).collect::<Vec<_>>().join(",")
}

/// Machine described by files below a temporary folder.
#[cfg(test)]
fn described(files: &[(&str, &str)]) -> (tempfile::TempDir, cxloe_daemon::doctor::Host) {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let host = cxloe_daemon::doctor::Host::at(root.path());
    (root, host)
}

/// Value of the fact `name`; `None` if there is none.
#[cfg(test)]
fn value<'f>(facts: &'f [Fact], name: &str) -> Option<&'f str> {
    facts.iter().find(|fact| fact.name == name).map(|fact| fact.value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_listed_as_the_kernel_does() {
        assert_eq!([ranges(&[0, 1, 2, 3, 8]), ranges(&[5]), ranges(&[])], ["0-3,8", "5", ""]);
    }

    #[test]
    fn what_is_unknown_is_left_out() {
        let mut list = FactList::default();
        list.add("known", Some("1"));
        list.add("empty", Some(""));
        list.add("unknown", None::<String>);
        assert_eq!(list.0, [Fact::new("known", "1")]);
    }
}
