//! Warnings about nodes that the manager refuses. A refused node carries out no order, and without the warning a user
//! who waits for the order would find the reason only in the log of the node.

use std::pin::pin;
use std::time::Duration;

use cxloe_daemon::command_line::Failure;
use cxloe_fabric::Client;
use cxloe_fabric::api::{EventsQuery, ManagerHealth};
use cxloe_fabric::model::EventKind;

use super::progress::Progress;

/// Time that a request may take before the command names the nodes that the manager refuses.
const LONG: Duration = Duration::from_secs(2);
/// Maximum age of refused requests that a warning names, in milliseconds: the interval at which the manager records
/// refusals of the same caller.
const RECENT_MS: u64 = 3_600_000;
/// Maximum number of callers that are named in warnings.
const NAMED_MAX: usize = 8;
/// Beginnings of the paths of the requests that nodes send.
const PATHS_OF_NODES: [&str; 3] = ["/v1/memory-nodes", "/v1/compute-nodes", "/v1/join"];

/// Waits for `answer`, the manager's answer to a request that memory nodes must carry out. If the wait is long or the
/// request fails, names the nodes that the manager refuses, with the reason.
///
/// # Errors
/// Those of `answer`.
pub async fn watch<T, E>(
    client: &Client,
    progress: &Progress,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let mut answer = pin!(answer);
    match tokio::time::timeout(LONG, &mut answer).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(failed)) => {
            name(client, progress).await;
            Err(failed)
        }
        Err(_) => {
            // The nodes are named while the wait continues, since the answer may arrive meanwhile.
            let (answered, ()) = tokio::join!(answer, name(client, progress));
            answered
        }
    }
}

async fn name(client: &Client, progress: &Progress) {
    // A failure is ignored here, since the request that waits reports an unreachable manager itself.
    if let Ok(Some(warning)) = client.health().await.map(|health| not_followed(&health)) {
        progress.say(&warning);
    }
    if let Ok(callers) = callers(client).await {
        callers.iter().take(NAMED_MAX).for_each(|warning| progress.say(warning));
    }
}

/// Warning about nodes that refuse the manager because its store lacks changes that they have seen; `None` if
/// there are none.
pub fn not_followed(health: &ManagerHealth) -> Option<String> {
    let nodes: Vec<String> = health.refused.iter().map(ToString::to_string).collect();
    (!nodes.is_empty()).then(|| {
        format!(
            "Warning: not followed by {}, for its store lacks what they have seen: start the manager over its newest store; \
             `gmm adopt-fabric` shows what would be lost with this one",
            nodes.join(", ")
        )
    })
}

/// Warnings about callers that recently sent a node's request without the right to it.
async fn callers(client: &Client) -> Result<Vec<String>, Failure> {
    let query = EventsQuery { kind: Some("access_refused".into()), ..EventsQuery::default() };
    let events = client.events(EventsQuery { since_ms: Some(since_ms()), ..query }).await?.events;
    let refused = events.into_iter().filter_map(|event| match event.kind {
        EventKind::AccessRefused { what, .. } if is_of_node(&what) => Some((event.who?, what)),
        _ => None,
    });
    Ok(refused.map(|(who, what)| format!("Warning: {who} was refused {what}: no right to it")).collect())
}

/// True if a refused request, given as a method and a path, is one that nodes send.
fn is_of_node(what: &str) -> bool {
    let path = what.split_once(' ').filter(|(method, _)| *method != "GET").map(|(_, path)| path);
    path.is_some_and(|path| PATHS_OF_NODES.iter().any(|of| path.starts_with(of)))
}

fn since_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (now.as_millis() as u64).saturating_sub(RECENT_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_ask_is_not_taken_for_a_node() {
        assert!(is_of_node("POST /v1/memory-nodes") && is_of_node("POST /v1/join"));
        assert!(!is_of_node("GET /v1/memory-nodes") && !is_of_node("POST /v1/regions") && !is_of_node(""));
    }
}
