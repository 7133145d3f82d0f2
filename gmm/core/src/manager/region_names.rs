//! Names for regions created without one: the first free name of a sequence, so that the same state gives the
//! same name.

use cxloe_fabric::model::{NAME_LEN_MAX, Name};

use super::Manager;

/// Reason for the creation of a region without a name; it determines the sequence of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nameless<'a> {
    /// A user's request without a name: `region0`, `region1` and so on.
    Request,
    /// The binding of a logical device, by memory node and LD-ID: `mn0-ld3`, `mn0-ld3-2` and so on.
    LogicalDevice(&'a Name, u16),
    /// Dynamic capacity of a logical device that carries no tag: `dc-mn0-3-1`, `dc-mn0-3-2` and so on.
    DynamicCapacity(&'a Name, u16),
}

impl Nameless<'_> {
    /// Returns the name with this number in the sequence. The memory node's name is cut if the whole would be
    /// too long.
    fn candidate(self, number: u64) -> Option<Name> {
        let (head, node, tail) = match self {
            Nameless::Request => ("region", "", number.to_string()),
            Nameless::LogicalDevice(node, ld) if number == 0 => ("", node.as_str(), format!("-ld{ld}")),
            Nameless::LogicalDevice(node, ld) => ("", node.as_str(), format!("-ld{ld}-{}", number + 1)),
            Nameless::DynamicCapacity(node, ld) => ("dc-", node.as_str(), format!("-{ld}-{}", number + 1)),
        };
        let room = NAME_LEN_MAX - head.len() - tail.len();
        Name::new(format!("{head}{}{tail}", &node[..node.len().min(room)])).ok()
    }
}

impl Manager {
    pub fn free_region_name(&self, of: Nameless<'_>) -> Name {
        // There is one candidate more than there are regions, so one of them is free.
        let mut candidates = (0..=self.state.regions.len() as u64).filter_map(|number| of.candidate(number));
        let free = candidates.find(|name| !self.state.regions.contains_key(name));
        free.unwrap_or_else(|| unreachable!("every candidate is a name, and all differ"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn candidates_are_names_and_differ() {
        let long = name(&"n".repeat(NAME_LEN_MAX));
        for node in [&name("mn0"), &long] {
            for of in [
                Nameless::Request,
                Nameless::LogicalDevice(node, u16::MAX),
                Nameless::DynamicCapacity(node, 255),
            ] {
                let numbers = (0..300).chain([u64::from(u32::MAX)]);
                let all: Vec<Name> = numbers.map(|number| of.candidate(number).unwrap()).collect();
                assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 301, "{of:?}");
            }
        }
    }

    #[test]
    fn each_origin_has_a_sequence() {
        let mn0 = name("mn0");
        let first = |of: Nameless<'_>| [0, 1].map(|number| of.candidate(number).unwrap().to_string());
        assert_eq!(first(Nameless::Request), ["region0", "region1"]);
        assert_eq!(first(Nameless::LogicalDevice(&mn0, 3)), ["mn0-ld3", "mn0-ld3-2"]);
        assert_eq!(first(Nameless::DynamicCapacity(&mn0, 3)), ["dc-mn0-3-1", "dc-mn0-3-2"]);
    }
}
