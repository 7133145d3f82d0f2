//! Events of the manager's log, and sessions as reported by memory nodes.

use cxloe_daemon::command_line::{Failure, output};
use cxloe_fabric::Client;
use cxloe_fabric::api::{EventsQuery, Session};
use cxloe_fabric::model::Event;
use serde_json::Value;

use super::ListArgs;
use super::scope::{FilteredObject, Scope};

/// The events in scope, oldest first.
///
/// # Errors
/// If the manager does not answer.
pub async fn list(client: &Client, args: &ListArgs, scope: &Scope) -> Result<Vec<Value>, Failure> {
    let kinds = (!args.kind.is_empty()).then(|| args.kind.join(","));
    let since_ms = args.since.map(|since| since.unix_ms());
    let mut query = EventsQuery { kind: kinds, since_ms, who: args.who.clone(), ..EventsQuery::default() };
    let mut found = Vec::new();
    loop {
        let page = client.events(query.clone()).await?;
        for event in page.events.iter().filter(|event| scope.fits(&about(event))) {
            found.push(output::value(event)?);
        }
        // The log is read page by page, until a page ends with the newest event or is empty.
        if page.through <= query.after || page.through >= page.newest {
            return Ok(found);
        }
        query.after = page.through;
    }
}

/// The nodes and the region that an event is about, for the filters.
pub fn about(event: &Event) -> FilteredObject<'_> {
    FilteredObject {
        memdevs: event.kind.memory_node().into_iter().collect(),
        compute_nodes: event.kind.compute_node().into_iter().collect(),
        regions: event.kind.region().into_iter().collect(),
        ..FilteredObject::default()
    }
}

/// The sessions that pass the filters.
///
/// # Errors
/// If the manager does not answer.
pub async fn sessions(client: &Client, scope: &Scope) -> Result<Vec<Value>, Failure> {
    let sessions = client.sessions().await?;
    let thing = |session: &Session| {
        scope.fits(&FilteredObject {
            memdevs: vec![&session.memory_node],
            compute_nodes: vec![session.compute_node],
            ..FilteredObject::default()
        })
    };
    sessions.iter().filter(|session| thing(session)).map(output::value).collect()
}
