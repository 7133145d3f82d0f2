//! Refusals of FM API requests for a port or virtual switch that does not exist. The response is a return code without
//! text; the log contains the requested number, and the existing numbers with their nodes.

use std::collections::BTreeMap;

use cxloe_fabric::model::Name;
use cxloe_fm::header::ReturnCode;

use super::ManagerView;

/// Maximum number of ports or virtual switches in one line of the log.
const NAMED_MAX: usize = 16;

/// Logs and refuses a request for a port without a memory node.
pub fn no_device(view: &ManagerView<'_>, port: u8) -> ReturnCode {
    let nodes = view.manager.state().memory_nodes.values();
    let places = nodes.filter_map(|node| Some((view.place(node.index)?, node.name.to_string())));
    refuse(view, &format!("no memory node is at port {port}"), "port", &places.collect())
}

/// Logs and refuses a request for a virtual switch without a compute node.
pub fn no_host(view: &ManagerView<'_>, vcs: u8) -> ReturnCode {
    let nodes = view.manager.state().compute_nodes.values();
    let places = nodes.filter_map(|node| {
        let name = node.name.as_ref().map_or_else(|| node.cn_id.to_string(), Name::to_string);
        Some((view.place(node.index)?, name))
    });
    refuse(view, &format!("no compute node is VCS {vcs}"), "VCS", &places.collect())
}

fn refuse(view: &ManagerView<'_>, what: &str, of: &str, places: &BTreeMap<u8, String>) -> ReturnCode {
    let there = listed(of, places);
    tracing::info!(switch = view.switch, who = view.who, "FM API: refused: {what}; {there}");
    ReturnCode::InvalidInput
}

/// Lists the numbers that are in use, each with its node.
fn listed(of: &str, places: &BTreeMap<u8, String>) -> String {
    if places.is_empty() {
        return format!("this switch has no {of} in use");
    }
    let named = places.iter().take(NAMED_MAX).map(|(place, who)| format!("{of} {place} is {who}"));
    let named = named.collect::<Vec<_>>().join(", ");
    match places.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        Some(more) => format!("{named}, and {more} more that `gmm list -P` shows"),
        None => named,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_places_that_there_are() {
        let places = |count: u8| (0..count).map(|place| (place, format!("mn{place}"))).collect();
        assert_eq!(listed("port", &places(0)), "this switch has no port in use");
        assert_eq!(listed("port", &places(2)), "port 0 is mn0, port 1 is mn1");
        let many = listed("port", &places(127));
        assert!(many.ends_with("port 15 is mn15, and 111 more that `gmm list -P` shows"), "{many}");
        assert!(listed("port", &places(16)).ends_with("port 15 is mn15"));
    }
}
